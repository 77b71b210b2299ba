"""The journal in PostgreSQL: for runs that several machines share.

Every verb is one statement when it succeeds, so one round trip and one transaction; a refusal is followed by
one read of what stood in the way. Leases go by the server's time.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from durable_core.clock import Clock, SystemClock, rfc3339
from durable_core.journal import _postgres_chunks as chunks
from durable_core.journal import _postgres_headers as headers
from durable_core.journal import _postgres_steps as steps
from durable_core.journal._postgres_blocking import BlockingConnection
from durable_core.journal._postgres_chunks import PostgresChunks
from durable_core.journal._postgres_rows import header_of, listed
from durable_core.journal._postgres_schema import prepare
from durable_core.journal.base import Claim, Departure, Holding, Lease, Renewer, RunFilter
from durable_core.journal.paging import PAGE_ROWS, pages
from durable_core.records import ACTIVE, Chunk, Reply, RunHeader, Seen, StepRecord
from durable_core.run_filter import with_text

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from durable_core.journal._postgres_pool import Pool
    from durable_core.journal.chunks import ChunkLease

FIRST_ROWS: Final = 500
LAST: Final = "\U0010ffff"  # all ids that begin alike come before that beginning and this
_APPLIED: Final[Reply[StepRecord]] = Reply(True)


class PostgresJournal(PostgresChunks):
    """A journal in one schema of a database, shared by any number of processes and machines.

    Args:
        pool: The connections; closing the journal closes them.
        clock: What leases are judged by; the server's time when None.
    """

    def __init__(self, pool: Pool, clock: Clock | None = None) -> None:
        self.pool = pool
        self.clock = clock
        self._here = clock or SystemClock()  # for time stamps that only people read
        self._ready = False

    # ---- Headers ----

    async def create(self, header: RunHeader, lease_ms: int = 0) -> Reply[RunHeader]:
        """One INSERT, or UPDATE of the tombstone that it follows."""
        answer = await self.pool.run(headers.CREATE, headers.creation(header, lease_ms, self._now()))
        if answer.rows:
            ((lease_until_ms, due_at_ms),) = answer.rows
            return Reply(True, replace(header, lease_until_ms=lease_until_ms, due_at_ms=due_at_ms))
        return Reply(False, await self.header(header.run_id))

    async def acquire(
        self,
        seen: RunHeader,
        claim: Claim,
        *,
        statuses: Sequence[str] = ACTIVE,
        dead_owner: str | None = None,
    ) -> Reply[RunHeader]:
        """One UPDATE."""
        values = headers.acquisition(seen, claim, statuses, dead_owner, self._now(), self._at())
        return await self.write_header(headers.ACQUIRE, values)

    async def leave(
        self, lease: Lease, departure: Departure, *, wake_count: int | None = None
    ) -> Reply[RunHeader]:
        """One UPDATE."""
        values = headers.leaving(lease, departure, wake_count, self._here.now_ms())
        return await self.write_header(headers.LEAVE, values)

    async def cancel(self, seen: RunHeader, ended_at: str, error: str | None = None) -> Reply[RunHeader]:
        """One UPDATE."""
        values = {"run_id": seen.run_id, "fence": seen.fence, "at": ended_at, "error": error}
        return await self.write_header(headers.CANCEL, values)

    async def wake(self, seen: RunHeader) -> Reply[RunHeader]:
        """One UPDATE."""
        values = {"run_id": seen.run_id, "status": seen.status, "now": self._now()}
        return await self.write_header(headers.WAKE, values)

    async def due(self, *, limit: int = 100) -> list[RunHeader]:
        """One SELECT along an index."""
        answer = await self.pool.run(headers.DUE, {"now": self._now(), "limit": limit})
        return [listed(row) for row in answer.rows]

    async def header(self, run_id: str) -> RunHeader | None:
        """One SELECT; it tells the server's time as well."""
        answer = await self.pool.run(headers.HEADER_AND_TIME, {"run_id": run_id, "now": self._now()})
        if not answer.rows:
            return None
        *row, now_ms = answer.rows[0]
        self.skew_ms = now_ms - self._here.now_ms()
        return header_of(tuple(row))

    async def runs(self, wanted: RunFilter) -> list[RunHeader]:
        """One SELECT along an index; with a text more, where an error's traceback has it."""
        return await with_text(wanted, self._page)

    async def _page(self, wanted: RunFilter) -> list[RunHeader]:
        answer = await self.pool.run(*headers.listing(wanted))
        return [listed(row) for row in answer.rows]

    def open_renewer(self) -> Renewer:
        """Over a connection of its own."""
        return _PostgresRenewer(self)

    # ---- Steps ----

    async def begin(
        self, record: StepRecord, seen: Seen | None, lease: Holding, *, guarded: bool = False
    ) -> Reply[StepRecord]:
        """One INSERT or UPDATE, which reads the header too."""
        answer = await self.pool.run(*steps.beginning(record, seen, lease))
        return _APPLIED if answer.changed == 1 else await self._refused(record)

    async def commit(self, record: StepRecord) -> Reply[StepRecord]:
        """One UPDATE."""
        values = steps.outcome_of(record) + steps.attempt_of(record)
        answer = await self.pool.run(steps.COMMIT, values)
        return _APPLIED if answer.changed == 1 else await self._refused(record)

    async def put(self, record: StepRecord, seen: Seen | None, lease: Holding) -> Reply[StepRecord]:
        """As `begin`."""
        return await self.begin(record, seen, lease)

    async def step(self, run_id: str, step_id: str) -> StepRecord | None:
        """One SELECT."""
        found = (await self.pool.run(steps.RECORD, (run_id, step_id))).rows
        return StepRecord._make(found[0]) if found else None

    async def steps(self, run_id: str) -> AsyncIterator[list[StepRecord]]:
        """One SELECT a page, in the order of the primary key."""
        async for page in pages(self._select(steps.STEP_PAGE), (run_id,), ("",), lambda row: row[1:2]):
            yield list(map(StepRecord._make, page))

    async def replay(self, run_id: str, within: str = "") -> AsyncIterator[list[StepRecord]]:
        """The COMMITTED ones without half of their columns.

        The ids of a map's items lie side by side: they are leapt over, and the pages after that begin small,
        so that few of the next map's are read in vain.
        """
        query, since, rows = steps.REPLAY_FROM, within, FIRST_ROWS
        while True:
            found = (await self.pool.run(query, (run_id, since, f"{within}{LAST}", rows))).rows
            page = list(map(StepRecord._make, found))
            items = next((n for n, record in enumerate(page) if "[" in record.step_id[len(within) :]), None)
            if page[:items]:
                yield page[:items]
            query = steps.REPLAY_AFTER
            if items is not None:
                of_item = page[items].step_id
                since, rows = f"{of_item[: of_item.index('[', len(within)) + 1]}{LAST}", FIRST_ROWS
            elif len(page) < rows:
                return
            else:
                since, rows = page[-1].step_id, min(4 * rows, PAGE_ROWS)

    async def progressed(self, run_id: str, fence: int) -> bool:
        """One SELECT over the run's records."""
        return bool((await self.pool.run(steps.PROGRESSED, {"run_id": run_id, "fence": fence})).rows)

    # ---- The store ----

    async def open(self, *, create: bool = True) -> None:
        """Makes or migrates the schema, once per process."""
        if not self._ready:
            await prepare(self.pool, create=create)
            self._ready = True

    async def close(self) -> None:
        """Closes the connections of all threads; only when nothing is being written."""
        self.pool.close()
        self._ready = False

    def _at(self) -> str:
        return rfc3339(self._here.now_ms())

    async def _refused(self, record: StepRecord) -> Reply[StepRecord]:
        return Reply(False, await self.step(record.run_id, record.step_id))


class _PostgresRenewer(Renewer):
    def __init__(self, journal: PostgresJournal) -> None:
        self._own = BlockingConnection(journal.pool.server)
        self._clock = journal.clock

    def renew(self, lease: Lease, lease_ms: int) -> Reply[RunHeader]:
        now = self._clock.now_ms() if self._clock is not None else None
        renewed = self._own.run(headers.RENEW, headers.renewal(lease, lease_ms, now)).rows
        if renewed:
            return Reply(True, header_of(renewed[0]))
        found = self._own.run(headers.HEADER, {"run_id": lease.run_id}).rows
        return Reply(False, header_of(found[0]) if found else None)

    def renew_chunk(self, lease: ChunkLease, lease_ms: int) -> Reply[Chunk]:
        now = self._clock.now_ms() if self._clock is not None else None
        values = chunks.renewal(lease, lease_ms, now)
        renewed = self._own.run(chunks.RENEW, values).rows
        found = renewed or self._own.run(chunks.THE_CHUNK, lease._asdict()).rows
        return Reply(bool(renewed), Chunk._make(found[0]) if found else None)

    def close(self) -> None:
        self._own.close()
