"""A run that stops inside its second step until it is let go."""

from __future__ import annotations

import asyncio

from durable_core import Context, DurableWorkflowExecutor, step, workflow
from tests.e2e.programs.witness import body_starts, leave, left, reported
from tests.waiting import LIMIT_S


@step
async def first(folder: str) -> int:
    body_starts(f"{folder}/bodies")
    return 1


@step
async def gate(folder: str) -> str:
    body_starts(f"{folder}/bodies")
    leave(f"{folder}/inside")
    async with asyncio.timeout(LIMIT_S):
        while (told := left(f"{folder}/go")) is None:  # noqa: ASYNC110 - what is waited for comes from another process
            await asyncio.sleep(0.005)
    return told


@step
async def last(folder: str) -> int:
    body_starts(f"{folder}/bodies")
    return 3


@workflow
async def held(ctx: Context, folder: str) -> list[object]:
    return [await ctx.step(first, folder), await ctx.step(gate, folder), await ctx.step(last, folder)]


def main(db: str, run_id: str, folder: str, outcome: str, lease_s: float = 30.0) -> int:
    async def run() -> object:
        async with DurableWorkflowExecutor(db_path=db, lease_s=lease_s) as executor:
            return (await executor.run(held, run_id=run_id, folder=folder)).output

    return asyncio.run(reported(folder, run(), outcome))
