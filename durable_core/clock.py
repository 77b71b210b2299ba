"""Time as the engine sees it: an argument, so that tests can turn it."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """A source of time.

    Leases are measured by `boot_ms`, which nobody can set and which goes on while the machine is suspended;
    what other processes must be able to read (lease ends, time stamps) is `now_ms`.
    """

    def now_ms(self) -> int:
        """Milliseconds since the epoch, by this machine's wall clock."""
        ...

    def boot_ms(self) -> int:
        """Milliseconds since some fixed moment, counting suspend."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        ...


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        return time.time_ns() // 1_000_000

    if hasattr(time, "CLOCK_BOOTTIME"):

        def boot_ms(self) -> int:
            """Milliseconds since boot, counting suspend."""
            return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000

    else:  # elsewhere the monotonic clock may stop during suspend; wall time is the nearest

        def boot_ms(self) -> int:
            """Milliseconds by the wall clock, which counts suspend."""
            return time.time_ns() // 1_000_000

    async def sleep(self, seconds: float) -> None:
        """Wait, without holding the event loop."""
        await asyncio.sleep(seconds)


_second: tuple[int, str] = (0, "1970-01-01T00:00:00")


def rfc3339(epoch_ms: int) -> str:
    """RFC 3339 in UTC with milliseconds, such as `2026-11-29T17:19:55.003Z`."""
    global _second
    seconds, millis = divmod(epoch_ms, 1000)
    cached = _second  # two are made per step: the part up to the second is made once a second
    if cached[0] != seconds:
        text = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        _second = cached = (seconds, text)
    return f"{cached[1]}.{millis:03d}Z"


def epoch_ms(text: str) -> int:
    """The inverse of `rfc3339`.

    Raises:
        ValueError: The text isn't such a time.
    """
    when = datetime.fromisoformat(text)
    if when.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone")
    since = when - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1000 + since.microseconds // 1000
