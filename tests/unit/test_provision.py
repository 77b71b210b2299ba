"""`durable init` on AWS: what is missing is made, once; what is otherwise is refused or left alone."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from durable_core.aws.provision import provision
from durable_core.aws.table import differences, table_request
from durable_core.aws.transport import Transport
from durable_core.errors import DurableError, JournalUnavailable, StoreMisconfigured
from tests.cloud import Cloud, new_table_name
from tests.cloud_faults import DENIED, REPLY_LOST, SERVER_ERROR, FaultyTransport

WRITES = (
    "create_table",
    "update_time_to_live",
    "update_continuous_backups",
    "create_bucket",
    "put_public_access_block",
    "put_bucket_encryption",  # moto's buckets aren't encrypted by themselves
    "put_bucket_versioning",
    "put_bucket_policy",
    "put_bucket_lifecycle_configuration",
)
READS = ("describe_", "get_", "head_")


@pytest.fixture
def transport(cloud: Cloud) -> Iterator[FaultyTransport]:
    made = FaultyTransport(cloud.transport("boto3"))
    yield made
    made.close_now()


@pytest.fixture
def names() -> tuple[str, str]:
    return new_table_name(), f"bucket-{uuid.uuid4().hex[:16]}"


def writes(transport: FaultyTransport) -> list[str]:
    return [one.operation for one in transport.sent if not one.operation.startswith(READS)]


def setting(transport: Transport, service: Any, operation: str, **request: str) -> dict[str, Any]:
    return transport.call_now(service, operation, request)


def test_everything_is_made_once_and_as_it_has_to_be(
    transport: FaultyTransport, names: tuple[str, str]
) -> None:
    table, bucket = names
    told = provision(transport, table, bucket)
    assert writes(transport) == list(WRITES)
    assert len(told) == len(WRITES)
    described = setting(transport, "dynamodb", "describe_table", TableName=table)["Table"]
    assert differences(described) == []
    assert described["BillingModeSummary"]["BillingMode"] == "PAY_PER_REQUEST"
    assert described["SSEDescription"]["Status"] == "ENABLED"
    expiry = setting(transport, "dynamodb", "describe_time_to_live", TableName=table)
    assert expiry["TimeToLiveDescription"] == {
        "TimeToLiveStatus": "ENABLED",
        "AttributeName": "expires_at_s",
    }
    backups = setting(transport, "dynamodb", "describe_continuous_backups", TableName=table)
    point = backups["ContinuousBackupsDescription"]["PointInTimeRecoveryDescription"]
    assert point["PointInTimeRecoveryStatus"] == "ENABLED"
    private = setting(transport, "s3", "get_public_access_block", Bucket=bucket)
    assert set(private["PublicAccessBlockConfiguration"].values()) == {True}
    assert setting(transport, "s3", "get_bucket_encryption", Bucket=bucket)
    assert setting(transport, "s3", "get_bucket_versioning", Bucket=bucket)["Status"] == "Enabled"
    (statement,) = json.loads(setting(transport, "s3", "get_bucket_policy", Bucket=bucket)["Policy"])[
        "Statement"
    ]
    assert statement["Effect"] == "Deny"
    assert statement["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}
    assert statement["Resource"] == [f"arn:aws:s3:::{bucket}", f"arn:aws:s3:::{bucket}/*"]
    (rule,) = setting(transport, "s3", "get_bucket_lifecycle_configuration", Bucket=bucket)["Rules"]
    assert rule["Expiration"] == {"ExpiredObjectDeleteMarker": True}
    assert {"AbortIncompleteMultipartUpload", "NoncurrentVersionExpiration"} <= set(rule)
    transport.sent.clear()
    assert provision(transport, table, bucket) == []
    assert writes(transport) == []


def test_a_dry_run_tells_of_every_change_and_makes_none(
    transport: FaultyTransport, names: tuple[str, str]
) -> None:
    told = provision(transport, *names, dry_run=True)
    assert writes(transport) == []
    assert provision(transport, *names) == told
    assert provision(transport, *names, dry_run=True) == []


@pytest.mark.parametrize("alone", [False, True])
def test_only_what_is_missing_is_made(
    transport: FaultyTransport, names: tuple[str, str], alone: bool
) -> None:
    """Also where the one statement of a policy stands without a list around it, as AWS lets it."""
    table, bucket = names
    transport.call_now("dynamodb", "create_table", table_request(table))
    transport.call_now("s3", "create_bucket", {"Bucket": bucket})
    theirs = {
        "Sid": "Theirs",
        "Effect": "Deny",
        "Principal": "*",
        "Action": "s3:DeleteBucket",
        "Resource": f"arn:aws:s3:::{bucket}",
    }
    policy = json.dumps({"Version": "2012-10-17", "Statement": theirs if alone else [theirs]})
    transport.call_now("s3", "put_bucket_policy", {"Bucket": bucket, "Policy": policy})
    rule = {
        "ID": "theirs",
        "Status": "Enabled",
        "Filter": {"Prefix": "logs/"},
        "Expiration": {"Days": 3},
    }
    transport.call_now(
        "s3",
        "put_bucket_lifecycle_configuration",
        {"Bucket": bucket, "LifecycleConfiguration": {"Rules": [rule]}},
    )
    transport.sent.clear()
    provision(transport, table, bucket, prefix="tenant-a/")
    assert not {"create_table", "create_bucket"} & set(writes(transport))
    held = json.loads(setting(transport, "s3", "get_bucket_policy", Bucket=bucket)["Policy"])["Statement"]
    assert held[0] == theirs
    assert len(held) == 2
    rules = setting(transport, "s3", "get_bucket_lifecycle_configuration", Bucket=bucket)["Rules"]
    assert [one["ID"] for one in rules] == ["theirs", "durable-core:tenant-a/"]
    assert rules[1]["Filter"] == {"Prefix": "tenant-a/"}
    transport.sent.clear()
    assert provision(transport, table, bucket, prefix="tenant-a/") == []


def other_tables() -> dict[str, tuple[dict[str, Any], str]]:
    number = table_request("x")
    number["AttributeDefinitions"][1] = {"AttributeName": "sk", "AttributeType": "N"}
    no_index = table_request("x")
    no_index["GlobalSecondaryIndexes"].pop()
    no_index["AttributeDefinitions"] = no_index["AttributeDefinitions"][:4]
    projection = table_request("x")
    projection["GlobalSecondaryIndexes"][1]["Projection"] = {"ProjectionType": "KEYS_ONLY"}
    plain = {
        "BillingMode": "PAY_PER_REQUEST",
        "AttributeDefinitions": [{"AttributeName": "id", "AttributeType": "S"}],
        "KeySchema": [{"AttributeName": "id", "KeyType": "HASH"}],
    }
    return {
        "a number as sort key": (number, "sk (N)"),
        "an index missing": (no_index, "by_status is missing"),
        "an index that lacks attributes": (projection, "workflow"),
        "somebody else's table": (plain, "id (S) and none"),
    }


@pytest.mark.parametrize("other", sorted(other_tables()))
def test_a_table_of_another_shape_is_refused_and_nothing_is_changed(
    transport: FaultyTransport, names: tuple[str, str], other: str
) -> None:
    request, told = other_tables()[other]
    transport.call_now("dynamodb", "create_table", request | {"TableName": names[0]})
    transport.sent.clear()
    with pytest.raises(StoreMisconfigured, match="another shape") as caught:
        provision(transport, *names)
    assert told in str(caught.value)
    assert names[0] in str(caught.value)
    assert writes(transport) == []


def test_a_table_whose_items_expire_by_something_else_is_refused(
    transport: FaultyTransport, names: tuple[str, str]
) -> None:
    provision(transport, *names)
    for enabled, attribute in ((False, "expires_at_s"), (True, "ttl")):
        specification = {"Enabled": enabled, "AttributeName": attribute}
        transport.call_now(
            "dynamodb",
            "update_time_to_live",
            {"TableName": names[0], "TimeToLiveSpecification": specification},
        )
    with pytest.raises(StoreMisconfigured, match="'ttl'"):
        provision(transport, *names)


@pytest.mark.parametrize("prefix", ["", "runs/", "tenant-a/"])
def test_a_bucket_that_deletes_objects_by_age_is_refused(
    transport: FaultyTransport, names: tuple[str, str], prefix: str
) -> None:
    provision(transport, *names)
    rule = {"ID": "tidy", "Status": "Enabled", "Filter": {"Prefix": prefix}, "Expiration": {"Days": 30}}
    transport.call_now(
        "s3",
        "put_bucket_lifecycle_configuration",
        {"Bucket": names[1], "LifecycleConfiguration": {"Rules": [rule]}},
    )
    with pytest.raises(StoreMisconfigured, match="'tidy'"):
        provision(transport, *names, prefix="tenant-a/" if prefix == "tenant-a/" else "")


@pytest.mark.parametrize(
    ("operation", "fault"),
    [*((one, DENIED) for one in WRITES), ("create_table", SERVER_ERROR), ("put_bucket_policy", SERVER_ERROR)],
)
def test_whatever_aws_refuses_is_told_and_the_rest_is_made_next_time(
    transport: FaultyTransport, names: tuple[str, str], operation: str, fault: str
) -> None:
    transport.plan(operation, fault)
    with pytest.raises(DurableError) as caught:
        provision(transport, *names)
    assert isinstance(caught.value, StoreMisconfigured if fault == DENIED else JournalUnavailable)
    assert any(name in str(caught.value) for name in names)
    assert provision(transport, *names) != []
    assert provision(transport, *names) == []
    assert [transport.counts[one] for one in WRITES] == [1 + (one == operation) for one in WRITES]


@pytest.mark.parametrize(
    ("operation", "remedy"),
    [
        ("update_time_to_live", "dynamodb:UpdateTimeToLive"),
        ("put_bucket_lifecycle_configuration", "s3:PutLifecycleConfiguration"),
        ("get_bucket_policy", "s3:GetBucketPolicy"),
        ("put_public_access_block", "s3:PutBucketPublicAccessBlock"),
    ],
)
def test_a_missing_permission_is_named(
    transport: FaultyTransport, names: tuple[str, str], operation: str, remedy: str
) -> None:
    transport.plan(operation, DENIED)
    with pytest.raises(StoreMisconfigured, match=remedy):
        provision(transport, *names)


@pytest.mark.parametrize("operation", ["create_table", "create_bucket"])
def test_what_somebody_else_makes_at_the_same_time_is_taken_as_made(
    transport: FaultyTransport, names: tuple[str, str], operation: str
) -> None:
    transport.plan(operation, REPLY_LOST)
    assert len(provision(transport, *names)) == len(WRITES)
    assert provision(transport, *names) == []


def test_a_table_that_is_still_being_made_is_waited_for(
    transport: FaultyTransport, names: tuple[str, str]
) -> None:
    states = iter(["CREATING", "CREATING", "UPDATING"])
    slept: list[float] = []
    inner = transport.inner.call_now

    class Slow(FaultyTransport):
        def call_now(self, service: Any, operation: str, request: Any) -> dict[str, Any]:
            reply = inner(service, operation, request)
            if operation == "describe_table":
                reply["Table"]["TableStatus"] = next(states, "ACTIVE")
            return reply

    provision(Slow(transport.inner), *names, sleep=slept.append)
    assert len(slept) == 3
    states = iter(["CREATING"] * 100)
    with pytest.raises(JournalUnavailable, match="CREATING"):
        provision(Slow(transport.inner), *names, sleep=slept.append)
