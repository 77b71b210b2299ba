"""Objects of S3 read in parts, for manifests that are larger than memory. Blocking, from any thread."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from durable_core.aws.failures import ConditionRefused, NotThere
from durable_core.aws.transport import MAX_BODY_BYTES
from durable_core.errors import ManifestError, StoreNotFound, UsageError

if TYPE_CHECKING:
    from typing import Any

    from durable_core.aws.transport import Transport


class RangedObject:
    """An object as it was when this was made: parts of a later version of it are never given.

    Attributes:
        url: `s3://BUCKET/KEY`.
        size: In bytes.
        etag: Of the version that is read.
    """

    def __init__(self, transport: Transport, url: str) -> None:
        """Looks at the object.

        Args:
            transport: To AWS; it stays open.
            url: `s3://BUCKET/KEY`.

        Raises:
            UsageError: The URL is another.
            ManifestError: There is no such object, or bucket.
            StoreMisconfigured: It may not be read.
            JournalUnavailable: AWS doesn't answer.
        """
        bucket, key = bucket_and_key(url)
        self.url = url
        self._transport = transport
        self._request = {"Bucket": bucket, "Key": key}
        found = self._ask("head_object", {})
        self.size = int(found["ContentLength"])
        self.etag = str(found["ETag"])

    def read(self, start: int, length: int) -> bytes:
        """A part of the object.

        Args:
            start: Its first byte, counted from 0.
            length: How many bytes; there are fewer only at the end of the object.

        Raises:
            ManifestError: The object isn't there any more, or is another by now.
            StoreMisconfigured, JournalUnavailable: As when it was looked at.
        """
        length = min(length, self.size - start)
        if start < 0 or length > MAX_BODY_BYTES:
            raise UsageError(f"{length} bytes from {start} on are no part that can be read at once")
        if length <= 0:
            return b""
        part = {"Range": f"bytes={start}-{start + length - 1}", "IfMatch": self.etag}
        data: bytes = self._ask("get_object", part)["Body"]
        if len(data) != length:
            raise self._changed()
        return data

    def _ask(self, operation: str, more: dict[str, str]) -> dict[str, Any]:
        try:
            return self._transport.call_now("s3", operation, self._request | more)
        except (NotThere, StoreNotFound) as error:
            raise ManifestError(
                f"{self.url} isn't there", remedy="Put it there, or check bucket, key, region and account"
            ) from error
        except ConditionRefused as error:
            raise self._changed() from error

    def _changed(self) -> ManifestError:
        return ManifestError(
            f"{self.url} was replaced while it was read",
            remedy="Put a list of items in place once, under a name of its own, and start the map anew",
        )


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
