"""What a large output takes: it is made durable and read again in less than six times its size."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cloud import Cloud
from tests.e2e.programs.nursery import ROOT
from tests.stores import WITH_DYNAMODB
from tests.waiting import full

SIZE = 100_000_000 if full() else 20_000_000
KINDS = ("bytes", "annotated", "part", "text") if full() else ("bytes",)
TIMES = 6  # the output, its text in the store's form, and room for what turns one into the other


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    if request.param == "dynamodb":
        cloud: Cloud = request.getfixturevalue("cloud")
        return cloud.url(cloud.new_table(), cloud.new_bucket())
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'runs.db'}"


def in_a_process(url: str, kind: str) -> list[object]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.e2e.programs.large", url, kind, str(SIZE)],
        cwd=ROOT,
        # What is freed goes back at once, whatever its size: the same share of the output at either scale.
        env={**os.environ, "DURABLE_LOG_LEVEL": "error", "MALLOC_MMAP_THRESHOLD_": "1000000"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert isinstance(found, list)
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("url", WITH_DYNAMODB, indirect=True)
def test_a_large_output_takes_less_than_six_times_its_size(url: str, kind: str) -> None:
    made, made_bytes, read, most_bytes = in_a_process(url, kind)
    assert made == read
    assert isinstance(made_bytes, int)
    assert isinstance(most_bytes, int)
    assert SIZE < made_bytes <= most_bytes < TIMES * SIZE
