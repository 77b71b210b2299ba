"""Objects of S3 are read in parts of one version, or not at all."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from durable_core.aws.ranges import RangedObject, bucket_and_key
from durable_core.errors import (
    DurableError,
    JournalUnavailable,
    ManifestError,
    UsageError,
)
from tests.cloud import Cloud
from tests.cloud_faults import DENIED, FAULTS, RETRYABLE, FaultyTransport

DATA = random.Random(5).randbytes(100_000)


@pytest.fixture
def transport(cloud: Cloud) -> Iterator[FaultyTransport]:
    made = FaultyTransport(cloud.transport("boto3"))
    yield made
    made.close_now()


@pytest.fixture
def url(cloud: Cloud, transport: FaultyTransport) -> str:
    url = f"s3://{cloud.new_bucket()}/lists/in%20may.jsonl"
    put(transport, url, DATA)
    return url


def put(transport: FaultyTransport, url: str, data: bytes) -> None:
    bucket, key = bucket_and_key(url)
    transport.call_now("s3", "put_object", {"Bucket": bucket, "Key": key, "Body": data})


@pytest.mark.parametrize("part", [1, 4096, 99_999, 100_000, 1_000_000])
def test_the_parts_of_an_object_make_the_whole_of_it(transport: FaultyTransport, url: str, part: int) -> None:
    found = RangedObject(transport, url)
    assert found.size == len(DATA)
    starts = range(0, len(DATA), part) if part > 1 else range(50)
    parts = [found.read(start, part) for start in starts]
    assert b"".join(parts) == (DATA if part > 1 else DATA[:50])
    assert found.read(len(DATA), 10) == found.read(len(DATA) + 5, 10) == found.read(3, 0) == b""


def test_only_the_part_is_sent_for(transport: FaultyTransport, url: str) -> None:
    found = RangedObject(transport, url)
    assert found.read(10, 5) == DATA[10:15]
    (asked,) = transport.requests("get_object")
    assert (asked["Range"], asked["IfMatch"]) == ("bytes=10-14", found.version)


def test_an_empty_object_has_no_parts(transport: FaultyTransport, url: str) -> None:
    put(transport, url, b"")
    found = RangedObject(transport, url)
    assert (found.size, found.read(0, 10)) == (0, b"")
    assert transport.requests("get_object") == []


def test_several_threads_read_parts_at_once(transport: FaultyTransport, url: str) -> None:
    found = RangedObject(transport, url)
    with ThreadPoolExecutor(4) as threads:
        parts = list(threads.map(lambda start: found.read(start, 1000), range(0, len(DATA), 1000)))
    assert b"".join(parts) == DATA


@pytest.mark.parametrize("other", [DATA[::-1], DATA + b"x", b"short", b""])
def test_an_object_that_was_replaced_gives_nothing_more(
    transport: FaultyTransport, url: str, other: bytes
) -> None:
    found = RangedObject(transport, url)
    assert found.read(0, 10) == DATA[:10]
    put(transport, url, other)
    with pytest.raises(ManifestError, match="was changed"):
        found.read(10, 10)
    assert RangedObject(transport, url).size == len(other)


def test_an_object_that_is_not_there_is_missing(transport: FaultyTransport, url: str) -> None:
    found = RangedObject(transport, url)
    bucket, key = bucket_and_key(url)
    transport.call_now("s3", "delete_object", {"Bucket": bucket, "Key": key})
    with pytest.raises(ManifestError, match="isn't there"):
        found.read(0, 10)
    for gone in (url, f"s3://{bucket}/else", "s3://bucket-that-is-not-there/x"):
        with pytest.raises(ManifestError, match=gone):
            RangedObject(transport, gone)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_request_that_fails_is_a_typed_error_and_can_be_repeated(
    transport: FaultyTransport, url: str, fault: str
) -> None:
    wanted: type[DurableError] = JournalUnavailable if fault in RETRYABLE else ManifestError
    transport.plan("head_object", fault)
    with pytest.raises(wanted, match="may"):
        RangedObject(transport, url)
    found = RangedObject(transport, url)
    transport.plan("get_object", fault)
    with pytest.raises(wanted, match="s3:GetObject" if fault == DENIED else "may"):
        found.read(0, 10)
    assert found.read(0, 10) == DATA[:10]


@pytest.mark.parametrize(
    "url",
    ["", "s3://", "s3://b", "s3://b/", "s3:///k", "https://b/k", "b/k", "s3://b/k?versionId=3", "s3://b/k#2",
     "s3://key:hunter2@b/k"],
)  # fmt: skip
def test_a_url_of_no_object_is_refused(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        bucket_and_key(url)
    assert "hunter2" not in str(caught.value)


def test_a_part_that_cannot_be_meant_is_refused(transport: FaultyTransport, url: str) -> None:
    with pytest.raises(UsageError):
        RangedObject(transport, url).read(-1, 5)
