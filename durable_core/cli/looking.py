"""`durable list` and `durable show`: what is in a store. They only read."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Final

import typer

from durable_core.cli import output
from durable_core.cli.facts import run_facts
from durable_core.cli.finding import named_store
from durable_core.cli.jsonable import as_document
from durable_core.cli.maps import item_named
from durable_core.cli.options import (  # noqa: TC001 - typer reads the annotations at run time
    AsJson,
    RunId,
    StoreUrl,
)
from durable_core.cli.outcome import CORRUPT
from durable_core.cli.reading import shown, shown_item, shown_step
from durable_core.cli.render import item_text, run_text, runs_table, step_text, value_text
from durable_core.clock import SystemClock
from durable_core.errors import UsageError
from durable_core.identity import check_id
from durable_core.journal.base import RunFilter
from durable_core.records import COMMITTED, LISTED

if TYPE_CHECKING:
    from durable_core.records import RunHeader
    from durable_core.store import Store

_PAGE: Final = 1000
_DEFAULT_LIMIT: Final = 100


def list_runs(
    status: Annotated[
        str | None, typer.Option("--status", metavar="STATUS", help=f"Only these: {', '.join(LISTED)}.")
    ] = None,
    workflow: Annotated[
        str | None, typer.Option("--workflow", metavar="NAME", help="Only runs of this workflow.")
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", min=1, metavar="N", help="The most that are shown.")
    ] = _DEFAULT_LIMIT,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """List runs, newest first.

    A damaged record is marked, and the others are shown all the same; the exit code is then 6.
    """
    if status is not None and status.upper() not in LISTED:
        raise UsageError(f"{status!r} is no status of a run", remedy=f"Use one of: {', '.join(LISTED)}")
    wanted_status = status.upper() if status is not None else None
    wanted_workflow = check_id(workflow, "workflow name") if workflow is not None else None
    headers, more = asyncio.run(_listed(named_store(store), wanted_status, wanted_workflow, limit))
    now_ms = SystemClock().now_ms()
    runs = [run_facts(header, now_ms) for header in headers]
    if as_json:
        for run in runs:
            if run["error"]:
                del run["error"]["traceback"]
        output.write(as_document({"runs": runs, "count": len(runs), "more": more}))
    else:
        output.write(runs_table(runs, more=more))
    if any(run["corrupt"] for run in runs):
        raise typer.Exit(CORRUPT)


def show(
    run_id: RunId,
    step: Annotated[
        str | None,
        typer.Option(
            "--step",
            metavar="ID",
            help="One step, with its output; the beginning of its id is enough. Or one item of a map:"
            " 'extract[12]', or 'extract[KEY]'.",
        ),
    ] = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show a run and its steps, or one step with its output, error and attempts.

    Of a map it tells how many items are done; the steps inside items aren't listed, but --step shows those of
    one item. A damaged record is marked; the exit code is then 6.
    """
    opened = named_store(store)
    if step is None:
        run, steps = asyncio.run(shown(opened, run_id))
        for one in steps:
            if one["error"]:
                del one["error"]["traceback"]
        output.write(as_document({"run": run, "steps": steps}) if as_json else run_text(run, steps))
        damaged = run["corrupt"] or any(one["corrupt"] for one in steps)
    elif (item := item_named(step)) is not None:
        run, found, value, steps = asyncio.run(shown_item(opened, run_id, item))
        if as_json:
            document = {"run_id": run["run_id"], "item": {**found, "output": value}, "steps": steps}
            output.write(as_document(document))
        else:
            text = value_text(value) if found["status"] == COMMITTED else None
            output.write(item_text(run["run_id"], found, text, steps))
        damaged = any(one["corrupt"] for one in steps)
    else:
        run, found, value = asyncio.run(shown_step(opened, run_id, step))
        if as_json:
            output.write(as_document({"run_id": run["run_id"], "step": {**found, "output": value}}))
        else:
            has_output = found["output_hash"] and not found["corrupt"]
            output.write(step_text(run["run_id"], found, value_text(value) if has_output else None))
        damaged = found["corrupt"]
    if damaged:
        raise typer.Exit(CORRUPT)


# ---- Reading ----


async def _listed(
    store: Store, status: str | None, workflow: str | None, limit: int
) -> tuple[list[RunHeader], bool]:
    """The newest headers, and whether there are more."""
    found: list[RunHeader] = []
    journal = store.journal
    try:
        await journal.open(create=False)
        while len(found) <= limit:
            before = (found[-1].created_at, found[-1].run_id) if found else None
            asked = min(_PAGE, limit + 1 - len(found))
            page = await journal.runs(RunFilter(status=status, workflow=workflow, before=before, limit=asked))
            found += page
            if len(page) < asked:
                break
    finally:
        await journal.close()
    return found[:limit], len(found) > limit
