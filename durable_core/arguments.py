"""Checks of arguments and of the numbers in JSON from outside, with one wording."""

from __future__ import annotations

from math import inf, isfinite
from typing import Final, TypeGuard

from durable_core.errors import UsageError

_SHOWN: Final = 60


def check_number(name: str, value: object, *, least: float, most: float = inf, above: bool = False) -> None:
    """Refuses what isn't a finite number in a range.

    Args:
        name: Of the argument, as the caller wrote it.
        value: What was given.
        least: The smallest that is allowed.
        most: The largest that is allowed.
        above: The smallest itself is not allowed.

    Raises:
        UsageError: It is no number, or out of range.
    """
    if not _is_finite(value) or not (least < value if above else least <= value) or value > most:
        told = f"a finite number {'above' if above else 'from'} {least:g}" + (
            f" to {most:g}" if most < inf else ""
        )
        raise UsageError(f"{name}={_shown(value)} must be {told}")


def check_count(name: str, value: object, *, least: int = 1) -> None:
    """Refuses what isn't a whole number from `least`.

    Raises:
        UsageError: As it says.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise UsageError(f"{name}={_shown(value)} must be a whole number from {least}")


def finite(text: str) -> float:
    """A number of a JSON text, for `parse_float`: else one that is too large would become infinity.

    Raises:
        ValueError: No float is that large.
    """
    found = float(text)
    if not isfinite(found):
        raise ValueError(f"{text:.40} is larger than any float")
    return found


def no_constant(name: str) -> object:
    """For `parse_constant`: NaN and the infinities are no JSON.

    Raises:
        ValueError: Always.
    """
    raise ValueError(f"{name} is not JSON")


def _is_finite(value: object) -> TypeGuard[float]:
    """Whether it is a number that a float can hold."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return isfinite(value)
    except OverflowError:
        return False


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:  # Python doesn't write out integers of thousands of digits
        return "(a number too large to show)"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
