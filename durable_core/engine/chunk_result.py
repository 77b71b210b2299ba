"""What came of a chunk that was to be worked on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

ChunkStatus = Literal["DONE", "HANDED_BACK", "BUSY", "STUCK", "GONE"]

DONE: Final = "DONE"
HANDED_BACK: Final = "HANDED_BACK"
BUSY: Final = "BUSY"
STUCK: Final = "STUCK"
GONE: Final = "GONE"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkResult:
    """What came of a chunk.

    Attributes:
        run_id, step_id, chunk: Which one.
        status: DONE: each of its items has an outcome, now or since earlier. HANDED_BACK: this process had to
            leave it, and somebody else may go on with it. BUSY: somebody else works on it. STUCK: it can't go
            on, and its run has been told why. GONE: there is no such chunk, or nobody wants it any more.
        items: Items that got their outcome in this call.
        woken: Whether the run has been woken, and should be driven. A `Dispatch` has been told already.
    """

    run_id: str
    step_id: str
    chunk: int
    status: ChunkStatus
    items: int = 0
    woken: bool = False
