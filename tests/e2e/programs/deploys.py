"""Runs that are stopped from outside, or stop their process themselves; started in processes of their own."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

from durable_core import Context, DurableWorkflowExecutor, SyncContext, current_step, step, workflow
from durable_core.errors import StepFailed
from tests.e2e.programs.witness import body_starts, note

STEPS = 24
SIBLINGS = 50


@step
async def slow(folder: str, number: int) -> int:
    body_starts(f"{folder}/bodies")
    await asyncio.sleep(0.02)
    return number


@step
def threaded(folder: str, number: int) -> int:
    body_starts(f"{folder}/bodies")
    time.sleep(0.02)
    return number


@workflow
async def deploys(ctx: Context, folder: str) -> int:
    total = 0
    for number in range(0, STEPS, 4):
        total += await ctx.step(slow, folder, number)
        total += await ctx.step(threaded, folder, number + 1)
        total += sum(
            await asyncio.gather(ctx.step(slow, folder, number + 2), ctx.step(threaded, folder, number + 3))
        )
    return total


@workflow
def plain_deploys(ctx: SyncContext, folder: str) -> int:
    total = 0
    for number in range(0, STEPS, 2):
        total += ctx.step(slow, folder, number)
        total += ctx.step(threaded, folder, number + 1)
    return total


@step
async def sibling(folder: str, number: int) -> int:
    body_starts(f"{folder}/bodies")
    await asyncio.sleep(0.001)
    if number == SIBLINGS // 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


@workflow
async def poisoned(ctx: Context, folder: str) -> list[str]:
    calls = [ctx.step(sibling, folder, number) for number in range(SIBLINGS + 1)]
    found = await asyncio.gather(*calls, return_exceptions=True)
    return [f"{one.code} {one.step_id}" for one in found if isinstance(one, StepFailed)]


@step
def stubborn(folder: str) -> str:
    body_starts(f"{folder}/bodies")
    if not Path(folder, "let-go").exists():
        Path(folder, "let-go").touch()
        time.sleep(0.6)
    return "done"


@workflow
async def outlasts(ctx: Context, folder: str) -> str:
    return await ctx.step(stubborn, folder)


@step
async def ends_soon() -> None:
    await asyncio.sleep(0)


@workflow
async def short(ctx: Context) -> None:
    await ctx.step(ends_soon)


@step
async def waits(folder: str) -> str:
    body_starts(f"{folder}/bodies")
    if current_step().attempt == 1:
        note(f"{folder}/inside", 1)
        await asyncio.Event().wait()
    return "done"


@workflow
async def long(ctx: Context, folder: str) -> str:
    return await ctx.step(waits, folder)


WORKFLOWS: dict[str, Any] = {
    "deploys": deploys,
    "plain_deploys": plain_deploys,
    "poisoned": poisoned,
    "outlasts": outlasts,
}


def main(name: str, folder: str, grace_s: float = 10.0) -> None:
    """Runs one of them to its end, or to the end of this process."""

    async def run() -> None:
        async with DurableWorkflowExecutor(db_path=f"{folder}/runs.db", grace_s=grace_s) as executor:
            result = await executor.run(WORKFLOWS[name], run_id="r1", folder=folder)
            note(f"{folder}/outcome", result.output)

    asyncio.run(run())


def two_at_once(folder: str) -> None:
    """Runs `long`, and beside it a run that was there first and has ended when `long` is inside its step."""

    async def run() -> None:
        async with DurableWorkflowExecutor(db_path=f"{folder}/runs.db") as executor:
            first = asyncio.ensure_future(executor.run(short, run_id="r0"))
            await asyncio.sleep(0)
            other = asyncio.ensure_future(executor.run(long, run_id="r1", folder=folder))
            await first
            note(f"{folder}/first-is-over", 1)
            await other

    asyncio.run(run())
