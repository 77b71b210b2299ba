"""Exporting a run into one file, after a look at all of it: what is damaged isn't carried on.

header ── steps, segments, events: looked at and written ── blobs ── header again: has it gone on? ── manifest
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from durable_core.clock import rfc3339
from durable_core.engine import admission
from durable_core.engine.asking import ask
from durable_core.engine.bundle import (
    BLOBS,
    HEADER,
    PARTS,
    BundleWriter,
    Manifest,
    blob_line,
    header_line,
    record_line,
)
from durable_core.engine.failure import as_json
from durable_core.engine.findings import DAMAGE, Findings
from durable_core.engine.invocation import dead_from_ms
from durable_core.engine.process import is_dead, told
from durable_core.engine.verify_header import unsound
from durable_core.engine.verify_run import Look
from durable_core.engine.verify_values import LaterValues
from durable_core.engine.verifying import life_of
from durable_core.errors import CorruptRecord, RunBusy, StoreMisconfigured, UsageError
from durable_core.records import PENDING, RUNNING, Chunk, Segment, Unreadable, parse_object

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path
    from typing import IO

    from durable_core.engine.drive import Tools
    from durable_core.engine.findings import Finding
    from durable_core.journal.carrying import Kind, Record
    from durable_core.records import RunHeader

_MOST_TOLD: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedRun:
    """A run in a file.

    Attributes:
        path: The file.
        status: Of the run, as it was exported.
        root_hash: Of the run: that of its import, too.
        steps, segments, events, chunks, blobs: How many of each are in it.
        size_bytes: Of the file.
    """

    run_id: str
    path: Path
    status: str
    root_hash: str
    steps: int
    segments: int
    events: int
    chunks: int
    blobs: int
    size_bytes: int


async def export_run(tools: Tools, header: RunHeader, path: Path, *, replaces: bool) -> ExportedRun:
    """Writes a run into a file, which is whole or not there.

    Args:
        tools: The executor's.
        header: Of the run, as just read.
        path: The file.
        replaces: Whether a file that is there is replaced.

    Raises:
        RunBusy: Somebody drives the run, or it went on meanwhile.
        RunPruned: It is being pruned.
        CorruptRecord: It is damaged.
        UsageError: There is such a file.
        StoreMisconfigured: The file can't be written.
    """
    admission.check_not_pruned(header)
    if not admission.is_free(tools, header):
        raise admission.busy(tools, header)
    with _new_file(path, replaces=replaces) as file:
        writer = BundleWriter(file)
        try:
            exported = await _written(tools, header, writer, path)
        except BaseException:  # whatever it is: what is there so far must not pass for a whole file
            writer.abandon()
            raise
        size_bytes = file.tell()
    tools.log.info("run_exported", run_id=header.run_id, path=str(path), size_bytes=size_bytes)
    return replace(exported, size_bytes=size_bytes)


@contextmanager
def _new_file(path: Path, *, replaces: bool) -> Iterator[IO[bytes]]:
    """A file that is put in its place once it is whole and safe from a power cut."""
    if path.exists() and not replaces:
        raise UsageError(f"{path} is there already", remedy="Give another name, or say that it be replaced")
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with beside.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as error:
        raise StoreMisconfigured(
            f"{path} can't be written: {error.strerror or error}", remedy="Give a file in a folder with room"
        ) from error
    finally:
        beside.unlink(missing_ok=True)


async def _written(tools: Tools, header: RunHeader, writer: BundleWriter, path: Path) -> ExportedRun:
    run_id = header.run_id
    if (why := unsound(header)) is not None:
        raise CorruptRecord(f"the run's header can't be read: {why}", run_id=run_id)
    rested, findings = _at_rest(header), Findings(run_id)
    values = LaterValues(tools.values, findings)
    look = Look(values, rested, await life_of(tools, header, is_whole=True), findings)
    with writer.part(HEADER) as part:
        part.add(header_line(rested))
    await look.take(_Copying(tools, header.base_fence, writer))
    with writer.part(BLOBS) as part:
        for ref in list(values.pointers):
            data = await values.fetched(ref)
            if data is not None:
                part.add(blob_line(ref.rpartition("/")[2], data), data)
    verified = look.result(rested)
    refuse_damage(run_id, findings, f"`durable verify {run_id}` tells all of it; what is sound can be forked")
    now = await ask(tools.journal.header, run_id)
    if now is None or _moves(now) != _moves(header):
        raise RunBusy(run_id, owner="somebody", lease_left_s=0.0)
    root_hash = verified.root_hash or ""
    exported_at = rfc3339(tools.clock.now_ms())
    writer.finish(
        Manifest(run_id, header.workflow, rested.status, root_hash, exported_at, dict(writer.parts))
    )
    return ExportedRun(
        run_id=run_id, path=path, status=rested.status, root_hash=root_hash,
        **{f"{kind}s": writer.parts[name].amount for kind, name in PARTS.items()},
        blobs=writer.parts[BLOBS].amount, size_bytes=0,
    )  # fmt: skip


def refuse_damage(run_id: str, findings: Findings, remedy: str) -> None:
    """Carries nothing on that is damaged.

    Raises:
        CorruptRecord: Something is; tells what.
    """
    count = findings.counts[DAMAGE]
    if not count:
        return
    damaged = [one for one in findings.kept if one.severity == DAMAGE][:_MOST_TOLD]
    more = f"; and {count - len(damaged)} more" if count > len(damaged) else ""
    raise CorruptRecord(
        f"the run is damaged: {'; '.join(map(_told, damaged))}{more}", run_id=run_id, remedy=remedy
    )


def _told(found: Finding) -> str:
    return f"{found.where}: {found.message}" if found.where is not None else found.message


def _at_rest(header: RunHeader) -> RunHeader:
    """A header as its owner would have left it, had it released the run; whether it is dead stays known."""
    gone = header.gone
    if header.owner is not None:
        dead = is_dead(header.owner_process) or dead_from_ms(header.owner_process)
        gone = as_json(parse_object(gone, header.run_id) | {str(header.fence): dead})
    status = PENDING if header.status == RUNNING else header.status
    return replace(header, status=status, owner=None, owner_process=None, lease_until_ms=0, gone=gone)


def _moves(header: RunHeader) -> tuple[object, ...]:
    """What changes when a run goes on."""
    return header.status, header.fence, header.owner, header.wake_count, header.updated_at, header.counts


class _Copying:
    """The records of a journal, each written as it is looked at; those of earlier lives are left out.

    A segment of an earlier life leaves its place: the log of a map has no gaps. A chunk that nobody works on
    any more is as if it had been handed back.
    """

    def __init__(self, tools: Tools, base_fence: int, writer: BundleWriter) -> None:
        self._tools = tools
        self._base_fence = base_fence
        self._writer = writer

    async def as_stored(self, run_id: str, kind: Kind) -> AsyncIterator[list[Record | Unreadable]]:
        """As of journals."""
        with self._writer.part(PARTS[kind]) as part:
            async for page in self._tools.journal.as_stored(run_id, kind):
                kept: list[Record | Unreadable] = []
                for found in page:
                    record = found if isinstance(found, Unreadable) else self._of_this_life(found)
                    if record is None:
                        continue
                    kept.append(record)
                    if not isinstance(record, Unreadable):
                        part.add(record_line(record))
                yield kept

    def _of_this_life(self, record: Record) -> Record | None:
        if record.fence > self._base_fence:
            return self._handed_back(record) if isinstance(record, Chunk) else record
        if not isinstance(record, Segment):
            return None
        return record._replace(items=0, data=None, codec=None, size=None, output_hash=None, refs=None)

    def _handed_back(self, chunk: Chunk) -> Chunk:
        """Refuses a chunk that somebody works on.

        Raises:
            RunBusy: Somebody does.
        """
        if chunk.owner is None:
            return chunk
        dead = is_dead(chunk.owner_process)
        left_ms = chunk.lease_until_ms - self._tools.clock.now_ms() - self._tools.journal.skew_ms
        if left_ms >= 0 and not dead:
            raise RunBusy(chunk.run_id, owner=told(chunk.owner_process), lease_left_s=left_ms / 1000)
        known = parse_object(chunk.gone, chunk.run_id, chunk.step_id)
        gone = as_json(known | {str(chunk.chunk_fence): dead or dead_from_ms(chunk.owner_process)})
        status = PENDING if chunk.status == RUNNING else chunk.status
        return chunk._replace(status=status, owner=None, owner_process=None, lease_until_ms=0, gone=gone)
