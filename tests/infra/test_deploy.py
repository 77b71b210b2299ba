"""`scripts/deploy.sh`: what it does in which order; at full scale for real, up to where moto is not AWS."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from durable_core.local.template import read_template
from tests.artefacts import ROOT, alone, built
from tests.cloud import ENVIRONMENT, Cloud
from tests.infra.rules import functions
from tests.waiting import full

# Notes what it is asked for, and fails where it is told to; `sam build` leaves a function, to be measured.
STAND_IN = """#!/usr/bin/env bash
echo "sam $*" >>"$NOTES"
[ "$1" != "$FAILS" ] || exit 3
[ "$1" != build ] || { mkdir -p "$4/StartRun" && echo 'handler = None' >"$4/StartRun/app.py"; }
"""
MAKE = """#!/usr/bin/env bash
echo "make for $DURABLE_BUILD_TARGET" >>"$NOTES"
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The scripts, with stand-ins for the tools that they call."""
    shutil.copytree(
        ROOT / "scripts", tmp_path / "scripts", ignore=shutil.ignore_patterns("__pycache__", "bench")
    )
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, text in (("sam", STAND_IN), ("make", MAKE)):
        (tools / name).write_text(text, "utf-8")
        (tools / name).chmod(0o755)
    return tmp_path


def deploy(project: Path, *args: str, fails: str = "") -> tuple[int, list[str], str]:
    """Runs it; gives its exit code, what it asked the tools for, and what it told."""
    tools, notes = project / "tools", project / "notes"
    notes.touch()
    done = subprocess.run(
        ["bash", "scripts/deploy.sh", *args],
        cwd=project,
        env={
            "PATH": f"{tools}:{os.environ['PATH']}",
            "PYTHON": sys.executable,
            "SAM": str(tools / "sam"),
            "NOTES": str(notes),
            "FAILS": fails,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, notes.read_text("utf-8").splitlines(), done.stdout + done.stderr


@pytest.mark.parametrize(
    ("args", "stage", "more"),
    [
        ((), "dev", ""),
        (("dev",), "dev", ""),
        (("prod", "--parameter-overrides", "Stage=prod Concurrency=9"), "prod", "Stage=prod Concurrency=9"),
        (("--no-confirm-changeset",), "dev", "--no-confirm-changeset"),
    ],
    ids=["as-it-is", "dev", "prod", "an-argument-of-sam"],
)
def test_it_validates_and_builds_before_it_deploys(
    args: tuple[str, ...], stage: str, more: str, project: Path
) -> None:
    code, notes, told = deploy(project, *args)
    assert code == 0, told
    assert notes[:3] == [
        f"sam validate --lint --config-env {stage}",
        "make for arm64",
        "sam build --parallel --build-dir .aws-sam/build",
    ]
    assert re.fullmatch(rf"sam deploy --config-env {stage} ?.*{re.escape(more)}", notes[3])
    assert len(notes) == 4
    assert re.search(r"StartRun +0\.0 MiB zipped", told)


@pytest.mark.parametrize("step", ["validate", "build", "deploy"])
def test_what_fails_ends_it(step: str, project: Path) -> None:
    code, notes, _ = deploy(project, fails=step)
    assert code == 3
    assert notes[-1].startswith(f"sam {step}")


@pytest.mark.parametrize(("stage", "told"), [("staging", "dev|prod"), ("", "dev|prod")])
def test_a_stage_that_is_not_known_is_refused(stage: str, told: str, project: Path) -> None:
    code, notes, said = deploy(project, stage)
    assert (code, notes) == (1, [])
    assert told in said


def test_a_sam_that_is_not_there_is_named(project: Path) -> None:
    (project / "tools" / "sam").unlink()
    code, notes, said = deploy(project)
    assert (code, notes) == (1, [])
    assert "is no program" in said


if full():  # minutes: six zips are made and put to the bucket

    def test_the_real_sam_puts_all_that_is_deployed_to_the_bucket(cloud: Cloud, tmp_path: Path) -> None:
        """moto makes no change set of a template with SAM's types: up to there it is what AWS would see."""
        bucket = cloud.new_bucket()
        built("arm64")
        with alone("build"):
            done = subprocess.run(
                ["bash", "scripts/deploy.sh", "dev", "--no-resolve-s3", "--s3-bucket", bucket],
                cwd=ROOT,
                env={
                    **os.environ,
                    **ENVIRONMENT,
                    "PYTHON": sys.executable,
                    "AWS_ENDPOINT_URL": cloud.endpoint,
                },
                capture_output=True,
                text=True,
                check=False,
            )
        assert "Failed to create changeset for the stack: durable-dev" in done.stderr
        assert "CreateChangeSet" in done.stderr
        found = {
            one["Key"]: one for one in cloud.ask("s3", "list_objects_v2", {"Bucket": bucket})["Contents"]
        }
        (name,) = [key for key in found if key.endswith(".template")]
        text = cloud.ask("s3", "get_object", {"Bucket": bucket, "Key": name})["Body"]
        template = tmp_path / "deployed.yaml"
        template.write_bytes(text)
        uris = [one["CodeUri"] for one in functions(read_template(template)).values()]
        assert len(uris) == len(functions(read_template(ROOT / "template.yaml")))
        assert {one.removeprefix(f"s3://{bucket}/") for one in uris} == set(found) - {name}
        assert '"Stage": "dev"' in done.stdout
