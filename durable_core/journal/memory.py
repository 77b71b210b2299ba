"""The journal in a dict: the protocol in its shortest form, for reading and for tests.

Each verb is atomic: it runs on one thread without a break, and under a lock for the thread that renews.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from durable_core.clock import Clock, SystemClock, rfc3339
from durable_core.journal._memory_below import MemoryBelow
from durable_core.journal._memory_rows import is_mine, owns_chunk, pages
from durable_core.journal.base import (
    Claim,
    Departure,
    Holding,
    Lease,
    Renewer,
    RunFilter,
    as_seen,
)
from durable_core.records import (
    ACTIVE,
    CANCELLED,
    ENDED,
    PRUNING,
    STARTED,
    TOMBSTONE,
    Reply,
    RunHeader,
    Seen,
    StepRecord,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from durable_core.journal.chunks import ChunkLease
    from durable_core.records import Chunk


class MemoryJournal(MemoryBelow):
    """Keeps runs for as long as the object lives.

    Args:
        clock: What leases are judged by.
        checks_header: Whether `begin` requires the caller's header, as SQL stores do, or only when guarded,
            as DynamoDB does.
    """

    def __init__(self, clock: Clock | None = None, *, checks_header: bool = True) -> None:
        super().__init__(clock or SystemClock())
        self.checks_header = checks_header

    # ---- Headers ----

    async def create(self, header: RunHeader, lease_ms: int = 0) -> Reply[RunHeader]:
        """Over nothing, or over the tombstone whose fence is the new header's base_fence."""
        with self.lock:
            old = self.headers.get(header.run_id)
            if old is not None and not (old.status == TOMBSTONE and old.fence == header.base_fence):
                return Reply(False, old)
            if header.owner is None:
                return self.put_header(replace(header, lease_until_ms=0))
            until_ms = self.clock.now_ms() + lease_ms
            return self.put_header(replace(header, lease_until_ms=until_ms, due_at_ms=until_ms))

    async def acquire(
        self,
        seen: RunHeader,
        claim: Claim,
        *,
        statuses: Sequence[str] = ACTIVE,
        dead_owner: str | None = None,
    ) -> Reply[RunHeader]:
        """The fence as seen, a status that may be acquired, and the lease over or the owner dead."""
        with self.lock:
            old = self.headers.get(seen.run_id)
            now = self.clock.now_ms()
            free = old is not None and (
                old.lease_until_ms < now if dead_owner is None else old.owner == dead_owner
            )
            if old is None or old.fence != seen.fence or old.status not in statuses or not free:
                return Reply(False, old)
            return self.put_header(
                replace(
                    old,
                    status=claim.status,
                    owner=claim.owner,
                    owner_process=claim.owner_process,
                    fence=seen.fence + 1,
                    lease_until_ms=now + claim.lease_ms,
                    due_at_ms=now + claim.lease_ms,
                    crashes=claim.crashes,
                    gone=claim.gone,
                    fingerprint=claim.fingerprint or old.fingerprint,
                    updated_at=rfc3339(now),
                    ended_at=old.ended_at if claim.status == PRUNING else None,
                )
            )

    async def leave(
        self, lease: Lease, departure: Departure, *, wake_count: int | None = None
    ) -> Reply[RunHeader]:
        """My owner and fence and, if given, the wake count."""
        with self.lock:
            old = self.headers.get(lease.run_id)
            if (
                not is_mine(old, lease)
                or old is None
                or (wake_count is not None and old.wake_count != wake_count)
            ):
                return Reply(False, old)
            now = rfc3339(self.clock.now_ms())
            ended_at = old.ended_at if departure.status == PRUNING else None
            return self.put_header(
                replace(
                    old,
                    status=departure.status,
                    owner=old.owner if departure.keep_lease else None,
                    owner_process=old.owner_process if departure.keep_lease else None,
                    lease_until_ms=old.lease_until_ms if departure.keep_lease else 0,
                    due_at_ms=departure.due_at_ms,
                    output_hash=departure.output_hash,
                    output_data=departure.output_data,
                    output_ref=departure.output_ref,
                    output_codec=departure.output_codec,
                    output_size=departure.output_size,
                    error=old.error if departure.keep_error else departure.error,
                    idle_drives=departure.idle_drives,
                    counts=departure.counts,
                    updated_at=now,
                    ended_at=now if departure.status in ENDED else ended_at,
                )
            )

    async def cancel(self, seen: RunHeader, ended_at: str, error: str | None = None) -> Reply[RunHeader]:
        """The fence as seen, and still active."""
        with self.lock:
            old = self.headers.get(seen.run_id)
            if old is None or old.fence != seen.fence or old.status not in ACTIVE:
                return Reply(False, old)
            return self.put_header(
                replace(
                    old,
                    status=CANCELLED,
                    owner=None,
                    owner_process=None,
                    fence=seen.fence + 1,
                    lease_until_ms=0,
                    error=error,
                    updated_at=ended_at,
                    ended_at=ended_at,
                )
            )

    async def wake(self, seen: RunHeader) -> Reply[RunHeader]:
        """The status as seen, and active."""
        with self.lock:
            old = self.headers.get(seen.run_id)
            if old is None or old.status != seen.status or old.status not in ACTIVE:
                return Reply(False, old)
            return self.add_wake(old)

    async def due(self, *, limit: int = 100) -> list[RunHeader]:
        """Active, due and under no lease."""
        now = self.clock.now_ms()
        found = [
            header
            for header in list(self.headers.values())
            if header.status in ACTIVE and header.due_at_ms <= now and header.lease_until_ms < now
        ]
        found.sort(key=lambda header: (header.due_at_ms, header.run_id))
        return found[:limit]

    async def header(self, run_id: str) -> RunHeader | None:
        """The header as it is now."""
        return self.headers.get(run_id)

    async def runs(self, wanted: RunFilter) -> list[RunHeader]:
        """One page, newest first."""
        found = [header for header in list(self.headers.values()) if wanted.fits(header)]
        found.sort(key=lambda header: (header.created_at, header.run_id), reverse=True)
        return found[: wanted.limit]

    def open_renewer(self) -> Renewer:
        """A renewer over the same dict."""
        return _MemoryRenewer(self)

    # ---- Steps ----

    async def begin(
        self, record: StepRecord, seen: Seen | None, lease: Holding, *, guarded: bool = False
    ) -> Reply[StepRecord]:
        """The record as last seen; the header, or the chunk, mine where that is checked."""
        with self.lock:
            old = self.records.get((record.run_id, record.step_id))
            checked = self.checks_header or guarded
            if as_seen(old) != seen or (checked and not self.holds(lease)):
                return Reply(False, old)
            self.records[record.run_id, record.step_id] = record
            return Reply(True, record)

    async def commit(self, record: StepRecord) -> Reply[StepRecord]:
        """STARTED, this attempt, this key."""
        with self.lock:
            return self.put_outcome(record)

    async def put(self, record: StepRecord, seen: Seen | None, lease: Holding) -> Reply[StepRecord]:
        """As begin."""
        return await self.begin(record, seen, lease)

    async def step(self, run_id: str, step_id: str) -> StepRecord | None:
        """One record."""
        return self.records.get((run_id, step_id))

    async def steps(self, run_id: str) -> AsyncIterator[list[StepRecord]]:
        """All records of a run."""
        found = [record for (of, _), record in list(self.records.items()) if of == run_id]
        for page in pages(found):
            yield page

    async def replay(self, run_id: str, within: str = "") -> AsyncIterator[list[StepRecord]]:
        """The records of a run whose ids begin so, but those of map items below."""
        async for page in self.steps(run_id):
            yield [
                record
                for record in page
                if record.step_id.startswith(within) and "[" not in record.step_id[len(within) :]
            ]

    async def progressed(self, run_id: str, fence: int) -> bool:
        """Whether any outcome carries the fence, or a segment that isn't a claim."""
        return any(
            record.fence == fence and record.status != STARTED
            for (of, _), record in list(self.records.items())
            if of == run_id
        ) or any(
            segment.fence == fence and segment.items > 0
            for (of, *_), segment in list(self.logs.items())
            if of == run_id
        )

    # ---- The store ----

    async def open(self, *, create: bool = True) -> None:
        """Nothing to connect to."""

    async def close(self) -> None:
        """Nothing to give back."""


class _MemoryRenewer(Renewer):
    def __init__(self, journal: MemoryJournal) -> None:
        self._journal = journal

    def renew(self, lease: Lease, lease_ms: int) -> Reply[RunHeader]:
        journal = self._journal
        with journal.lock:
            old = journal.headers.get(lease.run_id)
            if old is None or not is_mine(old, lease):
                return Reply(False, old)
            until_ms = journal.clock.now_ms() + lease_ms
            return journal.put_header(replace(old, lease_until_ms=until_ms, due_at_ms=until_ms))

    def renew_chunk(self, lease: ChunkLease, lease_ms: int) -> Reply[Chunk]:
        journal = self._journal
        with journal.lock:
            old = journal.claims.get((lease.run_id, lease.step_id, lease.chunk))
            if old is None or not owns_chunk(old, lease):
                return Reply(False, old)
            return journal.put_chunk(old._replace(lease_until_ms=journal.clock.now_ms() + lease_ms))

    def close(self) -> None:
        pass
