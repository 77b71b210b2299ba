"""Waits for times and events: they outlive their process, end when they said, and take each event once."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import pytest
from pydantic import BaseModel
from typing_extensions import override

from durable_core import Context, DurableWorkflowExecutor, Retry, SyncContext, step, workflow
from durable_core.clock import SystemClock, rfc3339
from durable_core.errors import (
    BranchFailed,
    CorruptRecord,
    EventInvalid,
    EventTimeout,
    InputNotSerializable,
    InvalidId,
    JournalUnavailable,
    MissingBlob,
    RunCancelled,
    RunEnded,
    RunFailed,
    RunNotFinished,
    RunNotFound,
    StepFailed,
    StepMismatch,
    UsageError,
)
from durable_core.records import TOMBSTONE
from durable_core.store import Store
from durable_core.testing.fake_clock import FakeClock
from durable_core.testing.forwarding_journal import ForwardingJournal
from tests.leftovers import noise
from tests.stores import WITH_DYNAMODB, Place, Processes, crash, statuses, verb_of
from tests.waiting import full, tasks_left

P = ParamSpec("P")
T = TypeVar("T")
HOUR_S = 3600
LONG_S = 30 * 24 * HOUR_S  # not even a clock that many sleepers turn while a server answers gets so far


class Decision(BaseModel):
    approved: bool
    by: str = "nobody"


@dataclass
class Size:
    width: int


class World:
    """What a test says and sees."""

    def __init__(self) -> None:
        self.asked: Any = None
        self.ran: list[str] = []


world = World()


@pytest.fixture(autouse=True)
def _fresh_world() -> None:
    world.__init__()  # type: ignore[misc]


STORES = WITH_DYNAMODB if full() else ("memory", "sqlite")


@pytest.fixture
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    """Its clock is fake, and passes when everybody sleeps."""
    url = request.getfixturevalue("postgres_url") if request.param == "postgres" else None
    opens = request.getfixturevalue("aws").store if request.param == "dynamodb" else None
    found = Place(request.param, tmp_path, FakeClock(), url=url, opens=opens)  # type: ignore[arg-type]  # a clock, too
    yield found
    await found.close()
    assert await tasks_left() == set()


@step
async def note(name: str) -> str:
    world.ran.append(name)
    return name


@workflow
async def asks(ctx: Context) -> Any:
    """Does what the test says."""
    return await world.asked(ctx)


@workflow
def asks_plainly(ctx: SyncContext) -> Any:
    return world.asked(ctx)


def clock_of(place: Place) -> FakeClock:
    assert isinstance(place.clock, FakeClock)
    return place.clock


async def suspends(executor: DurableWorkflowExecutor, run_id: str = "r1", wf: Any = asks) -> int:
    """Runs the run until it is suspended; gives when it is due."""
    result = await executor.run(wf, run_id=run_id, on_wait="suspend")
    assert result.status == "SUSPENDED"
    with pytest.raises(RunNotFinished):
        _ = result.output
    journal = executor.store.journal
    header = await getattr(journal, "inner", journal).header(run_id)
    assert header is not None
    assert (header.status, header.owner, header.lease_until_ms) == ("SUSPENDED", None, 0)
    return header.due_at_ms


async def goes_on(executor: DurableWorkflowExecutor, run_id: str = "r1", wf: Any = asks) -> Any:
    result = await executor.resume(run_id, wf, on_wait="suspend")
    assert result.status == "COMPLETED"
    return result.output


async def until(found: Callable[[], Coroutine[Any, Any, object]]) -> None:
    """Looks again until there is something."""
    async with asyncio.timeout(10):
        while not await found():  # noqa: ASYNC110 - it is another process that does it
            await asyncio.sleep(0.01)


async def fails(executor: DurableWorkflowExecutor, wf: Any = asks, **options: Any) -> BaseException | None:
    with pytest.raises(RunFailed) as caught:
        await executor.run(wf, run_id="r1", **options)
    return caught.value.__cause__


# ---- Sleeping ----


@pytest.mark.parametrize(
    ("seconds", "passes_s"),
    [(0, 0), (0.25, 0.25), (-7, 0), (timedelta(minutes=2), 120), (timedelta(days=-1), 0), (7200, 7200)],
)
@pytest.mark.parametrize("wf", [asks, asks_plainly], ids=["async", "def"])
async def test_a_sleep_lasts_as_long_as_it_says(
    wf: Any, seconds: float | timedelta, passes_s: float, place: Place
) -> None:
    world.asked = lambda ctx: ctx.sleep(seconds)
    executor, before = place.executor(), place.clock.now_ms()
    result = await executor.run(wf, run_id="r1")
    assert (result.output, result.counts) == (None, {"COMMITTED": 1})
    assert 0 <= place.clock.now_ms() - before - passes_s * 1000 <= 3_000
    assert await statuses(executor, "r1") == {"sleep": "COMMITTED"}


async def test_a_sleep_until_a_time_ends_at_it_and_one_that_is_past_at_once(place: Place) -> None:
    async def asked(ctx: Context) -> None:
        await ctx.sleep(until=ctx.now() + timedelta(hours=1))
        await ctx.sleep(until=datetime(1999, 1, 1, tzinfo=UTC))
        await ctx.sleep(until=datetime.min.replace(tzinfo=UTC))

    world.asked = asked
    before = place.clock.now_ms()
    await place.executor().run(asks, run_id="r1")
    assert 0 <= place.clock.now_ms() - before - HOUR_S * 1000 <= 1_000


@pytest.mark.parametrize("seconds", [100 * 366 * 24 * HOUR_S, timedelta(days=36_000)])
async def test_a_huge_sleep_suspends_and_is_due_at_its_end(seconds: Any, place: Place) -> None:
    world.asked = lambda ctx: ctx.sleep(seconds)
    before = place.clock.now_ms()
    due = await suspends(place.executor())
    lasts = seconds.total_seconds() if isinstance(seconds, timedelta) else seconds
    assert 0 <= due - before - lasts * 1000 < 1_000
    clock_of(place).set_wall(due)
    assert await goes_on(place.executor()) is None


async def test_the_last_moment_of_time_can_be_slept_until(place: Place) -> None:
    world.asked = lambda ctx: ctx.sleep(until=datetime.max.replace(tzinfo=UTC))
    assert await suspends(place.executor()) > place.clock.now_ms()


@pytest.mark.parametrize(
    "call",
    [
        lambda ctx: ctx.sleep(),
        lambda ctx: ctx.sleep(1, until=datetime(2030, 1, 1, tzinfo=UTC)),
        lambda ctx: ctx.sleep(until=datetime(2030, 1, 1)),  # noqa: DTZ001 - a mistake that is refused
        lambda ctx: ctx.sleep(until=17),
        lambda ctx: ctx.sleep("soon"),
        lambda ctx: ctx.sleep(float("nan")),
        lambda ctx: ctx.sleep(float("inf")),
        lambda ctx: ctx.sleep(True),
        lambda ctx: ctx.sleep(10**400),
        lambda ctx: ctx.sleep(timedelta.max),
        lambda ctx: ctx.wait_for_event("go", timeout=float("nan")),
        lambda ctx: ctx.wait_for_event("go", timeout="long"),
        lambda ctx: ctx.wait_for_event("go", default=object()),
        lambda ctx: ctx.wait_for_event("a/b"),
        lambda ctx: ctx.wait_for_event(""),
        lambda ctx: ctx.wait_for_event(".go"),
        lambda ctx: ctx.wait_for_event(None),
    ],
)
@pytest.mark.parametrize("wf", [asks, asks_plainly], ids=["async", "def"])
async def test_a_wait_that_cannot_be_is_refused_before_anything_is_written(
    wf: Any, call: Any, tmp_path: Path
) -> None:
    place = Place("memory", tmp_path)
    world.asked, executor = call, place.executor()
    assert isinstance(await fails(executor, wf), UsageError | InvalidId)
    assert await statuses(executor, "r1") == {}


@pytest.mark.over_dynamodb
async def test_a_workflow_that_waits_an_hour_and_for_an_approval_holds_no_process(place: Place) -> None:
    async def asked(ctx: Context) -> list[Any]:
        first = await ctx.step(note, "before")
        await ctx.sleep(HOUR_S)
        decision = await ctx.wait_for_event("approval", type=Decision, timeout=timedelta(days=2))
        return [first, decision, await ctx.step(note, "after")]

    world.asked, clock = asked, clock_of(place)
    due = await suspends(place.executor())
    assert 0 <= due - clock.now_ms() <= HOUR_S * 1000
    clock.advance(HOUR_S)
    due = await suspends(place.executor())
    assert 0 <= due - clock.now_ms() - 47 * HOUR_S * 1000 <= HOUR_S * 1000
    await place.executor().signal("r1", "approval", {"approved": True, "by": "me"})
    assert (await place.executor().get("r1")).status == "PENDING"
    assert await goes_on(place.executor()) == ["before", Decision(approved=True, by="me"), "after"]
    assert world.ran == ["before", "after"]
    assert (await place.executor().get("r1")).crashes == 0
    await place.close()


async def test_resuming_a_run_before_it_is_due_suspends_it_again_until_the_same_time(place: Place) -> None:
    world.asked = lambda ctx: ctx.sleep(HOUR_S)
    due = await suspends(place.executor())
    for _ in range(5):
        clock_of(place).advance(60)
        result = await place.executor().resume("r1", asks, on_wait="suspend")
        assert result.status == "SUSPENDED"
        assert await suspends(place.executor()) == due
    clock_of(place).set_wall(due)
    assert await goes_on(place.executor()) is None
    (view,) = await place.executor().steps("r1")
    assert (view.record.crashes, view.record.kind) == (0, "sleep")


async def test_a_suspended_run_that_is_driven_with_block_is_waited_for(place: Place) -> None:
    world.asked = lambda ctx: ctx.sleep(HOUR_S)
    due = await suspends(place.executor())
    assert (await place.executor().run(asks, run_id="r1")).status == "COMPLETED"
    assert place.clock.now_ms() >= due


@pytest.mark.parametrize("seconds", [0.5, 4.9, 5])
async def test_a_short_wait_stays_in_its_process(seconds: float, place: Place) -> None:
    world.asked = lambda ctx: ctx.sleep(seconds)
    result = await place.executor().run(asks, run_id="r1", on_wait="suspend")
    assert result.status == "COMPLETED"
    assert (await place.executor().get("r1")).fence == 1


@pytest.mark.parametrize("ahead_s", [300, -300])
async def test_a_process_with_another_clock_goes_by_the_recorded_end(ahead_s: int, tmp_path: Path) -> None:
    """Its own clock decides when that is: five minutes early, or late."""
    place = Place("sqlite", tmp_path, FakeClock())  # type: ignore[arg-type]  # a clock, too
    world.asked = lambda ctx: ctx.sleep(HOUR_S)
    due = await suspends(place.executor())
    place.clock = FakeClock(clock_of(place).now_ms() + ahead_s * 1000)
    assert await suspends(place.executor()) == due
    clock_of(place).set_wall(due - 6_000)
    assert await suspends(place.executor()) == due
    clock_of(place).set_wall(due)
    assert await goes_on(place.executor()) is None
    await place.close()


# ---- Events ----


@pytest.mark.parametrize(
    ("kind", "payload", "comes"),
    [
        (Decision, {"approved": True}, Decision(approved=True)),
        (Decision, Decision(approved=False, by="me"), Decision(approved=False, by="me")),
        (Size, Size(3), Size(3)),
        (Size, {"width": 3}, Size(3)),
        (int, 7, 7),
        (list[Decision], [{"approved": True}], [Decision(approved=True)]),
        (datetime, datetime(2030, 1, 1, tzinfo=UTC), datetime(2030, 1, 1, tzinfo=UTC)),
        (None, None, None),
        (None, {"a": (1, b"x")}, {"a": (1, b"x")}),
        (bytes, noise(1_000_000), noise(1_000_000)),
    ],
    ids=lambda value: repr(value)[:20],
)
@pytest.mark.parametrize("wf", [asks, asks_plainly], ids=["async", "def"])
@pytest.mark.parametrize("sent", ["before", "while suspended"])
async def test_a_payload_comes_as_its_type_now_and_on_every_replay(
    sent: str, wf: Any, kind: Any, payload: Any, comes: Any, place: Place
) -> None:
    seen: list[Any] = []

    def asked(ctx: Any) -> Any:
        got = ctx.wait_for_event("go", type=kind)
        if wf is asks_plainly:
            seen.append(got)
            return ctx.step(note, "after")

        async def waits() -> Any:
            seen.append(await got)
            return await ctx.step(note, "after")

        return waits()

    world.asked, executor = asked, place.executor()
    if sent == "before":
        await executor.start(wf, run_id="r1")
    else:
        await suspends(executor, wf=wf)
    await executor.signal("r1", "go", payload)
    world.asked = lambda ctx: then_raise(asked(ctx))
    with pytest.raises(RunFailed):
        await executor.run(wf, run_id="r1", on_wait="suspend")
    world.asked = asked
    assert await goes_on(place.executor(), wf=wf) == "after"
    assert seen == [comes, comes]
    assert [type(one) for one in seen] == [type(comes)] * 2
    await place.close()


def then_raise(found: Any) -> Any:
    if not asyncio.iscoroutine(found):
        raise RuntimeError("as planned")

    async def wait() -> None:
        await found
        raise RuntimeError("as planned")

    return wait()


@pytest.mark.parametrize("default", [None, 7, "none came", {"approved": 1}, Decision(approved=False)])
@pytest.mark.parametrize("kind", [None, Decision])
async def test_a_default_comes_at_the_time_out_whatever_its_type_and_on_every_replay(
    kind: Any, default: Any, place: Place
) -> None:
    seen: list[Any] = []

    async def asked(ctx: Context) -> None:
        seen.append(await ctx.wait_for_event("go", type=kind, timeout=HOUR_S, default=default))
        if len(seen) == 1:
            raise RuntimeError("as planned")

    world.asked = asked
    due = await suspends(place.executor())
    clock_of(place).set_wall(due)
    await fails(place.executor())
    await goes_on(place.executor())
    assert seen == [default, default]
    await place.close()


async def test_a_time_out_without_default_fails_and_replays_alike_and_leaves_a_late_event_to_the_next_wait(
    place: Place,
) -> None:
    async def asked(ctx: Context) -> list[Any]:
        try:
            await ctx.wait_for_event("go", timeout=timedelta(hours=1))
        except EventTimeout as error:
            world.ran.append(str(error.step_id))
        return [await ctx.wait_for_event("go")]

    world.asked = asked
    clock_of(place).set_wall(await suspends(place.executor()))
    await suspends(place.executor())
    await place.executor().signal("r1", "go", "late")
    assert await goes_on(place.executor()) == ["late"]
    assert world.ran == ["event.go"] * 2
    assert await statuses(place.executor(), "r1") == {"event.go": "FAILED", "event.go#2": "COMMITTED"}


async def test_a_time_out_that_ends_a_run_is_waited_for_anew_by_a_resume(place: Place) -> None:
    world.asked = lambda ctx: ctx.wait_for_event("go", timeout=60)
    assert isinstance(await fails(place.executor()), EventTimeout)
    resumed = await place.executor().resume("r1", asks, on_wait="suspend")
    assert resumed.status == "SUSPENDED"
    await place.executor().signal("r1", "go", 1)
    assert await goes_on(place.executor()) == 1


async def test_what_failed_before_has_its_fresh_budget_also_after_a_suspension(place: Place) -> None:
    """The resumed run suspends before it comes to the step that ended it."""

    @step
    async def fragile() -> str:
        world.ran.append("fragile")
        if len(world.ran) == 1:
            raise ValueError("as planned")
        return "fine"

    async def asked(ctx: Context) -> str:
        if world.ran:
            await ctx.wait_for_event("mended")
        return await ctx.step(fragile)

    world.asked = asked
    await fails(place.executor())
    assert (await place.executor().resume("r1", asks, on_wait="suspend")).status == "SUSPENDED"
    await place.executor().signal("r1", "mended")
    assert await goes_on(place.executor()) == "fine"


async def test_a_payload_that_does_not_fit_is_taken_and_fails_the_wait_alike_on_replay(place: Place) -> None:
    async def asked(ctx: Context) -> Any:
        try:
            return await ctx.wait_for_event("go", type=Decision)
        except EventInvalid as error:
            world.ran.append(str(error))
            return await ctx.wait_for_event("go", type=int)

    world.asked = asked
    sender = place.executor()  # as long as nobody waits, nobody can tell what it is for
    await sender.signal("r1", "go", {"approved": "perhaps"}, event_id="e1", early=True)
    await suspends(place.executor())
    await place.executor().signal("r1", "go", 5)
    assert await goes_on(place.executor()) == 5
    assert len(set(world.ran)) == 1
    assert "e1" in world.ran[0]


async def test_events_of_a_name_are_taken_in_the_order_in_which_they_were_sent(place: Place) -> None:
    async def asked(ctx: Context) -> list[Any]:
        return [await ctx.wait_for_event("go") for _ in range(6)]

    world.asked, executor = asked, place.executor()
    await executor.signal("r1", "go", 0, early=True)
    await executor.start(asks, run_id="r1")
    for number in (1, 2):
        await executor.signal("r1", "go", number)
    await executor.signal("r1", "other", "of another name")
    await suspends(place.executor())
    for number in (3, 4, 5):
        await executor.signal("r1", "go", number)
    assert await goes_on(executor) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("how", ["gather", "parallel", "tasks", "def"])
async def test_several_waits_at_once_suspend_the_run_once_and_each_gets_its_own(
    how: str, place: Place
) -> None:
    async def approval(ctx: Context) -> Any:
        return await ctx.wait_for_event("approval")

    async def nap(ctx: Context) -> Any:
        await ctx.sleep(LONG_S)
        return await ctx.wait_for_event("approval")

    def plain_approval(ctx: SyncContext) -> Any:
        return ctx.wait_for_event("approval")

    def plain_nap(ctx: SyncContext) -> Any:
        ctx.sleep(LONG_S)
        return ctx.wait_for_event("approval")

    async def asked(ctx: Context) -> Any:
        branches = ctx.branch(approval), ctx.branch(nap)
        if how == "parallel":
            return await ctx.parallel(*branches)
        if how == "gather":
            return await asyncio.gather(*branches)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in branches]
        return [task.result() for task in tasks]

    wf = asks_plainly if how == "def" else asks
    world.asked = asked
    if how == "def":
        world.asked = lambda ctx: ctx.parallel(ctx.branch(plain_approval), ctx.branch(plain_nap))
    executor = place.executor()
    due = await suspends(executor, wf=wf)
    assert due - clock_of(place).now_ms() <= LONG_S * 1000
    await executor.signal("r1", "approval", 1)
    assert await suspends(executor, wf=wf) == due
    clock_of(place).set_wall(due)
    await suspends(executor, wf=wf)
    await executor.signal("r1", "approval", 2)
    assert list(await goes_on(executor, wf=wf)) == [1, 2]
    await place.close()


async def test_two_waits_of_one_name_side_by_side_take_an_event_each(place: Place) -> None:
    async def asked(ctx: Context) -> list[Any]:
        return await asyncio.gather(*(ctx.wait_for_event("go") for _ in range(5)))

    world.asked, executor = asked, place.executor()
    await suspends(executor)
    for number in range(3):
        await executor.signal("r1", "go", number)
    await suspends(executor)
    for number in range(3, 5):
        await executor.signal("r1", "go", number)
    assert sorted(await goes_on(executor)) == [0, 1, 2, 3, 4]


async def test_an_event_with_one_id_is_one_event_also_after_it_was_taken_and_after_the_end(
    place: Place,
) -> None:
    async def asked(ctx: Context) -> list[Any]:
        return [await ctx.wait_for_event("go"), await ctx.wait_for_event("go", timeout=1, default="none")]

    world.asked, executor = asked, place.executor()
    await suspends(executor)
    for _ in range(3):
        assert await executor.signal("r1", "go", 1, event_id="e1") == "e1"
    assert await goes_on(executor) == [1, "none"]
    assert await executor.signal("r1", "go", 1, event_id="e1") == "e1"
    with pytest.raises(RunEnded):
        await executor.signal("r1", "go", 1, event_id="e2")
    events = [event async for page in executor.store.journal.events("r1") for event in page]
    assert [(event.event_id, event.taken_by is not None) for event in events] == [("e1", True)]


async def test_early_events_are_of_the_next_life_of_an_id(place: Place) -> None:
    world.asked = lambda ctx: ctx.wait_for_event("go")
    executor = place.executor()
    with pytest.raises(RunNotFound):
        await executor.signal("r1", "go", "too early")
    await executor.signal("r1", "go", "first life", early=True)
    assert (await executor.run(asks, run_id="r1", on_wait="suspend")).output == "first life"
    await executor.prune(run_ids=["r1"])
    header = await executor.store.journal.header("r1")
    assert header is not None
    assert header.status == TOMBSTONE
    with pytest.raises(RunNotFound):
        await executor.signal("r1", "go", "too early")
    await executor.signal("r1", "go", "second life", early=True)
    assert (await executor.run(asks, run_id="r1", on_wait="suspend")).output == "second life"
    await place.close()


async def test_what_cannot_be_sent_is_refused(place: Place) -> None:
    world.asked = lambda ctx: ctx.wait_for_event("go")
    executor = place.executor()
    await suspends(executor)
    with pytest.raises(InputNotSerializable):
        await executor.signal("r1", "go", object())
    for bad in ({"name": "a/b"}, {"name": "go", "event_id": ""}, {"name": ""}):
        with pytest.raises(InvalidId):
            await executor.signal("r1", **bad)
    with pytest.raises(InvalidId):
        await executor.signal("../r1", "go")
    await executor.cancel("r1")
    with pytest.raises(RunEnded):
        await executor.signal("r1", "go")


async def test_an_event_at_the_instant_of_the_time_out_comes_first(place: Place) -> None:
    world.asked = lambda ctx: ctx.wait_for_event("go", timeout=HOUR_S, default="none")
    due = await suspends(place.executor())
    clock_of(place).set_wall(due)
    await place.executor().signal("r1", "go", "came")
    assert await goes_on(place.executor()) == "came"


async def test_a_time_out_of_nothing_takes_what_is_there_and_waits_for_nothing(place: Place) -> None:
    async def asked(ctx: Context) -> list[Any]:
        return [await ctx.wait_for_event("go", timeout=t, default="none") for t in (0, -1, timedelta(0))]

    world.asked, executor = asked, place.executor()
    await executor.signal("r1", "go", "came", early=True)
    assert (await executor.run(asks, run_id="r1")).output == ["came", "none", "none"]


@pytest.mark.parametrize("on_wait", ["block", "suspend"])
async def test_an_event_reaches_a_run_that_is_being_driven(on_wait: Any, tmp_path: Path) -> None:
    """In real time: the process that waits is told within a moment."""
    place = Place("sqlite", tmp_path)
    world.asked = lambda ctx: ctx.wait_for_event("go", timeout=4)
    running = asyncio.create_task(place.executor().run(asks, run_id="r1", on_wait=on_wait))
    await asyncio.sleep(0.2)
    await place.executor().signal("r1", "go", 1)
    assert (await asyncio.wait_for(running, 3)).output == 1
    await place.close()


# ---- What is waited for has changed ----


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (lambda ctx: ctx.sleep(HOUR_S), lambda ctx: ctx.sleep(HOUR_S + 1)),
        (
            lambda ctx: ctx.wait_for_event("go", timeout=HOUR_S),
            lambda ctx: ctx.wait_for_event("go", timeout=2 * HOUR_S),
        ),
        (lambda ctx: ctx.wait_for_event("go"), lambda ctx: ctx.wait_for_event("go", timeout=2 * HOUR_S)),
    ],
)
async def test_another_wait_under_the_same_id_is_a_mismatch(before: Any, after: Any, place: Place) -> None:
    world.asked = before
    await suspends(place.executor())
    world.asked = after
    with pytest.raises(RunFailed) as caught:
        await place.executor().resume("r1", asks, on_wait="suspend")
    assert isinstance(caught.value.__cause__, StepMismatch)


async def test_a_wait_for_another_name_is_another_wait(place: Place) -> None:
    world.asked = lambda ctx: ctx.wait_for_event("go")
    await suspends(place.executor())
    await place.executor().signal("r1", "went", 1)
    world.asked = lambda ctx: ctx.wait_for_event("went")
    assert await goes_on(place.executor()) == 1


# ---- Branches, maps, threads ----


async def item(ctx: Context, number: int) -> Any:
    if number:
        await ctx.sleep(HOUR_S)
    await ctx.step(note, str(number))
    return await ctx.wait_for_event(f"go{number}")


async def gathering_item(ctx: Context, number: int) -> Any:
    async def leg(ctx: Context) -> Any:
        return await ctx.wait_for_event(f"go{number}")

    (got,) = await ctx.parallel(ctx.branch(leg))
    return got


def plain_item(ctx: SyncContext, number: int) -> Any:
    ctx.step(note, str(number))
    return ctx.wait_for_event(f"go{number}")


@pytest.mark.parametrize("fn", [item, gathering_item, plain_item])
async def test_items_of_a_map_wait_and_the_run_suspends_with_what_has_finished(fn: Any, place: Place) -> None:
    async def asked(ctx: Context) -> Any:
        return list((await ctx.map(fn, [0, 1, 2], linger_ms=1000)).outputs)

    world.asked, executor = asked, place.executor()
    due = await suspends(executor)
    if fn is item:
        clock_of(place).set_wall(due)
        await suspends(executor)
    await executor.signal("r1", "go0", "zero")
    await suspends(executor)
    await executor.signal("r1", "go2", "two")
    await executor.signal("r1", "go1", "one")
    assert await goes_on(executor) == ["zero", "one", "two"]
    assert sorted(world.ran) == ([] if fn is gathering_item else ["0", "1", "2"])
    await place.close()


async def test_a_branch_that_works_keeps_the_run_in_its_process_until_it_waits_too(place: Place) -> None:
    @step
    async def slow() -> str:
        await asyncio.sleep(0.3)
        return "slow"

    async def works(ctx: Context) -> str:
        first = await ctx.step(slow)
        await ctx.wait_for_event("late")
        return first

    async def waits(ctx: Context) -> Any:
        return await ctx.wait_for_event("go")

    world.asked = lambda ctx: ctx.parallel(ctx.branch(works), ctx.branch(waits))
    place.clock = SystemClock()
    await suspends(place.executor())
    assert (await statuses(place.executor(), "r1"))["works/slow"] == "COMMITTED"
    await place.close()


@pytest.mark.parametrize("takes_s", [0.1, 0.3])
async def test_plain_async_code_beside_a_wait_is_not_cut_off_for_ever(takes_s: float, place: Place) -> None:
    """It awaits something that is no verb: the run may be left too early, but comes back to it."""

    async def works(ctx: Context) -> Any:
        for name in ("one", "two"):
            await asyncio.to_thread(lambda: asyncio.run(asyncio.sleep(takes_s)))
            await ctx.step(note, name)
        return await ctx.wait_for_event("late")

    async def waits(ctx: Context) -> Any:
        return await ctx.wait_for_event("go")

    place.clock = SystemClock()
    world.asked = lambda ctx: ctx.parallel(ctx.branch(works), ctx.branch(waits))
    await suspends(place.executor())
    assert world.ran == ["one", "two"]
    await place.close()


async def test_busy_async_code_beside_a_wait_goes_on(place: Place) -> None:
    def burn(seconds: float) -> None:
        from time import perf_counter

        end = perf_counter() + seconds
        while perf_counter() < end:
            pass

    async def works(ctx: Context) -> Any:
        for number in range(8):
            burn(0.05)
            await asyncio.sleep(0)
            if number % 4 == 3:
                await ctx.step(note, str(number))
        return await ctx.wait_for_event("late")

    async def waits(ctx: Context) -> Any:
        return await ctx.wait_for_event("go")

    place.clock = SystemClock()
    world.asked = lambda ctx: ctx.parallel(ctx.branch(works), ctx.branch(waits))
    await suspends(place.executor())
    assert world.ran == ["3", "7"]
    await place.close()


async def test_plain_code_in_a_thread_beside_a_wait_keeps_the_run(place: Place) -> None:
    from time import sleep

    def works(ctx: SyncContext) -> Any:
        for name in ("one", "two"):
            sleep(0.3)
            ctx.step(note, name)
        return ctx.wait_for_event("late")

    def waits(ctx: SyncContext) -> Any:
        return ctx.wait_for_event("go")

    place.clock = SystemClock()
    world.asked = lambda ctx: ctx.parallel(ctx.branch(works), ctx.branch(waits))
    await suspends(place.executor(), wf=asks_plainly)
    assert world.ran == ["one", "two"]
    assert (await place.executor().get("r1")).fence == 1
    await place.close()


async def test_a_branch_that_awaits_what_its_sibling_does_after_a_wait_suspends_and_goes_on(
    place: Place,
) -> None:
    async def asked(ctx: Context) -> Any:
        told = asyncio.Event()

        async def teller(ctx: Context) -> None:
            await ctx.wait_for_event("go")
            told.set()

        async def listener(ctx: Context) -> str:
            await told.wait()
            return await ctx.step(note, "told")

        return await ctx.parallel(ctx.branch(teller), ctx.branch(listener))

    place.clock = SystemClock()
    world.asked = asked
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("durable_core.engine.suspension.PATIENCE_S", (0.0, 0.01))
        patch.setattr("durable_core.engine.suspension._UNWIND_S", 0.1)
        await suspends(place.executor())
        await place.executor().signal("r1", "go")
        assert list(await goes_on(place.executor())) == [None, "told"]
    await place.close()


async def test_a_failing_branch_halts_one_that_waits(place: Place) -> None:
    async def breaks(ctx: Context) -> None:
        await ctx.sleep(1)
        raise ValueError("as planned")

    async def waits(ctx: Context) -> Any:
        return await ctx.wait_for_event("go")

    world.asked = lambda ctx: ctx.parallel(ctx.branch(breaks), ctx.branch(waits))
    assert isinstance(await fails(place.executor(), on_wait="suspend"), BranchFailed)


# ---- Unwinding ----


async def test_verbs_in_finally_blocks_are_refused_while_the_run_is_left(place: Place) -> None:
    refused: list[str] = []

    async def asked(ctx: Context) -> Any:
        try:
            return await ctx.wait_for_event("go")
        finally:
            try:
                await ctx.step(note, "cleaned up")
            except BaseException as error:
                refused.append(type(error).__name__)
                raise

    world.asked = asked
    await suspends(place.executor())
    assert (refused, world.ran) == (["RunSuspended"], [])
    assert (await place.executor().get("r1")).fence == 1
    await place.executor().signal("r1", "go", 1)
    assert await goes_on(place.executor()) == 1
    assert (refused, world.ran) == (["RunSuspended"], ["cleaned up"])


async def test_code_that_swallows_everything_around_a_wait_begins_nothing_and_is_suspended(
    place: Place,
) -> None:
    async def asked(ctx: Context) -> Any:
        for _ in range(3):
            try:
                await ctx.wait_for_event("go", timeout=HOUR_S)
            except BaseException:  # noqa: S110 - careless on purpose
                pass
            else:
                return "came"
            with contextlib.suppress(BaseException):
                await ctx.step(note, "swallowed")
        return "as if nothing had happened"

    world.asked = asked
    await suspends(place.executor())
    assert world.ran == []
    assert (await place.executor().get("r1")).fence == 1
    await place.executor().signal("r1", "go")
    assert await goes_on(place.executor()) == "came"


async def test_no_task_is_left_behind_by_a_run_that_waited(place: Place) -> None:
    world.asked = lambda ctx: ctx.wait_for_event("go", timeout=2 * HOUR_S, default=1)
    before = asyncio.all_tasks()
    await suspends(place.executor())
    await place.executor().run(asks, run_id="r1")
    assert asyncio.all_tasks() == before
    await place.close()


# ---- What people do to runs that wait ----


async def test_a_suspended_run_can_be_cancelled(place: Place) -> None:
    world.asked = lambda ctx: ctx.wait_for_event("go")
    await suspends(place.executor())
    assert (await place.executor().cancel("r1")).status == "CANCELLED"
    with pytest.raises(RunCancelled):
        await place.executor().resume("r1", asks)


@pytest.mark.parametrize("kind", ["sleep", "event.go"])
@pytest.mark.parametrize("output", [{}, {"output": 7}], ids=["none", "7"])
async def test_a_wait_can_be_skipped_by_hand(output: Any, kind: str, place: Place) -> None:
    world.asked = lambda ctx: (
        ctx.sleep(HOUR_S) if kind == "sleep" else ctx.wait_for_event("go", type=int | None)
    )
    await suspends(place.executor())
    view = await place.executor().skip("r1", kind, **output)
    assert view.status == "SKIPPED"
    assert (await place.executor().get("r1")).status == "PENDING"
    assert await goes_on(place.executor()) == output.get("output")


async def test_a_fork_of_a_suspended_run_waits_for_itself(place: Place) -> None:
    async def asked(ctx: Context) -> list[Any]:
        first = await ctx.wait_for_event("first", type=Decision)
        await ctx.sleep(HOUR_S)
        return [first, await ctx.wait_for_event("second", timeout=60, default="none")]

    world.asked, executor = asked, place.executor()
    await executor.signal("r1", "first", {"approved": True}, early=True)
    await suspends(executor)
    plan = await executor.fork("r1", wf=asks, new_run_id="r2")
    assert plan.kept == ["event.first"]
    due = await suspends(executor, "r2")
    await executor.cancel("r1")
    clock_of(place).set_wall(due)
    await suspends(executor, "r2")
    await executor.signal("r2", "second", 2)
    assert await goes_on(executor, "r2") == [Decision(approved=True), 2]


async def test_steps_side_by_side_keep_their_ids_and_the_times_that_waits_give(place: Place) -> None:
    times: list[datetime] = []

    async def asked(ctx: Context) -> None:
        await ctx.sleep(HOUR_S)
        times.append(ctx.now())
        await ctx.wait_for_event("go")
        times.append(ctx.now())

    world.asked = asked
    clock_of(place).set_wall(await suspends(place.executor()))
    await suspends(place.executor())
    clock_of(place).advance(60)
    await place.executor().signal("r1", "go")
    await goes_on(place.executor())
    assert times[0] == times[1]
    assert times[2] - times[0] >= timedelta(seconds=59)


# ---- Retries ----

YEAR_MS = 365 * 24 * HOUR_S * 1000


@step(retry=Retry(max_attempts=2, initial_delay_s=600, max_delay_s=600, jitter=0))
async def refused_once() -> int:
    world.ran.append("refused once")
    if len(world.ran) == 1:
        raise ConnectionError("as planned")
    return len(world.ran)


async def test_a_long_back_off_suspends_the_run_until_its_time(place: Place) -> None:
    @step(retry=Retry(max_attempts=3, initial_delay_s=600, factor=1, max_delay_s=600, jitter=0))
    async def hopeful() -> int:
        world.ran.append("hopeful")
        if len(world.ran) < 3:
            raise ConnectionError("as planned")
        return len(world.ran)

    world.asked = lambda ctx: ctx.step(hopeful)
    for number in (1, 2):
        before = clock_of(place).now_ms()
        due = await suspends(place.executor())
        assert len(world.ran) == number
        assert 0 <= due - before - 600_000 <= 1_000
        assert await suspends(place.executor()) == due
        clock_of(place).set_wall(due)
    assert await goes_on(place.executor()) == 3
    (view,) = await place.executor().steps("r1")
    assert view.record.crashes == 0


async def test_a_retry_time_by_a_clock_that_was_a_year_ahead_is_waited_for_no_longer_than_its_delay(
    place: Place,
) -> None:
    world.asked, right = lambda ctx: ctx.step(refused_once), clock_of(place)
    place.clock = FakeClock(right.now_ms() + YEAR_MS)
    assert await suspends(place.executor()) == right.now_ms() + YEAR_MS + 600_000
    place.clock, before = right, right.now_ms()
    due = await suspends(place.executor())
    assert 0 <= due - before - 600_000 <= 1_000
    right.advance(60)
    assert await suspends(place.executor()) == due  # put right once, not put off by each who looks
    assert world.ran == ["refused once"]
    right.set_wall(due)
    assert await goes_on(place.executor()) == 2
    (view,) = await place.executor().steps("r1")
    assert (view.record.attempt, view.record.crashes) == (2, 0)
    assert view.record.history()[0]["ended_at"] == rfc3339(before)


class SetOnce(FakeClock):
    """Somebody sets it when the first minute of a long wait has passed."""

    years = 0

    @override
    async def sleep(self, seconds: float) -> None:
        await super().sleep(seconds)
        if seconds >= 60:
            self.set_wall(self.now_ms() + self.years * YEAR_MS)
            self.years = 0


@pytest.mark.parametrize(("years", "passes_s"), [(-1, 600), (0, 600), (1, 60)])
async def test_a_clock_that_is_set_while_a_retry_is_waited_for_makes_no_wait_longer(
    years: int, passes_s: int, place: Place
) -> None:
    world.asked, clock = lambda ctx: ctx.step(refused_once), SetOnce()
    place.clock, clock.years = clock, years
    assert (await place.executor(lease_s=3600).run(asks, run_id="r1")).output == 2
    assert 0 <= clock.boot_ms() - passes_s * 1000 <= 1_000


async def test_a_retry_whose_times_are_damaged_is_told_and_not_waited_for(tmp_path: Path) -> None:
    place = Place("sqlite", tmp_path, FakeClock())  # type: ignore[arg-type]  # a clock, too
    world.asked = lambda ctx: ctx.step(refused_once)
    await suspends(place.executor())
    with contextlib.closing(sqlite3.connect(tmp_path / "runs.db")) as db, db:
        db.execute("UPDATE checkpoints SET committed_at = 'yesterday'")
    cause = await fails(place.executor())
    assert isinstance(cause, CorruptRecord)
    assert "refused_once" in str(cause)
    assert "'yesterday'" in str(cause)
    await place.close()


# ---- Deaths and lost replies ----

VERBS = ("create", "acquire", "begin", "take", "commit", "leave", "header")


async def approved(ctx: Context) -> list[Any]:
    first = await ctx.step(note, "before")
    await ctx.sleep(HOUR_S)
    return [
        first,
        await ctx.wait_for_event("go", timeout=2 * HOUR_S, default="none"),
        await ctx.wait_for_event("go", timeout=2 * HOUR_S, default="none"),
        await ctx.step(note, "after"),
    ]


async def to_the_end(place: Place, die: Callable[[int], Any] | None = None) -> Any:
    """Drives the run through its waits, each time in a new process."""
    for drive in range(12):
        executor = place.executor()
        if die is not None:
            executor = die(drive) or executor
        try:
            result = await executor.run(asks, run_id="r1", on_wait="suspend")
        except Exception:
            if die is None:
                raise
            continue
        if result.status == "COMPLETED":
            return result.output
        journal = place.store().journal
        header = await journal.header("r1")
        assert header is not None
        if await journal.step("r1", "event.go") is not None:
            await place.executor().signal("r1", "go", "came", event_id="e1")
        clock_of(place).set_wall(max(clock_of(place).now_ms(), header.due_at_ms))
    raise AssertionError("it never came to its end")


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("nth", range(1, 5))
@pytest.mark.parametrize("verb", VERBS)
async def test_a_process_that_dies_at_any_call_loses_and_doubles_nothing(
    verb: str, nth: int, when: str, place: Place, processes: Processes
) -> None:
    world.asked, left = approved, [nth]

    def is_it(called: str, *_: object) -> bool:
        left[0] -= called == verb
        return called == verb and left[0] == 0

    def die(drive: int) -> Any:
        if left[0] <= 0:
            processes.next_lives()
            return None
        processes.next_is_doomed()
        executor, journal = place.mortal()
        if when == "before":
            journal.dies_at = is_it
        else:
            journal.dies_after = is_it
        return executor

    assert await to_the_end(place, die) == ["before", "came", "none", "after"]
    assert set(world.ran) == {"before", "after"}
    (event,) = [one async for page in place.store().journal.events("r1") for one in page]
    step_record = await place.store().journal.step("r1", "event.go")
    assert step_record is not None
    assert event.taken_by == step_record.attempt_id
    await place.close()


class Forgetful(ForwardingJournal):
    """Does what it is asked, and loses one reply; or is out of reach that once.

    Attributes:
        verb: Whose reply.
        left: The how-manieth of them.
        applies: Whether it was done all the same.
    """

    verb, left, applies = "", 0, True

    @override
    async def ask(self, call: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **options: P.kwargs) -> T:
        name = call.__name__
        self.left -= name == self.verb
        is_it = name == self.verb and self.left == 0
        if self.applies or not is_it:
            reply = await super().ask(call, *args, **options)
        if is_it:
            raise JournalUnavailable("as planned")
        return reply


@pytest.mark.parametrize("applies", [True, False], ids=["lost", "out of reach"])
@pytest.mark.parametrize("nth", [1, 2, 3, 4])
@pytest.mark.parametrize("verb", ["begin", "events", "take", "commit", "header", "leave", "send"])
async def test_a_lost_reply_changes_nothing(verb: str, nth: int, applies: bool, place: Place) -> None:
    world.asked, inner = approved, place.store()
    journal = Forgetful(inner.journal)
    executor = place.executor(store=Store(inner.url, journal, inner.blobs))
    journal.verb, journal.left, journal.applies = verb, nth, applies
    due = await suspends(executor)
    clock_of(place).set_wall(due)
    due = await suspends(executor)
    await executor.signal("r1", "go", "came", event_id="e1")
    due = await suspends(executor)
    clock_of(place).set_wall(due)
    assert await goes_on(executor) == ["before", "came", "none", "after"]
    assert world.ran == ["before", "after"]
    events = [event async for page in inner.journal.events("r1") for event in page]
    assert [event.event_id for event in events] == ["e1"]


async def test_a_store_that_stays_away_is_no_answer_to_a_wait(place: Place) -> None:
    """Not even to a workflow that catches it."""

    class Away(ForwardingJournal):
        @override
        async def ask(
            self, call: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **options: P.kwargs
        ) -> T:
            if call.__name__ == "events" and args[1:] == ("go",):
                raise JournalUnavailable("as planned", waited_s=60)
            return await super().ask(call, *args, **options)

    async def asked(ctx: Context) -> str:
        try:
            await ctx.wait_for_event("go")
        except Exception:  # careless on purpose
            return await ctx.step(note, "another path")
        return "came"

    world.asked, inner = asked, place.store()
    with pytest.raises(JournalUnavailable):
        await place.executor(store=Store(inner.url, Away(inner.journal), inner.blobs)).run(asks, run_id="r1")
    assert world.ran == []
    await place.executor().signal("r1", "go")
    assert await goes_on(place.executor()) == "came"


async def test_a_damaged_payload_is_not_taken(tmp_path: Path) -> None:
    place = Place("sqlite", tmp_path, FakeClock())  # type: ignore[arg-type]  # a clock, too
    world.asked, executor = lambda ctx: ctx.wait_for_event("go", type=bytes), place.executor()
    await suspends(executor)
    await executor.signal("r1", "go", noise(20_000))
    (event,) = [one async for page in executor.store.journal.events("r1") for one in page]
    assert event.ref is not None
    data = await executor.store.blobs.get(event.ref)
    await executor.store.blobs.delete(event.ref)
    with pytest.raises(MissingBlob):
        await executor.resume("r1", asks)
    await executor.store.blobs.put(event.ref, data)
    assert await goes_on(executor) == noise(20_000)
    await place.close()


async def test_a_crash_in_the_taking_step_takes_the_event_once(place: Place, processes: Processes) -> None:
    world.asked = lambda ctx: ctx.wait_for_event("go")
    await suspends(place.executor())
    await place.executor().signal("r1", "go", 1, event_id="e1")
    await crash(place, processes, lambda ex: ex.run(asks, run_id="r1"), at=lambda verb, *_: verb == "take")
    await place.executor().signal("r1", "go", 1, event_id="e1")
    assert await goes_on(place.executor()) == 1
    await place.close()


async def test_a_crash_while_a_wait_is_begun_counts_against_nothing(
    place: Place, processes: Processes
) -> None:
    world.asked = lambda ctx: ctx.sleep(HOUR_S)
    for _ in range(4):
        await crash(place, processes, lambda ex: ex.run(asks, run_id="r1"), after=verb_of("begin", "sleep"))
    assert await suspends(place.executor())
    (view,) = await place.executor().steps("r1")
    assert view.record.crashes == 0
    await place.close()


# ---- Being stopped ----


@pytest.mark.parametrize("wf", [asks, asks_plainly], ids=["async", "def"])
@pytest.mark.parametrize("on_wait", ["block", "suspend"])
async def test_a_run_that_is_cancelled_while_it_waits_is_released_and_no_crash_is_counted(
    on_wait: Any, wf: Any, place: Place
) -> None:
    place.clock = SystemClock()
    world.asked = lambda ctx: ctx.wait_for_event("go", timeout=4.5)
    running = asyncio.create_task(place.executor().run(wf, run_id="r1", on_wait=on_wait))
    journal = place.executor().store.journal
    await until(lambda: journal.step("r1", "event.go"))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    view = await place.executor().get("r1")
    assert (view.status, view.crashes, view.owner_process) == ("PENDING", 0, None)
    await place.executor().signal("r1", "go", 1)
    assert await goes_on(place.executor(), wf=wf) == 1
    (found,) = await place.executor().steps("r1")
    assert found.record.crashes == 0
    await place.close()


async def test_a_deadline_ends_a_wait_and_the_next_process_goes_on_with_it(place: Place) -> None:
    from durable_core.errors import DeadlineReached

    place.clock = SystemClock()
    world.asked = lambda ctx: ctx.wait_for_event("go", timeout=HOUR_S)
    executor, steps, seconds = place.executor(), [], 0.3
    while not steps:  # a busy machine may need longer until it waits
        with pytest.raises(DeadlineReached):
            await executor.run(asks, run_id="r1", deadline=timedelta(seconds=seconds))
        assert (await executor.get("r1")).status == "PENDING"
        steps, seconds = await executor.steps("r1"), 2 * seconds
    (before,) = steps
    await suspends(place.executor())
    (after,) = await place.executor().steps("r1")
    assert before.record.details()["wake_at_ms"] == after.record.details()["wake_at_ms"]
    await place.close()


async def test_an_item_that_fails_for_a_wait_says_so(place: Place) -> None:
    async def one(ctx: Context, number: int) -> Any:
        return await ctx.wait_for_event("go", timeout=number)

    async def asked(ctx: Context) -> Any:
        result = await ctx.map(one, [1, 2], tolerate_failures=2)
        return [failure.error["type"] for failure in result.failures]

    world.asked = asked
    assert (await place.executor().run(asks, run_id="r1")).output == ["EventTimeout"] * 2
    await place.close()


async def test_a_time_out_is_a_failed_step(place: Place) -> None:
    world.asked = lambda ctx: ctx.wait_for_event("go", timeout=1)
    cause = await fails(place.executor())
    assert isinstance(cause, StepFailed)
    assert cause.step_id == "event.go"
