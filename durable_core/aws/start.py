"""`start_run`: records a run and has it driven; asking twice starts one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from durable_core.aws.answers import answer
from durable_core.aws.environment import read_environment
from durable_core.aws.requests import StartRequest, asked
from durable_core.aws.sandbox import Handler, Invoked, Sandbox, load_workflows
from durable_core.errors import UsageError, WorkflowNotFound
from durable_core.identity import MAX_ID_CHARS
from durable_core.records import ACTIVE
from durable_core.workflow import registered

if TYPE_CHECKING:
    from collections.abc import Sequence

    from durable_core.aws.requests import Asked
    from durable_core.workflow import Workflow

_ACCEPTED: Final = 202
_DONE: Final = 200


def start_handler(*, workflows: str | Sequence[str]) -> Handler[dict[str, Any]]:
    """The handler of a function that starts runs: called directly, over HTTP, or through EventBridge.

    Args:
        workflows: The module or package that defines them, or several.

    Raises:
        UsageError: A variable of its environment is missing, or a module.

    Example:
        handler = start_handler(workflows="my_package.workflows")
    """
    environment = read_environment("drive_queue_url")
    load_workflows(workflows)
    sandbox = Sandbox("start_run", environment)

    async def started(invoked: Invoked) -> tuple[int, dict[str, Any]]:
        found = asked(invoked.event, StartRequest, invoked.request_id)
        request, workflow = found.request, _workflow(found.request.workflow)
        view = await sandbox.executor.start(
            workflow.bind(**workflow.from_json(request.inputs)),
            run_id=request.run_id if request.run_id is not None else _run_id(workflow, found),
            session_id=request.session_id,
        )
        document = {"run_id": view.run_id, "workflow": view.workflow, "status": view.status}
        return _ACCEPTED if view.status in ACTIVE else _DONE, document

    return Handler(sandbox, lambda invoked: answer(invoked.event, started(invoked)))


def _workflow(name: str) -> Workflow[..., Any]:
    """The workflow of that name that this function has.

    Raises:
        WorkflowNotFound: There is none.
        UsageError: There are several.
    """
    found = registered(name)
    if not found:
        raise WorkflowNotFound("this function has no such workflow", remedy="Name one of its workflows")
    if len(found) > 1:
        raise UsageError(f"several workflows are named {name!r}", remedy="Give them names of their own")
    return found[0]


def _run_id(workflow: Workflow[..., Any], found: Asked[StartRequest]) -> str | None:
    """An id that a request gets each time it is delivered; None where deliveries can't be told apart."""
    if found.delivery_id is None:
        return None
    return f"{workflow.name[: MAX_ID_CHARS - len(found.delivery_id) - 1]}-{found.delivery_id}"
