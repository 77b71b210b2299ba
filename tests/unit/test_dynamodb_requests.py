"""The requests of the DynamoDB journal carry exactly the conditions of the protocol.

moto decides about one item at a time and in one process; that DynamoDB's writes are atomic is its promise. So
what is to be shown here is which conditions they are made under.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest

from durable_core.journal import _conditions as conditions
from durable_core.journal._dynamodb_keys import partition, shard_of
from durable_core.journal._dynamodb_requests import Write
from durable_core.journal._items import header_item, step_item
from durable_core.journal.base import Departure
from durable_core.records import (
    ACTIVE,
    COMPLETED,
    PENDING,
    PRUNING,
    RUNNING,
    SUSPENDED,
    TOMBSTONE,
    Child,
    Event,
    Seen,
    Segment,
)
from durable_core.testing.samples import AT, RUN, attempt, claim, committed, header, lease_of, owned

TABLE = "runs"
NOW = 1_700_000_000_000
ME = lease_of(owned())
EVENT = Event(RUN, "approval", 3, "e1", 1, sent_at=AT)
SEGMENT = Segment(RUN, "m", 2, 5, "a1", 1)
SHARD = shard_of(RUN)

WRITES: dict[str, tuple[Write, str]] = {
    "create": (conditions.create(TABLE, header()), "attribute_not_exists(pk)"),
    "create on a tombstone": (
        conditions.create(TABLE, header(base_fence=3, fence=3)),
        "((attribute_not_exists(pk)) OR (status = 'TOMBSTONE' AND fence = 3))",
    ),
    "acquire": (
        conditions.acquire(TABLE, header(fence=4), claim("me"), ACTIVE, None, NOW),
        f"fence = 4 AND status IN ('PENDING', 'RUNNING', 'SUSPENDED') AND lease_until_ms < {NOW}",
    ),
    "acquire from the dead": (
        conditions.acquire(TABLE, header(fence=4), claim("me"), (RUNNING,), "gone", NOW),
        "fence = 4 AND status IN ('RUNNING') AND owner = 'gone'",
    ),
    "renew": (conditions.renew(TABLE, ME, NOW), "owner = 'me' AND fence = 1"),
    "leave": (
        conditions.leave(TABLE, ME, Departure(status=COMPLETED), None, AT),
        "owner = 'me' AND fence = 1",
    ),
    "suspend": (
        conditions.leave(TABLE, ME, Departure(status=SUSPENDED), 2, AT),
        "owner = 'me' AND fence = 1 AND wake_count = 2",
    ),
    "cancel": (
        conditions.cancel(TABLE, header(fence=4), AT, None),
        "fence = 4 AND status IN ('PENDING', 'RUNNING', 'SUSPENDED')",
    ),
    "wake": (conditions.wake(TABLE, header(status=RUNNING), NOW), "status = 'RUNNING'"),
    "wake the sleeping": (conditions.wake(TABLE, header(status=SUSPENDED), NOW), "status = 'SUSPENDED'"),
    "begin": (conditions.begin(TABLE, attempt(), None), "attribute_not_exists(pk)"),
    "begin anew": (
        conditions.begin(TABLE, attempt(), Seen("STARTED", "a0")),
        "status = 'STARTED' AND attempt_id = 'a0'",
    ),
    "held": (conditions.held(TABLE, ME), "owner = 'me' AND fence = 1"),
    "commit": (
        conditions.commit(TABLE, committed(attempt())),
        f"status = 'STARTED' AND attempt_id = 'a1' AND idempotency_key = '{'k' * 64}'",
    ),
    "append": (conditions.append(TABLE, SEGMENT), "attribute_not_exists(pk)"),
    "send": (conditions.send(TABLE, EVENT, header(), NOW)[0], "attribute_not_exists(pk)"),
    "send, its life": (
        conditions.send(TABLE, EVENT, header(base_fence=3), NOW)[1],
        "status = 'PENDING' AND base_fence = 3",
    ),
    "send to the ended": (
        conditions.send(TABLE, EVENT, header(status=COMPLETED), NOW)[1],
        "status = 'COMPLETED' AND base_fence = 0",
    ),
    "send to the buried": (
        conditions.send(TABLE, EVENT, header(status=TOMBSTONE, base_fence=3), NOW)[1],
        "status = 'TOMBSTONE' AND base_fence = 3",
    ),
    "send early": (conditions.send(TABLE, EVENT, None, NOW)[1], "attribute_not_exists(pk)"),
    "take": (
        conditions.take(TABLE, EVENT, committed(attempt()))[0],
        "attribute_exists(pk) AND attribute_not_exists(taken_by)",
    ),
    "take, its step": (
        conditions.take(TABLE, EVENT, committed(attempt()))[1],
        f"status = 'STARTED' AND attempt_id = 'a1' AND idempotency_key = '{'k' * 64}'",
    ),
    "erase": (conditions.erase(TABLE, RUN, Child("step", "s", 0, 0, 1), 7), "fence <= 7"),
    "bury": (conditions.bury(TABLE, ME, AT), "owner = 'me' AND fence = 1"),
    "expire": (
        conditions.expire(TABLE, header(status=TOMBSTONE, fence=4), NOW),
        "status = 'TOMBSTONE' AND fence = 4 AND attribute_not_exists(expires_at_s)",
    ),
}
EXPRESSIONS = (
    "ConditionExpression",
    "UpdateExpression",
    "KeyConditionExpression",
    "FilterExpression",
    "ProjectionExpression",
)
GRAMMAR = {
    "SET", "REMOVE", "ADD", "AND", "OR", "IN", "BETWEEN",
    "attribute_exists", "attribute_not_exists", "begins_with",
}  # fmt: skip


def filled_in(text: str, request: Mapping[str, Any]) -> str:
    """An expression with its names and values, as a person would write it."""

    def value(match: re.Match[str]) -> str:
        ((kind, given),) = request["ExpressionAttributeValues"][match[0]].items()
        return given if kind == "N" else repr(given)

    named = re.sub(r"#\w+", lambda match: request["ExpressionAttributeNames"][match[0]], text)
    return re.sub(r":\w+", value, named)


def bare_words(request: Mapping[str, Any]) -> list[str]:
    """Words of its expressions that stand for themselves: DynamoDB has reserved some 570 of them."""
    return [
        word
        for name in EXPRESSIONS
        for word in re.findall(r"(?<![#:\w])\w+", request.get(name, ""))
        if word not in GRAMMAR
    ]


@pytest.mark.parametrize("verb", WRITES)
def test_each_write_is_made_under_the_condition_of_the_protocol(verb: str) -> None:
    write, expected = WRITES[verb]
    assert filled_in(write.request["ConditionExpression"], write.request) == expected


@pytest.mark.parametrize("verb", WRITES)
def test_each_refusal_shows_what_stood_in_the_way(verb: str) -> None:
    write, _ = WRITES[verb]
    assert write.request["ReturnValuesOnConditionCheckFailure"] == "ALL_OLD"
    assert write.alone()[1].get("ReturnValues") == ("ALL_NEW" if write.action == "Update" else None)


@pytest.mark.parametrize("verb", WRITES)
def test_each_name_and_value_has_a_placeholder_and_each_placeholder_is_used(verb: str) -> None:
    request = WRITES[verb][0].request
    assert bare_words(request) == []
    text = " ".join(request.get(name, "") for name in EXPRESSIONS)
    assert "<>" not in text
    assert set(re.findall(r"#\w+", text)) == set(request["ExpressionAttributeNames"])
    assert set(re.findall(r":\w+", text)) == set(request.get("ExpressionAttributeValues", {}))
    assert "NULL" not in str(request)


def test_a_bare_word_would_be_found() -> None:
    assert bare_words({"UpdateExpression": "SET #a = :b, owner = :owner"}) == ["owner"]


@pytest.mark.parametrize("verb", WRITES)
def test_each_write_names_its_table_and_one_key(verb: str) -> None:
    write, _ = WRITES[verb]
    assert write.request["TableName"] == TABLE
    assert write.key["pk"] == {"S": partition(RUN)}
    assert set(write.key) == {"pk", "sk"}


@pytest.mark.parametrize("pair", [("send", "send, its life"), ("take", "take, its step"), ("held", "begin")])
def test_no_transaction_has_an_item_twice(pair: tuple[str, str]) -> None:
    first, second = (WRITES[verb][0] for verb in pair)
    assert first.key != second.key


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (PENDING, {"status_shard": {"S": f"PENDING#{SHARD}"}, "due_shard": {"N": str(SHARD)}}),
        (RUNNING, {"status_shard": {"S": f"RUNNING#{SHARD}"}, "due_shard": {"N": str(SHARD)}}),
        (COMPLETED, {"status_shard": {"S": f"COMPLETED#{SHARD}"}}),
        (PRUNING, {"status_shard": {"S": f"PRUNING#{SHARD}"}}),
        (TOMBSTONE, {"due_shard": {"N": str(8 + SHARD)}}),
    ],
)
def test_the_indexes_have_active_runs_by_due_time_and_all_but_tombstones_by_status(
    status: str, expected: dict[str, Any]
) -> None:
    item = header_item(header(status=status))
    assert {name: item[name] for name in ("status_shard", "due_shard") if name in item} == expected


@pytest.mark.parametrize(
    ("verb", "expected"),
    [
        ("acquire", {f"RUNNING#{SHARD}", str(SHARD)}),
        ("leave", {f"COMPLETED#{SHARD}"}),
        ("suspend", {f"SUSPENDED#{SHARD}", str(SHARD)}),
        ("cancel", {f"CANCELLED#{SHARD}"}),
        ("wake", set()),
        ("wake the sleeping", {f"PENDING#{SHARD}", str(SHARD)}),
        ("bury", {str(8 + SHARD)}),
    ],
)
def test_whatever_changes_the_status_moves_the_run_in_the_indexes(verb: str, expected: set[str]) -> None:
    request = WRITES[verb][0].request
    values = request.get("ExpressionAttributeValues", {})
    moved = {name for name in (":to_status_shard", ":to_due_shard") if name in values}
    assert {next(iter(values[name].values())) for name in moved} == expected
    if verb != "wake":
        removed = request["UpdateExpression"].partition("REMOVE")[2]
        for name in ("status_shard", "due_shard"):
            assert (f":to_{name}" in values) is (f"#{name}" not in removed)


def test_nothing_is_left_out_that_is_compared_by_size() -> None:
    """A comparison with what isn't there never holds: such a run could never be acquired."""
    assert header_item(header())["lease_until_ms"] == {"N": "0"}
    left = conditions.leave(TABLE, ME, Departure(status=PENDING), None, AT).request
    assert left["ExpressionAttributeValues"][":to_lease_until_ms"] == {"N": "0"}
    buried = conditions.bury(TABLE, ME, AT).request
    assert buried["ExpressionAttributeValues"][":to_lease_until_ms"] == {"N": "0"}


def test_what_is_none_is_left_out_and_not_written_as_null() -> None:
    item = step_item(attempt())
    assert {"output_data", "output_ref", "error", "committed_at"} & set(item) == set()
    assert all("NULL" not in value for value in item.values())
