"""The places that runs are kept in, the same for every store, and owners that die in the middle of a run."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from itertools import count
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import pytest
from typing_extensions import override

from durable_core import DurableWorkflowExecutor
from durable_core.clock import Clock, SystemClock
from durable_core.engine import admission, importing, owners
from durable_core.engine.process import this_process
from durable_core.errors import JournalUnavailable
from durable_core.journal.base import Journal, Lease, Renewer
from durable_core.journal.chunks import ChunkLease
from durable_core.records import Chunk, Reply, RunHeader
from durable_core.stores import Store, open_store
from durable_core.testing.forwarding_journal import ForwardingJournal
from tests.waiting import full

P = ParamSpec("P")
T = TypeVar("T")

KINDS = ("memory", "sqlite", "postgres")
WITH_DYNAMODB = (*KINDS, "dynamodb")  # for test modules that are quick enough over moto
WITH_DYNAMODB_IF_FULL = WITH_DYNAMODB if full() else KINDS


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


class Mortal(ForwardingJournal):
    """A journal whose owner can die: from then on nothing that it does reaches the store, as after a kill -9.

    Attributes:
        dies_at: Called with each verb and its arguments, before it is done: whether the owner dies instead.
        dies_after: The same, after it was done: the reply is lost with its owner.
    """

    def __init__(self, inner: Journal) -> None:
        super().__init__(inner)
        self.dead = False
        self.dies_at: Callable[..., bool] = lambda *_: False
        self.dies_after: Callable[..., bool] = lambda *_: False
        self.calls: list[str] = []

    @override
    async def ask(self, call: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **options: P.kwargs) -> T:
        verb = call.__name__
        self._check(verb, *args)
        reply = await super().ask(call, *args, **options)
        if self.dies_after(verb, *args):
            self.dead = True
        self._check(f"after {verb}")
        return reply

    @override
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


class _MortalRenewer(Renewer):
    def __init__(self, of: Mortal, inner: Renewer) -> None:
        self._of = of
        self._inner = inner

    def renew(self, lease: Lease, lease_ms: int) -> Reply[RunHeader]:
        if self._of.dead:
            raise JournalUnavailable("the owner is dead", waited_s=60)
        return self._inner.renew(lease, lease_ms)

    def renew_chunk(self, lease: ChunkLease, lease_ms: int) -> Reply[Chunk]:
        if self._of.dead:
            raise JournalUnavailable("the owner is dead", waited_s=60)
        return self._inner.renew_chunk(lease, lease_ms)

    def close(self) -> None:
        self._inner.close()


class Place:
    """Where the runs of one test are kept. Each executor made here is as a process of its own.

    Args:
        kind: memory, sqlite, postgres or dynamodb.
        folder: Of the test.
        clock: Of every executor; without it leases go by the store's own time, if it has one.
        url: Of the store; needed for a server's.
        opens: Opens a store that no URL names.
    """

    def __init__(
        self,
        kind: str,
        folder: Path,
        clock: TurnedClock | None = None,
        *,
        url: str | None = None,
        opens: Callable[[Clock | None], Store] | None = None,
    ) -> None:
        self.kind = kind
        self.opens = opens
        self.folder = folder
        self.url = url or {"memory": "memory://", "sqlite": f"sqlite:///{folder / 'runs.db'}"}.get(kind, "")
        self.clock: Any = clock or SystemClock()
        self._given = clock
        self._made: list[DurableWorkflowExecutor] = []
        self._opened: list[Store] = []
        self._memory = open_store(self.url, clock) if kind == "memory" else None

    @property
    def turned(self) -> TurnedClock:
        """The clock, of a test that turns it."""
        assert isinstance(self.clock, TurnedClock)
        return self.clock

    def turn_clock(self, *, waits: bool = False) -> TurnedClock:
        """From now on the test turns the clock; to be called before anything is made here."""
        assert not self._made
        self.__init__(  # type: ignore[misc]
            self.kind, self.folder, TurnedClock(waits=waits), url=self.url, opens=self.opens
        )
        return self.turned

    def store(self) -> Store:
        """A new connection to it."""
        if self.opens is not None:
            return self.opens(self._given)
        found = self._memory or open_store(self.url, self._given)
        self._opened.append(found)
        return found

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
        store = Store(inner.url, journal, inner.blobs, checkpoints=inner.checkpoints)
        return self.executor(store=store, **options), journal

    async def close(self) -> None:
        """Closes what was made."""
        for made in self._made:
            await made.close()
        for opened in self._opened:
            await opened.journal.close()
            await opened.blobs.close()


class Processes:
    """Lets the owners that a test makes look like processes of their own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self._numbers = count(1)

    def next_is_doomed(self) -> None:
        """Who acquires a run from now on counts as dead for certain once it has gone."""
        told = json.loads(this_process())
        told["started"] += next(self._numbers)  # no process has this pid and that start
        self._is(lambda: json.dumps(told))

    def next_is_unknown(self) -> None:
        """Who acquires a run from now on runs on another host: nobody can tell whether it lives."""
        told = json.loads(this_process()) | {"host": "elsewhere"}
        self._is(lambda: json.dumps(told))

    def next_lives(self) -> None:
        """Who acquires a run from now on is this process."""
        self._is(this_process)

    def _is(self, process: Callable[[], str]) -> None:
        for module in (admission, importing, owners):
            self._monkeypatch.setattr(module, "this_process", process)


async def crash(
    place: Place,
    processes: Processes,
    run: Callable[[DurableWorkflowExecutor], Any],
    *,
    at: Callable[..., bool] | None = None,
    after: Callable[..., bool] | None = None,
    **options: Any,
) -> None:
    """Drives a run in a process that dies at a journal call; whoever resumes it then sees a dead owner."""
    processes.next_is_doomed()
    executor, journal = place.mortal(**options)
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
