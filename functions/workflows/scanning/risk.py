"""What findings amount to: a score per document, and which of its records should be gone by now."""

from __future__ import annotations

import calendar
from datetime import date
from typing import TYPE_CHECKING, Final

from functions.workflows.scanning.models import Assessment, DocumentScan, Finding, Kind, Level

if TYPE_CHECKING:
    from collections.abc import Iterable

# Points for the first of a kind; each doubling of its number adds half as much again.
_WEIGHTS: Final = {
    Kind.SSN: 40,
    Kind.CARD: 35,
    Kind.IBAN: 25,
    Kind.PHONE: 8,
    Kind.EMAIL: 5,
    Kind.PAST_RETENTION: 10,
}
_LEVELS: Final = ((70, Level.CRITICAL), (40, Level.HIGH), (15, Level.MEDIUM), (1, Level.LOW), (0, Level.NONE))


def assess(scan: DocumentScan, *, as_of: date, retention_years: int) -> Assessment:
    """Score a document and check its records against the retention time.

    Args:
        scan: What was found.
        as_of: The day to judge from.
        retention_years: How long records are kept; a record of exactly that age is still kept.
    """
    limit = years_before(as_of, retention_years)
    # Old records matter only in a document about somebody: a changelog is no breach of anything.
    overdue = [
        Finding(
            kind=Kind.PAST_RETENTION,
            masked=record.day.isoformat(),
            part=record.part,
            line=record.line,
            column=record.column,
            count=record.count,
        )
        for record in scan.dates
        if record.day < limit and scan.findings
    ]
    score = _score(finding.kind for finding in (*scan.findings, *overdue))
    return Assessment(
        name=scan.name,
        score=score,
        level=next(level for least, level in _LEVELS if score >= least),
        document_date=scan.dates[0].day if scan.dates else None,
        overdue=overdue,
    )


def years_before(day: date, years: int) -> date:
    """The same day some years earlier; 28 February where there is no 29th."""
    year = day.year - years
    last = calendar.monthrange(year, day.month)[1]
    return date(year, day.month, min(day.day, last))


def _score(kinds: Iterable[Kind]) -> int:
    """Whole numbers only: a report that must be the same byte for byte has no use for rounding."""
    counts: dict[Kind, int] = {}
    for kind in kinds:
        counts[kind] = counts.get(kind, 0) + 1
    points = sum(_WEIGHTS[kind] * (1 + count.bit_length()) // 2 for kind, count in counts.items())
    return min(points, 100)
