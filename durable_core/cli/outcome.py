"""How a command ends: which error gives which exit code, and how it is told.

0 done   1 run failed   2 usage   3 not found   4 busy   5 not finished   6 corrupt   7 store unavailable
70 a defect of durable itself   130 interrupted (Ctrl-C)   143 terminated (SIGTERM)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from durable_core.cli import output
from durable_core.cli.jsonable import as_document
from durable_core.errors import (
    CheckpointNotFound,
    CorruptRecord,
    DeadlineReached,
    DurableError,
    Fenced,
    InputNotSerializable,
    JournalUnavailable,
    RunBusy,
    RunEnded,
    RunFailed,
    RunInputMismatch,
    RunNotFinished,
    RunNotFound,
    RunPruned,
    StepNotFound,
    StoreMisconfigured,
    StoreNotFound,
    UsageError,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

DONE: Final = 0
RUN_FAILED: Final = 1
USAGE: Final = 2
NOT_FOUND: Final = 3
BUSY: Final = 4
NOT_FINISHED: Final = 5
CORRUPT: Final = 6
UNAVAILABLE: Final = 7
DEFECT: Final = 70
INTERRUPTED: Final = 130
TERMINATED: Final = 143


class Defect(DurableError):
    """An exception that no part of the package should let out."""

    code = "DEFECT"


class Stopped(DurableError):
    """The process was asked to stop while it drove or awaited a run.

    Attributes:
        exit_code: 130 for Ctrl-C, 143 for SIGTERM.
    """

    code = "INTERRUPTED"
    retryable = True

    def __init__(self, message: str, *, run_id: str, remedy: str, exit_code: int) -> None:
        super().__init__(message, run_id=run_id, remedy=remedy)
        self.exit_code = exit_code


class BrokenModule(UsageError):
    """A user's module could not be imported: it raised.

    Attributes:
        traceback: Of the user's own frames.
    """

    code = "MODULE_BROKEN"

    def __init__(self, message: str, *, traceback: str, remedy: str) -> None:
        super().__init__(message, remedy=remedy)
        self.traceback = traceback


class FailedRun(RunFailed):
    """A failed run, as the command line tells of it.

    Attributes:
        steps: Ids of the failed steps that it came from.
        traceback: To be shown; None when nobody asked for it.
    """

    def __init__(
        self, failed: RunFailed, *, steps: Sequence[str], traceback: str | None, remedy: str
    ) -> None:
        super().__init__(failed.run_id or "", failed.error, remedy=remedy)
        self.step_id = steps[0] if len(steps) == 1 else None
        self.steps = list(steps)
        self.traceback = traceback


_CODES: Final[tuple[tuple[type[DurableError], int], ...]] = (
    (UsageError, USAGE),
    (RunInputMismatch, USAGE),
    (InputNotSerializable, USAGE),
    (RunEnded, USAGE),
    (Defect, DEFECT),
    (RunNotFound, NOT_FOUND),
    (StepNotFound, NOT_FOUND),
    (CheckpointNotFound, NOT_FOUND),
    (StoreNotFound, NOT_FOUND),
    (RunBusy, BUSY),
    (RunPruned, BUSY),
    (Fenced, BUSY),  # somebody else drives it by now
    (RunNotFinished, NOT_FINISHED),
    (DeadlineReached, NOT_FINISHED),
    (CorruptRecord, CORRUPT),
    (JournalUnavailable, UNAVAILABLE),
    (StoreMisconfigured, UNAVAILABLE),
)


def exit_code(error: DurableError) -> int:
    """The exit code of a command that ended with this error."""
    if isinstance(error, Stopped):
        return error.exit_code
    return next((code for kind, code in _CODES if isinstance(error, kind)), RUN_FAILED)


def tell_error(error: DurableError, *, as_json: bool) -> None:
    """Tells of the error: one JSON document on standard output, or lines on standard error."""
    if as_json:
        output.write(as_document({"error": error_document(error)}))
        return
    if isinstance(error, FailedRun):
        _tell_failure(error)
    else:
        output.tell(f"Error: {_indented(str(error))}")
    if isinstance(error, FailedRun | BrokenModule) and error.traceback:
        output.tell(output.clean_lines(error.traceback).rstrip("\n"))


def error_document(error: DurableError) -> dict[str, object]:
    """The error as `--json` gives it."""
    return {
        "code": error.code,
        "message": error.message,
        "remedy": error.remedy,
        "run_id": error.run_id,
        "step_id": error.step_id,
    }


def _tell_failure(failed: FailedRun) -> None:
    output.tell(f"Error: {_indented(failed.message)}")
    output.tell(f"Run: {output.clean(failed.run_id)}")
    steps = [step_id for step_id in failed.steps if not step_id.rpartition("/")[2].startswith("!")]
    if steps:  # without the joins that failed with them, which are shown nowhere as steps
        output.tell(f"Failed steps: {output.clean(', '.join(steps))}")
    output.tell(output.clean(failed.remedy))


def _indented(text: str) -> str:
    return output.clean_lines(text).rstrip("\n").replace("\n", "\n  ")
