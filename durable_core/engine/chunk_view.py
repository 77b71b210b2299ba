"""What a process knows of a map that it works on chunks of: found once, used for chunk after chunk."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from durable_core.engine.asking import ask
from durable_core.engine.chunk_claims import FREE, chunks_now, state_of
from durable_core.engine.chunk_plan import read_plan
from durable_core.errors import StepMismatch
from durable_core.manifest import Jsonl

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from durable_core.engine.chunk_claims import SharedMap
    from durable_core.engine.drive import Tools
    from durable_core.engine.step_records import Call
    from durable_core.manifest_lines import LineRange
    from durable_core.map_options import MapOptions


class _Part:
    """Some items of a sequence."""

    def __init__(self, items: Any, span: range) -> None:
        self._items, self._span = items, span

    def __len__(self) -> int:
        return len(self._span)

    def __iter__(self) -> Iterator[Any]:
        return (self._items[at] for at in self._span)


@dataclass(slots=True)
class ChunkView:
    """One map as it is called, and where its chunks are.

    Attributes:
        call: Of the map.
        options: Of the map.
        items: All of them.
        plan: Where each chunk of a manifest is; empty where they are in a sequence.
        unclaimed: Chunks that nobody works on, as far as this process has heard: most of them are right.
    """

    call: Call
    options: MapOptions
    items: Any
    plan: list[LineRange] = field(default_factory=list)
    unclaimed: set[int] = field(default_factory=set)

    @classmethod
    async def made(
        cls, tools: Tools, of: SharedMap, call: Call, items: Any, options: MapOptions
    ) -> ChunkView | None:
        """From what the map is called with; None while its driver hasn't written where its chunks are.

        Raises:
            StepMismatch: It is called with other items than it was begun with.
        """
        made = cls(call, options, items)
        if isinstance(items, Jsonl) != (of.manifest is not None):
            raise _other_items(of, "in another form")
        if of.manifest is None:
            total = len(items)
            if total != of.total:
                raise _other_items(of, str(total))
            return made
        plan = await read_plan(tools, of)
        if plan is None:
            return None
        made.plan = plan
        return made

    def items_of(self, chunk: int, span: range) -> Iterable[Any]:
        """The items of one chunk."""
        return self.items.read(self.plan[chunk]) if self.plan else _Part(self.items, span)

    async def has_others(self, tools: Tools, of: SharedMap, chunk: int) -> bool:
        """Whether there is another chunk that nobody works on: then this one isn't the last to end.

        All chunks are looked through only when none is left of those that were unclaimed the last time.
        """
        where = of.record.run_id, of.record.step_id
        self.unclaimed.discard(chunk)
        for number in list(self.unclaimed):
            if state_of(tools, of, await ask(tools.journal.chunk, *where, number)) == FREE:
                return True
            self.unclaimed.discard(number)
        left = set(range(of.chunks)) - {chunk}
        async for one in chunks_now(tools, of):
            if state_of(tools, of, one) != FREE:
                left.discard(one.chunk)
        self.unclaimed = left
        return bool(left)


def _other_items(of: SharedMap, now: str) -> StepMismatch:
    return StepMismatch(
        f"the map was begun with {of.total} items, and is called with other ones here: {now}",
        run_id=of.record.run_id,
        step_id=of.record.step_id,
        remedy="Work on it with the code and the data that the run was started with",
    )
