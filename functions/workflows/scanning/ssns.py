"""United States social security numbers: the rules for area, group and serial."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from functions.workflows.scanning.match import Match, is_other_number
from functions.workflows.scanning.models import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from functions.workflows.scanning.passage import Passage

_WANTED = re.compile(r"\b(?:ssn|ss#|social security|soc(?:ial)? sec|tax ?id|tin|taxpayer)(?![a-z])")
_CANDIDATE = re.compile(r"(?<![\w.+/#-])([0-9]{3})([ -]?)([0-9]{2})\2([0-9]{4})(?![\w]|[-./][0-9])")

# Voided because they were printed on sample cards, or written in every manual.
_SPECIMENS: Final = frozenset({"078051120", "219099999", "457555462", "123456789", "987654321", "111223333"})


def find_ssns(passage: Passage) -> Iterator[Match]:
    """SSNs with hyphens; with spaces or none only under a label: nine digits can be anything."""
    for found in _CANDIDATE.finditer(passage.text):
        area, separator, group, serial = found.groups()
        digits = area + group + serial
        if not is_ssn(digits):
            continue
        label = passage.label(found.start())
        if is_other_number(label, _WANTED) or (separator != "-" and not _WANTED.search(label)):
            continue
        yield Match(Kind.SSN, found.start(), found.end(), digits)


def is_ssn(digits: str) -> bool:
    """Whether nine digits can have been given out: no area 000, 666 or 9xx, group 00 or serial 0000."""
    area, group, serial = digits[:3], digits[3:5], digits[5:]
    possible = area not in ("000", "666") and area[0] != "9" and group != "00" and serial != "0000"
    return possible and digits not in _SPECIMENS
