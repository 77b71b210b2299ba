"""What is recorded of a step, used in place of its body: or why it can't be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from durable_core.codec import decode
from durable_core.engine import bodies
from durable_core.engine.failure import replayed
from durable_core.errors import (
    CorruptRecord,
    DurableError,
    JournalUnavailable,
    MissingBlob,
    StepMismatch,
    StoreMisconfigured,
    StoreNotFound,
    UsageError,
)
from durable_core.records import COMMITTED, FAILED, SKIPPED, STARTED, STEP_STATUSES

if TYPE_CHECKING:
    from pydantic import TypeAdapter

    from durable_core.engine.drive import Drive
    from durable_core.engine.step_records import Call
    from durable_core.records import StepRecord


def is_used(drive: Drive, call: Call, seen: StepRecord, own: str) -> bool:
    """Whether a record is an outcome to be used; raises one to be raised, or not ours to change."""
    _check_same(drive, call, seen)
    if seen.status in (COMMITTED, SKIPPED):
        if drive.is_later(seen):
            raise drive.fenced_by(seen)
        return True
    if seen.status == FAILED and not drive.is_redriven(seen, call.step):
        raise replayed(seen)
    if seen.status == STARTED and drive.is_as_late(seen) and seen.attempt_id != own:
        raise drive.fenced_by(seen)
    return False


def _check_same(drive: Drive, call: Call, seen: StepRecord) -> None:
    """Refuses a record of another call.

    Raises:
        StepMismatch: It is of another input.
        CorruptRecord: It is no step's.
    """
    where = {"run_id": seen.run_id, "step_id": seen.step_id}
    if seen.status not in STEP_STATUSES or seen.kind != call.kind:
        raise CorruptRecord(f"the record has status {seen.status!r} and kind {seen.kind!r}", **where)
    if seen.input_hash in (None, call.hashed):
        return
    if drive.keeps_changed and seen.status in (COMMITTED, SKIPPED):
        drive.log.warning("changed_input_kept_old_output", step_id=seen.step_id)
        return
    error = StepMismatch(
        f"the step is recorded with another input (hash {str(seen.input_hash)[:12]}…,"
        f" now {call.hashed[:12]}…); it is called with {bodies.shown_call(call.args, call.kwargs)} now",
        **where,
        remedy="Give it the first run's input and resume; keep the recorded output (on_change='keep');"
        " or fork the run, which runs anew what changed",
    )
    drive.stop(error)  # it is no outcome of the step: no path may be taken on it
    raise error


async def output_of(drive: Drive, record: StepRecord, adapter: TypeAdapter[Any] | None) -> Any:
    """The value of a COMMITTED or SKIPPED record."""
    if record.output_data is not None:
        return inline_output_of(drive, record, adapter)
    if record.status == SKIPPED and record.output_hash is None:
        return None
    try:
        return await drive.tools.values.restore(
            record.codec, None, record.output_ref, record.output_size, record.output_hash, adapter
        )
    except DurableError as error:
        _explain(error, record)
        if isinstance(error, JournalUnavailable | StoreMisconfigured | StoreNotFound):
            drive.stop(error)  # it tells nothing about the step: no path may be taken on it
        raise


def inline_output_of(drive: Drive, record: StepRecord, adapter: TypeAdapter[Any] | None) -> Any:
    """The value of a record that holds its output: there is nothing to wait for."""
    try:
        raw = drive.tools.values.opened(
            record.codec, record.output_data, record.output_size, record.output_hash
        )
        return decode(raw, adapter)
    except DurableError as error:
        _explain(error, record)
        raise


def _explain(error: DurableError, record: StepRecord) -> None:
    """Says whose output can't be used, and raises what is a person's mistake and no damage."""
    error.run_id, error.step_id = record.run_id, record.step_id
    if record.status == SKIPPED and isinstance(error, CorruptRecord) and not isinstance(error, MissingBlob):
        raise UsageError(
            f"the step was skipped by hand with an output that can't be used: {error.message}",
            run_id=record.run_id,
            step_id=record.step_id,
            remedy="Skip it again, with an output that fits, and resume",
        ) from error
