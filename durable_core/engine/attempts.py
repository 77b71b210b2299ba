"""One attempt of a step: its STARTED record, its body, and the record of what came of it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from durable_core.clock import rfc3339
from durable_core.codec import freeze
from durable_core.current import StepInfo, here
from durable_core.engine import bodies
from durable_core.engine.failure import as_json, described, replayed
from durable_core.errors import (
    ControlFlow,
    CrashLimitReached,
    DurableError,
    NotSerializable,
    OutputNotSerializable,
    OutputTooLarge,
    StepFailed,
    StepInDoubt,
    StepTimedOut,
)
from durable_core.identity import new_attempt_id, place_of
from durable_core.records import COMMITTED, FAILED, MAX_ATTEMPTS_KEPT, SKIPPED, STARTED, StepRecord
from durable_core.retry import RetryLater
from durable_core.step_definition import Done, NotDone

if TYPE_CHECKING:
    from durable_core.engine.drive import Drive
    from durable_core.engine.values import Stored
    from durable_core.scope import Scope
    from durable_core.step_definition import Step

NOTHING: Final[Any] = object()  # no value: the step has no outcome yet


class Call(NamedTuple):
    """One call of a step, with all that identifies it."""

    step: Step[..., Any]
    step_id: str
    step_index: int
    hashed: str
    args: tuple[object, ...]
    kwargs: dict[str, object]
    scope: Scope


class Attempts:
    """Runs attempts that were begun, and records their outcomes.

    Args:
        drive: Of the run.
    """

    def __init__(self, drive: Drive) -> None:
        self.drive = drive

    async def run(self, call: Call, attempt: StepRecord, before: StepRecord | None) -> tuple[StepRecord, Any]:
        """Runs the body of an attempt that was begun.

        Args:
            call: Of the step.
            attempt: As begun.
            before: The record that it was begun over.

        Returns:
            The final record and the value; or the record of an error with attempts left, and NOTHING.

        Raises:
            StepFailed: None are left.
            StepInDoubt: It must not run twice, and nothing tells whether it has run.
        """
        token = here.set(_info(attempt))
        try:
            try:
                value = NOTHING
                if before is not None and call.step.options.is_guarded and needs_verifying(before):
                    value = await self._verified(call, attempt, before)
                if value is NOTHING:
                    value = await bodies.run(call.step, call.args, call.kwargs, self.drive)
            except StepInDoubt as error:
                await self._hand_over(attempt, error)
                raise
            except (KeyboardInterrupt, GeneratorExit, ControlFlow):
                raise
            except (
                BaseException
            ) as error:  # whatever else a body raises is its failure, also what ends a process
                if isinstance(error, asyncio.CancelledError) and bodies.is_cancelled():
                    raise
                return await self.raised(call, attempt, error)
            return await self._commit(call, attempt, value)
        except (asyncio.CancelledError, KeyboardInterrupt):
            await self.interrupted(attempt)
            raise
        finally:
            here.reset(token)

    # ---- Outcomes ----

    async def _commit(self, call: Call, attempt: StepRecord, value: Any) -> tuple[StepRecord, Any]:
        try:
            stored, live = await self.stored(call, attempt, value)
        except NotSerializable as error:
            raise await self._fail(attempt, error) from error
        record = committed(attempt, stored, self._now())
        await self._write(record)
        self.told_committed(record)
        return record, live

    async def stored(self, call: Call, attempt: StepRecord, value: Any) -> tuple[Stored, Any]:
        """Makes an output durable; gives it as it will come back on replay, too.

        Raises:
            OutputNotSerializable, OutputTooLarge: It can't be stored.
            JournalUnavailable, StoreMisconfigured: The blob store can't; the drive is stopped.
        """
        try:
            raw, live = freeze(value, call.step.adapter)
            return await self.drive.tools.values.store(raw, attempt.run_id, attempt.attempt_id), live
        except NotSerializable as error:
            kind = OutputTooLarge if isinstance(error, OutputTooLarge) else OutputNotSerializable
            raise kind(
                f"the output can't be stored: {error.message}",
                path=error.path,
                run_id=attempt.run_id,
                step_id=attempt.step_id,
                remedy=error.remedy,
            ) from error
        except DurableError as error:  # the blob store's: the output isn't safe, so nothing more may be begun
            error.run_id, error.step_id = attempt.run_id, attempt.step_id
            self.drive.stop(error)
            raise

    def told_committed(self, record: StepRecord) -> None:
        """Logs a commit."""
        self.drive.log.debug("step_committed", size_bytes=record.output_size)

    async def raised(self, call: Call, attempt: StepRecord, error: BaseException) -> tuple[StepRecord, Any]:
        """Records that the body raised: to be begun again, or FAILED.

        Raises:
            StepFailed: No attempt is left.
        """
        retry = call.step.options.retry
        errors = int(attempt.details().get("errors", 0)) + 1
        if isinstance(error, StepTimedOut) and not call.step.is_async:  # its thread goes on
            attempt = attempt._replace(detail=as_json(attempt.details() | {"left_running": True}))
        if not retry.allows(error, errors):
            raise await self._fail(attempt, error) from error
        delay_s = error.after_s if isinstance(error, RetryLater) else retry.delay_s(errors)
        retry_at_ms = self.drive.tools.clock.now_ms() + round(delay_s * 1000)
        record = attempt._replace(
            committed_at=self._now(),
            error=as_json(described(error)),
            detail=as_json(attempt.details() | {"errors": errors, "retry_at_ms": retry_at_ms}),
        )
        await self._write(record)
        self.drive.log.warning(
            "step_raised", error=type(error).__qualname__, errors=errors, retry_in_s=round(delay_s, 3)
        )
        return record, NOTHING

    async def _fail(self, attempt: StepRecord, error: BaseException) -> StepFailed:
        """Records the failure for good; gives what the workflow sees of it."""
        record = failed(attempt, described(error), self._now())
        await self._write(record)
        return self.told_failed(record, type(error).__qualname__)

    def told_failed(self, record: StepRecord, name: str) -> StepFailed:
        """Logs a failure; gives what the workflow sees of it."""
        self.drive.log.warning("step_failed", step_id=record.step_id, error=name)
        return replayed(record)

    async def fail_without_body(self, call: Call, attempt: StepRecord) -> None:
        """Fails a step whose process died in it too often.

        Raises:
            CrashLimitReached: Always.
        """
        told = f"starts that ended with the death of its process: {attempt.crashes}; it is not started again"
        name = CrashLimitReached.__name__
        info = {"code": CrashLimitReached.code, "type": name, "message": told, "traceback": ""}
        record = failed(attempt, info, self._now())
        await self._write(record)
        raise self.told_failed(record, name)

    async def interrupted(self, attempt: StepRecord) -> None:
        """Records that the body was stopped from outside, so that nobody takes it for a crash.

        Refused, it has an outcome already, or another owner: both are right.
        """
        if self.drive.ran_half_its_time(attempt):
            return  # it would not fit into the next invocation either: that is a crash
        detail = attempt.details() | {"interrupted": True}
        if self.drive.strays:
            detail["left_running"] = True
        await self.drive.ask(
            self.drive.tools.journal.commit,
            attempt._replace(committed_at=self._now(), detail=as_json(detail)),
        )

    async def _write(self, record: StepRecord) -> None:
        """Commits an outcome; one that is already there by our own lost reply is success."""
        reply = await self.drive.ask(self.drive.tools.journal.commit, record)
        if not reply.ok and not is_own(reply.row, record):
            raise self.drive.fenced_by(reply.row)

    def _now(self) -> str:
        return rfc3339(self.drive.tools.clock.now_ms())

    # ---- Steps that must not run twice ----

    async def _verified(self, call: Call, attempt: StepRecord, before: StepRecord) -> Any:
        """Asks the step's verifier about the attempt before: its output, or NOTHING when the body may run.

        NotDone is final only if whoever might still be in that body can't be: it ended, or its process is
        dead for certain. An owner that is merely out of its lease may be paused, and go on.

        Raises:
            StepInDoubt: There is no verifier, or its answer isn't final.
        """
        verify = call.step.options.verify
        if verify is None:
            raise self._in_doubt(attempt, "nothing tells whether it happened")
        try:
            answer = await bodies.verify(verify, attempt.idempotency_key, call.args, call.kwargs, self.drive)
        except (Exception, SystemExit, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and bodies.is_cancelled():
                raise
            raise self._in_doubt(attempt, f"its verifier raised {type(error).__qualname__}") from error
        if isinstance(answer, Done):
            try:  # it has happened: an output that can't be kept must not look like a failure
                freeze(answer.output, call.step.adapter)
            except NotSerializable as error:
                raise self._in_doubt(
                    attempt, f"its verifier's output can't be stored: {error.message}"
                ) from error
            return answer.output
        if not isinstance(answer, NotDone):
            raise self._in_doubt(attempt, f"its verifier answered {type(answer).__qualname__}")
        if not self.drive.has_ended(before):
            raise self._in_doubt(attempt, "it hasn't happened yet, but whoever began it may still be alive")
        return NOTHING

    def _in_doubt(self, attempt: StepRecord, why: str) -> StepInDoubt:
        return StepInDoubt(
            f"an at_most_once step was running when its owner went, and {why}",
            run_id=attempt.run_id,
            step_id=attempt.step_id,
            remedy="Find out: if it happened, skip the step, with its output; if it hasn't, fork the"
            " run from this step",
        )

    async def _hand_over(self, attempt: StepRecord, error: StepInDoubt) -> None:
        """Leaves the step in doubt: no crash is counted, and the next resume asks the verifier again."""
        self.drive.stop(error)
        detail = attempt.details() | {"interrupted": True}
        await self._write(attempt._replace(committed_at=self._now(), detail=as_json(detail)))


# ---- Records ----


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
        )  # fmt: skip
    detail, crashes = seen.details(), seen.crashes
    errors = int(detail.get("errors", 0))
    if seen.status == FAILED:  # redriven: a fresh budget
        errors = crashes = 0
    elif is_suspect(seen) and drive.crashed(seen):
        crashes = min(crashes + 1, call.step.options.crash_limit)
        drive.log.warning("step_crashed", step_id=seen.step_id, attempt=seen.attempt, crashes=crashes)
    attempts = as_json(history_with(seen))
    kept: dict[str, Any] = {"errors": errors} if errors else {}
    if call.step.options.is_guarded and needs_verifying(seen) and not drive.has_ended(seen):
        kept["unsure"] = True  # this attempt takes the place of the other in the record, not in the world
    drive.redrive.discard(seen.step_id)  # this is its fresh budget
    attempt_id = new_attempt_id(place_of(seen.attempt_id))
    return StepRecord(
        drive.run_id, call.step_id, seen.step_index, STARTED, call.hashed, None, None, None, None,
        started_at, None, seen.idempotency_key, seen.attempt + 1, crashes, attempt_id, fence,
        detail=as_json(kept) if kept else None,
        attempts=attempts,
    )  # fmt: skip


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
        error = "INTERRUPTED" if record.details().get("interrupted") else "CRASHED"
    last = {
        "attempt": record.attempt,
        "fence": record.fence,
        "started_at": record.started_at,
        "ended_at": record.committed_at,
        "error": error,
    }
    return [*record.history(), last][-MAX_ATTEMPTS_KEPT:]


def _info(attempt: StepRecord) -> StepInfo:
    return StepInfo(
        attempt.run_id,
        attempt.fence,
        attempt.step_id,
        attempt.attempt,
        attempt.idempotency_key,
        attempt.step_index,
    )
