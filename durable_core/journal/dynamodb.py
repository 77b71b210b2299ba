"""The journal in a DynamoDB table: no server to operate, and one write more or less is what it costs.

Everything of a run has one partition key, so that one Query reads it in order. All that decides is read from
the table, strongly consistent; the indexes only say which runs to look at.
"""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from durable_core.clock import Clock, SystemClock, rfc3339
from durable_core.journal import _conditions as conditions
from durable_core.journal import _conditions_chunks as of_chunks
from durable_core.journal import _dynamodb_listing as listing
from durable_core.journal._dynamodb_chunks import DynamoChunks
from durable_core.journal._dynamodb_keys import HEADER, LAST, SEGMENTS, STEPS, Item, partition, step_key
from durable_core.journal._dynamodb_requests import above, between, equals, one_of, query
from durable_core.journal._dynamodb_table import Table, to_its_end
from durable_core.journal._items import chunk_of, header_of, step_of
from durable_core.journal.base import Claim, Departure, Holding, Lease, Renewer, RunFilter
from durable_core.records import (
    ACTIVE,
    COMMITTED,
    FAILED,
    SKIPPED,
    Chunk,
    Reply,
    RunHeader,
    Seen,
    StepRecord,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from durable_core.aws.transport import Transport
    from durable_core.journal.chunks import ChunkLease

_AFTER_BRACKET: Final = "\\"  # the character after [


class DynamoJournal(DynamoChunks):
    """A journal in one table, shared by any number of processes anywhere.

    Args:
        transport: Sends the requests; closed with the journal.
        table: The table's name.
        clock: What leases are judged by: this machine's.
        page_items: Most items of a page that is read; DynamoDB's own limit, 1 MB, without.
    """

    def __init__(
        self,
        transport: Transport,
        table: str,
        *,
        clock: Clock | None = None,
        page_items: int | None = None,
    ) -> None:
        self.table = Table(transport, table, page_items)
        self.clock = clock or SystemClock()

    # ---- Headers ----

    async def create(self, header: RunHeader, lease_ms: int = 0) -> Reply[RunHeader]:
        """One PutItem."""
        if header.owner is None:
            made = replace(header, lease_until_ms=0)
        else:
            until_ms = self.clock.now_ms() + lease_ms
            made = replace(header, lease_until_ms=until_ms, due_at_ms=until_ms)
        reply = await to_its_end(self.table.write(conditions.create(self.table.name, made), header_of))
        return Reply(True, made) if reply.ok else reply

    async def acquire(
        self,
        seen: RunHeader,
        claim: Claim,
        *,
        statuses: Sequence[str] = ACTIVE,
        dead_owner: str | None = None,
    ) -> Reply[RunHeader]:
        """One UpdateItem."""
        now_ms = self.clock.now_ms()
        write = conditions.acquire(self.table.name, seen, claim, statuses, dead_owner, now_ms)
        return await to_its_end(self.table.write(write, header_of))

    async def leave(
        self, lease: Lease, departure: Departure, *, wake_count: int | None = None
    ) -> Reply[RunHeader]:
        """One UpdateItem."""
        now = rfc3339(self.clock.now_ms())
        write = conditions.leave(self.table.name, lease, departure, wake_count, now)
        return await self.table.write(write, header_of)

    async def cancel(self, seen: RunHeader, ended_at: str, error: str | None = None) -> Reply[RunHeader]:
        """One UpdateItem."""
        return await self.table.write(conditions.cancel(self.table.name, seen, ended_at, error), header_of)

    async def wake(self, seen: RunHeader) -> Reply[RunHeader]:
        """One UpdateItem."""
        if seen.status not in ACTIVE:
            return Reply(False, await self.header(seen.run_id))
        write = conditions.wake(self.table.name, seen, self.clock.now_ms())
        return await self.table.write(write, header_of)

    async def due(self, *, limit: int = 100) -> list[RunHeader]:
        """One Query a shard, and the headers from the table."""
        return await listing.due(self.table, self.clock.now_ms(), limit)

    async def header(self, run_id: str) -> RunHeader | None:
        """One GetItem."""
        return await self.table.read(run_id, HEADER, header_of)

    async def runs(self, wanted: RunFilter) -> list[RunHeader]:
        """One Query a status and shard, and the headers from the table."""
        return await listing.runs(self.table, wanted)

    def open_renewer(self) -> Renewer:
        """Over blocking requests."""
        return _DynamoRenewer(self)

    # ---- Steps ----

    async def begin(
        self, record: StepRecord, seen: Seen | None, lease: Holding, *, guarded: bool = False
    ) -> Reply[StepRecord]:
        """One PutItem; guarded, a transaction with a check of header or chunk, at twice the price."""
        write = conditions.begin(self.table.name, record, seen)
        if not guarded:
            return await self.table.write(write, step_of, record.step_id)
        held = conditions.held(self.table.name, lease)
        refused = await self.table.write_all(held, write, step_id=record.step_id)
        return Reply(True) if refused is None else Reply(False, await self.step_in(refused[1], record))

    async def commit(self, record: StepRecord) -> Reply[StepRecord]:
        """One PutItem."""
        write = conditions.commit(self.table.name, record)
        return await self.table.write(write, step_of, record.step_id)

    async def put(self, record: StepRecord, seen: Seen | None, lease: Holding) -> Reply[StepRecord]:
        """One PutItem."""
        return await self.begin(record, seen, lease)

    async def step(self, run_id: str, step_id: str) -> StepRecord | None:
        """One GetItem."""
        return await self.table.read(run_id, step_key(step_id), step_of)

    async def steps(self, run_id: str) -> AsyncIterator[list[StepRecord]]:
        """One Query a page."""
        async for page in self.table.pages(self.of_run(run_id, STEPS), run_id):
            yield list(map(step_of, page))

    async def replay(self, run_id: str, within: str = "") -> AsyncIterator[list[StepRecord]]:
        """One Query a page.

        The ids of a map's items lie side by side. A page that ends among them is followed by one that begins
        after them, so that at most one page of a map is read in vain.
        """
        of_run, last = equals("pk", partition(run_id)), f"{STEPS}{within}{LAST}"
        request = query(self.table.name, of_run & between("sk", f"{STEPS}{within}", last))
        start: Item | None = None
        while True:
            items, start = await self.table.page(request, start, run_id=run_id)
            wanted = [item for item in items if _item_of_map(item, within) is None]
            if wanted:
                yield list(map(step_of, wanted))
            if start is None:
                return
            items_of = _item_of_map(start, within)
            if items_of is not None:
                request = query(self.table.name, of_run & between("sk", f"{items_of}{_AFTER_BRACKET}", last))
                start = None

    async def progressed(self, run_id: str, fence: int) -> bool:
        """Queries over the run's records, until one is found: once per takeover from a dead owner."""
        outcome = one_of("status", (COMMITTED, SKIPPED, FAILED)) | above("items", 0)
        request = query(
            self.table.name,
            equals("pk", partition(run_id)) & between("sk", SEGMENTS, f"{STEPS}{LAST}"),
            matching=equals("fence", fence) & outcome,
            only=("sk",),
        )
        async with aclosing(self.table.pages(request, run_id)) as pages:
            return await anext(pages, None) is not None

    # ---- The store ----

    async def open(self, *, create: bool = True) -> None:
        """Nothing: the first request connects, and `durable init` makes the table."""

    async def close(self) -> None:
        """Closes the transport, which connects again if it is used again."""
        await self.table.transport.close()


class _DynamoRenewer(Renewer):
    def __init__(self, journal: DynamoJournal) -> None:
        self._table, self._clock = journal.table, journal.clock

    def renew(self, lease: Lease, lease_ms: int) -> Reply[RunHeader]:
        until_ms = self._clock.now_ms() + lease_ms
        return self._table.write_now(conditions.renew(self._table.name, lease, until_ms), header_of)

    def renew_chunk(self, lease: ChunkLease, lease_ms: int) -> Reply[Chunk]:
        until_ms = self._clock.now_ms() + lease_ms
        return self._table.write_now(of_chunks.renew(self._table.name, lease, until_ms), chunk_of)

    def close(self) -> None:
        pass  # the connections are the journal's


def _item_of_map(item: Item, within: str) -> str | None:
    """What the keys of its map's items begin with, without the bracket; None for other steps."""
    sort_key: str = item["sk"]["S"]
    bracket = sort_key.find("[", len(STEPS) + len(within))
    return sort_key[:bracket] if bracket >= 0 else None
