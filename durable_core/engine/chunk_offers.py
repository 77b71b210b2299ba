"""Finding chunks that a worker may claim, in the maps of runs whose workflows it knows."""

from __future__ import annotations

import random
from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from durable_core.engine.asking import ask
from durable_core.engine.chunk_claims import FREE, chunks_now, shared_map, state_of
from durable_core.errors import CorruptRecord
from durable_core.records import ACTIVE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from durable_core.engine.chunk_claims import SharedMap
    from durable_core.engine.drive import Tools
    from durable_core.engine.due_runs import DueRuns
    from durable_core.records import RunHeader
    from durable_core.workflow import Workflow

_MAPS_AT_ONCE: Final = 50
_LOOK_EVERY_MS: Final = 1_000
_LIST_EVERY_MS: Final = 10_000


class Offer(NamedTuple):
    """A chunk to be claimed, and its run's workflow."""

    header: RunHeader
    of: SharedMap
    chunk: int
    workflow: Workflow[..., Any]


class _Listed(NamedTuple):
    """The chunks of one map that were free, in an order of this worker's own."""

    header: RunHeader
    of: SharedMap
    workflow: Workflow[..., Any]
    free: deque[int]
    at_ms: int


class ChunkOffers:
    """The chunks that are free, as of the last look at each map.

    Somebody else may have claimed one since: whoever takes an offer looks at it again. All chunks of a map
    are listed when it is first met, when none is left, and now and then.

    Args:
        tools: The executor's.
        due: Knows which runs are left alone here.
    """

    def __init__(self, tools: Tools, due: DueRuns) -> None:
        self._tools = tools
        self._due = due
        self._maps: dict[tuple[str, str], _Listed] = {}
        self._looked_ms = -_LOOK_EVERY_MS

    async def some(self, room: int) -> list[Offer]:
        """Up to so many, of different maps where there are several."""
        if room <= 0:
            return []
        now_ms = self._tools.clock.boot_ms()
        if not any(one.free for one in self._maps.values()) or now_ms - self._looked_ms >= _LOOK_EVERY_MS:
            self._looked_ms = now_ms
            await self._look(now_ms)
        found = list(self._taken(room))
        random.shuffle(found)
        return found

    def _taken(self, room: int) -> Iterator[Offer]:
        while room:
            before = room
            for header, of, workflow, free, _ in self._maps.values():
                if free and room:
                    room -= 1
                    yield Offer(header, of, free.popleft(), workflow)
            if room == before:
                return

    async def _look(self, now_ms: int) -> None:
        """Finds maps that are shared, and lists those that are new here or may have got free chunks."""
        tools = self._tools
        records = await ask(tools.journal.open_maps, limit=_MAPS_AT_ONCE)
        maps: dict[tuple[str, str], _Listed] = {}
        headers: dict[str, RunHeader | None] = {}
        for record in records:
            if record.run_id not in headers:
                headers[record.run_id] = await ask(tools.journal.header, record.run_id)
            header = headers[record.run_id]
            if header is None or header.status not in ACTIVE or record.fence <= header.base_fence:
                continue
            known = self._due.known([header])
            if not known:
                continue
            try:
                of = shared_map(record, header.base_fence)
            except CorruptRecord as error:
                tools.log.error("map_left", run_id=header.run_id, step_id=record.step_id, reason=str(error))
                self._due.rest(header.run_id)
                continue
            if not of.stops:
                key = record.run_id, record.step_id
                maps[key] = await self._listed(self._maps.get(key), header, of, known[0].workflow, now_ms)
        self._maps = maps

    async def _listed(
        self,
        before: _Listed | None,
        header: RunHeader,
        of: SharedMap,
        workflow: Workflow[..., Any],
        now_ms: int,
    ) -> _Listed:
        is_same = before is not None and before.of.redriven_fence == of.redriven_fence
        if before is not None and is_same and before.free and now_ms - before.at_ms < _LIST_EVERY_MS:
            return before._replace(header=header, of=of)
        taken = set()
        async for chunk in chunks_now(self._tools, of):
            if state_of(self._tools, of, chunk) != FREE:
                taken.add(chunk.chunk)
        free = [number for number in range(of.chunks) if number not in taken]
        random.shuffle(free)
        return _Listed(header, of, workflow, deque(free), now_ms)
