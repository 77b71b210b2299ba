"""When a step whose attempt raised is begun again, by the clock of whoever goes on with it.

B   12:00, its clock says 13:00 ── raises: ended 13:00:00, retry at 13:00:05 ── dies
A   12:01 takes over ── it ended in the future? ── commit: ended 12:01:00, retry at 12:01:05

A record from the future tells that clocks differ, or that one was set back, and by how much at least. Put
into our time, no retry is waited for longer than its delay, whoever comes next; by B's it could be years.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from durable_core.clock import epoch_ms, rfc3339
from durable_core.engine.failure import as_json
from durable_core.engine.step_records import is_in_doubt, is_own
from durable_core.engine.suspension import Wait
from durable_core.errors import CorruptRecord
from durable_core.records import STARTED

if TYPE_CHECKING:
    from durable_core.engine.drive import Drive
    from durable_core.engine.step_records import Call
    from durable_core.records import StepRecord


async def until_retry(drive: Drive, call: Call, record: StepRecord) -> StepRecord | None:
    """Waits for the retry time of a record whose last attempt has ended.

    Args:
        drive: Of the run.
        call: Of the step.
        record: As last seen.

    Returns:
        The same record: the step may be begun, its time has come or it has none. Another one: what stands
        there now, to be judged anew.

    Raises:
        StepNotFound: Nothing is begun in this drive.
        CorruptRecord: Its times can't be read.
        ControlFlow: The drive or the branch is stopped.
    """
    drive.check_may_begin(call.step_id)
    if call.step.options.verify is not None and is_in_doubt(record):
        await _until_certain(drive, call, record)
        return record
    retry_at_ms = record.details().get("retry_at_ms")
    if record.status != STARTED or type(retry_at_ms) is not int:
        return record
    clock = drive.tools.clock
    ahead_ms = _ended_ms(record) - clock.now_ms()
    if ahead_ms > 0:
        return await _retimed(drive, record, retry_at_ms - ahead_ms)
    end_ms = clock.boot_ms() + retry_at_ms - clock.now_ms()
    # Whichever clock says so first: the wall clock may be set back meanwhile, and set forward, too.
    while (left_ms := min(retry_at_ms - clock.now_ms(), end_ms - clock.boot_ms())) > 0:
        await drive.suspension.until(Wait(clock.now_ms() + left_ms), call.scope)
    return record


async def _until_certain(drive: Drive, call: Call, record: StepRecord) -> None:
    """Waits until the owner that died in a step is dead for certain, where that time is known: only then is
    it final if the step's verifier says that it hasn't happened.
    """
    from_ms = drive.gone.get(drive.rank(record)) or 0
    while drive.tools.clock.now_ms() < from_ms:
        await drive.suspension.until(Wait(from_ms), call.scope)


async def _retimed(drive: Drive, record: StepRecord, retry_at_ms: int) -> StepRecord | None:
    """Records the end of an attempt, and its retry time, in our time; what stands there then.

    B   (paused past its lease) ─────────────────────── begin b2 [b1] ─▶ put
    A   sees b1, of the future ── commit b1: retimed ─▶ applied before that; after it, refused by b2

    Applied or refused, A goes on from what it is told: b2 is begun over like any record of a lower fence.
    """
    told = {**record.details(), "retry_at_ms": retry_at_ms}
    ours = record._replace(committed_at=rfc3339(drive.tools.clock.now_ms()), detail=as_json(told))
    reply = await drive.ask(drive.tools.journal.commit, ours)
    return ours if reply.ok or is_own(reply.row, ours) else reply.row


def _ended_ms(record: StepRecord) -> int:
    try:
        return epoch_ms(record.committed_at or "")
    except ValueError as error:
        raise CorruptRecord(
            f"the attempt ended at {record.committed_at!r:.40}, which is no time",
            run_id=record.run_id,
            step_id=record.step_id,
        ) from error
