"""Names, hashes and keys: what makes two calls the same call."""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durable_core.errors import InputNotSerializable, InvalidId, UsageError
from durable_core.identity import (
    KeyMaker,
    check_id,
    fingerprint,
    idempotency_key,
    input_hash,
    new_attempt_id,
    new_owner,
    new_run_id,
    place,
    place_of,
)
from tests.odd_values import ODD_VALUES

ROOT = Path(__file__).parents[2]


# ---- Ids ----


@pytest.mark.parametrize(
    "good", ["a", "0", "-", "_", "A.b", "x:y@z+1=2-3_4", "a" * 128, "..."[:1].replace(".", "a")]
)
def test_an_id_of_the_allowed_characters_is_taken_as_it_is(good: str) -> None:
    assert check_id(good, "run id") == good


@pytest.mark.parametrize(
    "bad",
    [
        "", " ", "\t", "\n", "a\n", "a b", ".", "..", ".a", "a/b", "/a", "../a", "a\\b", "a#2", "a[0]", "a!b",
        "a\0b", "ä", "а", "a" * 129, "a%", "a*", "a?", "a'b", 'a"b', "a;b", "{a}", "٣",  # noqa: RUF001
        None, 1, 1.5, True, b"a", ["a"], object(),
    ],
    ids=lambda value: repr(value)[:20],
)  # fmt: skip
def test_what_cannot_be_an_id_is_refused_with_the_rule(bad: object) -> None:
    with pytest.raises(InvalidId, match="run id") as caught:
        check_id(bad, "run id")
    assert "1 to 128" in str(caught.value)
    assert isinstance(caught.value, UsageError)
    assert len(str(caught.value)) < 300


@given(st.text(max_size=200))
def test_an_id_is_taken_or_refused_by_the_rule_alone(text: str) -> None:
    allowed = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._:@+=-"
    fits = 1 <= len(text) <= 128 and not text.startswith(".") and all(one in allowed for one in text)
    if fits:
        assert check_id(text, "name") == text
    else:
        with pytest.raises(InvalidId):
            check_id(text, "name")


def test_a_subclass_of_str_becomes_a_plain_str() -> None:
    class Name(str):
        pass

    assert type(check_id(Name("a"), "name")) is str


def test_a_made_run_id_tells_workflow_and_time_is_unique_and_valid_however_long_the_name_is() -> None:
    made = {new_run_id("w" * 128, "2026-11-29T17:19:55.003Z") for _ in range(50)}
    assert len(made) == 50
    for one in made:
        assert check_id(one, "run id") == one
    assert re.fullmatch(
        r"report-20261129-171955-[0-9a-f]{8}", new_run_id("report", "2026-11-29T17:19:55.003Z")
    )


@pytest.mark.parametrize("make", [new_owner, lambda: new_attempt_id(place(1, 1))])
def test_random_names_are_never_the_same_twice(make: Callable[[], str]) -> None:
    assert len({make() for _ in range(1000)}) == 1000


def test_attempt_ids_sort_as_the_steps_were_first_begun() -> None:
    begun = [(fence, number) for fence in (1, 2, 10, 300) for number in (1, 2, 9, 10, 11, 99, 100, 4096)]
    made = [new_attempt_id(place(fence, number)) for fence, number in begun]
    assert sorted(made) == made
    again = [new_attempt_id(place_of(attempt_id)) for attempt_id in made]
    assert [place_of(attempt_id) for attempt_id in again] == [place_of(attempt_id) for attempt_id in made]
    assert set(again).isdisjoint(made)


def test_an_attempt_id_is_of_one_length_however_far_a_run_has_come() -> None:
    assert {len(new_attempt_id(place(10**power, 10**power))) for power in range(12)} == {20}


# ---- Input hashes ----

A_UUID = UUID("12345678-1234-5678-1234-567812345678")
WHEN = datetime(2026, 1, 2, tzinfo=UTC)
DISTINCT: list[Any] = [
    1, 1.0, True, "1", Decimal("1"), Decimal("1.0"), b"1", [1], (1,), {1}, None, "None", "null",
    frozenset({1}), A_UUID, str(A_UUID), WHEN, WHEN.isoformat(), date(2026, 1, 2),
    datetime(2026, 1, 2), 0, 0.0, -0.0, False,  # noqa: DTZ001
    "", b"", [], (), {}, set(), {"a": 1}, {"a": "1"}, {1: "a"}, {"1": "a"}, [("a", 1)], Path("a"), "a",
    {"$": "int", "v": "1"}, float("nan"), float("inf"), "é", "e\u0301", [1, 2], [2, 1], [[1], 2], [[1, 2]],
]  # fmt: skip


def test_values_that_differ_in_type_or_value_hash_differently() -> None:
    hashes = [input_hash("s", (value,), {}) for value in DISTINCT]
    same = [
        (DISTINCT[one], DISTINCT[other])
        for one, other in itertools.combinations(range(len(DISTINCT)), 2)
        if hashes[one] == hashes[other]
    ]
    assert same == []


