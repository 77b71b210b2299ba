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

**Crashes.** An owner that is taken over from while the header is RUNNING never released the run. Steps that
were in flight under its fence, and aren't marked `interrupted`, count a crash when they are begun again; the
run counts one more if that owner had finished nothing. `gone` in the header remembers such fences, and which
are dead for certain.

Every write is conditional and answers with a `Reply`: applied, or refused with the record that stood in the
way. An applied create, acquire, renew, leave or cancel gives the header as it is now; begin, commit and put
needn't. Who *may* write is the engine's decision; *that nobody else did* is the journal's. A writer whose
reply
was lost asks again and recognises its own record in the refusal: by `owner` in a header, by `attempt_id` in a
step.

A journal that can't be reached or can't take a write raises `JournalUnavailable`; bad data is a
`CorruptRecord`. A read error is never an empty answer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from durable_core.records import ACTIVE, RUNNING, Reply, RunHeader, Seen, StepRecord

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


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """Which runs `runs` lists, newest first.

    Attributes:
        prefix: Only run ids that begin with this.
        before: Only runs that come after this (created_at, run_id) in the listing; for the next page.
    """

    status: str | None = None
    workflow: str | None = None
    prefix: str | None = None
    before: tuple[str, str] | None = None
    limit: int = 100


class Renewer(ABC):
    """Renews leases from a thread of its own, over a connection of its own; blocking."""

    @abstractmethod
    def renew(self, lease: Lease, lease_ms: int) -> Reply[RunHeader]:
        """Lengthens the lease if the header has its owner and fence; the reply has the header either way."""

    @abstractmethod
    def close(self) -> None:
        """Gives the connection back."""


class Journal(ABC):
    """A store of runs and steps.

    Attributes:
        live: How many steps are between their begin and their outcome now, kept by the engine. A journal may
            hold a write back for a turn of the event loop, to share its transaction, only while more than one
            is live.
    """

    live: int = 0

    # ---- Headers ----

    @abstractmethod
    async def create(self, header: RunHeader, lease_ms: int = 0) -> Reply[RunHeader]:
        """Puts a header where there is none, or over the tombstone whose fence is the new header's
        `base_fence`.

        A header with an owner is acquired in the same write. Refused: the header in the way; own if it has my
        owner, or, created without one, my `created_by`.
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
        that the owner still is the one who is dead for certain. Refused: the header as it is; own if it has
        my owner.
        """

    @abstractmethod
    async def leave(
        self, lease: Lease, departure: Departure, *, wake_count: int | None = None
    ) -> Reply[RunHeader]:
        """Releases, suspends or ends the run: gives up ownership.

        Requires my owner and fence and, if given, the wake count as known before the last look at what is
        waited for.
        Refused: the header; own if it has my fence and no owner, since nobody else clears my owner.
        """

    @abstractmethod
    async def cancel(self, seen: RunHeader, ended_at: str, error: str | None = None) -> Reply[RunHeader]:
        """Cancels an active run: raises the fence, so that whoever drives it is fenced.

        Requires the fence as seen and an active status. Refused: the header; own if CANCELLED under the next
        fence.
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
        self, record: StepRecord, seen: Seen | None, lease: Lease, *, guarded: bool = False
    ) -> Reply[StepRecord]:
        """Puts a record over the one last seen (None: over none): STARTED, or SKIPPED by who holds the run.

        SQL stores also require that the header has my owner and fence; others do so only when `guarded`.
        Refused: the record in the way. It has my attempt_id: my own earlier write. It is what I saw: the
            header was the reason.
        """

    @abstractmethod
    async def commit(self, record: StepRecord) -> Reply[StepRecord]:
        """Writes the outcome of an attempt: COMMITTED, FAILED, or STARTED with that attempt's end recorded.

        Requires a STARTED record with this attempt_id and idempotency_key. Refused: the record; own if it
        already is this outcome.
        """

    @abstractmethod
    async def put(self, record: StepRecord, seen: Seen | None, lease: Lease) -> Reply[StepRecord]:
        """Puts an outcome in one write: of a pure step, a failed join, a fork. Else as `begin`."""

    @abstractmethod
    async def step(self, run_id: str, step_id: str) -> StepRecord | None:
        """One record as it is now."""

    @abstractmethod
    def steps(self, run_id: str) -> AsyncIterator[list[StepRecord]]:
        """All records of a run, in pages; no transaction or lock is held between pages."""

    def replay(self, run_id: str) -> AsyncIterator[list[StepRecord]]:
        """All records of a run as a drive needs them.

        COMMITTED ones may come without what replaying an output doesn't take; their `attempt_id` is empty
        then, and `step` gives the whole record.
        """
        return self.steps(run_id)

    @abstractmethod
    async def progressed(self, run_id: str, fence: int) -> bool:
        """Whether any outcome (COMMITTED, SKIPPED, FAILED, a filled segment) was written under this fence."""

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
