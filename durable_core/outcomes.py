"""How the outcomes of map items are packed into segments.

One line of JSON an outcome: `[index, item hash, attempts, kind, key, payload]`. The payload is last, and is
what the codec wrote; so a reader takes a line apart without parsing it, and decodes a payload only when it is
wanted.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from durable_core.envelope import unseal
from durable_core.errors import CorruptRecord

if TYPE_CHECKING:
    from collections.abc import Iterator

    from durable_core.records import Segment

OUTPUT: Final = 0  # the payload is the output
BLOB: Final = 1  # the payload says where the output is: [ref, codec, raw size, hex SHA-256 of the raw bytes]
ERROR: Final = 2  # the payload is an error's code, type, message and traceback
_KINDS: Final = (OUTPUT, BLOB, ERROR)

MAX_SEGMENT_BYTES: Final = 350_000
_MARK_CHARS: Final = 16
_MAX_ITEMS: Final = 2**32
_SHA256_CHARS: Final = 64

_decoder = json.JSONDecoder()


class BlobPointer(NamedTuple):
    """Where a large output is.

    Attributes:
        size: Raw bytes.
        output_hash: Hex SHA-256 of the raw bytes.
    """

    ref: str
    codec: str
    size: int
    output_hash: str


class Outcome(NamedTuple):
    """What came of one map item.

    Attributes:
        item_index: Its position among the items, when it was run.
        mark: The first 64 bits of its hash, in hex: whether it still is the same item.
        attempts: Bodies that it took.
        kind: OUTPUT, BLOB or ERROR.
        key: Under which the item is known, in maps that have keys.
        payload: JSON.
    """

    item_index: int
    mark: str
    attempts: int
    kind: int
    key: str | None
    payload: bytes

    @property
    def succeeded(self) -> bool:
        """Whether it is an output."""
        return self.kind != ERROR

    def line(self) -> bytes:
        """As it is packed."""
        key = "null" if self.key is None else json.dumps(self.key)
        head = f'[{self.item_index},"{self.mark}",{self.attempts},{self.kind},{key},'
        return b"%b%b]" % (head.encode(), self.payload)

    def error(self) -> dict[str, Any]:
        """What an ERROR says.

        Raises:
            CorruptRecord: It can't be read.
        """
        found = _parsed(self.payload)
        if not isinstance(found, dict):
            raise CorruptRecord("the error of an item isn't one")
        return found

    def pointer(self) -> BlobPointer:
        """Where a BLOB is.

        Raises:
            CorruptRecord: It can't be read.
        """
        match _parsed(self.payload):
            case [str(ref), str(codec), int(size), str(output_hash)] if len(output_hash) == _SHA256_CHARS:
                return BlobPointer(ref, codec, size, output_hash)
        raise CorruptRecord("the pointer to an item's output isn't one")


def packed(lines: list[bytes]) -> bytes:
    """The raw bytes of a segment."""
    return b"\n".join(lines)


def outcomes_of(segment: Segment) -> list[Outcome]:
    """What a segment holds, checked; nothing for a claim.

    Raises:
        CorruptRecord: It isn't what was written.
    """
    if segment.items == 0:
        return []
    found = list(map(_read, lines_of(segment)))
    if len(found) != segment.items:
        raise _damaged(segment, f"it holds {len(found)} outcomes, not {segment.items}")
    return found


def lines_of(segment: Segment) -> Iterator[bytes]:
    """The lines of a segment with data.

    Raises:
        CorruptRecord: It isn't what was written.
    """
    try:
        if type(segment.data) is not bytes or segment.codec is None or segment.output_hash is None:
            raise CorruptRecord("it has no data, no codec or no hash")
        raw = unseal(segment.codec, segment.data, size=segment.size, output_hash=segment.output_hash)
        yield from raw.split(b"\n")
    except CorruptRecord as error:
        raise _damaged(segment, error.message) from error


def _read(line: bytes) -> Outcome:
    try:
        index, mark, attempts, kind, rest = line[1:-1].split(b",", 4)
        if rest.startswith(b"null,"):
            key, payload = None, rest[5:]
        else:
            text = rest.decode("ascii")
            key, end = _decoder.raw_decode(text)
            payload = rest[end + 1 :]
        found = Outcome(int(index), mark[1:-1].decode("ascii"), int(attempts), int(kind), key, payload)
        int(found.mark, 16)
    except ValueError as error:
        raise CorruptRecord(f"an outcome in a segment can't be read: {error}") from error
    sound = (
        line[:1] == b"[" and line[-1:] == b"]" and found.kind in _KINDS and 0 <= found.item_index < _MAX_ITEMS
    )
    if not sound or len(found.mark) != _MARK_CHARS or not isinstance(key, str | None):
        raise CorruptRecord("an outcome in a segment can't be read")
    return found


def _parsed(payload: bytes) -> object:
    try:
        return json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise CorruptRecord(f"a part of an outcome can't be read: {error}") from error


def _damaged(segment: Segment, why: str) -> CorruptRecord:
    return CorruptRecord(
        f"segment {segment.seq} of chunk {segment.chunk} is damaged: {why}",
        run_id=segment.run_id,
        step_id=segment.step_id,
        remedy="Restore it from a backup, or fork the run from before this step",
    )
