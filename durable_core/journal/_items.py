"""Items of the DynamoDB table: which record they hold, and whether they fit.

Attributes are named like the fields of the record. What is None is left out: a condition on it then sees that
it isn't there.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, get_type_hints

from durable_core.errors import CorruptRecord, InvalidId, OutputTooLarge
from durable_core.journal._dynamodb_keys import (
    CHUNKS,
    EVENTS,
    HEADER,
    OPEN_MAPS_SHARD,
    SEGMENTS,
    STEPS,
    Item,
    chunk_key,
    event_key,
    grave_of,
    index_of,
    key,
    names_of,
    run_of,
    segment_key,
    step_key,
    text_of,
)
from durable_core.journal.chunks import is_shared
from durable_core.journal.damaged import mending
from durable_core.records import (
    CORRUPT,
    RUN_STATUSES,
    STEP_STATUSES,
    TOMBSTONE,
    Child,
    Chunk,
    Event,
    RunHeader,
    Segment,
    StepRecord,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from durable_core.journal.carrying import Record

MAX_ITEM_BYTES: Final = 400 * 1024
MAX_SORT_KEY_BYTES: Final = 1024

CHILD_ATTRIBUTES: Final = ("pk", "sk", "fence", "output_ref", "refs", "ref", "output_size", "size")
"""What pruning has to know of an item under a run."""


# ---- Records to items ----


def attribute(value: str | int | bytes) -> dict[str, Any]:
    """A value as DynamoDB takes it."""
    if isinstance(value, str):
        return {"S": value}
    return {"B": value} if isinstance(value, bytes) else {"N": str(value)}


def header_item(header: RunHeader) -> Item:
    """The item of a header, with what the indexes go by."""
    values = {name: getattr(header, name) for name in _HEADER}
    values |= index_of(header.run_id, header.status)
    if (header.status, header.expires_at_s, header.due_at_ms) == (TOMBSTONE, None, 0):  # as they are buried
        values |= grave_of(header.run_id, header.updated_at)
    return key(header.run_id, HEADER) | _attributes(values)


def step_item(record: StepRecord) -> Item:
    """The item of a step; of a map that workers share, with its place among those."""
    values = record._asdict()
    if is_shared(record):
        values |= {"due_shard": OPEN_MAPS_SHARD, "due_at_ms": 0}
    return key(record.run_id, step_key(record.step_id)) | _attributes(values)


def segment_item(segment: Segment) -> Item:
    """The item of a segment."""
    place = segment_key(segment.step_id, segment.chunk, segment.seq)
    return key(segment.run_id, place) | _attributes(segment._asdict())


def chunk_item(chunk: Chunk) -> Item:
    """The item of a chunk."""
    return key(chunk.run_id, chunk_key(chunk.step_id, chunk.chunk)) | _attributes(chunk._asdict())


def event_item(event: Event) -> Item:
    """The item of an event."""
    return key(event.run_id, event_key(event.name, event.seq)) | _attributes(event._asdict())


def item_of(record: Record) -> Item:
    """The item of any record under a header."""
    match record:
        case StepRecord():
            return step_item(record)
        case Segment():
            return segment_item(record)
        case Event():
            return event_item(record)
        case _:
            return chunk_item(record)


def _attributes(values: Mapping[str, Any]) -> Item:
    return {name: attribute(value) for name, value in values.items() if value is not None}


# ---- Items to records ----


class _Field(NamedTuple):
    """How an attribute is read. A number that isn't one of ours makes `read` raise a ValueError."""

    kind: str
    optional: bool
    read: Callable[[Any], Any]


_KINDS: Final[dict[object, _Field]] = {
    str: _Field("S", False, str),
    int: _Field("N", False, int),
    str | None: _Field("S", True, str),
    int | None: _Field("N", True, int),
    bytes | None: _Field("B", True, bytes),
}


