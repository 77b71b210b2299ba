"""What `scripts/build.sh` makes: for Lambda and for this machine; whole, of the right kind, and small."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.tags import parse_tag
from packaging.utils import canonicalize_name

from durable_core.local.template import read_template, reduce
from tests.artefacts import ROOT, built, log_of

FUNCTIONS = sorted(reduce(read_template(ROOT / "template.yaml")).functions)
WITH_WORKFLOWS = {"DriveRun", "StartRun", "WorkChunk"}
MOST_ZIPPED_MIB = 50  # what Lambda takes directly
MOST_RAW_MIB = 250

# All modules of ours that are in a zip, imported with nothing but the zip.
IMPORT_ALL = """
import importlib, pathlib, sys
folder = pathlib.Path(sys.argv[1])
sys.path.insert(0, str(folder))
for path in sorted([*folder.glob("durable_core/**/*.py"), *folder.glob("functions/**/*.py")]):
    parts = path.relative_to(folder).with_suffix("").parts
    if "postgres" not in path.name:
        importlib.import_module(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
"""
# What a handler needs to start; nobody is asked for anything yet.
ENVIRONMENT = {
    "DURABLE_STORE": "dynamodb://table?bucket=bucket&region=us-east-1",
    "DURABLE_DRIVE_QUEUE_URL": "https://example.invalid/drive",
    "DURABLE_WORK_QUEUE_URL": "https://example.invalid/work",
    "DURABLE_EVENT_BUS": "runs",
    "DURABLE_RETENTION_DAYS": "90",
    "AWS_REGION": "us-east-1",
    "PATH": os.environ["PATH"],
}


def run(code: str, folder: Path) -> str:
    """Runs code with a zip's content and the standard library, nothing else."""
    done = subprocess.run(
        [sys.executable, "-S", "-c", code, folder],
        cwd=folder,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def unfit(tags: set[str]) -> bool:
    """Whether wheels with these tags don't run on Lambda's arm64 with Python 3.13."""
    for tag in (one for text in tags for one in parse_tag(text)):
        right = tag.interpreter in ("cp313", "py3", "py2.py3") or tag.abi == "abi3"
        if right and (
            tag.platform == "any" or (tag.platform.startswith("manylinux") and "aarch64" in tag.platform)
        ):
            return False
    return True


def tags_of(folder: Path) -> dict[str, set[str]]:
    """The tags of each distribution in a folder."""
    return {
        info.parent.name: {
            line.removeprefix("Tag: ") for line in info.read_text().splitlines() if line.startswith("Tag: ")
        }
        for info in folder.glob("*.dist-info/WHEEL")
    }


@pytest.mark.slow
@pytest.mark.parametrize("target", ["host", "arm64"])
def test_both_targets_are_built_with_everything_in_its_place(target: str) -> None:
    folder = built(target)
    for name in FUNCTIONS:
        content = {path.name for path in (folder / name).iterdir()}
        assert {"app.py", "durable_core", "aioboto3", "pydantic", "structlog", "zstandard"} <= content
        core = {path.name for path in (folder / name / "durable_core").iterdir()}
        assert not core & {"cli", "cost", "local", "report", "testing"}
        assert ("functions" in content) == (name in WITH_WORKFLOWS)
        assert not content & {"typer", "rich", "moto", "bin", "tests"}


@pytest.mark.slow
def test_zips_are_small_enough_and_their_sizes_are_told(tmp_path: Path) -> None:
    folder = built("arm64")
    found = {
        name: (float(zipped), float(raw))
        for name, zipped, raw in re.findall(
            r"^(\w+) +([\d.]+) MiB zipped +([\d.]+) MiB raw$", log_of("arm64"), re.M
        )
    }
    assert sorted(found) == FUNCTIONS
    for zipped, raw in found.values():
        assert zipped < MOST_ZIPPED_MIB
        assert raw < MOST_RAW_MIB
    one = tmp_path / "one.zip"
    with zipfile.ZipFile(one, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in (folder / "InspectRun").rglob("*"):
            archive.write(path, path.relative_to(folder / "InspectRun"))
    assert found["InspectRun"][0] == pytest.approx(one.stat().st_size / 2**20, rel=0.02)


@pytest.mark.slow
def test_everything_compiled_is_for_lambdas_machine_and_python() -> None:
    folder = built("arm64")
    for name in FUNCTIONS:
        tags = tags_of(folder / name)
        assert {one for one, given in tags.items() if unfit(given)} == set()
        libraries = [path.name for path in (folder / name).rglob("*.so*")]
        assert [one for one in libraries if "x86_64" in one] == []
        assert any("aarch64" in one for one in libraries)


@pytest.mark.parametrize(
    ("tags", "is_unfit"),
    [
        ({"py3-none-any"}, False),
        ({"cp313-cp313-manylinux_2_17_aarch64", "cp313-cp313-manylinux2014_aarch64"}, False),
        ({"cp39-abi3-manylinux_2_28_aarch64"}, False),
        ({"cp313-cp313-manylinux_2_17_x86_64"}, True),
        ({"cp311-cp311-manylinux_2_17_aarch64"}, True),
        ({"cp313-cp313-musllinux_1_2_aarch64"}, True),
    ],
)
def test_a_wheel_for_another_machine_is_found(tags: set[str], is_unfit: bool) -> None:
    assert unfit(tags) is is_unfit


@pytest.mark.slow
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_built_function_lacks_no_module(name: str) -> None:
    folder = built("host") / name
    run(IMPORT_ALL, folder)
    run("import sys; sys.path.insert(0, sys.argv[1]); import app; assert callable(app.handler)", folder)


@pytest.mark.slow
def test_a_module_that_is_missing_in_a_zip_is_missed(tmp_path: Path) -> None:
    folder = built("host") / "InspectRun"
    lacking = tmp_path / "function"
    lacking.mkdir()
    for path in folder.iterdir():
        if path.name != "structlog":
            (lacking / path.name).symlink_to(path)
    with pytest.raises(AssertionError, match="structlog"):
        run(IMPORT_ALL, lacking)


@pytest.mark.slow
def test_the_zip_for_lambda_holds_every_module_that_its_own_modules_import() -> None:
    folder = built("arm64") / "DriveRun"
    there = {path.name.partition(".")[0] for path in folder.iterdir()} | set(sys.stdlib_module_names)
    wanted = set()
    for path in (folder / "durable_core").rglob("*.py"):
        if "postgres" in path.name:  # another store, whose client isn't in the zip
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                wanted |= {one.name.partition(".")[0] for one in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
                wanted.add(node.module.partition(".")[0])
    # For types only, of a newer Python, or of what is left out.
    assert wanted - there - {"_typeshed", "annotationlib", "psycopg", "typer"} == set()


def test_the_lock_is_complete_and_agrees_with_what_tests_run_with() -> None:
    def pins(path: Path) -> dict[str, str]:
        lines = [line for line in path.read_text("utf-8").splitlines() if line and not line.startswith("#")]
        return {
            canonicalize_name(name): version for name, _, version in (line.partition("==") for line in lines)
        }

    lock = pins(ROOT / "infra" / "build" / "requirements.txt")
    constraints = pins(ROOT / "constraints.txt")
    assert {name: constraints.get(name) for name in lock} == lock
    assert {"aioboto3", "pydantic", "structlog", "zstandard"} <= set(lock)
    assert not {"typer", "rich", "click"} & set(lock)
