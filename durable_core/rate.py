"""How fast a map may start its items."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from durable_core.arguments import check_count, check_number

if TYPE_CHECKING:
    from durable_core.clock import Clock

_CAUGHT_UP_MS: Final = 20.0


@dataclass(frozen=True, slots=True)
class Rate:
    """`n` starts in `per_s` seconds, for each process: `Rate(500, per_s=60)`.

    Where workers share a map it is for all of them together, each chunk in work having the same part.

    Starts are spread evenly; what a late timer missed, up to 20 ms, is caught up with.

    Args:
        n: Starts.
        per_s: Seconds.
        burst: The most that may follow each other at once after a pause: on top of `n`, then.

    Raises:
        UsageError: A value is out of range.
    """

    n: int
    per_s: float = 1.0
    burst: int = 1

    def __post_init__(self) -> None:
        """Refuses what can't be meant."""
        check_count("n", self.n)
        check_number("per_s", self.per_s, least=0, above=True)
        check_count("burst", self.burst)


class TokenBucket:
    """Holds starts to a rate.

    Args:
        rate: To hold to.
        clock: By which time is measured.
    """

    def __init__(self, rate: Rate, clock: Clock) -> None:
        self._clock = clock
        self._every_ms = self._whole_every_ms = rate.per_s * 1000 / rate.n
        self._slack_ms = max((rate.burst - 1) * self._every_ms, _CAUGHT_UP_MS)
        self._next_ms = clock.boot_ms() - (rate.burst - 1) * self._every_ms

    def share(self, among: int) -> None:
        """Holds to this part of the rate, from the next start on: the others are held by others."""
        self._every_ms = self._whole_every_ms * among

    def take_s(self) -> float:
        """Takes the next start; gives the seconds until it, 0 for at once."""
        now = self._clock.boot_ms()
        at = max(self._next_ms, now - self._slack_ms)
        self._next_ms = at + self._every_ms
        return max(0.0, (at - now) / 1000)
