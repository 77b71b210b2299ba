"""What is known of the items of a map."""

from __future__ import annotations

import json
from hashlib import sha256

from hypothesis import given
from hypothesis import strategies as st

from durable_core.item_table import FAILED, MISSING, SUCCEEDED, ItemTable, Place, digest_of, key_digest
from durable_core.outcomes import BLOB, ERROR, OUTPUT, Outcome

ONE, OTHER = "000000000000000f", "00000000000000f0"


def good(index: int = 0, payload: bytes = b"1", mark: str = ONE) -> Outcome:
    return Outcome(index, mark, 1, OUTPUT, None, payload)


def bad(index: int = 0, mark: str = ONE) -> Outcome:
    return Outcome(index, mark, 1, ERROR, None, b"{}")


def counted(table: ItemTable) -> tuple[int, int]:
    return table.succeeded, table.failed


def test_the_first_success_of_an_item_stays() -> None:
    table = ItemTable()
    table.note(0, good(payload=b"1"), Place(0, 1, 0))
    table.note(0, good(payload=b"2"), Place(0, 2, 0))
    table.note(0, bad(), Place(0, 3, 0))
    assert table.place(0) == Place(0, 1, 0)
    assert counted(table) == (1, 0)


def test_a_success_supersedes_a_failure_and_the_latest_failure_an_earlier_one() -> None:
    table = ItemTable()
    table.note(0, bad(), Place(0, 1, 0))
    table.note(0, bad(), Place(0, 2, 5))
    assert (table.place(0), counted(table)) == (Place(0, 2, 5), (0, 1))
    table.note(0, good(), Place(0, 3, 0))
    assert (table.place(0), counted(table)) == (Place(0, 3, 0), (1, 0))


def test_an_outcome_of_another_item_replaces_the_one_that_was_in_its_place() -> None:
    table = ItemTable()
    table.note(0, good(), Place(0, 1, 0))
    table.note(0, good(mark=OTHER), Place(0, 2, 0))
    assert (table.place(0), table.mark(0), counted(table)) == (Place(0, 2, 0), OTHER, (1, 0))
    table.note(0, bad(mark=ONE), Place(0, 3, 0))
    assert counted(table) == (0, 1)


def test_rows_that_were_passed_over_are_missing() -> None:
    table = ItemTable()
    table.note(10_000, good(10_000), Place(0, 0, 0))
    assert len(table) == 10_001
    assert not table.knows(9_999)
    assert table.knows(10_000)
    assert not table.knows(10_001)
    assert table.states[5] == MISSING
    assert list(table.rows(SUCCEEDED)) == [10_000]


def test_a_forgotten_outcome_is_missing_but_its_item_is_known() -> None:
    table = ItemTable()
    table.note(0, bad(), Place(0, 0, 0))
    table.forget(0)
    assert not table.knows(0)
    assert counted(table) == (0, 0)
    assert not table.is_other(0, ONE)
    assert table.is_other(0, OTHER)
    assert not table.is_other(1, OTHER)
    assert list(table.rows(FAILED)) == []


@given(st.text(), st.text())
def test_keys_have_rows_of_their_own(one: str, two: str) -> None:
    table = ItemTable()
    assert table.row_of(one) == 0
    assert table.row_of(two) == (0 if one == two else 1)
    assert table.row_of(one) == 0
    assert (key_digest(one) == key_digest(two)) == (one == two)


def test_the_content_hash_tells_outputs_failures_and_order_apart_but_no_places() -> None:
    def hashed(*outcomes: Outcome, at: int = 0, order: list[int] | None = None) -> str:
        table = ItemTable()
        for row, one in enumerate(outcomes):
            table.note(row, one, Place(0, at, row))
        return table.content_hash(order)

    assert hashed(good(), good()) == hashed(good(), good(), at=7)
    assert hashed(good(), bad()) != hashed(bad(), good())
    assert hashed(good(), bad()) == hashed(bad(), good(), order=[1, 0])
    assert hashed(good(payload=b"1")) != hashed(good(payload=b"2"))
    assert hashed(good()) != hashed(good(), good())


def test_a_large_output_has_the_digest_that_its_pointer_tells() -> None:
    raw = b'"large"'
    pointer = json.dumps(["ref", "json", len(raw), sha256(raw).hexdigest()]).encode()
    assert digest_of(Outcome(0, ONE, 1, BLOB, None, pointer)) == digest_of(good(payload=raw))


def test_a_million_rows_take_some_sixty_bytes_each() -> None:
    table = ItemTable()
    table.note(999_999, good(), Place(0, 0, 0))
    columns = (table._marks, table._indexes, table._chunks, table._seqs, table._lines)
    size = len(table.states) + len(table._digests) + sum(len(one) * one.itemsize for one in columns)
    assert size < 65_000_000
