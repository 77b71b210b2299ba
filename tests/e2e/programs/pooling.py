"""A map that several workers share, in processes that a test kills."""

from __future__ import annotations

import asyncio

from durable_core import Context, DurableWorkflowExecutor, step, workflow
from tests.e2e.programs.witness import body_starts, note

AT_A_TIME = 4
ITEM_S = 0.02


@step
async def pooled(item: list[str]) -> str:
    folder, name = item
    body_starts(f"{folder}/bodies")
    await asyncio.sleep(ITEM_S)
    return name


@workflow(name="pooling")
async def pool(ctx: Context, folder: str, count: int, chunk_size: int) -> int:
    items = [[folder, f"item {n}"] for n in range(count)]
    batch = await ctx.map(
        pooled, items, distribute=True, chunk_size=chunk_size, max_concurrency=AT_A_TIME, collect=False
    )
    return batch.succeeded


def main(url: str, folder: str, concurrency: int) -> int:
    """Works until it is killed."""
    asyncio.run(_serve(url, folder, concurrency))
    return 0


async def _serve(url: str, folder: str, concurrency: int) -> None:
    async with DurableWorkflowExecutor(url, lease_s=5) as executor:
        note(f"{folder}/serving", concurrency)
        await executor.worker(concurrency=concurrency).serve()
