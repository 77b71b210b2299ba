"""What functions answer: to a direct call the result or the error itself, over HTTP a status and JSON."""

from __future__ import annotations

import json
import traceback
from typing import TYPE_CHECKING, Any, Final

from durable_core.aws.requests import is_http
from durable_core.errors import (
    DurableError,
    JournalUnavailable,
    NotSerializable,
    RunBusy,
    RunEnded,
    RunInputMismatch,
    RunNotFound,
    RunPruned,
    StepNotFound,
    UsageError,
    WorkflowNotFound,
)
from durable_core.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Awaitable

# The first that fits.
_STATUS: Final[tuple[tuple[type[DurableError], int], ...]] = (
    (WorkflowNotFound, 404),
    (RunNotFound, 404),
    (StepNotFound, 404),
    (UsageError, 400),
    (NotSerializable, 400),
    (RunInputMismatch, 409),
    (RunBusy, 409),
    (RunPruned, 409),
    (RunEnded, 409),
    (JournalUnavailable, 503),
)
_TRY_AGAIN_AFTER_S: Final = "5"


async def answer(event: object, work: Awaitable[tuple[int, dict[str, Any]]]) -> dict[str, Any]:
    """Does the work, and answers in the way in which was asked.

    Args:
        event: What the function was called with.
        work: Gives the HTTP status and the document.

    Raises:
        DurableError: In a direct call, what went wrong.
    """
    if not is_http(event):
        return (await work)[1]
    try:
        status, document = await work
    except DurableError as error:
        get_logger("durable_core").warning("request_refused", code=error.code, run_id=error.run_id)
        return _refusal(error)
    except Exception as error:  # a defect of ours: told without its text, in which payloads may be
        where = "".join(traceback.format_tb(error.__traceback__))
        get_logger("durable_core").error("request_failed", error=type(error).__qualname__, traceback=where)
        return _http(500, {"error": {"code": "INTERNAL", "message": "something went wrong here"}})
    return _http(status, document)


def _refusal(error: DurableError) -> dict[str, Any]:
    status = next((status for kind, status in _STATUS if isinstance(error, kind)), 500)
    told = {"code": error.code, "message": error.message, "run_id": error.run_id, "remedy": error.remedy}
    answer = _http(status, {"error": {name: value for name, value in told.items() if value is not None}})
    if error.retryable:
        answer["headers"]["retry-after"] = _TRY_AGAIN_AFTER_S
    return answer


def _http(status: int, document: dict[str, Any]) -> dict[str, Any]:
    return {
        "statusCode": status,
        "headers": {"content-type": "application/json"},
        "body": json.dumps(document, separators=(",", ":")),
        "isBase64Encoded": False,
    }
