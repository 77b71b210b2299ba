"""Steps are listed, shown and forked in the order in which they were first begun, whatever the clock says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from durable_core import Context, DurableWorkflowExecutor, Retry, current_step, step, workflow
from durable_core.cli.app import execute
from durable_core.errors import RunFailed
from tests.stores import Place, Processes, TurnedClock, crash

MINUTES_MS = 5 * 60_000


class World:
    """Branches whose steps take turns, and in which order the journal was first asked to begin them."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.broken: set[str] = set()

    def executor(self, place: Place) -> DurableWorkflowExecutor:
        """One whose begins are noted."""
        executor, journal = place.mortal()
        journal.dies_at = self.noting(lambda *_: False)
        return executor

    def noting(self, dies_at: Callable[..., bool]) -> Callable[..., bool]:
        def at(verb: str, *args: Any) -> bool:
            if verb == "begin" and args[0].step_id not in self.begun:
                self.begun.append(args[0].step_id)
            return dies_at(verb, *args)

        return at

    @property
    def workflow(self) -> Any:
        @step(retry=Retry(max_attempts=3, initial_delay_s=0), crash_limit=9)
        async def part(turns: int) -> str:
            step_id = current_step().step_id
            for _ in range(turns):
                await asyncio.sleep(0)
            if step_id in self.broken:
                raise ValueError(f"{step_id} is broken")
            return step_id

        async def slow(ctx: Context) -> None:
            for _ in range(3):
                await ctx.step(part, 9)

        async def quick(ctx: Context) -> None:
            for _ in range(5):
                await ctx.step(part, 1)

        async def many(ctx: Context) -> None:
            await asyncio.gather(*[ctx.step(part, turns) for turns in (5, 1, 3)])

        @workflow(name="ordered")
        async def wf(ctx: Context) -> str:
            await ctx.step(part, 0)
            await ctx.parallel(ctx.branch(slow), ctx.branch(quick), ctx.branch(many))
            return await ctx.step(part, 0)

        return wf


@pytest.fixture
def world() -> World:
    return World()


async def listed(executor: DurableWorkflowExecutor, run_id: str = "r1") -> list[str]:
    return [view.step_id for view in await executor.steps(run_id)]


def stepped_back(clock: TurnedClock) -> None:
    clock.now -= MINUTES_MS


@pytest.mark.over_dynamodb
async def test_branches_side_by_side_are_listed_as_their_steps_were_begun(
    world: World, place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    place.turn_clock()
    executor = world.executor(place)
    await executor.run(world.workflow, run_id="r1")
    assert len(world.begun) == 13
    assert world.begun != sorted(
        world.begun, key=lambda step_id: step_id.partition("/")[0]
    )  # they took turns
    assert await listed(executor) == world.begun
    if place.kind == "sqlite":
        url = f"sqlite:///{place.folder / 'runs.db'}"
        assert await asyncio.to_thread(execute, ["show", "r1", "--json", "--store", url]) == 0
        shown = json.loads(capsys.readouterr().out)["steps"]
        assert [one["step_id"] for one in shown] == world.begun


@pytest.mark.parametrize("turned", ["frozen", "back"])
async def test_a_resumed_run_goes_on_in_the_order(
    turned: str, world: World, place: Place, processes: Processes
) -> None:
    clock, wf, lives = place.turn_clock(), world.workflow, 0
    for commits in (2, 4, 3, 2):
        left = count(commits, -1)
        at = world.noting(lambda verb, *_, left=left: verb == "commit" and next(left) == 1)
        await crash(place, processes, lambda executor: executor.run(wf, run_id="r1"), at=at)
        lives += 1
        if turned == "back":
            stepped_back(clock)
    executor = world.executor(place)
    await executor.run(wf, run_id="r1")
    assert (await executor.get("r1")).fence == lives + 1
    assert await listed(executor) == world.begun


async def test_a_clock_that_steps_back_in_the_middle_of_a_run_changes_no_order(
    world: World, place: Place
) -> None:
    clock = place.turn_clock()
    executor = world.executor(place)

    @step
    async def turns_the_clock() -> None:
        stepped_back(clock)

    @workflow(name="turned")
    async def wf(ctx: Context) -> None:
        for _ in range(3):
            await ctx.step(turns_the_clock)

    await executor.run(wf, run_id="r1")
    assert await listed(executor) == ["turns_the_clock", "turns_the_clock#2", "turns_the_clock#3"]


async def test_a_step_that_was_tried_again_or_skipped_by_hand_keeps_its_place(
    world: World, place: Place
) -> None:
    place.turn_clock()
    executor, wf = world.executor(place), world.workflow
    world.broken = {"quick/part"}
    for _ in range(2):
        with pytest.raises(RunFailed):
            await executor.resume("r1", wf) if world.begun else await executor.run(wf, run_id="r1")
        assert await listed(executor) == world.begun
    (broken,) = [view for view in await executor.steps("r1") if view.step_id == "quick/part"]
    assert broken.record.attempt == 6
    await executor.skip("r1", "quick/part", output="by hand")
    assert await listed(executor) == world.begun
    world.broken.clear()
    await executor.resume("r1", wf)
    assert await listed(executor) == world.begun


async def test_a_fork_takes_over_exactly_what_was_begun_before_a_step_and_goes_on_after_it(
    world: World, place: Place
) -> None:
    place.turn_clock()
    executor, wf = world.executor(place), world.workflow
    for broken in ("part", "part", "part#2"):  # most is begun under a fence higher than the fork's
        world.broken = {broken}
        with pytest.raises(RunFailed):
            await executor.resume("r1", wf) if world.begun else await executor.run(wf, run_id="r1")
    order = list(world.begun)
    for from_step in ("quick/part#3", "many/part#2", "slow/part#2"):
        plan = await executor.fork("r1", wf=wf, from_step=from_step, dry_run=True)
        at = order.index(from_step)
        assert (plan.kept, plan.left) == (order[:at], order[at:])
    await executor.fork("r1", wf=wf, new_run_id="r2", from_step="many/part#2")
    kept = order[: order.index("many/part#2")]
    assert await listed(executor, "r2") == kept
    world.begun, world.broken = list(kept), set()
    await executor.resume("r2", wf)
    assert await listed(executor, "r2") == world.begun
