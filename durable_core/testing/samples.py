"""Headers and records for tests of journals: valid, and each told from the next by what the test names."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from durable_core.journal.base import Claim, Lease
from durable_core.records import COMMITTED, RUNNING, STARTED, RunHeader, StepRecord

if TYPE_CHECKING:
    from durable_core.journal.base import Journal
    from durable_core.records import Reply

RUN: Final = "run-1"
LEASE_MS: Final = 60_000
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
