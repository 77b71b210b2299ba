"""Runs and steps as documents: what `list` and `show` tell, before it becomes JSON or text.

A record that somebody damaged is still told of, with what is wrong with it under `corrupt`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from durable_core.clock import epoch_ms, rfc3339
from durable_core.engine.owners import NEVER_MS
from durable_core.engine.process import is_dead, told
from durable_core.records import (
    CORRUPT,
    EVENT_KIND,
    LISTED,
    PRUNING,
    RUNNING,
    SLEEP_KIND,
    STARTED,
    STEP_STATUSES,
    SUSPENDED,
    RunHeader,
    StepRecord,
)

if TYPE_CHECKING:
    from collections.abc import Callable

Document = dict[str, Any]

IN_DOUBT: Final = "in doubt"
"""The state of a step that had begun when its owner went, and of which no outcome is recorded."""


class _Columns:
    """Reads columns that should hold JSON or times, and gathers which of them don't."""

    def __init__(self) -> None:
        self.faults: list[str] = []

    def read(self, name: str, parse: Callable[[], Any], otherwise: Any) -> Any:
        try:
            found = parse()
        except (ValueError, TypeError, AttributeError):  # a bad value, or a column of another type
            self.faults.append(f"{name} can't be read")
            return otherwise
        if otherwise is not None and not isinstance(found, type(otherwise)):
            self.faults.append(f"{name} is of the wrong kind")
            return otherwise
        return found

    def parsed(self, name: str, text: str | None, otherwise: Any) -> Any:
        return otherwise if text is None else self.read(name, lambda: json.loads(text), otherwise)

    def fault(self) -> str | None:
        return "; ".join(self.faults) or None


def run_facts(header: RunHeader, now_ms: int) -> Document:
    """What is known of a run from its header."""
    columns = _Columns()
    error: Document = columns.parsed("error", header.error, {})
    counts: Document = columns.parsed("counts", header.counts, {})
    if header.status == CORRUPT:
        columns.faults.append(str(error.get("message", "the header can't be read")))
    elif header.status not in LISTED:
        columns.faults.append(f"unknown status {header.status!r:.40}")
    return {
        "run_id": header.run_id,
        "workflow": header.workflow,
        "status": header.status,
        "driver": _driver(header, now_ms),
        "created_at": header.created_at,
        "updated_at": header.updated_at,
        "ended_at": header.ended_at,
        "wakes_at": _wakes_at(header),
        "took_ms": columns.read("created_at", lambda: _took_ms(header.created_at, header.ended_at), None),
        "counts": {status: count for status, count in counts.items() if isinstance(count, int)},
        "error": _chosen(error, ("code", "type", "message", "steps", "traceback")),
        "fence": header.fence,
        "crashes": header.crashes,
        "fingerprint": header.fingerprint,
        "input_hash": header.input_hash,
        "input_size_bytes": header.input_size,
        "output_hash": header.output_hash,
        "output_size_bytes": header.output_size,
        "session_id": header.session_id,
        "forked_from": header.forked_from,
        "corrupt": columns.fault(),
    }


def step_facts(record: StepRecord, run: Document) -> Document:
    """What is known of a step from its record, and how it stands in its run."""
    columns = _Columns()
    error: Document = columns.parsed("error", record.error, {})
    detail: Document = columns.parsed("detail", record.detail, {})
    attempts: list[Any] = columns.parsed("attempts", record.attempts, [])
    if record.status not in STEP_STATUSES:
        columns.faults.append(f"unknown status {record.status!r:.40}")
    attempts = [one for one in attempts if isinstance(one, dict)]
    return {
        "step_id": record.step_id,
        "step_index": record.step_index,
        "kind": record.kind,
        "status": record.status,
        "state": _state(record, error, detail, run),
        "attempt": record.attempt,
        "crashes": record.crashes,
        "started_at": record.started_at,
        "committed_at": record.committed_at,
        "took_ms": columns.read("time", lambda: _took_ms(record.started_at, record.committed_at), None),
        "output_size_bytes": record.output_size,
        "output_hash": record.output_hash,
        "codec": record.codec,
        "stored_in": ("blob" if record.output_ref else "record") if record.output_hash else None,
        "input_hash": record.input_hash,
        "idempotency_key": record.idempotency_key,
        "fence": record.fence,
        "error": chosen_error(error),
        "retry_at_ms": detail.get("retry_at_ms") if record.status == STARTED else None,
        "attempts": attempts,
        "items": None,
        "corrupt": columns.fault(),
    }


def chosen_error(error: Document) -> Document | None:
    """What is told of a recorded error; None of none."""
    return _chosen(error, ("code", "type", "message", "traceback"))


def _chosen(error: Document, keys: tuple[str, ...]) -> Document | None:
    return {key: error.get(key) for key in keys} if error else None


def _driver(header: RunHeader, now_ms: int) -> Document | None:
    """Who drives a run, and whether it still does."""
    if header.status not in (RUNNING, PRUNING) or not header.owner:
        return None
    dead = is_dead(header.owner_process)
    left_ms = header.lease_until_ms - now_ms
    state = "dead" if dead else "driving" if left_ms > 0 else "silent"
    return {
        "process": told(header.owner_process),
        "state": state,
        "lease_left_s": round(max(left_ms, 0) / 1000, 1),
    }


def _wakes_at(header: RunHeader) -> str | None:
    """When a run that waits goes on by itself; None: it doesn't, or isn't waiting."""
    waits = header.status == SUSPENDED and header.due_at_ms < NEVER_MS
    return rfc3339(header.due_at_ms) if waits else None


def _state(record: StepRecord, error: Document, detail: Document, run: Document) -> str | None:
    """What STARTED means here: running, waiting, before its next attempt, interrupted, or in doubt."""
    if record.status != STARTED:
        return None
    if record.kind in (EVENT_KIND, SLEEP_KIND):
        return "waiting"
    if error:
        return "retrying"
    if detail.get("interrupted") or detail.get("overran"):
        return "interrupted"
    driver = run["driver"]
    alive = driver is not None and driver["state"] == "driving" and record.fence == run["fence"]
    return "running" if alive else IN_DOUBT


def _took_ms(begin: str | None, end: str | None) -> int | None:
    return epoch_ms(end) - epoch_ms(begin) if begin and end else None
