"""International bank account numbers: country, length, structure and checksum."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from functions.workflows.scanning.match import Match
from functions.workflows.scanning.models import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from functions.workflows.scanning.passage import Passage

_REGISTRY: Final = """
    AD:8n12c AE:19n AL:8n16c AT:16n AZ:4a20c BA:16n BE:12n BG:4a6n8c BH:4a14c BI:23n BR:23n1a1c
    BY:4c4n16c CH:5n12c CR:18n CY:8n16c CZ:20n DE:18n DJ:23n DK:14n DO:4c20n EE:16n EG:25n ES:20n FI:14n
    FK:2a12n FO:14n FR:10n11c2n GB:4a14n GE:2a16n GI:4a15c GL:14n GR:7n16c GT:24c HN:4a20n HR:17n HU:24n
    IE:4a14n IL:19n IQ:4a15n IS:22n IT:1a10n12c JO:4a4n18c KW:4a22c KZ:3n13c LB:4n20c LC:4a24c LI:5n12c
    LT:16n LU:3n13c LV:4a13c LY:21n MC:10n11c2n MD:20c ME:18n MK:3n10c2n MN:16n MR:23n MT:4a5n18c
    MU:4a19n3a NI:4a20n NL:4a10n NO:11n OM:3n16c PK:4a16c PL:24n PS:4a21c PT:21n QA:4a21c RO:4a16c
    RS:18n RU:14n15c SA:2n18c SC:4a20n3a SD:14n SE:20n SI:15n SK:20n SM:1a10n12c SO:19n ST:21n SV:4a20n
    TL:19n TN:20n TR:6n16c UA:6n19c VA:18n VG:4a16n XK:16n YE:4a4n18c
"""

# Structure of the part after the check digits, as in the SWIFT registry: n digits, a letters, c both.
_STRUCTURES: Final = {
    country: re.compile(
        "".join(
            {"n": "[0-9]", "a": "[A-Z]", "c": "[A-Z0-9]"}[kind] + f"{{{count}}}"
            for count, kind in re.findall(r"(\d+)([nac])", structure)
        )
    )
    for country, structure in (entry.split(":") for entry in _REGISTRY.split())
}

_BEGINNING = re.compile(r"(?<![A-Za-z0-9_])[A-Za-z]{2}[0-9]{2}(?=[ -]?[A-Za-z0-9])")
_REST = re.compile(r"[ -]?[A-Z0-9]", re.IGNORECASE)
_LONGEST = 2 * 33


def find_ibans(passage: Passage) -> Iterator[Match]:
    """IBANs, solid or in groups, in either case, whose structure and mod-97 checksum hold."""
    for beginning in _BEGINNING.finditer(passage.text):
        if beginning.group()[:2].upper() not in _STRUCTURES:
            continue
        window = passage.text[beginning.start() : beginning.start() + _LONGEST]
        # In groups of four, or else solid: never the letters of the words that come after.
        for spaced in (True, False):
            found = _iban_in(window, spaced=spaced)
            if found:
                value, length = found
                yield Match(Kind.IBAN, beginning.start(), beginning.start() + length, value)
                break


def is_iban(value: str) -> bool:
    """Whether a solid, upper-case string is a valid IBAN."""
    structure = _STRUCTURES.get(value[:2])
    if not structure or not structure.fullmatch(value, 4):
        return False
    return int("".join(str(int(char, 36)) for char in value[4:] + value[:4])) % 97 == 1


def _iban_in(window: str, *, spaced: bool) -> tuple[str, int] | None:
    value, length = window[:4], 4
    while length < len(window):
        if is_iban(value.upper()) and not re.match(r"[A-Za-z0-9]", window[length : length + 1]):
            return value.upper(), length
        following = _REST.match(window, length)
        if not following or (not spaced and following.end() - length > 1):
            return None
        value += following.group()[-1]
        length = following.end()
    return (value.upper(), length) if is_iban(value.upper()) else None
