"""How fast a map may start its items."""

from __future__ import annotations

from typing import Any

import pytest

from durable_core import Rate
from durable_core.errors import UsageError
from durable_core.rate import TokenBucket
from durable_core.testing.fake_clock import FakeClock


def starts(bucket: TokenBucket, clock: FakeClock, times: int) -> list[int]:
    """When so many starts are, if each is waited for; in milliseconds from now."""
    begun, found = clock.boot_ms(), []
    for _ in range(times):
        clock.advance(ms=round(bucket.take_s() * 1000))
        found.append(clock.boot_ms() - begun)
    return found


def test_starts_are_spread_evenly() -> None:
    clock = FakeClock()
    assert starts(TokenBucket(Rate(4, per_s=2), clock), clock, 5) == [0, 500, 1000, 1500, 2000]


def test_a_burst_follows_at_once_and_then_the_rate_holds() -> None:
    clock = FakeClock()
    assert starts(TokenBucket(Rate(1, burst=3), clock), clock, 6) == [0, 0, 0, 1000, 2000, 3000]


def test_a_pause_gives_back_the_burst_and_no_more() -> None:
    clock = FakeClock()
    bucket = TokenBucket(Rate(1, burst=3), clock)
    starts(bucket, clock, 5)
    clock.advance(ms=3_600_000)
    assert starts(bucket, clock, 5) == [0, 0, 0, 1000, 2000]


def test_what_a_late_timer_missed_is_caught_up_with() -> None:
    clock = FakeClock()
    bucket = TokenBucket(Rate(100), clock)
    assert starts(bucket, clock, 2) == [0, 10]
    clock.advance(ms=15)
    assert starts(bucket, clock, 3) == [0, 5, 15]


def test_in_the_long_run_no_more_are_started_than_allowed() -> None:
    clock = FakeClock()
    bucket = TokenBucket(Rate(500, per_s=60), clock)
    found = starts(bucket, clock, 1501)
    assert found[-1] == pytest.approx(180_000, abs=1000)


@pytest.mark.parametrize(
    "given",
    [{"n": 0}, {"n": -1}, {"n": 1.5}, {"n": True}, {"n": 5, "per_s": 0}, {"n": 5, "per_s": -1},
     {"n": 5, "per_s": float("inf")}, {"n": 5, "per_s": "1"}, {"n": 5, "burst": 0}],
    ids=str,
)  # fmt: skip
def test_a_rate_that_cannot_be_meant_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Rate(**given)
