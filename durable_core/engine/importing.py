"""Importing an exported run: all of the file is looked at before anything is written.

look at the whole file      its parts, hashes, records, outputs and root hash
create: PRUNING             nobody drives the run; should the import die, a prune takes it all
blobs, then records         a pointer never leads nowhere
the run's own header        from now on it is there, as it was exported

Where the id has a tombstone, all fences of the run are lifted above its: what was written late by somebody
who still drives the pruned run stays below them, and counts as absent.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from durable_core.blobs.base import is_run_id
from durable_core.engine.asking import ask
from durable_core.engine.bundle_reading import Bundle
from durable_core.engine.exporting import refuse_damage
from durable_core.engine.failure import as_json
from durable_core.engine.findings import Findings
from durable_core.engine.hold import Hold
from durable_core.engine.lease import lost_to
from durable_core.engine.owners import NEVER_MS
from durable_core.engine.process import this_process
from durable_core.engine.pruning import LeftRun, prune_run
from durable_core.engine.verify_header import Life, unsound
from durable_core.engine.verify_run import Look
from durable_core.engine.verify_values import LaterValues
from durable_core.errors import CorruptRecord, DurableError, RunBusy, RunInputMismatch, StoreNotFound
from durable_core.identity import KeyMaker, new_owner
from durable_core.journal.base import Departure
from durable_core.journal.carrying import KINDS
from durable_core.records import (
    ACTIVE,
    ENDED,
    PENDING,
    PRUNING,
    SUSPENDED,
    TOMBSTONE,
    StepRecord,
    Unreadable,
    parse_object,
)

if TYPE_CHECKING:
    from pathlib import Path

    from durable_core.engine.drive import Tools
    from durable_core.engine.findings import VerifiedRun
    from durable_core.journal.carrying import Record
    from durable_core.records import RunHeader

_REMEDY: Final = "Export the run again; nothing of this file was taken in"
_FENCES_OF_MAPS: Final = ("redriven_fence", "base_fence", "above_fence", "plan_fence")
_IMPORTABLE: Final = (PENDING, SUSPENDED, *ENDED)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedRun:
    """A run that was taken in, or would be.

    Attributes:
        status: As it was exported. One that isn't over is resumed by hand; no worker takes it by itself.
        root_hash: Of the run, as in the store that it comes from.
        steps, segments, events, chunks, blobs: How many of each were taken in.
        dry_run: Whether nothing was written.
    """

    run_id: str
    workflow: str
    status: str
    root_hash: str
    steps: int
    segments: int
    events: int
    chunks: int
    blobs: int
    dry_run: bool


async def import_run(tools: Tools, path: Path, *, dry_run: bool) -> ImportedRun:
    """Takes a run in, or nothing of it.

    Args:
        tools: The executor's.
        path: The file.
        dry_run: Only look whether it could be.

    Raises:
        UsageError: There is no such file.
        CorruptRecord: It is no whole exported run.
        SchemaTooNew: A newer version of this package wrote it.
        RunInputMismatch: The store has a run of that id.
        RunBusy: Somebody imports or prunes it at the moment.
        OutputTooLarge: A record is larger than this store can take.
    """
    with Bundle(path) as bundle:
        header, verified = await _looked_at(tools, bundle)
        old = await _free_id(tools, header.run_id, dry_run=dry_run)
        if not dry_run:
            shift = max(0, old.fence - header.base_fence) if old is not None else 0
            await _taken_in(tools, bundle, _lifted_header(header, shift), old, shift)
            tools.log.info("run_imported", run_id=header.run_id, path=str(path), root=verified.root_hash)
    return ImportedRun(
        run_id=header.run_id, workflow=header.workflow, status=header.status,
        root_hash=bundle.manifest.root_hash, steps=verified.steps, segments=verified.segments,
        events=verified.events, chunks=verified.chunks, blobs=verified.blobs, dry_run=dry_run,
    )  # fmt: skip


# ---- Before anything is written ----


async def _looked_at(tools: Tools, bundle: Bundle) -> tuple[RunHeader, VerifiedRun]:
    """The header of the file's run, once all of it was seen to be sound."""
    header, run_id = bundle.header(), bundle.manifest.run_id
    why = unsound(header)
    if why is None and (header.status not in _IMPORTABLE or header.owner is not None):
        why = f"it is {header.status}, and no run at rest"
    why = why or _misnamed(header)
    if why is not None:
        raise CorruptRecord(f"{bundle.path} is no whole exported run: its header: {why}", remedy=_REMEDY)
    findings = Findings(run_id)
    values = LaterValues(tools.values, findings)
    life = Life(
        run_id, header.base_fence, header.fence, header.status, [KeyMaker(run_id)],
        knows_all_keys=header.forked_from is None,
    )  # fmt: skip
    look = Look(values, header, life, findings)
    await look.take(bundle)
    for ref, data in bundle.blobs():
        values.arrived(ref, data)
    values.finish_all()
    verified = look.result(header)
    refuse_damage(run_id, findings, _REMEDY)
    if verified.root_hash != bundle.manifest.root_hash:
        raise CorruptRecord(
            f"{bundle.path} is no whole exported run: its records don't have its root hash", remedy=_REMEDY
        )
    return header, verified


