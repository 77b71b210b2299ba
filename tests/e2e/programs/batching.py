"""Maps over many items in a process that is killed, or that an item kills."""

from __future__ import annotations

import asyncio
import functools
import os
from typing import Any

from durable_core import Context, DurableWorkflowExecutor, Jsonl, MapResult, step, workflow
from tests.e2e.programs.witness import note, reported
from tests.system import peak_kib

CONCURRENCY = 32


@step
async def counted(folder: str, item: int) -> int:
    note(f"{folder}/bodies", item)
    await asyncio.sleep(0)
    return item * 3


def uneven_ms(item: int, most_ms: int) -> float:
    """1 ms for most, up to the most for a few."""
    return 1 + (item * item * 7919 % 1000) / 1000 * most_ms * (item % 10 == 0)


def is_unlucky(item: int) -> bool:
    return item % 100 == 37


@step
async def uneven(folder: str, most_ms: int, poison: list[int], item: int) -> int:
    note(f"{folder}/bodies", item)
    await asyncio.sleep(uneven_ms(item, most_ms) / 1000)
    if item in poison:
        os._exit(9)
    if is_unlucky(item):
        raise ValueError(f"no {item}")
    return item * 3


@step
async def unhurried(folder: str, item: int) -> int:
    note(f"{folder}/bodies", item)
    await asyncio.sleep(0.002)
    note(f"{folder}/finished", item)
    return item * 3


@step
async def fetch(folder: str, item: int) -> int:
    note(f"{folder}/fetched", item)
    await asyncio.sleep(0.001)
    return item


@step
async def score(folder: str, poison: list[int], item: int) -> int:
    note(f"{folder}/bodies", item)
    await asyncio.sleep(0.001)
    if item in poison:
        os._exit(9)
    return item * 3


@workflow
async def many(ctx: Context, folder: str, items: int) -> MapResult[int]:
    return await ctx.map(functools.partial(counted, folder), range(items), max_concurrency=CONCURRENCY)


@workflow
async def from_manifest(ctx: Context, folder: str, items: int) -> MapResult[int]:
    manifest = Jsonl(f"{folder}/items.jsonl", type=int)
    return await ctx.map(functools.partial(counted, folder), manifest, max_concurrency=CONCURRENCY)


@workflow
async def calmly(ctx: Context, folder: str, items: int) -> MapResult[int]:
    """Finished items wait for others as long as they may: a stop must not."""
    fn = functools.partial(unhurried, folder)
    return await ctx.map(fn, range(items), max_concurrency=CONCURRENCY, linger_ms=60_000)


@workflow
async def poisoned(ctx: Context, folder: str, items: int, most_ms: int, poison: list[int]) -> list[Any]:
    batch = await ctx.map(
        functools.partial(uneven, folder, most_ms, poison),
        range(items),
        max_concurrency=CONCURRENCY,
        tolerate_failures=0.5,
    )
    return [batch.succeeded, batch.failed, [(one.index, (one.error or {})["code"]) for one in batch.failures]]


@workflow
async def poisoned_inside(ctx: Context, folder: str, items: int, poison: list[int]) -> list[Any]:
    async def each(ctx: Context, item: int) -> int:
        return await ctx.step(score, folder, poison, await ctx.step(fetch, folder, item))

    batch = await ctx.map(each, range(items), max_concurrency=CONCURRENCY, tolerate_failures=len(poison))
    return [batch.succeeded, batch.failed, [(one.index, (one.error or {})["code"]) for one in batch.failures]]


WORKFLOWS = {one.name: one for one in (many, from_manifest, calmly, poisoned, poisoned_inside)}


def main(db: str, run_id: str, folder: str, name: str, inputs: dict[str, Any]) -> int:
    """Drives the run; leaves what came of it, and how much memory that took at the most."""

    async def run() -> object:
        async with DurableWorkflowExecutor(db_path=db) as executor:
            output = (await executor.run(WORKFLOWS[name], run_id=run_id, folder=folder, **inputs)).output
            if isinstance(output, MapResult):
                note(f"{folder}/peak", peak_kib())
                output = [output.total, in_order(output), output.outputs[-1]]
            return output

    try:
        return asyncio.run(reported(folder, run()))
    except SystemExit as error:
        return int(str(error.code))


def in_order(batch: MapResult[int]) -> bool:
    """Whether the outputs that are read back are those of the items, in order."""
    return all(one.index == at and one.output == at * 3 for at, one in enumerate(batch.iter()))
