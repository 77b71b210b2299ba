"""Taking one chunk of a shared map that may be worked on: from its name to its work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from durable_core.arguments import check_count
from durable_core.engine import calls
from durable_core.engine.asking import ask
from durable_core.engine.chunk_claims import BUSY as IS_BUSY
from durable_core.engine.chunk_claims import FREE, OVER, claim, shared_map_now, state_of
from durable_core.engine.chunk_result import BUSY, DONE, GONE, STUCK, ChunkResult
from durable_core.engine.chunk_work import ChunkWork, rejoin, result_of
from durable_core.engine.map_view import view_of
from durable_core.engine.sessions import steps_of
from durable_core.identity import check_id
from durable_core.records import ACTIVE

if TYPE_CHECKING:
    from durable_core.engine.chunk_claims import SharedMap
    from durable_core.engine.chunk_view import ChunkView
    from durable_core.engine.drive import Tools
    from durable_core.engine.stopping import WayOut
    from durable_core.records import Chunk, RunHeader
    from durable_core.workflow import Workflow


async def work_chunk(
    tools: Tools,
    run_id: str,
    step_id: str,
    chunk: int,
    workflow: Workflow[..., Any] | None,
    way_out: WayOut | None,
) -> ChunkResult:
    """Claims a chunk, and runs those of its items that have no outcome yet.

    Args:
        tools: The executor's.
        run_id: The run.
        step_id: Of the map.
        chunk: Its number, from 0.
        workflow: The run's; found by its name when None.
        way_out: When the chunk has to be left.
    """
    check_count("chunk", chunk, least=0)
    header = await ask(tools.journal.header, check_id(run_id, "run id"))
    told = ChunkResult(run_id=run_id, step_id=step_id, chunk=chunk, status=GONE)
    if header is None or header.status not in ACTIVE:
        return told
    of = await shared_map_now(tools, header, step_id)
    if of is None or chunk >= of.chunks or of.stops:
        return told
    seen = await ask(tools.journal.chunk, run_id, step_id, chunk)
    state = state_of(tools, of, seen)
    if state == OVER:  # its end may have come without a wake-up
        woken = await rejoin(tools, header, of)
        return result_of(of, chunk, DONE, woken=woken)
    if state != FREE:
        return result_of(of, chunk, BUSY if state == IS_BUSY else STUCK)
    view = await view_of(tools, header, of, workflow or calls.known(header))
    if view is None:
        return result_of(of, chunk, BUSY)  # the driver is about to write where the chunks are
    return await _claimed(tools, header, of, chunk, seen, view, way_out)


async def _claimed(
    tools: Tools,
    header: RunHeader,
    of: SharedMap,
    number: int,
    seen: Chunk | None,
    view: ChunkView,
    way_out: WayOut | None,
) -> ChunkResult:
    chunk = await claim(tools, of, number, seen)
    if chunk is None:
        return result_of(of, number, BUSY)
    return await ChunkWork(tools, header, of, chunk, view, way_out, steps_of).run()
