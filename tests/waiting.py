"""Waiting in tests: for a condition, with a deadline, and a message that says what never came."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

LIMIT_S = 20.0
_LOOK_EVERY_S = 0.002


def until(condition: Callable[[], T], what: str, *, limit_s: float = LIMIT_S) -> T:
    """The first true value of a condition.

    Raises:
        AssertionError: It stayed false for `limit_s`.
    """
    deadline = time.monotonic() + limit_s
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {limit_s:g} s in vain for {what}")
        time.sleep(_LOOK_EVERY_S)
    return found


def moment(seconds: float) -> None:
    """Lets a drawn moment pass without giving the processor away: moments of a kill are shorter than naps."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


async def tasks_left() -> set[str]:
    """The tasks of this event loop that don't end by themselves."""
    for _ in range(100):
        left = {task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()}
        if not left:
            break
        await asyncio.sleep(0.01)
    return left


def full() -> bool:
    """Whether `DURABLE_FULL=1` asked for the full scale, which takes minutes."""
    return _FULL


# Read on import: the tests themselves run without any DURABLE_ setting.
_FULL = os.environ.get("DURABLE_FULL", "") not in ("", "0")
