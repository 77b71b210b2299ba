"""Blobs in S3 hold to the contract by either transport; what only S3 can get wrong is tested beside it."""

from __future__ import annotations

import asyncio
import base64
import subprocess
import sys
import uuid
from collections.abc import Awaitable, Iterator
from hashlib import sha256
from typing import Any

import pytest

from durable_core.aws import transport_async, transport_threads
from durable_core.aws.failures import ConditionRefused
from durable_core.blobs.base import BlobStore, blob_ref
from durable_core.blobs.s3 import S3Blobs
from durable_core.errors import (
    CorruptRecord,
    InvalidId,
    JournalUnavailable,
    MissingBlob,
    StoreMisconfigured,
    StoreNotFound,
)
from durable_core.testing.blob_contract import BlobContract
from tests.cloud import REGION, TRANSPORTS, Cloud
from tests.cloud_faults import DENIED, EXPIRED, FAULTS, REPLY_LOST, RETRYABLE, FaultyTransport

REF = blob_ref("run-1", "attempt", b"data")
DAY_S = 24 * 3600


class TestS3Blobs(BlobContract):
    @pytest.fixture(params=TRANSPORTS)
    def blobs(
        self, request: pytest.FixtureRequest, cloud: Cloud, runner: asyncio.Runner
    ) -> Iterator[BlobStore]:
        prefix = f"{uuid.uuid4().hex}/"
        blobs = S3Blobs(cloud.transport(request.param), cloud.shared_bucket, prefix, page_size=7)
        yield blobs
        runner.run(blobs.close())


class Bucket:
    """A bucket, and the blobs in it by a transport on which requests can fail."""

    def __init__(self, cloud: Cloud, prefix: str = "") -> None:
        self.cloud = cloud
        self.name = cloud.new_bucket()
        self.transport = FaultyTransport(cloud.transport("aioboto3"))
        self.blobs = S3Blobs(self.transport, self.name, prefix)
        self._runner = asyncio.Runner()

    def run(self, verb: Awaitable[Any]) -> Any:
        async def awaited() -> Any:
            return await verb

        return self._runner.run(awaited())

    def put(self, ref: str = REF, data: bytes = b"data") -> None:
        self.run(self.blobs.put(ref, data))

    def get(self, ref: str = REF) -> bytes:
        found = self.run(self.blobs.get(ref))
        assert isinstance(found, bytes)
        return found

    def refs(self, **options: float) -> list[str]:
        async def listed() -> list[str]:
            return [ref async for ref in self.blobs.refs("run-1", **options)]

        found = self.run(listed())
        assert isinstance(found, list)
        return found

    def keys(self) -> list[str]:
        found = self.cloud.ask("s3", "list_objects_v2", {"Bucket": self.name})
        return [one["Key"] for one in found.get("Contents", ())]

    def alter(self, data: bytes, ref: str = REF) -> None:
        self.cloud.ask("s3", "put_object", {"Bucket": self.name, "Key": ref, "Body": data})

    def close(self) -> None:
        self.run(self.blobs.close())
        self._runner.close()


@pytest.fixture
def bucket(cloud: Cloud) -> Iterator[Bucket]:
    made = Bucket(cloud)
    yield made
    made.close()


def test_a_put_never_replaces_and_carries_the_hash_that_s3_checks(bucket: Bucket) -> None:
    bucket.put()
    (sent,) = bucket.transport.requests("put_object")
    assert sent["IfNoneMatch"] == "*"
    assert sent["Key"] == REF
    assert sent["ChecksumSHA256"] == base64.b64encode(sha256(b"data").digest()).decode()
    assert not {"ServerSideEncryption", "SSEKMSKeyId", "ACL", "StorageClass"} & set(sent)
    assert bucket.transport.counts == {"put_object": 1}


