"""Failures replay: a workflow takes the same path again, a redrive tries again only what ended the run."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import traceback
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from durable_core import Context, DurableWorkflowExecutor, Retry, current_step, step, workflow
from durable_core.errors import (
    Fenced,
    JournalUnavailable,
    RunCancelled,
    RunFailed,
    StepFailed,
    StepMismatch,
)
from tests.stores import WITH_DYNAMODB, Place, Processes, crash, statuses, verb_of

STORES = WITH_DYNAMODB


class Refused(Exception):
    """An error with a constructor that can't be called with its `args`."""

    def __init__(self, *, code: int) -> None:
        super().__init__(f"refused with {code}")
        self.code = code


class Bodies:
    """Steps that fail until they are mended, and note when they run."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.mended = False

    @property
    def poison(self) -> Any:
        @step(name="poison")
        async def poison(name: str) -> str:
            self.ran.append(f"poison {name}")
            if not self.mended:
                raise Refused(code=409)
            return f"mended {name}"

        return poison

    @property
    def good(self) -> Any:
        @step(name="good")
        async def good(name: str) -> str:
            self.ran.append(f"good {name}")
            return f"good {name}"

        return good


# ---- The same path ----


async def test_a_workflow_that_caught_a_failure_takes_the_same_path_after_a_crash(
    place: Place, processes: Processes
) -> None:
    bodies = Bodies()
    paths: list[list[str]] = []

    @workflow(name="falls_back")
    async def wf(ctx: Context) -> list[str]:
        path: list[str] = []
        paths.append(path)
        try:
            path.append(await ctx.step(bodies.poison, "a"))
        except StepFailed as error:
            path.append(f"{type(error).__name__} {error.step_id} {error.error['type']} {error.error['code']}")
            path.append(f"{error} / {error.error['message']}")
            path.append(await ctx.step(bodies.good, "fallback"))
        path.append(await ctx.step(bodies.good, "last"))
        return path

    await crash(place, processes, lambda ex: ex.run(wf, run_id="r1"), at=verb_of("commit", "good#2"))
    bodies.mended = True
    result = await place.executor().resume("r1", wf)
    assert result.output == paths[1]
    assert paths[0] == paths[1][: len(paths[0])]
    assert len(paths[0]) == 3
    assert "refused with 409" in paths[1][1]
    assert bodies.ran == ["poison a", "good fallback", "good last", "good last"]
    assert result.counts == {"COMMITTED": 2, "FAILED": 1}


async def test_a_failure_has_its_cause_live_and_its_traceback_text_on_replay(
    place: Place, processes: Processes
) -> None:
    bodies = Bodies()
    caught: list[StepFailed] = []

    @workflow(name="looks_at_causes")
    async def wf(ctx: Context) -> None:
        try:
            await ctx.step(bodies.poison, "a")
        except StepFailed as error:
            caught.append(error)
        await ctx.step(bodies.good, "last")

    await crash(place, processes, lambda ex: ex.run(wf, run_id="r1"), at=verb_of("begin", "good"))
    await place.executor().resume("r1", wf)
    live, replayed = caught
    assert isinstance(live.__cause__, Refused)
    assert live.__cause__.code == 409
    assert replayed.__cause__ is None
    assert live.error == replayed.error
    assert (live.error["type"], live.error["message"]) == ("Refused", "refused with 409")
    assert "in poison" in replayed.error["traceback"]
    assert str(live) == str(replayed)


async def test_the_path_after_the_last_of_several_attempts_is_the_same_too(
    place: Place, processes: Processes
) -> None:
    attempts: list[int] = []

    @step(retry=Retry(max_attempts=3, initial_delay_s=0))
    async def flaky() -> None:
        attempts.append(current_step().attempt)
        raise Refused(code=len(attempts))

    @step
    async def last(text: str) -> str:
        return text

    @workflow(name="last_attempt")
    async def wf(ctx: Context) -> str:
        try:
            await ctx.step(flaky)
        except StepFailed as error:
            return await ctx.step(last, error.error["message"])
        raise AssertionError

    await crash(place, processes, lambda ex: ex.run(wf, run_id="r1"), at=verb_of("commit", "last"))
    assert (await place.executor().resume("r1", wf)).output == "refused with 3"
    assert attempts == [1, 2, 3]


# ---- A redrive tries again what escaped, and nothing else ----


async def caught_and_gone(ctx: Context, bodies: Bodies) -> None:
    """Catches one failure and forgets it; the memory of the exception is used again by the next."""
    for name in ("a", "b", "c"):
        with contextlib.suppress(StepFailed):
            await ctx.step(bodies.poison, name)
        gc.collect()
    await ctx.step(bodies.poison, "escapes")


async def chained(ctx: Context, bodies: Bodies) -> None:
    await _caught(ctx, bodies)
    try:
        await ctx.step(bodies.poison, "escapes")
    except StepFailed as error:
        raise LookupError("no answer") from error


async def in_the_handler(ctx: Context, bodies: Bodies) -> None:
    await _caught(ctx, bodies)
    try:
        await ctx.step(bodies.poison, "escapes")
    except StepFailed:
        raise LookupError("no answer")  # noqa: B904 - the context alone has to be enough


async def with_its_context_hidden(ctx: Context, bodies: Bodies) -> None:
    await _caught(ctx, bodies)
    try:
        await ctx.step(bodies.poison, "escapes")
    except StepFailed:
        raise LookupError("no answer") from None


async def chained_twice_and_grouped(ctx: Context, bodies: Bodies) -> None:
    await _caught(ctx, bodies)
    try:
        try:
            await ctx.step(bodies.poison, "escapes")
        except StepFailed as error:
            raise KeyError("inner") from error
    except KeyError as error:
        raise ExceptionGroup("all", [ValueError("other"), ExceptionGroup("inner", [error])])  # noqa: B904


async def in_a_task_group(ctx: Context, bodies: Bodies) -> None:
    await _caught(ctx, bodies)

    async def part() -> None:
        await ctx.step(bodies.poison.with_options(name="other"), "escapes")

    async with asyncio.TaskGroup() as group:
        group.create_task(part())


async def kept_and_raised_at_the_end(ctx: Context, bodies: Bodies) -> None:
    await _caught(ctx, bodies)
    kept: list[StepFailed] = []
    try:
        await ctx.step(bodies.poison, "escapes")
    except StepFailed as error:
        kept.append(error)
    await ctx.step(bodies.good, "between")
    if kept:
        raise kept[0]


async def in_a_circle(ctx: Context, bodies: Bodies) -> None:
    await _caught(ctx, bodies)
    try:
        await ctx.step(bodies.poison, "escapes")
    except StepFailed as error:
        raised = LookupError("circle")
        error.__context__ = raised
        raised.__cause__ = error
        raise raised  # noqa: B904


async def through_a_branch(ctx: Context, bodies: Bodies) -> None:
    await _caught(ctx, bodies)

    async def leaf(ctx: Context) -> None:
        await _caught(ctx, bodies)
        await ctx.step(bodies.poison, "escapes")

    async def middle(ctx: Context) -> None:
        await ctx.parallel(ctx.branch(leaf))

    await ctx.parallel(ctx.branch(middle))


async def _caught(ctx: Context, bodies: Bodies) -> None:
    with contextlib.suppress(StepFailed):
        await ctx.step(bodies.poison, "caught")


@pytest.mark.parametrize(
    "escapes",
    [
        caught_and_gone,
        chained,
        in_the_handler,
        with_its_context_hidden,
        chained_twice_and_grouped,
        in_a_task_group,
        kept_and_raised_at_the_end,
        in_a_circle,
        through_a_branch,
    ],
    ids=lambda fn: fn.__name__,
)
async def test_a_redrive_retries_what_escaped_and_nothing_that_was_caught(
    escapes: Callable[[Context, Bodies], Awaitable[None]], place: Place
) -> None:
    bodies = Bodies()

    @workflow(name="escapes")
    async def wf(ctx: Context) -> str:
        await escapes(ctx, bodies)
        return "through"

    executor = place.executor()
    with pytest.raises(RunFailed):
        await executor.run(wf, run_id="r1")
    failed = {name for name, status in (await statuses(executor, "r1")).items() if status == "FAILED"}
    assert len(failed) >= 2
    bodies.mended = True
    bodies.ran.clear()
    assert (await executor.resume("r1", wf)).output == "through"
    assert [name for name in bodies.ran if name.startswith("poison")] == ["poison escapes"]
    still = [name for name, status in (await statuses(executor, "r1")).items() if status == "FAILED"]
    assert len(still) == len(failed) - 1


async def test_a_failure_whose_exception_was_collected_is_not_taken_for_another_with_its_id(
    place: Place,
) -> None:
    """An exception object is collected, and the next one gets its address: only the second ended the run."""
    bodies = Bodies()
    ids: list[int] = []

    @workflow(name="same_address")
    async def wf(ctx: Context) -> None:
        for number in itertools.count():
            try:
                await ctx.step(bodies.poison, f"{number}")
            except StepFailed as error:
                again = id(error) in ids
                ids.append(id(error))
                if again or number == 50:
                    raise
                traceback.clear_frames(error.__traceback__)
            gc.collect()

    executor = place.executor()
    with pytest.raises(RunFailed) as caught:
        await executor.run(wf, run_id="r1")
    escaped = (await executor.get("r1")).error["steps"]
    assert isinstance(caught.value.__cause__, StepFailed)
    assert escaped == [caught.value.__cause__.step_id]


async def test_a_failure_of_another_run_is_not_mistaken_for_one_of_this(place: Place) -> None:
    bodies = Bodies()
    executor = place.executor()

    @workflow(name="inner_run")
    async def inner(ctx: Context) -> None:
        await ctx.step(bodies.poison, "inner")

    @workflow(name="outer_run")
    async def outer(ctx: Context) -> None:
        try:
            await ctx.step(bodies.poison, "outer")
        except StepFailed:
            bodies.ran.append("caught")
        await executor.run(inner, run_id="inner")

    with pytest.raises(RunFailed):
        await executor.run(outer, run_id="outer")
    assert (await executor.get("outer")).error["steps"] == []
    bodies.mended = True
    bodies.ran.clear()
    with pytest.raises(RunFailed):  # the inner run has failed for good until somebody resumes it
        await executor.resume("outer", outer)
    assert "poison outer" not in bodies.ran


async def test_each_failure_that_ends_a_run_gets_one_fresh_budget_when_it_is_resumed(place: Place) -> None:
    attempts: list[int] = []

    @step(retry=Retry(max_attempts=2, initial_delay_s=0))
    async def poison() -> None:
        attempts.append(current_step().attempt)
        raise ValueError("no")

    @workflow(name="always")
    async def wf(ctx: Context) -> None:
        await ctx.step(poison)

    executor = place.executor()
    with pytest.raises(RunFailed):
        await executor.run(wf, run_id="r1")
    for resumed in (1, 2):
        with pytest.raises(RunFailed):
            await executor.resume("r1", wf)
        assert attempts == list(range(1, 2 * (resumed + 1) + 1))
    with pytest.raises(RunFailed, match="no"):
        await executor.run(wf, run_id="r1")
    assert len(attempts) == 6


async def test_a_redrive_that_crashes_goes_on_with_the_same_failures(
    place: Place, processes: Processes
) -> None:
    bodies = Bodies()

    @workflow(name="redriven_twice")
    async def wf(ctx: Context) -> list[str]:
        found = await asyncio.gather(
            ctx.step(bodies.poison, "a"), ctx.step(bodies.poison, "b"), return_exceptions=True
        )
        failures = [one for one in found if isinstance(one, Exception)]
        if failures:
            raise ExceptionGroup("failures", failures)
        return [str(one) for one in found]

    executor = place.executor()
    with pytest.raises(RunFailed):
        await executor.run(wf, run_id="r1")
    bodies.mended = True
    await crash(place, processes, lambda ex: ex.resume("r1", wf), at=verb_of("commit", "poison#2"))
    bodies.ran.clear()
    result = await place.executor().resume("r1", wf)
    assert result.output == ["mended a", "mended b"]
    assert "poison b" in bodies.ran
    assert result.counts == {"COMMITTED": 2}


async def test_a_failure_that_was_redriven_and_failed_again_gets_no_second_budget_from_a_crash(
    place: Place, processes: Processes
) -> None:
    bodies = Bodies()

    @workflow(name="redriven_once")
    async def wf(ctx: Context) -> str:
        return await ctx.step(bodies.poison, "a")

    with pytest.raises(RunFailed):
        await place.executor().run(wf, run_id="r1")
    await crash(place, processes, lambda ex: ex.resume("r1", wf), at=lambda verb, *_: verb == "leave")
    assert bodies.ran == ["poison a", "poison a"]
    with pytest.raises(RunFailed):
        await place.executor().resume("r1", wf)
    assert bodies.ran == ["poison a", "poison a"]
    bodies.mended = True
    assert (await place.executor().resume("r1", wf)).output == "mended a"


async def test_the_counts_of_a_resumed_run_are_those_of_its_records(
    place: Place, processes: Processes
) -> None:
    bodies = Bodies()

    @workflow(name="counted")
    async def wf(ctx: Context) -> None:
        await ctx.step(bodies.good, "1")
        await _caught(ctx, bodies)
        await ctx.step_if(False, bodies.good, "2")
        await ctx.step(bodies.good, "3")
        await ctx.step(bodies.poison, "escapes")

    await crash(place, processes, lambda ex: ex.run(wf, run_id="r1"), at=verb_of("commit", "good#3"))
    executor = place.executor()
    with pytest.raises(RunFailed):
        await executor.resume("r1", wf)
    assert (await executor.get("r1")).counts == {"COMMITTED": 2, "FAILED": 2, "SKIPPED": 1}
    bodies.mended = True
    expected = {"COMMITTED": 3, "FAILED": 1, "SKIPPED": 1}
    assert (await executor.resume("r1", wf)).counts == expected
    assert (await executor.run(wf, run_id="r1")).counts == expected
    assert (await executor.get("r1")).counts == expected


# ---- Poisoned contexts ----


async def test_after_an_outage_a_workflow_that_catches_everything_begins_nothing_more(place: Place) -> None:
    bodies = Bodies()
    seen: list[str] = []
    executor, journal = place.mortal()

    @workflow(name="catches_all")
    async def wf(ctx: Context) -> str:
        for number in range(4):
            try:
                await ctx.step(bodies.good, f"{number}")
            except Exception as error:
                seen.append(type(error).__name__)
        return "done"

    journal.dies_at = verb_of("commit", "good#2")
    with pytest.raises(JournalUnavailable):
        await executor.run(wf, run_id="r1")
    assert bodies.ran == ["good 0", "good 1"]
    assert seen == ["JournalUnavailable"] * 3
    assert (await place.executor().get("r1")).status == "RUNNING"


async def test_after_a_takeover_the_old_owner_begins_nothing_more_and_its_result_is_refused(
    place: Place, processes: Processes
) -> None:
    ran: list[str] = []
    inside, go = asyncio.Event(), asyncio.Event()

    @step
    async def work(number: int) -> str:
        info = current_step()
        ran.append(f"{info.step_id} fence {info.fence}")
        if info.fence == 1:
            inside.set()
            await go.wait()
        return f"by fence {info.fence}"

    @workflow(name="taken_over")
    async def wf(ctx: Context) -> list[str]:
        found: list[str] = []
        for number in range(2):
            try:
                found.append(await ctx.step(work, number))
            except Exception:
                ran.append("caught")
        return found

    processes.next_is_doomed()
    zombie = asyncio.ensure_future(place.executor().run(wf, run_id="r1"))
    await inside.wait()
    processes.next_lives()
    assert (await place.executor().resume("r1", wf)).output == ["by fence 2", "by fence 2"]
    go.set()
    with pytest.raises(Fenced):
        await zombie
    assert ran == ["work fence 1", "work fence 2", "work#2 fence 2", "caught", "caught"]
    executor = place.executor()
    assert [await view.output() for view in await executor.steps("r1")] == ["by fence 2"] * 2
    assert (await executor.get("r1")).status == "COMPLETED"


async def test_a_cancelled_run_is_not_finished_by_its_driver(place: Place) -> None:
    inside, go = asyncio.Event(), asyncio.Event()
    after: list[str] = []

    @step
    async def work(number: int) -> int:
        inside.set()
        await go.wait()
        return number

    @workflow(name="cancelled_run")
    async def wf(ctx: Context) -> None:
        try:
            await ctx.step(work, 1)
        except Exception as error:
            after.append(type(error).__name__)
        await ctx.step(work, 2)

    running = asyncio.ensure_future(place.executor().run(wf, run_id="r1"))
    await inside.wait()
    executor = place.executor()
    assert (await executor.cancel("r1")).status == "CANCELLED"
    go.set()
    with pytest.raises(RunCancelled):
        await running
    if place.kind != "dynamodb":  # there only a renewal tells the driver, and what it began may still end
        assert (await statuses(executor, "r1")).get("work#2") is None
    assert (await executor.get("r1")).status == "CANCELLED"
    with pytest.raises(RunCancelled):
        await executor.resume("r1", wf)


async def test_a_task_that_a_workflow_left_behind_begins_nothing_after_its_end(place: Place) -> None:
    ran: list[int] = []
    go = asyncio.Event()
    ended: list[BaseException] = []
    tasks: list[asyncio.Task[None]] = []

    @step
    async def work(number: int) -> None:
        ran.append(number)

    async def straggler(ctx: Context) -> None:
        await go.wait()
        try:
            await ctx.step(work, 1)
        except BaseException as error:
            ended.append(error)

    @workflow(name="leaves_a_task")
    async def wf(ctx: Context) -> None:
        tasks.append(asyncio.create_task(straggler(ctx)))

    executor = place.executor()
    await executor.run(wf, run_id="r1")
    go.set()
    await tasks[0]
    assert ran == []
    assert [type(error).__name__ for error in ended] == ["WorkflowOver"]


async def test_a_short_outage_at_commit_is_asked_again_and_the_body_is_not_run_again(place: Place) -> None:
    ran: list[int] = []
    executor, journal = place.mortal()
    outages = iter((True, True))

    def fails(verb: str, *args: Any) -> bool:
        if verb == "commit" and next(outages, False):
            raise JournalUnavailable("busy for a moment")
        return False

    @step
    async def work() -> int:
        ran.append(1)
        return len(ran)

    @workflow(name="outage")
    async def wf(ctx: Context) -> int:
        return await ctx.step(work)

    journal.dies_at = fails
    assert (await executor.run(wf)).output == 1
    assert ran == [1]
    assert journal.calls.count("commit") == 3


async def test_an_outage_that_loses_outcomes_again_and_again_is_no_crash(place: Place) -> None:
    ran: list[int] = []
    executor, journal = place.mortal()

    @step(crash_limit=2)
    async def work() -> int:
        ran.append(current_step().attempt)
        return len(ran)

    @workflow(name="outages")
    async def wf(ctx: Context) -> int:
        return await ctx.step(work)

    def is_out(verb: str, *_: Any) -> bool:
        if verb == "commit" and len(ran) < 4:
            raise JournalUnavailable("out of reach", waited_s=60)
        return False

    journal.dies_at = is_out
    for _ in range(3):
        with pytest.raises(JournalUnavailable):
            await executor.run(wf, run_id="r1")
        assert (await executor.get("r1")).status == "PENDING"
    assert (await executor.run(wf, run_id="r1")).output == 4
    record = (await executor.steps("r1"))[0].record
    assert (record.attempt, record.crashes, ran) == (4, 0, [1, 2, 3, 4])


async def test_a_lost_reply_is_recognised_as_our_own_write_at_every_verb(place: Place) -> None:
    ran: list[str] = []

    @step
    async def work(number: int) -> int:
        ran.append(current_step().step_id)
        return number

    @step(pure=True)
    async def pure(number: int) -> int:
        ran.append(current_step().step_id)
        return number

    @step
    async def poison() -> int:
        ran.append(current_step().step_id)
        raise ValueError("no")

    @workflow(name="lost_replies")
    async def wf(ctx: Context) -> list[int | None]:
        found = [await ctx.step(work, 1), await ctx.step(pure, 2), await ctx.step_if(False, work, 3)]
        try:
            await ctx.step(poison)
        except StepFailed:
            found.append(4)
        return found

    executor, journal = place.mortal()
    lost: set[tuple[str, str]] = set()

    def loses(verb: str, *args: Any) -> bool:
        which = (verb, str(getattr(args[0], "step_id", "")) + str(getattr(args[0], "status", "")))
        if verb in ("create", "begin", "commit", "put", "leave") and which not in lost:
            lost.add(which)
            raise JournalUnavailable("the reply was lost")
        return False

    journal.dies_after = loses
    result = await executor.run(wf, run_id="r1")
    assert result.output == [1, 2, None, 4]
    assert ran == ["work", "pure", "poison"]
    assert len(lost) == 8
    assert result.counts == {"COMMITTED": 2, "FAILED": 1, "SKIPPED": 1}


# ---- Code that changed between the runs ----


def versions(bodies: Bodies) -> dict[str, Callable[[Context], Awaitable[list[str]]]]:
    named = {name: bodies.good.with_options(name=name) for name in ("a", "b", "c", "x")}

    async def call(ctx: Context, names: str) -> list[str]:
        return [await ctx.step(named[name], name) for name in names]

    async def same(ctx: Context) -> list[str]:
        return await call(ctx, "abc")

    async def inserted(ctx: Context) -> list[str]:
        return await call(ctx, "axbc")

    async def removed(ctx: Context) -> list[str]:
        return await call(ctx, "bc")

    async def renamed(ctx: Context) -> list[str]:
        return await call(ctx, "xbc")

    async def reordered(ctx: Context) -> list[str]:
        return await call(ctx, "bac")

    return {
        "same": same,
        "inserted": inserted,
        "removed": removed,
        "renamed": renamed,
        "reordered": reordered,
    }


@pytest.mark.parametrize(
    ("version", "ran", "output"),
    [
        ("same", ["good c"], ["good a", "good b", "good c"]),
        ("inserted", ["good x", "good c"], ["good a", "good x", "good b", "good c"]),
        ("removed", ["good c"], ["good b", "good c"]),
        ("renamed", ["good x", "good c"], ["good x", "good b", "good c"]),
        ("reordered", ["good c"], ["good b", "good a", "good c"]),
    ],
)
async def test_a_run_stopped_at_its_third_step_goes_on_under_new_code_without_taking_one_for_another(
    version: str, ran: list[str], output: list[str], place: Place, processes: Processes
) -> None:
    bodies = Bodies()
    found = versions(bodies)
    before = workflow(name="versions")(found["same"])
    after = workflow(name="versions")(found[version])
    await crash(place, processes, lambda ex: ex.run(before, run_id="r1"), at=verb_of("begin", "c"))
    bodies.ran.clear()
    assert (await place.executor().resume("r1", after)).output == output
    assert bodies.ran == ran


async def test_two_calls_of_one_step_that_changed_places_are_a_mismatch_that_names_the_step(
    place: Place, processes: Processes
) -> None:
    bodies = Bodies()
    order = ["one", "two", "three"]

    @workflow(name="places")
    async def wf(ctx: Context) -> list[str]:
        return [await ctx.step(bodies.good, name) for name in order]

    await crash(place, processes, lambda ex: ex.run(wf, run_id="r1"), at=verb_of("begin", "good#3"))
    order[:2] = ["two", "one"]
    bodies.ran.clear()
    executor = place.executor()
    with pytest.raises(RunFailed) as caught:
        await executor.resume("r1", wf)
    mismatch = caught.value.__cause__
    assert isinstance(mismatch, StepMismatch)
    assert mismatch.step_id == "good"
    assert "'two'" in str(mismatch)
    assert "fork" in str(mismatch)
    assert bodies.ran == []
    order[:2] = ["one", "two"]
    assert (await executor.resume("r1", wf)).output == ["good one", "good two", "good three"]


async def test_a_completed_run_that_is_started_again_writes_and_runs_nothing(place: Place) -> None:
    bodies = Bodies()

    @workflow(name="completed")
    async def wf(ctx: Context) -> str:
        return await ctx.step(bodies.good, "x")

    first = await place.executor().run(wf, run_id="r1")
    executor, journal = place.mortal()
    for _ in range(3):
        again = await executor.run(wf, run_id="r1")
        assert (again.output, again.status, again.counts) == (first.output, first.status, first.counts)
    assert {verb for verb in journal.calls if not verb.startswith("after")} == {"header"}
    assert bodies.ran == ["good x"]


async def _resumed(executor: DurableWorkflowExecutor, wf: Any) -> Any:
    return await executor.resume("r1", wf)


@pytest.mark.parametrize("minutes", [-600, -5, 5, 600])
async def test_a_clock_that_jumps_between_two_owners_loses_nothing(
    minutes: int, place: Place, processes: Processes
) -> None:
    clock, bodies = place.turn_clock(), Bodies()

    @workflow(name="skewed")
    async def wf(ctx: Context) -> list[str]:
        return [await ctx.step(bodies.good, name) for name in "abc"]

    await crash(place, processes, lambda ex: ex.run(wf, run_id="r1"), at=verb_of("begin", "good#3"))
    clock.turn(minutes * 60)
    bodies.ran.clear()
    executor = place.executor()
    assert (await _resumed(executor, wf)).output == ["good a", "good b", "good c"]
    assert bodies.ran == ["good c"]
    assert (await executor.get("r1")).status == "COMPLETED"


@pytest.mark.parametrize("marked", [step, step(timeout_s=30)])
async def test_a_def_step_that_raises_stop_iteration_fails_like_an_async_one(
    marked: Callable[..., Any], place: Place
) -> None:
    def first() -> int:
        return next(iter([]))

    async def first_async() -> int:
        return next(iter([]))

    @workflow(name="stop_iteration")
    async def wf(ctx: Context) -> list[str]:
        told = []
        for body in (first, first_async):
            with pytest.raises(StepFailed) as caught:
                await ctx.step(marked(body))
            told.append(caught.value.error["type"])
        return told

    assert (await place.executor().run(wf)).output == ["RuntimeError", "RuntimeError"]
