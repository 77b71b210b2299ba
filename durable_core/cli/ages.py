"""Time spans as people write them."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final

from durable_core.errors import UsageError

_AGE: Final = re.compile(r"([0-9]{1,6})([smhdw])")
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def parse_age(text: str, option: str = "--older-than") -> timedelta:
    """A time span as people write it: a whole number and one of s, m, h, d, w.

    Raises:
        UsageError: It is something else.
    """
    found = _AGE.fullmatch(text)
    if found is None:
        raise UsageError(
            f"{option} {text!r:.40} is no age", remedy="Write a number and a unit: 30d, 12h, 90m, 45s, 2w"
        )
    return timedelta(**{_UNITS[found[2]]: int(found[1])})
