"""The soak finds nothing wrong in a few seconds, and would say so; scripts/soak.py goes on for 30 minutes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import soak
from tests.waiting import full

ROOT = Path(__file__).parents[2]
SECONDS = 600 if full() else 8


@pytest.mark.slow
@pytest.mark.parametrize("store", ["sqlite", "postgres", "dynamodb"] if full() else ["sqlite"])
def test_a_soak_loses_nothing(store: str) -> None:
    command = [
        sys.executable,
        "scripts/soak.py",
        "--seconds",
        str(SECONDS),
        "--store",
        store,
        "--processes",
        "3",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS + 180)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    told = json.loads(done.stdout)
    assert told["lost, done twice or damaged"] == 0
    assert told["runs started"] == told["runs ended and judged"] >= soak._MOST_WAITING
    assert told["processes killed"] > 0
    assert told["bodies started"] >= told["runs started"] * (6 + soak.ITEMS)


@pytest.fixture
def soaked(tmp_path: Path) -> soak.Soak:
    return soak.Soak(f"sqlite:///{tmp_path}/runs.db", tmp_path, 1)


@pytest.mark.parametrize(
    ("lines", "again", "wrong"),
    [
        (["body r1 small", "told r1 small", "body r1 large"], 0, 0),
        (["body r1 small", "body r1 small", "told r1 small"], 1, 0),
        (["body r1 small", "told r1 small", "body r1 small"], 1, 1),
        (["body r1 item[3]", "told r1 item[", "body r1 item[4]"], 0, 1),
        (["told r2 small", "body r1 small", "half a li"], 0, 0),
    ],
)
def test_a_body_that_runs_after_its_output_was_told_is_found(
    lines: list[str], again: int, wrong: int, soaked: soak.Soak
) -> None:
    soaked.log.write_text("\n".join(lines))
    with soaked.log.open("a") as file:
        file.write("" if lines[-1].startswith("half") else "\n")
    soaked._judge_bodies("r1")
    assert (soaked.found.again, len(soaked.found.wrong)) == (again, wrong)


async def test_a_run_that_comes_to_something_else_is_found(
    soaked: soak.Soak, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(soak._LOG, str(soaked.log))
    await soaked.executor.start(soak.soak, run_id="soak-7", number=8)
    await soaked.executor.signal("soak-7", "go", 8)
    await soaked.executor.resume("soak-7", soak.soak)
    await soaked._judge_ended()
    await soaked.executor.close()
    assert len(soaked.found.wrong) == 1
    assert "soak-7 came to [9," in soaked.found.wrong[0]


def test_losses_and_growth_give_another_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert soak.judged(soak.Found()) == 0
    assert soak.judged(soak.Found(wrong=["lost"])) == 1
    assert soak.judged(soak.Found(rss_mib=[50.0, 50.0, 50.0, 500.0])) == 1
    assert "memory has grown by 450 MiB" in capsys.readouterr().out
