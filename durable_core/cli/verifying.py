"""`durable verify`: looks for damage, repairs what is safe to repair, and tells root hashes."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING, Annotated, Any

import typer

from durable_core.cli import output
from durable_core.cli.finding import complete_run_id, named_store
from durable_core.cli.jsonable import as_document
from durable_core.cli.options import AsJson, StoreUrl, set_up_logging
from durable_core.cli.outcome import CORRUPT
from durable_core.engine.executor import DurableWorkflowExecutor
from durable_core.errors import CorruptRecord, RunNotFound, UsageError

if TYPE_CHECKING:
    from durable_core.engine.findings import Finding, VerifiedRun, VerifyReport
    from durable_core.journal.base import Journal

Document = dict[str, Any]


def verify(
    run_ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="RUN_ID", help="These runs; the beginning of an id is enough."),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="All runs, and what is left of others.")] = False,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair",
            help="Delete what belongs to nothing any more, once it is a day old. Nothing else is safe.",
        ),
    ] = False,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Look for damage: in each record and output, and in what they say of each other.

    Tells each run's root hash, which is the same for its copy in another store. One damaged record hides no
    other. Exit code 6 if damage is left; what merely belongs to nothing any more is no damage.

    Example: durable verify --all --repair
    """
    set_up_logging(None, None)
    if bool(run_ids) is every:
        raise UsageError("nothing says which runs are meant", remedy="Give run ids, or --all")
    report = asyncio.run(_verified(store, run_ids, repair=repair, tells=not as_json))
    damaged = sum(not run.is_sound for run in report.runs)
    if as_json:
        runs = [_document(run) for run in report.runs]
        output.write(as_document({"runs": runs, "count": len(runs), "damaged": damaged}))
    elif every:
        output.tell(f"{len(report.runs)} verified, {damaged} damaged")
    if damaged:
        raise typer.Exit(CORRUPT)


# ---- Doing it ----


async def _verified(url: str | None, given: list[str] | None, *, repair: bool, tells: bool) -> VerifyReport:
    executor = DurableWorkflowExecutor(named_store(url))
    try:
        await executor.store.journal.open(create=False)
        journal, where = executor.store.journal, executor.store.url
        ids = [await _meant(journal, one, where) for one in given] if given else None
        return await executor.verify(
            ids,
            repair=repair,
            on_run=_tell_run if tells else None,
            on_repair=_tell_repair if tells else None,
        )
    finally:
        await executor.close()


async def _meant(journal: Journal, given: str, where: str) -> str:
    """The id of a run; as given, if its header is damaged or gone."""
    try:
        return await complete_run_id(journal, given, where)
    except (CorruptRecord, RunNotFound):
        return given


# ---- Telling it ----


def _tell_repair(found: Finding) -> None:
    """Before it is done."""
    output.write(f"{output.clean(found.run_id)}: {output.clean(found.repair)}\n")


def _tell_run(run: VerifiedRun) -> None:
    state = "sound" if run.is_sound else f"{run.damaged} damaged"
    amounts = ", ".join(
        _number(count, name)
        for count, name in (
            (run.steps, "step"),
            (run.segments, "segment"),
            (run.events, "event"),
            (run.blobs, "blob"),
            (run.checkpoints, "checkpoint"),
        )
        if count or name == "step"
    )
    output.write(f"{output.clean(run.run_id)}: {(run.status or 'no run').lower()}, {state} ({amounts})\n")
    if run.root_hash is not None:
        output.write(f"  root hash  {run.root_hash}\n")
    for found in run.findings:
        named = "" if found.where is None else f" {found.where}:"
        done = " (repaired)" if found.is_repaired else ""
        output.write(
            f"  {found.severity:<8}  {found.kind:<20}{output.clean(f'{named} {found.message}')}{done}\n"
        )
    told = run.damaged + run.leftovers + run.notices
    if told > len(run.findings):
        output.write(f"  and {told - len(run.findings)} more\n")


def _number(count: int, of: str) -> str:
    return f"{count} {of}{'s' * (count != 1)}"


def _document(run: VerifiedRun) -> Document:
    return {**dataclasses.asdict(run), "is_sound": run.is_sound}
