"""Letting time pass from within a body, by the clock that its process goes by."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from durable_core.clock import Clock
from durable_core.testing.crash_processes import AdvancedClock
from durable_core.testing.fake_clock import FakeClock

_clock: ContextVar[FakeClock | AdvancedClock] = ContextVar("tests.crashes.clock")


@contextmanager
def lets_pass(clock: Clock) -> Iterator[None]:
    """Inside, bodies can let time pass by this clock."""
    assert isinstance(clock, FakeClock | AdvancedClock)
    token = _clock.set(clock)
    try:
        yield
    finally:
        _clock.reset(token)


def passes(seconds: float) -> None:
    """So much time passes."""
    _clock.get().advance(seconds)
