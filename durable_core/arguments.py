"""Checks of arguments, with one wording."""

from __future__ import annotations

from math import inf, isfinite

from durable_core.errors import UsageError


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
    numeric = isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
    if not numeric or not (least < value if above else least <= value) or value > most:  # type: ignore[operator]
        told = f"a finite number {'above' if above else 'from'} {least:g}" + (
            f" to {most:g}" if most < inf else ""
        )
        raise UsageError(f"{name}={value!r} must be {told}")


def check_count(name: str, value: object, *, least: int = 1) -> None:
    """Refuses what isn't a whole number from `least`.

    Raises:
        UsageError: As it says.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise UsageError(f"{name}={value!r} must be a whole number from {least}")
