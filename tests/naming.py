"""Names of cases: the same in every process, or tests can't be shared out among several."""

from __future__ import annotations

import re


def told(value: object) -> str:
    """A value as `repr` shows it, without where it lies in memory."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))
