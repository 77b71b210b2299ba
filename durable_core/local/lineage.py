"""How often each function is in the chain of calls that a message comes from.

Lambda keeps this in X-Ray's trace header, which travels with the messages of a queue, and stops a function
that is in one chain for about the sixteenth time, unless it is allowed to loop. Here it travels the same way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

MOST_HOPS: Final = 16
ATTRIBUTE: Final = "AWSTraceHeader"
_ROOT: Final = "Root=1-00000000-000000000000000000000000;Sampled=0;Lineage="


def lineage_header(hops: Mapping[str, int]) -> str:
    """The trace header of a message.

    Args:
        hops: By function.
    """
    return _ROOT + "|".join(f"{name}:{count}" for name, count in sorted(hops.items()))


def lineage_of(header: str | None) -> dict[str, int]:
    """What a trace header says; nothing, if it is of somebody else."""
    if header is None or not header.startswith(_ROOT):
        return {}
    pairs = [one.rpartition(":") for one in header.removeprefix(_ROOT).split("|") if one]
    return {name: int(count) for name, _, count in pairs}
