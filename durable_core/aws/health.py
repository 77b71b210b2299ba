"""Examining a table and a bucket. Writes are asked for under conditions that never hold.

To S3 there is no such request: a small object is put, read and deleted. In a bucket with versions its old
version stays until the bucket's lifecycle takes it.
"""

from __future__ import annotations

import time
from email.utils import parsedate_to_datetime
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, Final

from durable_core.aws.failures import ConditionRefused
from durable_core.aws.provision_bucket import BucketChanges
from durable_core.aws.provision_table import TableChanges
from durable_core.aws.table import BY_DUE, BY_STATUS
from durable_core.errors import DurableError, StoreNotFound
from durable_core.health import FAIL, OK, WARN, Check, clock_check, failed, tried

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from durable_core.aws.transport import Service, Transport
    from durable_core.clock import Clock

_KEY: Final = {"pk": {"S": "RUN# "}, "sk": {"S": "RUN"}}  # no run can have that id
_NEVER: Final = {
    "ConditionExpression": "attribute_exists(#pk)",
    "ExpressionAttributeNames": {"#pk": "pk"},
}
_MAKE: Final = "`durable init` makes it"


def examine(
    transport: Transport, table: str, bucket: str, *, prefix: str, tls_only: bool, clock: Clock
) -> Iterator[Check]:
    """All checks of a table and a bucket, one after the other; blocking."""
    yield Check("driver", OK, ", ".join(_installed()))
    try:
        before_ms = clock.now_ms()
        reply = transport.call_now("dynamodb", "get_item", {"TableName": table, "Key": _KEY})
        yield Check("store", OK, f"the table {table} answers in {clock.now_ms() - before_ms} ms")
        yield from _clock(reply, clock)
    except DurableError as error:
        yield failed("store", error)
        return
    yield from _lacks("table", TableChanges(transport, table, time.sleep))
    for name, operation, request in _permissions(table):
        yield from tried(name, _asked(transport, "dynamodb", operation, request))
    yield from _lacks("bucket", BucketChanges(transport, bucket, prefix, None, tls_only=tls_only))
    yield from tried("blobs", lambda: _put_and_deleted(transport, bucket, prefix))


def _installed() -> Iterator[str]:
    for name in ("boto3", "aioboto3"):
        try:
            yield f"{name} {version(name)}"
        except PackageNotFoundError:
            yield f"no {name}"


def _clock(reply: dict[str, Any], clock: Clock) -> Iterator[Check]:
    told = reply.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
    if told is None:
        return
    there_ms = round(parsedate_to_datetime(told).timestamp() * 1000)
    skew_ms = there_ms - clock.now_ms()
    # The header has whole seconds.
    yield clock_check(0 if -1000 <= skew_ms <= 0 else skew_ms, "DynamoDB's")


def _lacks(name: str, part: TableChanges | BucketChanges) -> Iterator[Check]:
    """What a table or a bucket lacks; nothing is made."""
    try:
        lacking = [change.text for change in part.changes()]
    except StoreNotFound as error:
        yield Check(name, FAIL, error.message, _MAKE)
    except DurableError as error:
        yield Check(name, WARN, f"its settings can't be told: {error.message}", error.remedy)
    else:
        yield (
            Check(name, OK, "it is as `durable init` makes it")
            if not lacking
            else Check(name, WARN, f"`durable init` would {'; '.join(lacking)}", "Run `durable init`")
        )


def _permissions(table: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """A request for each permission that runs need, none of which changes anything."""
    named = {"TableName": table}
    of_key = {**named, "Key": _KEY}
    yield "BatchGetItem", "batch_get_item", {"RequestItems": {table: {"Keys": [_KEY]}}}
    for index, partition, value in ((None, "pk", {"S": "RUN# "}), *_INDEXES):
        query: dict[str, Any] = {
            **named,
            "KeyConditionExpression": "#partition = :partition",
            "ExpressionAttributeNames": {"#partition": partition},
            "ExpressionAttributeValues": {":partition": value},
            "Limit": 1,
        }
        yield f"Query {index or 'the table'}", "query", query | ({"IndexName": index} if index else {})
    yield "PutItem", "put_item", {**named, "Item": _KEY, **_NEVER}
    names = {"#pk": "pk", "#owner": "owner"}
    change = {"UpdateExpression": "REMOVE #owner", **_NEVER, "ExpressionAttributeNames": names}
    yield "UpdateItem", "update_item", {**of_key, **change}
    yield "DeleteItem", "delete_item", {**of_key, **_NEVER}
    check = {"TransactItems": [{"ConditionCheck": {**of_key, **_NEVER}}]}
    yield "ConditionCheckItem", "transact_write_items", check


_INDEXES: Final = ((BY_DUE, "due_shard", {"N": "0"}), (BY_STATUS, "status_shard", {"S": "PENDING#0"}))


def _asked(
    transport: Transport, service: Service, operation: str, request: dict[str, Any]
) -> Callable[[], str]:
    def ask() -> str:
        try:
            transport.call_now(service, operation, request)
        except ConditionRefused:
            return "permitted"
        return "permitted"

    return ask


def _put_and_deleted(transport: Transport, bucket: str, prefix: str) -> str:
    data = b"durable doctor"
    where = {"Bucket": bucket, "Key": f"{prefix}runs/doctor/{'0' * 20}-{sha256(data).hexdigest()}"}
    transport.call_now("s3", "put_object", {**where, "Body": data})
    try:
        found = transport.call_now("s3", "get_object", where)["Body"]
        transport.call_now("s3", "list_objects_v2", {"Bucket": bucket, "Prefix": where["Key"]})
    finally:
        transport.call_now("s3", "delete_object", where)
    if found != data:
        raise StoreNotFound(f"the bucket {bucket} gave back something else than was put")
    return "a small object was put, read, listed and deleted"
