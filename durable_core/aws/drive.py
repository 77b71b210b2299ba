"""`drive_run`: drives a run until it ends, sleeps, or has to be handed over to the next invocation."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from durable_core.aws.bus import Bus
from durable_core.aws.inbox import queue_handler
from durable_core.aws.queue import DriveMessage
from durable_core.aws.tracing import annotate
from durable_core.engine.results import view_of
from durable_core.errors import Fenced, RunBusy, RunNotFound, RunPruned
from durable_core.log import get_logger
from durable_core.records import COMPLETED, FAILED, PENDING, SUSPENDED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from durable_core.aws.deadline import LambdaDeadline
    from durable_core.aws.sandbox import Handler, Sandbox
    from durable_core.engine.driving import Driven
    from durable_core.records import RunHeader

_EARLY_S: Final = 30
_TOLD: Final = {
    COMPLETED: "RunsCompleted",
    FAILED: "RunsFailed",
    SUSPENDED: "RunsSuspended",
    PENDING: "HandOvers",
}


def drive_handler(*, workflows: str | Sequence[str]) -> Handler[dict[str, Any]]:
    """The handler of a function that a queue triggers, and that drives the runs its messages name.

    Args:
        workflows: The module or package that defines them, or several.

    Raises:
        UsageError: A variable of its environment is missing, or a module.

    Example:
        handler = drive_handler(workflows="my_package.workflows")
    """
    return queue_handler(
        "drive_run",
        DriveMessage,
        lambda sandbox, environment: _Driver(sandbox, environment.event_bus or "").act,
        workflows=workflows,
        needs=("drive_queue_url", "event_bus"),
        failure="run_not_driven",
    )


class _Driver:
    """Drives the runs of one sandbox."""

    def __init__(self, sandbox: Sandbox, event_bus: str) -> None:
        self._sandbox = sandbox
        self._bus = Bus(sandbox.transport, event_bus)
        self._log = get_logger("durable_core")

    async def act(self, message: DriveMessage, deadline: LambdaDeadline) -> None:
        """Drives the run, or tells the bus what it could not be told.

        Raises:
            DurableError: The run can't be driven, or the bus takes nothing.
        """
        try:
            if message.announce is not None:
                await self._bus.put(message.announce)
            else:
                await self._drive(message, deadline)
        except RunNotFound:  # it was pruned since; nothing is left to be done
            self._log.warning("run_not_found", run_id=message.run_id)

    async def _drive(self, message: DriveMessage, deadline: LambdaDeadline) -> None:
        began_s, units = time.time(), self._sandbox.transport.write_units
        driven = await self._sandbox.executor.drive(message.run_id, deadline=deadline)
        left = driven.tally.left
        if left is not None and left.status != PENDING:
            await self._bus.tell(view_of(left), self._sandbox.dispatch)
        elif left is None and driven.status == SUSPENDED:
            await self._sleep_on(driven.seen)
        self._measure(driven, self._sandbox.transport.write_units - units)
        annotate("drive", began_s, run_id=message.run_id, workflow=driven.seen.workflow, status=driven.status)
        gave_way = isinstance(driven.error, RunBusy | RunPruned | Fenced)
        if driven.error is not None and not gave_way:
            raise driven.error

    async def _sleep_on(self, seen: RunHeader) -> None:
        """A message that comes a little before its time is sent again: clocks differ."""
        early_s = (seen.due_at_ms - self._sandbox.clock.now_ms()) / 1000
        if early_s <= _EARLY_S:
            await self._sandbox.dispatch.drive(seen.run_id, delay_s=early_s)

    def _measure(self, driven: Driven, write_units: float) -> None:
        tally, left = driven.tally, driven.tally.left
        status = left.status if left is not None else None
        self._sandbox.metrics.put(
            {
                "RunsStarted": int(left is not None and driven.seen.fence == driven.seen.base_fence),
                **({_TOLD[status]: 1} if status in _TOLD else {}),
                "StepsCommitted": tally.committed,
                "StepsFailed": tally.failed,
                "StepsRerun": tally.rerun,
                "StepsInDoubt": tally.in_doubt,
                "ItemsDone": tally.items,
                "OutputBytes": tally.bytes,
                "Spills": tally.spills,
                "WriteUnits": write_units,
            },
            run_id=driven.seen.run_id,
            workflow=driven.seen.workflow,
        )
