"""A script as people write them: it never closes its executor, and ends well, badly, or by Ctrl-C."""

from __future__ import annotations

import asyncio
import sys

from durable_core import Context, DurableWorkflowExecutor, step, workflow


@step
def quick() -> int:
    return 1


@step
async def endless() -> None:
    print("at its end", flush=True)  # noqa: T201 - what the test waits for
    await asyncio.Event().wait()


@workflow
async def script(ctx: Context, ends: bool) -> int:
    found = await ctx.step(quick)
    if not ends:
        await ctx.step(endless)
    return found


if __name__ == "__main__":
    executor = DurableWorkflowExecutor(db_path=sys.argv[1])
    executor.run_sync(script, run_id="r1", ends=sys.argv[2] != "interrupt")
    print("at its end", flush=True)  # noqa: T201 - as above
    if sys.argv[2] == "error":
        raise ValueError("as planned")
