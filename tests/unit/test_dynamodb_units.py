"""What requests to DynamoDB are billed as, by the rules that AWS documents."""

from __future__ import annotations

from typing import Any

import pytest

from durable_core.cost.bill import Bill, index_units
from durable_core.journal import _conditions as conditions
from durable_core.journal._items import header_item, step_item
from durable_core.records import COMPLETED
from durable_core.testing.samples import attempt, committed, header, lease_of, owned
from scripts.bench.dynamodb_units import Meter


def put(meter: Meter, item: dict[str, Any]) -> float:
    before = meter.bill.write_units
    meter.count("put_item", {"Item": item}, {})
    return meter.bill.write_units - before


def test_a_write_is_billed_by_the_larger_of_the_old_item_and_the_new() -> None:
    meter = Meter()
    assert put(meter, step_item(attempt())) == 1
    assert put(meter, step_item(committed(attempt(), b"x" * 5_000))) == 6
    assert put(meter, step_item(attempt())) == 6
    assert meter.bill.writes == 3


@pytest.mark.parametrize(
    ("old", "new", "units"),
    [
        ({}, header_item(header()), 2),  # it appears in both indexes
        (header_item(header()), header_item(header()), 0),
        (header_item(header()), header_item(header(due_at_ms=7)), 2),  # as a renewal moves it
        (header_item(header()), header_item(header(status=COMPLETED)), 1 + 2),  # gone from one, moved in one
        ({}, step_item(attempt()), 0),
    ],
)
def test_indexes_are_billed_for_entries_that_come_go_or_move(old: Any, new: Any, units: int) -> None:
    assert index_units(old, new) == units


def test_a_transaction_is_billed_twice() -> None:
    meter = Meter()
    writes = (conditions.held("t", lease_of(owned())), conditions.begin("t", attempt(), None))
    meter.count("transact_write_items", {"TransactItems": [{one.action: one.request} for one in writes]}, {})
    assert meter.bill == Bill(writes=1, write_units=4)


def test_reads_are_billed_by_four_kilobytes_and_at_least_one() -> None:
    meter = Meter()
    meter.count("get_item", {}, {})
    meter.count("query", {}, {"Items": [step_item(committed(attempt(), b"x" * 5_000))] * 2})
    assert meter.bill == Bill(reads=2, read_units=1 + 3)
    assert Bill(write_units=2, s3_puts=1).dollars_per_million == 2 * 0.625 + 5