def _misnamed(header: RunHeader) -> str | None:
    """Which of its names can't be one; None if all can."""
    for name in ("workflow", "session_id", "forked_from"):
        given = getattr(header, name)
        if given is not None and not is_run_id(given):
            return f"its {name} is {given!r:.140}"
    return None


async def _free_id(tools: Tools, run_id: str, *, dry_run: bool) -> RunHeader | None:
    """The tombstone of an id that is free; None if it has none. What an import that died left is taken first.

    Raises:
        RunInputMismatch: It isn't free.
        RunBusy: Somebody is still at it.
    """
    try:  # only now: a file that isn't fit makes no store
        await tools.journal.open(create=not dry_run)
    except StoreNotFound:
        return None
    old = await ask(tools.journal.header, run_id)
    if old is not None and old.status == PRUNING and not dry_run:
        left = await prune_run(tools, old)
        if isinstance(left, LeftRun):
            raise RunBusy(run_id, owner="another import or prune", lease_left_s=0.0)
        old = await ask(tools.journal.header, run_id)
    if old is not None and old.status not in (TOMBSTONE, PRUNING):
        raise RunInputMismatch(
            "there is a run of that id already", run_id=run_id, remedy="Prune it first, or use another store"
        )
    async for page in tools.journal.children(run_id):
        if any(child.fence > (old.fence if old is not None else 0) for child in page):
            raise RunInputMismatch(
                "records of that id are there without a run, such as an event that was sent early",
                run_id=run_id,
                remedy=f"`durable verify {run_id}` tells of them; use another store",
            )
    return old


# ---- Taking it in ----


async def _taken_in(
    tools: Tools, bundle: Bundle, header: RunHeader, tombstone: RunHeader | None, shift: int
) -> None:
    """Writes everything under a header of our own, and then the run's."""
    owner = new_owner()
    made = replace(
        header,
        status=PRUNING,
        owner=owner,
        owner_process=this_process(),
        base_fence=tombstone.fence if tombstone is not None else 0,
        ended_at=None,
        created_by=owner,
    )
    reply = await ask(tools.journal.create, made, tools.lease_ms)
    if reply.row is None or reply.row.owner != owner:
        raise RunBusy(header.run_id, owner="somebody else", lease_left_s=0.0)
    hold = Hold(tools, made)
    try:
        for ref, data in bundle.blobs():
            await hold.check()
            await ask(tools.values.blobs.put, ref, data)
        for kind in KINDS:
            async for page in bundle.as_stored(header.run_id, kind):
                await hold.check()
                records = [lifted(one, shift) for one in page if not isinstance(one, Unreadable)]
                refused = await ask(tools.journal.restore, records, hold.lease)
                if not refused.ok:
                    raise lost_to(None, hold.lease)
        await hold.check()
        tools.renewals.drop(hold.held)
        placed = await ask(tools.journal.restore_header, header, hold.lease)
        if not placed.ok and placed.row != header:
            raise lost_to(placed.row, hold.lease)
    except BaseException as error:  # whatever it is, also a cancellation: nobody else has to wait for us
        await _given_up(tools, hold, error)
        raise
    finally:
        tools.renewals.drop(hold.held)


async def _given_up(tools: Tools, hold: Hold, error: BaseException) -> None:
    """Leaves what there is of the run for whoever prunes it, or imports it again."""
    tools.renewals.drop(hold.held)
    run_id = hold.lease.run_id
    tools.log.warning("import_cut_short", run_id=run_id, reason=str(error) or type(error).__qualname__)
    try:
        await ask(tools.journal.leave, hold.lease, Departure(status=PRUNING))
    except DurableError as failure:  # the lease runs out by itself, and a dead importer is seen at once
        tools.log.warning("import_not_released", run_id=run_id, reason=str(failure))


def _lifted_header(header: RunHeader, shift: int) -> RunHeader:
    """The header of an imported run: where it was, above what the id was before, and waiting for a person."""
    due_at_ms = NEVER_MS if header.status in ACTIVE else header.due_at_ms
    gone, error = header.gone, header.error
    if shift and gone is not None:
        known = parse_object(gone, header.run_id)
        gone = as_json(
            {str(int(name) + shift) if name.isdecimal() else name: told for name, told in known.items()}
        )
    if shift and error is not None:
        error = as_json(_with_lifted(header.error_info(), ("fence",), shift))
    return replace(
        header, fence=header.fence + shift, base_fence=header.base_fence + shift, due_at_ms=due_at_ms,
        gone=gone, error=error,
    )  # fmt: skip


def lifted(record: Record, shift: int) -> Record:
    """A record whose fences are so much higher."""
    if not shift:
        return record
    if not isinstance(record, StepRecord):
        return record._replace(fence=record.fence + shift)
    detail, attempts = record.detail, record.attempts
    if detail is not None:
        detail = as_json(_with_lifted(record.details(), _FENCES_OF_MAPS, shift))
    if attempts is not None:
        attempts = as_json([_with_lifted(one, ("fence",), shift) for one in record.history()])
    return record._replace(fence=record.fence + shift, detail=detail, attempts=attempts)


def _with_lifted(of: dict[str, Any], names: tuple[str, ...], shift: int) -> dict[str, Any]:
    return of | {name: of[name] + shift for name in names if type(of.get(name)) is int}
