"""Forking a run: a new one goes on from the outcomes of another, which stays as it was."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from durable_core.engine import admission, looking
from durable_core.engine.asking import ask
from durable_core.engine.batch_log import filled
from durable_core.engine.dispatch import tell_drive
from durable_core.engine.failure import as_json
from durable_core.engine.step_records import is_own
from durable_core.errors import CorruptRecord, Fenced, RunInputMismatch, StepNotFound
from durable_core.identity import new_attempt_id, new_segment_id, place
from durable_core.journal.base import Departure, Lease
from durable_core.outcomes import BLOB, outcomes_of
from durable_core.records import COMMITTED, MAP_KIND, PENDING, SKIPPED, STARTED, RunHeader

if TYPE_CHECKING:
    from collections.abc import Mapping

    from durable_core.engine.drive import Tools
    from durable_core.records import Segment, StepRecord
    from durable_core.workflow import Workflow


@dataclass(frozen=True, slots=True)
class ForkPlan:
    """What a fork takes over, and what it runs anew.

    Attributes:
        run_id: The new run; None of a dry run.
        kept: Ids of the committed steps that are taken over, in the order in which they were begun.
        left: Ids of the recorded steps that are not.
    """

    run_id: str | None
    kept: list[str]
    left: list[str]


async def fork(
    tools: Tools,
    workflow: Workflow[..., Any],
    old: RunHeader,
    new_run_id: str,
    *,
    from_step: str | None,
    inputs: Mapping[str, object] | None,
    dry_run: bool,
) -> ForkPlan:
    """Makes a new run that takes over the committed steps of another; the other stays as it was.

    A step that the new run calls with another input, or whose large output is lost, is run anew. Steps that
    are taken over keep their key.

    Args:
        tools: The executor's.
        workflow: Of both runs.
        old: The run to fork.
        new_run_id: The id of the new one.
        from_step: Only steps begun before this one are taken over.
        inputs: Of the new run; the old one's when None.
        dry_run: Only tell.

    Raises:
        StepNotFound: The run has no step `from_step`.
        RunInputMismatch: The new id is taken, or the run is of another workflow.
        RunPruned: The run is being pruned.
    """
    admission.check_same(old, workflow, None)
    records = await looking.steps_of(tools.journal, old, within=None)
    now = await ask(tools.journal.header, old.run_id)
    admission.check_not_pruned(now or old)  # a prune that began meanwhile may have kept some from being read
    last = next((n for n, record in enumerate(records) if record.step_id == from_step), None)
    if from_step is not None and last is None:
        raise StepNotFound("the run has no such step", run_id=old.run_id, step_id=from_step)
    done = {record.step_id for record in records if record.kind == MAP_KIND and record.status == COMMITTED}
    kept = [record for record in records[:last] if _is_taken_over(record, done)]
    names = {record.step_id for record in kept}
    left = [record.step_id for record in records if record.step_id not in names]
    if dry_run:
        return ForkPlan(None, [record.step_id for record in kept], left)
    if inputs is None:
        inputs = await admission.recorded_inputs(tools, old, workflow)
    header, mine = await admission.create(
        tools, workflow, new_run_id, inputs, session_id=old.session_id, forked_from=old.run_id
    )
    if not mine:
        raise RunInputMismatch(
            "there is a run of that id already", run_id=new_run_id, remedy="Use another id for the fork"
        )
    lease = Lease(new_run_id, header.owner or "", header.fence, header.base_fence)
    try:
        for number, record in enumerate(list(kept), 1):
            try:
                await _take_over(tools, lease, record, place(lease.fence, number))
            except CorruptRecord as error:  # its large output is lost or damaged: that step is run anew
                kept.remove(record)
                left.append(record.step_id)
                tools.log.warning(
                    "step_not_taken_over", run_id=new_run_id, fence=lease.fence, step_id=record.step_id,
                    reason=error.message,
                )  # fmt: skip
    finally:  # what is not taken over when this fails is run anew
        released = await ask(
            tools.journal.leave, lease, Departure(status=PENDING, due_at_ms=tools.clock.now_ms())
        )
    if released.row is not None:
        await tell_drive(tools, released.row)
    tools.log.info("run_forked", run_id=new_run_id, fence=lease.fence, forked_from=old.run_id, kept=len(kept))
    return ForkPlan(new_run_id, [record.step_id for record in kept], left)


def _is_taken_over(record: StepRecord, done: set[str]) -> bool:
    """Whether a fork goes on from a record: an outcome, or a map with the outcomes that it has so far.

    Not from the steps inside the items of a map that has committed: its outcomes say it all.
    """
    step_id = record.step_id
    if any(step_id[:at] in done for at, char in enumerate(step_id) if char == "["):
        return False
    return record.status in (COMMITTED, SKIPPED) or record.kind == MAP_KIND


async def _take_over(tools: Tools, lease: Lease, record: StepRecord, place: str) -> None:
    """Puts a copy of a record, after what it points to: blobs are never shared, either run may be pruned.

    Raises:
        CorruptRecord: What it points to is lost or damaged, and not carried on.
    """
    attempt_id = new_attempt_id(place)
    ref = record.output_ref
    if record.output_hash is not None:
        await tools.values.load(record.codec, record.output_data, ref, record.output_size, record.output_hash)
    if ref is not None:
        ref = await tools.values.copied(ref, lease.run_id, attempt_id)
    copied = record._replace(
        run_id=lease.run_id,
        attempt_id=attempt_id,
        fence=lease.fence,
        output_ref=ref,
        detail=as_json({**record.details(), "forked": True}),
    )
    if record.kind == MAP_KIND:
        await _take_map_over(tools, lease, record, copied)
    else:
        await _put(tools, lease, copied)


async def _take_map_over(tools: Tools, lease: Lease, record: StepRecord, copied: StepRecord) -> None:
    """Copies a map: its record as begun, its log, and only then what it came to.

    So outcomes never lie without the record that says what they are of, however this ends.
    """
    kept = {
        name: value for name, value in record.details().items() if name not in ("interrupted", "suspects")
    }
    begun = {"window": 0, **kept, "forked": True, "interrupted": True, "redriven_fence": lease.fence}
    if "chunk_size" in begun:  # nobody works on it before the new run has begun it
        begun["divided_by"] = begun.pop("chunk_size")
    started = copied._replace(
        status=STARTED, output_hash=None, output_data=None, output_ref=None, codec=None, output_size=None,
        committed_at=None, error=None, detail=as_json(begun),
    )  # fmt: skip
    await _put(tools, lease, started)
    await _take_segments_over(tools, lease, record)
    if record.status in (COMMITTED, SKIPPED):
        outcome = copied._replace(detail=as_json({**copied.details(), "base_fence": lease.base_fence}))
        reply = await ask(tools.journal.commit, outcome)
        if not reply.ok and not is_own(reply.row, outcome):
            raise _not_ours(lease, record.step_id)


async def _take_segments_over(tools: Tools, lease: Lease, record: StepRecord) -> None:
    """Copies a map's log, place by place: what it pins stays where it is."""
    detail = record.details()
    pins = detail.get("pins") if record.status == COMMITTED else None
    chunks = len(pins) if isinstance(pins, list) else detail.get("chunks", 1)
    for chunk in range(max(chunks, 1) if isinstance(chunks, int) else 1):
        async for page in tools.journal.segments(record.run_id, record.step_id, chunk):
            for segment in page:
                if not isinstance(pins, list) or segment.seq <= pins[chunk]:
                    await _append(tools, lease, await _copied(tools, lease, segment))


