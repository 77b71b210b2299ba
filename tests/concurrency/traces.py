"""Rows as a reader wants them in a trace."""

from __future__ import annotations

from durable_core.journal.base import Departure, Lease
from durable_core.records import Child, Event, Reply, RunHeader, StepRecord


def brief(value: object) -> str:
    """What tells one from the next, no more."""
    match value:
        case Reply():
            return "ok" if value.ok else f"REFUSED by {brief(value.row)}"
        case RunHeader():
            return f"<{value.status} owner={value.owner} fence={value.fence} count={value.wake_count}>"
        case StepRecord():
            mark = " +error" if value.error else ""
            return f"<{value.step_id} {value.status} {value.attempt_id} fence={value.fence}{mark}>"
        case Event():
            return f"<{value.name}!{value.seq} {value.event_id} taken_by={value.taken_by}>"
        case Child():
            return f"{value.name} fence={value.fence}"
        case Departure():
            return value.status
        case Lease():
            return value.owner
        case list():
            return f"[{', '.join(map(brief, value))}]"
        case BaseException():
            return type(value).__name__
        case tuple():
            return f"({', '.join(map(brief, value))})"
    return str(getattr(value, "owner", value))
