"""What a shell offers at the tab key: ids of runs in the store. It never fails, and never waits for long."""

from __future__ import annotations

import asyncio
from typing import Final

import typer  # noqa: TC002 - typer reads the annotations at run time

from durable_core.cli.finding import named_store
from durable_core.errors import DurableError
from durable_core.identity import check_id
from durable_core.journal.base import RunFilter

_OFFERED: Final = 50
_PATIENCE_S: Final = 2.0


def runs_beginning(ctx: typer.Context, incomplete: str) -> list[str]:
    """Ids of the newest runs that begin so; none where the store can't be read, which the command tells."""
    try:
        if incomplete:
            check_id(incomplete, "run id")
        return asyncio.run(asyncio.wait_for(_beginning(ctx.params.get("store"), incomplete), _PATIENCE_S))
    except (DurableError, TimeoutError):
        return []


async def _beginning(url: str | None, incomplete: str) -> list[str]:
    store = named_store(url)
    try:
        await store.journal.open(create=False)
        found = await store.journal.runs(RunFilter(prefix=incomplete or None, limit=_OFFERED))
    finally:
        await store.close()
    return [header.run_id for header in found]
