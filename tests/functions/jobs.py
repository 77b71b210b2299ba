"""Workflows that the functions under test know."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import timedelta
from functools import partial
from typing import Any

import structlog
from pydantic import BaseModel

from durable_core import Context, current_step, step, workflow
from durable_core.workflow import _registered


class Decision(BaseModel):
    ok: bool


@step
async def double(number: int) -> int:
    return number * 2


@step
async def slow(name: str, seconds: float) -> str:
    await asyncio.sleep(seconds)
    return name


@workflow
async def doubled(ctx: Context, numbers: list[int]) -> list[int]:
    return [await ctx.step(double, number) for number in numbers]


@workflow
async def approved(ctx: Context, wait_s: float = 3600) -> bool:
    decision = await ctx.wait_for_event("approval", type=Decision, timeout=timedelta(seconds=wait_s))
    return decision.ok


@workflow
async def sleepy(ctx: Context, seconds: float) -> str:
    await ctx.sleep(seconds)
    return "awake"


@workflow
async def many_slow(ctx: Context, count: int, seconds: float) -> int:
    for n in range(count):
        await ctx.step(slow, f"s{n}", seconds)
    return count


@step
async def refuses() -> None:
    raise ValueError("no")


@workflow
async def naps_and_fails(ctx: Context) -> None:
    await ctx.wait_for_event("go")
    await ctx.step(refuses)


@step
async def length(text: str) -> int:
    return len(text)


@workflow
async def measured(ctx: Context, text: str) -> int:
    return await ctx.step(length, text)


@workflow
async def fails(ctx: Context) -> None:
    await ctx.step(refuses)


@workflow
async def one_slow(ctx: Context, seconds: float) -> str:
    return await ctx.step(slow, "one", seconds)


unblock = threading.Event()


@step
def blocking(seconds: float) -> None:
    unblock.wait(seconds)


@workflow
async def one_blocking(ctx: Context, seconds: float) -> None:
    await ctx.step(blocking, seconds)


witnesses: list[str] = []


@step
async def witnessed_part(number: int, seconds: float) -> int:
    witnesses.append("begin")
    await asyncio.sleep(seconds)
    witnesses.append("end")
    return number


@workflow
async def witnessed(ctx: Context, count: int, seconds: float) -> int:
    for n in range(count):
        await ctx.step(witnessed_part, n, seconds)
    return count


def forget(name: str) -> Any:
    """From now on this process has not defined that workflow, as if an older version of it ran."""
    return _registered.pop(name)


def remember(name: str, forgotten: Any) -> None:
    _registered[name] = forgotten


thaw = threading.Event()
bodies: list[str] = []


def _first() -> bool:
    bodies.append("second" if bodies else "frozen")
    return len(bodies) == 1


@step(name="sleeps")
async def sleeps_async() -> str:
    if _first():
        await asyncio.to_thread(thaw.wait, 30)
    return "done"


@step(name="sleeps")
def sleeps_def() -> str:
    if _first():
        thaw.wait(30)
    return "done"


@step
async def last() -> None:
    bodies.append("last")


@workflow
async def frozen_async(ctx: Context) -> None:
    await ctx.step(sleeps_async)
    await ctx.step(last)


@workflow
async def frozen_def(ctx: Context) -> None:
    await ctx.step(sleeps_def)
    await ctx.step(last)


@step
async def lists() -> list[int]:
    if _first():
        await asyncio.sleep(60)
    return [1, 2]


@step
async def tells(given: list[int]) -> None:
    bodies.append(str(given))


@workflow
async def changes_what_it_was_given(ctx: Context) -> None:
    given = await ctx.step(lists)
    given.append(3)
    for name in ("one", "two"):
        await ctx.wait_for_event(name)
        given.append(4)
    await ctx.step(tells, given)


@step
async def keeps_secret(text: str) -> dict[str, str]:
    structlog.get_logger().info("told by the step")
    current_step().log.info("told by its log")
    return {"kept": text}


@workflow
async def secret(ctx: Context, text: str) -> dict[str, str]:
    ctx.log.info("told by the workflow")
    kept = await ctx.step(keeps_secret, text)
    await ctx.wait_for_event("word")
    batch = await ctx.map(keeps_secret, [f"{text}{n}" for n in range(3)])
    return kept | {"mapped": str(list(batch.outputs))}


@step
async def hogs_the_loop(seconds: float) -> None:
    time.sleep(seconds)  # noqa: ASYNC251 - as bad code does: nothing can stop it but a kill


@workflow
async def hog(ctx: Context, seconds: float) -> None:
    await ctx.step(hogs_the_loop, seconds)


@workflow
async def mapped(ctx: Context, count: int) -> int:
    batch = await ctx.map(double, list(range(count)))
    return batch.succeeded


@workflow
async def shared(ctx: Context, count: int, seconds: float = 0) -> list[str]:
    job = partial(slow, seconds=seconds)
    batch = await ctx.map(
        job, [f"n{n}" for n in range(count)], distribute=True, chunk_size=5, max_concurrency=1
    )
    return list(batch.outputs)
