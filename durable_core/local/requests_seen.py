"""What a request to AWS asks for, in the words of IAM: an action and the resource that it is asked of."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import parse_qsl

if TYPE_CHECKING:
    from collections.abc import Iterator

_CREDENTIAL: Final = re.compile(r"Credential=([^/,]+)/[^/]+/[^/]+/([^/]+)/aws4_request")
_TRANSACTION: Final = {
    "Put": "PutItem",
    "Update": "UpdateItem",
    "Delete": "DeleteItem",
    "ConditionCheck": "ConditionCheckItem",
    "Get": "GetItem",
}
# IAM knows one action for sending one message or ten.
_SQS: Final = {
    "SendMessageBatch": "SendMessage",
    "DeleteMessageBatch": "DeleteMessage",
    "ChangeMessageVisibilityBatch": "ChangeMessageVisibility",
}


class Asked(NamedTuple):
    """One thing that a request asks for.

    Attributes:
        action: As a policy names it: dynamodb:PutItem.
        resource: The table, `TABLE/index/INDEX`, bucket, `BUCKET/*` for its objects, queue or bus; by name.
    """

    action: str
    resource: str


class Caller(NamedTuple):
    """Who sent a request.

    Attributes:
        key_id: The access key id.
        service: That it was signed for.
    """

    key_id: str
    service: str


def caller(authorization: str) -> Caller | None:
    """Who signed a request; None if nobody did."""
    found = _CREDENTIAL.search(authorization)
    return Caller(found[1], found[2]) if found else None


def asked(service: str, target: str, method: str, path: str, query: str, body: bytes) -> set[Asked]:
    """What a request asks for.

    Args:
        service: That it was signed for.
        target: Its header `X-Amz-Target`.
        method: Of HTTP.
        path: Of its URL.
        query: Of its URL.
        body: What it carries.
    """
    if service == "s3":
        return {_s3(method, path, dict(parse_qsl(query, keep_blank_values=True)))}
    operation = target.rpartition(".")[2]
    request = json.loads(body) if body else {}
    if service == "dynamodb":
        return set(_dynamodb(operation, request))
    if service == "sqs":
        queue = str(request.get("QueueUrl", "")).rpartition("/")[2]
        return {Asked(f"sqs:{_SQS.get(operation, operation)}", queue)}
    if service == "events" and operation == "PutEvents":
        return {Asked("events:PutEvents", one.get("EventBusName", "default")) for one in request["Entries"]}
    return {Asked(f"{service}:{operation}", "")}


def _dynamodb(operation: str, request: dict[str, Any]) -> Iterator[Asked]:
    if "TransactItems" in request:
        for item in request["TransactItems"]:
            ((kind, one),) = item.items()
            yield Asked(f"dynamodb:{_TRANSACTION[kind]}", _table(one["TableName"]))
    elif "RequestItems" in request:
        for table in request["RequestItems"]:
            yield Asked(f"dynamodb:{operation}", _table(table))
    else:
        table = _table(request.get("TableName", ""))
        index = request.get("IndexName")
        yield Asked(f"dynamodb:{operation}", f"{table}/index/{index}" if index else table)


def _table(name: str) -> str:
    return name.rpartition("/")[2]  # an ARN is a name, too


def _s3(method: str, path: str, query: dict[str, str]) -> Asked:
    bucket, _, key = path.lstrip("/").partition("/")
    if not key:
        action = {"GET": "ListBucket", "HEAD": "ListBucket", "POST": "DeleteObject"}.get(method)
        return Asked(f"s3:{action or method}", f"{bucket}/*" if method == "POST" else bucket)
    if method == "DELETE":
        action = "AbortMultipartUpload" if "uploadId" in query else "DeleteObject"
    else:
        action = {"GET": "GetObject", "HEAD": "GetObject"}.get(method, "PutObject")
    return Asked(f"s3:{action}", f"{bucket}/*")
