"""What people do to runs with maps, and what maps do when the world is against them."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from durable_core import Context, MapResult, StepFailed, step, workflow
from durable_core.errors import JournalUnavailable, MapFailed, RunFailed, UsageError
from durable_core.records import Reply, Segment
from tests.e2e.batches import (
    World,
    batch_and_step,
    batch_of,
    failure,
    outputs,
    raises,
    resumed,
    tenfold,
    world,
)
from tests.stores import Place


@pytest.fixture(autouse=True)
def _fresh_world() -> None:
    world.__dict__.update(World().__dict__)


@workflow
async def batch_as_it_is(ctx: Context) -> Any:
    """Gives what the map gave, whatever that is."""
    return await ctx.map(tenfold, world.items(), **world.options)


@pytest.mark.over_dynamodb
@pytest.mark.parametrize("given", [{"output": [1, 2]}, {"output": None}, {}], ids=str)
async def test_a_failed_map_can_be_skipped_by_hand_with_what_stands_for_its_result(
    given: dict[str, Any], place: Place
) -> None:
    world.gives[2] = raises(ValueError("no"))
    await failure(place.executor(), wf=batch_as_it_is)
    world.taken()
    executor = place.executor()
    view = await executor.skip("r1", "tenfold", **given)
    assert view.status == "SKIPPED"
    assert await resumed(executor, wf=batch_as_it_is) == given.get("output")
    assert world.taken() == []


async def test_a_map_that_has_committed_cannot_be_skipped(place: Place) -> None:
    world.gives["end"] = raises(ValueError("not yet"))
    await failure(place.executor(), wf=batch_and_step)
    with pytest.raises(UsageError, match="COMMITTED, and that stands"):
        await place.executor().skip("r1", "tenfold")


async def test_the_run_counts_a_map_as_one_step_also_after_a_death_of_its_owner(place: Place) -> None:
    executor = place.executor()
    assert len(await outputs(executor)) == 5
    assert (await executor.get("r1")).counts == {"COMMITTED": 1}


async def test_nothing_more_is_begun_after_a_segment_could_not_be_written(place: Place) -> None:
    """Whatever the workflow catches: what it would do next was decided on items that nobody has."""
    executor, journal = place.mortal()

    async def append(segment: Segment) -> Reply[Segment]:
        raise JournalUnavailable("as planned", waited_s=60)

    journal.append = append  # type: ignore[method-assign]

    @step
    async def next_step() -> None:
        world.ran.append("next")

    @workflow
    async def stubborn(ctx: Context) -> None:
        with contextlib.suppress(Exception):
            await ctx.map(tenfold, range(3))
        with contextlib.suppress(Exception):
            await ctx.step(next_step)
        with contextlib.suppress(Exception):
            await ctx.map(tenfold, range(3))

    with pytest.raises(JournalUnavailable):
        await executor.run(stubborn, run_id="r1")
    assert world.taken() == [0, 1, 2]
    assert (await place.executor().get("r1")).status == "PENDING"


async def test_an_endless_message_is_cut_and_the_batch_goes_on(place: Place) -> None:
    world.gives[1] = raises(ValueError("x" * 10_000_000))
    world.options = {"tolerate_failures": 1}
    world.after = lambda batch: [len(one.error["message"]) for one in batch.failures if one.error]
    assert await outputs(place.executor()) == [1000]


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    "error",
    [
        Mute(),
        SystemExit(3),
        asyncio.CancelledError(),
        StopIteration(),
        StopAsyncIteration(),
        ValueError("\ud800"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_whatever_a_body_raises_is_its_items_failure(error: BaseException, place: Place) -> None:
    world.gives[1] = raises(error)
    world.options = {"tolerate_failures": 1}
    world.after = lambda batch: [one.index for one in batch.failures]
    assert await outputs(place.executor()) == [1]
    assert await outputs(place.executor()) == [1]


async def test_ten_thousand_failures_are_told_in_a_few_words(place: Place) -> None:
    @step
    async def hopeless(item: int) -> None:
        raise ValueError(f"no {item} " + "x" * 1000)

    @workflow
    async def all_fail(ctx: Context) -> Any:
        return await ctx.map(hopeless, range(2000), tolerate_failures=1999)

    error = await failure(place.executor(), wf=all_fail)
    assert isinstance(error, MapFailed)
    assert (error.succeeded, error.failed) == (0, 2000)
    assert len(str(error)) < 5000


async def test_an_item_of_ten_megabytes(place: Place) -> None:
    world.items = lambda: ["y" * 10_000_000, "z"]
    world.gives = {"y" * 10_000_000: lambda: "large", "z": lambda: "small"}
    assert await outputs(place.executor()) == ["large", "small"]


async def test_a_failed_item_with_steps_names_the_step_that_failed(place: Place) -> None:
    @step
    async def inner(item: int) -> int:
        if item == 1:
            raise ValueError("inner no")
        return item

    async def each(ctx: Context, item: int) -> int:
        try:
            return await ctx.step(inner, item)
        except StepFailed as error:
            raise RuntimeError("outer no") from error

    @workflow
    async def mapped(ctx: Context) -> Any:
        batch = await ctx.map(each, range(3), tolerate_failures=1)
        return batch.failures[0].error

    error = await outputs(place.executor(), wf=mapped)
    assert (error["type"], error["message"], error["steps"]) == (
        "RuntimeError",
        "outer no",
        ["each[1]/inner"],
    )
    assert "inner no" in error["traceback"]


async def test_an_annotated_output_that_does_not_fit_is_its_items_failure(place: Place) -> None:
    @step
    async def wrong(item: int) -> int:
        return "text" if item == 1 else item  # type: ignore[return-value]

    @workflow
    async def mapped(ctx: Context) -> Any:
        batch = await ctx.map(wrong, range(3), tolerate_failures=1)
        return [one.error["code"] for one in batch.failures if one.error]

    assert await outputs(place.executor(), wf=mapped) == ["OUTPUT_NOT_SERIALIZABLE"]


async def test_maps_of_one_name_from_two_tasks_are_refused(place: Place) -> None:
    async def one(ctx: Context) -> Any:
        return await ctx.map(tenfold, range(2))

    @workflow
    async def gathering(ctx: Context) -> Any:
        return await asyncio.gather(one(ctx), one(ctx))

    error = await failure(place.executor(), wf=gathering)
    assert error.code == "AMBIGUOUS_STEP"  # type: ignore[attr-defined]


async def test_two_maps_called_in_order_and_awaited_together(place: Place) -> None:
    @workflow
    async def together(ctx: Context) -> Any:
        one, two = ctx.map(tenfold, range(3)), ctx.map(tenfold, range(3, 6))
        found: tuple[MapResult[Any], MapResult[Any]] = await asyncio.gather(one, two)
        return [list(batch.outputs) for batch in found]

    assert await outputs(place.executor(), wf=together) == [[0, 10, 20], [30, 40, 50]]


async def test_a_map_that_is_cancelled_by_its_workflow_can_be_gone_on_with(place: Place) -> None:
    """A time limit around a map: what was done stays done."""
    never = asyncio.Event()

    async def wait() -> None:
        await never.wait()

    @workflow
    async def limited(ctx: Context) -> Any:
        async with asyncio.timeout(0.2 if world.gives else None):
            return list((await ctx.map(tenfold, range(6), max_concurrency=1)).outputs)

    world.gives = {4: wait}
    with pytest.raises(RunFailed):
        await outputs(place.executor(), wf=limited)
    assert world.taken() == [0, 1, 2, 3, 4]
    world.gives = {}
    assert await resumed(place.executor(), wf=limited) == [0, 10, 20, 30, 40, 50]
    assert world.taken() == [4, 5]


async def test_a_run_can_be_looked_at_while_its_map_is_under_way(place: Place) -> None:
    go = asyncio.Event()

    async def wait() -> int:
        await go.wait()
        return 0

    world.gives = {7: wait}
    world.items, world.options = (lambda: range(10)), {"max_concurrency": 1}
    running = asyncio.ensure_future(outputs(place.executor()))
    async with asyncio.timeout(20):
        while 7 not in world.ran or await _durable(place) < 7:  # noqa: ASYNC110 - another process looks
            await asyncio.sleep(0.002)
    assert [(view.step_id, view.status) for view in await place.executor().steps("r1")] == [
        ("tenfold", "STARTED")
    ]
    go.set()
    assert len(await running) == 10
    assert await _durable(place) == 10


async def _durable(place: Place) -> int:
    journal = place.store().journal
    last = await journal.last_segment("r1", "tenfold")
    if place.kind != "memory":
        await journal.close()
    return last.succeeded if last is not None else 0


async def test_a_sync_step_reads_a_result_in_its_thread(place: Place) -> None:
    @step
    def total(batch: MapResult[int]) -> int:
        return sum(batch.outputs)

    @workflow
    async def totals(ctx: Context) -> int:
        return await ctx.step(total, await ctx.map(tenfold, range(1000)))

    assert await outputs(place.executor(), wf=totals) == 4_995_000


async def test_a_result_can_be_mapped_again(place: Place) -> None:
    @step
    async def halved(number: int) -> int:
        return number // 2

    @workflow
    async def chained(ctx: Context) -> Any:
        batch = await ctx.map(tenfold, range(300))
        return sum((await ctx.map(halved, batch.outputs)).outputs)

    assert await outputs(place.executor(), wf=chained) == sum(range(300)) * 5
    assert await outputs(place.executor(), wf=batch_of, run_id="r2") == [0, 10, 20, 30, 40]
