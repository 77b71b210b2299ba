"""Looking at a store as somebody who may only read it: by the executor, and by the command line."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

from durable_core import Context, DurableError, DurableWorkflowExecutor, step, workflow
from durable_core.cli.app import execute
from durable_core.journal.sqlite import SqliteJournal
from tests.e2e.programs.limited import become_nobody
from tests.e2e.programs.witness import leave
from tests.waiting import until


@step
async def page(number: int, size: int) -> str:
    return f"{number}".ljust(size, ".")


@workflow
async def book(ctx: Context, size: int) -> int:
    return sum([len(await ctx.step(page, number, size)) for number in range(3)])


async def seen(executor: DurableWorkflowExecutor) -> dict[str, Any]:
    """What every way of looking finds."""
    return {
        "runs": [(run.run_id, run.status) for run in await executor.list()],
        "status": (await executor.get("r1")).status,
        "steps": {
            view.step_id: len(str(await view.output()))
            for view in await executor.steps("r1")
            if view.status == "COMMITTED"
        },
    }


async def refused(call: Awaitable[object]) -> str | None:
    try:
        await call
    except DurableError as error:
        return f"{error.code}: {error}"
    return None


def main(db: str, folder: str, then: str = "") -> int:
    """Leaves what it saw and which writes were refused.

    Then it looks again when `again` is there (`again`), or gives itself the right to write (`mend`).
    """
    become_nobody()
    url = f"sqlite:///{db}"

    assert not os.access(db, os.W_OK)

    async def look() -> dict[str, Any]:
        executor = DurableWorkflowExecutor(store=url)
        found: dict[str, Any] = {"first": await seen(executor)}
        if then == "again":
            leave(f"{folder}/looked")
            await asyncio.to_thread(until, Path(folder, "again").exists, "the second look")
            found["second"] = await seen(executor)
        found["refused"] = [
            await refused(call)
            for call in (
                executor.run(book, run_id="r2", size=1),
                executor.start(book, run_id="r3", size=1),
                executor.resume("waits", book),
                executor.cancel("waits"),
            )
        ]
        if then == "mend":
            for path, rights in ((Path(db).parent, 0o755), (Path(db), 0o644)):
                await asyncio.to_thread(path.chmod, rights)
            found["mended"] = (await executor.resume("waits", book)).output
        await executor.close()
        return found

    found = asyncio.run(look())
    shown = [["list"], ["show", "r1"], ["show", "r1", "--step", "page"], ["show", "nothing"]]
    reader = SqliteJournal(Path(db)).open_reader()  # of a map's outputs, for plain code
    found["segments"] = len(reader.read("segments", "m", 0, 0, 9))
    reader.close()
    found["codes"] = [execute([*command, "--store", url]) for command in shown]
    leave(f"{folder}/seen", json.dumps(found))
    return 0
