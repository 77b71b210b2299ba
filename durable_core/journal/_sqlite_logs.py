"""The verbs of the SQLite journal on segments, events and tombstones."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from durable_core.journal import _sqlite_below as below
from durable_core.journal._sqlite_carrying import SqliteCarrying
from durable_core.journal._sqlite_reader import SqliteReader
from durable_core.records import Child, Event, Reply, RunHeader, Segment, StepRecord

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
    from pathlib import Path

    from durable_core.clock import Clock
    from durable_core.journal.base import Lease
    from durable_core.journal.chunks import SegmentReader

PAGE_ROWS: Final = 2000
SEGMENT_ROWS: Final = 16  # up to 350 KB each
# Rows in one transaction: other writers get their turn in between, and so does the event loop.
PURGED_AT_ONCE: Final = 200
DELETED_AT_ONCE: Final = {"step": 200, "event": 200, "chunk": 200, "segment": SEGMENT_ROWS}


class SqliteLogs(SqliteCarrying):
    """What the journal does with all that lies under a header besides steps.

    Attributes:
        path, clock, busy_limit_s: As given to `SqliteJournal`.
    """

    path: Path
    clock: Clock
    busy_limit_s: float

    # ---- Segments ----

    def append(self, segment: Segment) -> Coroutine[Any, Any, Reply[Segment]]:
        """One INSERT, synced."""
        return self.write(below.append, (segment,), full=True, alone=self.live <= 1)

    async def segments(self, run_id: str, step_id: str, chunk: int = 0) -> AsyncIterator[list[Segment]]:
        """One SELECT a page, along the primary key."""
        key = (run_id, step_id, chunk)
        async for page in self._pages(below.SEGMENT_PAGE, key, (-1,), lambda row: row[3:4], SEGMENT_ROWS):
            yield list(map(Segment._make, page))

    async def last_segment(self, run_id: str, step_id: str, chunk: int = 0) -> Segment | None:
        """One SELECT, from the end of the primary key."""
        found = await self.read(partial(_rows, query=below.LAST_SEGMENT, values=(run_id, step_id, chunk)))
        return Segment._make(found[0]) if found else None

    def open_reader(self) -> SegmentReader:
        """Over a connection of its own."""
        return SqliteReader(self.path, self.busy_limit_s)

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
            found = self._pages(below.EVENT_PAGE, (run_id,), ("", -1), lambda row: row[1:3], PAGE_ROWS)
        else:
            found = self._pages(below.EVENTS_OF_NAME, (run_id, name), (-1,), lambda row: row[2:3], PAGE_ROWS)
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
        for kind, at_once in DELETED_AT_ONCE.items():
            of_kind = [child for child in children if child.kind == kind]
            for start in range(0, len(of_kind), at_once):
                args = (run_id, kind, of_kind[start : start + at_once], fence)
                await self.write(below.delete, args, full=False, alone=False)

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

    async def _pages(
        self,
        query: str,
        fixed: tuple[object, ...],
        after: tuple[object, ...],
        key: Callable[[tuple[Any, ...]], tuple[object, ...]],
        rows: int,
    ) -> AsyncIterator[list[tuple[Any, ...]]]:
        """The rows of a query that takes `fixed`, the key of the last row before, and a limit."""
        while True:
            page = await self.read(partial(_rows, query=query, values=(*fixed, *after, rows)))
            if page:
                yield page
            if len(page) < rows:
                return
            after = key(page[-1])


def _rows(reader: sqlite3.Connection, *, query: str, values: tuple[object, ...]) -> list[tuple[Any, ...]]:
    return reader.execute(query, values).fetchall()


def _child_page(reader: sqlite3.Connection, *, run_id: str, kind: str, last: Child | None) -> list[Child]:
    return below.child_page(reader.cursor(), run_id, kind, last, PAGE_ROWS)
