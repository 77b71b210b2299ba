"""What functions are told by their environment, and what they import."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from durable_core.aws.drive import drive_handler
from durable_core.aws.environment import read_environment
from durable_core.aws.inspect import inspect_handler
from durable_core.aws.signal import signal_handler
from durable_core.aws.start import start_handler
from durable_core.aws.sweep import sweep_handler
from durable_core.aws.work import work_handler
from durable_core.errors import UsageError
from tests.lambda_place import JOBS

ROOT = Path(__file__).parents[2]
GIVEN = {
    "DURABLE_STORE": "dynamodb://runs?bucket=outputs&region=us-east-1",
    "DURABLE_DRIVE_QUEUE_URL": "https://sqs/drive",
    "DURABLE_WORK_QUEUE_URL": "https://sqs/work",
    "DURABLE_EVENT_BUS": "runs",
    "DURABLE_RETENTION_DAYS": "90",
    "DURABLE_STAGE": "prod",
    "DURABLE_LOG_LEVEL": "warning",
}
NEEDED: dict[str, tuple[Callable[[], Any], set[str]]] = {
    "start_run": (
        lambda: start_handler(workflows=JOBS),
        {"DURABLE_STORE", "DURABLE_DRIVE_QUEUE_URL"},
    ),
    "signal_run": (signal_handler, {"DURABLE_STORE", "DURABLE_DRIVE_QUEUE_URL", "DURABLE_EVENT_BUS"}),
    "drive_run": (
        lambda: drive_handler(workflows=JOBS),
        {"DURABLE_STORE", "DURABLE_DRIVE_QUEUE_URL", "DURABLE_EVENT_BUS"},
    ),
    "work_chunk": (
        lambda: work_handler(workflows=JOBS),
        {"DURABLE_STORE", "DURABLE_DRIVE_QUEUE_URL", "DURABLE_WORK_QUEUE_URL"},
    ),
    "sweep_runs": (sweep_handler, {"DURABLE_STORE", "DURABLE_DRIVE_QUEUE_URL", "DURABLE_RETENTION_DAYS"}),
    "inspect_run": (inspect_handler, {"DURABLE_STORE"}),
}


def test_each_setting_is_the_variable_of_its_name() -> None:
    assert read_environment(given=GIVEN).model_dump() == {
        "store": "dynamodb://runs?bucket=outputs&region=us-east-1",
        "drive_queue_url": "https://sqs/drive",
        "work_queue_url": "https://sqs/work",
        "event_bus": "runs",
        "retention_days": 90,
        "stage": "prod",
        "log_level": "warning",
    }


@pytest.mark.parametrize(("made", "needed"), NEEDED.values(), ids=NEEDED.keys())
def test_a_function_that_lacks_a_variable_says_so_when_it_starts(
    made: Callable[[], Any], needed: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError) as caught:
        made()
    assert {name for name in GIVEN if f"{name} is missing" in str(caught.value)} == needed
    for name in needed:
        monkeypatch.setenv(name, GIVEN[name])
    made().close()
    monkeypatch.setenv(min(needed - {"DURABLE_STORE"}, default="DURABLE_STORE"), "  ")
    with pytest.raises(UsageError, match="is missing"):
        made()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DURABLE_RETENTION_DAYS", "ninety"),
        ("DURABLE_RETENTION_DAYS", "-1"),
        ("DURABLE_RETENTION_DAYS", "1.5"),
        ("DURABLE_STORE", "dynamodb://runs"),
        ("DURABLE_STORE", "nonsense"),
        ("DURABLE_LOG_LEVEL", "loud"),
    ],
)
def test_a_variable_that_cant_be_used_is_named(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, given in (GIVEN | {name: value}).items():
        monkeypatch.setenv(variable, given)
    with pytest.raises(UsageError, match=f"{name}|{value}|bucket"):
        sweep_handler()


@pytest.mark.parametrize(
    "workflows", ["no.such.module", "tests.functions.no_such", ["tests.functions.jobs", "nope"]]
)
def test_workflows_that_arent_there_are_named(workflows: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, given in GIVEN.items():
        monkeypatch.setenv(variable, given)
    with pytest.raises(UsageError, match="no"):
        drive_handler(workflows=workflows)


LOADED = """
import importlib, json, sys

class NotInTheZip:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("greenlet", "rich", "typer"):
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, NotInTheZip())
importlib.import_module(f"functions.{sys.argv[1]}.app")
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules} - set(sys.stdlib_module_names))))
"""
CORE = {
    "annotated_types",
    "durable_core",
    "functions",
    "pydantic",
    "pydantic_core",
    "structlog",
    "typing_extensions",
    "typing_inspection",
    "zstandard",
}


@pytest.mark.parametrize("function", NEEDED)
def test_a_cold_start_imports_the_core_and_no_client(function: str) -> None:
    """Clients are imported by the first request that needs them; `aiohttp` never by two of the functions."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED, function],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, **GIVEN, "AWS_REGION": "us-east-1"},
    )
    assert done.returncode == 0, done.stderr
    loaded = {name for name in json.loads(done.stdout) if not name.startswith("_")}
    assert loaded - CORE == set()


USED = """
import json, sys
from tests.lambda_place import Context
from functions.inspect_run import app as inspect_run
from functions.sweep_runs import app as sweep_runs
print(sweep_runs.handler({"do": ["due", "prune", "sweep"]}, Context()), file=sys.stderr)
try:
    inspect_run.handler({"run_id": "none"}, Context())
except Exception as error:
    print(type(error).__name__, file=sys.stderr)
inspect_run.handler.close()
sweep_runs.handler.close()
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""


def test_looking_and_sweeping_never_import_what_only_driving_needs(deployment: Any) -> None:
    used = USED.replace("from tests.lambda_place import Context", "class Context: pass")
    done = subprocess.run([sys.executable, "-c", used], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "RunNotFound" in done.stderr
    loaded = set(json.loads(done.stdout.splitlines()[-1]))
    assert "boto3" in loaded
    assert not loaded & {"aiohttp", "aioboto3", "aiobotocore", "typer"}
