"""A run of many small steps, as fast as it goes, for processes that share one file."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from durable_core import Context, DurableWorkflowExecutor, step, workflow
from tests.e2e.programs.witness import leave, note
from tests.waiting import until


@step
async def bump(number: int) -> int:
    return number + 1


@workflow
async def counting(ctx: Context, steps: int, acks: str | None) -> int:
    total = 0
    for _ in range(steps):
        total = await ctx.step(bump, total)
        if acks is not None:
            note(acks, total)
    return total


def main(db: str, run_id: str, steps: int, folder: str, acks: str | None = None) -> int:
    """Counts as soon as `folder/go` is there; leaves steps per second in `folder/{run_id}.speed`."""

    async def run() -> int:
        async with DurableWorkflowExecutor(db_path=db) as executor:
            until(Path(folder, "go").exists, "the start signal")
            begin = time.perf_counter()
            result = await executor.run(counting, run_id=run_id, steps=steps, acks=acks)
            leave(f"{folder}/{run_id}.speed", str(steps / (time.perf_counter() - begin)))
            return 0 if result.output == steps else 1

    return asyncio.run(run())
