"""`durable checkpoint list|show|prune|resume`, and `durable workflow resume`: checkpoints of agents."""

from __future__ import annotations

import asyncio
import shlex
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Final

import typer

from durable_core.checkpointer import Checkpointer
from durable_core.cli import output
from durable_core.cli.checkpoint_facts import (
    checkpoint_facts,
    checkpoint_text,
    checkpoints_table,
    pruned_facts,
    resume_text,
    session_facts,
    sessions_table,
)
from durable_core.cli.finding import complete_checkpoint_step, complete_session_id, named_store
from durable_core.cli.jsonable import as_document
from durable_core.cli.options import AsJson, StoreUrl  # noqa: TC001 - typer reads them when it runs
from durable_core.cli.outcome import CORRUPT
from durable_core.errors import CheckpointNotFound, CorruptRecord, DurableError, UsageError
from durable_core.records import ACTIVE, FAILED
from durable_core.settings import MAX_RETENTION, CheckpointingConfig, load_config

if TYPE_CHECKING:
    from collections.abc import Iterator

    from durable_core.checkpoints.base import CheckpointRecord
    from durable_core.cli.facts import Document

_DEFAULT_LIMIT: Final = 100

checkpoint_app = typer.Typer(
    help="Checkpoints of agents: look at them, go on from one.", no_args_is_help=True
)
workflow_app = typer.Typer(help="Go on with a session of agents.", no_args_is_help=True)

SessionId = Annotated[
    str, typer.Argument(metavar="SESSION", help="The session; the beginning of its id is enough.")
]
Step = Annotated[
    str | None, typer.Option("--step", metavar="ID", help="A step; its latest checkpoint is meant.")
]


