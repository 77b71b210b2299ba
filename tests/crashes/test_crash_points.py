"""A process is ended at each of its durable writes, and nothing is lost, done twice or counted wrongly.

Simulated processes over the memory store, real ones that are killed over all others. `DURABLE_FULL=1` tries
every crash point, and every pair of them for two processes that overtake each other.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

from durable_core.testing.crash_trials import Trials
from durable_core.testing.simulated_process import Mode
from tests.cloud import Cloud
from tests.crashes.acts import ACTS
from tests.crashes.functions import FUNCTION_ACTS
from tests.crashes.killing import acts_on
from tests.postgres import PostgresServer
from tests.system import IS_LINUX
from tests.waiting import full

linux_only = pytest.mark.skipif(
    not IS_LINUX, reason="nobody can tell for certain here that a process is dead: its lease has to end first"
)
ROOT = Path(__file__).parents[2]
SIMULATED = ACTS | FUNCTION_ACTS
LONG = ("shared maps", "chunks", "renewals", "functions")  # of some 150 crash points each
POINTS_EVERY = dict.fromkeys(SIMULATED, 1) | dict.fromkeys(LONG, 1 if full() else 6)
PAIRS_EVERY = 1 if full() else 17
LONG_PAIRS_EVERY = 1 if full() else 97
# Of some 900 crash points of real processes; those on AWS take a second each.
KILLED_EVERY = dict.fromkeys(("sqlite", "postgres", "dynamodb"), 1)
KILLED_ACTS = {store: acts_on(store) for store in KILLED_EVERY}
if not full():
    KILLED_EVERY = {"sqlite": 47, "postgres": 83, "dynamodb": 61}
    KILLED_ACTS["dynamodb"] = ["steps", "maps", "functions"]
LIMIT_S = 3600 if full() else 300


def has_no_loose_ends(caplog: pytest.LogCaptureFixture) -> bool:
    """Whether every task's failure was taken by somebody: asyncio tells of others once they are forgotten."""
    gc.collect()
    return not [record for record in caplog.records if record.name == "asyncio"]


@pytest.mark.parametrize("name", SIMULATED)
def test_whatever_happens_to_a_process_at_a_write_its_run_ends_as_if_it_had_not(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    trials = Trials(SIMULATED[name])
    found = {
        f"{write.number} {write} {mode.value}": what
        for write, mode in trials.points()[:: POINTS_EVERY[name]]
        if (what := trials.broken(write.number, mode))
    }
    assert found == {}
    assert len(trials.writes) >= 4
    assert has_no_loose_ends(caplog)


@pytest.mark.parametrize("name", SIMULATED)
def test_a_process_that_is_overtaken_changes_nothing_that_the_other_does(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The other one stands before a write of its own while the first goes on to its end."""
    trials = Trials(SIMULATED[name])
    pairs = [(one, other) for one in trials.writes for other in trials.writes]
    found = {
        f"{one.number} {one}, {other.number} {other}": what
        for one, other in pairs[:: LONG_PAIRS_EVERY if name in LONG else PAIRS_EVERY]
        if (what := trials.broken(one.number, Mode.OVERTAKEN, other.number))
    }
    assert found == {}
    assert has_no_loose_ends(caplog)


def killed(store: str, at: str | None = None) -> subprocess.CompletedProcess[str]:
    """Real processes, from one that has no threads."""
    asked = ["--store", store, "--every", str(KILLED_EVERY[store]), *(["--at", at] if at else [])]
    for name in KILLED_ACTS[store]:
        asked += ["--act", name]
    return subprocess.run(
        [sys.executable, "-m", "tests.crashes.killing", *asked],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )


def kept(store: str, done: subprocess.CompletedProcess[str]) -> None:
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    assert ", 0 promises broken" in done.stdout
    assert int(done.stdout.split()[0]) >= len(KILLED_ACTS[store])  # one of each, at the least


@linux_only
@pytest.mark.slow
def test_processes_killed_on_sqlite_lose_nothing() -> None:
    kept("sqlite", killed("sqlite"))


@linux_only
@pytest.mark.slow
def test_processes_killed_on_postgres_lose_nothing(postgres: PostgresServer) -> None:
    kept("postgres", killed("postgres", postgres.url))


@linux_only
@pytest.mark.slow
def test_processes_killed_on_dynamodb_lose_nothing(moto_server: Cloud) -> None:
    kept("dynamodb", killed("dynamodb", moto_server.endpoint))