@pytest.mark.parametrize("damage", [b"dat", b"datb", b"", b"data\n"])
def test_an_altered_object_is_corrupt_and_is_not_replaced(bucket: Bucket, damage: bytes) -> None:
    bucket.put()
    bucket.alter(damage)
    for _ in range(2):
        with pytest.raises(CorruptRecord, match="hash"):
            bucket.get()
        with pytest.raises(CorruptRecord, match="hash"):
            bucket.blobs.read(REF)
    with pytest.raises(CorruptRecord):
        bucket.put()
    assert bucket.cloud.ask("s3", "get_object", {"Bucket": bucket.name, "Key": REF})["Body"] == damage


def test_an_object_that_is_gone_is_a_missing_blob_that_names_the_bucket(bucket: Bucket) -> None:
    bucket.put()
    bucket.cloud.ask("s3", "delete_object", {"Bucket": bucket.name, "Key": REF})
    for read in (bucket.get, lambda: bucket.blobs.read(REF)):
        with pytest.raises(MissingBlob, match=bucket.name) as caught:
            read()
        assert REF in str(caught.value)
    bucket.put()
    assert bucket.get() == b"data"


def test_a_bucket_that_is_gone_is_no_missing_blob(cloud: Cloud) -> None:
    transport = cloud.transport("aioboto3")
    blobs = S3Blobs(transport, "bucket-that-is-not-there")

    async def listed() -> list[str]:
        return [ref async for ref in blobs.refs("run-1")]

    for verb in (blobs.put(REF, b"data"), blobs.get(REF), blobs.delete(REF), listed()):
        with pytest.raises(StoreNotFound, match="durable init"):
            asyncio.run(verb)
    asyncio.run(blobs.close())
    transport.close_now()


def test_a_denied_read_says_that_the_object_may_be_missing_without_leave_to_list(bucket: Bucket) -> None:
    bucket.put()
    bucket.transport.plan("get_object", DENIED)
    with pytest.raises(StoreMisconfigured, match="s3:ListBucket"):
        bucket.get()


