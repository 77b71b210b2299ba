"""The memory journal's verbs on maps: the logs of their chunks, and who works on one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from durable_core.journal._memory_carrying import MemoryCarrying
from durable_core.journal._memory_rows import owns_chunk, pages
from durable_core.journal.chunks import ChunkDeparture, ChunkLease, SegmentReader, is_shared
from durable_core.records import ACTIVE, Chunk, Reply, Segment, StepRecord

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class MemoryChunks(MemoryCarrying):
    """The verbs on segments and chunks."""

    # ---- Segments ----

    async def append(self, segment: Segment) -> Reply[Segment]:
        """Where there is none."""
        with self.lock:
            key = (segment.run_id, segment.step_id, segment.chunk, segment.seq)
            old = self.logs.get(key)
            if old is not None:
                return Reply(False, old)
            self.logs[key] = segment
            return Reply(True, segment)

    async def segments(self, run_id: str, step_id: str, chunk: int = 0) -> AsyncIterator[list[Segment]]:
        """All of a chunk, by seq."""
        found = [(key, one) for key, one in list(self.logs.items()) if key[:3] == (run_id, step_id, chunk)]
        for page in pages([one for _, one in sorted(found)]):
            yield page

    async def last_segment(self, run_id: str, step_id: str, chunk: int = 0) -> Segment | None:
        """The one with the highest seq."""
        found = [key for key in list(self.logs) if key[:3] == (run_id, step_id, chunk)]
        return self.logs[max(found)] if found else None

    def open_reader(self) -> SegmentReader:
        """A reader of the same dict."""
        return _MemoryReader(self)

    # ---- Chunks ----

    async def claim(
        self, claimed: Chunk, seen: Chunk | None, lease_ms: int, *, dead_owner: str | None = None
    ) -> Reply[Chunk]:
        """Where there is none; else the chunk as seen, and its lease over or its owner dead."""
        with self.lock:
            old = self.claims.get(claimed[:3])
            now = self.clock.now_ms()
            if (old is None) != (seen is None):
                return Reply(False, old)
            if old is not None and seen is not None:
                as_seen = (old.fence, old.chunk_fence, old.status)
                free = old.lease_until_ms < now if dead_owner is None else old.owner == dead_owner
                if as_seen != (seen.fence, seen.chunk_fence, seen.status) or not free:
                    return Reply(False, old)
            return self.put_chunk(claimed._replace(lease_until_ms=now + lease_ms))

    async def leave_chunk(
        self, lease: ChunkLease, departure: ChunkDeparture, *, wakes: bool = False
    ) -> Reply[Chunk]:
        """My owner and chunk fence."""
        with self.lock:
            old = self.claims.get((lease.run_id, lease.step_id, lease.chunk))
            if old is None or not owns_chunk(old, lease):
                return Reply(False, old)
            header = self.headers.get(lease.run_id)
            if wakes and header is not None and header.status in ACTIVE:
                self.add_wake(header)
            return self.put_chunk(
                old._replace(
                    status=departure.status,
                    owner=old.owner if departure.keep_lease else None,
                    owner_process=old.owner_process if departure.keep_lease else None,
                    lease_until_ms=old.lease_until_ms if departure.keep_lease else 0,
                    succeeded=departure.succeeded,
                    failed=departure.failed,
                    gone=departure.gone,
                    error=departure.error,
                    updated_at=departure.updated_at,
                )
            )

    async def chunk(self, run_id: str, step_id: str, chunk: int) -> Chunk | None:
        """One chunk."""
        return self.claims.get((run_id, step_id, chunk))

    async def chunks(self, run_id: str, step_id: str) -> AsyncIterator[list[Chunk]]:
        """Those of a map, in order."""
        found = [one for key, one in sorted(self.claims.items()) if key[:2] == (run_id, step_id)]
        for page in pages(found):
            yield page

    async def open_maps(self, *, limit: int = 100) -> list[StepRecord]:
        """All records, looked through."""
        found = []
        for record in list(self.records.values()):
            header = self.headers.get(record.run_id)
            if is_shared(record) and header is not None and header.status in ACTIVE:
                found.append(record)
        return found[:limit]


class _MemoryReader(SegmentReader):
    def __init__(self, rows: MemoryChunks) -> None:
        self._rows = rows

    def read(self, run_id: str, step_id: str, chunk: int, first: int, last: int) -> list[Segment]:
        logs = self._rows.logs
        places = ((run_id, step_id, chunk, seq) for seq in range(first, last + 1))
        return [logs[place] for place in places if place in logs]

    def close(self) -> None:
        pass
