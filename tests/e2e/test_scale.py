"""What grows with a run, and what doesn't: bytes kept, what one write carries, what is told of it."""

from __future__ import annotations

import asyncio
import json
import random
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from durable_core import (
    Context,
    DeadlineReached,
    DurableWorkflowExecutor,
    RunFailed,
    StepFailed,
    step,
    workflow,
)
from durable_core.cli.app import execute
from durable_core.errors import JournalUnavailable
from durable_core.outcomes import MAX_SEGMENT_BYTES
from durable_core.records import COMPLETED, Reply, Segment
from durable_core.store import Store
from durable_core.testing.forwarding_journal import ForwardingJournal
from tests.stores import Place
from tests.waiting import full

OUTPUT_BYTES = 3_000_000 if full() else 300_000
ERROR_CHARS = 7_900_000


# ---- What one write carries ----


@pytest.mark.over_dynamodb
async def test_outcomes_that_are_written_together_fit_however_large_they_are(place: Place) -> None:
    """Outputs of megabytes, and errors with messages of megabytes, that all wait for the same write."""
    done = asyncio.Barrier(10)

    @step
    async def item(number: int) -> bytes:
        await done.wait()  # so that they are written together
        if number % 2:
            raise ValueError(f"{number}: {'e' * ERROR_CHARS}")
        return random.Random(number).randbytes(OUTPUT_BYTES)

    @workflow(name="heavy_items")
    async def heavy(ctx: Context) -> Any:
        return await ctx.map(item, range(10), max_concurrency=10, tolerate_failures=5)

    executor = place.executor()
    result = (await executor.run(heavy, run_id="r1")).output
    assert list(result.outputs) == [random.Random(n).randbytes(OUTPUT_BYTES) for n in range(0, 10, 2)]
    assert [(one.index, one.error["message"][:4]) for one in result.failures] == [
        (n, f"{n}: e") for n in range(1, 10, 2)
    ]
    logs = [one async for page in executor.store.journal.segments("r1", "item") for one in page]
    assert sum(one.items for one in logs) == 10
    assert max(len(one.data or b"") for one in logs) <= MAX_SEGMENT_BYTES


@pytest.mark.over_dynamodb
async def test_a_run_that_fails_with_a_message_of_megabytes_is_recorded_as_failed(place: Place) -> None:
    @step
    async def explode() -> None:
        raise ValueError("e" * ERROR_CHARS)

    @workflow(name="explosive")
    async def explosive(ctx: Context) -> None:
        await ctx.step(explode)

    executor = place.executor()
    with pytest.raises(RunFailed):
        await executor.run(explosive, run_id="r1")
    view = await executor.get("r1")
    assert (view.status, view.counts) == ("FAILED", {"FAILED": 1})
    with pytest.raises(RunFailed, match="eeee"):
        await executor.run(explosive, run_id="r1")


async def test_a_run_whose_last_outcomes_cannot_be_written_has_not_completed(place: Place) -> None:
    """The last write of a map fails: the caller is told, and the next drive runs what was lost."""
    ran = list[int]()

    @step
    async def item(number: int) -> int:
        ran.append(number)
        return number

    @workflow(name="unflushed")
    async def unflushed(ctx: Context) -> list[int]:
        return list((await ctx.map(item, range(5), linger_ms=10)).outputs)

    inner = place.store()
    full_disk = FullDisk(inner.journal)
    executor = place.executor(store=Store(inner.url, full_disk, inner.blobs))
    with pytest.raises(JournalUnavailable):
        await executor.run(unflushed, run_id="r1")
    assert sorted(ran) == list(range(5))
    assert (await executor.get("r1")).status == "PENDING"
    full_disk.refuses = False
    result = await executor.resume("r1", unflushed)
    assert (result.status, result.output) == (COMPLETED, list(range(5)))


class FullDisk(ForwardingJournal):
    """Takes no segments with outcomes."""

    refuses = True

    @override
    async def append(self, segment: Segment) -> Reply[Segment]:
        if self.refuses and segment.items:
            raise JournalUnavailable("no space left", waited_s=60)
        return await super().append(segment)


# ---- What is kept ----


@pytest.mark.parametrize("kind", ["steps", "items"])
async def test_what_is_stored_grows_with_what_is_added_and_not_with_its_square(
    tmp_path: Path, kind: str
) -> None:
    """A thousand steps that each add 2 KB to what they are given: each stores what it adds."""
    count, added = 1000 if full() else 150, 2000
    sizes = []
    for number in (count // 2, count):
        folder = tmp_path / str(number)
        folder.mkdir()

        @step
        async def add(so_far: list[str], n: int) -> str:
            assert len(so_far) == n
            return random.Random(n).randbytes(added // 2).hex()

        @step
        async def one(n: int) -> str:
            return random.Random(n).randbytes(added // 2).hex()

        @workflow(name="adding")
        async def adding(ctx: Context, steps: int) -> int:
            so_far: list[str] = []
            if kind == "items":
                return len((await ctx.map(one, range(steps))).outputs)
            for n in range(steps):
                so_far.append(await ctx.step(add, so_far, n))
            return len(so_far)

        async with DurableWorkflowExecutor(db_path=folder / "runs.db") as executor:
            assert (await executor.run(adding, run_id="r1", steps=number)).output == number
        sizes.append(sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()))
    half, whole = sizes
    assert whole < 3 * count * added
    assert whole < 2.2 * half


# ---- What is told of a run that took several processes ----


async def test_failures_of_every_part_of_a_long_run_are_shown(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each part is driven by a process that has to hand over; none of their failures is forgotten."""
    clock, count, parts = place.turn_clock(), 12_000 if full() else 120, 2
    every = count // 12

    @step
    async def move(number: int) -> int:
        clock.turn(1)
        if number % every == 0:
            raise ValueError(f"can't move {number}")
        return number

    @workflow(name="migration")
    async def migration(ctx: Context) -> int:
        failed = 0
        for number in range(count):
            try:
                await ctx.step(move, number)
            except StepFailed:
                failed += 1
        return failed

    drives = 0
    deadline = timedelta(seconds=count / parts + 20)
    while True:
        drives += 1
        executor = place.executor()
        try:
            result = await executor.run(migration, run_id="r1", deadline=deadline)
            break
        except DeadlineReached:
            continue
    assert (drives, result.output) == (parts, 12)
    assert result.counts == {"COMMITTED": count - 12, "FAILED": 12}
    failed = [one for one in await executor.steps("r1") if one.status == "FAILED"]
    assert [one.error["message"] for one in failed] == [f"can't move {n}" for n in range(0, count, every)]
    records = [one async for page in executor.store.journal.steps("r1") for one in page]
    assert {one.fence for one in records if one.status == "FAILED"} == {1, 2}
    if place.kind == "sqlite":
        await executor.close()
        told = await asyncio.to_thread(shown, place.url, capsys)
        assert [one["error"]["message"] for one in told if one["status"] == "FAILED"] == [
            one.error["message"] for one in failed
        ]


def shown(url: str, capsys: pytest.CaptureFixture[str]) -> list[Any]:
    """The steps in the document of `durable show`."""
    capsys.readouterr()
    assert execute(("show", "r1", "--json", "--store", url)) == 0
    document = json.loads(capsys.readouterr().out)
    steps: list[Any] = document["steps"]
    return steps
