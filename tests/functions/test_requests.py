"""What `start_run`, `signal_run` and `inspect_run` are asked: directly, over HTTP, through EventBridge."""

from __future__ import annotations

import base64
import json
import random
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from durable_core.aws.start import start_handler
from durable_core.errors import (
    InvalidEvent,
    InvalidId,
    RunInputMismatch,
    RunNotFound,
    UsageError,
    WorkflowNotFound,
)
from tests.lambda_place import DONE, JOBS, Context, Deployment, batch


def http(body: Any, *, encoded: bool = False, **path: str) -> dict[str, Any]:
    """A request of an HTTP API, payload format 2.0."""
    text = body if isinstance(body, str) else json.dumps(body)
    event: dict[str, Any] = {
        "version": "2.0",
        "routeKey": "POST /runs",
        "rawPath": "/runs",
        "rawQueryString": "",
        "headers": {"content-type": "application/json"},
        "requestContext": {"http": {"method": "POST", "path": "/runs"}, "requestId": "http-1"},
        "isBase64Encoded": encoded,
    }
    if path:
        event["pathParameters"] = path
    if text:
        event["body"] = base64.b64encode(text.encode()).decode() if encoded else text
    return event


def bus(detail: Any, event_id: str) -> dict[str, Any]:
    """An event as EventBridge delivers it."""
    return {
        "version": "0",
        "id": event_id,
        "detail-type": "durable.start",
        "source": "us",
        "time": "2026-01-02T03:04:05Z",
        "region": "us-east-1",
        "resources": [],
        "detail": detail,
    }


def body_of(answer: dict[str, Any]) -> Any:
    assert set(answer) == {"statusCode", "headers", "body", "isBase64Encoded"}
    assert answer["headers"]["content-type"] == "application/json"
    return json.loads(answer["body"])


# ---- start_run ----


@pytest.mark.parametrize("encoded", [False, True], ids=["text", "base64"])
def test_a_run_is_started_over_http(deployment: Deployment, encoded: bool) -> None:
    run_id = f"http-{encoded}"
    asked = {"workflow": "doubled", "inputs": {"numbers": [1, 2]}, "run_id": run_id}
    answer = deployment.start(http(asked, encoded=encoded), Context())
    assert answer["statusCode"] == 202
    assert body_of(answer) == {"run_id": run_id, "workflow": "doubled", "status": "PENDING"}
    assert deployment.driven() == []
    answer = deployment.start(http(asked, encoded=encoded), Context())
    assert (answer["statusCode"], body_of(answer)["status"]) == (200, "COMPLETED")
    assert deployment.sent() == []  # it is over: nobody has to be told


def test_a_run_is_started_through_eventbridge_once_for_each_event(deployment: Deployment) -> None:
    asked = {"workflow": "doubled", "inputs": {"numbers": []}}
    runs = {deployment.start(bus(asked, event_id), Context())["run_id"] for event_id in ("e1", "e1", "e2")}
    assert runs == {"doubled-e1", "doubled-e2"}


def test_an_asynchronous_call_that_lambda_tries_again_starts_one_run(deployment: Deployment) -> None:
    asked = {"workflow": "doubled", "inputs": {"numbers": []}}
    request_id = str(uuid.uuid4())
    runs = {deployment.start(asked, Context(request_id=request_id))["run_id"] for _ in range(3)}
    assert runs == {f"doubled-{request_id}"}
    assert len({deployment.start(asked, Context())["run_id"] for _ in range(2)}) == 2


def test_a_run_without_any_id_to_go_by_gets_one_of_its_own(deployment: Deployment) -> None:
    asked = {"workflow": "doubled", "inputs": {"numbers": []}}
    runs = [deployment.start(asked, None)["run_id"] for _ in range(2)]
    assert len(set(runs)) == 2


def test_one_id_started_twenty_times_at_once_is_one_run(deployment: Deployment) -> None:
    asked = {"workflow": "doubled", "inputs": {"numbers": [1]}, "run_id": "twenty"}
    handlers = [deployment.handler(lambda: start_handler(workflows=JOBS)) for _ in range(2)]
    gate = threading.Barrier(20)

    def start(n: int) -> dict[str, Any]:
        gate.wait()
        answer: dict[str, Any] = handlers[n % 2](asked, Context())
        return answer

    with ThreadPoolExecutor(20) as threads:
        answers = list(threads.map(start, range(20)))
    assert answers == [{"run_id": "twenty", "workflow": "doubled", "status": "PENDING"}] * 20
    while sent := deployment.sent():
        assert deployment.drive(batch(*sent), Context()) == DONE
    seen = deployment.inspect({"run_id": "twenty"}, Context())
    assert (seen["status"], seen["fence"]) == ("COMPLETED", 1)
    assert [told["status"] for told in deployment.told()] == ["COMPLETED"]


def test_inputs_are_what_the_annotations_say_however_they_came(deployment: Deployment) -> None:
    asked = {"workflow": "doubled", "inputs": {"numbers": ["1", 2.0]}, "run_id": "converted"}
    deployment.start(asked, Context())
    same = {"workflow": "doubled", "inputs": {"numbers": [1, 2]}, "run_id": "converted"}
    assert deployment.start(same, Context())["run_id"] == "converted"


