"""A process that its platform ends at a known time: one invocation of a function.

Nothing outlives it, so a lease needn't either; and nobody else can look whether its process is gone, so the
time of its end is in the header, where everybody can read it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from durable_core.errors import CorruptRecord
from durable_core.records import parse_object

if TYPE_CHECKING:
    from durable_core.clock import Clock
    from durable_core.records import Chunk, RunHeader

LEASE_MARGIN_MS: Final = 5_000
"""By how much a lease outlives its invocation."""

DEAD_AFTER_MS: Final = 60_000
"""How long after its deadline an invocation is dead for certain: platforms are late, and clocks differ."""


class Invocation(NamedTuple):
    """What is known of one invocation.

    Attributes:
        name: For people: of the function and of the request.
        time_out_ms: The most that an invocation of this function may take.
        ends_boot_ms: When it is ended, by the clock that nobody can set.
        ends_at_ms: The same by the wall clock, which others can read.
    """

    name: str
    time_out_ms: int
    ends_boot_ms: int
    ends_at_ms: int

    def lease_ms(self, clock: Clock) -> int:
        """How long a lease has to last from now on."""
        return max(self.ends_boot_ms - clock.boot_ms(), 0) + LEASE_MARGIN_MS

    def as_owner(self) -> str:
        """This invocation as a header's `owner_process`: JSON."""
        told = {"invocation": self.name, "dead_from_ms": self.ends_at_ms + DEAD_AFTER_MS}
        return json.dumps(told, separators=(",", ":"))


def dead_from_ms(owner_process: str | None) -> int | None:
    """From when on the owner that a header names is dead for certain; None where that isn't known."""
    found = _parsed(owner_process).get("dead_from_ms")
    return found if type(found) is int else None


def told(owner_process: str | None) -> str | None:
    """The invocation as a person reads it; None where the owner is none."""
    name = _parsed(owner_process).get("invocation")
    return f"invocation {name}" if isinstance(name, str) else None


def gone_of(header: RunHeader | Chunk) -> dict[int, int | None]:
    """What the record of a run or a chunk knows of owners that never released it.

    Returns:
        By fence: from when on each is dead for certain, milliseconds since the epoch, 0 if it was when it was
        found; None if nobody can tell.

    Raises:
        CorruptRecord: It can't be read.
    """
    found = parse_object(header.gone, header.run_id)
    return {int(fence): _from_ms(dead) for fence, dead in found.items() if fence.isdecimal()}


def _from_ms(recorded: object) -> int | None:
    if recorded is True:
        return 0
    return recorded if type(recorded) is int else None


def _parsed(owner_process: str | None) -> dict[str, Any]:
    try:
        return parse_object(owner_process)
    except CorruptRecord:
        return {}
