"""Maps whose run is taken over in the middle: no item is lost or doubled, and no rightful owner fenced."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from functools import partial

from durable_core import Context, step, workflow
from durable_core.clock import rfc3339
from durable_core.engine.batch_log import filled
from durable_core.identity import input_hash
from durable_core.outcomes import OUTPUT, Outcome
from durable_core.records import TOMBSTONE, Segment
from durable_core.testing.fake_clock import START_MS
from tests.concurrency.actors import drives, effect
from tests.concurrency.promises import RUN
from tests.concurrency.scenarios import FOREVER, STANDARD, header_of, run_it, workers
from tests.concurrency.simulation import Scenario, World


@step(crash_limit=FOREVER)
async def item(number: int) -> str:
    return await effect(f"item {number}")


@workflow
async def mapped(ctx: Context) -> list[str]:
    return list((await ctx.map(item, (0, 1), max_concurrency=1)).outputs)


@workflow
async def mapped_together(ctx: Context) -> list[str]:
    return list((await ctx.map(item, (0, 1), max_concurrency=2)).outputs)


@step(crash_limit=FOREVER)
async def part(number: int) -> str:
    return await effect(f"part {number}")


async def item_of_steps(ctx: Context, number: int) -> str:
    return await ctx.step(part, number) + await ctx.step(item, number)


@workflow
async def mapped_steps(ctx: Context) -> list[str]:
    return list((await ctx.map(item_of_steps, (0, 1), max_concurrency=2)).outputs)


def reused_map(world: World) -> None:
    """The id of a pruned run is used again, and a late segment of its earlier life has come to lie there."""
    world.journal.headers[RUN] = replace(header_of(mapped), status=TOMBSTONE, fence=3, base_fence=3)
    world.journal.logs[RUN, "item", 0, 0] = old_segment(fence=2)
    for name in "AB":
        world.process(name, lambda process: drives(process, partial(run_it, process, mapped, None)))


def old_segment(fence: int) -> Segment:
    """Of an earlier life of the run's id, with the same items."""
    marks = [input_hash("item", (number,), {})[:16] for number in range(2)]
    lines = [Outcome(number, marks[number], 1, OUTPUT, None, b'"old"').line() for number in range(2)]
    empty = Segment(
        RUN, "item", 0, 0, "old.segment", fence, items=2, succeeded=2, written_at=rfc3339(START_MS)
    )
    return filled(empty, lines)


MAP_SCENARIOS = (
    Scenario(name="map", prepare=workers(mapped, "AB"), steps=("item",), budgets=STANDARD),
    Scenario(
        name="map, two at a time",
        prepare=workers(mapped_together, "AB"),
        steps=("item",),
        budgets=({"crash": 1, "lost": 1}, {"skew": 1, "late": 1}, {"vanish": 1, "outage": 1}, {"crash": 2}),
    ),
    Scenario(
        name="map, three owners",
        prepare=workers(mapped, "ABC"),
        steps=("item",),
        budgets=({"skew": 2}, {"crash": 1, "skew": 1}, {"vanish": 2}, {"step": 1, "crash": 1, "lost": 1}),
    ),
    Scenario(
        name="map of steps",
        prepare=workers(mapped_steps, "AB"),
        steps=("item_of_steps",),
        budgets=({"crash": 1}, {"skew": 1}, {"lost": 1}),
        extra=2,
    ),
    Scenario(
        name="map, hand-over",
        prepare=workers(mapped, "AB", deadline=timedelta(minutes=1)),
        steps=("item",),
        budgets=({"alarm": 2}, {"alarm": 1, "lost": 1}, {"alarm": 1, "skew": 1}),
    ),
    Scenario(
        name="map, reuse",
        prepare=reused_map,
        steps=("item",),
        budgets=({}, {"lost": 1, "crash": 1}, {"late": 1}, {"skew": 1}),
    ),
)
