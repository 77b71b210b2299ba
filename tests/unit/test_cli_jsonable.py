"""Values as JSON for people and programs: anything that can be stored can be shown."""

from __future__ import annotations

import enum
import json
import math
from collections import OrderedDict
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from durable_core.cli.jsonable import as_document, as_text, jsonable
from durable_core.cli.output import clean, clean_lines


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Point:
    x: float
    y: object


class Model(BaseModel):
    at: datetime
    inner: list[Colour]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ((1, {2, 1}), [1, [1, 2]]),
        (math.nan, "NaN"),
        (-math.inf, "-Infinity"),
        (b"\xff\x00", "_wA="),
        (Decimal("1.10"), "1.10"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (timedelta(seconds=90), "PT1M30S"),
        (Path("a/b"), "a/b"),
        (Path("a\udcff"), "a\udcff"),
        (Colour.RED, "red"),
        (Point(math.inf, Point(1, None)), {"x": "Infinity", "y": {"x": 1, "y": None}}),
        (
            Model(at=datetime(2026, 1, 2, tzinfo=UTC), inner=[Colour.RED]),
            {"at": "2026-01-02T00:00:00Z", "inner": ["red"]},
        ),
        ({1: "a", None: "b", (1, 2): "c"}, {"1": "a", "null": "b", "[1, 2]": "c"}),
        ({1: "a", "1": "b"}, [[1, "a"], ["1", "b"]]),
        (OrderedDict(z=1, a=2), {"z": 1, "a": 2}),
        ([10**5000], [hex(10**5000)]),
    ],
)
def test_a_value_is_shown_in_the_types_that_json_has(value: object, shown: object) -> None:
    assert jsonable(value) == shown


def test_the_deepest_value_that_can_be_stored_can_be_shown() -> None:
    value: object = "bottom"
    for _ in range(200):
        value = [{"down": value}]
    assert "bottom" in as_text(value)
    assert json.loads(as_document(value)) == value


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters())
    | st.binary()
    | st.dates(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner) | st.tuples(inner),
)


@given(values)
def test_a_document_is_ascii_and_strict_json(value: object) -> None:
    text = as_document(value)
    assert text.isascii()
    json.loads(text, parse_constant=pytest.fail)


@given(st.text(st.characters(), min_size=1))
def test_text_for_people_has_nothing_that_moves_the_cursor_and_reads_back_the_same(text: str) -> None:
    shown = as_text(text)
    assert json.loads(shown) == text
    assert shown.isprintable() or not any(ord(char) < 32 or 127 <= ord(char) < 160 for char in shown)
    shown.encode("utf-8")


@given(st.text(st.characters()))
def test_clean_text_is_one_line_without_control_characters(text: str) -> None:
    line, lines = clean(text), clean_lines(text)
    for shown in (line, lines.replace("\n", "").replace("\t", "")):
        assert not any(ord(char) < 32 or 127 <= ord(char) < 160 for char in shown)
        shown.encode("utf-8")
    assert clean_lines("a\n\tb") == "a\n\tb"
