"""Where the outcomes of a map that has committed are, and who reads them."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from durable_core.codec import decode, encode
from durable_core.errors import CorruptRecord

if TYPE_CHECKING:
    from durable_core.item_table import Place
    from durable_core.outcomes import Outcome
    from durable_core.records import StepRecord


_SHA256_CHARS: Final = 64


class MapReference(NamedTuple):
    """Where the outcomes of a map that has committed are, and what they were.

    Attributes:
        pins: The last seq of each chunk that belongs to it; what lies beyond is ignored.
        first_seq: What lies before is of other arguments.
        base_fence: Segments with a fence up to this are of an earlier life of the run's id.
        content_hash: Hex SHA-256 over the items' states and outputs, in order.
        order_segments: How many of the last segments hold the order of the items; none where it is that of
            their indexes.
        collects: Whether it has `outputs`.
    """

    run_id: str
    step_id: str
    pins: tuple[int, ...]
    first_seq: int
    base_fence: int
    succeeded: int
    failed: int
    content_hash: str
    order_segments: int
    collects: bool

    def is_sound(self) -> bool:
        """Whether each part is what it can be: it may have been read from anywhere."""
        counts = (self.first_seq, self.base_fence, self.succeeded, self.failed, self.order_segments)
        return (
            len(self.pins) > 0
            and all(type(pin) is int and pin >= -1 for pin in self.pins)
            and all(type(count) is int and count >= 0 for count in counts)
            and type(self.content_hash) is str
            and len(self.content_hash) == _SHA256_CHARS
            and type(self.collects) is bool
        )


class OutcomeReader(Protocol):
    """Reads what segments hold; blocking, in any thread."""

    def outcomes(self, of: MapReference, chunk: int, first: int, last: int) -> dict[int, list[Outcome]]:
        """The outcomes of a chunk's segments by seq, from `first` to `last`; of this life only."""
        ...

    def order(self, of: MapReference) -> list[Place]:
        """The places of all items, where their order is recorded."""
        ...

    def large(self, outcome: Outcome) -> bytes:
        """The raw bytes of a large output."""
        ...


_OUTPUT_PARTS: Final = ("succeeded", "failed", "content_hash", "collects")
_PLACE_PARTS: Final = ("pins", "first_seq", "base_fence", "order_segments")

reading: ContextVar[OutcomeReader | None] = ContextVar("durable_core.reading", default=None)


def recorded_output(reference: MapReference, items_hash: str) -> bytes:
    """The output of a map's COMMITTED record: what came out, and not where it is. Plain JSON.

    The same items give the same bytes, in whatever store, and in a fork.
    """
    told = {name: getattr(reference, name) for name in _OUTPUT_PARTS}
    return encode({**told, "items_hash": items_hash})


def recorded_place(reference: MapReference) -> dict[str, Any]:
    """What the `detail` of that record says: where the outcomes are."""
    return {name: getattr(reference, name) for name in _PLACE_PARTS}


def recorded_map(record: StepRecord, raw: bytes) -> tuple[MapReference, str]:
    """Where the outcomes of a COMMITTED map are, and the hash of its items.

    Args:
        record: Of the map.
        raw: Its output.

    Raises:
        CorruptRecord: They aren't a map's.
    """
    found, place = decode(raw), record.details()
    try:
        parts = {name: found[name] for name in _OUTPUT_PARTS} | {name: place[name] for name in _PLACE_PARTS}
        parts["pins"] = tuple(parts["pins"])
        reference = MapReference(run_id=record.run_id, step_id=record.step_id, **parts)
        if not reference.is_sound():
            raise ValueError("a part isn't what it can be")
        return reference, found["items_hash"]
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptRecord(
            "the record of the map doesn't say where its outcomes are",
            run_id=record.run_id,
            step_id=record.step_id,
        ) from error
