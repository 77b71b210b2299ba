"""Each fault of the protocol, planted in a copy of the package, breaks a promise that the search sees.

So the search can fail, and the lines that the faults change are there for a reason. A text that is no longer
found fails its test: a fault can't outlive the code that it is about.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.concurrency.explore import SCENARIOS
from tests.concurrency.faults import FAULTS, Fault
from tests.concurrency.faults_on_sqlite import FAULTS_ON_SQLITE
from tests.waiting import full

ROOT = Path(__file__).parents[2]
LIMIT_S = 600 if full() else 60
ALL = (*FAULTS, *FAULTS_ON_SQLITE)
NOW = [fault for fault in ALL if full() or not fault.slow]


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package and of the search, in which each test plants its fault and removes it again."""
    folder = tmp_path_factory.mktemp("planted")
    no_caches = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "durable_core", folder / "durable_core", ignore=no_caches)
    shutil.copytree(ROOT / "tests" / "concurrency", folder / "tests" / "concurrency", ignore=no_caches)
    return folder


def search(folder: Path, fault: Fault) -> subprocess.CompletedProcess[str]:
    """Searches where the fault shows, with the package that lies in the folder."""
    asked = [fault.scenario, "--walks", str(fault.walks), "--limit", str(fault.limit)]
    if fault.on:
        asked += ["--on", fault.on]
    return subprocess.run(
        [sys.executable, "-B", "-m", "tests.concurrency.explore", *asked],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )


@pytest.mark.parametrize("fault", NOW, ids=lambda fault: fault.name)
def test_a_planted_fault_is_caught(copies: Path, fault: Fault) -> None:
    module = copies / "durable_core" / fault.file
    right = module.read_text("utf-8")
    assert right.count(fault.old) == 1, (
        f"{fault.file} has changed: the text that {fault.name} changes is gone"
    )
    module.write_text(right.replace(fault.old, fault.new), "utf-8")
    try:
        done = search(copies, fault)
    finally:
        module.write_text(right, "utf-8")
    assert (done.returncode, done.stderr) == (1, ""), done.stdout + done.stderr
    assert "replay: " in done.stdout


def test_without_a_fault_the_copy_keeps_its_promises(copies: Path) -> None:
    done = search(copies, Fault("none", "", "", "", walks=20, limit=20))
    assert (done.returncode, done.stderr) == (0, "")
    assert "every promise was kept" in done.stdout


def test_every_fault_has_a_name_of_its_own_and_a_scenario_that_there_is() -> None:
    assert len({fault.name for fault in ALL}) == len(ALL)
    assert {fault.scenario for fault in ALL} <= {scenario.name for scenario in SCENARIOS}
