"""One look at all records of a run, wherever they are: each by itself, and all against each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, cast

from durable_core.engine.findings import DAMAGE, LEFTOVER, NOTICE, Findings, VerifiedRun
from durable_core.engine.root_hash import RootHash
from durable_core.engine.verify_events import EventCheck
from durable_core.engine.verify_header import Life, check_counts, check_header, values_of
from durable_core.engine.verify_logs import LogCheck, check_chunk
from durable_core.engine.verify_steps import StepCheck
from durable_core.errors import CorruptRecord
from durable_core.journal.carrying import KINDS
from durable_core.records import (
    ACTIVE,
    ITEM_KIND,
    RUNNING,
    STARTED,
    STEP_KIND,
    Chunk,
    Event,
    RunHeader,
    Segment,
    StepRecord,
    Unreadable,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from durable_core.engine.verify_values import ValueCheck
    from durable_core.journal.carrying import Kind, Record

_DOES: Final = frozenset({STEP_KIND, ITEM_KIND})  # what the others wait for goes on without them
_RANK: Final = {DAMAGE: 0, LEFTOVER: 1, NOTICE: 2}


class Records(Protocol):
    """Where the records of a run are: a journal, or a file that was exported."""

    def as_stored(self, run_id: str, kind: Kind) -> AsyncIterator[list[Record | Unreadable]]:
        """As of journals."""
        ...


class Look:
    """One look at all records of a run.

    Args:
        values: Checks outputs; tells the same findings.
        header: Of the run; None if it can't be relied on.
        life: What its records are judged by.
        findings: Where damage goes.
    """

    def __init__(self, values: ValueCheck, header: RunHeader | None, life: Life, findings: Findings) -> None:
        self._header = header
        self._life = life
        self._findings = findings
        self._values = values
        self._root: RootHash | None = RootHash(header) if header is not None else None
        self._steps = StepCheck(life, findings, self._values)
        self._seen: dict[Kind, int] = dict.fromkeys(KINDS, 0)

    async def take(self, records: Records) -> None:
        """Reads and checks everything."""
        if self._header is not None:
            check_header(self._header, self._findings)
            for value in values_of(self._header):
                await self._values.check(value)
        await self._take_steps(records)
        await self._take_segments(records)
        await self._take_events(records)
        await self._take_chunks(records)
        await self._values.finish()

    def result(self, header: RunHeader) -> VerifiedRun:
        """What it came to."""
        root_hash = self._root.hexdigest() if self._root is not None else None
        return told(header.run_id, header, self._findings, self._seen, self._values.blobs, root_hash)

    async def _take_steps(self, records: Records) -> None:
        async for record in self._all(records, "step"):
            step = cast("StepRecord", record)
            if await self._steps.check(step):
                self._note(step)
                if self._root is not None:
                    self._root.step(step)
        header, steps = self._header, self._steps
        if header is not None:
            all_there = check_counts(header, steps.statuses, steps.damaged, self._findings)
            steps.finish(all_there=all_there and (header.counts is not None or self._life.is_fork))

    async def _take_segments(self, records: Records) -> None:
        logs = LogCheck(self._life, self._steps.maps, self._findings, self._values, self._root)
        async for record in self._all(records, "segment"):
            await logs.check(cast("Segment", record))
        logs.finish()

    async def _take_events(self, records: Records) -> None:
        events = EventCheck(self._life, self._steps, self._findings, self._values)
        async for record in self._all(records, "event"):
            event = cast("Event", record)
            if await events.check(event) and self._root is not None:
                self._root.event(event)
        events.finish()

    async def _take_chunks(self, records: Records) -> None:
        """Who works on which part of a map: nothing is lost with them, since their logs say what is done."""
        async for record in self._all(records, "chunk"):
            check_chunk(cast("Chunk", record), self._life, self._steps.maps, self._findings)

    async def _all(self, records: Records, kind: Kind) -> AsyncIterator[Record]:
        """The records of a kind that can be read; those that can't are told of."""
        try:
            async for page in records.as_stored(self._life.run_id, kind):
                self._seen[kind] += len(page)
                for record in page:
                    if not isinstance(record, Unreadable):
                        yield record
                        continue
                    self._root = None
                    if kind == "step":
                        self._steps.note_damaged(record.name)
                    where = f"{record.place}: " if record.place else ""
                    self._findings.damage(f"{kind}-unreadable", record.name, f"{where}{record.why}")
        except CorruptRecord as error:  # the store itself is damaged: what lies behind can't be read
            self._root = None
            self._findings.damage("store-damaged", None, error.message)

    def _note(self, record: StepRecord) -> None:
        """Tells of steps that nobody is in any more."""
        life = self._life
        if record.status != STARTED or record.error is not None or life.fence is None:
            return
        if life.status not in ACTIVE:
            self._findings.notice("left-started", record.step_id, f"it is STARTED, and the run {life.status}")
        elif record.kind in _DOES and (record.fence < life.fence or life.status != RUNNING):
            told = f"nobody is in it any more: it was begun under fence {record.fence}; a resume settles it"
            self._findings.notice("in-doubt", record.step_id, told)


def told(
    run_id: str,
    header: RunHeader | None,
    findings: Findings,
    seen: Mapping[Kind, int],
    blobs: int = 0,
    root_hash: str | None = None,
) -> VerifiedRun:
    """What a look came to; damage first."""
    kept = sorted(findings.kept, key=lambda one: (_RANK[one.severity], one.kind, one.where or ""))
    return VerifiedRun(
        run_id=run_id,
        workflow=header.workflow or None if header is not None else None,
        status=header.status if header is not None else None,
        root_hash=root_hash,
        steps=seen["step"],
        segments=seen["segment"],
        events=seen["event"],
        chunks=seen["chunk"],
        blobs=blobs,
        findings=tuple(kept),
        damaged=findings.counts[DAMAGE],
        leftovers=findings.counts[LEFTOVER],
        notices=findings.counts[NOTICE],
    )
