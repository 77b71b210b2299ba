"""Thirty steps: async and `def`, one after another and side by side, small outputs and spilled ones."""

from __future__ import annotations

import asyncio
import hashlib
import time
from typing import Any

from durable_core import Context, DurableWorkflowExecutor, step, workflow
from tests.e2e.programs.witness import body_starts, leave, note

STEPS = 30


@step
async def small(log: str, number: int) -> int:
    body_starts(log)
    await asyncio.sleep(0.002)
    return number + 1


@step
def threaded(log: str, number: int) -> tuple[int, str]:
    body_starts(log)
    time.sleep(0.002)
    return number + 1, hashlib.sha256(str(number).encode()).hexdigest()


@step
def large(log: str, number: int) -> bytes:
    """24 KiB that don't compress: a blob."""
    body_starts(log)
    return b"".join(hashlib.sha256(f"{number}:{part}".encode()).digest() for part in range(768))


@step
async def beside(log: str, number: int) -> int:
    body_starts(log)
    await asyncio.sleep(0.001 * (number % 4))
    return number * 3


@workflow
async def chain(ctx: Context, folder: str) -> dict[str, Any]:
    log, acks = f"{folder}/bodies", f"{folder}/acks"
    total, digest = 0, hashlib.sha256()
    for group in range(STEPS // 6):
        total = await ctx.step(small, log, total)
        note(acks, step_id("small", group))
        total, text = await ctx.step(threaded, log, total)
        note(acks, step_id("threaded", group))
        blob = await ctx.step(large, log, total)
        note(acks, step_id("large", group))
        three = await asyncio.gather(*(ctx.step(beside, log, total + extra) for extra in range(3)))
        for extra in range(3):
            note(acks, step_id("beside", group * 3 + extra))
        total += sum(three)
        digest.update(text.encode() + blob)
    return {"total": total, "digest": digest.hexdigest()}


def step_id(name: str, earlier: int) -> str:
    """The id of a call that was made after so many of the same name."""
    return name if earlier == 0 else f"{name}#{earlier + 1}"


def main(db: str, run_id: str, folder: str) -> int:
    async def run() -> None:
        async with DurableWorkflowExecutor(db_path=db) as executor:
            result = await executor.run(chain, run_id=run_id, folder=folder)
            leave(f"{folder}/output", repr(result.output))

    asyncio.run(run())
    return 0
