"""Outputs on their way into the store and back: sealed, spilled when large, checked when read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from durable_core.blobs.base import blob_ref
from durable_core.codec import restore, text_of
from durable_core.engine.asking import ask
from durable_core.envelope import DEFAULT_CAP, seal, unseal
from durable_core.errors import CorruptRecord
from durable_core.store import DEFAULT_INLINE_MAX_BYTES

if TYPE_CHECKING:
    from pydantic import TypeAdapter

    from durable_core.blobs.base import BlobStore
    from durable_core.envelope import Sealed


class Stored(NamedTuple):
    """Where and how a value is stored; `data` or `ref`, never both."""

    codec: str
    data: bytes | None
    ref: str | None
    size: int
    output_hash: str


class Values:
    """Stores raw bytes inline or as a blob.

    Args:
        blobs: Where large ones go.
        inline_max_bytes: The most stored bytes that stay in the record.
        cap_bytes: The most raw bytes that a value may have.
    """

    def __init__(
        self,
        blobs: BlobStore,
        inline_max_bytes: int = DEFAULT_INLINE_MAX_BYTES,
        cap_bytes: int = DEFAULT_CAP,
    ) -> None:
        self.blobs = blobs
        self.inline_max_bytes = inline_max_bytes
        self.cap_bytes = cap_bytes

    async def store(self, raw: bytes, run_id: str, attempt_id: str) -> Stored:
        """Makes a value durable as far as it isn't inline: the blob first, so that no pointer ever dangles.

        Raises:
            OutputTooLarge: It is over the cap.
            JournalUnavailable, StoreMisconfigured: The blob can't be written.
        """
        sealed = seal(raw, cap=self.cap_bytes)
        if len(sealed.data) <= self.inline_max_bytes:
            return Stored(sealed.codec, sealed.data, None, sealed.size, sealed.output_hash)
        return await self._spill(sealed, run_id, attempt_id)

    async def spilled(self, raw: bytes, run_id: str, attempt_id: str) -> Stored:
        """Makes a value durable as a blob, however small it is.

        Raises:
            OutputTooLarge: It is over the cap.
            JournalUnavailable, StoreMisconfigured: The blob can't be written.
        """
        return await self._spill(seal(raw, cap=self.cap_bytes), run_id, attempt_id)

    async def _spill(self, sealed: Sealed, run_id: str, attempt_id: str) -> Stored:
        ref = blob_ref(run_id, attempt_id, sealed.data)
        await ask(self.blobs.put, ref, sealed.data)
        return Stored(sealed.codec, None, ref, sealed.size, sealed.output_hash)

    async def copied(self, ref: str, run_id: str, attempt_id: str) -> str:
        """Copies a blob for another run; gives the copy's name.

        Raises:
            CorruptRecord, MissingBlob: It isn't what was stored.
        """
        data = await ask(self.blobs.get, ref)
        copy = blob_ref(run_id, attempt_id, data)
        await ask(self.blobs.put, copy, data)
        return copy

    async def load(
        self,
        codec: str | None,
        data: bytes | None,
        ref: str | None,
        size: int | None,
        output_hash: str | None,
    ) -> bytes:
        """The raw bytes, checked against size and hash.

        Raises:
            CorruptRecord, MissingBlob: They aren't what was stored.
        """
        if data is None:
            if ref is None:
                raise CorruptRecord("the record has neither an output nor a pointer to one")
            data = await ask(self.blobs.get, ref)
        return self.opened(codec, data, size, output_hash)

    async def restore(
        self,
        codec: str | None,
        data: bytes | None,
        ref: str | None,
        size: int | None,
        output_hash: str | None,
        adapter: TypeAdapter[Any] | None,
    ) -> Any:
        """The value. Of a large one as little as possible is held on the way: the bytes go before it comes.

        Raises:
            CorruptRecord, MissingBlob: It isn't what was stored.
            UnknownType: It is of a class that isn't there.
        """
        stored = text_of(await self.load(codec, data, ref, size, output_hash))
        return restore(stored, adapter)

    def opened(
        self, codec: str | None, data: bytes | None, size: int | None, output_hash: str | None
    ) -> bytes:
        """The raw bytes of stored ones, checked against size and hash.

        Raises:
            CorruptRecord: They aren't what was stored.
        """
        if not (type(data) is bytes and type(codec) is str and type(output_hash) is str):
            raise CorruptRecord("the record's output, its codec or its hash is of the wrong type")
        return unseal(codec, data, size=size, output_hash=output_hash, cap=self.cap_bytes)
