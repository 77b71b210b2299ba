"""Driving a run that was acquired: from its records to every way out.

workflow returns                   COMPLETED
every live branch waits            SUSPENDED, for those who drive runs so; nothing of it is in flight
an exception leaves it             FAILED, with the ids of the failed steps it came from
a step is in doubt                 FAILED, whatever the workflow catches: a person has to decide
SIGTERM, SIGINT, cancellation      released as PENDING; steps in flight are marked interrupted
the deadline comes                 released as PENDING; what was in flight had until then to commit
the journal can't be reached       released if it can be again, else left to the end of the lease
somebody else took over            nothing is written
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from durable_core.codec import freeze
from durable_core.context import Context
from durable_core.control_flow import HandOver, RunInterrupted, RunSuspended, WorkflowOver
from durable_core.current import RunInfo, here
from durable_core.engine.admission import recorded_inputs
from durable_core.engine.branches import is_join
from durable_core.engine.dispatch import tell_drive
from durable_core.engine.drive import Drive, poison
from durable_core.engine.failure import as_json, described, escaped_steps
from durable_core.engine.lease import HeldLease
from durable_core.engine.owners import lease_now_ms
from durable_core.engine.sessions import completed, steps_of
from durable_core.engine.stopping import Deadline
from durable_core.engine.suspension import Suspension
from durable_core.engine.tally import Tally
from durable_core.errors import (
    CorruptRecord,
    DurableError,
    Fenced,
    NotSerializable,
    OutputNotSerializable,
    RunCrashLimitReached,
    RunFailed,
    RunStalled,
    StepInDoubt,
    StepMismatch,
    UsageError,
)
from durable_core.identity import KeyMaker
from durable_core.journal.base import Departure, Lease
from durable_core.map_reference import reading
from durable_core.records import COMPLETED, FAILED, JOIN_KIND, PENDING, RunHeader
from durable_core.scope import Scope
from durable_core.sync_context import SyncContext, in_thread

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping

    from durable_core.engine.admission import Admitted
    from durable_core.engine.drive import Tools
    from durable_core.engine.stopping import WayOut
    from durable_core.workflow import Workflow


async def drive(
    tools: Tools,
    admitted: Admitted,
    workflow: Workflow[..., Any],
    *,
    keeps_changed: bool = False,
    suspends: bool = False,
    patience: int = 0,
    deadline: WayOut | None = None,
    tally: Tally | None = None,
    records_only: bool = False,
) -> tuple[RunHeader, Any]:
    """Drives an acquired run to a way out.

    Args:
        tools: The executor's.
        admitted: The run, as acquired.
        workflow: To be called with a context and the recorded inputs.
        keeps_changed: Recorded outputs are used although their inputs have changed.
        suspends: Whether the run is left when everybody in it waits.
        patience: How many drives before this one have left it although somebody didn't wait.
        deadline: When the run has to be left.
        tally: Counts what the drive comes to.
        records_only: Whether it only replays what is recorded; the run needn't be acquired then.

    Returns:
        The header as it ended, and the output; or as it was left because everybody waits (SUSPENDED, or
        PENDING if there is something to do after all), and whether somebody didn't wait.

    Raises:
        RunFailed: With the cause chained.
        Fenced, JournalUnavailable: The run was taken over, or its store is out of reach.
        HandOver, RunInterrupted: The deadline came, or the process was asked to stop.
    """
    header = admitted.header
    current = _begun(tools, admitted)
    current.keeps_changed, current.records_only = keeps_changed, records_only
    current.way_out, current.tally = deadline, tally or Tally()
    had_time = deadline is None or deadline.left_s() > 0
    current.suspension = Suspension(current, suspends=suspends, patience=patience)
    if not records_only:
        tools.renewals.keep(current.held)
    token = here.set(RunInfo(header.run_id, header.fence))
    outcomes = reading.set(tools.outcomes)
    try:
        if (hopeless := _hopeless(current)) is not None:
            raise await _given_up(current, hopeless)
        current.gone = admitted.gone()
        current.redrive, current.redrive_fence = redriven(header)
        inputs = await recorded_inputs(tools, header, workflow)
        await _load(current)
        if deadline is not None:
            deadline.watch(current)
        try:
            output = await _run_workflow(current, workflow, inputs, contained=suspends)
        except RunSuspended:
            return await current.suspension.leave(), current.suspension.hurried
        return await _complete(current, workflow, output)
    except RunFailed:
        raise
    except BaseException as error:  # whatever it is, also a fault of ours: the run is left to the next owner
        await _release(current, error, had_time=had_time)
        raise
    finally:
        if deadline is not None:
            deadline.forget()
        await current.suspension.end()
        here.reset(token)
        reading.reset(outcomes)
        tools.renewals.drop(current.held)


def _begun(tools: Tools, admitted: Admitted) -> Drive:
    header = admitted.header
    current = Drive(
        tools=tools,
        header=header,
        lease=Lease(header.run_id, header.owner or "", header.fence, header.base_fence),
        keys=KeyMaker(header.run_id),
    )
    loop = asyncio.get_running_loop()

    def on_lost(reason: DurableError) -> None:
        loop.call_soon_threadsafe(current.interrupt, reason)

    current.held = HeldLease(
        current.run_lease, tools.lease_now_ms, tools.clock, on_lost, header.wake_count, loop.is_closed
    )
    return current


def redriven(header: RunHeader) -> tuple[set[str], int]:
    """The failed steps that ended the run before, and the fence they ended it under."""
    failure = header.error_info()
    steps, joins, fence = failure.get("steps", []), failure.get("joins", []), failure.get("fence", 0)
    sound = isinstance(steps, list) and isinstance(joins, list) and type(fence) is int
    if not sound or not all(isinstance(one, str) for one in (*steps, *joins)):
        raise CorruptRecord("the recorded error of the run isn't one", run_id=header.run_id)
    return {*steps, *joins}, fence


async def _load(current: Drive) -> None:
    async for page in current.tools.journal.replay(current.run_id):
        current.records.update((record.step_id, record) for record in page)
        current.counts.update(one.status for one in page if current.owns(one) and one.kind != JOIN_KIND)


async def _run_workflow(
    current: Drive, workflow: Workflow[..., Any], inputs: Mapping[str, object], *, contained: bool
) -> Any:
    """Runs the workflow in a task of its own, and waits until every step it started is at a boundary."""
    engine, loop = steps_of(current), asyncio.get_running_loop()
    if workflow.is_async:
        called = workflow.fn(Context(engine, Scope()), **inputs)
    else:
        called = in_thread(workflow.fn, SyncContext(engine, Scope(), loop), **inputs)
    if contained:
        called = _contained(called)
    task = current.workflow_task = loop.create_task(called, name=f"durable:{current.run_id}")
    try:
        await asyncio.wait((task,))
    except asyncio.CancelledError:
        current.interrupt(RunInterrupted("the run was interrupted"))
        current.left_early = (
            True  # until everything has come to an end: a second cancellation doesn't wait for that
        )
        await asyncio.wait((task,))
        await _settle(current)
        current.left_early = False
        _take(task)
        raise
    await _settle(current)
    failure = _take(task)
    if isinstance(current.stopped, StepInDoubt | StepMismatch):
        raise await _fail(current, current.stopped) from current.stopped
    if not isinstance(current.stopped, WorkflowOver):
        raise poison(current.stopped or RunInterrupted("the run was interrupted")) from failure
    if failure is None:
        await completed(engine, task.result(), workflow.adapter)
        return task.result()
    if isinstance(failure, Exception):
        raise await _fail(current, failure) from failure
    raise failure


async def _contained(called: Coroutine[Any, Any, Any]) -> Any:
    """A workflow that ends its process only fails where many runs are driven: it would end every worker."""
    try:
        return await called
    except SystemExit as left:
        raise UsageError(
            f"the workflow ended the process that drove it: SystemExit({left.code!r})",
            remedy="Let it raise another exception, or return",
        ) from left


async def _settle(current: Drive) -> None:
    """Lets the steps that are still live reach a boundary."""
    current.stop(WorkflowOver("the workflow has ended"))
    while current.tasks:
        current.idle.clear()
        await current.idle.wait()


def _take(task: asyncio.Task[Any]) -> BaseException | None:
    return asyncio.CancelledError() if task.cancelled() else task.exception()


async def _complete(current: Drive, workflow: Workflow[..., Any], output: object) -> tuple[RunHeader, Any]:
    """Ends the run COMPLETED; an output that can't be stored ends it FAILED."""
    try:
        raw, live = freeze(output, workflow.adapter)
        if current.records_only:
            return current.header, live
        stored = await current.tools.values.store(raw, current.run_id, current.lease.owner)
    except NotSerializable as error:
        failure = OutputNotSerializable(
            f"the workflow's output can't be stored: {error.message}",
            path=error.path,
            run_id=current.run_id,
            remedy=error.remedy,
        )
        raise await _fail(current, failure) from error
    departure = Departure(
        status=COMPLETED,
        output_hash=stored.output_hash,
        output_data=stored.data,
        output_ref=stored.ref,
        output_codec=stored.codec,
        output_size=stored.size,
        counts=_counts(current),
    )
    header = await _leave(current, departure)
    current.log.info("run_completed", counts=current.counted())
    unasked = [record.step_id for record in current.records.values() if current.owns(record)]
    if unasked:
        current.log.warning("recorded_steps_not_asked_for", step_ids=unasked[:20], count=len(unasked))
    return header, live


