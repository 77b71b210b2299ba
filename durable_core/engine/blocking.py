"""The executor for plain code: every operation, blocking."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from durable_core.engine.calls import run_here

if TYPE_CHECKING:
    import builtins
    import os
    from collections.abc import Sequence

    from durable_core.engine.chunk_result import ChunkResult
    from durable_core.engine.driving import Driven
    from durable_core.engine.executor import DurableWorkflowExecutor
    from durable_core.engine.exporting import ExportedRun
    from durable_core.engine.findings import VerifyReport
    from durable_core.engine.forks import ForkPlan
    from durable_core.engine.importing import ImportedRun
    from durable_core.engine.results import RunResult, RunView, StepView
    from durable_core.engine.retention import PruneReport
    from durable_core.engine.sweeping import SweepReport
    from durable_core.workflow import BoundWorkflow, Workflow

R = TypeVar("R")


class BlockingExecutor:
    """The operations of an executor, with the same arguments, results and errors.

    Each raises `RunningLoop` inside a running event loop, which it would stop.
    """

    def __init__(self, executor: DurableWorkflowExecutor) -> None:
        self._executor = executor

    def run(self, wf: Workflow[..., R] | BoundWorkflow[R], **options: Any) -> RunResult[R]:
        """Runs a workflow to its end."""
        return run_here(self._executor.run(wf, **options), "run")

    def start(self, wf: Workflow[..., R] | BoundWorkflow[R], **options: Any) -> RunView:
        """Records a run for somebody else to drive."""
        return run_here(self._executor.start(wf, **options), "start")

    def resume(self, run_id: str, wf: Workflow[..., R] | None = None, **options: Any) -> RunResult[R]:
        """Goes on with a run."""
        return run_here(self._executor.resume(run_id, wf, **options), "resume")

    def get(self, run_id: str) -> RunView:
        """One run."""
        return run_here(self._executor.get(run_id), "get")

    def list(self, **wanted: Any) -> builtins.list[RunView]:
        """Runs, newest first."""
        return run_here(self._executor.list(**wanted), "list")

    def steps(self, run_id: str, **wanted: Any) -> builtins.list[StepView]:
        """The steps of a run."""
        return run_here(self._executor.steps(run_id, **wanted), "steps")

    def output(self, step: StepView) -> object:
        """The output of a step."""
        return run_here(step.output(), "output")

    def work_chunk(self, run_id: str, step_id: str, chunk: int, **options: Any) -> ChunkResult:
        """Works on one chunk of a map that several workers share."""
        return run_here(self._executor.work_chunk(run_id, step_id, chunk, **options), "work_chunk")

    def drive(self, run_id: str, **options: Any) -> Driven:
        """Drives a run that one was told of, for as long as there is time."""
        return run_here(self._executor.drive(run_id, **options), "drive")

    def signal(self, run_id: str, name: str, payload: object = None, **options: Any) -> str:
        """Sends an event to a run."""
        return run_here(self._executor.signal(run_id, name, payload, **options), "signal")

    def cancel(self, run_id: str) -> RunView:
        """Cancels a run."""
        return run_here(self._executor.cancel(run_id), "cancel")

    def skip(self, run_id: str, step_id: str, **options: Any) -> StepView:
        """Settles a step by hand."""
        return run_here(self._executor.skip(run_id, step_id, **options), "skip")

    def fork(self, run_id: str, **options: Any) -> ForkPlan:
        """Makes a new run from another's committed steps."""
        return run_here(self._executor.fork(run_id, **options), "fork")

    def prune(self, **wanted: Any) -> PruneReport:
        """Deletes runs that are over."""
        return run_here(self._executor.prune(**wanted), "prune")

    def sweep(self, **wanted: Any) -> SweepReport:
        """Takes what belongs to no run any more."""
        return run_here(self._executor.sweep(**wanted), "sweep")

    def close(self) -> None:
        """Gives connections and threads back."""
        run_here(self._executor.close(), "close")

    def verify(self, run_ids: str | Sequence[str] | None = None, **options: Any) -> VerifyReport:
        """Looks for damage."""
        return run_here(self._executor.verify(run_ids, **options), "verify")

    def replay(self, run_id: str, wf: Workflow[..., R] | None = None, **options: Any) -> RunResult[R]:
        """Goes through a run again by what is recorded."""
        return run_here(self._executor.replay(run_id, wf, **options), "replay")

    def export_run(self, run_id: str, path: str | os.PathLike[str], **options: Any) -> ExportedRun:
        """Writes a run into one file."""
        return run_here(self._executor.export_run(run_id, path, **options), "export_run")

    def import_run(self, path: str | os.PathLike[str], **options: Any) -> ImportedRun:
        """Takes a run in."""
        return run_here(self._executor.import_run(path, **options), "import_run")
