"""`durable prune` at a terminal and with real processes that are killed."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from durable_core import DurableWorkflowExecutor
from durable_core.engine import pruning
from durable_core.records import TOMBSTONE
from tests.e2e.programs.nursery import Nursery, open_nursery
from tests.e2e.test_cli import PATIENCE_S, Terminal
from tests.leftovers import left_of, run_ample
from tests.waiting import full, moment


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    yield from open_nursery()


def make(folder: Path, *run_ids: str) -> None:
    async def made() -> None:
        async with DurableWorkflowExecutor(db_path=folder / "durable.db") as executor:
            for run_id in run_ids:
                await run_ample(executor, run_id)

    asyncio.run(made())


def statuses(folder: Path) -> dict[str, str]:
    async def found() -> dict[str, str]:
        async with DurableWorkflowExecutor(db_path=folder / "durable.db") as executor:
            return {view.run_id: view.status for view in await executor.list()}

    return asyncio.run(found())


@pytest.mark.parametrize(
    ("answer", "left"), [(b"y\n", set()), (b"n\n", {"r1", "r2"}), (b"\x03", {"r1", "r2"})]
)
def test_a_person_is_asked_after_seeing_what_goes(tmp_path: Path, answer: bytes, left: set[str]) -> None:
    make(tmp_path, "r1", "r2")
    with Terminal(tmp_path, "prune", "--keep", "0") as terminal:
        seen = terminal.read_until(b"Delete 2 runs? [y/N]: ")
        moment(0.1)  # Python loses a Ctrl-C that comes just before it reads
        assert "RECORDS" in seen
        assert "2 runs, 18 records, 16 blobs" in seen
        terminal.type(answer)
        seen = terminal.read_until(None)
        assert terminal.process.wait(PATIENCE_S) == (130 if answer == b"\x03" else 0)
    assert ("Pruned 2 runs" in seen) is (answer == b"y\n")
    assert ("Nothing was deleted." in seen) is (answer == b"n\n")
    assert set(statuses(tmp_path)) == left


async def test_a_prune_that_is_killed_at_any_moment_is_finished_by_the_next(
    nursery: Nursery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real processes and SIGKILL: no pointer ever dangles, and in the end nothing is left."""
    db, runs = tmp_path / "durable.db", [f"r{number}" for number in range(40 if full() else 10)]
    async with DurableWorkflowExecutor(db_path=db) as executor:
        for run_id in runs:
            await run_ample(executor, run_id)
        kills, draw = 0, random.Random(5)
        for _ in range(60 if full() else 15):
            pid = nursery.start("pruning", db)
            moment(draw.uniform(0, 0.05))
            kills += nursery.kill(pid) == -signal.SIGKILL
            for run_id in runs:
                header, children, blobs = await left_of(executor, run_id)
                assert header is not None
                assert {ref for child in children for ref in child.refs} <= blobs
                if header.status != TOMBSTONE:
                    assert {header.input_ref, header.output_ref} <= blobs
        assert kills > 3
        assert nursery.run("pruning", db) == 0
        monkeypatch.setattr(pruning, "ORPHAN_AGE_S", 0)
        await executor.sweep()
        for run_id in runs:
            header, children, blobs = await left_of(executor, run_id)
            assert header is not None
            assert (header.status, children, blobs) == (TOMBSTONE, [], set())
