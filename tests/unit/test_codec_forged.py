"""Stored bytes are not trusted: whatever is wrong with them is a typed error, and nothing happens by them."""

from __future__ import annotations

import ast
import json
import pickle
import sys
from datetime import date
from decimal import localcontext
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import durable_core
from durable_core.codec import adapter_for, decode, encode, freeze
from durable_core.errors import CorruptRecord, UnknownType
from tests.odd_values import Item, Page, Point, identical, values

PACKAGE = Path(str(durable_core.__path__[0]))
MODULES = sorted(
    path for name in ("codec*.py", "annotations.py", "envelope.py") for path in PACKAGE.glob(name)
)
FORBIDDEN = {
    "import_module",
    "__import__",
    "eval",
    "exec",
    "compile",
    "pickle",
    "marshal",
    "shelve",
    "importlib",
}

TAGS = (
    "int",
    "float",
    "str",
    "bytes",
    "datetime",
    "date",
    "time",
    "timedelta",
    "Decimal",
    "UUID",
    "Path",
    "PurePosixPath",
    "PureWindowsPath",
    "tuple",
    "set",
    "frozenset",
    "dict",
    "OrderedDict",
    "enum",
    "model",
    "dataclass",
    "json",
)
PAYLOADS: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    1.5,
    10**30,
    "",
    "x",
    "0x1f",
    " 1f ",
    "1_0",
    "nan ",
    "NAN",
    "2024-13-01",
    "9" * 50,
    "é",
    "\0",
    "//8",
    "====",
    [],
    [None],
    [1],
    ["x"],
    [[]],
    [1, 2, 3],
    ["x", "y", "z"],
    [1, 1],
    [[1], 2],
    [{}, 1],
    ["2024-01-01", 5, None],
    ["2024-01-01T00:00:00", 2, None],
    ["2024-01-01T00:00:00", 0, []],
    ["2024-01-01T00:00:00", 0, ["zone", "../../etc/passwd"]],
    ["2024-01-01T00:00:00", 0, ["zone", "/etc/passwd"]],
    ["2024-01-01T00:00:00", 0, ["zone", 5]],
    ["2024-01-01T00:00:00", 0, ["offset", 10**18]],
    ["2024-01-01T00:00:00", 0, ["offset", "5"]],
    ["2024-01-01T00:00:00", 0, ["offset", 1, 5]],
    ["2024-01-01T00:00:00", 0, ["pydantic", 10**9]],
    ["2024-01-01T00:00:00", 0, ["os", "system"]],
    ["12:00", 0, {"a": 1}],
    [10**12, 0, 0],
    [1.5, 0, 0],
    [0, [3], 1],
    {},
    {"a": 1},
)


def forged(tag: str, payload: object, **more: object) -> bytes:
    return json.dumps({"$": tag, "v": payload, **more}).encode()


@pytest.mark.parametrize("tag", TAGS)
def test_a_tag_with_a_payload_that_is_not_its_own_is_corrupt_or_a_fair_value(tag: str) -> None:
    refused = 0
    for payload in PAYLOADS:
        try:
            found = decode(forged(tag, payload))
        except CorruptRecord:
            refused += 1
        else:
            # It can only be what the codec itself would write for some value.
            assert identical(decode(encode(found)), found)
            assert type(found).__name__ in (tag, "PosixPath", "WindowsPath")
    assert refused >= 20
    for more in ({"t": "x"}, {"s": []}, {"extra": 1}):
        with pytest.raises(CorruptRecord):
            decode(forged(tag, "x", **more))
    with pytest.raises(CorruptRecord):
        decode(json.dumps({"$": tag}).encode())
    with pytest.raises(CorruptRecord):
        decode(json.dumps([{"a": {"$": tag, "x": []}}]).encode())


