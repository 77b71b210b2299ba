"""The result of a map as a value: a reference, whatever is forged about it, and what is read by it."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from durable_core import MapOutputs, MapResult
from durable_core.codec import adapter_for, decode, encode
from durable_core.engine.batch_log import filled
from durable_core.errors import CorruptRecord, UsageError
from durable_core.identity import input_hash
from durable_core.item_table import ItemTable, Place
from durable_core.map_reference import (
    MapReference,
    OutcomeReader,
    recorded_map,
    recorded_output,
    recorded_place,
)
from durable_core.outcomes import ERROR, OUTPUT, Outcome, outcomes_of
from durable_core.records import COMMITTED, MAP_KIND, Segment, StepRecord

GOOD = ["r1", "s", [1], 0, 0, 2, 1, "a" * 64, 0, True]


class Log(OutcomeReader):
    """Segments in a list, and what was asked for."""

    def __init__(self, *segments: list[Outcome]) -> None:
        empty = Segment("r1", "s", 0, 0, "a", 1)
        self.segments = [
            filled(empty._replace(seq=seq, items=len(found)), [one.line() for one in found])
            if found
            else empty
            for seq, found in enumerate(segments)
        ]
        self.asked: list[tuple[int, int]] = []

    def outcomes(self, of: MapReference, chunk: int, first: int, last: int) -> dict[int, list[Outcome]]:
        self.asked.append((first, last))
        return {seq: outcomes_of(one) for seq, one in enumerate(self.segments) if first <= seq <= last}

    def order(self, of: MapReference) -> list[Place]:
        raise AssertionError("no order was recorded")

    def large(self, outcome: Outcome) -> bytes:
        raise AssertionError("nothing is large")


def outcome(index: int, value: object = None, error: bool = False) -> Outcome:
    mark = input_hash("s", (index,), {})[:16]
    payload = b'{"type":"E","message":"m"}' if error else encode(index if value is None else value)
    return Outcome(index, mark, 1, ERROR if error else OUTPUT, None, payload)


def result_of(log: Log, pin: int, *, failed: int = 0, first_seq: int = 0) -> MapResult[int]:
    table = ItemTable()
    for seq in range(first_seq, pin + 1):
        for line, one in enumerate(outcomes_of(log.segments[seq])):
            table.note(one.item_index, one, Place(0, seq, line))
    reference = MapReference(
        "r1", "s", (pin,), first_seq, 0, len(table) - failed, failed, table.content_hash(), 0, True
    )
    return MapResult(reference, log)


@pytest.mark.parametrize(
    "damage",
    [
        lambda parts: parts[:-1],
        lambda parts: [*parts, 1],
        *[lambda parts, at=at: [*parts[:at], {}, *parts[at + 1 :]] for at in range(len(GOOD))],
        *[lambda parts, at=at: [*parts[:at], None, *parts[at + 1 :]] for at in range(len(GOOD))],
        lambda parts: [*parts[:2], ["1"], *parts[3:]],
        lambda parts: [*parts[:2], [True], *parts[3:]],
        lambda parts: [*parts[:2], [], *parts[3:]],
        lambda parts: [*parts[:2], [-2], *parts[3:]],
        lambda parts: [*parts[:5], -1, *parts[6:]],
        lambda parts: [*parts[:5], True, *parts[6:]],
        lambda parts: [*parts[:7], "short", *parts[8:]],
        lambda parts: [*parts[:8], -1, *parts[9:]],
        lambda parts: {"run_id": "r1"},
        lambda parts: "r1",
    ],
)
@pytest.mark.parametrize("tag", ["map", "map_outputs"])
def test_a_forged_reference_is_corrupt(tag: str, damage: Callable[[list[Any]], Any]) -> None:
    found = encode(MapResult(MapReference("r1", "s", (1,), 0, 0, 2, 1, "a" * 64, 0, True), None))
    assert decode(found) == MapResult(MapReference("r1", "s", (1,), 0, 0, 2, 1, "a" * 64, 0, True), None)
    value = json.loads(found)
    (name,) = [name for name, part in value.items() if part == "map"]
    (payload,) = [other for other, part in value.items() if part == GOOD]
    with pytest.raises(CorruptRecord):
        decode(json.dumps({name: tag, payload: damage(GOOD)}).encode())


def test_outputs_of_a_map_that_collects_none_are_corrupt() -> None:
    value = encode(MapOutputs(MapResult(MapReference("r1", "s", (1,), 0, 0, 2, 1, "a" * 64, 0, True), None)))
    with pytest.raises(CorruptRecord):
        decode(value.replace(b"true", b"false"))


def test_a_reference_survives_and_equals_itself_wherever_it_lies() -> None:
    one = MapResult[int](MapReference("r1", "s", (1,), 0, 0, 2, 1, "a" * 64, 0, True), None)
    two = MapResult[int](MapReference("r2", "s", (7,), 3, 2, 2, 1, "a" * 64, 4, True), None)
    other = MapResult[int](MapReference("r1", "s", (1,), 0, 0, 2, 1, "b" * 64, 0, True), None)
    assert one == two
    assert hash(one) == hash(two)
    assert one != other
    assert one != "one"
    assert input_hash("x", (one, one.outputs), {}) == input_hash("x", (two, two.outputs), {})
    assert input_hash("x", (one,), {}) != input_hash("x", (other,), {})
    assert copy.deepcopy(one) is one
    assert isinstance(decode(encode(one.outputs)), MapOutputs)
    assert isinstance(decode(encode(one), adapter_for(MapResult[int])), MapResult)


def test_what_is_not_read_by_a_store_says_so() -> None:
    batch = MapResult[int](MapReference("r1", "s", (1,), 0, 0, 2, 1, "a" * 64, 0, True), None)
    with pytest.raises(UsageError, match="no store is at hand"):
        list(batch.outputs)


def test_what_lies_beyond_the_pin_is_ignored() -> None:
    log = Log([outcome(0), outcome(1)], [], [outcome(1, 99), outcome(2)])
    batch = result_of(log, 1)
    assert list(batch.outputs) == [0, 1]
    assert max(last for _, last in log.asked) == 1


def test_what_lies_before_the_first_segment_is_ignored() -> None:
    log = Log([outcome(0, 7), outcome(1, 7)], [outcome(0), outcome(1)])
    batch = result_of(log, 1, first_seq=1)
    log.segments[0] = log.segments[0]._replace(items=0, data=None)
    assert list(batch.outputs) == [0, 1]


@pytest.mark.parametrize(
    "damage",
    [
        lambda segments: segments.pop(0),
        lambda segments: segments.pop(),
        lambda segments: segments.__setitem__(0, Log([outcome(0, 5), outcome(1)]).segments[0]),
        lambda segments: segments.__setitem__(0, Log([outcome(0)]).segments[0]),
    ],
)
def test_segments_that_do_not_hold_what_was_committed_are_corrupt(
    damage: Callable[[list[Segment]], Any],
) -> None:
    log = Log([outcome(0), outcome(1)], [outcome(2, error=True)])
    batch = result_of(log, 1, failed=1)
    assert [one.succeeded for one in batch.iter()] == [True, True, False]
    again = MapResult[int](batch.reference, log)
    damage(log.segments)
    with pytest.raises(CorruptRecord, match="don't hold what it committed"):
        list(again.iter())


def test_a_segment_that_goes_while_it_is_read_is_corrupt() -> None:
    log = Log([outcome(0), outcome(1)])
    batch = result_of(log, 0)
    assert len(batch.outputs) == 2
    assert list(batch.outputs) == [0, 1]
    log.segments.clear()
    again = MapResult[int](batch.reference, log, None, batch._known_table())
    with pytest.raises(CorruptRecord, match="segment 0 is gone"):
        again.outputs[0]


def test_reading_on_asks_for_many_segments_and_reading_here_and_there_for_one() -> None:
    log = Log(*([outcome(index)] for index in range(64)))
    batch = result_of(log, 63)
    list(batch.outputs)
    log.asked.clear()
    assert list(MapResult[int](batch.reference, log, None, batch._known_table()).outputs) == list(range(64))
    assert len(log.asked) == 4
    log.asked.clear()
    backwards = MapResult[int](batch.reference, log, None, batch._known_table())
    assert list(reversed(backwards.outputs)) == list(reversed(range(64)))
    assert sum(last - first + 1 for first, last in log.asked) <= 64 + 16


def test_a_record_tells_what_came_out_and_where_it_is() -> None:
    reference = MapReference("r1", "s", (4,), 1, 2, 3, 1, "c" * 64, 0, False)
    record = StepRecord(
        "r1", "s", 0, COMMITTED, None, None, None, None, None, None, None, "", 1, 0, "a", 3, MAP_KIND,
        detail=json.dumps(recorded_place(reference)),
    )  # fmt: skip
    assert recorded_map(record, recorded_output(reference, "h")) == (reference, "h")


def record_with(raw_place: dict[str, Any]) -> StepRecord:
    return StepRecord(
        "r1", "s", 0, COMMITTED, None, None, None, None, None, None, None, "", 1, 0, "a", 3, MAP_KIND,
        detail=json.dumps(raw_place),
    )  # fmt: skip


@pytest.mark.parametrize("raw", [b"[]", b"{}", b"5", b'"x"', b'{"succeeded": 1}', b"null"])
def test_a_record_that_tells_nothing_is_corrupt(raw: bytes) -> None:
    place = recorded_place(MapReference("r1", "s", (4,), 1, 2, 3, 1, "c" * 64, 0, False))
    with pytest.raises(CorruptRecord):
        recorded_map(record_with(place), raw)


@pytest.mark.parametrize("part", ["pins", "first_seq", "base_fence", "order_segments"])
@pytest.mark.parametrize("wrong", [None, "4", [], -2, {}], ids=str)
def test_a_record_that_does_not_tell_where_its_outcomes_are_is_corrupt(part: str, wrong: object) -> None:
    reference = MapReference("r1", "s", (4,), 1, 2, 3, 1, "c" * 64, 0, False)
    with pytest.raises(CorruptRecord, match="doesn't say where"):
        recorded_map(record_with(recorded_place(reference) | {part: wrong}), recorded_output(reference, "h"))
