"""Asks several journals the same, of the chunks of maps too: claimed, renewed, left, and begun in."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from hypothesis import strategies as st
from hypothesis.stateful import rule

from durable_core.journal.base import Journal, as_seen
from durable_core.journal.chunks import SHARED_MARK, ChunkDeparture, ChunkLease
from durable_core.records import COMPLETED, FAILED, MAP_KIND, PENDING, Chunk, Reply, StepRecord
from durable_core.testing.journal_chunks import renewed
from durable_core.testing.samples import AT, attempt, chunk, chunk_lease, gathered
from tests.concurrency.same_journals import RUNS, SameJournals, ago, leases_ms, owners, rarely, runs

MAP: Final = "m"
SHARED: Final = f'{{{SHARED_MARK} 2, "chunks": 2, "total": 3}}'
INSIDE: Final = ("m[0]/s", "m[0]/m[1]/s")

numbers = st.integers(0, 1)


class SameChunks(SameJournals):
    """What any worker may have seen of a chunk by then."""

    def __init__(self) -> None:
        self.claims: dict[tuple[str, int], list[Chunk]] = {(run, n): [] for run in RUNS for n in range(2)}
        super().__init__()

    @rule(run=runs, past=ago)
    def begin_map(self, run: str, past: int) -> None:
        lease = self.lease(run, past)
        old = self.now(run, MAP)
        new = attempt(MAP, f"map{self.count()}", run, fence=lease.fence, kind=MAP_KIND, detail=SHARED)
        self.ask(run, lambda journal: journal.begin(new, as_seen(old), lease))

    @rule(run=runs, number=numbers, past=ago, owner=owners, lease_ms=leases_ms, is_dead=st.booleans())
    def claim_chunk(self, run: str, number: int, past: int, owner: str, lease_ms: int, is_dead: bool) -> None:
        seen = self.seen_chunk(run, number, past)
        fence = seen.chunk_fence + 1 if seen is not None else 1
        new = chunk(number, owner, fence, run_id=run, fence=1 + self.count() % 2)
        dead = seen.owner if is_dead and seen is not None else None
        self.ask_chunk(run, number, lambda journal: journal.claim(new, seen, lease_ms, dead_owner=dead))

    @rule(run=runs, number=numbers, past=ago, lease_ms=leases_ms)
    def renew_chunk(self, run: str, number: int, past: int, lease_ms: int) -> None:
        lease = self.held(run, number, past)
        self.ask_chunk(run, number, lambda journal: renewed(journal, lease, lease_ms))

    @rule(
        run=runs,
        number=numbers,
        past=ago,
        status=st.sampled_from([PENDING, COMPLETED, FAILED]),
        wakes=st.booleans(),
        keeps=rarely,
    )
    def leave_chunk(self, run: str, number: int, past: int, status: str, wakes: bool, keeps: bool) -> None:
        lease = self.held(run, number, past)
        left = ChunkDeparture(
            status=status, succeeded=self.count(), failed=1, error='{"code":"E"}', keep_lease=keeps,
            gone='{"idle":1}', updated_at=AT,
        )  # fmt: skip
        self.ask_chunk(run, number, lambda journal: journal.leave_chunk(lease, left, wakes=wakes))

    @rule(run=runs, number=numbers, past=ago, step=st.sampled_from(INSIDE), guarded=st.booleans())
    def begin_inside(self, run: str, number: int, past: int, step: str, guarded: bool) -> None:
        lease = self.held(run, number, past)
        old = self.now(run, step)
        new = attempt(step, f"in{self.count()}", run, fence=lease.fence)
        self.ask(run, lambda journal: journal.begin(new, as_seen(old), lease, guarded=guarded))

    @rule(run=runs, number=numbers, owner=owners, wakes=st.booleans())
    def work_on(self, run: str, number: int, owner: str, wakes: bool) -> None:
        """From end to end: drawn verb by verb it hardly ever comes so far."""
        self.drive(run, owner)
        self.begin_map(run, 0)
        self.claim_chunk(run, number, 0, owner, 10, True)
        self.begin_inside(run, number, 0, INSIDE[0], True)
        self.leave_chunk(run, number, 0, COMPLETED, wakes, False)

    # ---- What is the same ----

    def ask_chunk(self, run: str, number: int, write: Callable[[Journal], Awaitable[Reply[Chunk]]]) -> None:
        """A conditional write of a chunk, then the same chunk."""
        self.ask(run, write)
        now = self.same(lambda journal: journal.chunk(run, MAP, number))
        if now is not None and now not in self.claims[run, number]:
            self.claims[run, number].append(now)

    def all_rows_are_the_same(self) -> None:
        super().all_rows_are_the_same()
        self.same(lambda journal: _in_order(journal.open_maps()))
        for run in RUNS:
            self.same(lambda journal, run=run: gathered(journal.chunks(run, MAP)))

    # ---- What somebody may know ----

    def seen_chunk(self, run: str, number: int, past: int) -> Chunk | None:
        """The chunk, or one that it was some time ago."""
        known = self.claims[run, number]
        return known[max(0, len(known) - 1 - past)] if known else None

    def held(self, run: str, number: int, past: int) -> ChunkLease:
        """Of the last owner, or of one before."""
        had = [one for one in self.claims[run, number] if one.owner is not None]
        return chunk_lease(had[max(0, len(had) - 1 - past)] if had else chunk(number, "nobody", run_id=run))


async def _in_order(maps: Awaitable[list[StepRecord]]) -> list[StepRecord]:
    return sorted(await maps)
