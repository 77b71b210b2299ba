"""Dates, and whether the document gives them as the date of a record or only mentions them."""

from __future__ import annotations

import re
from datetime import date
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from functions.workflows.scanning.passage import Passage

_MONTHS: Final = {
    name: number
    for number, names in enumerate(
        (
            "january jan januar janvier",
            "february feb februar février fevrier",
            "march mar märz maerz mars",
            "april apr avril",
            "may mai",
            "june jun juni juin",
            "july jul juli juillet",
            "august aug août aout",
            "september sep sept septembre",
            "october oct oktober okt octobre",
            "november nov novembre",
            "december dec dezember dez décembre decembre",
        ),
        start=1,
    )
    for name in names.split()
}
_MONTH = "|".join(sorted(_MONTHS, key=len, reverse=True))
# A year is what every form has and little else looks like: it is searched for first, the rest round it.
_YEAR = re.compile(r"(?<![0-9])(?:19|20)[0-9]{2}(?![0-9])")
_ISO = re.compile(r"[0-9]{4}([-/.])([0-9]{2})\1([0-9]{2})(?=T[0-9]|(?!\w|[-/.][0-9]))")
_BEFORE_REACH = 24  # characters: `22nd of September, `
_NUMERIC = re.compile(r"(?<![\w./-])([0-9]{1,2})([./-])([0-9]{1,2})\2\Z")
_WRITTEN = re.compile(
    rf"(?<![\w./-])(?:([0-9]{{1,2}})(?:st|nd|rd|th|er|\.)?(?: of)? ({_MONTH})\.?"
    rf"|({_MONTH})\.? ([0-9]{{1,2}})(?:st|nd|rd|th)?),? \Z",
    re.IGNORECASE,
)
_END = re.compile(r"(?!\w|[-/.][0-9])")
_RECORD = re.compile(
    r"\b(?:date|dated|datum|created(?: ?at| on)?|creation date|issued(?: ?at| on)?"
    r"|signed(?: ?at| on)?|effective(?: date)?|closed(?: ?at| on)?|filed(?: on)?|last contact"
    r"|erstellt am|unterzeichnet am|vom|fait le|received(?: on)?)"
    r"[\"']?\s*[:=|]?\s*[\"']?\s*(?:mon|tue|wed|thu|fri|sat|sun)?,? ?$"
)
_OTHER_DATE = re.compile(
    r"birth|\bdob\b|geburt|naissance|expir|valid|due|until|release|publi|version|updated|format"
)


class FoundDate(NamedTuple):
    """A date in a passage.

    Attributes:
        is_record: Whether its label makes it the date of the document or of one of its records.
    """

    start: int
    end: int
    day: date
    is_record: bool


def find_dates(passage: Passage) -> Iterator[FoundDate]:
    """Dates in ISO, numeric and written-out forms (English, German, French)."""
    for year in _YEAR.finditer(passage.text):
        found = _date_around(passage.text, year)
        if found:
            start, end, day = found
            label = passage.label(start)
            is_record = _RECORD.search(label) is not None and not _OTHER_DATE.search(label)
            yield FoundDate(start, end, day, is_record)


def _date_around(text: str, year: re.Match[str]) -> tuple[int, int, date] | None:
    start, end = year.span()
    iso = _ISO.match(text, start)
    if iso:
        stands_alone = start == 0 or not re.match(r"[\w./-]", text[start - 1])
        day = _real_day(year.group(), iso.group(2), iso.group(3))
        return (start, iso.end(), day) if day and stands_alone else None
    if not _END.match(text, end):
        return None
    before = text[max(0, start - _BEFORE_REACH) : start]
    found = _NUMERIC.search(before) or _WRITTEN.search(before)
    if not found:
        return None
    day = _numeric(found, year.group()) if found.re is _NUMERIC else _written(found, year.group())
    return (start - len(before) + found.start(), end, day) if day else None


def _numeric(found: re.Match[str], year: str) -> date | None:
    first, separator, second = found.groups()
    readings = [_real_day(year, second, first)]
    if separator == "/":  # day or month first? The later reading: nothing is called overdue too early
        readings.append(_real_day(year, first, second))
    return max((day for day in readings if day), default=None)


def _written(found: re.Match[str], year: str) -> date | None:
    day, month, other_month, other_day = found.groups()
    return _real_day(year, str(_MONTHS[(month or other_month).lower()]), day or other_day)


def _real_day(year: str, month: str, day: str) -> date | None:
    try:
        return date(int(year), int(month), int(day))
    except ValueError:
        return None  # the thirtieth of February, and section numbers