@checkpoint_app.command("list")
def list_checkpoints(
    session_id: Annotated[
        str | None, typer.Argument(metavar="[SESSION]", help="Its checkpoints; without it, the sessions.")
    ] = None,
    agent_id: Annotated[
        str | None, typer.Option("--agent", metavar="ID", help="Only checkpoints of this agent.")
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", min=1, metavar="N", help="The most that are shown.")
    ] = _DEFAULT_LIMIT,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """List sessions, or the checkpoints of one, newest first.

    A damaged checkpoint is marked, and the others are shown all the same; the exit code is then 6.

    Example: durable checkpoint list crew-7
    """
    with _looking(store) as checkpointer:
        kept = checkpointer.kept
        if session_id is None:
            names = kept.sessions(limit=limit + 1)
            sessions = [session_facts(kept.stats(name)) for name in names[:limit]]
            more = len(names) > limit
            document: Document = {"sessions": sessions, "count": len(sessions), "more": more}
            output.write(as_document(document) if as_json else sessions_table(sessions, more=more))
            return
        chosen = complete_session_id(kept, session_id, checkpointer.store.url)
        found: list[Document] = []
        before = None
        while len(found) <= limit:  # one at a time: memory must not depend on how large states are
            page = kept.page(chosen, agent_id=agent_id, before=before, limit=1, with_state=True)
            if not page:
                break
            found.append(_without_contents(_facts(checkpointer, page[0])))
            before = page[0].seq
    more, found = len(found) > limit, found[:limit]
    document = {"session_id": chosen, "checkpoints": found, "count": len(found), "more": more}
    output.write(as_document(document) if as_json else checkpoints_table(found, more=more))
    if any(one["corrupt"] for one in found):
        raise typer.Exit(CORRUPT)


@checkpoint_app.command("show")
def show(
    session_id: SessionId,
    step: Step = None,
    seq: Annotated[
        int | None, typer.Option("--seq", min=1, metavar="N", help="The checkpoint at this place.")
    ] = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show a checkpoint with its state: the latest, or that of a step.

    A damaged checkpoint is marked; the exit code is then 6.

    Example: durable checkpoint show crew-7 --step research
    """
    if step is not None and seq is not None:
        raise UsageError("both --step and --seq name a checkpoint", remedy="Give one of them")
    with _looking(store) as checkpointer:
        chosen = complete_session_id(checkpointer.kept, session_id, checkpointer.store.url)
        found = _facts(checkpointer, _chosen(checkpointer, chosen, step, seq))
    output.write(as_document({"checkpoint": found}) if as_json else checkpoint_text(found))
    if found["corrupt"]:
        raise typer.Exit(CORRUPT)


@checkpoint_app.command("prune")
def prune(
    session_id: SessionId,
    keep: Annotated[
        int | None,
        typer.Option(
            "--keep",
            min=0,
            max=MAX_RETENTION,
            metavar="N",
            help="How many of the newest are kept; 0 keeps all. Default: retention_per_session.",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell what would be removed.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Don't ask.")] = False,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Remove old checkpoints of a session; the newest of the session and of each agent always stay.

    Example: durable checkpoint prune crew-7 --keep 20
    """
    asks = not (yes or dry_run)
    if asks and (as_json or not sys.stdin.isatty()):
        raise UsageError(
            "nobody is there to be asked", remedy="Give --yes, or --dry-run to see what would go"
        )
    with _looking(store) as checkpointer:
        chosen = complete_session_id(checkpointer.kept, session_id, checkpointer.store.url)
        found = checkpointer.prune(chosen, keep, dry_run=dry_run or asks)
        if asks and found.removed:
            told = f"Remove {found.removed} of session {chosen}, and keep {found.kept}?"
            if not typer.confirm(told, err=True):
                output.tell("Nothing was removed.")
                return
            found = checkpointer.prune(chosen, keep)
    if as_json:
        output.write(as_document(pruned_facts(chosen, found, dry_run=dry_run)))
        return
    verb = "Would remove" if dry_run else "Removed"
    output.write(f"{verb} {found.removed} of session {chosen}; {found.kept} kept\n")


@checkpoint_app.command("resume")
@workflow_app.command("resume")
def resume(
    session_id: SessionId,
    from_step: Annotated[
        str | None,
        typer.Option("--from-step", metavar="STEP", help="Make this step the point to go on from."),
    ] = None,
    undo: Annotated[bool, typer.Option("--undo", help="Take the last --from-step back.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the state, change nothing.")] = False,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Tell where a session goes on from, and what to run next.

    Example: durable checkpoint resume crew-7 --from-step research

    Example: durable workflow resume crew-7
    """
    if undo and (from_step is not None or dry_run):
        raise UsageError("--undo goes with neither --from-step nor --dry-run", remedy="Leave one out")
    with _looking(store) as checkpointer:
        chosen = complete_session_id(checkpointer.kept, session_id, checkpointer.store.url)
        if from_step is not None:
            from_step = complete_checkpoint_step(checkpointer.kept, chosen, from_step)
        if undo:
            checkpointer.undo_resume_from(chosen)
        elif from_step is not None and not dry_run:
            checkpointer.resume_from(chosen, from_step)
        found = _facts(checkpointer, _chosen(checkpointer, chosen, from_step if dry_run else None, None))
        if found["corrupt"]:
            raise CorruptRecord(
                found["corrupt"],  # which names the checkpoint
                step_id=found["step_id"],
                remedy=f"Go on from an earlier one: durable checkpoint resume {chosen} --from-step STEP",
            )
        then = asyncio.run(_next(checkpointer, found, store))
    if from_step is not None and not dry_run:
        then.append(f"undo: durable checkpoint resume {chosen} --undo{_store_option(store)}")
    if as_json:
        shown = found if dry_run else _without_contents(found)
        output.write(as_document({**shown, "next": then[0].partition(": ")[2], "dry_run": dry_run}))
    else:
        output.write(resume_text(found, then, with_state=dry_run))


# ---- Finding ----


@contextmanager
def _looking(url: str | None) -> Iterator[Checkpointer]:
    """The checkpointer of a store that is there; saving is on, since whoever asks for it means it."""
    opened, settings = named_store(url), load_config()
    config = CheckpointingConfig(enabled=True, retention_per_session=settings.retention_per_session)
    checkpointer = Checkpointer(config, opened)
    checkpointer.kept.open(create=False)
    try:
        yield checkpointer
    finally:
        asyncio.run(opened.close())


def _chosen(
    checkpointer: Checkpointer, session_id: str, step: str | None, seq: int | None
) -> CheckpointRecord:
    kept = checkpointer.kept
    if seq is not None:
        found = kept.at(session_id, seq)
    elif step is not None:
        found = kept.of_step(session_id, complete_checkpoint_step(kept, session_id, step))
    else:
        found = kept.latest(session_id)
    if found is None:
        raise CheckpointNotFound(
            f"session {session_id!r} has no checkpoint {seq or ''}".rstrip(),
            remedy=f"See which there are with `durable checkpoint list {session_id}`",
        )
    return found


def _facts(checkpointer: Checkpointer, record: CheckpointRecord) -> Document:
    try:
        return checkpoint_facts(checkpointer.fetched(record))
    except CorruptRecord as error:
        return checkpoint_facts(record, error)


def _without_contents(found: Document) -> Document:
    return {name: value for name, value in found.items() if name not in ("state", "inputs")}


async def _next(checkpointer: Checkpointer, found: Document, url: str | None) -> list[str]:
    """What to run next: the run that the checkpoint is of, when it isn't over."""
    run_id, session_id = found["metadata"].get("run_id"), found["session_id"]
    if isinstance(run_id, str) and "resume_point" not in found["metadata"]:
        try:
            header = await checkpointer.store.journal.header(run_id)
        except DurableError:  # a guess at what comes next isn't worth an error
            header = None
        if header is not None and header.status in (*ACTIVE, FAILED):
            return [f"next: durable resume {run_id} --workflows MODULE{_store_option(url)}"]
        if header is not None:
            return [f"next: nothing, run {run_id} is {header.status}"]
    return [f"next: run your agents again; load_latest({session_id!r}) gives them this state"]


def _store_option(url: str | None) -> str:
    return f" --store {shlex.quote(url)}" if url else ""
