"""durable-core on SQLite, asked in the same way as its peers: two drivers of one run."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from answering import answer, note

from durable_core import Context, DurableWorkflowExecutor, configure_logging, step, workflow
from durable_core.errors import DurableError

_log = ""


@step
def draw(index: int) -> str:
    """A body that leaves a line."""
    note(_log, index)
    return "x" * 198


@workflow
async def sequential(ctx: Context, steps: int) -> int:
    """Steps one after the other."""
    return sum([len(await ctx.step(draw, index)) for index in range(steps)])


def drive(path: str, steps: int, log: str) -> dict[str, Any]:
    """Drives a run that another process may be driving, too; each body leaves a line."""
    global _log
    _log = log

    async def run() -> str:
        async with DurableWorkflowExecutor(db_path=path) as executor:
            try:
                await executor.run(sequential, run_id="probe", steps=steps)
            except DurableError as error:
                return type(error).__name__
        return ""

    return {"error": asyncio.run(run())}


if __name__ == "__main__":
    configure_logging(level="critical")
    answer("durable-core", "WAL, one fsync a step", {"drive": drive})
