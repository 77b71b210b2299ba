"""Which of several owners wrote a record: of a run by their fences, of a chunk by the chunk's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from durable_core.journal.base import Lease
from durable_core.journal.chunks import ChunkLease
from durable_core.records import Segment

if TYPE_CHECKING:
    from durable_core.journal.base import Holding
    from durable_core.records import StepRecord


class Ranked:
    """Whoever holds a run or a chunk.

    Attributes:
        lease: What is held.
    """

    __slots__ = ()

    lease: Holding

    @property
    def run_lease(self) -> Lease:
        """What is held of the run; who works on a chunk holds nothing of it."""
        if not isinstance(self.lease, Lease):
            raise TypeError("a chunk's owner doesn't drive the run")
        return self.lease

    @property
    def chunk_fence(self) -> int:
        """Of the chunk that is worked on; 0 where the whole run is driven."""
        return self.lease.chunk_fence if isinstance(self.lease, ChunkLease) else 0

    def rank(self, row: StepRecord | Segment) -> int:
        """Which owner wrote it: by the fence; inside a chunk, whose owners may share one, by the chunk's."""
        if not isinstance(self.lease, ChunkLease):
            return row.fence
        found = row.chunk_fence if isinstance(row, Segment) else row.details().get("chunk_fence")
        return found if isinstance(found, int) else 0

    def is_later(self, row: StepRecord | Segment) -> bool:
        """Whether a later owner wrote it."""
        return self.rank(row) > (self.chunk_fence or self.lease.fence)

    def is_as_late(self, row: StepRecord | Segment) -> bool:
        """Whether this owner or a later one wrote it."""
        return self.rank(row) >= (self.chunk_fence or self.lease.fence)

    def marked(self, detail: dict[str, Any]) -> dict[str, Any]:
        """The detail of a STARTED record, with what `rank` goes by."""
        return {**detail, "chunk_fence": self.chunk_fence} if self.chunk_fence else detail
