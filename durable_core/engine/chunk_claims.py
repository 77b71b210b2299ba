"""Who may work on a chunk, and its hold: claimed, renewed, left.

none, PENDING, RUNNING past its lease     claimed
RUNNING                                   somebody works on it
COMPLETED, FAILED                         over - or claimed anew, where the run was resumed because of it
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from durable_core.clock import rfc3339
from durable_core.engine.asking import ask
from durable_core.engine.failure import as_json
from durable_core.engine.invocation import dead_from_ms, gone_of
from durable_core.engine.lease import HeldLease
from durable_core.engine.owners import is_dead_for_certain, lease_now_ms, owner_process
from durable_core.errors import CorruptRecord, Fenced
from durable_core.identity import new_owner
from durable_core.journal.base import Lease
from durable_core.journal.chunks import ChunkLease, is_shared
from durable_core.records import COMPLETED, FAILED, RUNNING, Chunk, parse_object

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from durable_core.engine.drive import Tools
    from durable_core.errors import DurableError
    from durable_core.journal.base import Renewer
    from durable_core.records import RunHeader, StepRecord

FREE: Final = "free"
BUSY: Final = "busy"
OVER: Final = "over"
BROKEN: Final = "broken"
ChunkState = Literal["free", "busy", "over", "broken"]

_GONE_KEPT: Final = 50
_IDLE: Final = "idle"
_NUMBERS: Final = (
    "chunk_size", "chunks", "total", "redriven_fence", "above_fence", "plan_fence", "window",
)  # fmt: skip


class SharedMap(NamedTuple):
    """What the record of a map that workers share says.

    Attributes:
        record: As begun last.
        base_fence: Of the run's life.
        chunk_size: Items of a chunk; the last one may have fewer.
        chunks: How many there are.
        total: Of the items.
        redriven_fence: Failures under a fence up to this are run again.
        above_fence: What lies under a fence up to this is not of this map.
        stops: Nothing more is to be started.
        manifest: Which version of a manifest the items are; None where they are in a sequence.
        plan_fence: Under which fence that was divided.
    """

    record: StepRecord
    base_fence: int
    chunk_size: int
    chunks: int
    total: int
    redriven_fence: int
    above_fence: int
    stops: bool
    manifest: str | None
    plan_fence: int
    window: int
    is_forked: bool

    def span(self, chunk: int) -> range:
        """The positions of a chunk's items."""
        return range(chunk * self.chunk_size, min((chunk + 1) * self.chunk_size, self.total))


