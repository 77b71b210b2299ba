"""The records that a step moves through: its next attempt, its outcomes, and what a record tells."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from durable_core.clock import rfc3339
from durable_core.engine.failure import as_json
from durable_core.identity import new_attempt_id, place_of
from durable_core.records import COMMITTED, FAILED, MAX_ATTEMPTS_KEPT, SKIPPED, STARTED, STEP_KIND, StepRecord

if TYPE_CHECKING:
    from durable_core.engine.drive import Drive
    from durable_core.engine.values import Stored
    from durable_core.scope import Scope
    from durable_core.step_definition import Step


class Call(NamedTuple):
    """One call of a step, with all that identifies it; of a map, with the kind that its record has."""

    step: Step[..., Any]
    step_id: str
    step_index: int
    hashed: str
    args: tuple[object, ...]
    kwargs: dict[str, object]
    scope: Scope
    kind: str = STEP_KIND


def known(drive: Drive, call: Call, seen: StepRecord | None) -> StepRecord | None:
    """A record, if it is of this call: not of an earlier life, nor a fork's copy of another input."""
    if seen is None or not drive.owns(seen):
        return None
    if seen.input_hash not in (None, call.hashed) and seen.details().get("forked"):
        return None
    return seen


def next_attempt(drive: Drive, call: Call, seen: StepRecord | None) -> StepRecord:
    """The STARTED record of the next attempt; what is known of earlier ones goes along."""
    fence = drive.lease.fence
    started_at = rfc3339(drive.tools.clock.now_ms())
    seen = known(drive, call, seen)
    if seen is None:
        key = drive.keys.key(call.step_index, call.hashed)
        return StepRecord(
            drive.run_id, call.step_id, call.step_index, STARTED, call.hashed, None, None, None, None,
            started_at, None, key, 1, 0, new_attempt_id(drive.place()), fence,
            detail=_detail(drive.marked({})),
        )  # fmt: skip
    detail, crashes = seen.details(), seen.crashes
    errors = int(detail.get("errors", 0))
    if seen.status == FAILED:  # redriven: a fresh budget
        errors = crashes = 0
    elif overran(seen) or (is_suspect(seen) and drive.crashed(seen)):
        crashes = min(crashes + 1, call.step.options.crash_limit)
        drive.log.warning("step_crashed", step_id=seen.step_id, attempt=seen.attempt, crashes=crashes)
    if is_in_doubt(seen) and call.kind == STEP_KIND:
        drive.tally.rerun += 1
        drive.tally.in_doubt += drive.crashed(seen)
    attempts = as_json(history_with(seen))
    kept: dict[str, Any] = {"errors": errors} if errors else {}
    if call.step.options.is_guarded and needs_verifying(seen) and not drive.has_ended(seen):
        kept["unsure"] = True  # this attempt takes the place of the other in the record, not in the world
    drive.redrive.discard(seen.step_id)  # this is its fresh budget
    attempt_id = new_attempt_id(place_of(seen.attempt_id))
    return StepRecord(
        drive.run_id, call.step_id, seen.step_index, STARTED, call.hashed, None, None, None, None,
        started_at, None, seen.idempotency_key, seen.attempt + 1, crashes, attempt_id, fence,
        detail=_detail(drive.marked(kept)),
        attempts=attempts,
    )  # fmt: skip


def _detail(kept: dict[str, Any]) -> str | None:
    return as_json(kept) if kept else None


def committed(attempt: StepRecord, stored: Stored, at: str) -> StepRecord:
    """The COMMITTED record of an attempt."""
    return StepRecord(
        attempt.run_id, attempt.step_id, attempt.step_index, COMMITTED, attempt.input_hash,
        stored.output_hash, stored.data, stored.ref, stored.codec, attempt.started_at, at,
        attempt.idempotency_key, attempt.attempt, attempt.crashes, attempt.attempt_id, attempt.fence,
        attempt.kind, stored.size, None, None, attempt.attempts,
    )  # fmt: skip


def failed(attempt: StepRecord, error: dict[str, str], at: str) -> StepRecord:
    """The FAILED record of an attempt; whether its body may still go on is kept for a redrive."""
    kept = {name: value for name, value in attempt.details().items() if name in ("unsure", "left_running")}
    detail = as_json(kept) if kept else None
    return attempt._replace(status=FAILED, committed_at=at, error=as_json(error), detail=detail)


def skipped(drive: Drive, call: Call) -> StepRecord:
    """The SKIPPED record of a step that was never begun."""
    return next_attempt(drive, call, None)._replace(
        status=SKIPPED, committed_at=rfc3339(drive.tools.clock.now_ms())
    )


def is_in_doubt(record: StepRecord) -> bool:
    """Whether a STARTED record has neither an outcome nor a recorded error."""
    return record.status == STARTED and record.error is None


def is_suspect(record: StepRecord) -> bool:
    """Whether a step may have killed its process: its attempt never ended, and wasn't interrupted either."""
    return is_in_doubt(record) and not record.details().get("interrupted")


def overran(record: StepRecord) -> bool:
    """Whether an attempt was cut off after half of the time that there ever is: that counts like a crash."""
    return is_in_doubt(record) and bool(record.details().get("overran"))


def needs_verifying(record: StepRecord) -> bool:
    """Whether a body may have had its effect although it gave no output: in doubt, or it raised."""
    return record.status in (STARTED, FAILED)


def is_own(row: StepRecord | None, record: StepRecord) -> bool:
    """Whether a record that came back is the one that was written."""
    return row is not None and (row.status, row.attempt_id, row.error, row.detail) == (
        record.status, record.attempt_id, record.error, record.detail,
    )  # fmt: skip


def history_with(record: StepRecord) -> list[dict[str, Any]]:
    """The history of a record's attempts with its last one added; the newest ten."""
    error = record.error_info().get("code")
    if error is None and is_in_doubt(record):
        detail = record.details()
        error = (
            "INTERRUPTED" if detail.get("interrupted") else "OVERRAN" if detail.get("overran") else "CRASHED"
        )
    last = {
        "attempt": record.attempt,
        "fence": record.fence,
        "started_at": record.started_at,
        "ended_at": record.committed_at,
        "error": error,
    }
    return [*record.history(), last][-MAX_ATTEMPTS_KEPT:]
