"""A step whose body never comes to an end of its own: it raises, takes too long, or kills its process."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any, Literal

from durable_core import Context, DurableWorkflowExecutor, NotDone, Retry, step, workflow
from tests.e2e.programs.witness import body_starts, reported

Semantics = Literal["at_least_once", "at_most_once"]


def main(db: str, run_id: str, folder: str, semantics: Semantics, ending: str, retries: int) -> int:
    more: dict[str, Any] = {}
    if retries:
        more["retry"] = Retry(max_attempts=1 + retries, initial_delay_s=0)
        if semantics == "at_most_once":
            more["verify"] = lambda _: NotDone()

    @step(semantics=semantics, timeout_s=0.05 if ending == "times out" else None, **more)
    async def hopeless() -> None:
        body_starts(f"{folder}/bodies")
        if ending == "raises":
            raise ValueError("as planned")
        if ending == "is killed":
            os.kill(os.getpid(), signal.SIGKILL)
        await asyncio.Event().wait()

    @workflow(name="budgets")
    async def budgets(ctx: Context) -> None:
        await ctx.step(hopeless)

    async def run() -> object:
        async with DurableWorkflowExecutor(db_path=db) as executor:
            return (await executor.run(budgets, run_id=run_id)).output

    return asyncio.run(reported(folder, run()))
