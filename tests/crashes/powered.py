"""Runs a workflow, and says which outcomes it was told of, in the order in which it wrote to its files."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from durable_core import Context, DurableWorkflowExecutor, configure_logging, step, workflow
from tests.crashes.acts import noise

STEPS = 6


@step
async def small(number: int) -> int:
    return number + 1


@step
async def large(number: int) -> bytes:
    return noise(number)


@step
async def item(number: int) -> int:
    return number


@workflow
async def powered(ctx: Context, acks: str) -> int:
    for number in range(STEPS):
        await ctx.step(small, number)
        acknowledged(acks, "small" if number == 0 else f"small#{number + 1}")
    await ctx.step(large, 1)
    acknowledged(acks, "large")
    batch = await ctx.map(item, range(8), max_concurrency=4)
    acknowledged(acks, "item")
    return batch.succeeded


def acknowledged(acks: str, step_id: str) -> None:
    """In one write, which is seen among those to the store."""
    file = os.open(acks, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(file, f"{step_id}\n".encode())
    os.close(file)


def main(folder: str) -> None:
    async def run() -> None:
        async with DurableWorkflowExecutor(db_path=Path(folder, "runs.db")) as executor:
            await executor.run(powered, run_id="r1", acks=f"{folder}/acks")
            acknowledged(f"{folder}/acks", "the end")

    configure_logging(level="critical")
    asyncio.run(run())


if __name__ == "__main__":
    main(sys.argv[1])
