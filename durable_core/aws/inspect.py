"""`inspect_run`: tells how a run stands, and reads only."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from durable_core.aws.environment import read_environment
from durable_core.aws.requests import InspectRequest, asked
from durable_core.aws.sandbox import Handler, Invoked, Sandbox

if TYPE_CHECKING:
    from durable_core.engine.results import StepView

_ERROR: Final = ("code", "type", "message")


def inspect_handler() -> Handler[dict[str, Any]]:
    """The handler of a function that is called directly and tells of one run; outputs aren't among it.

    Raises:
        UsageError: A variable of its environment is missing.

    Example:
        handler = inspect_handler()
    """
    sandbox = Sandbox("inspect_run", read_environment())

    async def answer(invoked: Invoked) -> dict[str, Any]:
        request = asked(invoked.event, InspectRequest, invoked.request_id).request
        view = await sandbox.executor.get(request.run_id)
        document = asdict(view) | {"counts": dict(view.counts), "error": _error(dict(view.error))}
        if request.steps:
            found = await sandbox.executor.steps(request.run_id, within=request.within)
            ids = [one.step_id for one in found]
            first = ids.index(request.after) + 1 if request.after in ids else 0
            page = found[first : first + request.steps]
            document["steps"] = [_step(one) for one in page]
            document["next"] = page[-1].step_id if page and page[-1] is not found[-1] else None
        return document

    return Handler(sandbox, answer)


def _step(view: StepView) -> dict[str, Any]:
    record = view.record
    return {
        "step_id": record.step_id,
        "kind": record.kind,
        "status": record.status,
        "attempt": record.attempt,
        "crashes": record.crashes,
        "started_at": record.started_at,
        "committed_at": record.committed_at,
        "output_size": record.output_size,
        "error": _error(view.error),
    }


def _error(told: dict[str, Any]) -> dict[str, Any] | None:
    return {name: told[name] for name in _ERROR if name in told} or None
