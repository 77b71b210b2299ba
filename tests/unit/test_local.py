"""The parts of the local cloud that decide something."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from durable_core.local.aws_endpoint import AwsEndpoint
from durable_core.local.emulator_sandbox import EmulatorSandbox
from durable_core.local.gateway import path_parameters
from durable_core.local.lineage import lineage_header, lineage_of
from durable_core.local.poller import failed_ids
from durable_core.local.requests_seen import Asked, Caller, asked, caller
from durable_core.local.sandbox import Answer, Code
from durable_core.local.template import Route

IDS = ["a", "b", "c"]


@pytest.mark.parametrize(
    ("payload", "failed"),
    [
        ({"batchItemFailures": [{"itemIdentifier": "b"}]}, {"b"}),
        ({"batchItemFailures": [{"itemIdentifier": "b"}, {"itemIdentifier": "b"}]}, {"b"}),
        ({"batchItemFailures": []}, set()),
        ({"batchItemFailures": None}, set()),
        ({}, set()),
        (None, set()),
        ({"batchItemFailures": [{"itemIdentifier": ""}]}, {*IDS}),
        ({"batchItemFailures": [{"itemIdentifier": None}]}, {*IDS}),
        ({"batchItemFailures": [{"itemIdentifier": "of another batch"}]}, {*IDS}),
        ({"batchItemFailures": [{"ItemIdentifier": "b"}]}, {*IDS}),
        ({"batchItemFailures": ["b"]}, {*IDS}),
        ({"batchItemFailures": "b"}, {*IDS}),
        ("done", {*IDS}),
    ],
    ids=lambda value: json.dumps(value) if not isinstance(value, set) else "-".join(sorted(value)),
)
def test_messages_fail_as_lambda_reads_the_report(payload: Any, failed: set[str]) -> None:
    assert failed_ids(Answer(None, payload), IDS, reports=True) == failed


@pytest.mark.parametrize("failure", ["error", "timeout", "crash"])
def test_a_failed_invocation_fails_its_whole_batch(failure: Any) -> None:
    answer = Answer(failure, {"batchItemFailures": []})
    assert failed_ids(answer, IDS, reports=True) == set(IDS)


def test_without_the_setting_a_report_says_nothing() -> None:
    answer = Answer(None, {"batchItemFailures": [{"itemIdentifier": "b"}]})
    assert failed_ids(answer, IDS, reports=False) == set()


def test_a_lineage_comes_back_from_its_header() -> None:
    hops = {"DriveRun": 12, "WorkChunk": 3}
    assert lineage_of(lineage_header(hops)) == hops
    assert lineage_of(lineage_header({})) == {}
    assert lineage_of("Root=1-5759e988-bd862e3fe1be46a994272793;Sampled=1") == {}
    assert lineage_of(None) == {}


def test_a_caller_is_known_by_the_signature() -> None:
    header = (
        "AWS4-HMAC-SHA256 Credential=LOCAL-DriveRun-3/20260101/us-east-1/s3/aws4_request, SignedHeaders=host"
    )
    assert caller(header) == Caller("LOCAL-DriveRun-3", "s3")
    assert caller("") is None


@pytest.mark.parametrize(
    ("operation", "request_body", "found"),
    [
        ("PutItem", {"TableName": "t"}, {Asked("dynamodb:PutItem", "t")}),
        ("PutItem", {"TableName": "arn:aws:dynamodb:r:1:table/t"}, {Asked("dynamodb:PutItem", "t")}),
        ("Query", {"TableName": "t", "IndexName": "by_due"}, {Asked("dynamodb:Query", "t/index/by_due")}),
        ("BatchGetItem", {"RequestItems": {"t": {}}}, {Asked("dynamodb:BatchGetItem", "t")}),
        (
            "TransactWriteItems",
            {"TransactItems": [{"Put": {"TableName": "t"}}, {"ConditionCheck": {"TableName": "t"}}]},
            {Asked("dynamodb:PutItem", "t"), Asked("dynamodb:ConditionCheckItem", "t")},
        ),
        (
            "TransactWriteItems",
            {"TransactItems": [{"Update": {"TableName": "t"}}, {"Delete": {"TableName": "t"}}]},
            {Asked("dynamodb:UpdateItem", "t"), Asked("dynamodb:DeleteItem", "t")},
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_requests_to_dynamodb_are_told_as_actions(
    operation: str, request_body: dict[str, Any], found: set[Asked]
) -> None:
    target = f"DynamoDB_20120810.{operation}"
    assert asked("dynamodb", target, "POST", "/", "", json.dumps(request_body).encode()) == found


@pytest.mark.parametrize(
    ("method", "path", "query", "found"),
    [
        ("GET", "/b/runs/one", "", Asked("s3:GetObject", "b/*")),
        ("HEAD", "/b/runs/one", "", Asked("s3:GetObject", "b/*")),
        ("PUT", "/b/runs/one", "", Asked("s3:PutObject", "b/*")),
        ("POST", "/b/runs/one", "uploads", Asked("s3:PutObject", "b/*")),
        ("PUT", "/b/runs/one", "partNumber=1&uploadId=x", Asked("s3:PutObject", "b/*")),
        ("DELETE", "/b/runs/one", "", Asked("s3:DeleteObject", "b/*")),
        ("DELETE", "/b/runs/one", "uploadId=x", Asked("s3:AbortMultipartUpload", "b/*")),
        ("POST", "/b", "delete", Asked("s3:DeleteObject", "b/*")),
        ("GET", "/b", "list-type=2&prefix=runs", Asked("s3:ListBucket", "b")),
        ("GET", "/b/", "list-type=2", Asked("s3:ListBucket", "b")),
    ],
)
def test_requests_to_s3_are_told_as_actions(method: str, path: str, query: str, found: Asked) -> None:
    assert asked("s3", "", method, path, query, b"") == {found}


def test_requests_to_queues_and_buses_are_told_as_actions() -> None:
    body = json.dumps({"QueueUrl": "http://localhost/1234/drive", "Entries": []}).encode()
    found = asked("sqs", "AmazonSQS.SendMessageBatch", "POST", "/", "", body)
    assert found == {Asked("sqs:SendMessage", "drive")}
    body = json.dumps({"Entries": [{"EventBusName": "runs"}, {}]}).encode()
    found = asked("events", "AWSEvents.PutEvents", "POST", "/", "", body)
    assert found == {Asked("events:PutEvents", "runs"), Asked("events:PutEvents", "default")}


def test_a_route_gives_what_its_path_names() -> None:
    route = Route("POST", "/runs/{run_id}/signals")
    assert path_parameters(route, "POST", "/runs/a%2Fb/signals") == {"run_id": "a/b"}
    assert path_parameters(route, "GET", "/runs/a/signals") is None
    assert path_parameters(route, "POST", "/runs/a/b/signals") is None
    assert path_parameters(Route("POST", "/a.b"), "POST", "/axb") is None
    assert path_parameters(Route("POST", "/runs"), "POST", "/runs") == {}


HANGS_UP = """#!{python}
import os, socket, sys
with open("pid", "w") as told:
    told.write(str(os.getpid()))
host, port = sys.argv[2].split(":")
with socket.create_server((host, int(port))) as server:
    while True:
        server.accept()[0].close()
"""


class Watched:
    """Takes the place of the process that ends sandboxes whose owner died."""

    def __init__(self) -> None:
        self.pids: set[int] = set()

    def watch(self, pid: int) -> None:
        self.pids.add(pid)

    def forget(self, pid: int) -> None:
        self.pids.remove(pid)


def test_an_emulator_that_hangs_up_is_ended(tmp_path: Path) -> None:
    emulator, watched = tmp_path / "emulator", Watched()
    emulator.write_text(HANGS_UP.format(python=sys.executable))
    emulator.chmod(0o755)
    code = Code("f", "app.handler", tmp_path, (), False, 5, 128, {"AWS_REGION": "us-east-1"})
    sandbox = EmulatorSandbox(
        code, "key", None, emulator=emulator, runtime=tmp_path, aws=cast("AwsEndpoint", watched)
    )
    answers = [sandbox.invoke(b"{}"), sandbox.invoke(b"{}")]
    assert [one.failure for one in answers] == ["crash", "crash"]
    assert (watched.pids, sandbox.pids()) == (set(), [])
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
