"""An event loop that stands still whenever nothing can go on, and asks what shall happen next.

It knows no real time and no other thread, so that what runs in it runs alike each time: short timers fire as
soon as nothing else can go on, long ones when the test says so, and what is meant for a thread is offered to
the test as well.
"""

from __future__ import annotations

import asyncio
import contextvars
from typing import TYPE_CHECKING, Any, Final, TypeVar, TypeVarTuple

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
LONG_S: Final = 1.0


class SteppedLoop(asyncio.BaseEventLoop):
    """Runs until nothing can go on, then calls `on_idle`, over and over until that stops the loop.

    Args:
        on_idle: Makes something able to go on, or calls `stop()`. What it raises leaves `run_forever`.
        in_thread: Runs in this thread, at a moment of its choice, what is meant for another.

    Attributes:
        alarms: Timers of a second or more that were set and haven't fired.
    """

    def __init__(
        self, on_idle: Callable[[], None], in_thread: Callable[[Callable[[], Any]], Awaitable[Any]]
    ) -> None:
        super().__init__()
        self.alarms: list[asyncio.TimerHandle] = []
        self._on_idle = on_idle
        self._in_thread = in_thread
        self._now_s = 0.0
        self._selector = self  # asked by the base class for what the operating system has ready: nothing

    def time(self) -> float:
        """Seconds that short timers have taken so far."""
        return self._now_s

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """Keeps long timers for the test."""
        if when - self._now_s < LONG_S:
            return super().call_at(when, callback, *args, context=context)
        alarm = asyncio.TimerHandle(when, callback, args, self, context or contextvars.copy_context())
        self.alarms.append(alarm)
        return alarm

    def fire(self, alarm: asyncio.TimerHandle) -> None:
        """Lets a long timer fire now."""
        self.alarms.remove(alarm)
        self.call_soon(alarm._run)

    def pending_alarms(self) -> list[asyncio.TimerHandle]:
        """Those that may still fire, as they were set."""
        self.alarms = [alarm for alarm in self.alarms if not alarm.cancelled()]
        return self.alarms

    def run_in_executor(self, executor: object, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        """Offers the call to the test instead of a thread."""
        return asyncio.ensure_future(self._in_thread(lambda: func(*args)), loop=self)

    def add_signal_handler(self, sig: int, callback: Callable[[*Ts], object], *args: *Ts) -> None:
        """Nobody sends signals here."""

    def remove_signal_handler(self, sig: int) -> bool:
        """There is none."""
        return False

    # ---- What the base class asks of a concrete loop ----

    def select(self, timeout: float | None) -> list[Any]:
        """Called by the base class when it would wait for the operating system."""
        if timeout is None:
            self._on_idle()
        elif timeout > 0:
            self._now_s += timeout
        return []

    def _process_events(self, event_list: list[Any]) -> None:
        pass

    def _write_to_self(self) -> None:
        pass
