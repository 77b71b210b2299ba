"""When a step that raised is tried again."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durable_core import Retry, RetryLater
from durable_core.errors import UsageError
from durable_core.retry import NO_RETRY


def test_delays_grow_by_the_factor_up_to_the_longest() -> None:
    retry = Retry(initial_delay_s=1, factor=2, max_delay_s=10, jitter=0)
    assert [retry.delay_s(errors) for errors in range(1, 7)] == [1, 2, 4, 8, 10, 10]


@pytest.mark.parametrize("errors", [1, 5, 10_000, 10**6])
def test_no_number_of_errors_makes_a_delay_that_is_no_number(errors: int) -> None:
    delay = Retry(initial_delay_s=0.5, factor=3, max_delay_s=60, jitter=0).delay_s(errors)
    assert 0.5 <= delay <= 60


@given(st.floats(0, 1), st.integers(1, 40), st.integers())
def test_jitter_shortens_a_delay_by_at_most_its_share(jitter: float, errors: int, seed: int) -> None:
    full = Retry(jitter=0).delay_s(errors)
    delay = Retry(jitter=jitter).delay_s(errors, random.Random(seed))
    assert full * (1 - jitter) <= delay <= full


def test_delays_of_many_steps_are_spread() -> None:
    retry = Retry(initial_delay_s=10, jitter=0.5)
    delays = {round(retry.delay_s(1, random.Random(seed)), 3) for seed in range(50)}
    assert len(delays) > 40


@pytest.mark.parametrize(
    ("retry", "error", "errors", "again"),
    [
        (Retry(max_attempts=3), ValueError(), 1, True),
        (Retry(max_attempts=3), ValueError(), 2, True),
        (Retry(max_attempts=3), ValueError(), 3, False),
        (Retry(max_attempts=1), ValueError(), 1, False),
        (NO_RETRY, ValueError(), 1, False),
        (NO_RETRY, RetryLater(1), 1, False),
        (Retry(retry_on=(OSError,)), TimeoutError(), 1, True),
        (Retry(retry_on=(OSError,)), ValueError(), 1, False),
        (Retry(give_up_on=(OSError,)), TimeoutError(), 1, False),
        (Retry(give_up_on=(OSError,)), ValueError(), 1, True),
        (Retry(retry_on=(OSError,), give_up_on=(TimeoutError,)), TimeoutError(), 1, False),
        (Retry(retry_on=(OSError,)), RetryLater(1), 1, True),
        (Retry(), SystemExit(), 1, False),
    ],
)
def test_only_what_may_be_tried_again_is(
    retry: Retry, error: BaseException, errors: int, again: bool
) -> None:
    assert retry.allows(error, errors) is again


BAD: list[dict[str, Any]] = [
    *({"max_attempts": value} for value in (0, -1, 1.5, "3", True, None)),
    *({"initial_delay_s": value} for value in (-1, math.nan, math.inf, "1", None, True)),
    *({"factor": value} for value in (0, 0.99, -2, math.nan, "2", 10**400, 10**5000)),
    *({"max_delay_s": value} for value in (-0.1, math.inf, math.nan, 10**400)),
    *({"jitter": value} for value in (-0.1, 1.1, math.nan, "0")),
    *({"retry_on": value} for value in (ValueError, [ValueError], ("ValueError",), (BaseException,), (1,))),
    *({"give_up_on": value} for value in (OSError, [OSError], (KeyboardInterrupt,), (int,))),
]


@pytest.mark.parametrize("options", BAD, ids=lambda options: next(iter(options)))
def test_what_cannot_be_meant_is_refused_when_it_is_written(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(options))) as caught:
        Retry(**options)
    assert len(str(caught.value)) < 200


def test_a_retry_cannot_be_changed_after_it_was_made() -> None:
    with pytest.raises(AttributeError):
        Retry().max_attempts = 5  # type: ignore[misc]


@pytest.mark.parametrize("after_s", [-1, math.nan, math.inf, "1", None])
def test_a_delay_that_cannot_be_meant_is_refused(after_s: Any) -> None:
    with pytest.raises(UsageError, match="after_s"):
        RetryLater(after_s)


def test_retry_later_says_when_and_why() -> None:
    assert RetryLater(2).after_s == 2.0
    assert "2 s" in str(RetryLater(2))
    assert str(RetryLater(2, "quota used up")) == "quota used up"
