"""What a map is called with, in a process that doesn't drive its run.

Functions, keys and items are values of the workflow's code, and no stored data names code to be run. So
whoever works on a chunk replays the workflow up to the call of its map, from what is recorded. Nothing is
written meanwhile: whatever isn't recorded yet is waited for in vain, and the workflow unwinds as it does when
its run is suspended, once the map is found.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from durable_core.context import Context
from durable_core.control_flow import WorkflowOver
from durable_core.current import RunInfo, here
from durable_core.engine.admission import recorded_inputs
from durable_core.engine.chunk_view import ChunkView
from durable_core.engine.drive import Drive
from durable_core.engine.driver import redriven
from durable_core.engine.lease import HeldLease
from durable_core.engine.recorded import is_used
from durable_core.engine.step_records import known
from durable_core.engine.steps import Steps
from durable_core.engine.suspension import Suspension
from durable_core.errors import DurableError, UsageError
from durable_core.identity import KeyMaker, input_hash
from durable_core.journal.base import Lease
from durable_core.map_reference import reading
from durable_core.scope import Scope
from durable_core.sync_context import SyncContext, in_thread

if TYPE_CHECKING:
    from collections.abc import Iterable

    from durable_core.engine.batch import Batch
    from durable_core.engine.chunk_claims import SharedMap
    from durable_core.engine.drive import Tools
    from durable_core.engine.step_records import Call
    from durable_core.journal.base import Journal
    from durable_core.map_options import MapOptions
    from durable_core.map_result import MapResult
    from durable_core.records import RunHeader, StepRecord
    from durable_core.workflow import Workflow

_WRITES: Final = frozenset(
    {"begin", "put", "commit", "append", "take", "send", "leave", "wake", "claim", "leave_chunk"}
)
# A fence that nothing recorded is above: what stands there is looked at, not judged.
_ABOVE_ALL: Final = 2**62
_TICK_S: Final = 0.02
_STILL_S: Final = 1.0  # after so long in which nobody came to a verb, nobody will
_MOST_S: Final = 60.0
_UNWIND_S: Final = 1.0
_KEPT: Final = 8


class MapView(NamedTuple):
    """One call of a map."""

    call: Call
    items: Iterable[Any]
    options: MapOptions


async def view_of(
    tools: Tools, header: RunHeader, of: SharedMap, workflow: Workflow[..., Any]
) -> ChunkView | None:
    """The view of a map, kept for its next chunk; None while its driver hasn't written all of the division.

    Raises:
        UsageError: The workflow doesn't come to the map.
        StepMismatch: It calls it with other items than it was begun with.
    """
    key = (header.run_id, of.record.step_id, of.base_fence, of.above_fence, of.redriven_fence, of.total)
    made: ChunkView | asyncio.Future[ChunkView | None] | None = tools.views.get(key)
    if isinstance(made, ChunkView):
        return made
    if made is None or made.get_loop() is not asyncio.get_running_loop():
        made = tools.views[key] = asyncio.ensure_future(_view(tools, header, of, workflow))
    try:
        view: ChunkView | None = await asyncio.shield(made)
    finally:
        tools.views.pop(key, None)
    if view is not None:
        tools.views[key] = view
        for old in list(tools.views)[:-_KEPT]:
            del tools.views[old]
    return view


async def _view(
    tools: Tools, header: RunHeader, of: SharedMap, workflow: Workflow[..., Any]
) -> ChunkView | None:
    found = await found_map(tools, header, workflow, of.record.step_id)
    return await ChunkView.made(tools, of, found.call, found.items, found.options)


async def found_map(tools: Tools, header: RunHeader, workflow: Workflow[..., Any], step_id: str) -> MapView:
    """Replays a workflow up to the call of a map.

    Raises:
        UsageError: It doesn't come to one of that id.
        DurableError: What it needs can't be read.
    """
    journal = _OnlyRead(tools.journal)
    looking = replace(tools, journal=cast("Journal", journal), checkpointer=None, dispatch=None)
    drive = Drive(
        tools=looking,
        header=header,
        lease=Lease(header.run_id, "", _ABOVE_ALL, header.base_fence),
        keys=KeyMaker(header.run_id),
    )
    drive.held = HeldLease(drive.run_lease, _ABOVE_ALL, tools.clock, drive.interrupt)
    drive.keeps_changed = True
    drive.redrive, drive.redrive_fence = redriven(header)
    drive.suspension = Suspension(drive, suspends=False)
    inputs = await recorded_inputs(tools, header, workflow)
    async for page in tools.journal.replay(header.run_id):
        drive.records.update((record.step_id, record) for record in page)
    engine = _UpTo(drive, step_id)
    info, outcomes = here.set(RunInfo(header.run_id, header.fence)), reading.set(tools.outcomes)
    try:
        if workflow.is_async:
            called = workflow.fn(Context(engine, Scope()), **inputs)
        else:
            context = SyncContext(engine, Scope(), asyncio.get_running_loop())
            called = in_thread(workflow.fn, context, **inputs)
        task = asyncio.get_running_loop().create_task(called, name=f"durable-look:{header.run_id}")
    finally:
        here.reset(info)
        reading.reset(outcomes)
    drive.workflow_task = task
    try:
        return await _found(engine, task)
    finally:
        await _unwind(drive, journal, task)


async def _found(engine: _UpTo, task: asyncio.Task[Any]) -> MapView:
    """The call, once the workflow has come to it."""
    drive, entered, still_s, all_s = engine.drive, -1, 0.0, 0.0
    while still_s < _STILL_S and all_s < _MOST_S:
        await asyncio.wait((engine.found, task), timeout=_TICK_S, return_when=asyncio.FIRST_COMPLETED)
        if engine.found.done():
            return engine.found.result()
        if task.done():
            break
        all_s += _TICK_S
        moves = drive.entered != entered or drive.plain_code.is_running() or not drive.tasks
        entered, still_s = drive.entered, 0.0 if moves else still_s + _TICK_S
    failure = task.exception() if task.done() and not task.cancelled() else None
    if isinstance(failure, DurableError) and not isinstance(failure, UsageError):
        raise failure
    raise UsageError(
        "the workflow doesn't come to this map from what is recorded",
        run_id=engine.run_id,
        step_id=engine.wanted,
        remedy="Work on it with the code that the run was started with; what happens between steps must come"
        " out the same in every process",
    ) from failure


async def _unwind(drive: Drive, journal: _OnlyRead, task: asyncio.Task[Any]) -> None:
    """Ends what the look has begun."""
    over = WorkflowOver("the map was looked for")
    journal.end(over)
    drive.stop(over)
    await asyncio.wait((task,), timeout=_UNWIND_S)
    drive.interrupt(over)
    await asyncio.wait((task, *drive.tasks))
    await drive.suspension.end()
    _ = task.cancelled() or task.exception()  # seen


class _OnlyRead:
    """A journal whose writes never come back, until they raise that the look is over."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._over = asyncio.Event()
        self._reason: BaseException = WorkflowOver("the look is over")
        self.live = 0
        self.skew_ms = journal.skew_ms

    def __getattr__(self, verb: str) -> Any:
        return self._wait if verb in _WRITES else getattr(self._journal, verb)

    def end(self, reason: BaseException) -> None:
        """From now on they raise this."""
        self._reason = reason
        self._over.set()

    async def _wait(self, *_: object, **__: object) -> Any:
        try:
            await self._over.wait()
        except asyncio.CancelledError:  # whoever is cancelled may want to write that down
            self._over.set()
            raise
        raise WorkflowOver(*self._reason.args)


