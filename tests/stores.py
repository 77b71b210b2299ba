"""The places that runs are kept in, the same for every store, and owners that die in the middle of a run."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from durable_core import DurableWorkflowExecutor
from durable_core.clock import SystemClock
from durable_core.engine import admission
from durable_core.engine.process import this_process
from durable_core.errors import JournalUnavailable
from durable_core.journal.base import Claim, Departure, Journal, Lease, Renewer, RunFilter, SegmentReader
from durable_core.records import ACTIVE, Child, Event, Reply, RunHeader, Seen, Segment, StepRecord
from durable_core.stores import Store, open_store

KINDS = ("memory", "sqlite")


class TurnedClock:
    """A clock that a test turns.

    Args:
        waits: Whether a sleep ends only when the clock is turned; else it turns the clock itself.
    """

    def __init__(self, *, waits: bool = False) -> None:
        self.now = 1_750_000_000_000
        self.waits = waits
        self.slept: list[float] = []
        self._sleepers: list[tuple[int, asyncio.Future[None]]] = []

    def now_ms(self) -> int:
        return self.now

    def boot_ms(self) -> int:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        if not self.waits:
            self.now += round(seconds * 1000)
            await asyncio.sleep(0)
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleepers.append((self.now + round(seconds * 1000), woken))
        await woken

    def turn(self, seconds: float) -> None:
        """Lets time pass; who waits for it goes on."""
        self.now += round(seconds * 1000)
        for until, woken in self._sleepers:
            if until <= self.now and not woken.done():
                woken.set_result(None)


class Mortal(Journal):
    """A journal whose owner can die: from then on nothing that it does reaches the store, as after a kill -9.

    Attributes:
        dies_at: Called with each verb and its arguments, before it is done: whether the owner dies instead.
        dies_after: The same, after it was done: the reply is lost with its owner.
    """

    def __init__(self, inner: Journal) -> None:
        self.inner = inner
        self.dead = False
        self.dies_at: Callable[..., bool] = lambda *_: False
        self.dies_after: Callable[..., bool] = lambda *_: False
        self.calls: list[str] = []

    async def create(self, header: RunHeader, lease_ms: int = 0) -> Reply[RunHeader]:
        return await self._do("create", header, lease_ms)

    async def acquire(
        self,
        seen: RunHeader,
        claim: Claim,
        *,
        statuses: Sequence[str] = ACTIVE,
        dead_owner: str | None = None,
    ) -> Reply[RunHeader]:
        return await self._do("acquire", seen, claim, statuses=statuses, dead_owner=dead_owner)

    async def leave(
        self, lease: Lease, departure: Departure, *, wake_count: int | None = None
    ) -> Reply[RunHeader]:
        return await self._do("leave", lease, departure, wake_count=wake_count)

    async def cancel(self, seen: RunHeader, ended_at: str, error: str | None = None) -> Reply[RunHeader]:
        return await self._do("cancel", seen, ended_at, error)

    async def header(self, run_id: str) -> RunHeader | None:
        return await self._do("header", run_id)

    async def runs(self, wanted: RunFilter) -> list[RunHeader]:
        return await self._do("runs", wanted)

    async def begin(
        self, record: StepRecord, seen: Seen | None, lease: Lease, *, guarded: bool = False
    ) -> Reply[StepRecord]:
        return await self._do("begin", record, seen, lease, guarded=guarded)

    async def commit(self, record: StepRecord) -> Reply[StepRecord]:
        return await self._do("commit", record)

    async def put(self, record: StepRecord, seen: Seen | None, lease: Lease) -> Reply[StepRecord]:
        return await self._do("put", record, seen, lease)

    async def step(self, run_id: str, step_id: str) -> StepRecord | None:
        return await self._do("step", run_id, step_id)

    async def steps(self, run_id: str) -> AsyncIterator[list[StepRecord]]:
        self._check("steps")
        async for page in self.inner.steps(run_id):
            yield page

    async def replay(self, run_id: str, within: str = "") -> AsyncIterator[list[StepRecord]]:
        self._check("replay")
        async for page in self.inner.replay(run_id, within):
            yield page

    async def progressed(self, run_id: str, fence: int) -> bool:
        return await self._do("progressed", run_id, fence)

    async def wake(self, seen: RunHeader) -> Reply[RunHeader]:
        return await self._do("wake", seen)

    async def due(self, *, limit: int = 100) -> list[RunHeader]:
        return await self._do("due", limit=limit)

    async def append(self, segment: Segment) -> Reply[Segment]:
        return await self._do("append", segment)

    async def segments(self, run_id: str, step_id: str, chunk: int = 0) -> AsyncIterator[list[Segment]]:
        self._check("segments")
        async for page in self.inner.segments(run_id, step_id, chunk):
            yield page

    async def last_segment(self, run_id: str, step_id: str, chunk: int = 0) -> Segment | None:
        return await self._do("last_segment", run_id, step_id, chunk)

    def open_reader(self) -> SegmentReader:
        return self.inner.open_reader()

    async def send(self, event: Event, seen: RunHeader | None) -> Reply[Event]:
        return await self._do("send", event, seen)

    async def take(self, event: Event, outcome: StepRecord) -> Reply[StepRecord]:
        return await self._do("take", event, outcome)

    async def events(self, run_id: str, name: str | None = None) -> AsyncIterator[list[Event]]:
        self._check("events")
        async for page in self.inner.events(run_id, name):
            yield page

    async def children(self, run_id: str) -> AsyncIterator[list[Child]]:
        self._check("children")
        async for page in self.inner.children(run_id):
            yield page

    async def delete(self, run_id: str, children: Sequence[Child], fence: int) -> None:
        await self._do("delete", run_id, children, fence)

    async def bury(self, lease: Lease, at: str) -> Reply[RunHeader]:
        return await self._do("bury", lease, at)

    async def tombstones(self, before: str, *, limit: int = 100) -> list[RunHeader]:
        return await self._do("tombstones", before, limit=limit)

    async def expire(self, seen: RunHeader, expires_at_s: int) -> Reply[RunHeader]:
        return await self._do("expire", seen, expires_at_s)

    async def purge(self) -> int:
        return await self._do("purge")

    async def open(self, *, create: bool = True) -> None:
        await self.inner.open(create=create)

    async def close(self) -> None:
        await self.inner.close()

    def open_renewer(self) -> Renewer:
        return _MortalRenewer(self, self.inner.open_renewer())

    def die(self) -> None:
        """The owner is gone."""
        self.dead = True

    def _check(self, verb: str, *args: object) -> None:
        self.calls.append(verb)
        if not self.dead and self.dies_at(verb, *args):
            self.dead = True
        if self.dead:
            raise JournalUnavailable("the owner is dead", waited_s=60)  # so that it isn't asked again

    async def _do(self, verb: str, *args: Any, **options: Any) -> Any:
        self._check(verb, *args)
        self.inner.live = self.live
        reply = await getattr(self.inner, verb)(*args, **options)
        if self.dies_after(verb, *args):
            self.dead = True
        self._check(f"after {verb}")
        return reply


class _MortalRenewer(Renewer):
    def __init__(self, of: Mortal, inner: Renewer) -> None:
        self._of = of
        self._inner = inner

    def renew(self, lease: Lease, lease_ms: int) -> Reply[RunHeader]:
        if self._of.dead:
            raise JournalUnavailable("the owner is dead", waited_s=60)
        return self._inner.renew(lease, lease_ms)

    def close(self) -> None:
        self._inner.close()


class Place:
    """Where the runs of one test are kept. Each executor made here is as a process of its own.

    Args:
        kind: memory or sqlite.
        folder: Of the test.
        clock: Of every executor.
    """

    def __init__(self, kind: str, folder: Path, clock: TurnedClock | SystemClock | None = None) -> None:
        self.kind = kind
        self.folder = folder
        self.clock: Any = clock or SystemClock()
        self._made: list[DurableWorkflowExecutor] = []
        self._memory = open_store("memory://", self.clock) if kind == "memory" else None

    @property
    def turned(self) -> TurnedClock:
        """The clock, of a test that turns it."""
        assert isinstance(self.clock, TurnedClock)
        return self.clock

    def turn_clock(self, *, waits: bool = False) -> TurnedClock:
        """From now on the test turns the clock; to be called before anything is made here."""
        assert not self._made
        self.__init__(self.kind, self.folder, TurnedClock(waits=waits))  # type: ignore[misc]
        return self.turned

    def store(self) -> Store:
        """A new connection to it."""
        return self._memory or open_store(f"sqlite:///{self.folder / 'runs.db'}", self.clock)

    def executor(self, **options: Any) -> DurableWorkflowExecutor:
        """A process that uses it."""
        options.setdefault("store", self.store())
        made = DurableWorkflowExecutor(clock=self.clock, **options)
        self._made.append(made)
        return made

    def mortal(self, **options: Any) -> tuple[DurableWorkflowExecutor, Mortal]:
        """A process that uses it, and can die."""
        inner = self.store()
        journal = Mortal(inner.journal)
        return self.executor(store=Store(inner.url, journal, inner.blobs), **options), journal

    async def close(self) -> None:
        """Closes what was made."""
        for made in self._made:
            await made.close()


class Processes:
    """Lets the owners that a test makes look like processes of their own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self._numbers = count(1)

    def next_is_doomed(self) -> None:
        """Who acquires a run from now on counts as dead for certain once it has gone."""
        told = json.loads(this_process())
        told["started"] += next(self._numbers)  # no process has this pid and that start
        self._monkeypatch.setattr(admission, "this_process", lambda: json.dumps(told))

    def next_is_unknown(self) -> None:
        """Who acquires a run from now on runs on another host: nobody can tell whether it lives."""
        told = json.loads(this_process()) | {"host": "elsewhere"}
        self._monkeypatch.setattr(admission, "this_process", lambda: json.dumps(told))

    def next_lives(self) -> None:
        """Who acquires a run from now on is this process."""
        self._monkeypatch.setattr(admission, "this_process", this_process)


async def crash(
    place: Place,
    processes: Processes,
    run: Callable[[DurableWorkflowExecutor], Any],
    *,
    at: Callable[..., bool] | None = None,
    after: Callable[..., bool] | None = None,
) -> None:
    """Drives a run in a process that dies at a journal call; whoever resumes it then sees a dead owner."""
    processes.next_is_doomed()
    executor, journal = place.mortal()
    journal.dies_at = at or journal.dies_at
    journal.dies_after = after or journal.dies_after
    with pytest.raises(JournalUnavailable):
        await run(executor)
    assert journal.dead
    processes.next_lives()


def verb_of(verb: str, step_id: str) -> Callable[..., bool]:
    """The moment at which a journal verb is called with the record of this step."""

    def matches(called: str, *args: Any) -> bool:
        return called == verb and bool(args) and getattr(args[0], "step_id", None) == step_id

    return matches


async def statuses(executor: DurableWorkflowExecutor, run_id: str) -> dict[str, str]:
    """The steps of a run and their status, in the order in which they were begun."""
    return {view.step_id: view.status for view in await executor.steps(run_id)}
