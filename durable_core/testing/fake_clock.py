"""A clock that a test turns by hand."""

from __future__ import annotations

import asyncio
import heapq
from itertools import count
from typing import Final

from durable_core.errors import UsageError

START_MS: Final = 1_767_225_600_000  # 2026-01-01T00:00:00Z
_DAY_MS: Final = 24 * 3600 * 1000


class FakeClock:
    """Time that stands still until the test lets it pass, or until everybody sleeps.

    A sleeper wakes when its time has come. Whoever sleeps while nobody turns the clock turns it itself, the
    earliest end first: sleeps overlap as they would, and take no real time. A wait for something that never
    comes ends in an error after `most_turns` such turns, a matter of seconds.

    Args:
        start_ms: Milliseconds since the epoch at the beginning.
        most_turns: How often sleepers may turn the clock between two times that the test does.

    Example:
        clock = FakeClock()
        executor = DurableWorkflowExecutor("memory://", lease_s=30, clock=clock)
        clock.advance(31)            # every lease is over
    """

    def __init__(self, start_ms: int = START_MS, *, most_turns: int = 1_000_000) -> None:
        self._wall_ms = start_ms
        self._boot_ms = 0
        self._sleepers: list[tuple[int, int]] = []
        self._order = count()
        self._most_turns = most_turns
        self._turns = 0

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        return self._wall_ms

    def boot_ms(self) -> int:
        """Milliseconds since the clock was made; `set_wall` doesn't change it."""
        return self._boot_ms

    def advance(self, seconds: float = 0, *, ms: int = 0) -> None:
        """Lets time pass.

        Args:
            seconds: How much, to the millisecond.
            ms: Milliseconds to be added to that.

        Raises:
            ValueError: Time would go back.
        """
        passed = round(seconds * 1000) + ms
        if passed < 0:
            raise ValueError("time doesn't go back; somebody may set the wall clock back: set_wall()")
        self._turns = 0
        self._pass(passed)

    def set_wall(self, epoch_ms: int) -> None:
        """Sets the wall clock, forwards or back, as people and time servers do; no time passes."""
        self._turns = 0
        self._wall_ms = epoch_ms

    async def sleep(self, seconds: float) -> None:
        """Waits without waiting: gives others a turn, then lets the time pass that nobody else needs.

        Raises:
            UsageError: The clock was turned so `most_turns` times, and the test still waits for something.
        """
        mine = (self._boot_ms + max(0, round(seconds * 1000)), next(self._order))
        heapq.heappush(self._sleepers, mine)
        try:
            await asyncio.sleep(0)
            while self._boot_ms < mine[0]:
                if self._sleepers[0] == mine:
                    self._turn(mine[0] - self._boot_ms)
                else:
                    await asyncio.sleep(0)
        finally:
            self._sleepers.remove(mine)
            heapq.heapify(self._sleepers)

    def _turn(self, ms: int) -> None:
        if self._turns >= self._most_turns:
            raise UsageError(
                f"the fake clock was turned {self._turns:,} times by those who sleep, to"
                f" {self._boot_ms / _DAY_MS:,.1f} days after its beginning: what they wait for never comes",
                remedy="Send the event, give the wait a time-out, or let the run suspend (on_wait='suspend');"
                " a test that waits for so long on purpose says FakeClock(most_turns=…)",
            )
        self._turns += 1
        self._pass(ms)

    def _pass(self, ms: int) -> None:
        self._wall_ms += ms
        self._boot_ms += ms
