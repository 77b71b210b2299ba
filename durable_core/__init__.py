"""Durable batch runs: plain Python steps that survive crashes, and resume from the last committed one."""

from durable_core.checkpointer import (
    AsyncCheckpointer,
    Checkpoint,
    Checkpointer,
    Difference,
    Inputs,
    Pruned,
    Replay,
    checkpointed,
    failed_saves,
    get_checkpointer,
    save_checkpoint_if_enabled,
)
from durable_core.context import Context
from durable_core.current import StepInfo, current_step
from durable_core.engine.chunk_result import ChunkResult
from durable_core.engine.dispatch import Dispatch
from durable_core.engine.executor import DurableWorkflowExecutor
from durable_core.engine.results import RunResult, RunView, StepView
from durable_core.errors import (
    AmbiguousStep,
    BranchFailed,
    CheckpointNotFound,
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
    StateNotSerializable,
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
from durable_core.settings import CheckpointingConfig, load_config
from durable_core.step_definition import Done, NotDone, Step, StepOptions, step
from durable_core.sync_context import SyncContext
from durable_core.workflow import BoundWorkflow, Workflow, workflow

__all__ = [
    "AmbiguousStep",
    "AsyncCheckpointer",
    "BoundWorkflow",
    "BranchFailed",
    "Checkpoint",
    "CheckpointNotFound",
    "Checkpointer",
    "CheckpointingConfig",
    "ChunkResult",
    "Context",
    "CorruptRecord",
    "CrashLimitReached",
    "DeadlineReached",
    "Difference",
    "Dispatch",
    "Done",
    "DurableError",
    "DurableWorkflowExecutor",
    "EventInvalid",
    "EventTimeout",
    "Fenced",
    "InputNotSerializable",
    "Inputs",
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
    "Pruned",
    "Rate",
    "Replay",
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
    "StateNotSerializable",
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
    "checkpointed",
    "configure_logging",
    "current_step",
    "failed_saves",
    "get_checkpointer",
    "load_config",
    "save_checkpoint_if_enabled",
    "step",
    "workflow",
]


def __getattr__(name: str) -> str:
    if name == "__version__":  # read when asked for: pyproject.toml is the only place that states it
        from importlib.metadata import version

        return version("durable-core")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
