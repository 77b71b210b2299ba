"""What functions are asked: by a direct call, over HTTP, or through EventBridge."""

from __future__ import annotations

import base64
import binascii
import json
from typing import TYPE_CHECKING, Annotated, Any, Generic, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from durable_core.errors import InvalidEvent

if TYPE_CHECKING:
    from collections.abc import Mapping

R = TypeVar("R", bound=BaseModel)


class _Request(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class StartRequest(_Request):
    """Start a run.

    Attributes:
        workflow: Its name.
        inputs: By name, as JSON; converted as the workflow's annotations say.
        run_id: The same id starts the same run; made from the delivery's own id when None, so that a request
            that is delivered twice starts one.
        session_id: Under which agent checkpoints are kept.
    """

    workflow: str
    inputs: dict[str, Any] = {}
    run_id: str | None = None
    session_id: str | None = None


class SignalRequest(_Request):
    """Send an event to a run, or cancel it.

    Attributes:
        run_id: The run.
        event: What it waits for.
        payload: As JSON.
        event_id: The same id is the same event; the delivery's own id when None.
        early: Also if there is no such run yet.
        cancel: Cancel it instead.
    """

    run_id: str
    event: str | None = None
    payload: Any = None
    event_id: str | None = None
    early: bool = False
    cancel: bool = False

    @model_validator(mode="after")
    def _one_of_both(self) -> SignalRequest:
        if (self.event is None) != self.cancel:
            raise ValueError("give either `event` or `cancel: true`")
        return self


class InspectRequest(_Request):
    """Look at a run.

    Attributes:
        run_id: The run.
        steps: How many of its steps are told, in the order in which they were begun; 0: none.
        after: The last step of the page before.
        within: Only steps whose ids begin so: a branch, or an item of a map.
    """

    run_id: str
    steps: Annotated[int, Field(ge=0, le=1000)] = 100
    after: str | None = None
    within: str = ""


class Asked(NamedTuple, Generic[R]):
    """A request, and how it came.

    Attributes:
        request: What is asked.
        delivery_id: The same for each delivery of the same request, as far as the trigger tells.
        over_http: Whether an HTTP answer is expected.
    """

    request: R
    delivery_id: str | None
    over_http: bool


def is_http(event: object) -> bool:
    """Whether an event is a request of an HTTP API (payload format 2.0)."""
    context = event.get("requestContext") if isinstance(event, dict) else None
    return isinstance(context, dict) and "http" in context


def asked(event: object, model: type[R], request_id: str | None) -> Asked[R]:
    """Reads a request.

    Args:
        event: As the function was called with it.
        model: What is asked.
        request_id: Of the invocation: the same when Lambda tries an asynchronous call again.

    Raises:
        InvalidEvent: It can't be understood; neither the text nor its values are repeated.
    """
    if not isinstance(event, dict):
        raise InvalidEvent("the event is no JSON object")
    over_http, delivery_id = is_http(event), request_id
    if over_http:
        found = _body(event)
    elif "detail-type" in event and "detail" in event:
        found, delivery_id = event["detail"], event.get("id") or request_id
    else:
        found = event
    if not isinstance(found, dict):
        raise InvalidEvent("the request is no JSON object")
    try:
        return Asked(model.model_validate(found), delivery_id, over_http)
    except ValidationError as error:
        raise InvalidEvent(f"the request can't be understood: {told_by(error)}") from None


def parsed_json(text: object) -> Any:
    """JSON, from outside.

    Raises:
        InvalidEvent: It is none.
    """
    if not isinstance(text, str | bytes):
        raise InvalidEvent("text was expected that is JSON")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        place = (
            f"line {error.lineno}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else ""
        )
        raise InvalidEvent(f"the text is no JSON{place and f' ({place})'}") from None


def told_by(error: ValidationError) -> str:
    """What is wrong with a request, by place; without the values."""
    found = [(".".join(map(str, one["loc"])), one["msg"]) for one in error.errors()]
    return "; ".join(f"{place}: {message}" if place else message for place, message in found)


def _body(event: Mapping[str, Any]) -> Any:
    """The body of an HTTP request; what its path names comes in addition."""
    text = event.get("body") or "{}"
    if event.get("isBase64Encoded"):
        try:
            text = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError, TypeError):
            raise InvalidEvent("the body isn't base64, as the request says") from None
    found = parsed_json(text)
    named = event.get("pathParameters")
    return {**found, **named} if isinstance(found, dict) and isinstance(named, dict) else found
