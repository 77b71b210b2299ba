"""Leaving a run in which everybody waits: no process stays for it, and no wake-up is lost.

A   count 0 ── looks: no event ──────────────────────── suspend [count = 0] ─▶ refused: look again
S                               event, count 1

The count is the one known before the last look. While the header is being written nothing new is begun; once
it is written, every verb raises, and the workflow unwinds.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from durable_core.engine.failure import as_json
from durable_core.errors import CorruptRecord, DurableError, RunSuspended
from durable_core.journal.base import Departure
from durable_core.records import SUSPENDED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from durable_core.engine.drive import Drive
    from durable_core.records import Event, RunHeader

SHORT_WAIT_S: Final = 5.0
"""A wait that ends sooner is waited for here: a suspension costs more."""

NEVER_MS: Final = 253_402_300_799_000  # the end of the year 9999: until then somebody has to wake the run
_QUIET_S: Final = 0.02
_LOOK_EVERY_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Wait:
    """What a task waits for.

    Attributes:
        wake_at_ms: When it goes on at the latest; None: never by itself.
        event: Of which name an event would do.
    """

    wake_at_ms: int | None = None
    event: str | None = None


class Suspension:
    """Watches those who wait in one drive, and leaves the run when nobody does anything else.

    Args:
        drive: Of the run.
        suspends: Whether the run is ever left so; else its waits are waited for here.
    """

    def __init__(self, drive: Drive, *, suspends: bool) -> None:
        self._drive = drive
        self._suspends = suspends
        self._waits: dict[asyncio.Task[object], Wait] = {}
        self._watch: asyncio.Task[None] | None = None
        self.gate: asyncio.Event | None = None
        self.header: RunHeader | None = None

    @contextmanager
    def waiting(self, wait: Wait) -> Iterator[None]:
        """Inside, the current task only waits."""
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a wait needs a task")
        self._waits[task] = wait
        if self._suspends and self._watch is None:
            self._watch = asyncio.get_running_loop().create_task(self._until_quiet())
        try:
            yield
        finally:
            del self._waits[task]

    @contextmanager
    def taking(self) -> Iterator[None]:
        """Inside, the current task takes what it waited for: no look finds it any more, but the task goes on.

        W   looks: an event ── take ─▶ applied ── (its reply is on the way) ────────── goes on
        S                                          looks: no event ── W isn't waiting: no suspension
        """
        task = asyncio.current_task()
        wait = self._waits.pop(task)  # type: ignore[arg-type]  # who takes is in a task that waits
        try:
            yield
        finally:
            self._waits[task] = wait  # type: ignore[index]  # the same

    async def end(self) -> None:
        """The drive is over."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait((self._watch,))

    async def untaken(self, name: str) -> Event | None:
        """The first event of a name that nobody has taken."""
        drive = self._drive
        async for page in drive.tools.journal.events(drive.run_id, name):
            for event in page:
                if event.fence == drive.lease.base_fence + 1 and event.taken_by is None:
                    return event
        return None

    async def _until_quiet(self) -> None:
        drive = self._drive
        sleep = drive.tools.clock.sleep
        while drive.stopped is None:
            await sleep(_QUIET_S)
            was_quiet = self._is_quiet()
            await sleep(_QUIET_S if was_quiet else _LOOK_EVERY_S)
            if not was_quiet or not self._is_quiet():
                continue
            self.gate = asyncio.Event()
            try:
                if await self._suspended():
                    drive.stop(RunSuspended("everybody waits"))
            except DurableError as error:
                drive.stop(error)
            finally:
                self.gate.set()
                self.gate = None

    def _is_quiet(self) -> bool:
        """Whether every task waits, and for so long that it is worth leaving."""
        drive = self._drive
        if not self._waits or drive.plain_code.running or drive.tasks.keys() != self._waits.keys():
            return False
        return self._wake_at_ms() - drive.tools.clock.now_ms() > SHORT_WAIT_S * 1000

    def _wake_at_ms(self) -> int:
        return min(
            (wait.wake_at_ms for wait in self._waits.values() if wait.wake_at_ms is not None),
            default=NEVER_MS,
        )

    async def _suspended(self) -> bool:
        """Suspends the run unless something has come; whether it did."""
        drive = self._drive
        journal, lease, renewals = drive.tools.journal, drive.lease, drive.tools.renewals
        header = await drive.ask(journal.header, drive.run_id)
        if header is None or (header.owner, header.fence) != (lease.owner, lease.fence):
            raise drive.fenced_by(None)
        for name in {wait.event for wait in self._waits.values() if wait.event is not None}:
            if await self.untaken(name) is not None:
                return False
        if not self._is_quiet():
            return False
        departure = Departure(status=SUSPENDED, due_at_ms=self._wake_at_ms(), counts=as_json(drive.counted()))
        renewals.drop(drive.held)
        reply = await drive.ask(journal.leave, lease, departure, wake_count=header.wake_count)
        now = reply.row
        if now is None:
            raise CorruptRecord("the run's header vanished while it was suspended", run_id=drive.run_id)
        if reply.ok or (now.fence == lease.fence and now.owner is None):
            self.header = now
            return True
        if (now.owner, now.fence) != (lease.owner, lease.fence):
            raise drive.fenced_by(None)
        renewals.keep(drive.held)
        return False