def _fields_of(record: type, names: tuple[str, ...]) -> dict[str, _Field]:
    hints = get_type_hints(record)
    return {name: _KINDS[hints[name]] for name in names}


_HEADER: Final = _fields_of(RunHeader, tuple(field.name for field in fields(RunHeader)))
_STEP: Final = _fields_of(StepRecord, StepRecord._fields)
_SEGMENT: Final = _fields_of(Segment, Segment._fields)
_EVENT: Final = _fields_of(Event, Event._fields)
_CHUNK: Final = _fields_of(Chunk, Chunk._fields)


def header_of(item: Item) -> RunHeader:
    """The header in an item.

    Raises:
        CorruptRecord: It can't be one that we wrote; names the run.
    """
    header = RunHeader(*_values(item, _HEADER))
    _check(item, header.status in RUN_STATUSES, f"its status is {header.status!r}")
    _check_place(item, header.run_id, HEADER)
    in_grave = header.status == TOMBSTONE and item.get("due_shard") is not None
    return replace(header, due_at_ms=0) if in_grave else header  # it was only its place in the index


def known_of(item: Item) -> dict[str, Any]:
    """What can be read of a header, by attribute, also when all of it can't."""
    known: dict[str, Any] = {}
    for name, field in _HEADER.items():
        with suppress(CorruptRecord):
            (known[name],) = _values(item, {name: field})
    return known


def step_of(item: Item) -> StepRecord:
    """The record of a step in an item.

    Raises:
        CorruptRecord: It can't be one that we wrote; names run and step.
    """
    record = StepRecord._make(_values(item, _STEP))
    _check(item, record.status in STEP_STATUSES, f"its status is {record.status!r}")
    _check_place(item, record.run_id, step_key(record.step_id))
    return record


def segment_of(item: Item) -> Segment:
    """The segment in an item.

    Raises:
        CorruptRecord: It can't be one that we wrote; names run and step.
    """
    segment = Segment._make(_values(item, _SEGMENT))
    _check_place(item, segment.run_id, segment_key(segment.step_id, segment.chunk, segment.seq))
    return segment


def chunk_of(item: Item) -> Chunk:
    """The chunk in an item.

    Raises:
        CorruptRecord: It can't be one that we wrote; names run and step.
    """
    chunk = Chunk._make(_values(item, _CHUNK))
    _check_place(item, chunk.run_id, chunk_key(chunk.step_id, chunk.chunk))
    return chunk


def event_of(item: Item) -> Event:
    """The event in an item.

    Raises:
        CorruptRecord: It can't be one that we wrote; names the run.
    """
    event = Event._make(_values(item, _EVENT))
    _check_place(item, event.run_id, event_key(event.name, event.seq))
    return event


def child_of(item: Item) -> Child:
    """What pruning has to know of an item under a run.

    Raises:
        CorruptRecord: No item of ours has that key, or it lacks a fence.
    """
    sort_key = text_of(item, "sk")
    (fence,) = _values(item, {"fence": _KINDS[int]})
    output_ref, refs, ref = _values(item, dict.fromkeys(("output_ref", "refs", "ref"), _KINDS[str | None]))
    if sort_key.startswith(STEPS):
        named = (output_ref,) if output_ref is not None else ()
        return Child("step", sort_key[len(STEPS) :], 0, 0, fence, named, _size(item))
    try:
        if sort_key.startswith(SEGMENTS):
            name, chunk, seq = sort_key[len(SEGMENTS) :].rsplit("!", 2)
            return Child("segment", name, int(chunk), int(seq), fence, _refs(refs), _size(item))
        if sort_key.startswith(EVENTS):
            name, seq = sort_key[len(EVENTS) :].rsplit("!", 1)
            return Child("event", name, 0, int(seq), fence, (ref,) if ref is not None else (), _size(item))
        if sort_key.startswith(CHUNKS):
            name, chunk = sort_key[len(CHUNKS) :].rsplit("!", 1)
            return Child("chunk", name, int(chunk), 0, fence)
    except (ValueError, RecursionError) as error:
        raise _corrupt(item, f"neither its key nor the JSON of its blobs may be so: {error}") from error
    raise _corrupt(item, "no record has such a key")


