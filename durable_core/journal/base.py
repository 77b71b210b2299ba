"""The journal: who may write what, and when.

A run has one header and one record per step. Any number of processes may try to drive a run; these rules let
exactly one of them get anything done, without a lock that a dead process could keep.

**The header** says who drives the run. `create` and `acquire` make the caller its *owner*, under a *fence*
one higher than the last; the owner holds a *lease* that it must renew. Once the lease is over, or the owner
is dead for certain, anyone may acquire. Safety never rests on clocks: a lease only decides who may *try*,
fences and attempts decide whose writes count.

    A   acquire 1 ── begin s1 ── (paused past its lease) ──────────────── commit s1: refused ─▶ Fenced
    B                                 acquire 2 ── begin s1 anew ── commit s1 ── end

**A step record** moves from nothing to STARTED (`begin`), and from STARTED to COMMITTED, FAILED, or to
STARTED with an ended attempt (`commit`). `begin` compares the record with what its writer saw last, so of two
writers that saw the same record one wins. `commit` compares the attempt: an outcome counts only if nobody has
begun the step anew. Nothing that is COMMITTED is ever written again in the run that committed it. (In a fork,
a copied record that is called with another input is begun anew; a step that was skipped by hand can be
skipped again.)

**Segments** are the log of a map: put at (step, chunk, seq), each place once, in order and without gaps. An
owner claims a chunk by an empty segment at the first free place, and then reads everything before it, so that
a late segment of the owner before is refused. A lower fence in the way: the next place. A higher one: give
way.

    A   segment 0 ── (paused) ────────────────── segment 1 ─▶ refused by B's claim ─▶ Fenced
    B                  claim: segment 1, empty ── reads 0 ── segment 2

**Events** wait in the run's life that they were sent to; each is taken once, in one transaction with the
outcome of the step that waited. Whatever a sleeping run may wait for adds to `wake_count` in one transaction
with its own record, and a driver suspends only under the count it knew before its last look: no wake-up is
lost.

    A   count 0 ── looks: no event ──────────────────────── suspend [count = 0] ─▶ refused: look again
    S                               event, count 1

**Pruning** acquires an ended run as PRUNING, deletes what lies under it, and leaves a tombstone that keeps
the fence: the next life of the id goes on from there, and what a zombie writes late lies under it.

**Crashes.** An owner that is taken over from while the header is RUNNING never released the run. Steps that
were in flight under its fence, and aren't marked `interrupted`, count a crash when they are begun again; the
run counts one more if that owner had finished nothing. `gone` in the header remembers such fences, and which
are dead for certain.

Every write is conditional and answers with a `Reply`: applied, or refused with the record that stood in the
way. An applied create, acquire, renew, leave or cancel gives the header as it is now; begin, commit and put
needn't. Who *may* write is the engine's decision; *that nobody else did* is the journal's. A writer whose
reply was lost asks again and recognises its own record in the refusal: by `owner` in a header, by
`attempt_id` in a step or segment, by `event_id` in an event.

A journal that can't be reached or can't take a write raises `JournalUnavailable`; bad data is a
`CorruptRecord`. A read error is never an empty answer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from durable_core.journal.carrying import Carrying
from durable_core.journal.chunks import ChunkLease, ChunkVerbs
from durable_core.journal.damaged import DamageVerbs
from durable_core.records import (
    ACTIVE,
    RUNNING,
    Child,
    Chunk,
    Event,
    Reply,
    RunHeader,
    Seen,
    StepRecord,
)
from durable_core.run_filter import RunFilter as RunFilter  # noqa: TC001 - for who implements this contract

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence


class Lease(NamedTuple):
    """What its owner holds of a run.

    Attributes:
        owner: Random, fresh per acquire.
        fence: The run's takeover number under this owner.
        base_fence: Records with a fence up to this are of an earlier life of the id.
    """

    run_id: str
    owner: str
    fence: int
    base_fence: int = 0


Holding = Lease | ChunkLease
"""What gives the right to begin steps: of the whole run, or of those inside the items of a chunk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What an acquirer writes into the header.

    Attributes:
        lease_ms: How long the lease lasts from now.
        crashes: The run's count of crashes as it is from now on.
        gone: What is known from now on of owners that never released the run.
    """

    owner: str
    owner_process: str
    lease_ms: int
    crashes: int
    gone: str | None = None
    status: str = RUNNING
    fingerprint: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Departure:
    """What an owner writes into the header as it leaves the run.

    Attributes:
        status: PENDING (released), SUSPENDED, or COMPLETED, FAILED.
        due_at_ms: When a worker should next look at the run.
        keep_lease: The owner and its lease stay until the lease is over, or the process is dead: something
            that it can't stop is still at work. A takeover then counts no crash.
        keep_error: Leave the recorded error of an earlier end as it is.
        idle_drives: The run's count as it is from now on.
    """

    status: str
    due_at_ms: int = 0
    output_hash: str | None = None
    output_data: bytes | None = None
    output_ref: str | None = None
    output_codec: str | None = None
    output_size: int | None = None
    error: str | None = None
    keep_lease: bool = False
    keep_error: bool = False
    counts: str | None = None
    idle_drives: int = 0


class Renewer(ABC):
    """Renews leases from a thread of its own, over a connection of its own; blocking."""

    @abstractmethod
    def renew(self, lease: Lease, lease_ms: int) -> Reply[RunHeader]:
        """Lengthens the lease if the header has its owner and fence; the reply has the header either way."""

    @abstractmethod
    def renew_chunk(self, lease: ChunkLease, lease_ms: int) -> Reply[Chunk]:
        """The same for a chunk, by its owner and chunk fence; the reply has the chunk either way."""

    @abstractmethod
    def close(self) -> None:
        """Gives the connection back."""


class Journal(Carrying, ChunkVerbs, DamageVerbs):
    """A store of runs and steps.

    Attributes:
        live: How many steps are between their begin and their outcome now, kept by the engine. A journal may
            hold a write back for a turn of the event loop, to share its transaction, only while more than one
            is live.
        skew_ms: How far the clock that leases go by is ahead of this process's, where it is the store's own.
    """

    live: int = 0
    skew_ms: int = 0

    # ---- Headers ----

    @abstractmethod
    async def create(self, header: RunHeader, lease_ms: int = 0) -> Reply[RunHeader]:
        """Puts a header where there is none, or over the tombstone whose fence is the new header's
        `base_fence`.

        A header with an owner is acquired in the same write, and due at the end of its lease. Refused: the
        header in the way; own if it has my owner, or, created without one, my `created_by`. Cancelled, it
        waits for a busy store no longer, but ends only when the write has been made or never will be.
        """

    @abstractmethod
    async def acquire(
        self,
        seen: RunHeader,
        claim: Claim,
        *,
        statuses: Sequence[str] = ACTIVE,
        dead_owner: str | None = None,
    ) -> Reply[RunHeader]:
        """Makes the claimer the owner under the next fence.

        Requires the fence as seen, one of the statuses, and a lease that is over - or, instead of the lease,
        that the owner still is the one who is dead for certain. The run is due at the end of the lease, as
        after each renewal. Refused: the header as it is; own if it has my owner. Cancelled, as `create`.
        """

    @abstractmethod
    async def leave(
        self, lease: Lease, departure: Departure, *, wake_count: int | None = None
    ) -> Reply[RunHeader]:
        """Releases, suspends or ends the run: gives up ownership.

        Requires my owner and fence and, if given, the wake count as known before the last look at what is
        waited for. Refused: the header; own if it has my fence and no owner: nobody else clears my owner.
        """

    @abstractmethod
    async def cancel(self, seen: RunHeader, ended_at: str, error: str | None = None) -> Reply[RunHeader]:
        """Cancels an active run: raises the fence, so that whoever drives it is fenced.

        Requires the fence as seen and an active status. Refused: the header; own if CANCELLED under the next
        fence.
        """

    @abstractmethod
    async def wake(self, seen: RunHeader) -> Reply[RunHeader]:
        """Adds to the wake count; a SUSPENDED run becomes PENDING and due now.

        Requires the status as seen, an active one. Refused: the header as it is. Twice is as good as once.
        """

    @abstractmethod
    async def due(self, *, limit: int = 100) -> list[RunHeader]:
        """Active runs that are due and under no lease, earliest first.

        A header that can't be read is given as `runs` does.
        """

    @abstractmethod
    async def header(self, run_id: str) -> RunHeader | None:
        """The header as it is now; a tombstone too."""

    @abstractmethod
    async def runs(self, wanted: RunFilter) -> list[RunHeader]:
        """One page of headers, newest first by (created_at, run_id); no tombstones.

        A header that can't be read is given with the status CORRUPT, and what is wrong with it as its error.
        """

    @abstractmethod
    def open_renewer(self) -> Renewer:
        """Called in the thread that renews."""

    # ---- Steps ----

    @abstractmethod
    async def begin(
        self, record: StepRecord, seen: Seen | None, lease: Holding, *, guarded: bool = False
    ) -> Reply[StepRecord]:
        """Puts a record over the one last seen (None: over none): STARTED, or SKIPPED by who holds the run.

        SQL stores also require that the header has my owner and fence, or the chunk that the step is in my
        owner and chunk fence; others do so only when `guarded`.
        Refused: the record in the way. It has my attempt_id: my own earlier write. It is what I saw: the
            header, or the chunk, was the reason.
        """

    @abstractmethod
    async def commit(self, record: StepRecord) -> Reply[StepRecord]:
        """Writes the outcome of an attempt: COMMITTED, FAILED, or STARTED with that attempt's end recorded.

        Requires a STARTED record with this attempt_id and idempotency_key. Refused: the record; own if it
        already is this outcome.
        """

    @abstractmethod
    async def put(self, record: StepRecord, seen: Seen | None, lease: Holding) -> Reply[StepRecord]:
        """Puts an outcome in one write: of a pure step, a failed join, a fork. Else as `begin`."""

    @abstractmethod
    async def step(self, run_id: str, step_id: str) -> StepRecord | None:
        """One record as it is now."""

    @abstractmethod
    def steps(self, run_id: str) -> AsyncIterator[list[StepRecord]]:
        """All records of a run, in pages; no transaction or lock is held between pages."""

    @abstractmethod
    def replay(self, run_id: str, within: str = "") -> AsyncIterator[list[StepRecord]]:
        """The records of one scope as a drive needs them: ids that begin with `within`, and no `[` after it.

        So those of a map's items, which may be millions, stay where they are until their item is run.
        COMMITTED ones may come without what replaying an output doesn't take; their `attempt_id` is empty
        then, and `step` gives the whole record.
        """

    @abstractmethod
    async def progressed(self, run_id: str, fence: int) -> bool:
        """Whether any outcome (COMMITTED, SKIPPED, FAILED, a filled segment) was written under this fence."""

    # ---- Events ----

    @abstractmethod
    async def send(self, event: Event, seen: RunHeader | None) -> Reply[Event]:
        """Puts an event where there is none, and wakes the run in the same transaction if it is active.

        Requires the run's life as seen: no header (None), or one with the same `base_fence`, a tombstone
        only if one was seen. Refused: the event in the way, own if it has my event_id; or None: the header
        was the reason.
        """

    @abstractmethod
    async def take(self, event: Event, outcome: StepRecord) -> Reply[StepRecord]:
        """Commits the outcome of a waiting step and marks the event as taken by it, in one transaction.

        Requires an event that nobody has taken, and of the step what `commit` requires. Refused: the step's
        record. It is the attempt as it was: the event was the reason. It is this outcome: my own.
        """

    @abstractmethod
    def events(self, run_id: str, name: str | None = None) -> AsyncIterator[list[Event]]:
        """The events of a run, or those of one name, by name and seq, in pages; of earlier lives, too."""

    # ---- Pruning ----

    @abstractmethod
    def children(self, run_id: str) -> AsyncIterator[list[Child]]:
        """Everything under a run's header, in pages; what was listed may be deleted between pages."""

    @abstractmethod
    async def delete(self, run_id: str, children: Sequence[Child], fence: int) -> None:
        """Deletes those whose fence is not above the pruner's; those that are gone are fine.

        In small portions: other writers get their turn between them.
        """

    @abstractmethod
    async def bury(self, lease: Lease, at: str) -> Reply[RunHeader]:
        """Leaves a tombstone in the place of the header: its ids, fence (also as base_fence) and times alone.

        Requires my owner and fence. Refused: the header; own if it is a tombstone with my fence.
        """

    @abstractmethod
    async def tombstones(self, before: str, *, limit: int = 100) -> list[RunHeader]:
        """Tombstones buried before a time that have no end yet, oldest first."""

    @abstractmethod
    async def expire(self, seen: RunHeader, expires_at_s: int) -> Reply[RunHeader]:
        """Gives a tombstone an end, after which it may vanish.

        Requires a tombstone of the fence as seen, without an end. Refused: the header; done if it has one.
        """

    @abstractmethod
    async def purge(self) -> int:
        """Removes tombstones whose end has come, where the store doesn't do so itself; gives how many."""

    # ---- The store ----

    @abstractmethod
    async def open(self, *, create: bool = True) -> None:
        """Connects, makes or migrates the schema; may be called again.

        Args:
            create: Whether a store is made where there is none.

        Raises:
            StoreNotFound: There is none, and none is to be made.
            JournalUnavailable, StoreMisconfigured, SchemaTooNew, CorruptRecord: As they say.
        """

    @abstractmethod
    async def close(self) -> None:
        """Gives all connections back; the journal can be opened again."""


def as_seen(record: StepRecord | None) -> Seen | None:
    """What a conditional write compares of a record."""
    return Seen(record.status, record.attempt_id) if record is not None else None
