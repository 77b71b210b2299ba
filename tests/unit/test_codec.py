"""Values come back from the codec as they went in, or are refused with the path to what can't be stored."""

from __future__ import annotations

import array
import asyncio
import collections
import io
import os
import socket
import subprocess
import sys
import threading
from collections import OrderedDict
from dataclasses import dataclass
from decimal import Decimal, localcontext
from enum import Enum
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from pydantic import BaseModel, SecretStr

from durable_core.codec import MAX_DEPTH, adapter_for, canonical, decode, encode, freeze
from durable_core.errors import NotSerializable
from tests.odd_values import (
    ODD_ATOMS,
    ODD_VALUES,
    Anything,
    Chain,
    Crowded,
    Holder,
    Item,
    Link,
    TypedChain,
    identical,
    values,
)

ROOT = Path(__file__).parents[2]
NESTS: dict[str, Any] = {
    "list": lambda inner: [inner],
    "tuple": lambda inner: (inner,),
    "frozenset": lambda inner: frozenset([inner]),
    "dict": lambda inner: {"a": inner},
    "int keys": lambda inner: {1: inner},
    "dollar keys": lambda inner: {"$": inner},
    "ordered": lambda inner: OrderedDict(a=inner),
    "dataclass": lambda inner: Link(inner),
    "crowded dataclass": lambda inner: Crowded(inner),
    "model": lambda inner: Chain(next=inner),
    "typed model": lambda inner: TypedChain(next=inner),
}


class Pair(NamedTuple):
    one: int
    two: int


class MyInt(int): ...


class MyStr(str):
    __slots__ = ("parent",)


class MyList(list): ...  # type: ignore[type-arg]


class MyDict(dict): ...  # type: ignore[type-arg]


class Unfindable(Enum):
    NAN = float("nan")
    OBJECT = object()


def nested(shape: str, levels: int) -> Any:
    value = None
    for _ in range(levels):
        value = NESTS[shape](value)
    return value


def levels_of(value: Any, shape: str) -> int:
    """Counts the levels of a nested value without recursion, checking the type of each."""
    count, wanted = 0, type(NESTS[shape](None))
    while value is not None:
        assert type(value) is wanted
        if isinstance(value, dict):
            (value,) = value.values()
        elif isinstance(value, list | tuple | frozenset):
            (value,) = value
        else:
            value = value.next
        count += 1
    return count


def below(frames: int, work: Any) -> Any:
    return work() if frames == 0 else below(frames - 1, work)


def test_there_are_more_than_a_hundred_odd_values() -> None:
    assert len(ODD_VALUES) >= 100


@pytest.mark.parametrize("name", ODD_VALUES)
def test_an_odd_value_comes_back_equal_and_of_the_same_types(name: str) -> None:
    value = ODD_VALUES[name]
    for held in (value, [value], {"key": value}, (value, value), {"$": value}, Holder(value=value)):
        raw, restored = freeze(held)
        assert identical(restored, held)
        assert raw.isascii()
        assert encode(restored) == raw


@pytest.mark.parametrize("name", ODD_ATOMS)
def test_an_odd_value_comes_back_as_a_key_and_in_a_set(name: str) -> None:
    value = ODD_ATOMS[name]
    for held in ({value: 1}, {value: 1, "other": 2}, OrderedDict([(value, 1)]), {value}, frozenset([value])):
        assert identical(freeze(held)[1], held)


@settings(max_examples=400, deadline=None)
@given(values)
def test_any_value_comes_back_equal_and_of_the_same_types(value: object) -> None:
    raw, restored = freeze(value)
    assert identical(restored, value)
    assert encode(restored) == raw
    assert canonical(restored) == canonical(value)


@pytest.mark.parametrize("frames", [0, 150, 600])
@pytest.mark.parametrize("shape", NESTS)
def test_values_nested_to_the_limit_come_back_from_deep_in_the_callers_stack(shape: str, frames: int) -> None:
    value = nested(shape, MAX_DEPTH)
    _, restored = below(frames, lambda: freeze(value))
    assert levels_of(restored, shape) == MAX_DEPTH
    assert below(frames, lambda: canonical(value)) == canonical(restored)


