"""The deadline of a Lambda invocation: when a run has to be left, and what others may conclude from it."""

from __future__ import annotations

import math
from typing import Any, Final

from durable_core.clock import Clock, SystemClock
from durable_core.engine.invocation import Invocation
from durable_core.engine.stopping import Deadline

MOST_MS: Final = 900_000
"""The most that Lambda lets an invocation take: what claims more isn't believed."""

UNKNOWN_MS: Final = 30_000
"""What is left where nobody says: a call by hand, with no context."""

# The way out takes this share of the time, at most so long: records of what is in flight, the header, a
# message.
_WAY_OUT_SHARE: Final = 0.1
_WAY_OUT_MOST_S: Final = 5.0

_longest_ms: dict[str, int] = {}  # what the functions of this process have had left at most: their time-outs


class LambdaDeadline(Deadline):
    """When a run has to be left so that the invocation ends by itself.

    A lease that is taken under it ends five seconds after the invocation, and a minute after it the owner
    counts as dead.

    Args:
        context: Of the invocation.
        clock: The source of time.
    """

    def __init__(self, context: object, clock: Clock | None = None) -> None:
        clock = clock or SystemClock()
        left_ms = _left_ms(context)
        function = str(getattr(context, "function_name", None) or "unknown")
        request = str(getattr(context, "aws_request_id", None) or "unknown")
        time_out_ms = _longest_ms[function] = max(left_ms, _longest_ms.get(function, 0))
        self._invocation = Invocation(
            f"{request} of {function}", time_out_ms, clock.boot_ms() + left_ms, clock.now_ms() + left_ms
        )
        left_s, most_s = left_ms / 1000, time_out_ms / 1000
        self._set(left_s - _way_out_s(left_s), most_s - _way_out_s(most_s), clock)

    @property
    def invocation(self) -> Invocation:
        """The invocation."""
        return self._invocation


def lambda_deadline(context: object) -> LambdaDeadline:
    """When a run that is driven in a Lambda handler has to be left.

    Near it no step is started that hasn't the time, those in flight may commit, and the run is released:
    `DeadlineReached`. The same call in a later invocation goes on with it.

    Args:
        context: As Lambda gives it to the handler.

    Example:
        result = executor.run_sync(report, run_id=event["id"], deadline=lambda_deadline(context), task="Q3")
    """
    return LambdaDeadline(context)


def _left_ms(context: Any) -> int:
    """Milliseconds that are left: none if the platform says so, however it says it; bounded in any case."""
    ask = getattr(context, "get_remaining_time_in_millis", None)
    left = ask() if callable(ask) else None
    if isinstance(left, bool) or not isinstance(left, int | float) or math.isnan(left):
        return UNKNOWN_MS
    return int(min(max(left, 0), MOST_MS))


def _way_out_s(left_s: float) -> float:
    return min(left_s * _WAY_OUT_SHARE, _WAY_OUT_MOST_S)
