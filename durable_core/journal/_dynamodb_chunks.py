"""The verbs of the DynamoDB journal on chunks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from durable_core.aws.table import BY_DUE
from durable_core.errors import JournalUnavailable
from durable_core.journal import _conditions_chunks as conditions
from durable_core.journal._dynamodb_below import DynamoBelow
from durable_core.journal._dynamodb_keys import OPEN_MAPS_SHARD, STEPS, chunk_key, chunks_key, run_of, text_of
from durable_core.journal._dynamodb_requests import equals, query
from durable_core.journal._dynamodb_table import to_its_end, together
from durable_core.journal._items import chunk_of, header_of, step_of
from durable_core.journal.chunks import is_shared
from durable_core.records import ACTIVE, Chunk, Reply, RunHeader, StepRecord

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from durable_core.journal.chunks import ChunkDeparture, ChunkLease

_MOST_TRIES: Final = 20


class DynamoChunks(DynamoBelow):
    """What the journal does with chunks."""

    async def claim(
        self, claimed: Chunk, seen: Chunk | None, lease_ms: int, *, dead_owner: str | None = None
    ) -> Reply[Chunk]:
        """One PutItem."""
        now_ms = self.clock.now_ms()
        held = claimed._replace(lease_until_ms=now_ms + lease_ms)
        write = conditions.claim(self.table.name, held, seen, dead_owner, now_ms)
        reply = await to_its_end(self.table.write(write, chunk_of, claimed.step_id))
        return Reply(True, held) if reply.ok else reply

    async def leave_chunk(
        self, lease: ChunkLease, departure: ChunkDeparture, *, wakes: bool = False
    ) -> Reply[Chunk]:
        """One UpdateItem, or a transaction of two: then the header is read first, for its status."""
        table = self.table
        write = conditions.leave(table.name, lease, departure)
        for _ in range(_MOST_TRIES):
            header: RunHeader | None = await self.header(lease.run_id) if wakes else None
            if header is None or header.status not in ACTIVE:
                return await table.write(write, chunk_of, lease.step_id)
            wake = conditions.wake(table.name, header, self.clock.now_ms())
            refused = await table.write_all(write, wake, step_id=lease.step_id)
            if refused is None:
                return Reply(True)
            if refused[0] is not None:
                return Reply(False, chunk_of(refused[0]) if refused[0] else None)
        raise JournalUnavailable(
            "the run changes its status all the time", run_id=lease.run_id, remedy="Leave the chunk again"
        )

    async def chunk(self, run_id: str, step_id: str, chunk: int) -> Chunk | None:
        """One GetItem."""
        return await self.table.read(run_id, chunk_key(step_id, chunk), chunk_of)

    async def chunks(self, run_id: str, step_id: str) -> AsyncIterator[list[Chunk]]:
        """One Query a page."""
        async for page in self.table.pages(self.of_run(run_id, chunks_key(step_id)), run_id):
            yield list(map(chunk_of, page))

    async def open_maps(self, *, limit: int = 100) -> list[StepRecord]:
        """One Query along an index, and the records and headers from the table."""
        request = query(self.table.name, equals("due_shard", OPEN_MAPS_SHARD), index=BY_DUE)
        items, _ = await self.table.page(request, None, limit=limit)
        named = [(run_of(item), text_of(item, "sk")) for item in items]
        headers = await self.table.headers(list({run_id for run_id, _ in named})) if named else {}
        active = {run_id for run_id, item in headers.items() if header_of(item).status in ACTIVE}
        found = await together(
            self.table.read(run_id, sort_key, step_of)
            for run_id, sort_key in named
            if run_id in active and sort_key.startswith(STEPS)
        )
        return [record for record in found if record is not None and is_shared(record)]
