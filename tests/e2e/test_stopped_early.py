"""Asked to stop between the call of `run` or `resume` and the first step: at once, and it is no crash.

Each of these ends with the run unrecorded or PENDING, never RUNNING, also while another program has the file
locked; then it is run to its end, and no crash was counted.
"""

from __future__ import annotations

import os
import random
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from durable_core import DurableWorkflowExecutor
from durable_core.engine.results import RunView
from durable_core.errors import RunNotFound
from tests.e2e.programs.nursery import Nursery, open_nursery
from tests.e2e.programs.stopped import stopped
from tests.waiting import full, moment, until

PROMPT_S = 5.0  # on a busy machine; a locked file is waited for six times as long
CODES = {signal.SIGTERM: 143, signal.SIGINT: 130}
DRAWN = 400 if full() else 24

WAYS = {
    "run": ("open", "header", "create", "replay", "begin"),
    "resume": ("open", "header", "acquire", "replay", "begin"),
    "takeover": ("open", "header", "progressed", "acquire", "replay", "begin"),
}
MOMENTS = [
    (way, f"{when} {verb}", number)
    for way, verbs in WAYS.items()
    for verb in verbs
    for when in ("before", "after")
    for number in (signal.SIGTERM, signal.SIGINT)
    if number == signal.SIGTERM or verb in ("open", "create", "acquire")
]


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    yield from open_nursery()


async def prepared(way: str, folder: Path, nursery: Nursery) -> Path:
    """A store with a run that waits to be resumed, or whose owner died before its first step; or without."""
    db = folder / "runs.db"
    async with DurableWorkflowExecutor(db_path=db) as executor:
        if way == "resume":
            await executor.start(stopped, run_id="r1", folder=str(folder))
    if way == "takeover":
        assert nursery.run("stopped", db, folder, "run", "after create", signal.SIGKILL) == -signal.SIGKILL
        (folder / "came").unlink()
        (folder / "called").unlink()
    return db


async def found(db: Path) -> RunView | None:
    async with DurableWorkflowExecutor(db_path=db) as executor:
        try:
            return await executor.get("r1")
        except RunNotFound:
            return None


async def is_as_if_never_called(way: str, db: Path) -> None:
    """The run is unrecorded or PENDING, and goes on; the only crash is that of the owner who was killed."""
    left = await found(db)
    crashes = 1 if way == "takeover" else 0
    if left is not None and way == "takeover" and left.status == "RUNNING":  # not even taken over
        assert left.fence == 1
    elif left is not None:
        assert (left.status, left.owner_process) == ("PENDING", None)
        assert left.crashes <= crashes
    else:
        assert way == "run"
    async with DurableWorkflowExecutor(db_path=db) as executor:
        result = await executor.run(stopped, run_id="r1", folder=str(db.parent))
        assert result.output == 1
        assert (await executor.get("r1")).crashes <= crashes
        assert (await executor.steps("r1"))[0].record.crashes == 0


@pytest.mark.slow
@pytest.mark.parametrize(("way", "at", "number"), MOMENTS)
async def test_a_stop_at_any_call_before_the_first_step_leaves_the_run_as_it_was(
    way: str, at: str, number: signal.Signals, nursery: Nursery, tmp_path: Path
) -> None:
    db = await prepared(way, tmp_path, nursery)
    code = nursery.run("stopped", db, tmp_path, way, at, number, limit_s=PROMPT_S)
    assert (tmp_path / "came").exists()
    assert code == CODES[number]
    await is_as_if_never_called(way, db)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
async def test_a_stop_at_any_moment_leaves_the_run_as_it_was(
    way: str, nursery: Nursery, tmp_path: Path
) -> None:
    drawn = random.Random(way)
    for number in range(DRAWN // len(WAYS)):
        folder = tmp_path / str(number)
        folder.mkdir()
        db = await prepared(way, folder, nursery)
        child = nursery.start("stopped", db, folder, way)
        until((folder / "called").exists, "the call")
        moment(drawn.uniform(0, 0.02))
        os.kill(child, signal.SIGTERM)
        assert nursery.wait(child, limit_s=PROMPT_S) in (143, -signal.SIGTERM)  # before anything was called
        await is_as_if_never_called(way, db)


@pytest.mark.slow
@pytest.mark.parametrize("number", CODES)
@pytest.mark.parametrize("way", WAYS)
async def test_a_stop_while_another_program_has_the_file_locked_doesnt_wait_for_it(
    way: str, number: signal.Signals, nursery: Nursery, tmp_path: Path
) -> None:
    db = await prepared(way, tmp_path, nursery)
    with closing(sqlite3.connect(db, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        child = nursery.start("stopped", db, tmp_path, way)
        until((tmp_path / "called").exists, "the call")
        moment(0.15)  # into the wait
        os.kill(child, number)
        assert nursery.wait(child, limit_s=PROMPT_S) == CODES[number]
    await is_as_if_never_called(way, db)


@pytest.mark.slow
@pytest.mark.parametrize("locked", ["new file", "reads too"])
async def test_a_stop_while_a_file_cannot_even_be_opened_or_read_doesnt_wait_for_it(
    locked: str, nursery: Nursery, tmp_path: Path
) -> None:
    db = tmp_path / "runs.db"
    if locked == "reads too":
        await prepared("run", tmp_path, nursery)
    with closing(sqlite3.connect(db, isolation_level=None)) as other:
        if locked == "reads too":
            other.execute("PRAGMA locking_mode=EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        child = nursery.start("stopped", db, tmp_path, "run")
        until((tmp_path / "called").exists, "the call")
        moment(0.15)
        os.kill(child, signal.SIGTERM)
        assert nursery.wait(child, limit_s=PROMPT_S) == CODES[signal.SIGTERM]
    await is_as_if_never_called("run", db)


@pytest.mark.slow
@pytest.mark.parametrize("at", ["after create", "before replay", "before begin"])
async def test_a_lock_that_comes_once_the_run_is_recorded_is_waited_for_so_that_it_is_never_left_running(
    at: str, nursery: Nursery, tmp_path: Path
) -> None:
    db = await prepared("run", tmp_path, nursery)
    code = nursery.run("stopped", db, tmp_path, "run", at, signal.SIGTERM, True, limit_s=PROMPT_S)
    assert code == CODES[signal.SIGTERM]
    left = await found(db)
    assert left is not None
    assert left.status == "PENDING"
    await is_as_if_never_called("run", db)
