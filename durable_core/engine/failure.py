"""Exceptions as the journal keeps them: for people, and so that a failure replays as it happened."""

from __future__ import annotations

import json
import traceback
from typing import TYPE_CHECKING, Any, Final

from durable_core.errors import (
    BranchFailed,
    CrashLimitReached,
    DurableError,
    EventInvalid,
    EventTimeout,
    MapFailed,
    StepFailed,
)

if TYPE_CHECKING:
    from durable_core.records import StepRecord

MAX_MESSAGE_CHARS: Final = 4_000
MAX_TRACEBACK_CHARS: Final = 16_000
ERROR_PARTS: Final = ("code", "type", "message", "traceback")
USER_ERROR: Final = "ERROR"
_KINDS: Final[dict[str, type[StepFailed]]] = {
    kind.code: kind for kind in (CrashLimitReached, EventInvalid, EventTimeout, MapFailed)
}


def described(error: BaseException) -> dict[str, str]:
    """Code, type name, message and traceback text of an exception, whatever it does when asked for them."""
    return {
        "code": error.code if isinstance(error, DurableError) else USER_ERROR,
        "type": type(error).__qualname__,
        "message": _cut(_told_by(error), MAX_MESSAGE_CHARS),
        "traceback": _cut(_traceback(error), MAX_TRACEBACK_CHARS),
    }


def as_json(value: Any) -> str:
    """A JSON column's text."""
    return json.dumps(value, separators=(",", ":"))


def replayed(record: StepRecord) -> StepFailed:
    """The failure that a FAILED record stands for."""
    error = record.error_info()
    kind = _KINDS.get(error.get("code", ""), StepFailed)
    return kind(record.run_id, record.step_id, error)


def escaped_steps(error: BaseException, run_id: str) -> list[str]:
    """The ids of the failed steps that an exception comes from: along causes, contexts and groups."""
    found: dict[str, None] = {}
    visited: list[BaseException] = []  # held, so that no id() is used twice
    known: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        exception = waiting.pop()
        if exception is None or id(exception) in known:
            continue
        known.add(id(exception))
        visited.append(exception)
        if isinstance(exception, StepFailed | BranchFailed) and exception.run_id == run_id:
            failed_id = exception.step_id if isinstance(exception, StepFailed) else exception.join_id
            if failed_id is not None:
                found[failed_id] = None
        # What a step failed in the handling of was caught and dealt with, and so it is with a branch. What
        # any other exception was raised in the handling of came with it.
        if not isinstance(exception, StepFailed):
            waiting.append(exception.__cause__)
            if not isinstance(exception, BranchFailed):
                waiting.append(exception.__context__)
        if isinstance(exception, BaseExceptionGroup):
            waiting += exception.exceptions
    return list(found)


def _told_by(error: BaseException) -> str:
    """Its message; of ours without the run, which whoever shows it names."""
    if not isinstance(error, DurableError):
        return _said_by(error)
    where = f" (step {error.step_id!r})" if error.step_id is not None else ""
    return f"{error.message}{where}. {error.remedy}" if error.remedy else f"{error.message}{where}"


def _said_by(error: BaseException) -> str:
    try:
        return str(error)
    except (
        Exception
    ) as failure:  # a user's __str__ may raise anything, and the failure must be recorded all the same
        return f"(its message can't be shown: {type(failure).__qualname__})"


def _traceback(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(error))
    except Exception:  # as above: formatting calls the user's __str__ and __repr__
        return "".join(traceback.format_tb(error.__traceback__))


def _cut(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"