class _UpTo(Steps):
    """The steps of a look: they replay, and the map that is looked for is found.

    Args:
        drive: Of the look.
        wanted: The map's id.
    """

    def __init__(self, drive: Drive, wanted: str) -> None:
        super().__init__(drive)
        self.wanted = wanted
        self.found: asyncio.Future[MapView] = asyncio.get_running_loop().create_future()

    async def _map(
        self, scope: Scope, call: Call, items: Iterable[Any], options: MapOptions
    ) -> MapResult[Any]:
        if call.step_id != self.wanted:
            return await super()._map(scope, call, items, options)
        hashed = input_hash(call.step_id, (call.step.name, *call.args), call.kwargs)
        if not self.found.done():
            self.found.set_result(MapView(call._replace(hashed=hashed), items, options))
        with self.drive.inside():
            await self.drive.tools.journal.commit(None)  # type: ignore[arg-type]  # never comes back
        raise AssertionError("a look has no outcome")

    async def _settle_map(self, batch: Batch, call: Call, seen: StepRecord | None) -> tuple[StepRecord, Any]:
        record = known(self.drive, call, seen)
        if record is None or not is_used(self.drive, call, record, ""):
            await self.drive.tools.journal.commit(None)  # type: ignore[arg-type]  # never comes back
        return await super()._settle_map(batch, call, seen)
