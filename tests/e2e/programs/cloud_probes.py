"""Workflows that run as deployed functions do, for tests of the local cloud."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from durable_core import Context, current_step, step, workflow

MARKER = "marker-in-an-output-5581"


def note(file: str, text: str) -> None:
    """One line, whole, however many processes write."""
    with Path(file).open("a", encoding="utf-8") as lines:
        lines.write(f"{text}\n")


@step(timeout_s=60)
async def lap(number: int, file: str) -> int:
    """Quick, but it says that it may take longer than an invocation: only one is begun in each."""
    note(file, f"{number} {current_step().idempotency_key} {os.getpid()}")
    return number


@workflow
async def relay(ctx: Context, laps: int, file: str) -> int:
    """One hand-over for each lap."""
    done = [await ctx.step(lap, number, file) for number in range(laps)]
    return sum(done)


@step
def overlong(s: float) -> str:
    time.sleep(s)
    return "done"


@step
async def blocking(s: float) -> str:
    time.sleep(s)  # noqa: ASYNC251 - it is to hold up everything in its process
    return "done"


@workflow
async def hopeless(ctx: Context, s: float, *, blocks: bool = False) -> str:
    """Its step takes longer than a function may."""
    return await ctx.step(blocking if blocks else overlong, s)


@step
async def pause(number: int, s: float, file: str) -> int:
    note(file, f"{number} {current_step().idempotency_key}")
    await asyncio.sleep(s)
    return number


@workflow
async def stroll(ctx: Context, steps: int, s: float, file: str) -> int:
    """Some steps that take their time."""
    return sum([await ctx.step(pause, number, s, file) for number in range(steps)])


@step(semantics="at_most_once")
def confide(secret: str) -> dict[str, str]:
    return {"secret": secret, "own": MARKER}


@step
def read_back(told: dict[str, str]) -> str:
    return told["own"]


@workflow
async def discreet(ctx: Context, secret: str) -> str:
    """Handles what must be in no log."""
    told = await ctx.step(confide, secret)
    answer: str = await ctx.wait_for_event("answer", type=str)
    return await ctx.step(read_back, told) + answer
