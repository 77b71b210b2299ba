"""The schedule of the local cloud: moto keeps schedules, and fires none."""

from __future__ import annotations

import threading
import uuid
from typing import TYPE_CHECKING, Any

from durable_core.clock import rfc3339
from durable_core.local.aws_endpoint import REGION
from durable_core.log import get_logger

if TYPE_CHECKING:
    from durable_core.clock import Clock
    from durable_core.local.function import LocalFunction


class Schedule:
    """Invokes a function again and again, one invocation after the other.

    Args:
        function: Is invoked.
        every_s: From the end of one invocation to the next.
        clock: The source of time.
    """

    def __init__(self, function: LocalFunction, every_s: float, clock: Clock) -> None:
        self._function = function
        self._every_s = every_s
        self._clock = clock
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"schedule-{function.spec.name}", daemon=True)

    def start(self) -> None:
        """Begins; the first invocation is one period from now."""
        self._thread.start()

    def stop(self) -> None:
        """Begins no more."""
        self._stop.set()

    def join(self) -> None:
        """Waits for the invocation that is going on."""
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        log = get_logger("durable_core.local").bind(function=self._function.spec.name)
        while not self._stop.wait(self._every_s):
            try:
                answer = self._function.invoke(scheduled_event(self._clock))
            except Exception as error:  # the next one tells whether it was a hiccup
                log.warning("schedule_failed", reason=repr(error))
                continue
            if answer.failure:
                log.warning("scheduled_invocation_failed", failure=answer.failure)


def scheduled_event(clock: Clock) -> dict[str, Any]:
    """What EventBridge gives a function that a schedule invokes."""
    return {
        "version": "0",
        "id": str(uuid.uuid4()),
        "detail-type": "Scheduled Event",
        "source": "aws.events",
        "account": "123456789012",
        "time": rfc3339(clock.now_ms()),
        "region": REGION,
        "resources": [f"arn:aws:events:{REGION}:123456789012:rule/local"],
        "detail": {},
    }
