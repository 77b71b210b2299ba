"""What drives of one run came to: counted as it happens, for whoever started them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from durable_core.records import RunHeader


@dataclass(slots=True)
class Tally:
    """Counts of one drive, or of several of one run that follow each other.

    Attributes:
        begun: Attempts that were begun.
        committed: Outcomes of steps and waits that were written: COMMITTED and SKIPPED.
        failed: The same, FAILED.
        raised: Attempts that raised, with attempts left.
        rerun: Attempts begun over one that had not come to an end.
        in_doubt: Of those, attempts whose owner died in them, or that nobody can tell about.
        overran: Attempts cut off after half of the time that there ever is: each costs its step or item one
            of its crashes.
        items: Outcomes of map items that were written.
        bytes: Raw bytes of committed outputs.
        spills: Of those outputs, the ones that went to the blob store.
        left: The header as the last of these drives left it; None while none has.
    """

    begun: int = 0
    committed: int = 0
    failed: int = 0
    raised: int = 0
    rerun: int = 0
    in_doubt: int = 0
    overran: int = 0
    items: int = 0
    bytes: int = 0
    spills: int = 0
    left: RunHeader | None = None

    @property
    def outcomes(self) -> int:
        """Whatever was recorded that a later drive needn't do again."""
        return self.committed + self.failed + self.raised + self.items
