"""The journal's verbs on the chunks of a map: their logs, and, where workers share it, who may work on one.

A chunk is a part of a map's items. Its record says who works on it, as a header says who drives a run: a
random *owner* under a *chunk fence* one higher than the last, with a lease that it renews. Its log of
segments is claimed anew by each owner, and has everything that is done; so whoever takes a chunk over goes on
from its last segment.

    A   claim 1 ── segment 0 ── (paused past its lease) ───────────── segment 1 ─▶ refused by B's
    B                             claim 2 ── segment 1, empty ── segment 2 ── leave: COMPLETED, run woken

A chunk that nobody has claimed has no record. The end of the last one wakes the run, in one transaction: the
driver that waits for the map has suspended under the wake count it knew before it looked at the chunks.

    D   count 0 ── looks: chunk 1 is RUNNING ─────────────────────────────── suspend [count = 0] ─▶ refused
    A                                          leave chunk 1, count 1
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from durable_core.records import MAP_KIND, STARTED, Chunk, Reply, Segment, StepRecord

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


SHARED_MARK: Final = '"chunk_size":'
"""What the `detail` of a map's record has while workers share it, and only then."""


def is_shared(record: StepRecord) -> bool:
    """Whether a record is of a map that has begun, and that workers share."""
    is_open = record.kind == MAP_KIND and record.status == STARTED
    return is_open and record.detail is not None and SHARED_MARK in record.detail


class ChunkLease(NamedTuple):
    """What its owner holds of a chunk, and with that of the steps inside its items.

    Attributes:
        owner: Random, fresh per claim.
        fence: Of the map's record when the chunk was claimed.
        base_fence: Records with a fence up to this are of an earlier life of the run's id.
        chunk_fence: The chunk's takeover number under this owner.
    """

    run_id: str
    owner: str
    fence: int
    base_fence: int
    step_id: str
    chunk: int
    chunk_fence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkDeparture:
    """What an owner writes into a chunk's record as it leaves it.

    Attributes:
        status: PENDING (handed back), COMPLETED, or FAILED.
        gone: What is known from now on of owners that never left it.
        keep_lease: The owner and its lease stay until the lease is over, or the process is dead: something
            that it can't stop is still at work.
    """

    status: str
    succeeded: int
    failed: int
    error: str | None = None
    gone: str | None = None
    keep_lease: bool = False
    updated_at: str = ""


class SegmentReader(ABC):
    """Reads segments for plain code in any thread, over a connection of its own; blocking."""

    @abstractmethod
    def read(self, run_id: str, step_id: str, chunk: int, first: int, last: int) -> list[Segment]:
        """The segments of a chunk from seq `first` to `last`, in order; none for those that aren't there."""

    @abstractmethod
    def close(self) -> None:
        """Gives the connection back."""


class ChunkVerbs(ABC):
    """What a journal does with the chunks of maps, and their logs."""

    # ---- Segments ----

    @abstractmethod
    async def append(self, segment: Segment) -> Reply[Segment]:
        """Puts a segment where there is none. Refused: the one in the way; own if it has my attempt_id."""

    @abstractmethod
    def segments(self, run_id: str, step_id: str, chunk: int = 0) -> AsyncIterator[list[Segment]]:
        """All segments of a chunk in order, in pages; of earlier lives of the id, too."""

    @abstractmethod
    async def last_segment(self, run_id: str, step_id: str, chunk: int = 0) -> Segment | None:
        """The newest segment of a chunk: how far it is."""

    @abstractmethod
    def open_reader(self) -> SegmentReader:
        """For plain code that reads a map's outputs, in whatever thread."""

    # ---- Chunks ----

    @abstractmethod
    async def claim(
        self, claimed: Chunk, seen: Chunk | None, lease_ms: int, *, dead_owner: str | None = None
    ) -> Reply[Chunk]:
        """Makes the claimer the owner: its record where there is none, or over the one that it saw.

        Requires fence, chunk fence and status as seen, and a lease that is over - or, instead of the lease,
        that the owner still is the one who is dead for certain. The lease lasts so long from now. Refused:
        the chunk as it is; own if it has my owner. Cancelled, as `create`.
        """

    @abstractmethod
    async def leave_chunk(
        self, lease: ChunkLease, departure: ChunkDeparture, *, wakes: bool = False
    ) -> Reply[Chunk]:
        """Gives a chunk up: handed back, completed or failed.

        With `wakes` the run is woken in the same transaction if it is active. Requires my owner and chunk
        fence. Refused: the chunk, and nobody is woken; own if it has my chunk fence and isn't RUNNING.
        """

    @abstractmethod
    async def chunk(self, run_id: str, step_id: str, chunk: int) -> Chunk | None:
        """One chunk as it is now; None where nobody has claimed it."""

    @abstractmethod
    def chunks(self, run_id: str, step_id: str) -> AsyncIterator[list[Chunk]]:
        """The chunks of a map that were ever claimed, in order, in pages; of earlier lives of the id, too."""

    @abstractmethod
    async def open_maps(self, *, limit: int = 100) -> list[StepRecord]:
        """STARTED records of maps that are shared, of active runs, as far as the store can tell quickly.

        For looking for work: one may come late, or be over by now.
        """