async def _append(tools: Tools, lease: Lease, copied: Segment) -> None:
    reply = await ask(tools.journal.append, copied)
    if not reply.ok and (reply.row is None or reply.row.attempt_id != copied.attempt_id):
        raise _not_ours(lease, copied.step_id)


async def _copied(tools: Tools, lease: Lease, segment: Segment) -> Segment:
    """A segment of the new run, whose large outputs are copies."""
    fresh = segment._replace(
        run_id=lease.run_id, attempt_id=new_segment_id(), fence=lease.fence, chunk_fence=0
    )
    if segment.refs is None:
        return fresh
    lines, refs = [], []
    for outcome in outcomes_of(segment):
        if outcome.kind == BLOB:
            pointer = outcome.pointer()
            ref = await tools.values.copied(pointer.ref, lease.run_id, fresh.attempt_id)
            outcome = outcome._replace(payload=as_json(pointer._replace(ref=ref)).encode())
            refs.append(ref)
        lines.append(outcome.line())
    return filled(fresh._replace(refs=as_json(refs)), lines)


async def _put(tools: Tools, lease: Lease, record: StepRecord) -> None:
    reply = await ask(tools.journal.put, record, None, lease)
    if not reply.ok and (reply.row is None or reply.row.attempt_id != record.attempt_id):
        raise _not_ours(lease, record.step_id)


def _not_ours(lease: Lease, step_id: str) -> Fenced:
    return Fenced("somebody else drives the new run", run_id=lease.run_id, step_id=step_id)