DEEP_IN_A_FRESH_PROCESS = """
import sys
from durable_core.codec import MAX_DEPTH, decode
import tests.odd_values
from tests.unit.test_codec import below, levels_of

raw = bytes.fromhex(sys.stdin.read())
print(levels_of(below(100, lambda: decode(raw)), sys.argv[1]) == MAX_DEPTH)
"""


@pytest.mark.parametrize("shape", ["dataclass", "crowded dataclass", "typed model"])
def test_a_fresh_process_reads_deep_values_of_classes_that_it_meets_for_the_first_time(shape: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", DEEP_IN_A_FRESH_PROCESS, shape],
        input=encode(nested(shape, MAX_DEPTH)).hex(),
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "True\n"


@pytest.mark.parametrize("levels", [MAX_DEPTH + 1, 900, 5_000])
@pytest.mark.parametrize("shape", sorted(NESTS.keys() - {"frozenset"}))
def test_deeper_values_are_refused(shape: str, levels: int) -> None:
    value = nested(shape, levels)
    for refuse in (encode, freeze, canonical):
        with pytest.raises(NotSerializable, match="deeper than 400 levels") as caught:
            refuse(value)
        assert len(caught.value.path) < 200


def test_values_that_contain_themselves_are_refused_as_such() -> None:
    loop: list[object] = []
    loop.append({"again": [loop]})
    other = Anything()
    other.value = other
    for value in (loop, other, {"a": loop}):
        for refuse in (encode, canonical):
            with pytest.raises(NotSerializable, match="contains itself"):
                refuse(value)


def test_a_value_that_appears_twice_is_no_circle() -> None:
    shared = [1]
    assert freeze([shared, shared, {"a": shared}])[1] == [[1], [1], {"a": [1]}]


async def _coroutine() -> None: ...


REFUSED: dict[str, object] = {
    "object": object(),
    "lambda": lambda: None,
    "class": int,
    "module": sys,
    "generator": (number for number in range(3)),
    "iterator": iter([1]),
    "range": range(3),
    "complex": 1j,
    "slice": slice(1),
    "ellipsis": ...,
    "fraction": Fraction(1, 2),
    "bytearray": bytearray(b"a"),
    "memoryview": memoryview(b"a"),
    "array": array.array("i", [1]),
    "deque": collections.deque([1]),
    "counter": collections.Counter("a"),
    "defaultdict": collections.defaultdict(list),
    "dict view": {}.keys(),
    "namedtuple": Pair(1, 2),
    "int subclass": MyInt(1),
    "str subclass": MyStr("a"),
    "list subclass": MyList([1]),
    "dict subclass": MyDict(a=1),
    "exception": ValueError("x"),
    "lock": threading.Lock(),
    "file": io.BytesIO(b"x"),
    "secret": SecretStr("hunter2"),
    "enum without its value": Unfindable.OBJECT,
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_stored_is_refused_with_its_path(name: str) -> None:
    value = REFUSED[name]
    held: dict[str, tuple[object, str]] = {
        "alone": (value, ""),
        "in a list": ({"items": [1, {"conn": value}]}, ".items[1].conn"),
        "in a tuple": ([(0, value)], "[0][1]"),
        "in a dataclass": ([Holder(value=value)], "[0].value"),
        "in a model": (Anything(value={1: value}), ".value[1]"),
        "by an odd key": ({"a b": {"$": value}}, "['a b']['$']"),
    }
    for holder, path in held.values():
        for refuse in (encode, freeze):
            with pytest.raises(NotSerializable) as caught:
                refuse(holder)
            assert caught.value.path.removesuffix(".value" if name.startswith("enum") else "") == path
            assert path in str(caught.value)
        assert "hunter2" not in str(caught.value)


def test_sockets_and_coroutines_are_refused() -> None:
    pending = _coroutine()
    with socket.socket() as open_socket:
        for value in (open_socket, pending, {"a": [open_socket]}):
            with pytest.raises(NotSerializable):
                freeze(value)
    asyncio.run(pending)


def test_a_key_that_cannot_be_stored_is_refused_with_its_type() -> None:
    with pytest.raises(NotSerializable, match="Fraction") as caught:
        encode({"a": {Fraction(1, 2): 1}})
    assert caught.value.path == ".a[<Fraction>]"


def test_a_path_is_told_where_a_key_is_too_long_to_print() -> None:
    with pytest.raises(NotSerializable) as caught:
        encode({10**5000: object(), "k" * 500: 1})
    assert caught.value.path == "[<int>]"


def test_an_enum_member_that_its_value_does_not_find_is_refused() -> None:
    # NaN is unequal to itself: found by identity now, and by nothing once it was stored.
    with pytest.raises(NotSerializable):
        freeze(Unfindable.NAN)


def test_an_enum_whose_lookup_fails_is_refused_and_not_raised() -> None:
    class Odd(Enum):
        ONE = 1

        @classmethod
        def _missing_(cls, value: object) -> Odd:
            raise RuntimeError(f"no {value}")

    member = Odd.ONE
    member._value_ = 2
    with pytest.raises(NotSerializable, match="by its value"):
        encode([member], adapter_for(list[int]))


@dataclass
class Restless:
    held: dict[str, object]

    def __getattribute__(self, name: str) -> Any:
        if name == "held":
            vars(self)["held"][f"key {len(vars(self)['held'])}"] = 1
            return None
        return super().__getattribute__(name)


def test_a_value_that_changes_while_it_is_stored_is_refused() -> None:
    value: dict[str, object] = {}
    value["a"] = Restless(value)
    for refuse in (encode, canonical):
        with pytest.raises(NotSerializable, match="changed while"):
            refuse(value)


def test_values_are_not_changed_by_being_stored() -> None:
    inner: dict[str, object] = {"b": (1, {2}), "a": Decimal(1)}
    value = {"x": inner, 1: [inner]}
    encode(value)
    canonical(value)
    assert value == {"x": {"b": (1, {2}), "a": Decimal(1)}, 1: [inner]}
    assert list(inner) == ["b", "a"]


def test_the_order_of_a_dict_is_stored() -> None:
    assert list(freeze({"b": 1, "a": (2,)})[1]) == ["b", "a"]
    assert list(freeze({2: 1, 1: 2})[1]) == [2, 1]
    assert list(freeze(Anything(value={"z": 1, "y": 2}))[1].value) == ["z", "y"]


def test_sets_are_stored_in_an_order_that_is_theirs_alone() -> None:
    one = set(range(100, 0, -1)) | {"a", "b"}
    other = {"b", "a"} | set(range(1, 101))
    assert encode(one) == encode(other)


def test_the_decimal_context_has_no_say() -> None:
    stored = encode(Decimal("1E+30"))
    with localcontext() as context:
        context.capitals = 0
        context.prec = 2
        assert encode(Decimal("1E+30")) == stored
        assert identical(decode(encode(Decimal("1.23456"))), Decimal("1.23456"))


def test_long_integers_do_not_depend_on_the_limit_for_printing_them() -> None:
    value = {"n": 10**700, "m": -(10**5000)}
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(640)
    try:
        assert freeze(value)[1] == value
    finally:
        sys.set_int_max_str_digits(before)


def test_what_is_stored_is_plain_json_where_json_can_say_it() -> None:
    value = {"s": "é", "n": [1, 2.5, None, True], "d": {"x": {}}}
    assert encode(value) == b'{"s":"\\u00e9","n":[1,2.5,null,true],"d":{"x":{}}}'


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        ((1, b"\xff"), b'{"$":"tuple","v":[1,{"$":"bytes","v":"/w=="}]}'),
        ({1: 2, "a": 3}, b'{"$":"dict","v":[1,2,"a",3]}'),
        (float("-inf"), b'{"$":"float","v":"-inf"}'),
        (Decimal("-0.0"), b'{"$":"Decimal","v":"-0.0"}'),
        (Item(sku="s"), None),
    ],
)
def test_tags_stay_as_they_are_between_releases(value: object, stored: bytes | None) -> None:
    if stored is None:
        stored = (
            b'{"$":"model","t":"tests.odd_values:Item","v":{"sku":"s","price":{"$":"Decimal","v":"0.00"},'
            b'"at":null},"s":["sku"]}'
        )
    assert encode(value) == stored
    assert identical(decode(stored), value)


def test_a_secret_in_a_model_is_never_stored() -> None:
    class Login(BaseModel):
        password: SecretStr

    with pytest.raises(NotSerializable) as caught:
        encode(Login(password=SecretStr("hunter2")))
    assert "hunter2" not in str(caught.value)