@pytest.mark.parametrize(
    ("tag", "payload"),
    [
        ("int", "0x1f"),
        ("int", " 1f "),
        ("int", "1_0"),
        ("int", "1F"),
        ("bytes", "YQ==\n"),
        ("bytes", "Y!Q=="),
        ("set", [1, 1]),
        ("frozenset", ["a", "b", "a"]),
        ("set", [1, True]),
        ("dict", [1, "a", 1, "b"]),
        ("OrderedDict", ["a", 1, "a", 2]),
        ("dict", ["a"]),
        ("tuple", [float("nan")]),
    ],
)
def test_what_python_would_read_but_the_codec_never_writes_is_corrupt(tag: str, payload: object) -> None:
    with pytest.raises(CorruptRecord):
        decode(forged(tag, payload))


def test_malformed_decimals_are_corrupt_whatever_the_decimal_context() -> None:
    with localcontext() as context:
        context.clear_traps()
        for payload in ("x", "", "1,5", "1e999999999999999999999"):
            with pytest.raises(CorruptRecord):
                decode(forged("Decimal", payload))


def test_a_time_zone_is_not_a_way_to_import_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    class Recorder:
        asked: ClassVar[list[str]] = []

        def find_spec(self, name: str, path: object = None, target: object = None) -> None:
            self.asked.append(name)

    monkeypatch.setattr(sys, "meta_path", [Recorder(), *sys.meta_path])
    for key in ("os.path/x", "..", "../../etc/passwd", "/etc/passwd", "", "a//b", "a/../b", "\0"):
        with pytest.raises(CorruptRecord):
            decode(forged("time", ["00:00", 0, ["zone", key]]))
    assert Recorder.asked == []
    with pytest.raises(UnknownType, match="tzdata"):
        decode(forged("time", ["00:00", 0, ["zone", "Europe/Atlantis"]]))


@pytest.mark.parametrize(
    "tag", ["", "nope", "object", "$", "dict ", "Tuple", None, 1, [], {}, ["model"], True]
)
def test_an_unknown_tag_is_corrupt(tag: object) -> None:
    with pytest.raises(CorruptRecord) as caught:
        decode(json.dumps({"$": tag, "v": []}).encode())
    assert not isinstance(caught.value, UnknownType)


@pytest.mark.parametrize("kind", ["model", "dataclass", "enum"])
@pytest.mark.parametrize("name", [None, 1, [], {}, ["x"], True])
def test_a_class_name_that_is_no_text_is_corrupt(kind: str, name: object) -> None:
    with pytest.raises(CorruptRecord):
        decode(json.dumps({"$": kind, "t": name, "v": {}}).encode())


@pytest.mark.parametrize(
    ("kind", "name", "payload", "more"),
    [
        ("model", "Item", {}, {}),
        ("model", "Item", [], {}),
        ("model", "Item", None, {}),
        ("model", "Item", {"sku": 1}, {}),
        ("model", "Item", {"sku": "a"}, {"s": 5}),
        ("model", "Item", {"sku": "a"}, {"s": [1]}),
        ("model", "Numbers", {"root": "x"}, {}),
        ("model", "Numbers", {}, {}),
        ("model", "Strict", {"id": "x", "where": 1}, {}),
        ("dataclass", "Point", {"x": "one"}, {}),
        ("dataclass", "Point", {"x": 1, "z": 1}, {}),
        ("dataclass", "Point", [1], {}),
        ("dataclass", "Summed", {"total": 1}, {}),
        ("enum", "Colour", "green", {}),
        ("enum", "Colour", [], {}),
        ("enum", "Level", 3, {}),
    ],
)
def test_fields_that_a_class_does_not_take_are_corrupt(
    kind: str, name: str, payload: object, more: dict[str, object]
) -> None:
    with pytest.raises(CorruptRecord) as caught:
        decode(json.dumps({"$": kind, "t": f"tests.odd_values:{name}", "v": payload, **more}).encode())
    assert not isinstance(caught.value, UnknownType)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b" ",
        b"{",
        b"[1",
        b'"',
        b"nul",
        b"[1,]",
        b"{'a':1}",
        b"1 2",
        b"[] []",
        b"\xff",
        '"é"'.encode(),
        b"NaN",
        b"[Infinity]",
        b"-Infinity",
        b'"\x00"',
        b"\xef\xbb\xbf1",
        b" 1",
        b"1\n",
        b"9" * 5000,
        b'{"a":1}x',
        b'{"$":"tuple","v":[]}x',
        b'{"$":"tuple","v":[]',
        pickle.dumps({"a": 1}),
        pickle.dumps(date(2024, 1, 1)),
        b"\x1f\x8b\x08",
    ],
)
def test_bytes_that_the_codec_never_writes_are_corrupt(raw: bytes) -> None:
    for adapter in (None, adapter_for(dict[str, int])):
        with pytest.raises(CorruptRecord):
            decode(raw, adapter)


