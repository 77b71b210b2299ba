"""A journal whose every call waits until the test lets it through."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from durable_core.journal.base import Claim, Departure, Journal, Lease, Renewer, RunFilter, SegmentReader
from durable_core.records import ACTIVE, Child, Event, Reply, RunHeader, Seen, Segment, StepRecord

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Sequence


T = TypeVar("T")


class Gate(Protocol):
    """Lets journal calls through, in an order of its own: what a test decides interleavings with."""

    async def __call__(
        self, verb: str, what: tuple[object, ...], call: Callable[[], Coroutine[Any, Any, T]]
    ) -> T:
        """Makes the call at some moment, once, more often or never, and gives its reply, or loses it.

        Args:
            verb: The method's name.
            what: Its arguments, for a trace.
            call: Makes it, and can be called again: a request that arrives twice.

        Raises:
            JournalUnavailable: There is no reply.
        """
        ...


class ScheduledJournal(Journal):
    """A journal behind a gate.

    Args:
        inner: The journal that the calls are made to; renewals are made to it without the gate.
        gate: Decides when.
    """

    def __init__(self, inner: Journal, gate: Gate) -> None:
        self.inner = inner
        self.gate = gate

    async def create(self, header: RunHeader, lease_ms: int = 0) -> Reply[RunHeader]:
        """As the inner one's."""
        return await self._ask("create", (header,), lambda: self.inner.create(header, lease_ms))

    async def acquire(
        self,
        seen: RunHeader,
        claim: Claim,
        *,
        statuses: Sequence[str] = ACTIVE,
        dead_owner: str | None = None,
    ) -> Reply[RunHeader]:
        """As the inner one's."""
        return await self._ask(
            "acquire",
            (seen, claim, dead_owner),
            lambda: self.inner.acquire(seen, claim, statuses=statuses, dead_owner=dead_owner),
        )

    async def leave(
        self, lease: Lease, departure: Departure, *, wake_count: int | None = None
    ) -> Reply[RunHeader]:
        """As the inner one's."""
        return await self._ask(
            "leave", (lease, departure), lambda: self.inner.leave(lease, departure, wake_count=wake_count)
        )

    async def cancel(self, seen: RunHeader, ended_at: str, error: str | None = None) -> Reply[RunHeader]:
        """As the inner one's."""
        return await self._ask("cancel", (seen,), lambda: self.inner.cancel(seen, ended_at, error))

    async def header(self, run_id: str) -> RunHeader | None:
        """As the inner one's."""
        return await self._ask("header", (run_id,), lambda: self.inner.header(run_id))

    async def runs(self, wanted: RunFilter) -> list[RunHeader]:
        """As the inner one's."""
        return await self._ask("runs", (wanted,), lambda: self.inner.runs(wanted))

    def open_renewer(self) -> Renewer:
        """The inner one's: renewals come from a thread, which the event loop's gate is for."""
        return self.inner.open_renewer()

    async def begin(
        self, record: StepRecord, seen: Seen | None, lease: Lease, *, guarded: bool = False
    ) -> Reply[StepRecord]:
        """As the inner one's."""
        return await self._ask(
            "begin", (record, seen), lambda: self.inner.begin(record, seen, lease, guarded=guarded)
        )

    async def commit(self, record: StepRecord) -> Reply[StepRecord]:
        """As the inner one's."""
        return await self._ask("commit", (record,), lambda: self.inner.commit(record))

    async def put(self, record: StepRecord, seen: Seen | None, lease: Lease) -> Reply[StepRecord]:
        """As the inner one's."""
        return await self._ask("put", (record, seen), lambda: self.inner.put(record, seen, lease))

    async def step(self, run_id: str, step_id: str) -> StepRecord | None:
        """As the inner one's."""
        return await self._ask("step", (step_id,), lambda: self.inner.step(run_id, step_id))

    async def steps(self, run_id: str) -> AsyncIterator[list[StepRecord]]:
        """All pages in one call."""

        async def pages() -> list[list[StepRecord]]:
            return [page async for page in self.inner.steps(run_id)]

        for page in await self._ask("steps", (), pages):
            yield page

    async def replay(self, run_id: str, within: str = "") -> AsyncIterator[list[StepRecord]]:
        """All pages in one call."""

        async def pages() -> list[list[StepRecord]]:
            return [page async for page in self.inner.replay(run_id, within)]

        for page in await self._ask("replay", (within,), pages):
            yield page

    async def progressed(self, run_id: str, fence: int) -> bool:
        """As the inner one's."""
        return await self._ask("progressed", (fence,), lambda: self.inner.progressed(run_id, fence))

    async def wake(self, seen: RunHeader) -> Reply[RunHeader]:
        """As the inner one's."""
        return await self._ask("wake", (seen,), lambda: self.inner.wake(seen))

    async def due(self, *, limit: int = 100) -> list[RunHeader]:
        """As the inner one's."""
        return await self._ask("due", (), lambda: self.inner.due(limit=limit))

    async def append(self, segment: Segment) -> Reply[Segment]:
        """As the inner one's."""
        return await self._ask("append", (segment,), lambda: self.inner.append(segment))

    async def segments(self, run_id: str, step_id: str, chunk: int = 0) -> AsyncIterator[list[Segment]]:
        """All pages in one call."""

        async def pages() -> list[list[Segment]]:
            return [page async for page in self.inner.segments(run_id, step_id, chunk)]

        for page in await self._ask("segments", (step_id, chunk), pages):
            yield page

    async def last_segment(self, run_id: str, step_id: str, chunk: int = 0) -> Segment | None:
        """As the inner one's."""
        what = (step_id, chunk)
        return await self._ask("last_segment", what, lambda: self.inner.last_segment(run_id, *what))

    def open_reader(self) -> SegmentReader:
        """The inner one's: it is for plain code."""
        return self.inner.open_reader()

    async def send(self, event: Event, seen: RunHeader | None) -> Reply[Event]:
        """As the inner one's."""
        return await self._ask("send", (event, seen), lambda: self.inner.send(event, seen))

    async def take(self, event: Event, outcome: StepRecord) -> Reply[StepRecord]:
        """As the inner one's."""
        return await self._ask("take", (outcome, event), lambda: self.inner.take(event, outcome))

    async def events(self, run_id: str, name: str | None = None) -> AsyncIterator[list[Event]]:
        """All pages in one call."""

        async def pages() -> list[list[Event]]:
            return [page async for page in self.inner.events(run_id, name)]

        for page in await self._ask("events", (name,), pages):
            yield page

    async def children(self, run_id: str) -> AsyncIterator[list[Child]]:
        """All pages in one call."""

        async def pages() -> list[list[Child]]:
            return [page async for page in self.inner.children(run_id)]

        for page in await self._ask("children", (), pages):
            yield page

    async def delete(self, run_id: str, children: Sequence[Child], fence: int) -> None:
        """One by one: other writers get their turn in between."""
        for child in children:
            await self._ask("delete", (child,), partial(self.inner.delete, run_id, (child,), fence))

    async def bury(self, lease: Lease, at: str) -> Reply[RunHeader]:
        """As the inner one's."""
        return await self._ask("bury", (lease,), lambda: self.inner.bury(lease, at))

    async def tombstones(self, before: str, *, limit: int = 100) -> list[RunHeader]:
        """As the inner one's."""
        return await self._ask("tombstones", (), lambda: self.inner.tombstones(before, limit=limit))

    async def expire(self, seen: RunHeader, expires_at_s: int) -> Reply[RunHeader]:
        """As the inner one's."""
        return await self._ask("expire", (seen,), lambda: self.inner.expire(seen, expires_at_s))

    async def purge(self) -> int:
        """As the inner one's."""
        return await self._ask("purge", (), self.inner.purge)

    async def open(self, *, create: bool = True) -> None:
        """At once."""
        await self.inner.open(create=create)

    async def close(self) -> None:
        """At once."""
        await self.inner.close()

    async def _ask(
        self, verb: str, what: tuple[object, ...], call: Callable[[], Coroutine[Any, Any, T]]
    ) -> T:
        return await self.gate(verb, what, call)
