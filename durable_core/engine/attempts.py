"""One attempt of a step: its STARTED record, its body, and the record of what came of it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from durable_core.clock import rfc3339
from durable_core.codec import freeze
from durable_core.control_flow import ControlFlow
from durable_core.current import StepInfo, here
from durable_core.engine import bodies
from durable_core.engine.failure import as_json, described, replayed
from durable_core.engine.step_records import Call, committed, failed, is_own, needs_verifying
from durable_core.engine.timing import timed
from durable_core.errors import (
    CrashLimitReached,
    DurableError,
    NotSerializable,
    OutputNotSerializable,
    OutputTooLarge,
    StepFailed,
    StepInDoubt,
    StepTimedOut,
)
from durable_core.journal.base import as_seen
from durable_core.records import STEP_KIND
from durable_core.retry import RetryLater
from durable_core.step_definition import Done, NotDone

if TYPE_CHECKING:
    from durable_core.engine.drive import Drive
    from durable_core.engine.values import Stored
    from durable_core.records import StepRecord

NOTHING: Final[Any] = object()  # no value: the step has no outcome yet


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
                    with timed(self.drive, call.step):
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

    async def begin(
        self, attempt: StepRecord, seen: StepRecord | None, *, guarded: bool = False
    ) -> StepRecord | None:
        """Begins an attempt over the record as last seen.

        Returns:
            The attempt itself. Another record, or none: what is there since somebody else was faster.

        Raises:
            Fenced: Somebody else drives the run.
        """
        drive = self.drive
        drive.check_may_begin(attempt.step_id)
        if drive.held.is_over():
            await drive.check_lease()
        try:
            reply = await drive.ask(
                drive.tools.journal.begin, attempt, as_seen(seen), drive.lease, guarded=guarded
            )
        except asyncio.CancelledError:  # it may have been written
            await self.interrupted(attempt)
            raise
        row = reply.row
        if reply.ok or (row is not None and row.attempt_id == attempt.attempt_id):
            drive.tally.begun += 1
            return attempt
        if as_seen(row) == as_seen(seen):  # refused for the header, not for the record
            raise drive.fenced_by(row)
        return row

    # ---- Outcomes ----

    async def _commit(self, call: Call, attempt: StepRecord, value: Any) -> tuple[StepRecord, Any]:
        try:
            stored, live = await self.stored(call, attempt, value)
        except NotSerializable as error:
            raise await self._fail(attempt, error) from error
        record = committed(attempt, stored, self._now())
        await self.write(record)
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
        """Counts and logs a commit."""
        tally = self.drive.tally
        tally.committed += 1
        tally.bytes += record.output_size or 0
        tally.spills += record.output_ref is not None
        self.drive.log.debug(
            "step_committed", step_id=record.step_id, attempt=record.attempt, size_bytes=record.output_size
        )

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
        await self.write(record)
        self.drive.tally.raised += 1
        self.drive.log.warning(
            "step_raised", error=type(error).__qualname__, errors=errors, retry_in_s=round(delay_s, 3)
        )
        return record, NOTHING

    async def _fail(self, attempt: StepRecord, error: BaseException) -> StepFailed:
        """Records the failure for good; gives what the workflow sees of it."""
        record = failed(attempt, described(error), self._now())
        await self.write(record)
        return self.told_failed(record, type(error).__qualname__)

    def told_failed(self, record: StepRecord, name: str) -> StepFailed:
        """Counts and logs a failure; gives what the workflow sees of it."""
        self.drive.tally.failed += 1
        self.drive.log.warning("step_failed", step_id=record.step_id, attempt=record.attempt, error=name)
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
        await self.write(record)
        raise self.told_failed(record, name)

    async def interrupted(self, attempt: StepRecord) -> None:
        """Records that the body was stopped from outside, and whether that counts like a crash.

        Refused, it has an outcome already, or another owner: both are right.
        """
        # One that would not fit into the next invocation either is as good as a crash.
        overran = attempt.kind == STEP_KIND and self.drive.ran_half_its_time(attempt)
        self.drive.tally.overran += overran
        detail = attempt.details() | {"overran" if overran else "interrupted": True}
        if self.drive.strays:
            detail["left_running"] = True
        await self.drive.ask(
            self.drive.tools.journal.commit,
            attempt._replace(committed_at=self._now(), detail=as_json(detail)),
        )

    async def write(self, record: StepRecord) -> None:
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
        await self.write(attempt._replace(committed_at=self._now(), detail=as_json(detail)))


def _info(attempt: StepRecord) -> StepInfo:
    return StepInfo(
        attempt.run_id,
        attempt.fence,
        attempt.step_id,
        attempt.attempt,
        attempt.idempotency_key,
        attempt.step_index,
    )
