"""Objects of S3 read in parts, for manifests that are larger than memory. Blocking, from any thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from durable_core.aws.failures import ConditionRefused, NotThere
from durable_core.aws.transport import MAX_BODY_BYTES, open_transport
from durable_core.errors import ManifestError, StoreMisconfigured, StoreNotFound, UsageError
from durable_core.manifest_lines import changed

if TYPE_CHECKING:
    from typing import Any

    from durable_core.aws.transport import Transport

_PART_BYTES: Final = 4 * 1024 * 1024


def open_object(url: str) -> RangedObject:
    """An object by a connection of its own, with region, credentials and endpoint from the usual chains.

    Raises:
        DurableError: As by `RangedObject`; or boto3 isn't installed.
    """
    transport = open_transport(use_async=False)
    try:
        return RangedObject(transport, url)
    except BaseException:  # nobody else has the transport yet; it is raised on
        transport.close_now()
        raise


class RangedObject:
    """An object as it was when this was made: parts of a later version of it are never given.

    Attributes:
        url: `s3://BUCKET/KEY`.
        size: In bytes.
        version: The ETag of what is read.
        part_bytes: How much is best read at once.
    """

    part_bytes = _PART_BYTES

    def __init__(self, transport: Transport, url: str) -> None:
        """Looks at the object.

        Args:
            transport: To AWS.
            url: `s3://BUCKET/KEY`.

        Raises:
            UsageError: The URL is another.
            ManifestError: There is no such object or bucket, or it may not be read.
            JournalUnavailable: AWS doesn't answer.
        """
        bucket, key = bucket_and_key(url)
        self.url = url
        self._transport = transport
        self._request = {"Bucket": bucket, "Key": key}
        found = self._ask("head_object", {})
        self.size = int(found["ContentLength"])
        self.version = str(found["ETag"])

    def read(self, start: int, length: int) -> bytes:
        """A part of the object.

        Args:
            start: Its first byte, counted from 0.
            length: How many bytes; there are fewer only at the end of the object.

        Raises:
            ManifestError: The object isn't there any more, is another by now, or may not be read.
            JournalUnavailable: AWS doesn't answer.
        """
        length = min(length, self.size - start)
        if start < 0 or length > MAX_BODY_BYTES:
            raise UsageError(f"{length} bytes from {start} on are no part that can be read at once")
        if length <= 0:
            return b""
        part = {"Range": f"bytes={start}-{start + length - 1}", "IfMatch": self.version}
        data: bytes = self._ask("get_object", part)["Body"]
        if len(data) != length:
            raise changed(self)
        return data

    def _ask(self, operation: str, more: dict[str, str]) -> dict[str, Any]:
        try:
            return self._transport.call_now("s3", operation, self._request | more)
        except (NotThere, StoreNotFound) as error:
            raise ManifestError(
                f"the manifest {self} isn't there",
                remedy="Put it there, or check bucket, key, region and account; then resume the run",
            ) from error
        except ConditionRefused as error:
            raise changed(self) from error
        except StoreMisconfigured as error:
            raise ManifestError(
                f"the manifest {self} can't be read: {error.message}", remedy=error.remedy
            ) from error

    def close(self) -> None:
        """Closes the connection; it is opened again when it is used."""
        self._transport.close_now()

    def __str__(self) -> str:
        return self.url


def bucket_and_key(url: str) -> tuple[str, str]:
    """The parts of `s3://BUCKET/KEY`; a `%20` in the key is a space.

    Raises:
        UsageError: It is no such URL.
    """
    parts = urlsplit(url)
    key = unquote(parts.path.removeprefix("/"))
    if (
        parts.scheme != "s3"
        or not parts.netloc
        or "@" in parts.netloc
        or not key
        or parts.query
        or parts.fragment
    ):
        raise UsageError(
            f"{url.rpartition('@')[2]!r} names no object in S3",
            remedy="Write s3://BUCKET/KEY, with %23 and %3F for # and ? in the key",
        )
    return parts.netloc, key