def shared_map(record: StepRecord, base_fence: int) -> SharedMap:
    """Reads it.

    Raises:
        CorruptRecord: It can't be one that we wrote.
    """
    detail = record.details()
    numbers = [detail.get(name, 0) for name in _NUMBERS]
    manifest = detail.get("manifest")
    size, chunks, total, redriven_fence, above_fence, plan_fence, window = numbers
    sound = all(type(one) is int and one >= 0 for one in numbers)
    if not sound or not size or chunks != -(-total // size) or not isinstance(manifest, str | None):
        raise CorruptRecord(
            "the record of the map doesn't say how its items are shared",
            run_id=record.run_id,
            step_id=record.step_id,
            remedy="Restore the store from a backup, or fork the run from before this step",
        )
    return SharedMap(
        record, base_fence, size, chunks, total, redriven_fence, max(above_fence, base_fence),
        bool(detail.get("stops")), manifest, plan_fence, window, bool(detail.get("forked")),
    )  # fmt: skip


async def shared_map_now(tools: Tools, header: RunHeader, step_id: str) -> SharedMap | None:
    """A map as it is now; None if it isn't shared, hasn't begun, or is over."""
    record = await ask(tools.journal.step, header.run_id, step_id)
    if record is None or not is_shared(record) or record.fence <= header.base_fence:
        return None
    return shared_map(record, header.base_fence)


def state_of(tools: Tools, of: SharedMap, chunk: Chunk | None) -> ChunkState:
    """Whether a chunk may be claimed."""
    if chunk is None or chunk.fence <= of.above_fence:
        return FREE
    if chunk.status in (COMPLETED, FAILED):
        again = chunk.fence <= of.redriven_fence and (chunk.failed > 0 or chunk.status == FAILED)
        return FREE if again else OVER if chunk.status == COMPLETED else BROKEN
    is_over = chunk.lease_until_ms < lease_now_ms(tools)
    return FREE if is_over or is_dead_for_certain(tools, chunk.owner_process) else BUSY


async def chunks_now(tools: Tools, of: SharedMap) -> AsyncIterator[Chunk]:
    """The chunks of this map that were ever claimed."""
    async for page in tools.journal.chunks(of.record.run_id, of.record.step_id):
        for chunk in page:
            if chunk.fence > of.above_fence and chunk.chunk < of.chunks:
                yield chunk


async def claim(tools: Tools, of: SharedMap, number: int, seen: Chunk | None) -> Chunk | None:
    """Claims a chunk that was seen free; None if somebody was faster.

    A   RUNNING, chunk fence 1 ── (dies)
    B                               sees 1 ── claim [1, lease over] ─▶ RUNNING, chunk fence 2
    C                               sees 1 ────── claim [1] ─▶ refused: BUSY
    """
    gone: dict[int, int | bool | None] = {}
    dead_owner, idle = None, 0
    if seen is not None:
        gone = dict(gone_of(seen)) if seen.fence > of.above_fence else {}
        is_dead = seen.owner is not None and is_dead_for_certain(tools, seen.owner_process)
        if seen.status == RUNNING or is_dead:
            gone[seen.chunk_fence] = is_dead or dead_from_ms(seen.owner_process)
        dead_owner = seen.owner if is_dead else None
        if seen.fence > max(of.above_fence, of.redriven_fence):  # else a person has had it begun again
            idle = idle_of(seen)
    claimed = Chunk(
        of.record.run_id,
        of.record.step_id,
        number,
        max(of.record.fence, seen.fence if seen is not None else 0),
        seen.chunk_fence + 1 if seen is not None else 1,
        RUNNING,
        new_owner(),
        owner_process(tools),
        succeeded=seen.succeeded if seen is not None else 0,
        failed=seen.failed if seen is not None else 0,
        gone=gone_json(dict(list(gone.items())[-_GONE_KEPT:]), idle),
        updated_at=rfc3339(tools.clock.now_ms()),
    )
    reply = await ask(tools.journal.claim, claimed, seen, tools.lease_now_ms(), dead_owner=dead_owner)
    return reply.row if reply.row is not None and reply.row.owner == claimed.owner else None


def idle_of(chunk: Chunk) -> int:
    """How often in a row a chunk was handed back at a deadline with nothing done."""
    found = parse_object(chunk.gone, chunk.run_id, chunk.step_id).get(_IDLE)
    return found if type(found) is int else 0


def gone_json(gone: Mapping[int, int | bool | None], idle: int) -> str | None:
    """A chunk's `gone`: its owners that never left it, and how often it came to nothing."""
    told = {**{str(fence): dead for fence, dead in gone.items()}, **({_IDLE: idle} if idle else {})}
    return as_json(told) if told else None


def lease_of(of: SharedMap, chunk: Chunk) -> ChunkLease:
    """What its owner holds."""
    return ChunkLease(
        chunk.run_id,
        chunk.owner or "",
        chunk.fence,
        of.base_fence,
        chunk.step_id,
        chunk.chunk,
        chunk.chunk_fence,
    )


class HeldChunk(HeldLease):
    """The lease of a chunk, as its holder knows it."""

    __slots__ = ("_chunk_lease",)

    def __init__(
        self,
        lease: ChunkLease,
        tools: Tools,
        on_lost: Callable[[DurableError], None],
        is_abandoned: Callable[[], bool],
    ) -> None:
        of_run = Lease(lease.run_id, lease.owner, lease.fence, lease.base_fence)
        super().__init__(of_run, tools.lease_now_ms, tools.clock, on_lost, is_abandoned=is_abandoned)
        self._chunk_lease = lease

    def renewed(self, renewer: Renewer) -> bool:
        """Asks for a longer one; refused, somebody else has the chunk."""
        reply = renewer.renew_chunk(self._chunk_lease, self.lease_ms)
        if not reply.ok and self.lost is None:
            self.lost = taken_from(self._chunk_lease, reply.row)
            self.on_lost(self.lost)
        return reply.ok


def taken_from(lease: ChunkLease, row: Chunk | None) -> Fenced:
    """Why a chunk is somebody else's."""
    whose = f"chunk fence {row.chunk_fence}" if row is not None else "it is gone"
    return Fenced(
        f"another worker has chunk {lease.chunk} now ({whose}, ours is {lease.chunk_fence})",
        run_id=lease.run_id,
        step_id=lease.step_id,
        remedy="This process has given way and writes nothing more to it",
    )
