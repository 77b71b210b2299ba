"""Durable batch runs: plain Python steps that survive crashes, and resume from the last committed one."""

from durable_core.context import Context
from durable_core.current import StepInfo, current_step
from durable_core.engine.executor import DurableWorkflowExecutor
from durable_core.engine.results import RunResult, RunView, StepView
from durable_core.errors import (
    AmbiguousStep,
    BranchFailed,
    CorruptRecord,
    CrashLimitReached,
    DeadlineReached,
    DurableError,
    EventInvalid,
    EventTimeout,
    Fenced,
    InputNotSerializable,
    ItemsFailed,
    JournalUnavailable,
    ManifestError,
    MapFailed,
    MissingBlob,
    OutputNotSerializable,
    OutputTooLarge,
    RunBusy,
    RunCancelled,
    RunEnded,
    RunFailed,
    RunInputMismatch,
    RunNotFinished,
    RunNotFound,
    RunPruned,
    StepFailed,
    StepInDoubt,
    StepMismatch,
    StepTimedOut,
    UsageError,
)
from durable_core.log import add_run_context, configure_logging
from durable_core.manifest import Jsonl
from durable_core.map_result import ItemResult, MapOutputs, MapResult
from durable_core.rate import Rate
from durable_core.retry import Retry, RetryLater
from durable_core.step_definition import Done, NotDone, Step, StepOptions, step
from durable_core.sync_context import SyncContext
from durable_core.workflow import BoundWorkflow, Workflow, workflow

__all__ = [
    "AmbiguousStep",
    "BoundWorkflow",
    "BranchFailed",
    "Context",
    "CorruptRecord",
    "CrashLimitReached",
    "DeadlineReached",
    "Done",
    "DurableError",
    "DurableWorkflowExecutor",
    "EventInvalid",
    "EventTimeout",
    "Fenced",
    "InputNotSerializable",
    "ItemResult",
    "ItemsFailed",
    "JournalUnavailable",
    "Jsonl",
    "ManifestError",
    "MapFailed",
    "MapOutputs",
    "MapResult",
    "MissingBlob",
    "NotDone",
    "OutputNotSerializable",
    "OutputTooLarge",
    "Rate",
    "Retry",
    "RetryLater",
    "RunBusy",
    "RunCancelled",
    "RunEnded",
    "RunFailed",
    "RunInputMismatch",
    "RunNotFinished",
    "RunNotFound",
    "RunPruned",
    "RunResult",
    "RunView",
    "Step",
    "StepFailed",
    "StepInDoubt",
    "StepInfo",
    "StepMismatch",
    "StepOptions",
    "StepTimedOut",
    "StepView",
    "SyncContext",
    "UsageError",
    "Workflow",
    "add_run_context",
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