def listed(item: Item) -> RunHeader:
    """A header for a listing: one that can't be read tells why, and doesn't hide the others."""
    try:
        return header_of(item)
    except CorruptRecord as error:
        told = {"code": error.code, "type": CorruptRecord.__name__, "message": error.message}
        return RunHeader(
            run_id=run_of(item),
            workflow=text_of(item, "workflow"),
            status=CORRUPT,
            error=json.dumps(told),
            created_at=text_of(item, "created_at"),
            updated_at=text_of(item, "updated_at"),
        )


def _values(item: Item, wanted: Mapping[str, _Field]) -> list[Any]:
    found: list[Any] = []
    for name, (kind, optional, read) in wanted.items():
        given = item.get(name)
        if given is None and optional:
            found.append(None)
            continue
        _check(item, given is not None, f"it has no {name}")
        try:
            found.append(read(given[kind]))  # type: ignore[index]  # checked in the line above
        except (KeyError, ValueError) as error:
            raise _corrupt(item, f"{name} is {given!r:.100}") from error
    return found


def _size(item: Item) -> int:
    """Raw bytes, for people: where it is damaged, that is told of when the record is read."""
    told = str((item.get("output_size") or item.get("size") or {}).get("N", ""))
    return int(told) if told.isdecimal() else 0


def _refs(stored: str | None) -> tuple[str, ...]:
    found = json.loads(stored) if stored is not None else []
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise ValueError("it isn't a list of names")
    return tuple(found)


def _check_place(item: Item, run_id: str, sort_key: str) -> None:
    there = key(run_id, sort_key)
    _check(item, all(item.get(name) == there[name] for name in there), "it says that it is another's")


def _check(item: Item, holds: bool, otherwise: str) -> None:
    if not holds:
        raise _corrupt(item, otherwise)


def _corrupt(item: Item, why: str) -> CorruptRecord:
    return CorruptRecord(
        f"the item {text_of(item, 'pk')!r} {text_of(item, 'sk')!r} can't be read: {why}",
        remedy=mending(run_of(item)) if text_of(item, "sk") == HEADER else _REMEDY,
        **names_of(item),
    )


_REMEDY: Final = "Restore the table to a point in time before that, or mend the item by hand"

# ---- What fits ----


def fitting(item: Item) -> Item:
    """An item that DynamoDB takes, as far as its size goes.

    Raises:
        OutputTooLarge: It is over 400 KB; names run and step.
        InvalidId: Its key is too long.
    """
    size_bytes = item_bytes(item)
    if size_bytes > MAX_ITEM_BYTES:
        raise OutputTooLarge(
            f"the record would have {size_bytes} bytes, and DynamoDB takes {MAX_ITEM_BYTES} at the most",
            remedy="Lower inline_max_bytes of the store, so that outputs go to S3, or shorten what it says",
            **names_of(item),
        )
    if len(text_of(item, "sk").encode()) > MAX_SORT_KEY_BYTES:
        raise InvalidId(
            f"its id makes a key of more than the {MAX_SORT_KEY_BYTES} bytes that DynamoDB takes",
            remedy="Shorten the names of steps and branches, or nest fewer",
            **names_of(item),
        )
    return item


def item_bytes(item: Item) -> int:
    """The size of an item as DynamoDB counts it: names and values; of numbers a little more."""
    return sum(len(name) + _value_bytes(value) for name, value in item.items())


def _value_bytes(given: dict[str, Any]) -> int:
    ((kind, value),) = given.items()
    if kind == "N":
        return len(value) // 2 + 2
    return len(value.encode("utf-8", "surrogatepass") if kind == "S" else value)
