"""Durable batch runs: plain Python steps that survive crashes, and resume from the last committed one."""

from durable_core.context import Context
from durable_core.current import StepInfo, current_step
from durable_core.engine.executor import DurableWorkflowExecutor
from durable_core.engine.results import RunResult, RunView, StepView
from durable_core.errors import DurableError
from durable_core.log import configure_logging
from durable_core.retry import Retry, RetryLater
from durable_core.step_definition import Done, NotDone, Step, StepOptions, step
from durable_core.sync_context import SyncContext
from durable_core.workflow import BoundWorkflow, Workflow, workflow

__all__ = [
    "BoundWorkflow",
    "Context",
    "Done",
    "DurableError",
    "DurableWorkflowExecutor",
    "NotDone",
    "Retry",
    "RetryLater",
    "RunResult",
    "RunView",
    "Step",
    "StepInfo",
    "StepOptions",
    "StepView",
    "SyncContext",
    "Workflow",
    "configure_logging",
    "current_step",
    "step",
    "workflow",
]


def __getattr__(name: str) -> str:
    if name == "__version__":  # read when asked for: pyproject.toml is the only place that states it
        from importlib.metadata import version

        return version("durable-core")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
