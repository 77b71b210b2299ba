"""Outcomes are packed into segments and taken apart again; what isn't what was written is corrupt."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durable_core.codec import decode, encode
from durable_core.engine.batch_log import filled
from durable_core.errors import CorruptRecord
from durable_core.outcomes import BLOB, ERROR, OUTPUT, Outcome, lines_of, outcomes_of, packed
from durable_core.records import Segment

MARK = "0123456789abcdef"
POINTER = b'["runs/r1/a-b","json+zstd",9000,"' + b"a" * 64 + b'"]'

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


def outcome(index: int = 0, key: str | None = None, payload: bytes = b"1", kind: int = OUTPUT) -> Outcome:
    return Outcome(index, MARK, 1, kind, key, payload)


def segment(*outcomes: Outcome, lines: list[bytes] | None = None, items: int | None = None) -> Segment:
    found = lines if lines is not None else [one.line() for one in outcomes]
    count = items if items is not None else len(found)
    return filled(Segment("r1", "s", 0, 3, "a", 1, items=count), found)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2**31),
            st.none() | st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
            json_values,
            st.integers(1, 99),
        ),
        min_size=1,
    )
)
def test_what_is_packed_comes_back(given: list[tuple[int, str | None, Any, int]]) -> None:
    outcomes = [
        Outcome(index, MARK, attempts, OUTPUT, key, encode(value)) for index, key, value, attempts in given
    ]
    found = outcomes_of(segment(*outcomes))
    assert found == outcomes
    assert [decode(one.payload) for one in found] == [value for _, _, value, _ in given]
    for line in lines_of(segment(*outcomes)):
        json.loads(line)  # readable by other tools, too


def test_a_claim_holds_nothing() -> None:
    assert outcomes_of(Segment("r1", "s", 0, 0, "a", 1)) == []
    assert outcomes_of(segment(lines=[b"[0,1,2]"], items=0)) == []  # the order of the items


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"[]",
        b"null",
        b"[0]",
        b'[0,"0123456789abcdef",1,0]',
        b'["x","0123456789abcdef",1,0,null,1]',
        b'[-1,"0123456789abcdef",1,0,null,1]',
        b'[0,"0123",1,0,null,1]',
        b'[0,"0123456789abcdeg",1,0,null,1]',
        b'[0,"0123456789abcdef",1,7,null,1]',
        b'[0,"0123456789abcdef",1,0,5,1]',
        b'[0,"0123456789abcdef",1,0,"k,1]',
        b'[0,"0123456789abcdef",1,0,"\xff",1]',
        b'(0,"0123456789abcdef",1,0,null,1)',
        b'[99999999999999999999,"0123456789abcdef",1,0,null,1]',
    ],
    ids=ascii,
)
def test_a_line_that_is_no_outcome_is_corrupt(line: bytes) -> None:
    with pytest.raises(CorruptRecord):
        outcomes_of(segment(lines=[line], items=1))


@pytest.mark.parametrize(
    "damage",
    [
        lambda one: one._replace(items=3),
        lambda one: one._replace(items=1),
        lambda one: one._replace(data=None),
        lambda one: one._replace(data="text"),
        lambda one: one._replace(data=one.data[:-1]),
        lambda one: one._replace(data=one.data + b" "),
        lambda one: one._replace(codec=None),
        lambda one: one._replace(codec="pickle"),
        lambda one: one._replace(size=1),
        lambda one: one._replace(output_hash=None),
        lambda one: one._replace(output_hash="0" * 64),
    ],
)
def test_a_damaged_segment_is_corrupt_and_named(damage: Callable[[Any], Segment]) -> None:
    with pytest.raises(CorruptRecord, match="segment 3 of chunk 0 is damaged") as caught:
        outcomes_of(damage(segment(outcome(0), outcome(1))))
    assert (caught.value.run_id, caught.value.step_id) == ("r1", "s")


@pytest.mark.parametrize(
    "payload", [b"", b"{", b"[]", b"5", b"[" * 100_000], ids=lambda given: ascii(given[:5])
)
def test_an_error_that_is_none_is_corrupt(payload: bytes) -> None:
    with pytest.raises(CorruptRecord):
        outcome(payload=payload, kind=ERROR).error()


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"{}",
        b'["ref","json",5,"short"]',
        b'["ref","json","5","' + b"a" * 64 + b'"]',
        b'["ref"]',
        b"null",
    ],
)
def test_a_pointer_that_is_none_is_corrupt(payload: bytes) -> None:
    with pytest.raises(CorruptRecord):
        outcome(payload=payload, kind=BLOB).pointer()


def test_an_error_and_a_pointer_are_read() -> None:
    assert outcome(payload=b'{"code":"X"}', kind=ERROR).error() == {"code": "X"}
    assert outcome(payload=POINTER, kind=BLOB).pointer().size == 9000
    assert not outcome(kind=ERROR).succeeded
    assert outcome(kind=BLOB).succeeded


def test_outcomes_lie_a_line_each() -> None:
    assert packed([outcome(0).line(), outcome(1, "k").line()]).split(b"\n") == [
        b'[0,"0123456789abcdef",1,0,null,1]',
        b'[1,"0123456789abcdef",1,0,"k",1]',
    ]