def test_an_object_larger_than_any_blob_is_not_read(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket.put()
    for module in (transport_async, transport_threads):
        monkeypatch.setattr(module, "MAX_BODY_BYTES", 3)
    for read in (bucket.get, lambda: bucket.blobs.read(REF)):
        with pytest.raises(CorruptRecord, match="4 bytes"):
            read()


@pytest.mark.parametrize("fault", FAULTS)
def test_a_put_that_fails_raises_and_a_repetition_succeeds(bucket: Bucket, fault: str) -> None:
    bucket.transport.plan("put_object", fault)
    with pytest.raises(JournalUnavailable if fault in RETRYABLE else StoreMisconfigured) as caught:
        bucket.put()
    assert caught.value.retryable == (fault in RETRYABLE)
    assert bucket.keys() == ([REF] if fault == REPLY_LOST else [])
    bucket.put()
    assert bucket.get() == b"data"
    assert bucket.keys() == [REF]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_read_that_fails_is_never_a_missing_blob(bucket: Bucket, fault: str) -> None:
    bucket.put()
    for read in (bucket.get, lambda: bucket.blobs.read(REF)):
        bucket.transport.plan("get_object", fault)
        with pytest.raises((JournalUnavailable, StoreMisconfigured)):
            read()
        assert read() == b"data"


@pytest.mark.parametrize("fault", [REPLY_LOST, DENIED, EXPIRED])
def test_a_listing_that_fails_is_never_an_empty_one(bucket: Bucket, fault: str) -> None:
    bucket.put()
    bucket.transport.plan("list_objects_v2", fault)
    with pytest.raises((JournalUnavailable, StoreMisconfigured)):
        bucket.refs()
    assert bucket.refs() == [REF]


def test_a_put_refused_while_another_is_decided_is_made_again(bucket: Bucket) -> None:
    refused = [True, True]
    real = bucket.transport.inner.call

    async def conflicting(service: Any, operation: str, request: Any) -> dict[str, Any]:
        if operation == "put_object" and refused:
            refused.pop()
            raise ConditionRefused(["ConditionalRequestConflict"], [None])
        return await real(service, operation, request)

    bucket.transport.inner.call = conflicting  # type: ignore[method-assign]  # S3's part is played here
    bucket.put()
    assert bucket.keys() == [REF]
    refused[:] = [True] * 100
    with pytest.raises(JournalUnavailable, match="put and deleted"):
        bucket.put(blob_ref("run-1", "other", b"data"))


def test_a_prefix_keeps_tenants_apart(cloud: Cloud) -> None:
    ours, theirs = Bucket(cloud, "tenant-a/"), Bucket(cloud)
    theirs.blobs = S3Blobs(theirs.transport, ours.name, "tenant-b/")
    ours.put()
    theirs.put()
    assert sorted(ours.keys()) == [f"tenant-a/{REF}", f"tenant-b/{REF}"]
    assert ours.refs() == theirs.refs() == [REF]
    escaping = f"runs/../../tenant-b/{REF}"
    for verb in (ours.blobs.get(escaping), ours.blobs.delete(escaping), ours.blobs.put(escaping, b"data")):
        with pytest.raises(InvalidId):
            ours.run(verb)
    ours.run(ours.blobs.delete(REF))
    assert ours.keys() == [f"tenant-b/{REF}"]
    for one in ours.transport.sent:
        asked = one.request.get("Key") or one.request["Prefix"]
        assert asked.startswith("tenant-a/")
    ours.close()
    theirs.close()


def test_strange_objects_are_not_listed(bucket: Bucket) -> None:
    bucket.put()
    for key in ("runs/run-1/notes.txt", "runs/run-1/", "runs/not an id/x", "runs/loose", "else/run-2/x"):
        bucket.cloud.ask("s3", "put_object", {"Bucket": bucket.name, "Key": key, "Body": b""})

    async def listed() -> list[str]:
        return [run_id async for run_id in bucket.blobs.runs()]

    assert bucket.refs() == [REF]
    assert bucket.run(listed()) == ["run-1"]


def test_the_age_of_blobs_is_told_by_the_clock_of_s3(bucket: Bucket) -> None:
    real = bucket.transport.inner.call
    later = ["Sun, 31 Dec 2090 00:00:00 GMT"]

    async def much_later(service: Any, operation: str, request: Any) -> dict[str, Any]:
        found = await real(service, operation, request)
        if operation == "list_objects_v2":
            found["ResponseMetadata"]["HTTPHeaders"]["date"] = later[0]
        return found

    bucket.put()
    assert bucket.refs(older_than_s=DAY_S) == []
    bucket.transport.inner.call = much_later  # type: ignore[method-assign]  # S3's clock is turned here
    assert bucket.refs(older_than_s=DAY_S) == [REF]
    later[0] = "Thu, 01 Jan 1970 00:00:00 GMT"
    assert bucket.refs() == [REF]


LARGE = """
import asyncio, os, resource, sys
from durable_core.aws.transport import open_transport
from durable_core.blobs.base import blob_ref
from durable_core.blobs.s3 import S3Blobs

async def main():
    transport = open_transport(region=sys.argv[2], endpoint=sys.argv[3], use_async=sys.argv[4] == "aioboto3")
    blobs = S3Blobs(transport, sys.argv[1])
    data = os.urandom(100 * 1024 * 1024)
    ref = blob_ref("run-1", "attempt", data)
    await blobs.put(ref, data)
    del data
    await blobs.get(ref)
    blobs.read(ref)
    await blobs.close()

asyncio.run(main())
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", TRANSPORTS)
def test_a_blob_of_100_mb_takes_less_than_600_mb_of_memory(cloud: Cloud, kind: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LARGE, cloud.new_bucket(), REGION, cloud.endpoint, kind],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) < 600
