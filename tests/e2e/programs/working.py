"""Workers, and processes that send signals, as a test needs many of them."""

from __future__ import annotations

import asyncio
import contextlib

from durable_core import Context, DurableWorkflowExecutor, step, workflow
from durable_core.errors import RunEnded
from tests.e2e.programs.witness import body_starts, note

STEPS = 4


@step
async def part(folder: str, number: int, seconds: float) -> int:
    body_starts(f"{folder}/bodies")
    await asyncio.sleep(seconds)
    return number


@workflow(name="working_parts")
async def parts(ctx: Context, folder: str, seconds: float) -> int:
    return sum([await ctx.step(part, folder, number, seconds) for number in range(STEPS)])


@step
async def thank(folder: str, answer: str) -> str:
    body_starts(f"{folder}/bodies")
    return f"thanks for {answer}"


@workflow(name="working_asked")
async def asked(ctx: Context, folder: str) -> str:
    return await ctx.step(thank, folder, await ctx.wait_for_event("answer", type=str))


@step
async def awake(folder: str) -> None:
    body_starts(f"{folder}/bodies")


@workflow(name="working_napping")
async def napping(ctx: Context, folder: str, seconds: float) -> None:
    await ctx.sleep(seconds)
    await ctx.step(awake, folder)


def main(db: str, folder: str, task: str, *args: int) -> int:
    try:
        asyncio.run({"serve": _serve, "send": _send, "ask": _ask}[task](db, folder, *args))
    except SystemExit as asked_to_stop:
        return int(asked_to_stop.code or 0)
    return 0


async def _serve(db: str, folder: str, concurrency: int) -> None:
    """Works until it is killed."""
    async with DurableWorkflowExecutor(db_path=db) as executor:
        note(f"{folder}/serving", concurrency)
        await executor.worker(concurrency=concurrency).serve()


async def _ask(db: str, folder: str) -> None:
    """Waits for the answer in its process."""
    async with DurableWorkflowExecutor(db_path=db) as executor:
        note(f"{folder}/asking", 0)
        await executor.run(asked, run_id="r1", folder=folder)


async def _send(db: str, folder: str, first: int, every: int, count: int) -> None:
    """Sends each of its runs its own answer, and that of the next process once more."""
    async with DurableWorkflowExecutor(db_path=db) as executor:
        for n in range(count):
            if n % every in (first, (first + 1) % every):
                with contextlib.suppress(RunEnded):  # the other one was faster, and a worker too
                    await executor.signal(f"r{n}", "answer", f"answer {n}", event_id=f"e{n}")
        note(f"{folder}/sent", first)
