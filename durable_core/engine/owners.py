"""Who owns a run or a chunk: this process, as others read it; and whether another is dead for certain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from durable_core.engine.invocation import dead_from_ms
from durable_core.engine.process import is_dead, this_process

if TYPE_CHECKING:
    from durable_core.engine.drive import Tools


def owner_process(tools: Tools) -> str:
    """This process, or the invocation that it is in."""
    return this_process() if tools.invocation is None else tools.invocation.as_owner()


def is_dead_for_certain(tools: Tools, process: str | None) -> bool:
    """Whether the owner of that process is dead, not merely out of its lease."""
    from_ms = dead_from_ms(process)
    return lease_now_ms(tools) >= from_ms if from_ms is not None else is_dead(process)


NEVER_MS: Final = 253_402_300_799_000  # the end of the year 9999: until then somebody has to wake the run


def due_ms(tools: Tools, at_ms: int) -> int:
    """A time of this process as headers have it, who are due by the time that leases go by.

    Else a run would be due, by a store's clock that is ahead, to a driver for whom it isn't yet: again and
    again.
    """
    return min(at_ms + tools.journal.skew_ms, NEVER_MS) if at_ms < NEVER_MS else NEVER_MS


def lease_now_ms(tools: Tools) -> int:
    """The time that leases go by, as well as this process can tell."""
    return tools.clock.now_ms() + tools.journal.skew_ms
