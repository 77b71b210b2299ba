"""Whether a body has the time that it needs, in a drive that has to be left at some time."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from durable_core.clock import epoch_ms
from durable_core.control_flow import HandOver, NotBegun

if TYPE_CHECKING:
    from collections.abc import Iterator

    from durable_core.engine.drive import Drive
    from durable_core.records import StepRecord
    from durable_core.step_definition import Step


_REASON: Final = "a step hasn't the time that it needs"


def has_time(drive: Drive, step: Step[..., Any], seen: StepRecord | None = None) -> bool:
    """Whether a body has the time: what it says it may take, else the longest that it was seen to take.

    If not, the run is handed over: nothing more is begun, and what is in flight goes on to its end.

    Args:
        drive: Of the run.
        step: To be started.
        seen: What is recorded of it: an attempt that was cut off tells that it takes longer than that.
    """
    if drive.way_out is None:
        return True
    needed_s = step.options.timeout_s
    if needed_s is None:
        known = [drive.tools.longest_s.get(step.name), _cut_off_after_s(seen)]
        needed_s = max((one for one in known if one is not None), default=None)
    if drive.way_out.has_time(needed_s, is_first=not drive.tally.outcomes):
        return True
    drive.stop(HandOver(_REASON))
    return False


def check_time(drive: Drive, step: Step[..., Any], seen: StepRecord | None) -> None:
    """Refuses to start a body that hasn't the time.

    Raises:
        HandOver: The run is handed over.
    """
    if not has_time(drive, step, seen):
        if seen is None:
            raise NotBegun(_REASON)
        drive.check()


@contextmanager
def timed(drive: Drive, step: Step[..., Any]) -> Iterator[None]:
    """Remembers how long a body takes, where somebody will have to know."""
    if drive.way_out is None:
        yield
        return
    began_ms, longest_s = drive.tools.clock.boot_ms(), drive.tools.longest_s
    try:
        yield
    finally:
        took_s = (drive.tools.clock.boot_ms() - began_ms) / 1000
        if took_s > longest_s.get(step.name, 0):
            longest_s[step.name] = took_s


def _cut_off_after_s(seen: StepRecord | None) -> float | None:
    """How long an attempt had run when it was stopped from outside; None of one that wasn't."""
    if seen is None or seen.started_at is None or seen.committed_at is None:
        return None
    detail = seen.details()
    if not (detail.get("interrupted") or detail.get("overran")):
        return None
    return (epoch_ms(seen.committed_at) - epoch_ms(seen.started_at)) / 1000
