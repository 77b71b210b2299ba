"""Whoever is to drive runs on, where nobody looks at the journal, is told of each by name."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta

import pytest

from durable_core import Context, DurableWorkflowExecutor, step, workflow
from durable_core.errors import DeadlineReached
from durable_core.testing.fake_clock import FakeClock

HOUR_S = 3600


class Told:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.drives: list[tuple[str, float]] = []
        self.pieces: list[tuple[str, str, list[int]]] = []

    async def drive(self, run_id: str, *, delay_s: float = 0) -> None:
        self.drives.append((run_id, delay_s))

    async def chunks(self, run_id: str, step_id: str, chunks: Sequence[int]) -> None:
        self.pieces.append((run_id, step_id, list(chunks)))


class Deaf(Told):
    """Can't be reached."""

    async def drive(self, run_id: str, *, delay_s: float = 0) -> None:
        raise ConnectionError("no queue")


@workflow
async def asks(ctx: Context) -> str:
    return str(await ctx.wait_for_event("answer", timeout=timedelta(hours=1), default="none"))


@workflow
async def waits(ctx: Context) -> str:
    return str(await ctx.wait_for_event("answer"))


@step
async def long() -> None:
    await asyncio.sleep(60)


@workflow
async def works(ctx: Context) -> None:
    await ctx.step(long)


async def test_a_run_that_is_started_is_told_of_and_again_if_it_is_started_again() -> None:
    told = Told()
    async with DurableWorkflowExecutor("memory://", dispatch=told) as executor:
        await executor.start(asks, run_id="r")
        assert told.drives == [("r", 0)]
        await executor.start(asks, run_id="r")  # the first call may have ended before it could tell
        assert told.drives == [("r", 0)] * 2


async def test_a_run_that_sleeps_is_told_of_with_its_time_and_once_more_when_it_is_woken() -> None:
    told, clock = Told(), FakeClock()
    async with DurableWorkflowExecutor("memory://", dispatch=told, clock=clock) as executor:
        await executor.run(asks, run_id="r", on_wait="suspend")
        ((run_id, delay_s),) = told.drives
        assert run_id == "r"
        assert HOUR_S - 60 < delay_s <= HOUR_S
        await executor.signal("r", "answer", "yes", event_id="e")
        assert told.drives[1:] == [("r", 0)]
        await executor.signal("r", "answer", "yes", event_id="e")
        assert told.drives[2:] == [("r", 0)]
        result = await executor.resume("r", asks, on_wait="suspend")
        assert result.output == "yes"
        await executor.signal("r", "answer", "yes", event_id="e")
        assert len(told.drives) == 3, "a run that is over is driven by nobody"


async def test_a_run_that_waits_for_an_event_alone_is_told_of_when_the_event_comes() -> None:
    told = Told()
    async with DurableWorkflowExecutor("memory://", dispatch=told, clock=FakeClock()) as executor:
        await executor.run(waits, run_id="r", on_wait="suspend")
        assert told.drives == []
        await executor.signal("r", "answer", "yes")
        assert told.drives == [("r", 0)]


async def test_a_run_that_is_left_at_its_deadline_is_told_of_after_it_was_released() -> None:
    told = Told()
    async with DurableWorkflowExecutor("memory://", dispatch=told) as executor:
        with pytest.raises(DeadlineReached):
            await executor.run(works, run_id="r", deadline=timedelta(seconds=0.1))
        assert told.drives == [("r", 0)]
        assert (await executor.get("r")).status == "PENDING"


async def test_where_nobody_can_be_told_the_caller_learns_and_the_write_stands() -> None:
    async with DurableWorkflowExecutor("memory://", dispatch=Deaf()) as executor:
        with pytest.raises(ConnectionError, match="no queue"):
            await executor.start(asks, run_id="r")
        assert (await executor.get("r")).status == "PENDING"


async def test_a_chunk_of_no_run_and_of_no_map_is_gone() -> None:
    async with DurableWorkflowExecutor("memory://") as executor:
        assert (await executor.work_chunk("none", "long", 0)).status == "GONE"
        await executor.start(works, run_id="r")
        found = await executor.work_chunk("r", "long", 0, workflow=works)
        assert (found.status, found.items, found.woken) == ("GONE", 0, False)
