"""A workflow whose steps do what a test says, and that stops after two of them while the world is broken."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from durable_core import Context, DurableWorkflowExecutor, Retry, current_step, step, workflow
from durable_core.errors import RunFailed


class World:
    """What steps do now: a test changes it between the first run and the resumed one."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.gives: dict[str, Callable[[], object]] = {}
        self.broken = False
        self.given: object = 1


world = World()


def gave(name: str) -> Any:
    world.ran.append(current_step().step_id)
    return world.gives.get(name, lambda: name)()


@step
async def one(given: object) -> Any:
    return gave("one")


@step
def two(given: object) -> Any:
    return gave("two")


@step(retry=Retry(max_attempts=5, initial_delay_s=0))
async def retried(given: object) -> Any:
    return gave("retried")


@step
async def three(given: object) -> Any:
    return gave("three")


@workflow
async def flow(ctx: Context, given: Any = 0) -> list[Any]:
    """Stops after its second step for as long as the world is broken."""
    found = [await ctx.step(one, world.given), await ctx.step(two, given)]
    if world.broken:
        raise RuntimeError("as planned")
    return [*found, await ctx.step(three, given)]


@workflow
async def with_retry(ctx: Context) -> list[Any]:
    return [await ctx.step(one, 0), await ctx.step(retried, 0)]


@workflow
async def other_flow(ctx: Context, given: Any = 0) -> Any:
    return await ctx.step(one, given)


async def fails(
    executor: DurableWorkflowExecutor, run_id: str = "r1", wf: Any = flow, **inputs: object
) -> RunFailed:
    with pytest.raises(RunFailed) as caught:
        await executor.run(wf, run_id=run_id, **inputs)
    return caught.value


async def stops_after_two(executor: DurableWorkflowExecutor, **inputs: object) -> None:
    """A run with two committed steps, whose cause of failure is mended afterwards."""
    world.broken = True
    await fails(executor, **inputs)
    world.broken = False
    assert world.ran == ["one", "two"]
    world.ran.clear()


def sql(db: Path, statement: str, *values: object) -> list[Any]:
    with closing(sqlite3.connect(db, isolation_level=None)) as connection:
        return connection.execute(statement, values).fetchall()


def raising(error: Exception) -> Callable[[], object]:
    def give() -> object:
        raise error

    return give
