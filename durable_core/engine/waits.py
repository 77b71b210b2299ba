"""Waits that survive their process: for a time, and for an event.

A wait has a record like a step: STARTED says what it waits for and until when, the outcome what came. Who
takes the run over begins it anew under its own fence, with the same end. An event is taken in one transaction
with the outcome; a time-out is the outcome alone, and leaves a late event for the next wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from durable_core.awaited import UNSET, Slept
from durable_core.clock import rfc3339
from durable_core.codec import decode, encode
from durable_core.engine.attempts import NOTHING
from durable_core.engine.failure import as_json
from durable_core.engine.step_records import committed, failed, is_own, known, next_attempt
from durable_core.engine.suspension import Wait
from durable_core.engine.values import Stored
from durable_core.errors import CorruptRecord, DurableError, EventInvalid, EventTimeout
from durable_core.identity import MAX_ID_CHARS
from durable_core.journal.base import as_seen
from durable_core.step_definition import Step, StepOptions

if TYPE_CHECKING:
    from pydantic import TypeAdapter

    from durable_core.awaited import Awaited
    from durable_core.engine.attempts import Attempts
    from durable_core.engine.step_records import Call
    from durable_core.errors import StepFailed
    from durable_core.records import Event, StepRecord


def _never() -> None:
    raise AssertionError("a wait has no body")


SLEEP_STEP: Final = Step(_never, StepOptions(name="sleep"))


def wait_step(awaited: Awaited) -> Step[..., Any]:
    """What stands for the step of a wait for an event: its name, and what restores what came."""
    step = Step(_never, StepOptions(name=f"event.{awaited.name}"[:MAX_ID_CHARS]))
    step.adapter = awaited.adapter
    return step


def restorer(record: StepRecord, step: Step[..., Any]) -> TypeAdapter[Any] | None:
    """What restores the recorded outcome of a wait: a default needn't be of the type that is waited for."""
    return None if record.details().get("timed_out") else step.adapter


