"""Who waits in a run, and leaving it when everybody does: no process stays, and no wake-up is lost.

everybody waits ── stop: every verb raises, the workflow unwinds ── header, look ── suspend, or release

A   count 0 ── looks: no event ──────────────────────── suspend [count = 0] ─▶ refused: looks again
S                               event, count 1

The run is ours until the workflow has unwound: nothing is in flight at the last look, and a process that dies
before has not suspended anything. Code that had not waited after all - it calls a verb, or has to be
cancelled - has the run released as due now, and driven again with more patience.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

from durable_core.control_flow import RunSuspended
from durable_core.engine.dispatch import tell_drive
from durable_core.engine.failure import as_json
from durable_core.engine.owners import NEVER_MS, due_ms
from durable_core.errors import JournalUnavailable
from durable_core.journal.base import Departure
from durable_core.records import PENDING, SUSPENDED

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from durable_core.engine.drive import Drive
    from durable_core.records import Event, RunHeader
    from durable_core.scope import Scope

SHORT_WAIT_S: Final = 5.0
"""A wait that ends sooner is waited for here: a suspension costs more."""

PATIENCE_S: Final = (0.0, 0.5, 10.0)
"""How long nothing may have happened, beside `QUIET_S`, before it is believed that everybody waits.

The first is for the first drive, the others for those that follow because it wasn't true. In the last the run
is suspended all the same.
"""

QUIET_S: Final = 0.02
_TICK_S: Final = 0.2
_LISTEN_MOST_S: Final = 2.0
_UNWIND_S: Final = 1.0
_LONG_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Wait:
    """What somebody waits for.

    Attributes:
        wake_at_ms: When it goes on at the latest; None: never by itself.
        event: Of which name an event would do.
        looks: Whether something else has come that would do, of which whoever brings it wakes the run.
    """

    wake_at_ms: int | None = None
    event: str | None = None
    looks: Callable[[], Awaitable[bool]] | None = None

    @property
    def listens(self) -> bool:
        """Whether it may be ended by something that comes to the run."""
        return self.event is not None or self.looks is not None


class Suspension:
    """Watches those who wait in one drive.

    Args:
        drive: Of the run.
        suspends: As the attribute.
        patience: Which of `PATIENCE_S`.

    Attributes:
        suspends: Whether the run is left when nobody does anything else; else its waits are waited for here.
        waited: Whether anybody has waited for a time or for something that comes.
        heard: How often something has come to the run since it was acquired, as far as is known here.
        hurried: Whether the run was stopped although somebody didn't wait.
    """

    def __init__(self, drive: Drive, *, suspends: bool, patience: int = 0) -> None:
        self._drive = drive
        self.suspends = suspends
        self._patience = min(patience, len(PATIENCE_S) - 1)
        self._waits: dict[asyncio.Task[object], Wait] = {}
        self._told: WeakSet[asyncio.Task[object]] = WeakSet()
        self._watch: asyncio.Task[None] | None = None
        self._wake_count = drive.header.wake_count
        self._awaited: set[str] = set()
        self._looks: list[Callable[[], Awaitable[bool]]] = []
        self._wake_at_ms = NEVER_MS
        self.waited = False
        self.heard = 0
        self.hurried = False

    # ---- Those who wait ----

    @contextmanager
    def waiting(self, wait: Wait | None = None) -> Iterator[None]:
        """Inside a step, the current task only waits: for what is named, or for others of this run."""
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a wait needs a task")
        self._waits[task] = wait or Wait()
        try:
            yield
        finally:
            del self._waits[task]

    async def until(self, wait: Wait, scope: Scope) -> None:
        """Waits until its time may have come, or something for it: its caller looks, and comes again.

        Raises:
            ControlFlow: The drive or the branch is stopped.
        """
        drive = self._drive
        self.waited = True
        left_s = _LONG_S**2
        if wait.wake_at_ms is not None:  # in parts: a machine that was suspended wakes up late
            left_s = (wait.wake_at_ms - drive.tools.clock.now_ms()) / 1000
            left_s = min(left_s, max(left_s / 10, _LONG_S))
        if self._watch is None and (self.suspends or wait.listens):
            self._watch = asyncio.get_running_loop().create_task(self._watch_over())
        with self.waiting(wait):
            await drive.pause(left_s, scope, listens=wait.listens)
        if drive.stopped is not None and (task := asyncio.current_task()) is not None:
            self._told.add(task)
        drive.check()
        scope.check()

    async def untaken(self, name: str) -> Event | None:
        """The first event of a name that nobody has taken."""
        return await self._drive.ask(self._untaken, name)

    async def _untaken(self, name: str) -> Event | None:
        drive = self._drive
        async for page in drive.tools.journal.events(drive.run_id, name):
            for event in page:
                if event.fence == drive.lease.base_fence + 1 and event.taken_by is None:
                    return event
        return None

    def called(self) -> None:
        """A verb is called. In a run that was stopped because everybody waits, somebody didn't.

        Unless it is unwinding, or was told and goes on all the same; plain `def` code is known to wait.
        """
        if type(self._drive.stopped) is not RunSuspended or sys.exc_info()[1] is not None:
            return
        try:
            task = asyncio.current_task()
        except RuntimeError:
            return
        if task is not None and task not in self._told:
            self.hurried = True

    # ---- The watch ----

    async def end(self) -> None:
        """The drive is over."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait((self._watch,))

    async def _watch_over(self) -> None:
        """Until the drive is stopped, by this watch or somebody else."""
        drive, tick_s, listen_s, since_s = self._drive, QUIET_S, _TICK_S, 0.0
        most_s = _TICK_S if self.suspends else _LISTEN_MOST_S
        try:
            while drive.stopped is None:
                await drive.tools.clock.sleep(tick_s)
                if self.suspends and self._is_quiet() and await self._stays_quiet():
                    return await self._stop()
                tick_s, since_s = min(tick_s * 1.5, most_s), since_s + tick_s
                if since_s >= listen_s and any(wait.listens for wait in self._waits.values()):
                    listen_s, since_s = min(listen_s * 1.2, _LISTEN_MOST_S), 0.0
                    await self._listen()
        except Exception as error:  # whatever it is: without a watch the run would wait for ever
            drive.stop(error)

    async def _listen(self) -> None:
        """Those who wait for events look again when the run's wake count has moved."""
        drive = self._drive
        try:
            header = await drive.tools.journal.header(drive.run_id)
        except JournalUnavailable:  # the lease tells when that has lasted too long
            return
        if header is not None and header.wake_count != self._wake_count:
            self._wake_count = header.wake_count
            self.heard += 1
            drive.listen()

    def _is_quiet(self) -> bool:
        """Whether every task that is inside a step waits, and for so long that it is worth leaving."""
        drive = self._drive
        waits = self._waits.values()
        if drive.tasks.keys() != self._waits.keys() or drive.is_waking() or drive.plain_code.is_running():
            return False
        if not any(wait.listens or wait.wake_at_ms is not None for wait in waits):
            return False
        return self._first_ms() - drive.tools.clock.now_ms() > SHORT_WAIT_S * 1000

    async def _stays_quiet(self) -> bool:
        """Whether it stays so, and nobody came to a step meanwhile."""
        entered, patience_s = self._drive.entered, PATIENCE_S[self._patience]
        await self._drive.tools.clock.sleep(QUIET_S)
        if patience_s:  # in real time: what is waited for runs in it, too
            await asyncio.sleep(patience_s)
        return self._is_quiet() and entered == self._drive.entered

    def _first_ms(self) -> int:
        ends = [wait.wake_at_ms for wait in self._waits.values() if wait.wake_at_ms is not None]
        return min(ends, default=NEVER_MS)

    async def _stop(self) -> None:
        """Has the workflow unwind; what stays behind, waiting for something that is no verb, is cancelled."""
        drive, task = self._drive, self._drive.workflow_task
        self._awaited = {wait.event for wait in self._waits.values() if wait.event is not None}
        self._looks = [wait.looks for wait in self._waits.values() if wait.looks is not None]
        self._wake_at_ms = self._first_ms()
        reason = RunSuspended("everybody waits")
        drive.stop(reason)
        if task is None:
            return
        await asyncio.wait((task,), timeout=_UNWIND_S + PATIENCE_S[self._patience])
        if not task.done() and not drive.plain_code.is_running():
            self.hurried = True
            drive.interrupt(reason)

    # ---- Leaving ----

    async def leave(self) -> RunHeader:
        """Leaves a run that has unwound: SUSPENDED until it is due or woken, or PENDING and due now.

        A   count 0 ── looks: no event ──────────────── suspend [count = 0] ─▶ refused: looks again
        B                               RunBusy, count 1

        Refused otherwise, the run was taken over or cancelled. A lost reply is known by the missing owner:
        nobody else clears it.

        Raises:
            Fenced: Somebody else drives the run.
        """
        drive = self._drive
        journal, lease = drive.tools.journal, drive.run_lease
        drive.tools.renewals.drop(drive.held)
        while True:
            header = await drive.ask(journal.header, drive.run_id)
            if header is None or (header.owner, header.fence) != (lease.owner, lease.fence):
                raise drive.fenced_by(None)
            suspends = not await self._has_to_go_on()
            departure = Departure(
                status=SUSPENDED if suspends else PENDING,
                due_at_ms=due_ms(drive.tools, self._wake_at_ms if suspends else drive.tools.clock.now_ms()),
                keep_error=True,
                keep_lease=bool(drive.strays),
                counts=as_json(drive.counted()),
            )
            reply = await drive.ask(journal.leave, lease, departure, wake_count=header.wake_count)
            now = reply.row
            if now is not None and (reply.ok or (now.fence == lease.fence and now.owner is None)):
                drive.tally.left = now
                drive.log.info("run_suspended", status=now.status, due_at_ms=now.due_at_ms)
                if now.status == SUSPENDED:  # else it is driven again at once
                    await tell_drive(drive.tools, now)
                return now
            if now is None or (now.owner, now.fence) != (lease.owner, lease.fence):
                raise drive.fenced_by(None)

    async def _has_to_go_on(self) -> bool:
        if self.hurried and self._patience < len(PATIENCE_S) - 1:
            return True
        for name in sorted(self._awaited):
            if await self.untaken(name) is not None:
                return True
        for look in self._looks:
            if await look():
                return True
        return False