def test_the_step_and_the_way_an_argument_is_passed_are_part_of_the_hash() -> None:
    calls: list[tuple[str, tuple[object, ...], dict[str, object]]] = [
        ("s", (), {}),
        ("s#2", (), {}),
        ("b/s", (), {}),
        ("s", (1,), {}),
        ("s", ((1,),), {}),
        ("s", (), {"a": 1}),
        ("s", (1, 2), {}),
        ("s", (1,), {"a": 2}),
        ("s", ([1, 2],), {}),
    ]
    assert len({input_hash(*call) for call in calls}) == len(calls)


def test_the_order_of_dict_keys_keyword_arguments_and_sets_makes_no_difference() -> None:
    nested = [("x", 1), ("y", {"b": 1, "a": [1, 2]}), ("z", {3, 1, 2})]
    hashes = {
        input_hash("s", (dict(order),), dict(reversed(order))) for order in itertools.permutations(nested)
    }
    assert len(hashes) == 1


def test_a_hash_is_the_sha256_of_the_canonical_bytes_of_the_call() -> None:
    expected = hashlib.sha256(b'{"$":"tuple","v":["s",{"$":"tuple","v":[1]},{"a":"x"}]}').hexdigest()
    assert input_hash("s", (1,), {"a": "x"}) == expected


CALL = """
from tests.odd_values import ODD_VALUES
from durable_core.identity import input_hash
values = [ODD_VALUES[name] for name in sorted(ODD_VALUES)]
print(input_hash("s", (values, {"b", "a", "ä", "z"}), {"z": 1, "é": 2, "a": 3}))
"""


def test_a_hash_is_the_same_in_every_process_whatever_its_hash_seed_and_language() -> None:
    values = [ODD_VALUES[name] for name in sorted(ODD_VALUES)]
    here = input_hash("s", (values, {"b", "a", "ä", "z"}), {"z": 1, "é": 2, "a": 3})
    for seed, language in (("0", "C"), ("1", "tr_TR.UTF-8")):
        env = {
            **os.environ, "PYTHONHASHSEED": seed, "LANG": language, "LC_ALL": language, "PYTHONUTF8": "1",
            "PYTHONPATH": str(ROOT),
        }  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-c", CALL], env=env, capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == here


def test_an_argument_that_cannot_be_hashed_is_named_without_its_value() -> None:
    class Connection:
        def __repr__(self) -> str:
            return "Connection(password='hunter2')"

    with pytest.raises(InputNotSerializable) as caught:
        input_hash("sign_in", ([1, {"login": Connection()}],), {})
    assert caught.value.step_id == "sign_in"
    assert "login" in caught.value.path
    assert "hunter2" not in str(caught.value)


# ---- Keys ----


def test_a_key_is_the_sha256_of_its_parts_each_after_its_length() -> None:
    def part(text: str) -> bytes:
        return len(text.encode()).to_bytes(8, "big") + text.encode()

    expected = hashlib.sha256(part("run-ä") + part("7") + part("abc")).hexdigest()
    assert idempotency_key("run-ä", 7, "abc") == expected
    assert KeyMaker("run-ä").key(7, "abc") == expected


def test_parts_of_a_key_that_run_together_differently_are_different_keys() -> None:
    calls = [("r", 1, "2a"), ("r", 12, "a"), ("r1", 2, "a"), ("r1", 2, "b"), ("r", "12", "b"), ("r2", 1, "a")]
    assert len({idempotency_key(*call) for call in calls}) == len(calls)


def test_a_maker_makes_any_number_of_keys_of_its_run() -> None:
    keys = KeyMaker("r")
    assert [keys.key(n, "h") for n in range(5)] == [idempotency_key("r", n, "h") for n in range(5)]
    assert keys.key(0, "h") == idempotency_key("r", 0, "h")


# ---- Fingerprints ----


def _made(body: str) -> Callable[..., Any]:
    space: dict[str, Any] = {}
    exec(f"def f(ctx):\n    {body}\n", space)  # noqa: S102 - a function without a source to read
    return space["f"]  # type: ignore[no-any-return]


def test_a_fingerprint_changes_with_the_code_also_where_there_is_no_source() -> None:
    assert fingerprint(_made("return ctx.a(1)")) == fingerprint(_made("return ctx.a(1)"))
    assert fingerprint(_made("return ctx.a(1)")) != fingerprint(_made("return ctx.b(1)"))
    assert fingerprint(test_an_argument_that_cannot_be_hashed_is_named_without_its_value) != fingerprint(
        part_of
    )


def test_a_change_of_a_constant_changes_the_fingerprint_also_where_there_is_no_source() -> None:
    assert fingerprint(_made("return ctx.a(1)")) != fingerprint(_made("return ctx.a(2)"))


def part_of(ctx: Any) -> Any:
    return ctx


def test_callables_without_code_have_a_fingerprint_too() -> None:
    class Callee:
        def __call__(self) -> None: ...

    assert len({fingerprint(Callee()), fingerprint(print), fingerprint(part_of)}) == 3