async def _fail(current: Drive, error: Exception) -> RunFailed:
    """Ends the run FAILED; gives what the caller of `run` sees of it."""
    told = described(error)
    ids = sorted(current.redrive.union(escaped_steps(error, current.run_id)))
    joins = [one for one in ids if is_join(one)]
    steps = [one for one in ids if not is_join(one)]
    recorded = {**told, "steps": steps, "joins": joins, "fence": current.lease.fence}
    await _leave(current, Departure(status=FAILED, error=as_json(recorded), counts=_counts(current)))
    current.log.error("run_failed", error=told["type"])
    return RunFailed(current.run_id, told)


def _hopeless(current: Drive) -> DurableError | None:
    """Why a run isn't driven again, if so: those before have come to nothing too often."""
    header, limit = current.header, current.tools.run_crash_limit
    if header.crashes >= limit:
        told = f"{header.crashes} owners in a row died without finishing a step"
        return RunCrashLimitReached(told, run_id=header.run_id)
    if header.idle_drives >= limit:
        told = f"{header.idle_drives} drives in a row came to their deadline without finishing anything"
        return RunStalled(told, run_id=header.run_id)
    return None


async def _given_up(current: Drive, error: DurableError) -> RunFailed:
    await _load(current)
    failed = await _fail(current, error)
    failed.__cause__ = error
    return failed


