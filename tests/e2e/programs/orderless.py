"""Five different steps side by side that finish in another order in each process."""

from __future__ import annotations

import asyncio
import os
import random
import signal

from durable_core import Context, DurableWorkflowExecutor, Step, step, workflow
from tests.e2e.programs.witness import body_starts, left, note, noted, reported

NAMES = ("alpha", "beta", "gamma", "delta", "epsilon")
drawn = random.Random()


def _named(name: str) -> Step[[str], object]:
    async def body(folder: str) -> str:
        body_starts(f"{folder}/bodies")
        await asyncio.sleep(drawn.uniform(0.001, 0.01))
        note(f"{folder}/finished", name)
        if left(f"{folder}/killer") is not None and len(noted(f"{folder}/finished")) > 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return name

    return step(name=name, crash_limit=1000)(body)


STEPS = [_named(name) for name in NAMES]


@workflow
async def orderless(ctx: Context, folder: str) -> list[str]:
    return list(await asyncio.gather(*(ctx.step(one, folder) for one in STEPS)))


def main(db: str, run_id: str, folder: str, seed: int) -> int:
    drawn.seed(seed)

    async def run() -> object:
        async with DurableWorkflowExecutor(db_path=db, run_crash_limit=1000) as executor:
            return (await executor.run(orderless, run_id=run_id, folder=folder)).output

    return asyncio.run(reported(folder, run()))
