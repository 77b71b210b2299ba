"""Phone numbers: international, and the national forms that can be told from other numbers."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from functions.workflows.scanning.match import Match, is_other_number
from functions.workflows.scanning.models import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from functions.workflows.scanning.passage import Passage

# Country calling code: fewest and most digits after it. What is not here is checked by E.164's limits only.
_PLAN: Final = """
    1:10:10 7:10:10 20:8:10 27:9:9 30:10:10 31:9:9 32:8:9 33:9:9 34:9:9 36:8:9 39:6:11 40:9:9 41:9:9
    43:6:12 44:9:10 45:8:8 46:7:9 47:8:8 48:9:9 49:6:11 51:8:9 52:10:10 54:10:11 55:10:11 56:9:9 57:8:10
    60:8:10 61:9:9 62:8:12 63:8:10 64:8:10 65:8:8 66:8:9 81:9:10 82:8:10 84:9:10 86:9:11 90:10:10
    91:10:10 92:9:10 351:9:9 352:6:9 353:7:9 354:7:7 355:8:9 356:8:8 357:8:8 358:6:10 359:8:9 370:8:8
    371:8:8 372:7:8 380:9:9 381:8:9 385:8:9 386:8:8 420:9:9 421:9:9 852:8:8 886:8:9 971:8:9 972:8:9
"""
_LENGTHS: Final = {
    code: (int(fewest), int(most)) for code, fewest, most in (entry.split(":") for entry in _PLAN.split())
}
_CODES: Final = re.compile(
    r"1|7|2[07]|3[0-469]|4[013-9]|5[1-8]|6[0-6]|8[1246]|9[0-58]|2[1-69][0-9]|3[578][0-9]|42[013]|5[09][0-9]|6[789][0-9]"
    r"|8(?:00|[5578][0-9])|9[679][0-9]"
)

_WANTED = re.compile(
    r"\b(?:tel\w*|t[eé]l[eé]phone|t[eé]l|phones?|phone no|mobile|cell|fax|handy|rufnummer|call|contact"
    r"|hotline|sms|whats ?app|portable|ph)\b"
)
_PLUS = re.compile(r"(?<![\w+])(?:\+ ?|(?<![0-9] )00(?=[1-9]))[1-9](?:[ ./()-]{0,3}[0-9]){6,16}(?!\w)")
_NORTH_AMERICAN = re.compile(
    r"(?<![\w.+/-])(?<![0-9] )(?:1[ .-])?(?:\([2-9][0-9]{2}\)[ -]?|[2-9][0-9]{2}([ .-]))"
    r"[2-9][0-9]{2}[ .-][0-9]{4}(?!\w|[./-][0-9])"
)
_TRUNK = re.compile(
    r"(?<![\w.+/-])(?<![0-9] )(?:\(0[1-9][0-9]{0,4}\)|0[1-9][0-9]{0,4})"
    r"(?: ?[ ./-] ?[0-9]{2,8}){1,4}(?!\w|[./-][0-9])"
)
_SOLID = re.compile(r"(?<![\w.+/-])[0-9]{9,15}(?!\w|[./-][0-9])")

# National forms that need no label: France, the United Kingdom, Germany and its neighbours.
_TRUNK_SHAPES: Final = re.compile(
    r"0[1-9]([ .-])[0-9]{2}(?:\1[0-9]{2}){3}"
    r"|\(?0[1-9][0-9]{1,2}\)? [0-9]{3,4}[ -][0-9]{4}|\(?0[1-9][0-9]{2,3}\)? [0-9]{3} [0-9]{3,4}"
    r"|0[1-9][0-9]{3} [0-9]{6}"
    r"|\(0[1-9][0-9]{1,4}\) ?[0-9]{3,8}(?:[ -][0-9]{1,8}){0,2}"
    r"|0[1-9][0-9]{1,3} ?/ ?[0-9]{5,8}(?:-[0-9]{1,4})?"
)


def find_phones(passage: Passage) -> Iterator[Match]:
    """Phone numbers; a run of digits without `+` or a telling shape only under a label such as `Tel.`."""
    for pattern, judge in (
        (_PLUS, _international),
        (_NORTH_AMERICAN, _north_american),
        (_TRUNK, _trunk),
        (_SOLID, _solid),
    ):
        for found in pattern.finditer(passage.text):
            label = passage.label(found.start())
            if is_other_number(label, _WANTED):
                continue
            number = judge(found.group(), labelled=_WANTED.search(label) is not None)
            if number:
                value, length = number
                yield Match(Kind.PHONE, found.start(), found.start() + length, value)


def is_north_american(digits: str) -> bool:
    """Whether ten digits fit the North American plan: area and exchange begin with 2-9 and aren't N11."""
    area, exchange = digits[:3], digits[3:6]
    return (
        len(digits) == 10
        and area[0] > "1" < exchange[0]
        and area[1:] != "11" != exchange[1:]
        and area[1] != "9"
    )


def _international(shown: str, *, labelled: bool) -> tuple[str, int] | None:
    if shown.startswith("00") and not labelled and shown.isdigit():
        return None  # padded with zeros, more often than a phone number
    # Numbers that follow are dropped group by group until what is left has a length its country knows.
    ends = [len(shown), *sorted((gap.start() for gap in re.finditer(r"[ ./()-]+", shown)), reverse=True)]
    for end in ends:
        digits = re.sub(r"[^0-9]", "", shown[:end]).removeprefix("00")
        code = _CODES.match(digits)
        if not code:
            return None
        fewest, most = _LENGTHS.get(code.group(), (7, 15 - len(code.group())))
        rest = digits[code.end() :].removeprefix("0") if code.group() != "39" else digits[code.end() :]
        if fewest <= len(rest) <= most and (code.group() != "1" or is_north_american(rest)):
            return f"+{code.group()}{rest}", end
    return None


def _north_american(shown: str, *, labelled: bool) -> tuple[str, int] | None:
    digits = re.sub(r"[^0-9]", "", shown)[-10:]
    telling = labelled or "(" in shown or " " not in shown
    return (f"+1{digits}", len(shown)) if telling and is_north_american(digits) else None


def _trunk(shown: str, *, labelled: bool) -> tuple[str, int] | None:
    digits = re.sub(r"[^0-9]", "", shown)
    if not 9 <= len(digits) <= 12 or _counts_up(shown):
        return None
    return (digits, len(shown)) if labelled or _TRUNK_SHAPES.fullmatch(shown) else None


def _solid(shown: str, *, labelled: bool) -> tuple[str, int] | None:
    if not labelled:
        return None
    if len(shown) in (10, 11) and is_north_american(shown[-10:]) and shown[:-10] in ("", "1"):
        return f"+1{shown[-10:]}", len(shown)
    return (shown, len(shown)) if re.fullmatch(r"0[1-9][0-9]{7,10}", shown) else None


def _counts_up(shown: str) -> bool:
    """Whether the groups are a table's or a list's consecutive numbers: `01 02 03 04 05`."""
    groups = [int(group) for group in re.findall(r"[0-9]+", shown)]
    return len(groups) > 2 and all(after - before == 1 for before, after in pairwise(groups))
