"""Processes that want the same runs of one store at the same time."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from pathlib import Path

import psycopg

from durable_core import Context, DurableWorkflowExecutor, RunBusy, step, workflow
from durable_core.records import PENDING
from durable_core.testing.samples import OVER_MS, claim, header
from tests.e2e.programs.witness import body_starts, note, reported
from tests.waiting import until

assert psycopg  # imported before the forks, so that they needn't


@step
async def counted(folder: str, number: int) -> int:
    body_starts(f"{folder}/bodies")
    return number


@workflow
async def three_steps(ctx: Context, folder: str) -> int:
    return sum([await ctx.step(counted, folder, number) for number in (1, 2, 3)])


def main(what: str, url: str, folder: str, number: int, size: int) -> int:
    """Does `what` as soon as `folder/go` is there."""

    async def race() -> int:
        async with DurableWorkflowExecutor(url) as executor:
            note(f"{folder}/ready", number)
            until(Path(folder, "go").exists, "the start signal")
            if what == "start":
                return await reported(folder, _one(executor, folder), f"outcome-{number}")
            if what == "take":
                return await _take(executor, folder, size)
            return await _all(executor, folder, number, size)

    return asyncio.run(race())


async def _one(executor: DurableWorkflowExecutor, folder: str) -> int:
    return (await executor.run(three_steps, run_id="one", wait=True, folder=folder)).output


async def _all(executor: DurableWorkflowExecutor, folder: str, number: int, size: int) -> int:
    """Every run, in an order of its own, eight at a time."""
    runs = [f"r{n}" for n in range(size)]
    random.Random(number).shuffle(runs)

    async def drive(own: list[str]) -> None:
        for run_id in own:
            with suppress(RunBusy):
                assert (await executor.run(three_steps, run_id=run_id, folder=folder)).output == 6

    await asyncio.gather(*(drive(runs[n::8]) for n in range(8)))
    return 0


async def _take(executor: DurableWorkflowExecutor, folder: str, size: int) -> int:
    """Takes the run over again and again, under leases that are over at once, until its fence is `size`."""
    journal = executor.store.journal
    await journal.create(header("one"))
    while (seen := await journal.header("one")) is not None and seen.fence < size:
        owner = f"{random.getrandbits(64):x}"
        reply = await journal.acquire(seen, claim(owner, OVER_MS, status=PENDING))
        if reply.ok:
            note(f"{folder}/fences", seen.fence + 1)
        else:
            assert reply.row is not None
            assert reply.row.owner != owner
    return 0
