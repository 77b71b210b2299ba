"""The verbs of the PostgreSQL journal on segments, events and tombstones."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from durable_core.journal import _postgres_below as below
from durable_core.journal._postgres_blocking import BlockingConnection
from durable_core.journal._postgres_carrying import PostgresCarrying
from durable_core.journal._postgres_headers import HEADER
from durable_core.journal._postgres_rows import header_of
from durable_core.journal._postgres_steps import RECORD
from durable_core.journal.chunks import SegmentReader
from durable_core.journal.paging import PAGE_ROWS, PURGED_AT_ONCE, SEGMENT_ROWS, pages, portions
from durable_core.records import TOMBSTONE, Child, Event, Reply, RunHeader, Segment, StepRecord

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from durable_core.clock import Clock
    from durable_core.journal._postgres_pool import Pool
    from durable_core.journal.base import Lease
    from durable_core.journal.paging import Row, Select


class PostgresLogs(PostgresCarrying):
    """What the journal does with all that lies under a header besides steps.

    Attributes:
        pool, clock: As given to `PostgresJournal`.
    """

    pool: Pool
    clock: Clock | None

    # ---- Segments ----

    async def append(self, segment: Segment) -> Reply[Segment]:
        """One INSERT."""
        if (await self.pool.run(below.APPEND, segment)).changed == 1:
            return Reply(True)
        found = (await self.pool.run(below.THE_SEGMENT, segment[:4])).rows
        return Reply(False, Segment._make(found[0]) if found else None)

    async def segments(self, run_id: str, step_id: str, chunk: int = 0) -> AsyncIterator[list[Segment]]:
        """One SELECT a page, along the primary key."""
        select, key = self._select(below.SEGMENT_PAGE), (run_id, step_id, chunk)
        async for page in pages(select, key, (-1,), lambda row: row[3:4], SEGMENT_ROWS):
            yield list(map(Segment._make, page))

    async def last_segment(self, run_id: str, step_id: str, chunk: int = 0) -> Segment | None:
        """One SELECT, from the end of the primary key."""
        found = (await self.pool.run(below.LAST_SEGMENT, (run_id, step_id, chunk))).rows
        return Segment._make(found[0]) if found else None

    def open_reader(self) -> SegmentReader:
        """Over a connection of its own."""
        return _PostgresReader(self.pool)

    # ---- Events ----

    async def send(self, event: Event, seen: RunHeader | None) -> Reply[Event]:
        """One statement, or, to a run that isn't there yet, one transaction."""
        if seen is None:
            applied = await self._send_early(event)
        else:
            buried = seen.status == TOMBSTONE
            values = {**event._asdict(), "base_fence": seen.base_fence, "buried": buried, "now": self._now()}
            applied = bool((await self.pool.run(below.SEND, values)).rows)
        if applied:
            return Reply(True, event)
        found = (await self.pool.run(below.THE_EVENT, event[:3])).rows
        return Reply(False, Event._make(found[0]) if found else None)

    async def _send_early(self, event: Event) -> bool:
        mark = {"run_id": event.run_id, "mark": uuid.uuid4().hex}
        async with self.pool.transaction() as session:
            if (await session.run(below.HOLD_PLACE, mark)).changed == 0:
                return False
            sent = await session.run(below.SEND_EARLY, event._asdict())
            await session.run(below.FREE_PLACE, mark)
        return sent.changed == 1

    async def take(self, event: Event, outcome: StepRecord) -> Reply[StepRecord]:
        """One statement."""
        if (await self.pool.run(below.TAKE, below.taking(event, outcome))).changed == 1:
            return Reply(True)
        found = (await self.pool.run(RECORD, outcome[:2])).rows
        return Reply(False, StepRecord._make(found[0]) if found else None)

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
        for query in below.CHILD_PAGES.values():
            after = Child("", "", -1, -1, 0)
            while True:
                values = {**after._asdict(), "run_id": run_id, "rows": PAGE_ROWS}
                page = [below.child_of(run_id, row) for row in (await self.pool.run(query, values)).rows]
                if page:
                    yield page
                if len(page) < PAGE_ROWS:
                    break
                after = page[-1]

    async def delete(self, run_id: str, children: Sequence[Child], fence: int) -> None:
        """A statement for each portion and kind."""
        for kind, portion in portions(children):
            await self.pool.run(below.DELETE[kind], below.deletion(run_id, portion, fence))

    async def bury(self, lease: Lease, at: str) -> Reply[RunHeader]:
        """One UPDATE."""
        return await self.write_header(below.BURY, {**lease._asdict(), "at": at})

    async def tombstones(self, before: str, *, limit: int = 100) -> list[RunHeader]:
        """One SELECT."""
        return [header_of(row) for row in (await self.pool.run(below.TOMBSTONES, (before, limit))).rows]

    async def expire(self, seen: RunHeader, expires_at_s: int) -> Reply[RunHeader]:
        """One UPDATE."""
        values = {"run_id": seen.run_id, "fence": seen.fence, "expires_at_s": expires_at_s}
        return await self.write_header(below.EXPIRE, values)

    async def purge(self) -> int:
        """One DELETE for each portion."""
        gone = 0
        while True:
            values = {"now": self._now(), "limit": PURGED_AT_ONCE}
            portion = (await self.pool.run(below.PURGE, values)).changed
            gone += portion
            if portion < PURGED_AT_ONCE:
                return gone

    # ---- For all verbs ----

    async def write_header(self, query: str, values: Mapping[str, object]) -> Reply[RunHeader]:
        """A conditional write that gives the header, or, refused, the header that stood in the way."""
        answer = await self.pool.run(query, values)
        if answer.rows:
            return Reply(True, header_of(answer.rows[0]))
        found = (await self.pool.run(HEADER, {"run_id": values["run_id"]})).rows
        return Reply(False, header_of(found[0]) if found else None)

    def _now(self) -> int | None:
        """What leases are judged by: None for the server's time."""
        return self.clock.now_ms() if self.clock is not None else None

    def _select(self, query: str) -> Select:
        """Asks a query for some values."""

        async def select(values: tuple[object, ...]) -> list[Row]:
            return (await self.pool.run(query, values)).rows

        return select


class _PostgresReader(SegmentReader):
    def __init__(self, pool: Pool) -> None:
        self._own = BlockingConnection(pool.server)

    def read(self, run_id: str, step_id: str, chunk: int, first: int, last: int) -> list[Segment]:
        answer = self._own.run(below.SEGMENT_RANGE, (run_id, step_id, chunk, first, last))
        return list(map(Segment._make, answer.rows))

    def close(self) -> None:
        self._own.close()
