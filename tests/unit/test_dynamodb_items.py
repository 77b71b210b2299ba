"""Items of the DynamoDB table: records come back as they were, and a damaged item is never taken for one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest

from durable_core.aws.table import EXPIRES_AT
from durable_core.errors import CorruptRecord, InvalidId, OutputTooLarge
from durable_core.identity import MAX_ID_CHARS, MAX_STEP_ID_CHARS, item_id
from durable_core.journal import _conditions as conditions
from durable_core.journal import _dynamodb_keys as keys
from durable_core.journal import _items as items
from durable_core.journal.base import Departure
from durable_core.records import CORRUPT, TOMBSTONE, Child, Event, RunHeader, Segment
from durable_core.testing.journal_steps import EVERY_COLUMN
from durable_core.testing.journal_tombstones import FULL
from durable_core.testing.samples import AT, RUN, attempt, committed, header, lease_of, owned

SEGMENT = Segment(RUN, "m#2", 12, 7, "a1", 3, 2, 256, 4, 1, b"\x00", "json", 1, "4" * 64, '["b"]', AT)
EVENT = Event(RUN, "go", 3, "e1", 1, b"1", "runs/x", "json", 1, "4" * 64, AT, "a1")
BOTH_WAYS: dict[str, tuple[Any, Callable[[Any], keys.Item], Callable[[keys.Item], Any]]] = {
    "header": (FULL, items.header_item, items.header_of),
    "step": (EVERY_COLUMN, items.step_item, items.step_of),
    "segment": (SEGMENT, items.segment_item, items.segment_of),
    "event": (EVENT, items.event_item, items.event_of),
}
NEEDED = {
    "header": ("run_id", "workflow", "status", "fence", "base_fence", "lease_until_ms", "wake_count"),
    "step": ("run_id", "step_id", "status", "attempt_id", "idempotency_key", "fence", "attempt", "crashes"),
    "segment": ("step_id", "chunk", "seq", "attempt_id", "fence", "items"),
    "event": ("name", "seq", "event_id", "fence"),
}


def damaged(kind: str, **changes: dict[str, Any] | None) -> keys.Item:
    record, write, _ = BOTH_WAYS[kind]
    return {name: value for name, value in (write(record) | changes).items() if value is not None}


@pytest.mark.parametrize("kind", BOTH_WAYS)
def test_a_record_comes_back_as_it_was(kind: str) -> None:
    record, write, read = BOTH_WAYS[kind]
    assert read(write(record)) == record


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in NEEDED.items() for name in names])
def test_an_item_that_lacks_something_is_corrupt(kind: str, name: str) -> None:
    with pytest.raises(CorruptRecord, match=f"has no {name}") as caught:
        BOTH_WAYS[kind][2](damaged(kind, **{name: None}))
    assert caught.value.run_id == RUN


@pytest.mark.parametrize("kind", BOTH_WAYS)
@pytest.mark.parametrize(
    "value", [{"S": "7"}, {"N": "7.5"}, {"N": "x"}, {"NULL": True}, {"BOOL": True}, {"B": b"7"}, {"L": []}]
)
def test_an_attribute_of_another_type_is_corrupt(kind: str, value: dict[str, Any]) -> None:
    with pytest.raises(CorruptRecord, match="fence is"):
        BOTH_WAYS[kind][2](damaged(kind, fence=value))


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        ("header", "run_id", "another"),
        ("step", "run_id", "another"),
        ("step", "step_id", "another"),
        ("segment", "step_id", "another"),
        ("event", "name", "another"),
    ],
)
def test_an_item_under_a_key_that_is_not_its_own_is_corrupt(kind: str, name: str, value: str) -> None:
    with pytest.raises(CorruptRecord, match="another's"):
        BOTH_WAYS[kind][2](damaged(kind, **{name: {"S": value}}))


@pytest.mark.parametrize("kind", ["header", "step"])
def test_a_status_that_is_none_is_corrupt(kind: str) -> None:
    with pytest.raises(CorruptRecord, match="DONE"):
        BOTH_WAYS[kind][2](damaged(kind, status={"S": "DONE"}))


def test_a_corrupt_step_names_its_run_and_its_id() -> None:
    with pytest.raises(CorruptRecord) as caught:
        items.step_of(damaged("step", fence=None, run_id=None, step_id=None))
    assert (caught.value.run_id, caught.value.step_id) == (RUN, "s")
    assert caught.value.remedy is not None


def test_a_header_that_cannot_be_read_is_listed_with_the_reason() -> None:
    told = items.listed(damaged("header", fence={"S": "1"}))
    assert (told.run_id, told.workflow, told.status) == (RUN, "report", CORRUPT)
    assert "fence is" in told.error_info()["message"]


@pytest.mark.parametrize(
    ("item", "child"),
    [
        (items.step_item(EVERY_COLUMN), Child("step", "s", 0, 0, 1, ("runs/run-1/a-b",), 2**40)),
        (items.step_item(attempt("a!b#2")), Child("step", "a!b#2", 0, 0, 1)),
        (items.segment_item(SEGMENT), Child("segment", "m#2", 12, 7, 3, ("b",), 1)),
        (items.event_item(EVENT), Child("event", "go", 0, 3, 1, ("runs/x",), 1)),
    ],
)
def test_pruning_knows_what_lies_under_a_header_by_its_key(item: keys.Item, child: Child) -> None:
    found = items.child_of(item)
    assert found == child
    assert keys.key(RUN, keys.child_key(found)) == {name: item[name] for name in ("pk", "sk")}


@pytest.mark.parametrize(
    "item",
    [
        keys.key(RUN, "OTHER#x") | {"fence": {"N": "1"}},
        keys.key(RUN, "SEG#m!1") | {"fence": {"N": "1"}},
        keys.key(RUN, "SEG#m!x!y") | {"fence": {"N": "1"}},
        keys.key(RUN, "EVENT#m") | {"fence": {"N": "1"}},
        keys.key(RUN, "STEP#m"),
        damaged("segment", refs={"S": "[1]"}),
        damaged("segment", refs={"S": "[" * 100_000}),
        damaged("segment", refs={"S": "{}"}),
    ],
)
def test_what_pruning_cannot_tell_is_corrupt_and_not_passed_over(item: keys.Item) -> None:
    with pytest.raises(CorruptRecord):
        items.child_of(item)


def test_an_item_is_weighed_as_a_whole_before_it_is_sent() -> None:
    empty = committed(attempt(), b"", output_size=0)
    room = items.MAX_ITEM_BYTES - items.item_bytes(items.step_item(empty))
    assert conditions.commit("t", empty._replace(output_data=b"x" * room))
    with pytest.raises(OutputTooLarge) as caught:
        conditions.commit("t", empty._replace(output_data=b"x" * (room + 1)))
    assert (caught.value.run_id, caught.value.step_id) == (RUN, "s")


def test_an_item_weighs_what_its_names_and_values_do() -> None:
    item = {"pk": {"S": "é"}, "n": {"N": "1234"}, "b": {"B": b"123"}}
    assert items.item_bytes(item) == (2 + 2) + (1 + 4) + (1 + 3)


def test_an_id_that_makes_too_long_a_key_is_refused_before_anything_is_sent() -> None:
    assert conditions.begin("t", attempt("x" * 1019), None)
    with pytest.raises(InvalidId) as caught:
        conditions.begin("t", attempt("x" * 1020), None)
    assert (caught.value.run_id, caught.value.step_id) == (RUN, "x" * 1020)


def test_the_longest_step_id_fits_wherever_it_is_part_of_a_key() -> None:
    longest = "x" * MAX_STEP_ID_CHARS
    of_item = item_id(longest, 10**9, "key")
    made = (
        keys.step_key(of_item), keys.segment_key(longest, 99_999_999, 99_999_999),
        keys.event_key("e" * MAX_ID_CHARS, 99_999_999),
    )  # fmt: skip
    assert max(map(len, made)) <= items.MAX_SORT_KEY_BYTES


@pytest.mark.parametrize("name", ["a#b", "a/b", "a!0", "RUN", "STEP#a", "EVENT#a", "%", "é😀"])
def test_no_id_can_be_read_as_part_of_another(name: str) -> None:
    """Whatever it has of the separators, it stays in its own partition or behind its own prefix."""
    assert keys.partition(name) != keys.partition(f"{name}x")
    assert not keys.segment_key(f"{name}x", 0, 0).startswith(keys.log_key(name, 0))
    assert keys.step_key(name).startswith(keys.STEPS)
    assert keys.run_of(keys.key(name, keys.HEADER)) == name


def test_only_a_tombstone_is_ever_given_an_end() -> None:
    """The end is what DynamoDB deletes by; a TTL on anything else would be the loss of committed work."""
    me = lease_of(owned())
    writes = [
        conditions.create("t", header()),
        conditions.leave("t", me, Departure(status="COMPLETED"), None, AT),
        conditions.cancel("t", header(), AT, None),
        conditions.begin("t", attempt(), None),
        conditions.append("t", SEGMENT),
        *conditions.send("t", EVENT, header(), 1),
    ]
    assert EXPIRES_AT in {field.name for field in fields(RunHeader)}
    assert all(EXPIRES_AT not in str(write.request) for write in writes)
    ends = conditions.expire("t", header(status=TOMBSTONE), 1).request
    assert "SET #expires_at_s = :to_expires_at_s" in ends["UpdateExpression"]
