"""Runs that have to be left at a time: what is started, what is cut off, and that nothing loops for ever."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from datetime import timedelta

import pytest

from durable_core import (
    Context,
    DeadlineReached,
    Done,
    DurableWorkflowExecutor,
    NotDone,
    RunFailed,
    current_step,
    step,
    workflow,
)
from durable_core.aws.deadline import LambdaDeadline
from durable_core.engine.invocation import DEAD_AFTER_MS, LEASE_MARGIN_MS
from durable_core.errors import RunBusy
from tests.endless import endless_items
from tests.lambda_place import Context as Lambda
from tests.stores import Place, Processes, statuses, verb_of

LONG = timedelta(seconds=100)


def invoked(place: Place, left_ms: int, function: str = "f") -> LambdaDeadline:
    """The deadline of an invocation of a function whose time-out is 900 s, or what it had left at most."""
    return LambdaDeadline(Lambda(left_ms, function=function), place.clock)


# ---- What is started ----


@pytest.mark.over_dynamodb
async def test_no_step_is_started_that_may_take_longer_than_is_left(place: Place) -> None:
    clock, ran = place.turn_clock(), list[str]()

    @step
    async def long_one(name: str) -> str:
        ran.append(name)
        clock.turn(50)
        return name

    @workflow(name="declares_more")
    async def wf(ctx: Context) -> str:
        first = await ctx.step(long_one, "a")
        return first + await ctx.step(long_one.with_options(name="declared", timeout_s=60), "b")

    executor = place.executor()
    with pytest.raises(DeadlineReached):
        await executor.run(wf, run_id="r1", deadline=LONG)
    assert await statuses(executor, "r1") == {"long_one": "COMMITTED"}
    assert (await executor.resume("r1", wf, deadline=LONG)).output == "ab"
    assert ran == ["a", "b"]


async def test_no_step_is_started_that_has_been_seen_to_take_longer_than_is_left(place: Place) -> None:
    clock, ran = place.turn_clock(), list[int]()

    @step
    def crunch(number: int) -> int:
        ran.append(number)
        clock.turn(40)
        return number

    @step(pure=True)
    async def guess(number: int) -> int:
        ran.append(number)
        clock.turn(40)
        return number

    @workflow(name="seen_longer")
    async def wf(ctx: Context) -> list[int]:
        found = [await ctx.step(crunch, n) for n in range(3)]
        return found + [await ctx.step(guess, n) for n in range(3)]

    executor = place.executor()
    for done in ([0, 1], [0, 1, 2, 0]):
        with pytest.raises(DeadlineReached):
            await executor.run(wf, run_id="r1", deadline=LONG)
        assert ran == done
    assert (await executor.run(wf, run_id="r1", deadline=LONG)).output == [0, 1, 2, 0, 1, 2]


async def test_a_step_that_would_never_fit_is_started_where_nothing_was_done_yet(place: Place) -> None:
    place.turn_clock()

    @step(timeout_s=3600)
    async def cautious(number: int) -> int:
        return number

    @workflow(name="cautious_run")
    async def wf(ctx: Context) -> list[int]:
        return [await ctx.step(cautious, n) for n in range(3)]

    executor = place.executor()
    for done in range(1, 3):  # one in each drive, and each is progress
        with pytest.raises(DeadlineReached):
            await executor.run(wf, run_id="r1", deadline=LONG)
        assert (await executor.get("r1")).counts == {"COMMITTED": done}
    assert (await executor.run(wf, run_id="r1", deadline=LONG)).output == [0, 1, 2]


async def test_a_step_that_was_cut_off_is_not_started_again_with_less_time(place: Place) -> None:
    clock, ran = place.turn_clock(), list[int]()
    invoked(place, 900_000)  # the function's time-out is known from another invocation

    @step
    async def slow() -> str:
        ran.append(current_step().attempt)
        if len(ran) == 1:
            clock.turn(440)  # of 900: half of that would count like a crash
            await asyncio.Event().wait()
        return "done"

    @workflow(name="cut_off")
    async def wf(ctx: Context) -> str:
        return await ctx.step(slow)

    with pytest.raises(DeadlineReached):
        await place.executor().run(wf, run_id="r1", deadline=invoked(place, 300))
    later = place.executor()  # it knows of the step's time by the record only
    assert (await later.drive("r1", deadline=invoked(place, 400_000))).status == "PENDING"
    assert ran == [1]
    assert (await later.drive("r1", deadline=invoked(place, 500_000))).status == "COMPLETED"
    assert ran == [1, 2]
    assert (await later.steps("r1"))[0].record.crashes == 0


# ---- What is cut off ----


@pytest.mark.parametrize("threaded", [False, True], ids=["async def", "def"])
async def test_a_step_longer_than_any_invocation_uses_up_its_crashes_and_fails(
    place: Place, threaded: bool
) -> None:
    clock, ran, over = place.turn_clock(), list[int](), threading.Event()

    @step(name="endless")
    async def endless() -> None:
        ran.append(current_step().attempt)
        clock.turn(600)
        await asyncio.Event().wait()

    @step(name="endless")
    def endless_def() -> None:
        ran.append(current_step().attempt)
        clock.turn(600)
        over.wait(20)

    @workflow(name="endless_run")
    async def wf(ctx: Context) -> None:
        await ctx.step(endless_def if threaded else endless)

    executor = place.executor()
    await executor.start(wf, run_id="r1")
    for _ in range(3):
        clock.turn(10)  # past the lease that a body in a thread keeps
        driven = await executor.drive("r1", deadline=invoked(place, 300, f"endless-{threaded}"))
        assert driven.status == "PENDING"
    record = (await executor.steps("r1"))[0].record
    assert (record.crashes, record.details()["overran"]) == (2, True)
    clock.turn(10)
    driven = await executor.drive("r1", deadline=invoked(place, 300, f"endless-{threaded}"))
    over.set()
    assert driven.status == "FAILED"
    assert (ran, (await executor.get("r1")).error["type"]) == ([1, 2, 3], "CrashLimitReached")
    assert [one["error"] for one in (await executor.steps("r1"))[0].attempts] == ["OVERRAN"] * 3


# ---- Items of maps ----


async def test_no_item_is_started_that_hasnt_the_time(place: Place) -> None:
    clock, ran = place.turn_clock(), list[int]()

    @step
    async def part(number: int) -> int:
        ran.append(number)
        clock.turn(40)
        return number

    @workflow(name="items_in_time")
    async def wf(ctx: Context) -> int:
        return (await ctx.map(part, list(range(5)), max_concurrency=1)).succeeded

    executor = place.executor()
    for done in (2, 4):
        with pytest.raises(DeadlineReached):
            await executor.run(wf, run_id="r1", deadline=LONG)
        assert ran == list(range(done))
    assert (await executor.run(wf, run_id="r1", deadline=LONG)).output == 5
    assert ran == list(range(5))


@pytest.mark.parametrize("shared", [False, True], ids=["by its run", "in chunks"])
async def test_an_item_longer_than_any_invocation_is_set_aside_and_the_others_are_done_once(
    place: Place, shared: bool
) -> None:
    clock, ran = place.turn_clock(), list[int]()

    @step
    async def part(number: int) -> int:
        ran.append(number)
        if number == 2:
            clock.turn(600)
            await asyncio.Event().wait()
        return number

    options = {"distribute": True, "chunk_size": 5} if shared else {}

    @workflow(name=f"endless_item_{shared}")
    async def wf(ctx: Context) -> list[int]:
        batch = await ctx.map(part, list(range(5)), tolerate_failures=1, max_concurrency=2, **options)
        return [*batch.outputs, batch.failures[0].index]

    sent = Sent()
    executor = place.executor(dispatch=sent)
    await executor.start(wf, run_id="r1")
    hops = 0
    while sent.work:
        hops += 1
        assert hops < 30
        run_id, chunk = sent.work.pop(0)
        clock.turn(10)
        until = invoked(place, 300, f"items-{shared}")
        if chunk is None:
            await executor.drive(run_id, deadline=until)
        else:
            await executor.work_chunk(run_id, "part", chunk, deadline=until)
    view = await executor.get("r1")
    assert (view.status, (await executor.resume("r1", wf)).output) == ("COMPLETED", [0, 1, 3, 4, 2])
    assert sorted(ran) == [0, 1, *[2] * 4, 3, 4]


class Sent:
    """Remembers what is to be worked on: runs, and chunks of them."""

    def __init__(self) -> None:
        self.work: list[tuple[str, int | None]] = []

    async def drive(self, run_id: str, *, delay_s: float = 0) -> None:
        self.work.append((run_id, None))

    async def chunks(self, run_id: str, step_id: str, chunks: Sequence[int]) -> None:
        self.work += [(run_id, chunk) for chunk in chunks]


# ---- Nothing loops for ever ----


async def idle_drives(executor: DurableWorkflowExecutor) -> int:
    header = await executor.store.journal.header("r1")
    assert header is not None
    return header.idle_drives


async def test_a_run_that_comes_to_its_deadline_with_nothing_done_fails_in_the_end(place: Place) -> None:
    ran: list[int] = []

    @step
    async def forgetful() -> str:
        ran.append(1)
        if len(ran) <= 3:
            await asyncio.Event().wait()
        return "done"

    @workflow(name="no_progress")
    async def wf(ctx: Context) -> str:
        return await ctx.step(forgetful)

    executor = place.executor(run_crash_limit=3)
    await executor.start(wf, run_id="r1")
    for idle in (1, 2, 3):
        with pytest.raises(DeadlineReached):
            await executor.run(wf, run_id="r1", deadline=timedelta(seconds=0.4))
        assert await idle_drives(executor) == idle
    with pytest.raises(RunFailed) as caught:
        await executor.run(wf, run_id="r1", deadline=timedelta(seconds=0.4))
    assert caught.value.error["type"] == "RunStalled"
    assert (await executor.get("r1")).crashes == 0
    assert len(ran) == 3
    assert (await executor.resume("r1", wf)).output == "done"  # by a person, who has mended it


async def test_a_hand_over_after_progress_or_a_sleep_forgets_those_without(place: Place) -> None:
    clock, stuck = place.turn_clock(), [True]

    @step
    async def part(number: int) -> int:
        if number == 1 and stuck:
            await asyncio.Event().wait()
        return number

    @workflow(name="some_progress")
    async def wf(ctx: Context, sleeps: bool) -> int:
        await ctx.step(part, 0)
        if sleeps and not stuck:
            await ctx.sleep(3600)
        return await ctx.step(part, 1)

    executor = place.executor(run_crash_limit=3)
    await executor.start(wf, run_id="r1", sleeps=True)
    idle = []
    for _ in range(3):
        await executor.drive("r1", deadline=invoked(place, 500))
        idle.append(await idle_drives(executor))
    assert idle == [0, 1, 2]
    stuck.clear()
    assert (await executor.drive("r1", deadline=invoked(place, 60_000))).status == "SUSPENDED"
    assert await idle_drives(executor) == 0
    clock.turn(3601)
    assert (await executor.drive("r1", deadline=invoked(place, 60_000))).status == "COMPLETED"


async def test_a_stop_by_a_person_and_an_invocation_without_time_are_not_counted(place: Place) -> None:
    started = asyncio.Event()

    @step
    async def waits() -> None:
        started.set()
        await asyncio.Event().wait()

    @workflow(name="stopped_by_hand")
    async def wf(ctx: Context) -> None:
        await ctx.step(waits)

    executor = place.executor()
    task = asyncio.create_task(executor.run(wf, run_id="r1"))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await idle_drives(executor) == 0
    for left_ms in (0, -5):
        with pytest.raises(DeadlineReached):
            await executor.run(wf, run_id="r1", deadline=invoked(place, left_ms))
    assert ((await executor.get("r1")).status, await idle_drives(executor)) == ("PENDING", 0)
    assert (await executor.steps("r1"))[0].record.attempt == 1


# ---- Leases of invocations ----


async def test_a_lease_ends_with_its_invocation_and_nobody_comes_sooner(
    place: Place, processes: Processes
) -> None:
    clock = place.turn_clock()
    seen: list[tuple[int, str | None]] = []

    @step
    async def look() -> None:
        header = await place.store().journal.header("r1")
        assert header is not None
        seen.append((header.lease_until_ms - clock.now, header.owner_process))
        with pytest.raises(RunBusy, match="invocation of-r1 of f"):
            await place.executor().resume("r1", wf)

    @workflow(name="leased")
    async def wf(ctx: Context) -> None:
        await ctx.step(look)

    context = Lambda(60_000, function="f", request_id="of-r1")
    await place.executor().run(wf, run_id="r1", deadline=LambdaDeadline(context, clock))
    ((left_ms, owner),) = seen
    assert left_ms == 60_000 + LEASE_MARGIN_MS
    assert owner is not None
    assert f'"dead_from_ms":{clock.now + 60_000 + DEAD_AFTER_MS}' in owner


async def test_the_owner_of_an_invocation_is_dead_for_certain_a_minute_after_its_end(
    place: Place, processes: Processes
) -> None:
    """So the answer of a verifier is waited for until it is final, and then believed."""
    clock, paid = place.turn_clock(), list[str]()

    def was_paid(key: str) -> Done[str] | NotDone:
        return Done(key) if key in paid else NotDone()

    @step(semantics="at_most_once", verify=was_paid)
    async def pay() -> str:
        paid.append(current_step().idempotency_key)
        return paid[-1]

    @workflow(name="pays")
    async def wf(ctx: Context) -> str:
        return await ctx.step(pay)

    began = clock.now
    executor, journal = place.mortal()
    journal.dies_after = verb_of("begin", "pay")
    with pytest.raises(Exception, match="the owner is dead"):
        await executor.run(wf, run_id="r1", deadline=invoked(place, 30_000))
    with pytest.raises(RunBusy):
        await place.executor().run(wf, run_id="r1")
    clock.turn(36)  # the lease is over
    assert (await place.executor().run(wf, run_id="r1")).output == paid[0]
    assert len(paid) == 1
    assert clock.now - began >= 30_000 + DEAD_AFTER_MS


@pytest.mark.parametrize("steps", [False, True], ids=["of a step", "with steps"])
async def test_items_longer_than_any_invocation_use_up_their_own_crashes_before_their_run_is_given_up(
    place: Place, steps: bool
) -> None:
    clock = place.turn_clock()
    wf, ran = endless_items(clock, f"endless_items_of_a_run_{steps}", steps=steps)
    executor = place.executor(run_crash_limit=2)
    await executor.start(wf, run_id="r1")
    for _ in range(30):
        clock.turn(10)
        driven = await executor.drive("r1", deadline=invoked(place, 600, f"endless-items-{steps}"))
        if driven.status != "PENDING":
            break
    assert (driven.status, await idle_drives(executor)) == ("COMPLETED", 0)
    assert (await executor.resume("r1", wf)).output == [
        2, (0, "CrashLimitReached"), (1, "CrashLimitReached"),
    ]  # fmt: skip
    assert max(ran.count(0), ran.count(1)) <= 4
