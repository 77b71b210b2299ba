"""Reading a call of the executor: which workflow, with which inputs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from durable_core.clock import rfc3339
from durable_core.errors import RunningLoop, UsageError, WorkflowNotFound
from durable_core.identity import check_id, new_run_id
from durable_core.workflow import RUN_OPTIONS, BoundWorkflow, Workflow, registered

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from durable_core.clock import Clock
    from durable_core.records import RunHeader

R = TypeVar("R")


def bound(
    wf: Workflow[..., Any] | BoundWorkflow[Any], inputs: dict[str, object]
) -> tuple[Workflow[..., Any], dict[str, object]]:
    """The workflow and its inputs, from what was given.

    Raises:
        UsageError: It is no workflow, bound already, or has inputs that only `bind` can take.
    """
    if isinstance(wf, BoundWorkflow):
        if inputs:
            raise UsageError(
                "the workflow is bound to its inputs already", remedy="Give all inputs to bind(…)"
            )
        return wf.workflow, wf.inputs
    if not isinstance(wf, Workflow):
        raise _no_workflow(wf)
    taken = sorted(RUN_OPTIONS & wf.parameters.keys())
    if taken:
        raise UsageError(
            f"workflow {wf.name!r} has inputs named like options of run: {', '.join(taken)}",
            remedy=f"Pass them by bind: run({wf.name}.bind({taken[0]}=…))",
        )
    return wf, inputs


def meant(wf: Workflow[..., R] | None, header: RunHeader) -> Workflow[..., R]:
    """The workflow to go on with a run: the one given, else the run's, found by its name.

    Raises:
        UsageError: It is no workflow, or several have the name.
        WorkflowNotFound: None has the name.
    """
    if wf is None:
        return known(header)
    if isinstance(wf, BoundWorkflow):
        raise UsageError(
            "the workflow is bound to inputs, and the run has its own",
            run_id=header.run_id,
            remedy="Pass the workflow itself; run(…, resume_run_id=…) and fork(inputs=…) take inputs",
        )
    if not isinstance(wf, Workflow):
        raise _no_workflow(wf)
    return wf


def known(header: RunHeader) -> Workflow[..., Any]:
    """The workflow of a run, among those that this process has defined.

    Raises:
        WorkflowNotFound: None has its name.
        UsageError: Several have.
    """
    found = registered(header.workflow)
    if len(found) == 1:
        return found[0]
    if found:
        places = ", ".join(f"{one.fn.__module__}.{one.fn.__qualname__}" for one in found)
        raise UsageError(
            f"several workflows are named {header.workflow!r}: {places}",
            run_id=header.run_id,
            remedy="Pass the one that is meant, or give them names of their own",
        )
    raise WorkflowNotFound(
        f"no workflow named {header.workflow!r} is defined in this process",
        run_id=header.run_id,
        remedy="Import its module first (--workflows MODULE, DURABLE_WORKFLOWS), or pass the workflow",
    )


def _no_workflow(given: object) -> UsageError:
    return UsageError(f"{given!r} is no workflow", remedy="Mark the function with @workflow")


def run_here(call: Coroutine[Any, Any, R], verb: str) -> R:
    """Runs an executor's coroutine for plain code.

    Args:
        call: The coroutine.
        verb: The method it is of, for the message.

    Raises:
        RunningLoop: An event loop runs in this thread, which a blocking call would stop.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass  # and over: what the run raises mustn't be told as raised while this was handled
    else:
        call.close()
        raise RunningLoop(
            f"the blocking form of {verb} was called inside a running event loop (notebooks have one)",
            remedy=f"Write `await executor.{verb}(…)` instead",
        )
    return asyncio.run(call)


def run_id(workflow: Workflow[..., Any], chosen: str | None, clock: Clock) -> str:
    """The id of a new run: the one that was chosen, or one made up.

    Raises:
        InvalidId: It can't be one.
    """
    if chosen is not None:
        return check_id(chosen, "run id")
    return new_run_id(workflow.name, rfc3339(clock.now_ms()))