class Waits:
    """The waits of one drive. Each gives what came back when somebody else was faster, with NOTHING.

    Args:
        attempts: Of the drive.
    """

    def __init__(self, attempts: Attempts) -> None:
        self._attempts = attempts
        self._drive = attempts.drive

    async def outcome(
        self, call: Call, seen: StepRecord | None, asked: Slept | Awaited
    ) -> tuple[StepRecord | None, Any]:
        """Waits for what was asked for."""
        if isinstance(asked, Slept):
            return await self._slept(call, seen, asked)
        return await self._awaited(call, seen, asked)

    async def _slept(
        self, call: Call, seen: StepRecord | None, asked: Slept
    ) -> tuple[StepRecord | None, Any]:
        """Waits until a time."""
        drive, clock = self._drive, self._drive.tools.clock
        if asked.until is not None:
            wake_at_ms = round(asked.until.timestamp() * 1000)
        else:
            wake_at_ms = clock.now_ms() + round((asked.seconds or 0) * 1000)
        attempt, wake_at_ms = self._next(call, seen, wake_at_ms, {})
        row = await self._attempts.begin(attempt, seen)
        if row is not attempt:
            return row, NOTHING
        while clock.now_ms() < wake_at_ms:
            await drive.suspension.until(Wait(wake_at_ms), call.scope)
        return await self._commit(attempt, None)

    async def _awaited(
        self, call: Call, seen: StepRecord | None, awaited: Awaited
    ) -> tuple[StepRecord | None, Any]:
        """Waits for an event. One that has come by the time it is looked for comes before the time-out.

        Raises:
            EventTimeout: None came in time, and there is no default.
            EventInvalid: Its payload doesn't fit the type; it is taken all the same.
        """
        drive, clock = self._drive, self._drive.tools.clock
        end_ms = None if awaited.timeout_s is None else clock.now_ms() + round(awaited.timeout_s * 1000)
        told = {"event": awaited.name, "type": awaited.type_name}
        attempt, end_ms = self._next(call, seen, end_ms, told)
        row = await self._attempts.begin(attempt, seen)
        if row is not attempt:
            return row, NOTHING
        while True:
            heard = drive.suspension.heard
            event = await drive.suspension.untaken(awaited.name)
            if event is not None:
                taken = await self._taken(attempt, event, awaited)
                if taken is not None:
                    return taken
            elif end_ms is not None and clock.now_ms() >= end_ms:
                return await self._timed_out(attempt, awaited)
            elif heard == drive.suspension.heard:  # else something has come while it looked
                await drive.suspension.until(Wait(end_ms, awaited.name), call.scope)

    def _next(
        self, call: Call, seen: StepRecord | None, end_ms: Any, told: dict[str, str | None]
    ) -> tuple[StepRecord, Any]:
        """The STARTED record of a wait, and its end: the one that it first had."""
        before = known(self._drive, call, seen)
        if before is not None:
            end_ms = before.details().get("wake_at_ms", end_ms)
        if end_ms is not None and type(end_ms) is not int:
            where = {"run_id": self._drive.run_id, "step_id": call.step_id}
            raise CorruptRecord(f"the end of a wait is {end_ms!r:.40}", **where)
        attempt = next_attempt(self._drive, call, seen)
        return attempt._replace(
            kind=call.kind, crashes=0, detail=as_json(self._drive.marked({"wake_at_ms": end_ms, **told}))
        ), end_ms

    # ---- Outcomes ----

    async def _taken(
        self, attempt: StepRecord, event: Event, awaited: Awaited
    ) -> tuple[StepRecord, Any] | None:
        """Takes an event with the wait's outcome; None when another wait has taken it."""
        drive, (codec, data, ref, size, hashed) = self._drive, _payload(event)
        record, value = committed(attempt, Stored(codec, data, ref, size, hashed), self._now()), None
        try:
            raw = await drive.tools.values.load(codec, data, ref, size, hashed)
        except DurableError as error:  # the store's: it tells nothing about the event, which stays
            error.run_id, error.step_id = attempt.run_id, attempt.step_id
            drive.stop(error)
            raise
        try:
            value = decode(raw, awaited.adapter)
        except CorruptRecord as error:
            message = f"event {event.event_id!r} isn't what is waited for: {error.message}"
            record = failed(attempt, _told(EventInvalid, message), self._now())
        reply = await drive.ask(drive.tools.journal.take, event, record)
        if not reply.ok and not is_own(reply.row, record):
            if as_seen(reply.row) == as_seen(attempt):
                return None
            raise drive.fenced_by(reply.row)
        if record.error is not None:
            raise self._attempts.told_failed(record, EventInvalid.__name__)
        self._attempts.told_committed(record)
        return record, value

    async def _timed_out(self, attempt: StepRecord, awaited: Awaited) -> tuple[StepRecord, Any]:
        if awaited.default is not UNSET:
            return await self._commit(attempt, awaited.default, timed_out=True)
        message = f"event {awaited.name!r} didn't come in {awaited.timeout_s:g} s"
        record = failed(attempt, _told(EventTimeout, message), self._now())
        await self._attempts.write(record)
        raise self._attempts.told_failed(record, EventTimeout.__name__)

    async def _commit(
        self, attempt: StepRecord, value: object, *, timed_out: bool = False
    ) -> tuple[StepRecord, Any]:
        drive = self._drive
        raw = encode(value)
        stored = await drive.tools.values.store(raw, drive.run_id, attempt.attempt_id)
        record = committed(attempt, stored, self._now())
        if timed_out:
            record = record._replace(detail=as_json({"timed_out": True}))
        await self._attempts.write(record)
        self._attempts.told_committed(record)
        return record, decode(raw)

    def _now(self) -> str:
        return rfc3339(self._drive.tools.clock.now_ms())


def _payload(event: Event) -> tuple[str, bytes | None, str | None, int, str]:
    """As `Stored` has it; what is missing is found out when it is opened."""
    return event.codec or "", event.data, event.ref, event.size or 0, event.output_hash or ""


def _told(kind: type[StepFailed], message: str) -> dict[str, str]:
    return {"code": kind.code, "type": kind.__name__, "message": message, "traceback": ""}
