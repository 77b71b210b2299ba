"""Processes are killed at any moment, and what they had committed stays; 100 times with `DURABLE_FULL=1`."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from durable_core import DurableWorkflowExecutor
from durable_core.engine.results import StepView
from tests.e2e.programs.chain import STEPS
from tests.e2e.programs.nursery import ROOT, Nursery, is_over, open_nursery
from tests.e2e.programs.witness import bodies, committed, count, integrity, noted, outcome, statuses
from tests.waiting import full, moment, until

pytestmark = pytest.mark.slow

KILLS = 100 if full() else 10


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    yield from open_nursery()


@pytest.fixture(scope="module")
def uninterrupted(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The output of a run that nobody kills."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    assert nursery.run("chain", folder / "runs.db", "whole", folder) == 0
    assert len(bodies(folder / "bodies")) == STEPS
    return (folder / "output").read_text()


@pytest.mark.parametrize("seed", range(KILLS))
def test_a_run_killed_at_any_moments_ends_as_if_nothing_had_happened(
    seed: int, nursery: Nursery, uninterrupted: str, tmp_path: Path
) -> None:
    db, log, acks = tmp_path / "runs.db", tmp_path / "bodies", tmp_path / "acks"
    drawn = random.Random(seed)
    done: set[str] = set()
    for _ in range(drawn.choice((1, 2, 3))):
        started = count(log)
        aim = started + drawn.randrange(STEPS - len(done) + 1)
        pid = nursery.start("chain", db, "r1", tmp_path)
        until(lambda pid=pid, aim=aim: count(log) >= aim or is_over(pid), "the moment of the kill")
        moment(drawn.uniform(0, 0.005))
        acknowledged = set(noted(acks))
        assert acknowledged <= committed(db, "r1")  # while it lives
        assert nursery.kill(pid) in (-signal.SIGKILL, 0)  # 0: it was done before
        assert set(noted(acks)) <= committed(db, "r1")
        assert integrity(db) == "ok"
        assert not done & {line.step_id for line in bodies(log)[started:]}
        done = committed(db, "r1")
    started = count(log)
    assert nursery.run("chain", db, "r1", tmp_path) == 0
    assert not done & {line.step_id for line in bodies(log)[started:]}
    assert (tmp_path / "output").read_text() == uninterrupted
    keys = {(line.step_id, line.key) for line in bodies(log)}
    assert len(keys) == STEPS  # one step, one key, begun anew or not
    assert list(statuses(db, "r1").values()) == ["COMMITTED"] * STEPS
    assert integrity(db) == "ok"


def test_a_step_in_doubt_runs_again_under_the_same_key(nursery: Nursery, tmp_path: Path) -> None:
    pid = nursery.start("held", tmp_path / "runs.db", "r1", tmp_path, "first")
    until((tmp_path / "inside").exists, "the body")
    nursery.kill(pid)
    (tmp_path / "go").write_text("now")
    assert nursery.run("held", tmp_path / "runs.db", "r1", tmp_path, "second") == 0
    first, gate, again, last = bodies(tmp_path / "bodies")
    assert (first.step_id, gate.step_id, again.step_id, last.step_id) == ("first", "gate", "gate", "last")
    assert (gate.key, gate.attempt, again.attempt) == (again.key, 1, 2)
    assert gate.pid != again.pid
    assert outcome(tmp_path, "second") == {"output": [1, "now", 3]}


def test_whatever_was_acknowledged_at_full_speed_is_there_after_a_kill(
    nursery: Nursery, tmp_path: Path
) -> None:
    """One file, killed again and again while it is written as fast as it goes."""
    db, drawn = tmp_path / "runs.db", random.Random(7)
    (tmp_path / "go").touch()
    for number in range(200 if full() else 8):
        acks = tmp_path / f"{number}.acks"
        pid = nursery.start("sharing", db, f"r{number}", 1_000_000, tmp_path, acks)
        until(lambda acks=acks: count(acks) > 0, "the first step")
        moment(drawn.uniform(0, 0.05))
        nursery.kill(pid)
        assert integrity(db) == "ok"
        found = statuses(db, f"r{number}")
        there = {step_id for step_id, status in found.items() if status == "COMMITTED"}
        assert len(there) >= len(noted(acks)) > 0
        assert len(found) - len(there) <= 1  # at most the step that was running is in doubt


@pytest.mark.parametrize("death", ["exit", "kill"])
async def test_a_step_that_kills_its_process_fails_after_three_starts(
    death: str, nursery: Nursery, tmp_path: Path
) -> None:
    db, log = tmp_path / "runs.db", tmp_path / "bodies"
    dead = 9 if death == "exit" else -signal.SIGKILL
    run = ("deadly", db, "r1", tmp_path, "deadly", [death] * 5 + ["ok"])
    assert [nursery.run(*run) for _ in range(4)] == [dead, dead, dead, 1]
    assert outcome(tmp_path)["error"] == "RUN_FAILED"
    assert outcome(tmp_path)["cause"] == "CRASH_LIMIT_REACHED"
    assert [line.step_id for line in bodies(log)] == ["good", "bad", "bad", "bad"]
    failed = await step_of(db, "r1", "bad")
    assert failed.status == "FAILED"
    assert failed.error["type"] == "CrashLimitReached"
    assert [attempt["error"] for attempt in failed.attempts] == ["CRASHED"] * 3


async def test_resuming_gives_a_step_that_killed_its_process_a_fresh_budget(
    nursery: Nursery, tmp_path: Path
) -> None:
    db, log = tmp_path / "runs.db", tmp_path / "bodies"
    run = (db, "r1", tmp_path, "deadly", ["kill"] * 5 + ["ok"])
    codes = [nursery.run("deadly", *run) for _ in range(4)] + [
        nursery.run("resuming", *run[:3]) for _ in range(3)
    ]
    assert codes == [-signal.SIGKILL] * 3 + [1] + [-signal.SIGKILL] * 2 + [0]
    assert outcome(tmp_path) == {"output": [1, "bad at start 6", 2]}
    assert [line.step_id for line in bodies(log)] == ["good", *["bad"] * 6, "good#2"]
    assert len({line.key for line in bodies(log) if line.step_id == "bad"}) == 1


def test_a_workflow_that_catches_the_crash_limit_goes_on_without_that_step(
    nursery: Nursery, tmp_path: Path
) -> None:
    run = ("deadly", tmp_path / "runs.db", "r1", tmp_path, "forgiving", ["kill"])
    codes = [nursery.run(*run) for _ in range(4)]
    assert codes == [-signal.SIGKILL] * 3 + [0]
    assert outcome(tmp_path) == {"output": [1, "CRASH_LIMIT_REACHED", 2]}


async def test_crashes_use_up_none_of_the_attempts_that_may_raise(nursery: Nursery, tmp_path: Path) -> None:
    db = tmp_path / "runs.db"
    run = ("deadly", db, "r1", tmp_path, "moodily", ["kill", "raise", "kill", "raise", "ok"])
    codes = [nursery.run(*run) for _ in range(3)]
    assert codes == [-signal.SIGKILL, -signal.SIGKILL, 0]
    assert outcome(tmp_path) == {"output": ["moody at start 5"]}
    done = await step_of(db, "r1", "moody")
    assert (done.record.attempt, done.record.crashes) == (5, 2)
    assert [attempt["error"] for attempt in done.attempts] == ["CRASHED", "ERROR", "CRASHED", "ERROR"]


async def test_attempts_that_raise_use_up_none_of_the_crash_limit(nursery: Nursery, tmp_path: Path) -> None:
    run = (
        "deadly",
        tmp_path / "runs.db",
        "r1",
        tmp_path,
        "moodily",
        ["raise", "kill", "kill", "raise", "raise"],
    )
    codes = [nursery.run(*run) for _ in range(3)]
    assert codes == [-signal.SIGKILL, -signal.SIGKILL, 1]
    assert outcome(tmp_path)["cause"] == "STEP_FAILED"
    assert len(bodies(tmp_path / "bodies")) == 5


async def test_different_steps_side_by_side_keep_their_identity_over_any_number_of_crashes(
    nursery: Nursery, tmp_path: Path
) -> None:
    """They finish in another order each time; the second to finish kills the process."""
    db, log = tmp_path / "runs.db", tmp_path / "bodies"
    (tmp_path / "killer").touch()
    assert nursery.run("orderless", db, "r1", tmp_path, 1) == -signal.SIGKILL
    before = committed(db, "r1")
    assert before
    (tmp_path / "killer").unlink()
    for seed in range(2, 50 if full() else 8):
        pid = nursery.start("orderless", db, "r1", tmp_path, seed)
        moment(random.Random(seed).uniform(0, 0.02))
        nursery.kill(pid)
    assert nursery.run("orderless", db, "r1", tmp_path, 99) == 0
    assert outcome(tmp_path) == {"output": ["alpha", "beta", "gamma", "delta", "epsilon"]}
    assert len({(line.step_id, line.key) for line in bodies(log)}) == 5
    assert {line.step_id for line in bodies(log) if line.attempt > 1}.isdisjoint(before)


@pytest.mark.parametrize("ending", ["return", "error", "interrupt"])
def test_a_script_that_never_closes_its_executor_exits_at_once_with_its_data_kept(
    ending: str, tmp_path: Path
) -> None:
    script = subprocess.Popen(
        [sys.executable, "-m", "tests.e2e.programs.unclosed", tmp_path / "runs.db", ending],
        cwd=ROOT,
        env={**os.environ, "DURABLE_LOG_LEVEL": "critical"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    with script:
        assert script.stdout is not None
        assert script.stdout.readline() == b"at its end\n"
        if ending == "interrupt":
            script.send_signal(signal.SIGINT)
        try:
            code = script.wait(2)
        finally:
            script.kill()
    assert code == {"return": 0, "error": 1, "interrupt": -signal.SIGINT}[ending]
    expected = {"quick": "COMMITTED"} | ({"endless": "STARTED"} if ending == "interrupt" else {})
    assert statuses(tmp_path / "runs.db", "r1") == expected
    with closing(sqlite3.connect(tmp_path / "runs.db")) as connection:
        (status, owner) = connection.execute("SELECT status, owner FROM runs").fetchone()
    assert (status, owner) == ("PENDING" if ending == "interrupt" else "COMPLETED", None)


async def step_of(db: Path, run_id: str, step_id: str) -> StepView:
    async with DurableWorkflowExecutor(db_path=db) as executor:
        (found,) = [view for view in await executor.steps(run_id) if view.step_id == step_id]
        return found
