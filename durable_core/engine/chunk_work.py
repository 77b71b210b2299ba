"""Working on one chunk of a map that several workers share: claimed, run from its last segment on, left.

each item has an outcome              COMPLETED; the run is woken if this may be the last
too many failed, or the map stops     PENDING, with what has failed; the run is woken, to decide
it can't go on                        FAILED, with why; the run is woken, to end
the deadline, a drain, a cancellation PENDING; somebody else goes on
the deadline, once more for nothing   FAILED, as if it can't go on: so often it would be for ever
somebody else has claimed it          nothing is written
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from durable_core.clock import rfc3339
from durable_core.control_flow import ControlFlow, HandOver, RunInterrupted
from durable_core.current import RunInfo, here
from durable_core.engine.asking import ask
from durable_core.engine.batch_intake import Intake
from durable_core.engine.batch_items import ItemRunner
from durable_core.engine.batch_log import ChunkLog
from durable_core.engine.batch_progress import MapProgress
from durable_core.engine.batch_pump import Pump
from durable_core.engine.chunk_claims import (
    BUSY,
    FREE,
    OVER,
    HeldChunk,
    claim,
    gone_json,
    idle_of,
    lease_of,
    shared_map_now,
    state_of,
    taken_from,
)
from durable_core.engine.chunk_result import DONE, HANDED_BACK, STUCK, ChunkResult
from durable_core.engine.drive import Drive
from durable_core.engine.failure import as_json, described
from durable_core.engine.invocation import gone_of
from durable_core.engine.keeping import keeps_changed
from durable_core.engine.stopping import Deadline
from durable_core.engine.suspension import Suspension
from durable_core.errors import (
    ChunkStalled,
    DurableError,
    Fenced,
    JournalUnavailable,
    StepMismatch,
    StoreMisconfigured,
    StoreNotFound,
)
from durable_core.identity import KeyMaker
from durable_core.item_table import ItemTable
from durable_core.journal.chunks import ChunkDeparture
from durable_core.map_reference import reading
from durable_core.records import ACTIVE, COMPLETED, FAILED, PENDING, RUNNING
from durable_core.scope import Scope

if TYPE_CHECKING:
    from durable_core.engine.chunk_claims import SharedMap
    from durable_core.engine.chunk_result import ChunkStatus
    from durable_core.engine.chunk_view import ChunkView
    from durable_core.engine.drive import Tools
    from durable_core.engine.stopping import WayOut
    from durable_core.records import Chunk, RunHeader
    from durable_core.verbs import Engine

_LOOK_EVERY_MS: Final = 1_000
_POLL_S: Final = 0.1
# They tell nothing about the items: whoever claims the chunk next may have more luck.
_OF_THE_STORE: Final = (JournalUnavailable, StoreMisconfigured, StoreNotFound)

EngineOf = Callable[[Drive], "Engine"]


async def work_here(outer: Drive, of: SharedMap, number: int, view: ChunkView, engine_of: EngineOf) -> None:
    """Works on a chunk in the process that drives the run; it is left as soon as that is stopped."""
    tools = outer.tools
    seen = await outer.ask(tools.journal.chunk, outer.run_id, of.record.step_id, number)
    if state_of(tools, of, seen) != FREE:
        return
    chunk = await claim(tools, of, number, seen)
    if chunk is None:
        return
    work = ChunkWork(tools, outer.header, of, chunk, view, None, engine_of)
    task = asyncio.get_running_loop().create_task(work.run(), name=f"durable:{outer.run_id}:chunk")
    try:
        while not task.done():
            await asyncio.wait((task,), timeout=_POLL_S)
            halt = view.call.scope.halt
            if outer.stopped is not None or (halt is not None and halt.is_set()):
                work.drive.stop(HandOver("the run is being left"))
    except asyncio.CancelledError:
        work.drive.interrupt(RunInterrupted("the run was interrupted"))
        await asyncio.wait((task,))
        if not task.cancelled() and (failure := task.exception()) is not None:  # the next owner comes to it
            outer.log.warning("chunk_not_left", step_id=of.record.step_id, chunk=number, reason=str(failure))
        raise
    try:
        task.result()
    except Fenced:  # the chunk is somebody else's, not the run
        outer.log.warning("chunk_fenced", step_id=of.record.step_id, chunk=number)
    except DurableError as error:
        outer.stop(error)
        raise


def result_of(
    of: SharedMap, chunk: int, status: ChunkStatus, items: int = 0, *, woken: bool = False
) -> ChunkResult:
    """What came of a chunk, with its names."""
    where = of.record
    return ChunkResult(
        run_id=where.run_id, step_id=where.step_id, chunk=chunk, status=status, items=items, woken=woken
    )


async def rejoin(tools: Tools, header: RunHeader, of: SharedMap) -> bool:
    """Wakes the run if all chunks of the map are done: whoever ended the last one may have died before it
    could.

    A run that is driven is woken, too: its driver may have looked at the chunks before.
    """
    over = 0
    async for page in tools.journal.chunks(header.run_id, of.record.step_id):
        over += sum(state_of(tools, of, one) == OVER for one in page)
    if over < of.chunks:
        return False
    while header.status in ACTIVE:
        reply = await ask(tools.journal.wake, header)
        if reply.ok:
            if tools.dispatch is not None:
                await tools.dispatch.drive(header.run_id)
            return True
        if reply.row is None:
            return False
        header = reply.row
    return False


class ChunkWork:
    """The work on one chunk by its owner.

    Args:
        tools: The executor's.
        header: Of the run.
        of: The map.
        chunk: As claimed.
        view: What the map is called with.
        way_out: When it has to be left.
        engine_of: Makes what the contexts of its items call.

    Attributes:
        drive: Of the items: as of a run, but what is held is the chunk.
    """

    def __init__(
        self,
        tools: Tools,
        header: RunHeader,
        of: SharedMap,
        chunk: Chunk,
        view: ChunkView,
        way_out: WayOut | None,
        engine_of: EngineOf,
    ) -> None:
        loop = asyncio.get_running_loop()
        self._tools, self._of, self._chunk, self._view = tools, of, chunk, view
        self._way_out, self._engine_of = way_out, engine_of
        self._lease = lease_of(of, chunk)
        self._table = ItemTable()
        self._pump: Pump | None = None
        self._looked_ms = tools.clock.boot_ms()
        self._failed_before = 0
        self._had_time = isinstance(way_out, Deadline) and way_out.left_s() > 0
        self.drive = drive = Drive(
            tools=tools, header=header, lease=self._lease, keys=KeyMaker(header.run_id)
        )
        drive.gone = gone_of(chunk)
        drive.keeps_changed = keeps_changed(header)
        drive.redrive_fence = of.redriven_fence
        drive.way_out = way_out
        drive.suspension = Suspension(drive, suspends=False)

        def on_lost(reason: DurableError) -> None:
            loop.call_soon_threadsafe(drive.interrupt, reason)

        drive.held = HeldChunk(self._lease, tools, on_lost, loop.is_closed)

    async def run(self) -> ChunkResult:
        """Runs what is missing, and leaves the chunk.

        Raises:
            Fenced: Somebody else has claimed it.
            JournalUnavailable: The store is out of reach.
        """
        drive, tools = self.drive, self._tools
        tools.renewals.keep(drive.held)
        info = here.set(RunInfo(drive.run_id, drive.lease.fence))
        outcomes = reading.set(tools.outcomes)
        drive.log.debug("chunk_claimed", **self._where(), chunk_fence=self._chunk.chunk_fence)
        try:
            if self._way_out is not None:
                self._way_out.watch(drive)
            error = await self._run_items()
            return await self._leave(error)
        except asyncio.CancelledError:
            drive.stop(RunInterrupted("the chunk was interrupted"))
            await asyncio.shield(self._leave(None))
            raise
        finally:
            if self._way_out is not None:
                self._way_out.forget()
            await drive.suspension.end()
            tools.renewals.drop(drive.held)
            here.reset(info)
            reading.reset(outcomes)

    async def _run_items(self) -> BaseException | None:
        """Runs the items that have no outcome; gives what stands in the way of the others, if anything."""
        drive, of, view = self.drive, self._of, self._view
        span, options = of.span(self._chunk.chunk), view.options
        call = view.call._replace(scope=Scope(view.call.scope.path))
        log = ChunkLog(
            drive,
            call.step_id,
            self._table,
            most_items=options.segment_items,
            linger_ms=options.linger_ms,
            redriven_fence=of.redriven_fence,
            chunk=self._chunk.chunk,
            first=span.start,
            above_fence=of.above_fence,
        )
        try:
            await log.read()
            await log.claim()
            self._failed_before = self._table.failed
            items = view.items_of(self._chunk.chunk, span)
            intake = Intake(
                drive, call, items, options, self._table, may_change=of.is_forked, first=span.start
            )
            runner = ItemRunner(
                self._engine_of(drive), drive, call, window=of.window, suspects=bool(drive.gone), log=log
            )
            progress = MapProgress(run_id=drive.run_id, step_id=call.step_id, total=len(span))
            progress.begin(self._table.succeeded + self._table.failed, self._table.failed)
            pump = Pump(
                drive, call, options, intake, runner, log, progress, total=of.total, watch=self._watch
            )
            self._pump = pump
            await self._look()
            try:
                await pump.run()
            finally:
                intake.close()
                if runner.overran:  # what was in work are suspects from now on, as after a crash
                    drive.gone[self._chunk.chunk_fence] = None
                if not isinstance(drive.stopped, Fenced | JournalUnavailable):
                    await log.flush()
        except (DurableError, ControlFlow) as error:
            drive.stop(error)
            return error
        if pump.error is not None or drive.stopped is not None or pump.is_over_limit():
            return pump.error
        if intake.pulled != len(span):
            told = f"chunk {self._chunk.chunk} has {intake.pulled} items now, and had {len(span)}"
            return StepMismatch(told, run_id=drive.run_id, step_id=call.step_id)
        return None

    # ---- Looking ----

    async def _watch(self) -> None:
        """Now and then: whether the map is still wanted, and how many share its rate."""
        if self._tools.clock.boot_ms() - self._looked_ms >= _LOOK_EVERY_MS:
            await self._look()

    async def _look(self) -> None:
        drive, tools = self.drive, self._tools
        self._looked_ms = tools.clock.boot_ms()
        header = await drive.ask(tools.journal.header, drive.run_id)
        now = None
        if header is not None and header.status in ACTIVE and header.base_fence == self._of.base_fence:
            now = await drive.ask(shared_map_now, tools, header, self._lease.step_id)
        if now is None or now.stops:
            drive.stop(HandOver("nobody wants more of the map's items now"))
            self._of = self._of._replace(stops=True)
        if self._pump is not None and self._pump.bucket is not None:
            self._pump.bucket.share(max(await drive.ask(self._sharing), 1))

    async def _sharing(self) -> int:
        """How many chunks of the map are in work."""
        found = 0
        async for page in self._tools.journal.chunks(self._lease.run_id, self._lease.step_id):
            found += sum(
                one.status == RUNNING and state_of(self._tools, self._of, one) == BUSY for one in page
            )
        return found

    # ---- Leaving ----

    async def _leave(self, error: BaseException | None) -> ChunkResult:
        """Writes what came of the chunk.

        A   looks: others are unclaimed ── leave: COMPLETED ── looks: none is ─▶ wakes the run itself
        B                    claims the last one ── leave: COMPLETED, and wakes: A's is not over yet
        """
        drive, table = self.drive, self._table
        reason = drive.stopped
        if isinstance(reason, Fenced) or drive.held.lost is not None:
            raise drive.held.lost or reason or drive.fenced_by(None)
        is_over = self._pump is not None and self._pump.is_over_limit()
        status = PENDING
        if error is not None and not isinstance(error, (ControlFlow, *_OF_THE_STORE)):
            status = FAILED
        elif reason is None and not is_over:
            status = COMPLETED
        idle = self._idle() if status == PENDING else 0
        if idle >= self._tools.run_crash_limit:
            status, error = FAILED, self._stalled(idle)
        new_failures = table.failed > self._failed_before
        wakes = status == FAILED or is_over or self._of.stops or new_failures
        if status == COMPLETED and not wakes:
            try:
                wakes = not await ask(self._view.has_others, self._tools, self._of, self._chunk.chunk)
            except JournalUnavailable:  # once too often does no harm
                wakes = True
        departure = ChunkDeparture(
            status=status,
            succeeded=table.succeeded,
            failed=table.failed,
            error=as_json(_told(error)) if status == FAILED and error is not None else None,
            gone=gone_json(drive.gone, idle),
            keep_lease=bool(drive.strays),
            updated_at=rfc3339(self._tools.clock.now_ms()),
        )
        self._tools.renewals.drop(drive.held)
        reply = await ask(self._tools.journal.leave_chunk, self._lease, departure, wakes=wakes)
        row = reply.row
        own = row is not None and row.chunk_fence == self._lease.chunk_fence and row.status != RUNNING
        if not (reply.ok or own):
            raise taken_from(self._lease, row)
        drive.log.info(
            "chunk_left", **self._where(), status=status, succeeded=table.succeeded, failed=table.failed
        )
        woken = wakes
        if status == COMPLETED and not wakes:
            others = await ask(self._view.has_others, self._tools, self._of, self._chunk.chunk)
            woken = not others and await rejoin(self._tools, drive.header, self._of)
        await self._tell(status, woken=wakes)
        if isinstance(error, _OF_THE_STORE):
            raise error
        ended: ChunkStatus = {COMPLETED: DONE, FAILED: STUCK}.get(status, HANDED_BACK)  # type: ignore[assignment]
        return result_of(self._of, self._chunk.chunk, ended, drive.tally.items, woken=woken)

    def _idle(self) -> int:
        """How often in a row the chunk has come to its deadline with nothing done, this time included.

        Not counted is what has an end of its own: an attempt that has used up one of its crashes, and a wait.
        """
        drive, before = self.drive, idle_of(self._chunk)
        if drive.tally.outcomes:
            return 0
        has_end = drive.tally.overran or drive.suspension.waited or self._of.stops
        came_to_it = self._had_time and isinstance(drive.stopped, HandOver)
        return before + (came_to_it and not has_end)

    def _stalled(self, times: int) -> ChunkStalled:
        """Why it isn't begun again; what to do is in the message, since only that is recorded."""
        lease = self._lease
        return ChunkStalled(
            f"chunk {lease.chunk} of the map {lease.step_id!r} came to its deadline {times} times in a row"
            " with nothing done: raise the function's time-out, make the items smaller, or give their step"
            " the timeout_s= that it needs, and resume the run",
            run_id=lease.run_id,
            step_id=lease.step_id,
        )

    async def _tell(self, status: str, *, woken: bool) -> None:
        dispatch = self._tools.dispatch
        if dispatch is None:
            return
        if woken:
            await dispatch.drive(self._lease.run_id)
        elif status == PENDING:
            await dispatch.chunks(self._lease.run_id, self._lease.step_id, [self._chunk.chunk])

    def _where(self) -> dict[str, object]:
        return {"step_id": self._lease.step_id, "chunk": self._lease.chunk}


def _told(error: BaseException) -> dict[str, str]:
    """Why a chunk can't go on; of unreadable items what stood in the way."""
    told = dict(described(error.__cause__ if error.__cause__ is not None else error))
    return {**told, "message": str(error.message if isinstance(error, DurableError) else error)}
