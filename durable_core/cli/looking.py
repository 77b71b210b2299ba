"""`durable list` and `durable show`: what is in a store. They only read."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from durable_core.cli import output
from durable_core.cli.facts import run_facts, step_facts
from durable_core.cli.finding import complete_run_id, complete_step_id, named_store
from durable_core.cli.jsonable import as_document, jsonable
from durable_core.cli.options import (  # noqa: TC001 - typer reads the annotations at run time
    AsJson,
    RunId,
    StoreUrl,
)
from durable_core.cli.outcome import CORRUPT
from durable_core.cli.render import run_text, runs_table, step_text, value_text
from durable_core.clock import SystemClock
from durable_core.codec_restore import RAW, Restorer
from durable_core.engine.looking import begun
from durable_core.engine.values import Values
from durable_core.errors import CorruptRecord, RunNotFound, StepNotFound, UsageError
from durable_core.identity import check_id
from durable_core.journal.base import RunFilter
from durable_core.records import JOIN_KIND, LISTED

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from durable_core.cli.facts import Document
    from durable_core.records import RunHeader, StepRecord
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
            "--step", metavar="ID", help="One step, with its output; the beginning of its id is enough."
        ),
    ] = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show a run and its steps, or one step with its output, error and attempts.

    A damaged record is marked; the exit code is then 6.
    """
    opened = named_store(store)
    if step is None:
        run, steps = asyncio.run(_shown(opened, run_id))
        for one in steps:
            if one["error"]:
                del one["error"]["traceback"]
        output.write(as_document({"run": run, "steps": steps}) if as_json else run_text(run, steps))
        damaged = run["corrupt"] or any(one["corrupt"] for one in steps)
    else:
        run, found, value = asyncio.run(_shown_step(opened, run_id, step))
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


async def _shown(store: Store, given: str) -> tuple[Document, list[Document]]:
    try:
        header, run = await _run(store, given)
        records = [record async for record in _records(store, header)]
    finally:
        await store.journal.close()
    return run, [step_facts(record, run) for record in sorted(records, key=begun)]


async def _shown_step(store: Store, given: str, given_step: str) -> tuple[Document, Document, Any]:
    try:
        header, run = await _run(store, given)
        known = [record.step_id async for record in _records(store, header)]
        step_id = complete_step_id(known, given_step, header.run_id)
        record = await store.journal.step(header.run_id, step_id)
        if record is None:
            raise StepNotFound("the step was removed meanwhile", run_id=header.run_id, step_id=step_id)
        step, value = step_facts(record, run), None
        if record.output_hash is not None:
            try:
                value = await _output(store, record)
            except CorruptRecord as error:
                step["corrupt"] = "; ".join(filter(None, (step["corrupt"], error.message)))
    finally:
        await store.journal.close()
        await store.blobs.close()
    return run, step, value


async def _run(store: Store, given: str) -> tuple[RunHeader, Document]:
    await store.journal.open(create=False)
    run_id = await complete_run_id(store.journal, given, store.url)
    header = await store.journal.header(run_id)
    if header is None:
        raise RunNotFound("the run was removed meanwhile", run_id=run_id)
    return header, run_facts(header, SystemClock().now_ms())


async def _records(store: Store, header: RunHeader) -> AsyncIterator[StepRecord]:
    """The records of this life of the run, without their outputs: memory must not depend on these."""
    async for page in store.journal.steps(header.run_id):
        for record in page:
            if record.kind != JOIN_KIND and _is_of_this_life(record, header):
                yield record._replace(output_data=None)


def _is_of_this_life(record: StepRecord, header: RunHeader) -> bool:
    try:
        return record.fence > header.base_fence
    except TypeError:  # a damaged column: the record is shown, and marked
        return True


async def _output(store: Store, record: StepRecord) -> Any:
    """The output as plain data: the classes in it need not be there, and none of their code is run."""
    raw = await Values(store.blobs).load(
        record.codec, record.output_data, record.output_ref, record.output_size, record.output_hash
    )
    stored = raw.decode("ascii", "replace")
    try:
        return jsonable(Restorer(RAW).read(stored))
    except CorruptRecord:  # a set of models, say: as plain data it is no set
        try:
            return json.loads(stored)
        except ValueError as error:
            raise CorruptRecord(f"the output is no JSON: {error}", step_id=record.step_id) from error
