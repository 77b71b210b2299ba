"""Blobs as objects in S3: what DynamoDB uses.

Encryption, versions and life-times are the bucket's business; `durable init` sets them.
"""

from __future__ import annotations

import asyncio
import base64
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Final

from durable_core.aws.failures import ConditionRefused, NotThere
from durable_core.blobs.base import (
    RUNS,
    BlobStore,
    check_bytes,
    check_ref,
    check_run_id,
    is_ref,
    is_run_id,
    missing,
    too_large,
)
from durable_core.errors import JournalUnavailable, MissingBlob

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from durable_core.aws.transport import Transport
    from durable_core.blobs.base import Owners

_TRIES: Final = 6
_PAUSE_S: Final = 0.1
_HASHED_AT_ONCE_BYTES: Final = 256 * 1024  # the hash of more takes longer than a turn of the loop should


class S3Blobs(BlobStore):
    """Blobs in a bucket.

    Args:
        transport: To AWS.
        bucket: Its name.
        prefix: Before each key; empty, or with a slash at its end.
        page_size: Objects per page of a listing.
    """

    def __init__(self, transport: Transport, bucket: str, prefix: str = "", *, page_size: int = 1000) -> None:
        self.bucket = bucket
        self.prefix = prefix
        self._transport = transport
        self._page_size = page_size

    async def put(self, ref: str, data: bytes) -> None:
        """Store a blob."""
        request = {
            **self._object(ref),
            "Body": data,
            "ChecksumSHA256": base64.b64encode(bytes.fromhex(ref[-64:])).decode(),
            "ContentType": "application/octet-stream",
            "IfNoneMatch": "*",
        }
        await _checked(ref, data)
        for tried in range(_TRIES):
            # Two puts of one ref are of the same bytes, since its name has their hash: two tries of one
            # attempt, or a try whose reply was lost and its repetition.
            #
            #   first try    put ── stored ── (reply lost)
            #   second try                                   put: refused ── reads it: the same ── success
            #
            # Refused without an object there: S3 was deciding about another put (409), or it was deleted
            # between the refusal and the look. Then it is put again.
            try:
                await self._transport.call("s3", "put_object", request)
                return
            except ConditionRefused:
                try:
                    await self.get(ref)
                    return
                except MissingBlob:
                    await asyncio.sleep(_PAUSE_S * tried)
        raise JournalUnavailable(
            f"the blob {ref} is put and deleted by others all the time in {self._place()}",
            remedy="Resume the run: nothing was lost",
        )

    async def get(self, ref: str) -> bytes:
        """The bytes of a blob."""
        try:
            reply = await self._transport.call("s3", "get_object", self._object(ref))
        except NotThere as error:
            raise missing(ref, self._place()) from error
        return await _checked(ref, _body(ref, reply))

    def read(self, ref: str) -> bytes:
        """The bytes of a blob, for plain code."""
        try:
            reply = self._transport.call_now("s3", "get_object", self._object(ref))
        except NotThere as error:
            raise missing(ref, self._place()) from error
        data = _body(ref, reply)
        check_bytes(ref, data)
        return data

    async def delete(self, ref: str) -> None:
        """Remove a blob."""
        await self._transport.call("s3", "delete_object", self._object(ref))

    async def refs(self, run_id: str, *, older_than_s: float = 0, of: Owners = RUNS) -> AsyncIterator[str]:
        """The refs of a run's blobs; their age is told by the clock of S3."""
        check_run_id(run_id)
        async for page in self._pages(f"{of}/{run_id}/"):
            now = parsedate_to_datetime(page["ResponseMetadata"]["HTTPHeaders"]["date"])
            for one in page.get("Contents", ()):
                ref = one["Key"].removeprefix(self.prefix)
                # S3 counts whole seconds, so that an object may seem to be of a moment to come.
                age_s = max((now - one["LastModified"]).total_seconds(), 0)
                if is_ref(ref) and age_s >= older_than_s:
                    yield ref

    async def runs(self) -> AsyncIterator[str]:
        """The ids of the runs that have blobs."""
        async for page in self._pages("runs/", Delimiter="/"):
            for one in page.get("CommonPrefixes", ()):
                run_id = one["Prefix"].removeprefix(f"{self.prefix}runs/").removesuffix("/")
                if is_run_id(run_id):
                    yield run_id

    async def close(self) -> None:
        """Close the transport; it connects again if somebody else still uses it."""
        await self._transport.close()

    async def _pages(self, below: str, **options: str) -> AsyncIterator[dict[str, Any]]:
        request: dict[str, Any] = {
            "Bucket": self.bucket,
            "Prefix": f"{self.prefix}{below}",
            "MaxKeys": self._page_size,
            **options,
        }
        while True:
            page = await self._transport.call("s3", "list_objects_v2", request)
            yield page
            if not page.get("IsTruncated"):
                return
            request["ContinuationToken"] = page["NextContinuationToken"]

    def _object(self, ref: str) -> dict[str, Any]:
        check_ref(ref)
        return {"Bucket": self.bucket, "Key": f"{self.prefix}{ref}"}

    def _place(self) -> str:
        return f"the bucket {self.bucket}" + (f" under {self.prefix}" if self.prefix else "")


def _body(ref: str, reply: Mapping[str, Any]) -> bytes:
    data: bytes | None = reply["Body"]
    if data is None:
        raise too_large(ref, reply["ContentLength"])
    return data


async def _checked(ref: str, data: bytes) -> bytes:
    if len(data) <= _HASHED_AT_ONCE_BYTES:
        check_bytes(ref, data)
    else:
        await asyncio.to_thread(check_bytes, ref, data)
    return data
