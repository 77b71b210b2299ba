"""What functions ask for is held against their roles: the comparison itself, on requests that are made up."""

from __future__ import annotations

from typing import Any

from durable_core.local.aws_endpoint import OWN_KEY, Calls
from durable_core.local.requests_seen import Asked
from tests.infra.rules import Template, statements
from tests.policies import UNSEEN, UNSEEN_OF, allowed, missing, unused

OUTPUTS = {
    "RunsTableRef": "runs",
    "OutputsBucketRef": "outputs",
    "DriveQueueRef": "https://sqs.example.invalid/1/drive",
    "WorkQueueRef": "https://sqs.example.invalid/1/work",
    "RequestDeadLettersRef": "https://sqs.example.invalid/1/letters",
    "EventBusRef": "bus",
    "ManifestBucketRef": "manifests",
}


def calls(function: str, *asked: Asked) -> list[Calls]:
    return [Calls(f"LOCAL-{function}-0", one.action, one.resource, 1) for one in asked]


def test_what_a_role_allows_is_told_by_the_names_of_the_stack(template: Template) -> None:
    may = allowed(template, OUTPUTS)
    assert Asked("dynamodb:Query", "runs/index/by_due") in may["SweepRuns"]
    assert Asked("s3:PutObject", "outputs/*") in may["DriveRun"]
    assert Asked("sqs:SendMessage", "drive") in may["StartRun"]
    assert Asked("events:PutEvents", "bus") in may["SignalRun"]
    assert [name for name in may if Asked("s3:GetObject", "manifests/*") in may[name]] == [
        "DriveRun",
        "WorkChunk",
    ]


def test_a_request_that_no_role_allows_is_found(template: Template) -> None:
    asked = [
        *calls("InspectRun", Asked("dynamodb:GetItem", "runs"), Asked("dynamodb:PutItem", "runs")),
        *calls(
            "DriveRun", Asked("dynamodb:GetItem", "another"), Asked("dynamodb:Query", "runs/index/by_due")
        ),
        Calls(OWN_KEY, "sqs:DeleteMessage", "drive", 1),  # the local cloud's own
    ]
    assert missing(template, OUTPUTS, asked) == [
        "DriveRun: dynamodb:GetItem on another",
        "DriveRun: dynamodb:Query on runs/index/by_due",
        "InspectRun: dynamodb:PutItem on runs",
    ]


def test_what_a_role_allows_for_nothing_is_found(template: Template) -> None:
    everything = [one for name, may in allowed(template, OUTPUTS).items() for one in calls(name, *may)]
    assert unused(template, OUTPUTS, everything) == []
    statement: dict[str, Any] = template["Resources"]["InspectRunRole"]["Properties"]
    first = next(statements(statement))
    first["Action"] = [*first["Action"], "dynamodb:DeleteItem"]
    assert unused(template, OUTPUTS, everything) == ["InspectRun: dynamodb:DeleteItem on runs"]


def test_every_written_exception_is_of_something_that_is_allowed(template: Template) -> None:
    actions = {
        (name, action)
        for name, may in allowed(template, OUTPUTS).items()
        for action in (one.action for one in may)
    }
    assert set(UNSEEN_OF) <= actions
    known = {action for _, action in actions} | {"xray:PutTelemetryRecords", "xray:PutTraceSegments"}
    assert {one for one in UNSEEN if not one.startswith("kms:")} <= known
