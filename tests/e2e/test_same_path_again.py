"""What a workflow saw once it sees again: joins that failed, times, draws, arguments, mismatches."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Any

import pytest

from durable_core import Context, Retry, step, workflow
from durable_core.errors import (
    AmbiguousStep,
    BranchFailed,
    RunCancelled,
    RunFailed,
    StepFailed,
    StepMismatch,
    UsageError,
)
from tests.stores import Place


class Bodies:
    """Counts bodies; the last step fails until it is let.

    What takes `long` takes that many times as long as any store's write.
    """

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.let = False

    async def work(self, name: str, long: int = 0) -> str:
        self.ran.append(name)
        await asyncio.sleep(long * 0.02)
        return name

    async def fails(self, name: str, long: int = 0) -> None:
        await self.work(name, long)
        raise ValueError(name)

    async def last(self) -> None:
        if not self.let:
            raise LookupError("not yet")


@pytest.mark.over_dynamodb
@pytest.mark.parametrize("order", ["failing first", "failing last"])
async def test_a_join_that_failed_and_was_caught_begins_nothing_new_on_replay(
    place: Place, order: str
) -> None:
    bodies = Bodies()

    async def reserve(ctx: Context) -> None:
        await ctx.step(bodies.fails, "reserve", 1)

    async def pay(ctx: Context) -> None:
        await ctx.step(bodies.work, "look up", 5)
        await ctx.step(bodies.fails, "charge")

    @workflow(name="fallback")
    async def wf(ctx: Context) -> str:
        parts = [ctx.branch(reserve), ctx.branch(pay)]
        try:
            await ctx.parallel(*(parts if order == "failing first" else reversed(parts)))
        except BranchFailed as error:
            told = f"{error.branch}: {error.message}"
            await ctx.step(bodies.work, told)
        await ctx.step(bodies.last)
        return told

    executor = place.executor()
    with pytest.raises(RunFailed, match="not yet"):
        await executor.run(wf, run_id="r1")
    assert "charge" not in bodies.ran
    before = list(bodies.ran)
    bodies.let = True
    result = await place.executor().resume("r1", wf)
    assert result.output.startswith("reserve: branch 'reserve' failed: StepFailed")
    assert bodies.ran == before
    assert result.counts == {"COMMITTED": 3, "FAILED": 1}
    assert "!join" not in [view.step_id for view in await executor.steps("r1")]


async def test_a_join_that_ended_the_run_is_tried_again_by_a_resume(place: Place) -> None:
    bodies = Bodies()

    async def shaky(ctx: Context) -> None:
        await ctx.step(bodies.last)

    async def other(ctx: Context) -> str:
        return await ctx.step(bodies.work, "first") + await ctx.step(bodies.work, "second", 1)

    @workflow(name="tried_again")
    async def wf(ctx: Context) -> tuple[None, str]:
        return await ctx.parallel(ctx.branch(shaky), ctx.branch(other))

    with pytest.raises(RunFailed):
        await place.executor().run(wf, run_id="r1")
    assert (await place.executor().get("r1")).error["steps"] == ["shaky/last"]
    bodies.let = True
    assert (await place.executor().resume("r1", wf)).output == (None, "firstsecond")
    assert bodies.ran.count("first") == 1


async def test_a_task_group_in_a_branch_hides_no_failure_of_a_sibling(place: Place) -> None:
    bodies = Bodies()

    async def bad(ctx: Context) -> None:
        await ctx.step(bodies.fails, "bad", 2)

    async def group(ctx: Context) -> None:
        async with asyncio.TaskGroup() as tasks:
            for name in ("one", "two"):
                tasks.create_task(ctx.step(bodies.work, name, 20))
        await ctx.step(bodies.work, "three")

    async def nested(ctx: Context) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(group(ctx))

    @workflow(name="groups")
    async def wf(ctx: Context) -> str:
        try:
            await ctx.parallel(ctx.branch(bad), ctx.branch(nested))
        except BranchFailed as error:
            return error.branch
        return "none"

    assert (await place.executor().run(wf)).output == "bad"
    assert "three" not in bodies.ran


@pytest.mark.parametrize("turns", [(1, 5, 9), (9, 5, 1), (5, 9, 1)])
async def test_now_is_the_same_on_replay_whatever_order_steps_returned_in(
    place: Place, turns: tuple[int, ...]
) -> None:
    bodies = Bodies()

    async def timed(number: int) -> int:
        await asyncio.sleep(turns[number] / 200)
        return number

    async def stamp(at: datetime) -> str:
        return at.isoformat()

    @workflow(name="stamps")
    async def wf(ctx: Context) -> str:
        await asyncio.gather(*(ctx.step(timed, number) for number in range(3)))
        text = await ctx.step(stamp, ctx.now())
        await ctx.step(bodies.last)
        return text

    with pytest.raises(RunFailed, match="not yet"):
        await place.executor().run(wf, run_id="r1")
    bodies.let = True
    assert (await place.executor().resume("r1", wf)).status == "COMPLETED"


async def test_two_tasks_that_draw_in_one_scope_are_refused(place: Place) -> None:
    async def helper(ctx: Context) -> float:
        return ctx.random()

    @workflow(name="drawing")
    async def wf(ctx: Context) -> list[float]:
        return [await asyncio.create_task(helper(ctx)), await asyncio.create_task(helper(ctx))]

    with pytest.raises(RunFailed) as caught:
        await place.executor().run(wf)
    assert isinstance(caught.value.__cause__, AmbiguousStep)


@pytest.mark.parametrize("plain", [True, False])
async def test_a_step_that_changes_its_argument_changes_a_copy(place: Place, plain: bool) -> None:
    attempts: list[list[int]] = []

    def body(items: list[int]) -> int:
        attempts.append(list(items))
        items.append(1)
        if len(attempts) == 1:
            raise ValueError("once")
        return len(items)

    async def async_body(items: list[int]) -> int:
        return body(items)

    add = step(name="add", retry=Retry(max_attempts=2, initial_delay_s=0))(body if plain else async_body)

    @workflow(name="changing")
    async def wf(ctx: Context) -> tuple[int, list[int]]:
        items: list[int] = []
        count = await ctx.step(add, items)
        return count, items

    assert (await place.executor().run(wf)).output == (1, [])
    assert attempts == [[], []]


async def test_a_mismatch_that_the_workflow_catches_still_ends_the_run(place: Place) -> None:
    given = [1]

    async def same(value: int) -> int:
        return value

    bodies = Bodies()

    @workflow(name="catching")
    async def wf(ctx: Context) -> str:
        try:
            await ctx.step(same, given[0])
        except Exception as error:
            return f"another path: {type(error).__name__}"
        await ctx.step(bodies.last)
        return "the path"

    with pytest.raises(RunFailed, match="not yet"):
        await place.executor().run(wf, run_id="r1")
    given[0] = 2
    bodies.let = True
    with pytest.raises(RunFailed) as caught:
        await place.executor().resume("r1", wf)
    assert isinstance(caught.value.__cause__, StepMismatch)
    given[0] = 1
    assert (await place.executor().resume("r1", wf)).output == "the path"


async def test_keep_keeps_what_was_skipped_too(place: Place) -> None:
    given, bodies = [1], Bodies()

    async def same(value: int) -> int:
        return value

    @workflow(name="keeping")
    async def wf(ctx: Context) -> list[int | None]:
        found = [await ctx.step(same, given[0]), await ctx.step_if(False, same, given[0])]
        await ctx.step(bodies.last)
        return found

    with pytest.raises(RunFailed, match="not yet"):
        await place.executor().run(wf, run_id="r1")
    given[0], bodies.let = 2, True
    assert (await place.executor().resume("r1", wf, on_change="keep")).output == [1, None]


async def test_a_failure_that_was_dealt_with_is_not_tried_again_because_of_a_later_one(place: Place) -> None:
    bodies = Bodies()

    @workflow(name="dealt_with")
    async def wf(ctx: Context) -> str:
        try:
            await ctx.step(bodies.fails, "ship")
        except StepFailed:
            await ctx.step(bodies.work, "refund")
            await ctx.step(bodies.last)
            return "refunded"
        return "shipped"

    with pytest.raises(RunFailed, match="not yet"):
        await place.executor().run(wf, run_id="r1")
    bodies.let = True
    assert (await place.executor().resume("r1", wf)).output == "refunded"
    assert bodies.ran == ["ship", "refund"]


async def test_a_loop_that_catches_everything_ends_when_its_run_is_cancelled(place: Place) -> None:
    executor = place.executor()
    rounds: list[int] = []

    async def nap() -> None:
        rounds.append(1)
        if len(rounds) == 3:
            await executor.cancel("r1")

    @workflow(name="endless")
    async def wf(ctx: Context) -> None:
        while True:
            try:
                await ctx.step(nap)
            except Exception:  # as worker loops do
                rounds.append(0)

    with pytest.raises(RunCancelled):
        async with asyncio.timeout(20):
            await executor.run(wf, run_id="r1")


@pytest.mark.parametrize(("first", "then"), [(1, 2), (11, 3)])
async def test_a_fork_asks_the_condition_of_a_step_that_it_calls_with_another_input(
    place: Place, first: int, then: int
) -> None:
    sent: list[tuple[int, str]] = []

    @step
    def notify(number: int) -> int:
        from durable_core import current_step

        sent.append((number, current_step().idempotency_key))
        return number

    @workflow(name="conditional")
    async def wf(ctx: Context, number: int) -> int | None:
        return await ctx.step_if(number > 10, notify, number)

    executor = place.executor()
    await executor.run(wf, run_id="r1", number=first)
    sent.clear()
    await executor.fork("r1", wf=wf, new_run_id="r2", inputs={"number": then})
    assert (await executor.resume("r2", wf)).output is None
    assert sent == []
    await executor.fork("r1", wf=wf, new_run_id="r3", inputs={"number": 12})
    assert (await executor.resume("r3", wf)).output == 12
    other = (await executor.fork("r1", wf=wf, new_run_id="r4", inputs={"number": 12})).run_id
    assert (await executor.resume(str(other), wf)).output == 12
    assert len({key for _, key in sent}) == 2  # a new call has a key of its own


async def test_a_skip_with_an_output_that_does_not_fit_is_told_and_can_be_corrected(place: Place) -> None:
    async def count() -> int:
        raise ValueError("no")

    @workflow(name="skipping")
    async def wf(ctx: Context) -> int:
        return await ctx.step(count) + 1

    executor = place.executor()
    with pytest.raises(RunFailed):
        await executor.run(wf, run_id="r1")
    await executor.skip("r1", "count", output="junk")
    with pytest.raises(RunFailed) as caught:
        await executor.resume("r1", wf)
    assert isinstance(caught.value.__cause__, UsageError)
    assert "Skip it again" in str(caught.value.__cause__)
    await executor.skip("r1", "count", output=41)
    assert (await executor.resume("r1", wf)).output == 42


async def test_a_branch_given_twice_or_never_awaited_is_told(place: Place) -> None:
    async def lane(ctx: Context) -> int:
        return 1

    @workflow(name="twice")
    async def wf(ctx: Context) -> Any:
        one = ctx.branch(lane)
        with pytest.raises(UsageError, match="given twice"):
            await ctx.parallel(one, one)
        value = await one
        with pytest.warns(RuntimeWarning, match="never awaited"):
            ctx.branch(lane)
        return value

    assert (await place.executor().run(wf)).output == 1
