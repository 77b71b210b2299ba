"""Forks of runs with maps: what has an outcome is taken over, what changed is run, the old run stays."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

import pytest

from durable_core import Context, DurableWorkflowExecutor, MapOutputs, step, workflow
from durable_core.errors import RunFailed
from tests.stores import WITH_DYNAMODB, Place

STORES = WITH_DYNAMODB


@dataclass
class World:
    """What the workflows map now: a test changes it between a run and its fork."""

    items: list[Any] = field(default_factory=lambda: list(range(10)))
    plus: int = 0
    bad: set[int] = field(default_factory=set)
    ran: list[int] = field(default_factory=list)
    large: bool = False

    def bodies(self) -> list[int]:
        """Those since it was last asked."""
        found, self.ran = sorted(self.ran), []
        return found


world = World()


@pytest.fixture(autouse=True)
def _a_world_of_its_own() -> None:
    world.__init__()  # type: ignore[misc]


@step
async def add(item: int, plus: int) -> Any:
    world.ran.append(item)
    if item in world.bad:
        raise ValueError(f"no {item}")
    return "x" * 10_000 + str(item) if world.large else item + plus


@workflow
async def batch(ctx: Context) -> list[Any]:
    return list((await ctx.map(functools.partial(add, plus=world.plus), world.items)).outputs)


@workflow
async def keyed(ctx: Context) -> list[Any]:
    return list((await ctx.map(functools.partial(add, plus=0), world.items, key=str)).outputs)


@step
def summed(outputs: MapOutputs[int]) -> int:
    world.ran.append(-1)
    return sum(outputs)


@workflow
async def two_steps(ctx: Context) -> int:
    found = await ctx.map(functools.partial(add, plus=world.plus), world.items)
    return await ctx.step(summed, found.outputs)


async def forked(executor: DurableWorkflowExecutor, wf: Any, new: str, **options: Any) -> Any:
    await executor.fork("old", new_run_id=new, wf=wf, **options)
    return (await executor.resume(new, wf)).output


async def test_a_fork_takes_over_a_committed_map_with_its_outcomes(place: Place) -> None:
    executor = place.executor()
    was = (await executor.run(batch, run_id="old")).output
    assert world.bodies() == list(range(10))
    assert await forked(executor, batch, "new") == was
    assert world.bodies() == []


async def test_a_fork_with_other_items_runs_those_that_changed(place: Place) -> None:
    executor = place.executor()
    was = (await executor.run(batch, run_id="old")).output
    world.bodies()
    world.items = [0, 1, 2, 30, 4, 5]
    assert await forked(executor, batch, "new") == [0, 1, 2, 30, 4, 5]
    assert world.bodies() == [30]
    assert (await executor.resume("new", batch)).output == [0, 1, 2, 30, 4, 5]
    world.items = list(range(10))
    assert (await executor.resume("old", batch)).output == was
    assert world.bodies() == []


async def test_a_fork_whose_function_gets_other_arguments_runs_every_item(place: Place) -> None:
    executor = place.executor()
    await executor.run(batch, run_id="old")
    world.bodies()
    world.plus = 5
    assert await forked(executor, batch, "new") == [item + 5 for item in range(10)]
    assert world.bodies() == list(range(10))
    view = (await executor.steps("new"))[0]
    assert list((await view.output()).outputs) == [item + 5 for item in range(10)]  # type: ignore[attr-defined]


async def test_a_fork_with_other_arguments_that_fails_half_way_goes_on_with_its_own_outcomes(
    place: Place,
) -> None:
    executor = place.executor()
    await executor.run(batch, run_id="old")
    world.plus, world.bad = 5, {4}
    with pytest.raises(RunFailed):
        await forked(executor, batch, "new")
    done = len(world.bodies()) - 11
    world.bad = set()
    assert (await executor.resume("new", batch)).output == [item + 5 for item in range(10)]
    assert len(world.bodies()) == 10 - done


async def test_a_fork_of_a_keyed_batch_runs_what_was_appended_and_keeps_the_new_order(place: Place) -> None:
    executor = place.executor()
    await executor.run(keyed, run_id="old")
    world.bodies()
    world.items = [3, 2, 1, 12, 13]
    assert await forked(executor, keyed, "new") == [3, 2, 1, 12, 13]
    assert world.bodies() == [12, 13]
    other = place.executor()
    view = (await other.steps("new"))[0]
    assert list((await view.output()).outputs) == [3, 2, 1, 12, 13]  # type: ignore[attr-defined]


async def test_a_fork_of_a_failed_map_runs_only_what_failed_or_is_missing(place: Place) -> None:
    executor = place.executor()
    world.bad = {4}
    with pytest.raises(RunFailed):
        await executor.run(batch, run_id="old")
    done = set(world.bodies()) - {4}
    world.bad = set()
    assert await forked(executor, batch, "new") == list(range(10))
    assert world.bodies() == sorted(set(range(10)) - done)
    with pytest.raises(RunFailed):
        await executor.run(batch, run_id="old")
    assert world.bodies() == []


async def test_a_fork_from_a_map_runs_every_item_of_it(place: Place) -> None:
    executor = place.executor()
    await executor.run(batch, run_id="old")
    world.bodies()
    assert await forked(executor, batch, "new", from_step="add") == list(range(10))
    assert world.bodies() == list(range(10))


async def test_large_outputs_are_copied_so_that_either_run_may_go(place: Place) -> None:
    executor = place.executor()
    world.large = True
    was = (await executor.run(batch, run_id="old")).output
    world.bodies()
    store = place.store()
    await executor.fork("old", new_run_id="new", wf=batch)
    for ref in [ref async for ref in store.blobs.refs("old")]:
        await store.blobs.delete(ref)
    assert (await executor.resume("new", batch)).output == was
    assert world.bodies() == []


async def test_a_step_that_takes_a_maps_outputs_is_taken_over_unless_they_changed(place: Place) -> None:
    executor = place.executor()
    assert (await executor.run(two_steps, run_id="old")).output == 45
    world.bodies()
    assert await forked(executor, two_steps, "same") == 45
    assert world.bodies() == []
    world.items = [0, 1, 2]
    assert await forked(executor, two_steps, "fewer") == 3
    assert world.bodies() == [-1]
