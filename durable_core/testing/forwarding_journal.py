"""A journal that asks another: for tests that put something before, after or in the place of its calls."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from typing_extensions import override

from durable_core.journal.base import Claim, Departure, Holding, Journal, Lease, Renewer, RunFilter
from durable_core.records import (
    ACTIVE,
    Child,
    Chunk,
    Event,
    Reply,
    RunHeader,
    Seen,
    Segment,
    StepRecord,
    Unreadable,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Sequence

    from durable_core.journal.carrying import Kind, Record
    from durable_core.journal.chunks import ChunkDeparture, ChunkLease, SegmentReader
    from durable_core.journal.damaged import DamagedHeader

P = ParamSpec("P")
T = TypeVar("T")


class ForwardingJournal(Journal):
    """Every verb goes through `ask`, which is for subclasses to override; pages come all in one call.

    Renewers, readers, `open` and `close` are the inner journal's, at once.

    Args:
        inner: The journal that the calls are made to.
    """

    def __init__(self, inner: Journal) -> None:
        self.inner = inner

    async def ask(self, call: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **options: P.kwargs) -> T:
        """Makes a call to the inner journal, as it is or with something about it.

        Args:
            call: Makes it, and can be called again; its `__name__` is the verb.
            args, options: What it is called with.
        """
        self.inner.live = self.live
        reply = await call(*args, **options)
        self.skew_ms = self.inner.skew_ms
        return reply

    # ---- Headers ----

    @override
    async def create(self, header: RunHeader, lease_ms: int = 0) -> Reply[RunHeader]:
        return await self.ask(self.inner.create, header, lease_ms)

    @override
    async def acquire(
        self,
        seen: RunHeader,
        claim: Claim,
        *,
        statuses: Sequence[str] = ACTIVE,
        dead_owner: str | None = None,
    ) -> Reply[RunHeader]:
        return await self.ask(self.inner.acquire, seen, claim, statuses=statuses, dead_owner=dead_owner)

    @override
    async def leave(
        self, lease: Lease, departure: Departure, *, wake_count: int | None = None
    ) -> Reply[RunHeader]:
        return await self.ask(self.inner.leave, lease, departure, wake_count=wake_count)

    @override
    async def cancel(self, seen: RunHeader, ended_at: str, error: str | None = None) -> Reply[RunHeader]:
        return await self.ask(self.inner.cancel, seen, ended_at, error)

    @override
    async def wake(self, seen: RunHeader) -> Reply[RunHeader]:
        return await self.ask(self.inner.wake, seen)

    @override
    async def due(self, *, limit: int = 100) -> list[RunHeader]:
        return await self.ask(self.inner.due, limit=limit)

    @override
    async def header(self, run_id: str) -> RunHeader | None:
        return await self.ask(self.inner.header, run_id)

    @override
    async def runs(self, wanted: RunFilter) -> list[RunHeader]:
        return await self.ask(self.inner.runs, wanted)

    @override
    def open_renewer(self) -> Renewer:
        return self.inner.open_renewer()

    # ---- Steps ----

    @override
    async def begin(
        self, record: StepRecord, seen: Seen | None, lease: Holding, *, guarded: bool = False
    ) -> Reply[StepRecord]:
        return await self.ask(self.inner.begin, record, seen, lease, guarded=guarded)

    @override
    async def commit(self, record: StepRecord) -> Reply[StepRecord]:
        return await self.ask(self.inner.commit, record)

    @override
    async def put(self, record: StepRecord, seen: Seen | None, lease: Holding) -> Reply[StepRecord]:
        return await self.ask(self.inner.put, record, seen, lease)

    @override
    async def step(self, run_id: str, step_id: str) -> StepRecord | None:
        return await self.ask(self.inner.step, run_id, step_id)

    @override
    async def steps(self, run_id: str) -> AsyncIterator[list[StepRecord]]:
        for page in await self.ask(_all_of(self.inner.steps), run_id):
            yield page

    @override
    async def replay(self, run_id: str, within: str = "") -> AsyncIterator[list[StepRecord]]:
        for page in await self.ask(_all_of(self.inner.replay), run_id, within):
            yield page

    @override
    async def progressed(self, run_id: str, fence: int) -> bool:
        return await self.ask(self.inner.progressed, run_id, fence)

    # ---- Chunks ----

    @override
    async def claim(
        self, claimed: Chunk, seen: Chunk | None, lease_ms: int, *, dead_owner: str | None = None
    ) -> Reply[Chunk]:
        return await self.ask(self.inner.claim, claimed, seen, lease_ms, dead_owner=dead_owner)

    @override
    async def leave_chunk(
        self, lease: ChunkLease, departure: ChunkDeparture, *, wakes: bool = False
    ) -> Reply[Chunk]:
        return await self.ask(self.inner.leave_chunk, lease, departure, wakes=wakes)

    @override
    async def chunk(self, run_id: str, step_id: str, chunk: int) -> Chunk | None:
        return await self.ask(self.inner.chunk, run_id, step_id, chunk)

    @override
    async def chunks(self, run_id: str, step_id: str) -> AsyncIterator[list[Chunk]]:
        for page in await self.ask(_all_of(self.inner.chunks), run_id, step_id):
            yield page

    @override
    async def open_maps(self, *, limit: int = 100) -> list[StepRecord]:
        return await self.ask(self.inner.open_maps, limit=limit)

    # ---- Segments and events ----

    @override
    async def append(self, segment: Segment) -> Reply[Segment]:
        return await self.ask(self.inner.append, segment)

    @override
    async def segments(self, run_id: str, step_id: str, chunk: int = 0) -> AsyncIterator[list[Segment]]:
        for page in await self.ask(_all_of(self.inner.segments), run_id, step_id, chunk):
            yield page

    @override
    async def last_segment(self, run_id: str, step_id: str, chunk: int = 0) -> Segment | None:
        return await self.ask(self.inner.last_segment, run_id, step_id, chunk)

    @override
    def open_reader(self) -> SegmentReader:
        return self.inner.open_reader()

    @override
    async def send(self, event: Event, seen: RunHeader | None) -> Reply[Event]:
        return await self.ask(self.inner.send, event, seen)

    @override
    async def take(self, event: Event, outcome: StepRecord) -> Reply[StepRecord]:
        return await self.ask(self.inner.take, event, outcome)

    @override
    async def events(self, run_id: str, name: str | None = None) -> AsyncIterator[list[Event]]:
        for page in await self.ask(_all_of(self.inner.events), run_id, name):
            yield page

    # ---- Whole runs ----

    @override
    async def as_stored(self, run_id: str, kind: Kind) -> AsyncIterator[list[Record | Unreadable]]:
        for page in await self.ask(_all_of(self.inner.as_stored), run_id, kind):
            yield page

    @override
    async def restore(self, records: Sequence[Record], lease: Lease) -> Reply[Record]:
        return await self.ask(self.inner.restore, records, lease)

    @override
    async def restore_header(self, header: RunHeader, lease: Lease) -> Reply[RunHeader]:
        return await self.ask(self.inner.restore_header, header, lease)

    # ---- Headers that can't be read ----

    @override
    async def damaged_header(self, run_id: str) -> DamagedHeader | None:
        return await self.ask(self.inner.damaged_header, run_id)

    @override
    async def replace_damaged(self, seen: DamagedHeader, header: RunHeader) -> Reply[RunHeader]:
        return await self.ask(self.inner.replace_damaged, seen, header)

    # ---- Pruning ----

    @override
    async def children(self, run_id: str) -> AsyncIterator[list[Child]]:
        for page in await self.ask(_all_of(self.inner.children), run_id):
            yield page

    @override
    async def delete(self, run_id: str, children: Sequence[Child], fence: int) -> None:
        await self.ask(self.inner.delete, run_id, children, fence)

    @override
    async def bury(self, lease: Lease, at: str) -> Reply[RunHeader]:
        return await self.ask(self.inner.bury, lease, at)

    @override
    async def tombstones(self, before: str, *, limit: int = 100) -> list[RunHeader]:
        return await self.ask(self.inner.tombstones, before, limit=limit)

    @override
    async def expire(self, seen: RunHeader, expires_at_s: int) -> Reply[RunHeader]:
        return await self.ask(self.inner.expire, seen, expires_at_s)

    @override
    async def purge(self) -> int:
        return await self.ask(self.inner.purge)

    # ---- The store ----

    @override
    async def open(self, *, create: bool = True) -> None:
        await self.inner.open(create=create)

    @override
    async def close(self) -> None:
        await self.inner.close()


def _all_of(
    pages: Callable[P, AsyncIterator[list[T]]],
) -> Callable[P, Coroutine[Any, Any, list[list[T]]]]:
    @wraps(pages)
    async def all_pages(*args: P.args, **options: P.kwargs) -> list[list[T]]:
        return [page async for page in pages(*args, **options)]

    return all_pages
