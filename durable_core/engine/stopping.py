"""What ends a drive from outside: SIGTERM, a deadline, and a worker that is to stop."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Protocol
from weakref import WeakKeyDictionary

from durable_core.control_flow import HandOver
from durable_core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from durable_core.clock import Clock
    from durable_core.engine.drive import Drive
    from durable_core.engine.invocation import Invocation

# Before a deadline nothing more is started for this share of the time that was given, but at most for so
# long.
_WIND_DOWN_SHARE: Final = 0.1
_WIND_DOWN_MOST_S: Final = 5.0


class WayOut(Protocol):
    """What may make one drive leave its run before the end.

    Attributes:
        invocation: That is ended at a known time, if that is the reason.
    """

    @property
    def invocation(self) -> Invocation | None:
        """The invocation, or None."""
        ...

    def left_s(self) -> float:
        """Seconds that there are until then."""
        ...

    def has_time(self, needed_s: float | None, *, is_first: bool) -> bool:
        """Whether a body may still be started.

        Args:
            needed_s: What it may take; None where nobody can tell.
            is_first: Whether nothing has been finished yet in this drive.
        """
        ...

    def watch(self, drive: Drive) -> None:
        """Stops this drive in time."""
        ...

    def forget(self) -> None:
        """The drive has ended."""
        ...


class Deadline:
    """When a run has to be left.

    No body is started that hasn't the time, and shortly before it none at all; what is in flight then has
    until the deadline to commit, and is cancelled at it. A `def` body can't be: the run is then left to its
    lease.

    Args:
        when: An aware datetime, or how long from now.
        clock: By which it is judged.

    Raises:
        UsageError: It is neither, a naive datetime, or past.
    """

    def __init__(self, when: datetime | timedelta, clock: Clock) -> None:
        if isinstance(when, datetime):
            if when.tzinfo is None:
                raise UsageError(
                    "deadline= has no time zone", remedy="Use datetime.now(UTC) + …, or a timedelta"
                )
            when = when - datetime.fromtimestamp(clock.now_ms() / 1000, UTC)
        if not isinstance(when, timedelta):
            raise UsageError(
                f"deadline={when!r} is no time", remedy="Use an aware datetime, or a timedelta from now"
            )
        given_s = when.total_seconds()
        if given_s <= 0:
            raise UsageError("deadline= is past already", remedy="Leave time for at least one step")
        self._set(given_s, given_s, clock)

    def _set(self, given_s: float, most_s: float, clock: Clock) -> None:
        self._clock = clock
        self._at_ms = clock.boot_ms() + given_s * 1000
        self._most_s = most_s
        self._wind_down_s = min(given_s * _WIND_DOWN_SHARE, _WIND_DOWN_MOST_S)
        self._timers: list[asyncio.TimerHandle] = []

    @property
    def invocation(self) -> Invocation | None:
        """None: nothing but this run is ended."""
        return None

    def left_s(self) -> float:
        """Seconds until it."""
        return (self._at_ms - self._clock.boot_ms()) / 1000

    def has_time(self, needed_s: float | None, *, is_first: bool) -> bool:
        """Whether it fits into what is left.

        One that would never fit is started all the same where at least half of what there ever is is left:
        time-outs may be generous, and if it doesn't end it has used up one of its crashes.
        """
        left_s = self.left_s()
        if left_s <= self._wind_down_s:
            return False
        return needed_s is None or needed_s <= left_s or (is_first and left_s >= self._most_s / 2)

    def watch(self, drive: Drive) -> None:
        """Stops this drive in time."""
        reason = HandOver("the deadline is near")

        def now() -> None:
            drive.grace_s = 0
            drive.interrupt(reason)

        loop, left_s = asyncio.get_running_loop(), self.left_s()
        self._timers = [
            loop.call_later(max(left_s - self._wind_down_s, 0), drive.stop, reason),
            loop.call_later(max(left_s, 0), now),
        ]

    def forget(self) -> None:
        """The drive has ended."""
        for timer in self._timers:
            timer.cancel()


class _Watch:
    """Everything in one event loop that SIGTERM has to cancel."""

    def __init__(self) -> None:
        self.tasks: set[asyncio.Task[Any]] = set()
        self.terminated = threading.Event()

    def terminate(self) -> None:
        self.terminated.set()
        for task in self.tasks:
            task.cancel()


_watches: WeakKeyDictionary[asyncio.AbstractEventLoop, _Watch] = WeakKeyDictionary()


@contextlib.contextmanager
def until_terminated() -> Iterator[threading.Event]:
    """SIGTERM, where nobody else handles it, cancels what runs here, so that the run is released.

    The first run of a loop installs the handler, the last one removes it.

    Yields:
        Set when SIGTERM has come.
    """
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    watch = _watches.get(loop)
    if watch is None:
        watch = _Watch()
        main = threading.current_thread() is threading.main_thread()
        if task is None or not main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            yield watch.terminated
            return
        loop.add_signal_handler(signal.SIGTERM, watch.terminate)
        _watches[loop] = watch
    outermost = task is not None and task not in watch.tasks  # one operation may await another
    if task is not None:
        watch.tasks.add(task)
    try:
        yield watch.terminated
    finally:
        if outermost:
            watch.tasks.discard(task)
        if not watch.tasks:
            del _watches[loop]
            loop.remove_signal_handler(signal.SIGTERM)
