"""Steps that do what a plan says at each start of their body: return, raise, exit the process, or kill it."""

from __future__ import annotations

import asyncio
import os
import signal

from durable_core import Context, DurableWorkflowExecutor, Retry, step, workflow
from durable_core.errors import CrashLimitReached
from tests.e2e.programs.witness import bodies, body_starts, reported


def _act(log: str, plan: list[str], name: str) -> str:
    body_starts(log)
    starts = sum(line.step_id == name for line in bodies(log))
    action = plan[min(starts, len(plan)) - 1]
    if action == "exit":
        os._exit(9)
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if action == "raise":
        raise ValueError("as planned")
    return f"{name} at start {starts}"


@step
async def bad(log: str, plan: list[str]) -> str:
    return _act(log, plan, "bad")


@step(retry=Retry(max_attempts=3, initial_delay_s=0.001))
def moody(log: str, plan: list[str]) -> str:
    return _act(log, plan, "moody")


@step
async def good(log: str, number: int) -> int:
    body_starts(log)
    return number


@workflow
async def deadly(ctx: Context, folder: str, plan: list[str]) -> list[object]:
    log = f"{folder}/bodies"
    first = await ctx.step(good, log, 1)
    return [first, await ctx.step(bad, log, plan), await ctx.step(good, log, 2)]


@workflow
async def forgiving(ctx: Context, folder: str, plan: list[str]) -> list[object]:
    log = f"{folder}/bodies"
    first = await ctx.step(good, log, 1)
    try:
        middle = await ctx.step(bad, log, plan)
    except CrashLimitReached as error:
        middle = error.code
    return [first, middle, await ctx.step(good, log, 2)]


@workflow
async def moodily(ctx: Context, folder: str, plan: list[str]) -> list[object]:
    return [await ctx.step(moody, f"{folder}/bodies", plan)]


WORKFLOWS = {one.name: one for one in (deadly, forgiving, moodily)}


def main(db: str, run_id: str, folder: str, name: str, plan: list[str]) -> int:
    async def run() -> object:
        async with DurableWorkflowExecutor(db_path=db) as executor:
            return (await executor.run(WORKFLOWS[name], run_id=run_id, folder=folder, plan=plan)).output

    return asyncio.run(reported(folder, run()))
