"""`signal_run`: records an event for a run and has the run driven, or cancels it."""

from __future__ import annotations

from typing import Any, Final

from durable_core.aws.answers import answer
from durable_core.aws.bus import Bus
from durable_core.aws.environment import read_environment
from durable_core.aws.requests import SignalRequest, asked
from durable_core.aws.sandbox import Handler, Invoked, Sandbox
from durable_core.records import ACTIVE, CANCELLED

_ACCEPTED: Final = 202
_DONE: Final = 200


def signal_handler() -> Handler[dict[str, Any]]:
    """The handler of a function that sends events to runs, or cancels them.

    Raises:
        UsageError: A variable of its environment is missing.

    Example:
        handler = signal_handler()
    """
    environment = read_environment("drive_queue_url", "event_bus")
    sandbox = Sandbox("signal_run", environment)
    bus = Bus(sandbox.transport, environment.event_bus or "")

    async def signalled(invoked: Invoked) -> tuple[int, dict[str, Any]]:
        request, delivery_id, _ = asked(invoked.event, SignalRequest, invoked.request_id)
        if request.cancel:
            return _DONE, await cancelled(request.run_id)
        event_id = await sandbox.executor.signal(
            request.run_id,
            request.event or "",
            request.payload,
            event_id=request.event_id if request.event_id is not None else delivery_id,
            early=request.early,
        )
        return _ACCEPTED, {"run_id": request.run_id, "event": request.event, "event_id": event_id}

    async def cancelled(run_id: str) -> dict[str, Any]:
        before = await sandbox.executor.get(run_id)
        view = await sandbox.executor.cancel(run_id)
        if before.status in ACTIVE and view.status == CANCELLED:
            sandbox.metrics.put({"RunsCancelled": 1}, run_id=run_id)
            await bus.tell(view, sandbox.dispatch)
        return {"run_id": run_id, "status": view.status}

    return Handler(sandbox, lambda invoked: answer(invoked.event, signalled(invoked)))
