"""The verbs of the SQLite journal on segments, events and tombstones."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from durable_core.journal import _sqlite_below as below
from durable_core.journal._sqlite_carrying import SqliteCarrying
from durable_core.journal._sqlite_reader import SqliteReader
from durable_core.journal.paging import PAGE_ROWS, PURGED_AT_ONCE, SEGMENT_ROWS, pages, portions
from durable_core.records import Child, Event, Reply, RunHeader, Segment, StepRecord

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import AsyncIterator, Coroutine, Sequence
    from pathlib import Path

    from durable_core.clock import Clock
    from durable_core.journal.base import Lease
    from durable_core.journal.chunks import SegmentReader
    from durable_core.journal.paging import Select


class SqliteLogs(SqliteCarrying):
    """What the journal does with all that lies under a header besides steps.

    Attributes:
        path, clock, busy_limit_s, read_only: As given to `SqliteJournal`.
    """

    path: Path
    clock: Clock
    busy_limit_s: float
    read_only: bool

    # ---- Segments ----

    def append(self, segment: Segment) -> Coroutine[Any, Any, Reply[Segment]]:
        """One INSERT, synced."""
        return self.write(below.append, (segment,), full=True, alone=self.live <= 1)

    async def segments(self, run_id: str, step_id: str, chunk: int = 0) -> AsyncIterator[list[Segment]]:
        """One SELECT a page, along the primary key."""
        select, key = self._select(below.SEGMENT_PAGE), (run_id, step_id, chunk)
        async for page in pages(select, key, (-1,), lambda row: row[3:4], SEGMENT_ROWS):
            yield list(map(Segment._make, page))

    async def last_segment(self, run_id: str, step_id: str, chunk: int = 0) -> Segment | None:
        """One SELECT, from the end of the primary key."""
        found = await self._select(below.LAST_SEGMENT)((run_id, step_id, chunk))
        return Segment._make(found[0]) if found else None

    def open_reader(self) -> SegmentReader:
        """Over a connection of its own."""
        return SqliteReader(self.path, self.busy_limit_s, read_only=self.read_only)

    # ---- Events ----

    async def send(self, event: Event, seen: RunHeader | None) -> Reply[Event]:
        """An INSERT and the header's UPDATE in one transaction."""
        return await self.write_checked(below.send, event, seen, self.clock.now_ms(), alone=False)

    async def take(self, event: Event, outcome: StepRecord) -> Reply[StepRecord]:
        """Two UPDATEs in one transaction."""
        reply: Reply[StepRecord] = await self.write(below.take, (event, outcome), full=True, alone=False)
        return reply

    async def events(self, run_id: str, name: str | None = None) -> AsyncIterator[list[Event]]:
        """One SELECT a page, along the primary key."""
        if name is None:
            found = pages(self._select(below.EVENT_PAGE), (run_id,), ("", -1), lambda row: row[1:3])
        else:
            found = pages(self._select(below.EVENTS_OF_NAME), (run_id, name), (-1,), lambda row: row[2:3])
        async for page in found:
            yield list(map(Event._make, page))

    # ---- Pruning ----

    async def children(self, run_id: str) -> AsyncIterator[list[Child]]:
        """One SELECT a page and kind."""
        for kind in below.KINDS:
            last: Child | None = None
            while True:
                page = await self.read(partial(_child_page, run_id=run_id, kind=kind, last=last))
                if page:
                    yield page
                if len(page) < PAGE_ROWS:
                    break
                last = page[-1]

    async def delete(self, run_id: str, children: Sequence[Child], fence: int) -> None:
        """A transaction for each portion."""
        for kind, portion in portions(children):
            await self.write(below.delete, (run_id, kind, portion, fence), full=False, alone=False)

    async def bury(self, lease: Lease, at: str) -> Reply[RunHeader]:
        """One UPDATE, synced."""
        return await self.write_checked(below.bury, lease, at)

    async def tombstones(self, before: str, *, limit: int = 100) -> list[RunHeader]:
        """One SELECT."""
        return await self.read(lambda reader: below.select_tombstones(reader.cursor(), before, limit))

    async def expire(self, seen: RunHeader, expires_at_s: int) -> Reply[RunHeader]:
        """One UPDATE."""
        return await self.write_checked(below.expire, seen, expires_at_s)

    async def purge(self) -> int:
        """One DELETE for each portion."""
        args, gone = (self.clock.now_ms() // 1000, PURGED_AT_ONCE), 0
        while True:
            reply: Reply[int] = await self.write(below.purge, args, full=False, alone=self.live == 0)
            gone += reply.row or 0
            if (reply.row or 0) < PURGED_AT_ONCE:
                return gone

    def _select(self, query: str) -> Select:
        """Asks a query for some values."""
        return lambda values: self.read(partial(_rows, query=query, values=values))


def _rows(reader: sqlite3.Connection, *, query: str, values: tuple[object, ...]) -> list[tuple[Any, ...]]:
    return reader.execute(query, values).fetchall()


def _child_page(reader: sqlite3.Connection, *, run_id: str, kind: str, last: Child | None) -> list[Child]:
    return below.child_page(reader.cursor(), run_id, kind, last, PAGE_ROWS)