async def _release(current: Drive, error: BaseException, *, had_time: bool) -> None:
    """Gives the run up for the next owner, unless it is somebody else's already.

    One that comes to its deadline with nothing finished is counted: the next is started by nobody's decision,
    and would come no further. One that was stopped by a person or a deploy isn't, nor one in which an attempt
    `overran`: that has used up one of its own crashes, and so has an end.
    """
    log = current.log
    if current.records_only:
        return
    if isinstance(error, Fenced) or current.held.lost is not None:
        log.warning("run_fenced", reason=str(error))
        return
    idle_drives = current.header.idle_drives
    if current.tally.outcomes:
        idle_drives = 0
    elif (
        had_time
        and isinstance(error, HandOver)
        and isinstance(current.way_out, Deadline)
        and not current.tally.overran
    ):
        idle_drives += 1
    departure = Departure(
        status=PENDING,
        due_at_ms=lease_now_ms(current.tools),
        keep_error=True,
        idle_drives=idle_drives,
        # A body that can't be stopped is still at work: nobody may begin it anew before the lease is over.
        keep_lease=bool(current.strays or current.left_early),
        counts=_counts(current),
    )
    try:
        header = await _leave(current, departure)
    except DurableError as failure:  # the lease runs out by itself, and a dead owner is seen at once
        log.warning("run_not_released", reason=str(failure))
    else:
        log.info("run_released", reason=type(error).__qualname__, bodies_still_running=len(current.strays))
        await tell_drive(current.tools, header)


async def _leave(current: Drive, departure: Departure) -> RunHeader:
    """Writes a way out; one that is already there by our own lost reply is success.

    Raises:
        Fenced: Somebody else drives the run.
        JournalUnavailable: It could not be written.
    """
    if current.records_only:
        return current.header
    current.tools.renewals.drop(current.held)
    reply = await current.ask(current.tools.journal.leave, current.run_lease, departure)
    header = reply.row
    own = header is not None and header.fence == current.lease.fence and header.owner is None
    if header is None or not (reply.ok or own):
        raise Fenced(
            "the run was taken over before its end could be written",
            run_id=current.run_id,
            remedy="The new owner goes on from the last committed step",
        )
    current.tally.left = header
    return header


def _counts(current: Drive) -> str:
    return as_json(current.counted())