@pytest.mark.parametrize("levels", [1_000, 200_000])
@pytest.mark.parametrize("opening", ["[", '{"a":', '{"$":"tuple","v":[', '{"$":"set","v":['])
def test_bytes_nested_too_deeply_are_corrupt_and_crash_nothing(opening: str, levels: int) -> None:
    closing = {"[": "]", '{"a":': "}"}.get(opening, "]}")
    for raw in (opening * levels, opening * levels + "1" + closing * levels):
        for adapter in (None, adapter_for(list[int])):
            with pytest.raises(CorruptRecord):
                decode(raw.encode(), adapter)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6) | st.sampled_from(TAGS),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.sampled_from(["$", "v", "t", "s", "a"]) | st.text(max_size=3), inner, max_size=4),
        st.fixed_dictionaries({"$": st.sampled_from(TAGS), "v": inner}),
        st.fixed_dictionaries(
            {
                "$": st.sampled_from(["model", "dataclass", "enum"]),
                "t": st.sampled_from(["Item", "Point", "Colour", "Anything", "Summed", "math.inf"]).map(
                    "tests.odd_values:{}".format
                ),
                "v": inner
                | st.dictionaries(st.sampled_from(["sku", "x", "y", "value", "parts"]), inner, max_size=3),
            },
            optional={"s": inner},
        ),
    ),
    max_leaves=10,
)


@settings(max_examples=500, deadline=None)
@given(json_values, st.sampled_from([None, Item, list[Point], dict[str, Any], Page[Item]]))
@example({"$": "Decimal", "v": "1e999999999999999999999"}, None)
@example({"$": "time", "v": ["00:00", 0, ["offset", 86_400_000_000]]}, None)
def test_any_json_is_either_a_value_or_a_typed_error(tree: object, annotation: object) -> None:
    try:
        decode(json.dumps(tree).encode(), adapter_for(annotation))
    except CorruptRecord as error:
        assert error.message  # noqa: PT017  either outcome is right; any other error is not


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=40))
def test_any_bytes_are_either_a_value_or_a_typed_error(raw: bytes) -> None:
    try:
        found = decode(raw)
    except CorruptRecord:
        return
    assert decode(encode(found)) == found


@settings(max_examples=200, deadline=None)
@given(values, st.data())
def test_damaged_bytes_are_either_a_value_or_a_typed_error(value: object, data: st.DataObject) -> None:
    raw = bytearray(freeze(value)[0])
    raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = decode(bytes(raw))
    except CorruptRecord:
        return
    encode(found)


def names_in(source: str) -> set[str]:
    """Every name that a module uses, imports or looks up; `re.compile` is no `compile`."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        for part in ("id", "attr", "name", "module"):
            name = getattr(node, part, None)
            if isinstance(name, str) and (part, name) != ("attr", "compile"):
                found |= set(name.split("."))
    return found


def test_nothing_here_imports_or_runs_code_by_name() -> None:
    assert len(MODULES) >= 6
    for path in MODULES:
        assert not names_in(path.read_text(encoding="utf-8")) & FORBIDDEN, path.name


@pytest.mark.parametrize(
    "source",
    [
        "import importlib",
        "from pickle import loads",
        "eval('1')",
        "builtins.exec('')",
        "__import__('os')",
        "compile('')",
    ],
)
def test_code_that_runs_by_name_would_be_seen(source: str) -> None:
    assert names_in(source) & FORBIDDEN
