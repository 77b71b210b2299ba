"""Where the chunks of a manifest are: written once by the driver, read by whoever works on one.

It lies behind the logs of the map's chunks, with a line for each chunk: start, size in bytes, number of the
first line, items. So it is pruned and exported as the outcomes are.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from durable_core.clock import rfc3339
from durable_core.engine.asking import ask
from durable_core.engine.batch_log import filled, fitting
from durable_core.engine.failure import as_json
from durable_core.errors import CorruptRecord
from durable_core.identity import new_segment_id
from durable_core.manifest_lines import LineRange
from durable_core.outcomes import lines_of
from durable_core.records import Segment

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from durable_core.engine.chunk_claims import SharedMap
    from durable_core.engine.drive import Drive, Tools


async def put_plan(drive: Drive, of: SharedMap, ranges: Callable[[], Awaitable[list[LineRange]]]) -> None:
    """Writes what is missing of it.

    A   segment 0 ── (paused) ──────────────── segment 1 ─▶ refused by B's
    B                  reads 0 ── segment 1

    Args:
        drive: Of the run.
        of: The map.
        ranges: Where its chunks are: asked for only if something is missing.
    """
    while True:
        written = await drive.ask(_written, drive.tools, of)
        there = sum(sum(1 for _ in lines_of(one)) for one in _of_plan(of, written))
        if there >= of.chunks:
            return
        lines = [as_json(one[:4]).encode() for one in (await ranges())[there:]]
        seq = written[-1].seq + 1 if written else 0
        empty = Segment(
            drive.run_id, of.record.step_id, of.chunks, seq, new_segment_id(), drive.lease.fence,
            written_at=rfc3339(drive.tools.clock.now_ms()),
        )  # fmt: skip
        await drive.ask(drive.tools.journal.append, filled(empty, lines[: fitting(map(len, lines))]))


async def read_plan(tools: Tools, of: SharedMap) -> list[LineRange] | None:
    """Where each chunk is; None while that isn't written yet.

    Raises:
        CorruptRecord: It can't be read.
    """
    where = {"run_id": of.record.run_id, "step_id": of.record.step_id}
    try:
        lines = [
            json.loads(line) for one in _of_plan(of, await ask(_written, tools, of)) for line in lines_of(one)
        ]
        found = [LineRange._make((*map(int, line), of.manifest or "")) for line in lines]
    except (ValueError, TypeError) as error:
        raise CorruptRecord(f"where the map's chunks are can't be read: {error}", **where) from error
    if len(found) < of.chunks:
        return None
    if sum(one.items for one in found[: of.chunks]) != of.total:
        raise CorruptRecord("the chunks of the map don't make up its items", **where)
    return found


async def _written(tools: Tools, of: SharedMap) -> list[Segment]:
    """All that lies there: of divisions before this one, too."""
    pages = tools.journal.segments(of.record.run_id, of.record.step_id, of.chunks)
    return [one async for page in pages for one in page]


def _of_plan(of: SharedMap, written: list[Segment]) -> list[Segment]:
    return [one for one in written if one.fence >= of.plan_fence]