@pytest.mark.parametrize("size", [300_000, 5_900_000], ids=["300 KB", "5.9 MB"])
def test_large_inputs_go_to_s3_and_the_message_stays_small(deployment: Deployment, size: int) -> None:
    run_id, text = f"large-{size}", random.Random(7).randbytes(size // 2).hex()
    assert deployment.started(run_id, "measured", text=text) == run_id
    (message,) = deployment.received(deployment.drive_queue)
    assert len(message["Body"]) < 200
    item = deployment.ask(
        "dynamodb",
        "get_item",
        {"TableName": deployment.table, "Key": {"pk": {"S": f"RUN#{run_id}"}, "sk": {"S": "RUN"}}},
    )["Item"]
    assert "input_data" not in item
    assert item["input_ref"]["S"].startswith(f"runs/{run_id}/")
    assert deployment.drive(batch(json.loads(message["Body"])), Context()) == DONE
    seen = deployment.inspect({"run_id": run_id}, Context())
    assert (seen["status"], seen["counts"]) == ("COMPLETED", {"COMMITTED": 1})


REFUSED: dict[str, tuple[Any, type[Exception], int, str]] = {
    "no JSON": ("{", InvalidEvent, 400, "INVALID_EVENT"),
    "a list": ("[]", InvalidEvent, 400, "INVALID_EVENT"),
    "nothing": ("", InvalidEvent, 400, "INVALID_EVENT"),
    "no workflow": ({"inputs": {}}, InvalidEvent, 400, "INVALID_EVENT"),
    "an unknown field": ({"workflow": "doubled", "input": {}}, InvalidEvent, 400, "INVALID_EVENT"),
    "inputs that are a list": ({"workflow": "doubled", "inputs": []}, InvalidEvent, 400, "INVALID_EVENT"),
    "an unknown workflow": ({"workflow": "none"}, WorkflowNotFound, 404, "WORKFLOW_NOT_FOUND"),
    "a missing input": ({"workflow": "doubled"}, UsageError, 400, "USAGE"),
    "an input of another type": (
        {"workflow": "doubled", "inputs": {"numbers": "SECRET-7"}},
        UsageError,
        400,
        "USAGE",
    ),
    "an empty run id": (
        {"workflow": "doubled", "inputs": {"numbers": []}, "run_id": ""},
        InvalidId,
        400,
        "INVALID_ID",
    ),
    "a run id that is a path": (
        {"workflow": "doubled", "inputs": {"numbers": []}, "run_id": "../x"},
        InvalidId,
        400,
        "INVALID_ID",
    ),
    "an id that is taken": (
        {"workflow": "doubled", "inputs": {"numbers": [9]}, "run_id": "taken"},
        RunInputMismatch,
        409,
        "RUN_INPUT_MISMATCH",
    ),
}


@pytest.mark.parametrize(("asked", "error", "status", "code"), REFUSED.values(), ids=REFUSED.keys())
def test_a_request_that_cant_be_met_is_refused_in_the_way_in_which_it_came(
    deployment: Deployment, asked: Any, error: type[Exception], status: int, code: str
) -> None:
    deployment.started("taken", "doubled", numbers=[1])
    deployment.sent()
    answer = deployment.start(http(asked), Context())
    assert answer["statusCode"] == status
    told = body_of(answer)["error"]
    assert told["code"] == code
    assert "SECRET-7" not in answer["body"]
    if isinstance(asked, dict):
        with pytest.raises(error):
            deployment.start(asked, Context())
        with pytest.raises(error):
            deployment.start(bus(asked, "e9"), Context())
    assert deployment.sent() == []


@pytest.mark.parametrize("event", [None, [], "text", 7, {"detail-type": "x", "detail": 7}])
def test_what_is_no_request_is_refused(deployment: Deployment, event: Any) -> None:
    with pytest.raises(InvalidEvent):
        deployment.start(event, Context())
    with pytest.raises(InvalidEvent):
        deployment.signal(event, Context())
    with pytest.raises(InvalidEvent):
        deployment.inspect(event, Context())


def test_a_body_that_isnt_base64_as_it_says_is_refused(deployment: Deployment) -> None:
    event = http({"workflow": "doubled"}) | {"isBase64Encoded": True}
    assert deployment.start(event, Context())["statusCode"] == 400


def test_a_store_out_of_reach_is_503_and_to_be_tried_again(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = deployment.environment["DURABLE_STORE"].replace(deployment.cloud.endpoint, "http://127.0.0.1:9")
    monkeypatch.setenv("DURABLE_STORE", nowhere)
    start = deployment.handler(lambda: start_handler(workflows=JOBS))
    answer = start(http({"workflow": "doubled", "inputs": {"numbers": []}, "run_id": "r"}), Context())
    assert answer["statusCode"] == 503
    assert int(answer["headers"]["retry-after"]) > 0
    assert body_of(answer)["error"]["code"] == "JOURNAL_UNAVAILABLE"


def test_a_defect_is_500_and_tells_nothing_of_itself(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    secret = "-".join(("SECRET", "7"))  # not as it would stand in a line of code

    async def broken(*_: object, **__: object) -> None:
        raise RuntimeError(secret)

    monkeypatch.setattr(deployment.start.sandbox.executor, "start", broken)
    asked = {"workflow": "doubled", "inputs": {"numbers": []}}
    answer = deployment.start(http(asked), Context())
    assert answer["statusCode"] == 500
    told = capfd.readouterr()
    assert "request_failed" in told.err
    assert secret not in answer["body"] + told.err + told.out


# ---- signal_run ----


def test_an_event_is_sent_over_http_and_through_eventbridge_once_for_each_delivery(
    deployment: Deployment,
) -> None:
    deployment.started("signalled", "approved")
    deployment.driven()
    asked = {"event": "approval", "payload": {"ok": False}}
    answer = deployment.signal(http(asked, run_id="signalled"), Context(request_id="once"))
    assert (answer["statusCode"], body_of(answer)["event_id"]) == (202, "once")
    again = deployment.signal(bus({**asked, "run_id": "signalled"}, "once"), Context())
    assert again["event_id"] == "once"  # the same event: it is there once
    events = deployment.ask(
        "dynamodb",
        "query",
        {
            "TableName": deployment.table,
            "KeyConditionExpression": "pk = :pk AND begins_with(sk, :sk)",
            "ExpressionAttributeValues": {":pk": {"S": "RUN#signalled"}, ":sk": {"S": "EVENT#"}},
        },
    )["Items"]
    assert len(events) == 1
    assert deployment.sent() == [{"kind": "drive", "run_id": "signalled"}] * 2


def test_a_run_is_cancelled_and_told_of_once(deployment: Deployment) -> None:
    deployment.started("cancelled", "approved")
    deployment.driven()
    deployment.told()
    for _ in range(2):
        answer = deployment.signal(http({"cancel": True}, run_id="cancelled"), Context())
        assert (answer["statusCode"], body_of(answer)["status"]) == (200, "CANCELLED")
    assert [told["status"] for told in deployment.told()] == ["CANCELLED"]
    assert deployment.drive(batch({"run_id": "cancelled"}), Context()) == DONE
    assert deployment.status("cancelled") == "CANCELLED"


@pytest.mark.parametrize(
    ("asked", "status", "code"),
    [
        ({"run_id": "none", "event": "x"}, 404, "RUN_NOT_FOUND"),
        ({"run_id": "none", "cancel": True}, 404, "RUN_NOT_FOUND"),
        ({"run_id": "over", "event": "x"}, 409, "RUN_ENDED"),
        ({"run_id": "over"}, 400, "INVALID_EVENT"),
        ({"run_id": "over", "event": "x", "cancel": True}, 400, "INVALID_EVENT"),
        ({"run_id": "over", "event": "a/b"}, 400, "INVALID_ID"),
        ({"run_id": "over", "event": "x", "event_id": ""}, 400, "INVALID_ID"),
        ({"event": "x"}, 400, "INVALID_EVENT"),
    ],
)
def test_a_signal_that_cant_be_sent_is_refused(
    deployment: Deployment, asked: dict[str, Any], status: int, code: str
) -> None:
    deployment.started("over", "doubled", numbers=[])
    if sent := deployment.sent():
        deployment.drive(batch(*sent), Context())
    answer = deployment.signal(http(asked), Context())
    assert (answer["statusCode"], body_of(answer)["error"]["code"]) == (status, code)


def test_an_event_may_come_before_its_run(deployment: Deployment) -> None:
    asked = {"run_id": "early", "event": "approval", "payload": {"ok": True}, "early": True}
    deployment.signal(asked, Context())
    deployment.started("early", "approved")
    assert deployment.driven() == []
    assert deployment.status("early") == "COMPLETED"


# ---- inspect_run ----


def test_a_run_is_looked_at_page_by_page(deployment: Deployment) -> None:
    deployment.started("pages", "doubled", numbers=list(range(5)))
    deployment.driven()
    found: list[str] = []
    asked: dict[str, Any] = {"run_id": "pages", "steps": 2}
    while True:
        page = deployment.inspect(asked, Context())
        found += [one["step_id"] for one in page["steps"]]
        if page["next"] is None:
            break
        asked["after"] = page["next"]
    assert found == ["double", "double#2", "double#3", "double#4", "double#5"]


def test_what_failed_is_told_without_its_traceback(deployment: Deployment) -> None:
    deployment.started("told-of", "fails")
    deployment.driven()
    seen = deployment.inspect({"run_id": "told-of"}, Context())
    assert seen["status"] == "FAILED"
    assert seen["error"] == {"code": "STEP_FAILED", "type": "StepFailed", "message": seen["error"]["message"]}
    (told,) = seen["steps"]
    assert (told["status"], told["error"]["type"], set(told["error"])) == (
        "FAILED",
        "ValueError",
        {"code", "type", "message"},
    )
    json.dumps(seen)


def test_a_run_that_isnt_there_is_said_so(deployment: Deployment) -> None:
    with pytest.raises(RunNotFound):
        deployment.inspect({"run_id": "none"}, Context())
