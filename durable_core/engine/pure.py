"""A pure step: its body has no effect worth guarding, so there is no STARTED record, and one write after it.

A   body ── put p [nothing] ─▶ applied
B            body ── put p [nothing] ─▶ refused by A's: same input, a fence up to mine: adopted
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from durable_core.clock import rfc3339
from durable_core.current import StepInfo, here
from durable_core.engine import bodies
from durable_core.engine.attempts import NOTHING
from durable_core.engine.failure import described
from durable_core.engine.step_records import committed, failed, next_attempt
from durable_core.engine.timing import timed
from durable_core.errors import NotSerializable
from durable_core.journal.base import as_seen
from durable_core.retry import RetryLater

if TYPE_CHECKING:
    from durable_core.engine.attempts import Attempts
    from durable_core.engine.step_records import Call
    from durable_core.records import StepRecord


async def run_pure(attempts: Attempts, call: Call, seen: StepRecord | None) -> tuple[StepRecord | None, Any]:
    """Runs a pure step that has no outcome, and puts its record.

    Args:
        attempts: Of the drive.
        call: Of the step.
        seen: A record of an earlier life of the run's id, or a failure that is redriven.

    Returns:
        The record and the value; or the record that stands in its place, and NOTHING.

    Raises:
        StepFailed: The body raised, and no attempt is left.
        Fenced: Somebody else drives the run.
    """
    drive = attempts.drive
    drive.check_may_begin(call.step_id)
    attempt = next_attempt(drive, call, seen)
    record, live, error = await _outcome(attempts, call, attempt)
    if drive.held.is_over():
        await drive.check_lease()
    while True:
        reply = await drive.ask(drive.tools.journal.put, record, as_seen(seen), drive.lease)
        if reply.ok or (reply.row is not None and reply.row.attempt_id == record.attempt_id):
            break
        if as_seen(reply.row) == as_seen(seen):
            raise drive.fenced_by(reply.row)
        if reply.row is not None and drive.owns(reply.row):
            return reply.row, NOTHING  # its input and fence are judged like those of any record
        seen = reply.row  # a late one of an earlier life: put over it
    if error is not None:
        raise attempts.told_failed(record, type(error).__qualname__) from error
    attempts.told_committed(record)
    return record, live


async def _outcome(
    attempts: Attempts, call: Call, attempt: StepRecord
) -> tuple[StepRecord, Any, BaseException | None]:
    """Runs the body until it returns or its attempts are used up; nothing of this is recorded in between."""
    drive, retry, errors = attempts.drive, call.step.options.retry, 0
    while True:
        info = StepInfo(
            drive.run_id, attempt.fence, call.step_id, attempt.attempt + errors, attempt.idempotency_key,
            call.step_index,
        )  # fmt: skip
        token = here.set(info)
        try:
            with timed(drive, call.step):
                value = await bodies.run(call.step, call.args, call.kwargs, drive)
            stored, live = await attempts.stored(call, attempt, value)
            return committed(attempt, stored, rfc3339(drive.tools.clock.now_ms())), live, None
        except NotSerializable as error:
            return failed(attempt, described(error), rfc3339(drive.tools.clock.now_ms())), NOTHING, error
        except (Exception, SystemExit, asyncio.CancelledError) as error:
            if drive.stopped is not None or (
                isinstance(error, asyncio.CancelledError) and bodies.is_cancelled()
            ):
                raise
            errors += 1
            if not retry.allows(error, errors):
                return failed(attempt, described(error), rfc3339(drive.tools.clock.now_ms())), NOTHING, error
            delay_s = error.after_s if isinstance(error, RetryLater) else retry.delay_s(errors)
        finally:
            here.reset(token)
        await drive.pause(delay_s, call.scope)
        drive.check()
        call.scope.check()
