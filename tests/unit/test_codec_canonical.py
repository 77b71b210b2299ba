"""Hashes of inputs differ with value and type, and are the same for the same, everywhere and for ever."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections import OrderedDict
from datetime import UTC, date, datetime
from decimal import Decimal
from fractions import Fraction
from hashlib import sha256
from pathlib import Path, PurePosixPath
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Secret, SecretBytes, SecretStr

from durable_core.codec import canonical, encode
from durable_core.errors import NotSerializable
from tests.odd_values import A_MOMENT, A_UUID, ODD_VALUES, Colour, Frozen, Item, Level, Point, hashables

ROOT = Path(__file__).parents[2]
GOLDEN = Path(__file__).with_name("golden_hashes.json")

DISTINCT: dict[str, object] = {
    "int": 1,
    "float": 1.0,
    "true": True,
    "text": "1",
    "decimal": Decimal(1),
    "decimal 1.0": Decimal("1.0"),
    "decimal text": "1.0",
    "bytes": b"1",
    "list": [1],
    "tuple": (1,),
    "set": {1},
    "frozenset": frozenset({1}),
    "none": None,
    "none text": "None",
    "null text": "null",
    "zero": 0,
    "false": False,
    "float zero": 0.0,
    "float minus zero": -0.0,
    "nan": float("nan"),
    "nan text": "nan",
    "decimal nan": Decimal("NaN"),
    "uuid": A_UUID,
    "uuid text": str(A_UUID),
    "datetime": A_MOMENT,
    "datetime text": A_MOMENT.isoformat(),
    "datetime utc": A_MOMENT.replace(tzinfo=UTC),
    "datetime fold": A_MOMENT.replace(fold=1),
    "datetime lookalike": {"$": "datetime", "v": A_MOMENT.isoformat()},
    "datetime escaped lookalike": {"$": "dict", "v": ["$", "datetime", "v", A_MOMENT.isoformat()]},
    "midnight": datetime(2024, 2, 29),  # noqa: DTZ001
    "date": date(2024, 2, 29),
    "enum": Colour.RED,
    "enum value": "red",
    "int enum": Level.LOW,
    "dict": {"a": 1},
    "ordered": OrderedDict(a=1),
    "int key": {1: 1},
    "text key": {"1": 1},
    "true key": {True: 1},
    "none key": {None: 1},
    "pairs": [("a", 1)],
    "empty list": [],
    "empty tuple": (),
    "empty set": set(),
    "empty dict": {},
    "empty text": "",
    "empty bytes": b"",
    "path": Path("/a"),
    "pure path": PurePosixPath("/a"),
    "path text": "/a",
    "composed": "é",
    "decomposed": "e\u0301",
    "surrogates": "\ud83d\ude00",
    "astral": "😀",
    "dataclass": Point(1, 0.5),
    "dataclass fields": {"x": 1, "y": 0.5},
    "model": Item(sku="a"),
    "other model": Frozen(name="a"),
    "secret": SecretStr("1"),
    "secret bytes": SecretBytes(b"1"),
    "secret int": Secret[int](1),
    "other secret int": Secret[int](2),
    "secret lookalike": {"$": "SecretStr", "v": sha256(b"1").hexdigest()},
    "reversed": [2, 1],
    "in order": [1, 2],
}

GOLDEN_INPUTS: dict[str, object] = {
    **{name: value for name, value in DISTINCT.items() if not name.startswith(("pure", "other secret"))},
    "call": ("extract", ("path",), {}),
    "call with kwargs": ("load#2", (1, "two"), {"b": None, "a": [1.5, {"z": 1, "y": 2}]}),
    "deep": {"a": [{"b": ({"c": {1, 2, 3}},)}]},
    "mixed keys": {2: "a", "1": "b", None: "c", (1, 2): "d"},
}

IN_ANOTHER_PROCESS = """
from tests.unit.test_codec_canonical import GOLDEN_INPUTS, hashed
import json
print(json.dumps({name: hashed(value) for name, value in GOLDEN_INPUTS.items()}))
"""


def hashed(value: object) -> str:
    return sha256(canonical(value)).hexdigest()


def test_values_that_differ_in_type_differ_in_their_bytes() -> None:
    by_bytes: dict[bytes, str] = {}
    for name, value in DISTINCT.items():
        assert by_bytes.setdefault(canonical(value), name) == name
        assert by_bytes.setdefault(canonical({"key": value}), f"in {name}") == f"in {name}"
    assert len(by_bytes) == 2 * len(DISTINCT)


def test_the_order_of_a_dict_does_not_count_and_that_of_a_list_does() -> None:
    pairs = [("a", 1), ("b", {"x": 1, "y": 2}), ("B", None), ("é", 3)]
    assert len({canonical(dict(order)) for order in itertools.permutations(pairs)}) == 1
    assert canonical({"b": {"x": 1, "y": 2}}) == canonical({"b": {"y": 2, "x": 1}})
    odd = [(2, 1), ("2", 2), (None, 3), ((1, 2), {"b": 1, "a": 2})]
    assert len({canonical(dict(order)) for order in itertools.permutations(odd)}) == 1
    assert len({canonical(list(order)) for order in itertools.permutations([1, 2, 3])}) == 6
    assert canonical(OrderedDict(a=1, b=2)) != canonical(OrderedDict(b=2, a=1))


@settings(max_examples=100, deadline=None)
@given(st.lists(hashables, max_size=6), st.randoms(use_true_random=False))
def test_the_order_in_which_a_set_or_dict_was_filled_does_not_count(
    items: list[object], random: object
) -> None:
    shuffled = list(items)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    kept = dict.fromkeys(items)
    # Equal keys of different types (1 and True) go by whichever came first: that is another value.
    order = [item for item in shuffled if any(item is key for key in kept)]
    assert canonical(set(kept)) == canonical(set(order))
    assert canonical(dict.fromkeys(kept, 1)) == canonical(dict.fromkeys(order, 1))


def test_a_nan_is_the_same_input_each_time() -> None:
    assert canonical({"loss": float("nan")}) == canonical({"loss": -float("nan") * 2})


def test_canonical_bytes_are_sorted_ascii_without_spaces() -> None:
    assert (
        canonical({"ß": 1, "a": (1, 2.5), "B": None})
        == b'{"B":null,"a":{"$":"tuple","v":[1,2.5]},"\\u00df":1}'
    )


def test_keys_are_sorted_whatever_the_locale() -> None:
    value = dict.fromkeys(["z", "ä", "a", "B", "ß", "é", "e\u0301", "İ", "i"], 0)
    assert canonical(value) == (
        b'{"B":0,"a":0,"e\\u0301":0,"i":0,"z":0,"\\u00df":0,"\\u00e4":0,"\\u00e9":0,"\\u0130":0}'
    )


@pytest.mark.parametrize("name", [name for name in ODD_VALUES if name != "decimal snan"])
def test_an_odd_value_has_bytes_of_its_own(name: str) -> None:
    mine = canonical(ODD_VALUES[name])
    same = {other for other, value in ODD_VALUES.items() if canonical(value) == mine}
    assert same - {name} <= {"enum", "enum alias"}


def test_hashes_of_fixed_inputs_never_change() -> None:
    recorded = json.loads(GOLDEN.read_text(encoding="utf-8"))
    assert len(recorded) >= 30
    assert {name: hashed(value) for name, value in GOLDEN_INPUTS.items()} == recorded


@pytest.mark.parametrize(
    "environment",
    [
        {"PYTHONHASHSEED": "0"},
        {"PYTHONHASHSEED": "1", "LANG": "tr_TR.UTF-8", "LC_ALL": "C"},
        {"TZ": "Asia/Tokyo"},
    ],
)
def test_hashes_are_the_same_in_other_processes(environment: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", IN_ANOTHER_PROCESS],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == json.loads(GOLDEN.read_text(encoding="utf-8"))


class Login(BaseModel):
    user: str
    password: SecretStr
    tokens: list[SecretBytes] = []


def test_secrets_are_hashed_and_never_in_clear() -> None:
    def login(password: str, token: bytes = b"canary-2") -> Login:
        return Login(user="u", password=SecretStr(password), tokens=[SecretBytes(token)])

    for value in (
        login("canary-1"),
        {"deep": [(login("canary-1"),)]},
        SecretStr("canary-1"),
        Secret[str]("canary-1"),
    ):
        assert b"canary" not in canonical(value)
    assert canonical(login("canary-1")) == canonical(login("canary-1"))
    assert canonical(login("canary-1")) != canonical(login("other"))
    assert canonical(login("canary-1")) != canonical(login("canary-1", b"other"))
    assert canonical(SecretStr("\ud83d")) != canonical(SecretStr("?"))


def test_a_model_of_many_kinds_is_hashed_by_its_values() -> None:
    class Input(BaseModel):
        id: UUID
        day: date
        at: datetime
        price: Decimal
        where: Path
        password: SecretStr

    def made(**changed: object) -> Input:
        given: dict[str, object] = {
            "id": A_UUID,
            "day": date(2024, 1, 1),
            "at": A_MOMENT.replace(tzinfo=UTC),
            "price": Decimal("1.0"),
            "where": Path("/x"),
            "password": "canary",
        }
        return Input.model_validate(given | changed)

    changes: dict[str, object] = {
        "id": UUID(int=1),
        "day": date(2024, 1, 2),
        "at": A_MOMENT,
        "price": Decimal("1.00"),
        "where": Path("/y"),
        "password": "other",
    }
    assert canonical(made()) == canonical(made())
    assert b"canary" not in canonical(made())
    assert (
        len({canonical(made(**{name: value})) for name, value in changes.items()} | {canonical(made())}) == 7
    )


def test_what_cannot_be_stored_cannot_be_hashed_either() -> None:
    for value, path in (({"a": [object()]}, ".a[0]"), ((Fraction(1, 2),), "[0]")):
        with pytest.raises(NotSerializable) as caught:
            canonical(value)
        assert caught.value.path == path


def test_classes_need_not_be_found_again_to_be_hashed() -> None:
    class Local(BaseModel):
        n: int

    assert canonical(Local(n=1)) == canonical(Local(n=1))
    assert canonical(Local(n=1)) != canonical(Local(n=2))
    with pytest.raises(NotSerializable):
        encode(Local(n=1))
