"""Workflows that run as deployed functions do, for tests of the local cloud."""

from __future__ import annotations

import asyncio
import os
import random
import time
from functools import partial
from pathlib import Path

from durable_core import Context, Done, Jsonl, NotDone, current_step, step, workflow

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


@step(crash_limit=2)  # each costs a time-out and a lease
def overlong(s: float) -> str:
    time.sleep(s)
    return "done"


@step(crash_limit=2)
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


@step
def gather(items: int) -> list[str]:
    return [f"{number}-{random.randbytes(10_000).hex()}" for number in range(items)]


def was_settled(key: str, number: int, file: str) -> Done | NotDone:
    lines = Path(file).read_text("utf-8").splitlines() if Path(file).exists() else []
    return Done(number) if any(line.split()[0] == str(number) for line in lines) else NotDone()


@step(semantics="at_most_once", verify=was_settled)
async def settle(number: int, file: str) -> int:
    note(file, f"{number} {os.getpid()}")
    await asyncio.sleep(0.4)
    return number


async def one_of_many(ctx: Context, item: str, file: str) -> str:
    """Large both ways: items and outputs are in the bucket."""
    await ctx.step(settle, int(item.partition("-")[0]), file)
    return item


@workflow
async def crowd(ctx: Context, items: int, file: str) -> int:
    """A map that workers share; there is more to do in a chunk than fits into an invocation."""
    each = partial(one_of_many, file=file)
    given = await ctx.step(gather, items)
    batch = await ctx.map(each, given, distribute=True, chunk_size=items // 2, max_concurrency=1)
    return batch.succeeded


@step
async def size(word: str) -> int:
    return len(word)


@workflow
async def listed(ctx: Context, manifest: str) -> int:
    """A map that workers share, over a manifest."""
    batch = await ctx.map(size, Jsonl(manifest), distribute=True, chunk_size=2)
    return sum(batch.outputs)


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
