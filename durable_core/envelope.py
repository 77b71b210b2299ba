"""How encoded bytes are stored: compressed where that helps, with size and hash, read back under a cap."""

from __future__ import annotations

import threading
import zlib
from hashlib import sha256
from typing import Final, Literal, NamedTuple

import zstandard

from durable_core.errors import CorruptRecord, OutputTooLarge

DEFAULT_CAP: Final = 256 * 1024 * 1024
PLAIN_BELOW: Final = 2048

_ZSTD_LEVEL = 3
_GZIP_LEVEL = 1  # states of agents: half the time of level 6, for a tenth more bytes
_GZIP_WBITS = 31
_UNKNOWN_SIZE = 2**64 - 1
_REMEDY = "Restore the record from a backup, or run the step anew in a fork of the run"

_local = threading.local()


class Sealed(NamedTuple):
    """Encoded bytes as they are stored.

    Attributes:
        codec: `json`, `json+zstd` or `json+gzip`.
        data: The stored bytes.
        size: Of the raw bytes.
        output_hash: Hex SHA-256 of the raw bytes.
    """

    codec: str
    data: bytes
    size: int
    output_hash: str


def seal(raw: bytes, *, cap: int = DEFAULT_CAP, codec: Literal["zstd", "gzip"] = "zstd") -> Sealed:
    """Encoded bytes, ready to be stored. The same bytes give the same result.

    Args:
        raw: What the codec wrote.
        cap: Most raw bytes.
        codec: How to compress from 2 KiB on, where it makes them smaller.

    Raises:
        OutputTooLarge: There are more than `cap`.
    """
    size = len(raw)
    if size < PLAIN_BELOW and size <= cap:
        return Sealed("json", raw, size, sha256(raw).hexdigest())
    if size > cap:
        raise OutputTooLarge(
            f"it is {size} bytes as JSON, and the limit is {cap}",
            remedy="Write it to storage of your own and return where it is, or return it in parts",
        )
    packed = _zstd(raw) if codec == "zstd" else _gzip(raw)
    hashed = sha256(raw).hexdigest()
    return (
        Sealed(f"json+{codec}", packed, size, hashed)
        if len(packed) < size
        else Sealed("json", raw, size, hashed)
    )


def unseal(
    codec: str, data: bytes, *, size: int | None, output_hash: str | None, cap: int = DEFAULT_CAP
) -> bytes:
    """The raw bytes of a sealed value, checked against what is recorded of them.

    Args:
        codec: As recorded.
        data: The stored bytes.
        size: Recorded number of raw bytes; None if there is no such record.
        output_hash: Recorded hex SHA-256 of the raw bytes; None if there is no such record.
        cap: Most raw bytes to make room for, whatever the data claims.

    Raises:
        CorruptRecord: Anything about it doesn't match.
    """
    most = cap if size is None else size
    if most > cap:
        raise _corrupt(f"it is recorded with {size} bytes, more than the limit of {cap}")
    if codec == "json":
        raw = data
    elif codec == "json+zstd":
        raw = _unzstd(data, most)
    elif codec == "json+gzip":
        raw = _ungzip(data, most)
    else:
        raise _corrupt(f"its codec {codec!r:.40} is not known here")
    if len(raw) > most or (size is not None and len(raw) != size):
        raise _corrupt(f"it has {len(raw)} bytes, not {most}")
    if output_hash is not None and sha256(raw).hexdigest() != output_hash:
        raise _corrupt("its hash is not the recorded one")
    return raw


def _zstd(raw: bytes) -> bytes:
    # A compressor isn't to be shared between threads, and takes longer to make than to use on a small value.
    compressor: zstandard.ZstdCompressor | None = getattr(_local, "compressor", None)
    if compressor is None:
        compressor = _local.compressor = zstandard.ZstdCompressor(level=_ZSTD_LEVEL)
    return compressor.compress(raw)


def _unzstd(data: bytes, most: int) -> bytes:
    try:
        claimed = zstandard.get_frame_parameters(data).content_size
        if claimed != _UNKNOWN_SIZE and claimed > most:
            raise _corrupt(f"it claims to hold {claimed} bytes, more than {most}")
        # Room is made for what the frame claims, or at most `most`: never for what it would grow to.
        return zstandard.ZstdDecompressor().decompress(data, max_output_size=most + 1, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise _corrupt(f"it can't be decompressed: {error}") from error


def _gzip(raw: bytes) -> bytes:
    # zlib's own gzip header has no time in it, so the same bytes stay the same bytes.
    compressor = zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, _GZIP_WBITS)
    return compressor.compress(raw) + compressor.flush()


def _ungzip(data: bytes, most: int) -> bytes:
    stream = zlib.decompressobj(_GZIP_WBITS)
    try:
        raw = stream.decompress(data, most + 1)
    except zlib.error as error:
        raise _corrupt(f"it can't be decompressed: {error}") from error
    if len(raw) > most:
        raise _corrupt(f"it holds more than {most} bytes")
    if not stream.eof:
        raise _corrupt("it is cut short")
    if stream.unused_data:
        raise _corrupt("it has something behind its end")
    return raw


def _corrupt(what: str) -> CorruptRecord:
    return CorruptRecord(f"a stored value is damaged: {what}", remedy=_REMEDY)
