"""`durable prune`: shows which runs go, asks, and deletes them."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import sys
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from durable_core.cli import output
from durable_core.cli.ages import parse_age
from durable_core.cli.completing import runs_beginning
from durable_core.cli.finding import complete_run_id, named_store
from durable_core.cli.jsonable import as_document
from durable_core.cli.options import AsJson, StoreUrl, set_up_logging
from durable_core.cli.outcome import BUSY, CORRUPT, DONE
from durable_core.cli.render import moment, size
from durable_core.cli.tables import Column, table
from durable_core.engine.executor import DurableWorkflowExecutor
from durable_core.engine.retention import PRUNABLE, PruneReport, rules
from durable_core.errors import UsageError
from durable_core.records import CORRUPT as CORRUPT_RUN

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from durable_core.engine.pruning import LeftRun, PrunedRun
    from durable_core.engine.sweeping import SweepReport

_COLUMNS: Final = (
    Column("run", folds=True),
    Column("workflow", folds=True, from_width=110),
    Column("status"),
    Column("ended", from_width=80),
    Column("records", right=True),
    Column("blobs", right=True),
    Column("size", right=True, from_width=70),
)

Document = dict[str, Any]


def prune(
    run_ids: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN_ID",
            help="These runs; the beginning of an id is enough.",
            autocompletion=runs_beginning,
        ),
    ] = None,
    older_than: Annotated[
        str | None,
        typer.Option("--older-than", metavar="AGE", help="Only runs that ended so long ago: 30d, 12h, 2w."),
    ] = None,
    keep: Annotated[
        int | None,
        typer.Option("--keep", min=0, metavar="N", help="The newest N of each workflow stay, however old."),
    ] = None,
    status: Annotated[
        list[str] | None,
        typer.Option("--status", metavar="STATUS", help=f"Only these: {', '.join(PRUNABLE)}. Repeatable."),
    ] = None,
    workflow: Annotated[
        str | None, typer.Option("--workflow", metavar="NAME", help="Only runs of this workflow.")
    ] = None,
    damaged: Annotated[
        bool,
        typer.Option(
            "--damaged", help="Also those of the named runs whose header can't be read, over or not."
        ),
    ] = False,
    sweep: Annotated[
        bool,
        typer.Option(
            "--sweep", help="Also take what runs pruned a day ago and dead processes left; alone, only that."
        ),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would go.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Don't ask.")] = False,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Delete runs that are over, with their steps and outputs; what goes is shown first.

    A run goes if all conditions given let it go. One that isn't over is left alone: cancel it first. Its id
    is free again afterwards. One whose header can't be read goes only by its id and with --damaged; what of
    it can't be told is shown first.

    Example: durable prune --older-than 30d --keep 10
    """
    set_up_logging(None, None)
    wanted = _wanted(run_ids, older_than, keep, status, workflow, damaged=damaged)
    if not wanted and not sweep:
        raise UsageError(
            "nothing says which runs are to go",
            remedy="Give run ids, --older-than, --keep, --status or --workflow; see durable prune --help",
        )
    asks = bool(wanted) and not (yes or dry_run)
    if asks and (as_json or not sys.stdin.isatty()):
        raise UsageError(
            "nobody is there to be asked", remedy="Give --yes, or --dry-run to see what would go"
        )
    plan = report = asyncio.run(_planned(store, wanted))
    if not as_json and wanted:
        output.write(_plan_text(plan))
    if not dry_run and plan.runs:
        if asks and not typer.confirm(f"Delete {_runs(plan)}?", err=True):
            output.tell("Nothing was deleted.")
            return
        report = asyncio.run(_carried_out(store, plan))
        if not as_json:
            output.write(_report_text(report))
        report = dataclasses.replace(report, left=(*plan.left, *report.left))
    swept = asyncio.run(_swept(store, dry_run=dry_run)) if sweep else None
    if as_json:
        output.write(as_document(_document(report, swept, dry_run=dry_run)))
    elif swept is not None:
        output.write(_sweep_text(swept))
    if code := _exit_code(report, swept, named=bool(run_ids)):
        raise typer.Exit(code)


# ---- Doing it ----


