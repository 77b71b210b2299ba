"""`durable export` and `durable import`: a run in one file, from any store into any other."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from durable_core.cli import output
from durable_core.cli.finding import complete_run_id, named_store
from durable_core.cli.jsonable import as_document
from durable_core.cli.options import AsJson, RunId, StoreUrl, set_up_logging
from durable_core.engine.executor import DurableWorkflowExecutor

if TYPE_CHECKING:
    from durable_core.engine.exporting import ExportedRun
    from durable_core.engine.importing import ImportedRun

_SUFFIX = ".durable"


def export(
    run_id: RunId,
    to: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help=f"Default: RUN_ID{_SUFFIX}, here."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there already.")] = False,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Write a run into one file: its records and outputs, after a look for damage.

    A run that isn't over can be exported while nobody drives it.

    Example: durable export june -o june.durable
    """
    set_up_logging(None, None)
    done = asyncio.run(_exported(store, run_id, to, force=force))
    if as_json:
        output.write(as_document({**dataclasses.asdict(done), "path": str(done.path)}))
        return
    told = f"{done.run_id}: {done.status.lower()}, {_amounts(done)}, in {done.path} ({done.size_bytes} bytes)"
    output.write(f"{output.clean(told)}\n  root hash  {done.root_hash}\n")


def import_file(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `durable export` has written.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only look whether it could be taken in.")
    ] = False,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Take an exported run in, from any store. All of the file is looked at first.

    It keeps its id, which must be free here. A run that isn't over waits for `durable resume`: the store that
    it comes from may go on with it.

    Example: durable import june.durable --store sqlite:///laptop.db
    """
    set_up_logging(None, None)
    done = asyncio.run(_imported(store, file, dry_run=dry_run))
    if as_json:
        output.write(as_document(dataclasses.asdict(done)))
        return
    whether = "could be taken in: " if dry_run else ""
    output.write(f"{whether}{done.run_id}: {done.status.lower()}, {_amounts(done)}\n")
    output.write(f"  root hash  {done.root_hash}\n")


async def _exported(url: str | None, given: str, to: Path | None, *, force: bool) -> ExportedRun:
    executor = DurableWorkflowExecutor(named_store(url))
    try:
        await executor.store.journal.open(create=False)
        run_id = await complete_run_id(executor.store.journal, given, executor.store.url)
        return await executor.export_run(run_id, to or Path(f"{run_id}{_SUFFIX}"), replace=force)
    finally:
        await executor.close()


async def _imported(url: str | None, file: Path, *, dry_run: bool) -> ImportedRun:
    executor = DurableWorkflowExecutor(named_store(url))
    try:
        return await executor.import_run(file, dry_run=dry_run)
    finally:
        await executor.close()


def _amounts(done: Any) -> str:
    counts = ((done.steps, "step"), (done.segments, "segment"), (done.events, "event"), (done.blobs, "blob"))
    return ", ".join(f"{n} {name}{'s' * (n != 1)}" for n, name in counts if n or name == "step")
