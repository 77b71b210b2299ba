"""The rows of a memory journal, and what several of its verbs do with them; each under the lock."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from durable_core.journal.chunks import ChunkLease
from durable_core.records import PENDING, STARTED, SUSPENDED, TOMBSTONE, Reply, RunHeader

if TYPE_CHECKING:
    from collections.abc import Iterator

    from durable_core.clock import Clock
    from durable_core.journal.base import Holding, Lease
    from durable_core.records import Chunk, Event, Segment, StepRecord

T = TypeVar("T")

PAGE_ROWS = 1000


class MemoryRows:
    """Everything that the journal knows.

    Attributes:
        headers, records, logs, letters, claims: Runs, steps, segments, events and chunks by their keys.
        lock: Held in every verb, because leases are renewed in a thread.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.headers: dict[str, RunHeader] = {}
        self.records: dict[tuple[str, str], StepRecord] = {}
        self.logs: dict[tuple[str, str, int, int], Segment] = {}
        self.letters: dict[tuple[str, str, int], Event] = {}
        self.claims: dict[tuple[str, str, int], Chunk] = {}
        self.lock = threading.RLock()

    def put_header(self, header: RunHeader) -> Reply[RunHeader]:
        """Applies a write of a header."""
        self.headers[header.run_id] = header
        return Reply(True, header)

    def put_chunk(self, chunk: Chunk) -> Reply[Chunk]:
        """Applies a write of a chunk."""
        self.claims[chunk[:3]] = chunk
        return Reply(True, chunk)

    def holds(self, lease: Holding) -> bool:
        """Whether its holder still owns the run, or the chunk."""
        if isinstance(lease, ChunkLease):
            chunk = self.claims.get((lease.run_id, lease.step_id, lease.chunk))
            return chunk is not None and owns_chunk(chunk, lease)
        return is_mine(self.headers.get(lease.run_id), lease)

    def add_wake(self, header: RunHeader) -> Reply[RunHeader]:
        """One more in the wake count of an active run; a sleeping one is due now."""
        woken = replace(header, wake_count=header.wake_count + 1)
        if header.status == SUSPENDED:
            woken = replace(woken, status=PENDING, due_at_ms=self.clock.now_ms())
        return self.put_header(woken)

    def put_outcome(self, record: StepRecord) -> Reply[StepRecord]:
        """Applies an outcome if the record is STARTED, of this attempt and this key."""
        old = self.records.get((record.run_id, record.step_id))
        if (
            old is None
            or (old.status, old.attempt_id) != (STARTED, record.attempt_id)
            or old.idempotency_key != record.idempotency_key
        ):
            return Reply(False, old)
        self.records[record.run_id, record.step_id] = record
        return Reply(True, record)


def is_mine(header: RunHeader | None, lease: Lease) -> bool:
    """Whether the holder of this lease still owns the run."""
    return header is not None and (header.owner, header.fence) == (lease.owner, lease.fence)


def owns_chunk(chunk: Chunk, lease: ChunkLease) -> bool:
    """Whether the holder of this lease still owns the chunk."""
    return (chunk.owner, chunk.chunk_fence) == (lease.owner, lease.chunk_fence)


def life(header: RunHeader | None) -> tuple[int, bool] | None:
    """Which life of an id: none yet, the one to come after a tombstone, or this one."""
    return (header.base_fence, header.status == TOMBSTONE) if header is not None else None


def pages(rows: list[T]) -> Iterator[list[T]]:
    """Rows as a store gives them."""
    for start in range(0, len(rows), PAGE_ROWS):
        yield rows[start : start + PAGE_ROWS]
