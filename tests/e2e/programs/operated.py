"""Runs of every sort: `python operated.py URL` leaves them in a store, and dies in the last."""

from __future__ import annotations

import contextlib
import os
import signal
import sys

from durable_core import (
    CheckpointingConfig,
    Context,
    DurableWorkflowExecutor,
    configure_logging,
    get_checkpointer,
    step,
    workflow,
)
from durable_core.errors import RunFailed


@step
async def bill(customer: str) -> str:
    return f"billed {customer}"


@step
async def refuse(customer: str) -> str:
    raise ConnectionError(f"the line to {customer} is dead")


async def extract(n: int) -> int:
    if n == 3:
        raise ValueError("no title")
    return n


async def part(ctx: Context, customer: str) -> str:
    return await ctx.step(bill, customer)


@workflow
async def month(ctx: Context, customer: str = "ann") -> int:
    await ctx.parallel(ctx.branch(part, customer), ctx.branch(part, "bob"))
    return (await ctx.map(extract, range(6), tolerate_failures=1)).succeeded


@workflow
async def refused(ctx: Context) -> str:
    await ctx.step(bill, "ann")
    return await ctx.step(refuse, "bob")


@workflow
async def approved(ctx: Context) -> bool:
    await ctx.step(bill, "ann")
    return await ctx.wait_for_event("approval", type=bool)


@step(semantics="at_most_once")
async def deadly() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@workflow
async def dying(ctx: Context) -> None:
    await ctx.step(bill, "ann")
    await ctx.step(deadly)


def main(url: str) -> None:
    configure_logging(level="critical")
    saver = get_checkpointer(CheckpointingConfig(enabled=True), store=url)
    for n in range(3):
        saver.save("crew-1", "researcher", f"look-{n}", {"n": n})
    saver.close()
    executor = DurableWorkflowExecutor(store=url)
    executor.run_sync(month, run_id="may")
    executor.run_sync(month, run_id="june-1")
    with contextlib.suppress(RunFailed):
        executor.run_sync(refused, run_id="june-2")
    executor.run_sync(approved, run_id="july", on_wait="suspend")
    executor.run_sync(dying, run_id="august")


if __name__ == "__main__":
    main(sys.argv[1])
