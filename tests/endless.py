"""A map two of whose items take longer than any invocation of a function has."""

from __future__ import annotations

import asyncio
from typing import Any

from durable_core import Context, step, workflow
from tests.stores import TurnedClock


def endless_items(clock: TurnedClock, name: str, *, steps: bool, **how: Any) -> tuple[Any, list[int]]:
    """The workflow, and what it runs the bodies of.

    Args:
        clock: Turned by ten minutes in each of those bodies.
        name: Of the workflow.
        steps: Whether the items have steps of their own.
        how: The map's other options.
    """
    ran: list[int] = []

    @step(crash_limit=3)
    async def endless(number: int) -> int:
        ran.append(number)
        if number < 2:
            clock.turn(600)
            await asyncio.Event().wait()
        return number

    async def part(ctx: Context, number: int) -> int:
        return await ctx.step(endless, number)

    @workflow(name=name)
    async def wf(ctx: Context) -> list[Any]:
        fn = part if steps else endless.with_options(name="part")
        batch = await ctx.map(fn, [0, 1, 2], tolerate_failures=2, **how)
        return [*batch.outputs, *sorted((one.index, one.error["type"]) for one in batch.failures)]

    return wf, ran
