"""What a workflow may wait for, and what makes one wait the same as another."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from durable_core.awaited import LONGEST_S, UNSET, Slept, awaited, slept
from durable_core.errors import InvalidId, UnresolvedAnnotation, UsageError


class Decision(BaseModel):
    approved: bool


@pytest.mark.parametrize(
    ("given", "seconds"),
    [(5, 5.0), (0.5, 0.5), (0, 0.0), (-3, 0.0), (timedelta(hours=1), 3600.0), (-LONGEST_S, 0.0)],
)
def test_a_sleep_is_so_long_and_a_negative_one_is_over_at_once(given: Any, seconds: float) -> None:
    assert slept(given, None) == Slept(seconds, None)


def test_a_sleep_is_the_same_however_its_seconds_are_written() -> None:
    assert (
        slept(60, None).hashed() == slept(60.0, None).hashed() == slept(timedelta(minutes=1), None).hashed()
    )
    assert slept(60, None).hashed() != slept(61, None).hashed()


def test_a_sleep_until_a_time_is_that_time() -> None:
    when = datetime(2030, 1, 1, tzinfo=UTC)
    assert slept(None, when) == Slept(None, when)


@pytest.mark.parametrize(
    ("given", "until"),
    [
        (None, None),
        (1, datetime(2030, 1, 1, tzinfo=UTC)),
        (None, datetime(2030, 1, 1)),  # noqa: DTZ001 - the mistake that is refused
        (None, timedelta(1)),
        (True, None),
        ("1", None),
        (float("nan"), None),
        (2 * LONGEST_S, None),
        (timedelta.max, None),
    ],
)
def test_what_is_no_time_is_refused(given: Any, until: Any) -> None:
    with pytest.raises(UsageError):
        slept(given, until)


def test_a_wait_is_known_by_its_name_and_time_out_alone() -> None:
    first = awaited("go", None, 60)
    assert first.hashed() == awaited("go", Decision, timedelta(minutes=1), default=3).hashed()
    assert first.hashed() != awaited("went", None, 60).hashed()
    assert first.hashed() != awaited("go", None, None).hashed()
    assert first.default is UNSET


def test_a_wait_restores_its_payload_as_its_type() -> None:
    found = awaited("go", Decision, None)
    assert found.adapter is not None
    assert found.adapter.validate_python({"approved": True}) == Decision(approved=True)
    assert awaited("go", None, None).adapter is None


@pytest.mark.parametrize("name", ["", " ", "a/b", ".go", "go!", "x" * 129, None, 3])
def test_a_wait_needs_a_name_that_can_be_one(name: Any) -> None:
    with pytest.raises(InvalidId):
        awaited(name, None, None)


def test_a_wait_needs_a_type_that_can_be_restored_and_a_default_that_can_be_stored() -> None:
    class Odd:
        def __init__(self, given: int) -> None:
            self.given = given

    with pytest.raises((UnresolvedAnnotation, UsageError)):
        awaited("go", Odd, None)
    with pytest.raises(UsageError, match="default="):
        awaited("go", None, 1, default=Odd(1))
