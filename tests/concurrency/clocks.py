"""The clocks of an execution: each process has its own, and they needn't agree.

Leases go by the store's clock on an SQL-like journal, and by that of whoever asks on the other.
"""

from __future__ import annotations

import asyncio

from typing_extensions import override

from durable_core.engine.suspension import SHORT_WAIT_S
from durable_core.journal.memory import MemoryJournal
from durable_core.records import RunHeader
from durable_core.testing.fake_clock import FakeClock
from tests.concurrency.processes import here

NEVER_S = 3600.0
STEP_MS = 365 * 24 * 3600 * 1000  # a year: whoever goes by such a clock waits for longer than any execution


class LocalClock(FakeClock):
    """A short sleep ends when the chooser says so, another one when time has passed, a long one never.

    Attributes:
        ends: Of the sleeps that time ends, by `boot_ms`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.ends: list[int] = []

    def rest_ms(self) -> int | None:
        """Until the first of them ends; None without any."""
        return min(self.ends) - self.boot_ms() if self.ends else None

    def key(self) -> tuple[int, ...]:
        """All that what it will say depends on."""
        return self.now_ms(), self.boot_ms(), *self.ends

    @override
    async def sleep(self, seconds: float) -> None:
        if seconds >= NEVER_S:
            await asyncio.get_running_loop().create_future()
        if seconds < SHORT_WAIT_S:
            await here().world.when("tick", lambda: True)
            return
        end = self.boot_ms() + round(seconds * 1000)
        self.ends.append(end)
        try:
            await here().world.when("when rested", lambda: self.boot_ms() >= end)
        finally:
            self.ends.remove(end)


class Connection(MemoryJournal):
    """A process's own way to the rows of a journal.

    Args:
        of: The journal.
        own: The process's clock.
        goes_by_own: Whether leases go by it; else by the journal's, as far as the process knows that.
    """

    def __init__(self, of: MemoryJournal, own: FakeClock, *, goes_by_own: bool) -> None:
        vars(self).update(vars(of))
        self.own = own
        if goes_by_own:
            self.clock = own

    @override
    async def header(self, run_id: str) -> RunHeader | None:
        self.skew_ms = self.clock.now_ms() - self.own.now_ms()
        return await super().header(run_id)
