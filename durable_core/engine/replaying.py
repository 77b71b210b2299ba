"""Going through a run again by what is recorded of it: no body is run, and nothing is written."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from durable_core.engine import admission
from durable_core.engine.driver import drive
from durable_core.engine.results import RunResult, counts_of
from durable_core.records import COMPLETED

if TYPE_CHECKING:
    from durable_core.engine.drive import Tools
    from durable_core.records import RunHeader
    from durable_core.workflow import Workflow

R = TypeVar("R")


async def replay(
    tools: Tools, header: RunHeader, workflow: Workflow[..., R], *, keeps_changed: bool
) -> RunResult[R]:
    """Calls the workflow with the recorded inputs; each step gives its recorded outcome.

    Args:
        tools: The executor's.
        header: Of the run.
        workflow: As it is now.
        keeps_changed: Whether recorded outputs are used although their inputs have changed.

    Raises:
        StepNotFound: A step has no recorded outcome.
        RunFailed: The workflow fails.
        RunPruned, RunInputMismatch: The run is half gone, or of another workflow.
    """
    admission.check_not_pruned(header)
    admission.check_same(header, workflow, None)
    # As the next owner would see it, so that a step that somebody is in is one without an outcome. A failure
    # is replayed, where a resume would try again what it came from.
    seen = replace(header, fence=header.fence + 1, error=None, crashes=0)
    _, output = await drive(
        replace(tools, checkpointer=None, dispatch=None),
        admission.Admitted(seen),
        workflow,
        keeps_changed=keeps_changed,
        records_only=True,
    )
    tools.log.info("run_replayed", run_id=header.run_id, workflow=workflow.name, was=header.status)
    return RunResult(header.run_id, COMPLETED, output, counts_of(header))
