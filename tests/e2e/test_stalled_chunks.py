"""Chunks that are handed back at their deadline with nothing done: not for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from typing_extensions import override

from durable_core import Context, DurableWorkflowExecutor, RunFailed, step, workflow
from durable_core.aws.deadline import LambdaDeadline
from durable_core.clock import Clock
from durable_core.control_flow import HandOver
from durable_core.engine.chunk_claims import idle_of
from durable_core.engine.drive import Drive
from durable_core.engine.stopping import Deadline
from durable_core.errors import ChunkStalled
from tests.endless import endless_items
from tests.lambda_place import Context as Lambda
from tests.stores import Place, Processes, crash, verb_of

SHARED: dict[str, Any] = {"distribute": True, "chunk_size": 5}


class WhenStuck(Deadline):
    """A deadline that comes as soon as the chunk can't go on, however slow its store is.

    Args:
        clock: Of the executor.
        is_stuck: Whether its items have come to where they stay.
    """

    def __init__(self, clock: Clock, is_stuck: Callable[[Drive], bool]) -> None:
        super().__init__(timedelta(hours=1), clock)
        self._is_stuck = is_stuck
        self._looking: asyncio.Task[None] | None = None

    @override
    def watch(self, drive: Drive) -> None:
        self._looking = asyncio.get_running_loop().create_task(self._look(drive))

    async def _look(self, drive: Drive) -> None:
        while not self._is_stuck(drive):  # noqa: ASYNC110 - no event tells of a wait
            await asyncio.sleep(0.005)
        drive.interrupt(HandOver("the deadline is near"))

    @override
    def forget(self) -> None:
        if self._looking is not None:
            self._looking.cancel()


class Sent:
    """Remembers what is to be worked on: runs, and chunks of them."""

    def __init__(self) -> None:
        self.work: list[tuple[str, int | None]] = []

    async def drive(self, run_id: str, *, delay_s: float = 0) -> None:
        self.work.append((run_id, None))

    async def chunks(self, run_id: str, step_id: str, chunks: list[int]) -> None:
        self.work += [(run_id, chunk) for chunk in chunks]


def invoked(place: Place, left_ms: int, function: str) -> LambdaDeadline:
    return LambdaDeadline(Lambda(left_ms, function=function), place.clock)


async def begin(executor: DurableWorkflowExecutor, wf: Any) -> None:
    """Has the map begun, by a driver that leaves when everybody waits."""
    assert (await executor.run(wf, run_id="r1", on_wait="suspend")).status == "SUSPENDED"


async def idle(executor: DurableWorkflowExecutor) -> int:
    chunk = await executor.store.journal.chunk("r1", "part", 0)
    assert chunk is not None
    return idle_of(chunk)


@pytest.mark.parametrize("starts", [True, False], ids=["too slow", "never its turn"])
async def test_a_chunk_that_comes_to_its_deadline_with_nothing_done_fails_its_run_in_the_end(
    place: Place, starts: bool
) -> None:
    ran, stuck = list[int](), [True]
    function = f"chunk-{starts}"
    invoked(place, 900_000, function)  # its time-out: what is left below is much less than half of that

    @step(timeout_s=None if starts else 600)
    async def part(number: int) -> int:
        ran.append(number)
        if stuck:
            await asyncio.Event().wait()
        return number

    @workflow(name=f"stalled_chunk_{starts}")
    async def wf(ctx: Context) -> list[int]:
        return list((await ctx.map(part, [7, 8], **SHARED)).outputs)

    sent = Sent()
    executor = place.executor(run_crash_limit=3, dispatch=sent)
    await begin(executor, wf)
    for status, told in (("HANDED_BACK", 0), ("HANDED_BACK", 0), ("STUCK", None)):
        sent.work.clear()
        result = await executor.work_chunk("r1", "part", 0, deadline=invoked(place, 300, function))
        assert (result.status, result.items, sent.work) == (status, 0, [("r1", told)])
    assert set(ran) == ({7, 8} if starts else set())
    with pytest.raises(RunFailed) as caught:
        await executor.resume("r1", wf)
    assert isinstance(caught.value.__cause__, Exception)
    assert isinstance(caught.value.__cause__.__cause__, ChunkStalled)
    recorded = (await executor.steps("r1"))[0].record.error_info()
    assert recorded["type"] == "ChunkStalled"
    for told_of in (recorded, (await executor.get("r1")).error):
        for word in ("chunk 0", "3 times", "'part'", "time-out", "smaller", "timeout_s"):
            assert word in told_of["message"]
    stuck.clear()  # a person has mended it
    assert (await executor.resume("r1", wf)).output == [7, 8]


async def test_it_counts_on_after_a_death_and_from_0_after_progress(
    place: Place, processes: Processes
) -> None:
    stuck, reached = {1, 2}, list[int]()

    @step
    async def part(number: int) -> int:
        if number in stuck:
            reached.append(number)
            await asyncio.Event().wait()
        return number

    @workflow(name="chunk_some_progress")
    async def wf(ctx: Context) -> list[int]:
        return list((await ctx.map(part, [0, 1, 2], max_concurrency=1, **SHARED)).outputs)

    executor = place.executor(run_crash_limit=3)
    await begin(executor, wf)

    async def after_one_more() -> tuple[str, int]:
        reached.clear()
        until = WhenStuck(place.clock, lambda _: bool(reached))
        status = (await executor.work_chunk("r1", "part", 0, deadline=until)).status
        return status, await idle(executor)

    assert [await after_one_more() for _ in range(3)] == [("HANDED_BACK", n) for n in range(3)]
    await crash(
        place, processes, lambda ex: ex.work_chunk("r1", "part", 0), after=verb_of("claim", "part"),
        run_crash_limit=3,
    )  # fmt: skip
    assert await idle(executor) == 2
    stuck.discard(1)
    assert [await after_one_more() for _ in range(3)] == [("HANDED_BACK", n) for n in range(3)]
    assert (await after_one_more())[0] == "STUCK"
    with pytest.raises(RunFailed):
        await executor.resume("r1", wf)
    # Resumed by a person, who may have mended it: it counts anew.
    assert (await executor.resume("r1", wf, on_wait="suspend")).status == "SUSPENDED"
    assert await after_one_more() == ("HANDED_BACK", 1)


async def test_a_stop_by_hand_a_wait_and_an_invocation_without_time_are_not_counted(place: Place) -> None:
    started, waits = asyncio.Event(), list[int]()

    async def part(ctx: Context, number: int) -> int:
        if waits:
            await ctx.sleep(3600)
        started.set()
        await asyncio.Event().wait()
        return number

    @workflow(name="chunk_stopped_by_hand")
    async def wf(ctx: Context) -> list[int]:
        return list((await ctx.map(part, [1], **SHARED)).outputs)

    executor = place.executor(run_crash_limit=1)
    await begin(executor, wf)
    deadline = timedelta(seconds=60)
    task = asyncio.create_task(executor.work_chunk("r1", "part", 0, deadline=deadline))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    for left_ms in (0, -5):
        result = await executor.work_chunk("r1", "part", 0, deadline=invoked(place, left_ms, "no-time"))
        assert (result.status, await idle(executor)) == ("HANDED_BACK", 0)
    waits.append(1)
    for _ in range(2):
        until = WhenStuck(place.clock, lambda drive: drive.suspension.waited)
        assert (await executor.work_chunk("r1", "part", 0, deadline=until)).status == "HANDED_BACK"
        assert await idle(executor) == 0


@pytest.mark.parametrize("steps", [False, True], ids=["of a step", "with steps"])
async def test_items_longer_than_any_invocation_use_up_their_own_crashes_first(
    place: Place, steps: bool
) -> None:
    clock = place.turn_clock()
    wf, ran = endless_items(clock, f"endless_items_{steps}", steps=steps, **SHARED)
    executor, driver = place.executor(run_crash_limit=2), place.executor(run_crash_limit=20)
    await driver.start(wf, run_id="r1")
    function = f"endless-{steps}"
    await driver.drive("r1", deadline=invoked(place, 300, function))
    for _ in range(30):
        clock.turn(10)
        result = await executor.work_chunk("r1", "part", 0, deadline=invoked(place, 600, function))
        if result.status != "HANDED_BACK":
            break
    assert result.status == "DONE"
    assert (await driver.resume("r1", wf)).output == [
        2, (0, "CrashLimitReached"), (1, "CrashLimitReached"),
    ]  # fmt: skip
    assert max(ran.count(0), ran.count(1)) <= 4
