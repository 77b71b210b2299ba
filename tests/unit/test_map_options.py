"""How a map is to run: its options, and the function that it is given."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from durable_core import Context, Retry, SyncContext, step
from durable_core.errors import UsageError
from durable_core.map_options import MapOptions, check_items, checked, context_kind, mapped
from tests.naming import told


async def plain(item: int) -> int:
    return item


async def with_steps(ctx: Context, item: int) -> int:
    return item


def sync_steps(ctx: SyncContext, item: int) -> int:
    return item


async def quoted(ctx: "Context", item: int) -> int:  # noqa: UP037 - that is what is tested
    return item


def test_the_defaults() -> None:
    options = checked({})
    assert (options.max_concurrency, options.tolerate_failures, options.linger_ms) == (32, 0, 0)
    assert (options.key, options.rate, options.retry, options.collect) == (None, None, None, True)
    assert options.segment_items == 256


def test_a_segment_holds_at_least_what_is_in_work() -> None:
    assert MapOptions(max_concurrency=1000).segment_items == 1000


@pytest.mark.parametrize(
    ("tolerated", "total", "count"),
    [
        (0, 10, 0),
        (3, None, 3),
        (0.02, 100, 2),
        (0.02, 149, 2),
        (0.29, 100, 29),
        (1.0, 7, 7),
        (0.0, 7, 0),
        (0.5, None, None),
    ],
)
def test_a_count_and_a_share_of_failures(tolerated: float, total: int | None, count: int | None) -> None:
    assert MapOptions(tolerate_failures=tolerated).tolerated(total) == count


def test_an_unknown_option_is_named_with_those_there_are() -> None:
    wrong: Any = {"concurrency": 3}
    with pytest.raises(UsageError, match=r"'concurrency'.*max_concurrency"):
        checked(wrong)


def test_partials_are_taken_apart_from_the_outside_in() -> None:
    async def fn(a: int, b: int, item: int, *, c: int, d: int) -> None: ...

    inner = functools.partial(fn, 1, c=3, d=4)
    found = mapped(functools.partial(inner, 2, d=5), MapOptions())
    assert (found.args, found.kwargs) == ((1, 2), {"c": 3, "d": 5})
    assert found.step.name == "fn"


def test_a_partial_of_a_step_keeps_its_options() -> None:
    named = step(retry=Retry(max_attempts=3), name="named")(plain)
    found = mapped(functools.partial(named, 1), MapOptions())
    assert (found.step.name, found.step.options.retry.max_attempts) == ("named", 3)
    assert mapped(named, MapOptions(retry=Retry(max_attempts=7))).step.options.retry.max_attempts == 7


@pytest.mark.parametrize(
    ("fn", "kind"),
    [
        (plain, None),
        (with_steps, "Context"),
        (sync_steps, "SyncContext"),
        (quoted, "Context"),
        (str, None),
        (len, None),
        (dict.get, None),
    ],
)
def test_what_a_function_has_for_its_first_parameter(fn: Any, kind: str | None) -> None:
    assert context_kind(fn) == kind


@pytest.mark.parametrize(
    "items", [[], (), range(3), iter([]), {1: 2}.values(), {1: 2}.items(), {1: 2}.keys()]
)
def test_what_has_an_order_can_be_items(items: Any) -> None:
    check_items(items)


class Old:
    def __getitem__(self, at: int) -> int:
        raise IndexError


@pytest.mark.parametrize(
    "items", ["abc", b"", bytearray(b"x"), {}, set(), frozenset(), 5, None, plain], ids=told
)
def test_what_has_none_or_is_one_value_cannot(items: Any) -> None:
    check_items(Old())
    with pytest.raises(UsageError):
        check_items(items)


def plain_with_async_context(ctx: Context, item: int) -> int:
    return item


async def async_with_sync_context(ctx: SyncContext, item: int) -> int:
    return item


@pytest.mark.parametrize("fn", [plain_with_async_context, async_with_sync_context])
def test_a_function_that_takes_the_other_kinds_context_is_refused(fn: Any) -> None:
    with pytest.raises(UsageError, match="Context"):
        mapped(fn, MapOptions())
