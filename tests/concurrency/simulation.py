"""Real executors on one journal, in simulated processes: calls wait until a chooser lets them through.

One execution is one list of choices. At each moment the moves are: any pending call of a live process; and,
as far as the budget goes, its reply is lost; its process dies; a copy of an earlier request arrives late; the
lease of a run or of a chunk runs out while its owner is paused; a process's clock is set; a deadline comes; a
renewal. What moves there are depends on nothing but the choices before, so the same choices give the same
execution.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from durable_core import DurableWorkflowExecutor
from durable_core.blobs.memory import MemoryBlobs
from durable_core.engine.drive import Tools
from durable_core.engine.executor import DEFAULT_GRACE_S
from durable_core.engine.tools import tools_of
from durable_core.envelope import DEFAULT_CAP
from durable_core.errors import JournalUnavailable
from durable_core.records import ENDED, FAILED, RUNNING, SUSPENDED, Chunk, RunHeader, StepRecord
from durable_core.store import Store
from durable_core.testing.fake_clock import FakeClock
from durable_core.testing.scheduled_journal import ScheduledJournal
from durable_core.testing.stepped_loop import SteppedLoop
from tests.concurrency.clocks import STEP_MS, LocalClock
from tests.concurrency.journals import Kind
from tests.concurrency.moves import Move
from tests.concurrency.processes import Process, Request, ScheduledRenewals, who
from tests.concurrency.promises import RUN, Promises, Violation

T = TypeVar("T")
LEASE_S = 30.0
MOST_MOVES = 400


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """Who does what, and what is allowed to come of it.

    Attributes:
        prepare: Makes the rows at the beginning, and the processes.
        steps: Whose outputs, in this order, are the run's.
        budgets: The faults of each exhaustive search; a random walk has the most of each.
        once: Steps whose body runs at most once.
        extra: Bodies beyond one per owner: a step's own retries, or a zombie's.
        may_end: How else the run may end.
        may_complete: Whether it may end COMPLETED.
        resumes: Whether a FAILED run is resumed.
        prunes: Whether a run that has ended may be pruned.
        reuses: Whether its id is begun anew once it is pruned: before that, nothing has ended.
        events: The ids of those that are sent; each is taken once.
    """

    name: str
    prepare: Callable[[World], None]
    steps: tuple[str, ...]
    budgets: tuple[dict[str, int], ...]
    once: tuple[str, ...] = ()
    extra: int = 0
    may_end: tuple[str, ...] = ()
    may_complete: bool = True
    resumes: bool = False
    prunes: bool = False
    reuses: bool = False
    events: tuple[str, ...] = ()

    def has_ended(self, header: RunHeader | None) -> bool:
        """Whether nobody has anything more to do."""
        return (
            header is not None
            and header.status in ENDED
            and not (self.resumes and header.status == FAILED)
            and not (self.reuses and header.base_fence == 0)
        )


class _Executor(DurableWorkflowExecutor):
    """An executor whose tools are made outside."""

    def __init__(self, store: Store, tools: Tools) -> None:
        self.store, self._tools = store, tools


class World:
    """One execution.

    Args:
        scenario: Who does what.
        kind: Of the journal.
        budget: How often each fault may happen.
        choose: Picks one of the moves.
    """

    def __init__(
        self,
        scenario: Scenario,
        kind: Kind,
        budget: dict[str, int],
        choose: Callable[[World, list[Move]], int],
    ) -> None:
        self.scenario, self.choose = scenario, choose
        self.budget = Counter(budget)
        self.clock = FakeClock()
        self.journal = kind.empty(self.clock)
        self.blobs = MemoryBlobs()
        self.processes: list[Process] = []
        self.dead: set[str] = set()
        self.last: Process | None = None
        self.paused: str | None = None
        self.sent: list[Request] = []
        self.orphans: list[Request] = []
        self.messages = 0  # "drive the run", in the queue
        self.promises = Promises(scenario, self.journal)
        self.trace: list[tuple[Move, object]] = []
        self.closing = False
        self.unheard: list[str] = []
        self.loop = SteppedLoop(self._next, lambda func: self.gate("renew", (), lambda: _called(func)))
        self.loop.set_exception_handler(self._on_unheard)

    # ---- Processes ----

    def process(self, name: str, does: Callable[[Process], Coroutine[Any, Any, None]]) -> Process:
        """Adds a process that does this."""
        clock = LocalClock()
        connection, lease_clock = self.journal.connect(name, clock)
        process = Process(name, self, clock, lease_clock)
        journal = ScheduledJournal(connection, self.gate)
        store = Store("memory://", journal, self.blobs)
        process.tools = tools_of(
            store,
            process.clock,
            lease_s=LEASE_S,
            run_crash_limit=100,
            grace_s=DEFAULT_GRACE_S,
            output_cap_bytes=DEFAULT_CAP,
            renewals=ScheduledRenewals(journal, process.clock),
        )
        process.executor = _Executor(store, process.tools)
        token = who.set(process)
        process.task = self.loop.create_task(does(process), name=name)
        who.reset(token)
        self.processes.append(process)
        return process

    def header(self) -> RunHeader | None:
        return self.journal.headers.get(RUN)

    # ---- Calls ----

    async def gate(
        self, verb: str, what: tuple[object, ...], call: Callable[[], Coroutine[Any, Any, T]]
    ) -> T:
        return await self._wait(verb, what, call, None)

    async def when(self, verb: str, condition: Callable[[], bool]) -> None:
        """Waits for a condition, which costs nothing and can't fail."""
        await self._wait(verb, (), _nothing, condition)

    async def _wait(
        self,
        verb: str,
        what: tuple[object, ...],
        call: Callable[[], Coroutine[Any, Any, T]],
        condition: Callable[[], bool] | None,
    ) -> T:
        process = who.get()
        if process is None:
            return await call()
        if self.closing or not process.alive:
            raise JournalUnavailable("the execution is over", waited_s=60)
        process.requests += 1
        reply: asyncio.Future[T] = self.loop.create_future()
        knew = process.knows
        if what and isinstance(
            what[0], StepRecord
        ):  # asked again after a lost reply, it is the same decision
            knew = process.knew.setdefault(what[0].attempt_id, knew)
        process.pending.append(Request(process, process.requests, verb, what, call, reply, condition, knew))
        return await reply

    def _on_unheard(self, _: object, context: dict[str, Any]) -> None:
        """The loop tells of an exception that nobody looked at; at the end of an execution that is right."""
        if not self.closing:
            self.unheard.append(f"{context['message']}: {context.get('exception')!r}")

    def _next(self) -> None:
        """Nothing can go on: one move."""
        if self.closing:
            self.loop.stop()
            return
        if len(self.trace) > MOST_MOVES:
            raise Violation(f"no end after {MOST_MOVES} moves")
        if self.unheard:
            raise Violation(self.unheard[0])
        for process in self.processes:
            if process.task is not None and process.task.done() and (error := process.task.exception()):
                raise error
        moves = self.moves()
        if not moves:
            self.loop.stop()
            return
        move = moves[self.choose(self, moves)]
        self.trace.append((move, None))
        reply = move.make()
        self.trace[-1] = (move, reply)

    def moves(self) -> list[Move]:
        """What can happen now: first the calls of who went on last, of a paused process last."""
        found: list[Move] = []
        ready = [
            request
            for process in self.processes
            for request in self._pending(process)
            if request.condition is None or request.condition()
        ]
        ready.sort(key=lambda r: (r.process.name == self.paused, r.process is not self.last))
        found += [Move(self, "do", request) for request in ready]
        found += [
            Move(self, "arrive", request)
            for request in self.orphans
            if request.verb != "renew" or request.process.alive  # a renewal tells its process what came of it
        ]
        return found + self._faults(ready) + self._passages(ready)

    def _faults(self, ready: list[Request]) -> list[Move]:
        """What may go wrong now, as far as the budget goes."""
        found: list[Move] = []
        for request in ready:
            if request.condition is None and request.verb != "body":
                if request.writes and request.verb != "renew":
                    found += self._fault("lost", request)
                found += self._fault("outage", request)
        needed = self.needed()
        for process in dict.fromkeys(r.process for r in ready if r.condition is None):
            # Somebody has to be left who could keep the promises.
            if [one for one in needed if one.role == process.role] != [process]:
                found += self._fault("crash", process)
                found += self._fault("vanish", process)
        for request in self.sent:
            found += self._fault("late", request)
        for process in self.processes:
            if process.alive:
                for held in process.held:
                    found += self._fault("renewal", (process, held))
        for alarm in self.loop.pending_alarms():
            owner = alarm._context.get(who) if alarm._context is not None else None
            if owner is not None and owner.alive:
                found += self._fault("alarm", (owner, alarm))
        for process in needed:
            found += self._fault("step", (process, STEP_MS)) + self._fault("step", (process, -STEP_MS))
        return found

    def _passages(self, ready: list[Request]) -> list[Move]:
        """How time may pass: always when nothing else can happen, beyond a lease also as a fault."""
        rests = [rest_ms for process in self.needed() if (rest_ms := process.clock.rest_ms()) is not None]
        found = [Move(self, "rest", min(rests))] if rests and not ready else []
        header = self.header()
        if not ready and (left_ms := self.chunks_left_ms()) is not None:
            found.append(Move(self, "rest", left_ms + 1))
        elif not ready and header is not None and self.may_be_netted and header.status == SUSPENDED:
            found.append(Move(self, "rest", header.due_at_ms - self.clock.now_ms() + 1))
        if header is not None and header.owner is not None and self.lease_left_ms(header) >= 0:
            if not ready:
                found.append(Move(self, "lease over", header.owner_process))
            elif header.owner_process not in self.dead:
                found += self._fault("pause", header.owner_process)
                found += self._fault("skew", header.owner_process)
        for chunk in self.journal.claims.values():
            is_held = chunk.status == RUNNING and self.lease_left_ms(chunk) >= 0
            if is_held and chunk.owner_process not in self.dead:
                found += self._fault("stall", chunk) + self._fault("stall skew", chunk)
        return found

    def needed(self) -> list[Process]:
        """Those who have promises to keep, and can."""
        return [process for process in self.processes if process.alive and process.role]

    @property
    def may_be_netted(self) -> bool:
        """Whether somebody has died or found the store out of reach: then a run may be left to its net."""
        is_out = any(move.kind == "outage" for move, _ in self.trace)
        return is_out or any(not process.alive for process in self.processes)

    def chunks_left_ms(self) -> int | None:
        """For how long a chunk is held; None if none is."""
        left = [chunk.lease_until_ms - self.clock.now_ms() for chunk in self.journal.claims.values()]
        return min((ms for ms in left if ms >= 0), default=None)

    def lease_left_ms(self, held: RunHeader | Chunk) -> int:
        """For how long somebody still takes the lease for held; below 0 for nobody."""
        clocks = [process.lease_clock for process in self.needed()]
        return max((held.lease_until_ms - clock.now_ms() for clock in clocks), default=-1)

    def pass_time(self, ms: int, unnoticed_by: str | None = None) -> None:
        """Lets time pass for all, or all but one process."""
        self.clock.advance(ms=ms)
        for process in self.processes:
            if process.name != unnoticed_by:
                process.clock.advance(ms=ms)

    def _pending(self, process: Process) -> list[Request]:
        """Its calls; one whose caller was cancelled meanwhile may still arrive, or not."""
        if not process.alive:
            return []
        for request in [request for request in process.pending if request.reply.done()]:
            process.pending.remove(request)
            if request.writes:
                self.orphans.append(request)
        return process.pending

    def _fault(self, kind: str, subject: Any) -> list[Move]:
        return [Move(self, kind, subject)] if self.budget[kind] > 0 else []

    def key(self) -> int:
        """A hash of all that the future depends on."""
        return hash(
            (
                self.clock.now_ms(),
                tuple(self.journal.headers.values()),
                tuple(sorted(self.journal.records.items())),
                tuple(sorted(self.journal.logs.items())),
                tuple(sorted(self.journal.letters.items())),
                tuple(sorted(self.journal.claims.items())),
                self.messages,
                tuple((p.history, p.alive, *p.clock.key()) for p in self.processes),
                tuple((p.name, held.until_ms) for p in self.processes for held in p.held),
                tuple(sorted(self.budget.items())),
                tuple(sorted((r.process.name, r.number) for r in self.orphans)),
                tuple((r.process.name, r.number) for r in self.sent) if self.budget["late"] else (),
            )
        )

    # ---- The whole ----

    def run(self) -> None:
        """Runs to the end, and judges it.

        Raises:
            Violation: A promise is broken.
        """
        try:
            self.scenario.prepare(self)
            self.loop.run_forever()
            self.promises.judge(self.processes)
        finally:
            self._close()

    def _close(self) -> None:
        """Lets what is left of the processes end without a trace."""
        self.closing = True
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.loop.run_forever()
        for process in self.processes:
            if process.task is not None and process.task.done() and not process.task.cancelled():
                process.task.exception()
        self.loop.close()


async def _nothing() -> Any:
    return None


async def _called(func: Callable[[], T]) -> T:
    return func()
