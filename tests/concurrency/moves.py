"""What can happen next in an execution: a call goes through, or something goes wrong."""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from durable_core.errors import DurableError, JournalUnavailable
from durable_core.records import Chunk
from tests.concurrency.processes import Process, Request, who

if TYPE_CHECKING:
    from tests.concurrency.simulation import World

T = TypeVar("T")


@dataclass(eq=False, slots=True)
class Move:
    """One thing that can happen."""

    world: World
    kind: str
    subject: Any

    def make(self) -> object:
        """Lets it happen; gives what a trace tells of it."""
        world = self.world
        if self.kind in world.budget and world.budget[self.kind] > 0:
            world.budget[self.kind] -= 1
        told: object = getattr(self, f"_{self.kind.replace(' ', '_')}")()
        if self.kind not in ("crash", "vanish"):
            world.promises.check()
        return told

    def _do(self) -> object:
        request: Request = self.subject
        process = request.process
        process.pending.remove(request)
        self.world.last = process
        if self.world.paused == process.name:
            self.world.paused = None
        try:
            reply = _now(request.call())
        except DurableError as error:  # a renewal's, raised in the process that asked
            process.history = hash((process.history, request.number, type(error).__name__))
            request.reply.set_exception(error)
            return error
        process.history = hash((process.history, request.number, _hashable(reply)))
        self.world.promises.heard(request, reply)
        request.reply.set_result(reply)
        if request.writes and request.verb != "renew":
            self.world.sent.append(request)
        return reply

    def _lost(self, why: str = "the reply was lost", waited_s: float = 0) -> object:
        request: Request = self.subject
        process = request.process
        process.pending.remove(request)
        self.world.last = process
        reply = _now(request.call()) if request.verb != "renew" else None  # a renewal knows its reply
        process.history = hash((process.history, request.number, why))
        request.reply.set_exception(JournalUnavailable(why, waited_s=waited_s))
        return reply

    def _outage(self) -> object:
        return self._lost("out of reach", 60)

    def _arrive(self) -> object:
        self.world.orphans.remove(self.subject)
        try:
            return _now(self.subject.call())
        except DurableError as error:  # a renewal's: nobody waits for it any more
            return error

    def _late(self) -> object:
        self.world.sent.remove(self.subject)
        return _now(self.subject.call())

    def _crash(self) -> object:
        self.world.dead.add(self.subject.name)
        return self._vanish()

    def _vanish(self) -> object:
        process: Process = self.subject
        process.alive = False
        self.world.orphans += [request for request in process.pending if request.writes]
        process.pending.clear()
        return None

    def _renewal(self) -> object:
        process, held = self.subject
        token = who.set(process)
        renewer = process.tools.journal.open_renewer()
        try:
            asked_at_ms = process.clock.boot_ms()
            reply = held.renewed(renewer)
            if reply:
                held.lengthened(asked_at_ms)
        finally:
            renewer.close()
            who.reset(token)
        process.history = hash((process.history, "renewal", reply))
        if held.lost is not None and held in process.held:
            process.held.remove(held)
        return reply

    def _alarm(self) -> object:
        process, alarm = self.subject
        process.history = hash((process.history, "alarm", len(process.world.loop.alarms)))
        self.world.loop.fire(alarm)
        return None

    def _lease_over(self) -> object:
        return self._pass_lease(None)

    _pause = _lease_over

    def _skew(self) -> object:
        """As a pause that the paused process's clock knows nothing of."""
        return self._pass_lease(unnoticed_by=self.subject)

    def _stall(self) -> object:
        """A worker is paused past the lease of its chunk."""
        return self._pass_lease(None, of=self.subject)

    def _stall_skew(self) -> object:
        """And its clock knows nothing of it."""
        return self._pass_lease(self.subject.owner_process, of=self.subject)

    def _pass_lease(self, unnoticed_by: str | None, of: Chunk | None = None) -> object:
        held = of or self.world.header()
        assert held is not None
        self.world.pass_time(self.world.lease_left_ms(held) + 1, unnoticed_by)
        self.world.paused = held.owner_process
        return None

    def _rest(self) -> object:
        """Until somebody has rested for long enough."""
        self.world.pass_time(self.subject)
        return None

    def _step(self) -> object:
        """Somebody sets the clock of a process."""
        process, ms = self.subject
        process.clock.set_wall(process.clock.now_ms() + ms)
        return None

    def __str__(self) -> str:
        subject = self.subject
        if isinstance(subject, tuple):
            subject = subject[0]
        if isinstance(subject, Process):
            subject = subject.name
        if isinstance(subject, Chunk):
            subject = f"{subject.owner_process} in chunk {subject.chunk}"
        return f"{'' if self.kind == 'do' else self.kind + ': '}{subject}"


def _now(call: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that doesn't wait."""
    try:
        call.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    raise AssertionError("the journal waited")


def _hashable(reply: object) -> object:
    if isinstance(reply, list):
        return tuple(_hashable(item) for item in reply)
    return reply
