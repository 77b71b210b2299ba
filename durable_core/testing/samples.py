"""Headers and records for tests of journals: valid, and each told from the next by what the test names."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from durable_core.journal.base import Claim, Lease
from durable_core.journal.chunks import ChunkLease
from durable_core.records import (
    COMMITTED,
    ENDED,
    PRUNING,
    RUNNING,
    STARTED,
    Chunk,
    Event,
    RunHeader,
    Segment,
    StepRecord,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from durable_core.journal.base import Journal
    from durable_core.records import Reply

T = TypeVar("T")

RUN: Final = "run-1"
LEASE_MS: Final = 60_000
MANY: Final = 2501  # records: more than a page of any store
OVER_MS: Final = -60_000  # a lease that was over before it began: no test has to wait
AT: Final = "2026-01-02T03:04:05.678Z"


def header(run_id: str = RUN, **columns: Any) -> RunHeader:
    """A run as it is created: waiting for somebody to drive it, unless the columns say otherwise."""
    made = RunHeader(
        run_id=run_id,
        workflow="report",
        fingerprint="f" * 64,
        input_hash="1" * 64,
        input_data_hash="2" * 64,
        input_data=b'{"task":"Q3"}',
        input_codec="json",
        input_size=13,
        created_by="creator",
        created_at=AT,
        updated_at=AT,
    )
    return replace(made, **columns)


def owned(run_id: str = RUN, owner: str = "me", **columns: Any) -> RunHeader:
    """A run as it is created by who drives it."""
    made = header(run_id, status=RUNNING, owner=owner, owner_process="{}", fence=1, created_by=owner)
    return replace(made, **columns)


def claim(owner: str, lease_ms: int = LEASE_MS, **fields: Any) -> Claim:
    """What an acquirer writes."""
    return replace(Claim(owner=owner, owner_process="{}", lease_ms=lease_ms, crashes=0), **fields)


def lease_of(of: RunHeader | None) -> Lease:
    """What the owner in a header holds."""
    if of is None or of.owner is None:
        raise AssertionError(f"nobody holds the run: {of}")
    return Lease(of.run_id, of.owner, of.fence, of.base_fence)


def attempt(step_id: str = "s", attempt_id: str = "a1", run_id: str = RUN, **columns: Any) -> StepRecord:
    """A STARTED record of the first owner."""
    made = StepRecord(
        run_id, step_id, 0, STARTED, "3" * 64, None, None, None, None, AT, None, "k" * 64, 1, 0, attempt_id, 1
    )
    return made._replace(**columns)


def committed(of: StepRecord, output: bytes = b'"done"', **columns: Any) -> StepRecord:
    """Its outcome."""
    outcome = of._replace(
        status=COMMITTED,
        output_hash="4" * 64,
        output_data=output,
        codec="json",
        committed_at=AT,
        output_size=len(output),
    )
    return outcome._replace(**columns)


def segment(seq: int = 0, attempt_id: str = "g1", step_id: str = "m", **columns: Any) -> Segment:
    """Outcomes of two items, written by the first owner; with `items=0` and no data it claims the chunk."""
    data = b"[[0,1],[1,2]]"
    made = Segment(
        RUN, step_id, 0, seq, attempt_id, 1, 0, 2, 2, 0, data, "json", len(data), "7" * 64, None, AT
    )
    return made._replace(**columns)


def event(seq: int = 0, event_id: str = "e1", name: str = "approval", **columns: Any) -> Event:
    """What was sent to the first life of a run."""
    made = Event(RUN, name, seq, event_id, 1, b'"yes"', None, "json", 5, "8" * 64, AT)
    return made._replace(**columns)


def chunk(number: int = 0, owner: str = "me", chunk_fence: int = 1, **columns: object) -> Chunk:
    """A chunk as its owner claims it."""
    made = Chunk(RUN, "m", number, 1, chunk_fence, RUNNING, owner, "{}", 0, updated_at=AT)
    return made._replace(**columns)  # type: ignore[arg-type]  # columns of a chunk


def chunk_lease(of: Chunk) -> ChunkLease:
    """What the owner of a chunk holds."""
    return ChunkLease(of.run_id, of.owner or "", of.fence, 0, of.step_id, of.chunk, of.chunk_fence)


async def gathered(pages: AsyncIterator[list[T]]) -> list[T]:
    """All rows of all pages."""
    found: list[T] = []
    async for page in pages:
        found += page
        assert len(found) < 10_000, "the pages have no end"
    return found


async def seen_now(journal: Journal, run_id: str = RUN) -> RunHeader:
    """The header of a run that must be there."""
    found = await journal.header(run_id)
    if found is None:
        raise AssertionError(f"there is no run {run_id!r}")
    return found


async def time_of(journal: Journal, run_id: str) -> int:
    """What a journal's clock says, in milliseconds: where a lease of no length ends, of a run made for it."""
    reply = await journal.create(owned(run_id), 0)
    if reply.row is None:
        raise AssertionError(f"the run {run_id!r} couldn't be made")
    return reply.row.lease_until_ms


async def pruning(journal: Journal, owner: str = "pruner", run_id: str = RUN) -> Lease:
    """The lease of who prunes an ended run, or goes on with that."""
    reply = await journal.acquire(
        await seen_now(journal, run_id),
        claim(owner, OVER_MS, status=PRUNING),
        statuses=(*ENDED, PRUNING),
    )
    return lease_of(reply.row)


async def driven(journal: Journal, run_id: str = RUN, owner: str = "me", lease_ms: int = LEASE_MS) -> Lease:
    """A new run and the lease of its owner."""
    reply = await journal.create(owned(run_id, owner), lease_ms)
    return lease_of(reply.row)


async def taken_over(journal: Journal, owner: str = "rival", run_id: str = RUN) -> Lease:
    """The lease of who takes over a run whose lease is over."""
    seen = await journal.header(run_id)
    if seen is None:
        raise AssertionError(f"there is no run {run_id!r}")
    reply = await journal.acquire(seen, claim(owner))
    return lease_of(reply.row)


async def renewed(journal: Journal, lease: Lease, lease_ms: int = LEASE_MS) -> Reply[RunHeader]:
    """What a renewal comes to, made as the engine makes it: in a thread, over a renewer opened there."""

    def renew() -> Reply[RunHeader]:
        renewer = journal.open_renewer()
        try:
            return renewer.renew(lease, lease_ms)
        finally:
            renewer.close()

    return await asyncio.to_thread(renew)
