"""All detectors together.

A detector is a function from a passage to matches, which proves what can be proved about each. To add one,
write it in a module of its own and name it in `DETECTORS`, before the kinds that it should win from where two
overlap.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final

from functions.workflows.scanning.cards import find_cards
from functions.workflows.scanning.emails import find_emails
from functions.workflows.scanning.ibans import find_ibans
from functions.workflows.scanning.phones import find_phones
from functions.workflows.scanning.ssns import find_ssns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from functions.workflows.scanning.match import Match
    from functions.workflows.scanning.passage import Passage

DETECTORS: Final[tuple[Callable[[Passage], Iterator[Match]], ...]] = (
    find_emails,
    find_ibans,
    find_cards,
    find_ssns,
    find_phones,
)


def detect(passage: Passage) -> list[Match]:
    """Every identifier in a passage, in order; where two overlap, the kind whose proof is stronger."""
    taken: list[Match] = []  # by start, and never overlapping, so that only the neighbours have to be asked
    for find in DETECTORS:
        for match in find(passage):
            at = bisect_right(taken, match.start, key=lambda other: other.start)
            free_before = at == 0 or taken[at - 1].end <= match.start
            free_after = at == len(taken) or taken[at].start >= match.end
            if free_before and free_after:
                taken.insert(at, match)
    return taken
