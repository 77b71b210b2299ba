"""What people do to runs from outside: cancel, skip a step, fork."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from durable_core.clock import rfc3339
from durable_core.codec import freeze
from durable_core.engine import admission
from durable_core.engine.asking import ask
from durable_core.engine.dispatch import tell_drive
from durable_core.engine.failure import as_json
from durable_core.engine.step_records import history_with
from durable_core.errors import (
    CorruptRecord,
    Fenced,
    InputNotSerializable,
    NotSerializable,
    StepNotFound,
    UsageError,
)
from durable_core.identity import new_attempt_id, place_of
from durable_core.journal.base import Departure, Lease, as_seen
from durable_core.records import (
    ACTIVE,
    CANCELLED,
    EVENT_KIND,
    FAILED,
    JOIN_KIND,
    MAP_KIND,
    PENDING,
    SKIPPED,
    SLEEP_KIND,
    STARTED,
    STEP_KIND,
    RunHeader,
)

if TYPE_CHECKING:
    from durable_core.engine.drive import Tools
    from durable_core.records import StepRecord

UNSET: Any = object()
_SKIPPABLE: Final = (STEP_KIND, MAP_KIND, SLEEP_KIND, EVENT_KIND)


async def cancel(tools: Tools, header: RunHeader) -> RunHeader:
    """Cancels an active run: whoever drives it is fenced. An ended run stays as it is.

    Returns:
        The header as it is now: CANCELLED, or as the run had ended.
    """
    while header.status in ACTIVE:
        reply = await ask(tools.journal.cancel, header, rfc3339(tools.clock.now_ms()))
        if reply.row is None:
            raise CorruptRecord("the run's header vanished while it was cancelled", run_id=header.run_id)
        if reply.ok or (reply.row.status == CANCELLED and reply.row.fence == header.fence + 1):
            tools.log.info("run_cancelled", run_id=header.run_id, fence=reply.row.fence)
        header = reply.row
    return header


async def skip(tools: Tools, header: RunHeader, step_id: str, output: object) -> StepRecord:
    """Settles a step by hand: SKIPPED, with or without an output.

    Args:
        tools: The executor's.
        header: Of the run, which nobody may be driving.
        step_id: A step or a wait that is STARTED or FAILED.
        output: What the workflow gets as its output; UNSET for None.

    Raises:
        RunBusy: Somebody drives the run.
        StepNotFound: It has no such step.
        UsageError: The step has an outcome that stands.
        InputNotSerializable: The output can't be stored.
    """
    acquired = await admission.acquire(tools, header)
    if not isinstance(acquired, admission.Admitted):  # it went on this moment
        raise admission.busy(tools, acquired)
    admitted = acquired.header
    lease = Lease(admitted.run_id, admitted.owner or "", admitted.fence, admitted.base_fence)
    counts = header.counts
    try:
        skipped = await _skip(tools, lease, step_id, output)
        counts = await _counted(tools, lease)
        return skipped
    finally:
        status = FAILED if header.status == FAILED else PENDING
        departure = Departure(status=status, due_at_ms=tools.clock.now_ms(), keep_error=True, counts=counts)
        reply = await ask(tools.journal.leave, lease, departure)
        if reply.row is not None:
            await tell_drive(tools, reply.row)


async def _counted(tools: Tools, lease: Lease) -> str:
    """The steps by status as they are now: the header has them as of the last time the run was left."""
    found: Counter[str] = Counter()
    async for page in tools.journal.replay(lease.run_id):
        found.update(one.status for one in page if one.fence > lease.base_fence and one.kind != JOIN_KIND)
    return as_json(dict(sorted(found.items())))


async def _skip(tools: Tools, lease: Lease, step_id: str, output: object) -> StepRecord:
    seen = await ask(tools.journal.step, lease.run_id, step_id)
    where = {"run_id": lease.run_id, "step_id": step_id}
    if seen is None or seen.fence <= lease.base_fence:
        raise StepNotFound("the run has no such step", **where, remedy="See its steps with `durable show`")
    by_hand = seen.status == SKIPPED and seen.details().get("skipped_by_hand")
    if seen.kind not in _SKIPPABLE or not (by_hand or seen.status in (STARTED, FAILED)):
        raise UsageError(f"the step is {seen.status}, and that stands", **where)
    if seen.fence > lease.fence:
        raise Fenced("somebody else drives the run", **where, remedy="Try again once nobody does")
    attempt_id, now = new_attempt_id(place_of(seen.attempt_id)), rfc3339(tools.clock.now_ms())
    record = seen._replace(
        status=SKIPPED,
        attempt_id=attempt_id,
        fence=lease.fence,
        committed_at=now,
        error=None,
        output_hash=None,
        output_data=None,
        output_ref=None,
        codec=None,
        output_size=None,
        detail=as_json({"skipped_by_hand": True}),
        attempts=as_json(history_with(seen)),
    )
    if output is not UNSET:
        try:
            raw, _ = freeze(output)
            stored = await tools.values.store(raw, lease.run_id, attempt_id)
        except NotSerializable as error:
            raise InputNotSerializable(
                f"the output can't be stored: {error.message}", path=error.path, **where, remedy=error.remedy
            ) from error
        record = record._replace(
            output_hash=stored.output_hash,
            output_data=stored.data,
            output_ref=stored.ref,
            codec=stored.codec,
            output_size=stored.size,
        )
    reply = await ask(tools.journal.begin, record, as_seen(seen), lease, guarded=True)
    if not reply.ok and (reply.row is None or reply.row.attempt_id != attempt_id):
        raise Fenced("somebody else drives the run", **where, remedy="Try again once nobody does")
    tools.log.info("step_skipped", **where, fence=lease.fence)
    return record
