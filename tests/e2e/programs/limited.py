"""A run in a process that may not do all it wants: no rights, or no room."""

from __future__ import annotations

import asyncio
import os
import resource
import tempfile

from durable_core import Context, DurableWorkflowExecutor, step, workflow
from tests.e2e.programs.witness import body_starts, reported

NOBODY = 65534


@step
async def page(folder: str, number: int, size: int) -> bytes:
    body_starts(f"{folder}/bodies")
    return os.urandom(size)


@workflow
async def pages(ctx: Context, folder: str, count: int, size: int) -> int:
    return sum([len(await ctx.step(page, folder, number, size)) for number in range(count)])


def main(db: str, run_id: str, folder: str, count: int, size: int, limit: str, room_bytes: int = 0) -> int:
    """Runs as somebody without rights (`nobody`), or with files of at most `room_bytes` (`room`)."""
    if limit == "nobody":
        become_nobody()
    if limit == "room":
        resource.setrlimit(resource.RLIMIT_FSIZE, (room_bytes, room_bytes))

    async def run() -> object:
        async with DurableWorkflowExecutor(db_path=db) as executor:
            return (await executor.run(pages, run_id=run_id, folder=folder, count=count, size=size)).output

    return asyncio.run(reported(folder, run()))


def become_nobody() -> None:
    """From now on this process has no rights beyond those of everybody."""
    if os.geteuid() == 0:
        _warm_up()
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)


def _warm_up() -> None:
    """Has everything imported that a run imports late: the interpreter may lie where only root can read."""
    with tempfile.TemporaryDirectory() as folder:
        executor = DurableWorkflowExecutor(db_path=f"{folder}/runs.db")
        executor.run_sync(pages, run_id="r1", folder=folder, count=1, size=10)
        asyncio.run(executor.close())