def _wanted(
    run_ids: list[str] | None,
    older_than: str | None,
    keep: int | None,
    status: list[str] | None,
    workflow: str | None,
    *,
    damaged: bool,
) -> Document:
    """The arguments of `executor.prune`, checked before a store is opened; none if nothing is asked for."""
    conditions: Document = {
        "older_than": parse_age(older_than) if older_than is not None else None,
        "keep": keep,
        "status": [one.upper() for one in status] if status else None,
        "workflow": workflow,
    }
    given = {name: value for name, value in conditions.items() if value is not None}
    if damaged and not run_ids:
        raise UsageError(
            "--damaged is for runs that are named", remedy="Give the ids that `durable list` shows as CORRUPT"
        )
    if run_ids and given:
        raise UsageError("run ids say all about which runs go", remedy="Give no other condition with them")
    if given:
        rules(**conditions)
    return {"run_ids": run_ids, "damaged": damaged} if run_ids else given


@contextlib.asynccontextmanager
async def _opened(url: str | None) -> AsyncIterator[DurableWorkflowExecutor]:
    """An executor over a store that is there."""
    executor = DurableWorkflowExecutor(named_store(url))
    try:
        await executor.store.journal.open(create=False)
        yield executor
    finally:
        await executor.close()


async def _planned(url: str | None, wanted: Document) -> PruneReport:
    async with _opened(url) as executor:
        if not wanted:
            return PruneReport(dry_run=True)
        if "run_ids" in wanted:
            journal, where = executor.store.journal, executor.store.url
            wanted = wanted | {
                "run_ids": [await complete_run_id(journal, one, where) for one in wanted["run_ids"]]
            }
        return await executor.prune(**wanted, dry_run=True)


async def _carried_out(url: str | None, plan: PruneReport) -> PruneReport:
    async with _opened(url) as executor:
        return await executor.prune(planned=plan)


async def _swept(url: str | None, *, dry_run: bool) -> SweepReport:
    async with _opened(url) as executor:
        return await executor.sweep(dry_run=dry_run)


# ---- Telling it ----


def _plan_text(plan: PruneReport) -> str:
    rows = [
        (
            run.run_id,
            run.workflow,
            run.status,
            moment(run.ended_at),
            run.records,
            run.blobs,
            size(run.size_bytes),
        )
        for run in plan.runs
    ]
    shown = f"{table(_COLUMNS, rows)}{_sum(plan)}\n" if rows else "nothing to prune\n"
    return shown + _damage_lines(plan.runs) + _left_lines(plan.left)


def _report_text(report: PruneReport) -> str:
    return f"Pruned {_sum(report)}.\n{_left_lines(report.left)}"


def _sum(report: PruneReport) -> str:
    amounts = f"{_number(report.records, 'record')}, {_number(report.blobs, 'blob')}"
    return f"{_runs(report)}, {amounts}, {size(report.size_bytes)} of inputs and outputs"


def _runs(report: PruneReport) -> str:
    return _number(len(report.runs), "run")


def _number(count: int, of: str) -> str:
    return f"{count} {of}{'s' * (count != 1)}"


def _damage_lines(runs: Sequence[PrunedRun]) -> str:
    damaged = [f"{one.run_id}: {one.damage}" for one in runs if one.damage is not None]
    return "".join(f"Damaged: {output.clean(line)}\n" for line in damaged)


def _left_lines(left: Sequence[LeftRun]) -> str:
    return "".join(f"Left: {output.clean(f'{one.run_id} ({one.status}): {one.why}')}\n" for one in left)


def _sweep_text(swept: SweepReport) -> str:
    taken = "Would sweep" if swept.dry_run else "Swept"
    blobs = _number(swept.blobs + swept.orphans, "orphan blob")
    return (
        f"{taken} {_number(swept.records, 'late record')}, {blobs}; "
        f"{_number(swept.expired, 'tombstone')} will go in a month, {swept.purged} went.\n"
        f"{_left_lines(swept.left)}"
    )


def _document(report: PruneReport, swept: SweepReport | None, *, dry_run: bool) -> Document:
    return {
        "dry_run": dry_run,
        "runs": [dataclasses.asdict(run) for run in report.runs],
        "count": len(report.runs),
        "records": report.records,
        "blobs": report.blobs,
        "size_bytes": report.size_bytes,
        "left": [dataclasses.asdict(one) for one in report.left],
        "swept": dataclasses.asdict(swept) if swept is not None else None,
    }


def _exit_code(report: PruneReport, swept: SweepReport | None, *, named: bool) -> int:
    """A run that was named and stays is told by the code; one that merely met the conditions isn't."""
    left = (*report.left, *(swept.left if swept is not None else ()))
    if any(one.status == CORRUPT_RUN for one in left) or (swept is not None and swept.left):
        return CORRUPT
    return BUSY if named and report.left else DONE
