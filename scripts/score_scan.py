"""Compare a report of the compliance scan with the truth about made documents: precision and recall by kind.

    python scripts/score_scan.py REPORT/compliance.json OUT/truth.json [--least 0.98] [--misses]

A finding is right if the truth has one of its kind at exactly its place (document, part, line, column).
Findings in documents of which the truth says nothing, such as real files scanned in the same run, count
neither way. Ends with 1 if any figure is below `--least`.
"""

from __future__ import annotations

import argparse
import calendar
import json
import sys
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple


class Place(NamedTuple):
    """A kind of identifier at a place."""

    kind: str
    document: str
    part: str
    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Score:
    """How one kind fared.

    Attributes:
        missed: Planted and not found.
        wrong: Found and not planted.
    """

    kind: str
    planted: int
    right: int
    missed: list[Place]
    wrong: list[Place]

    @property
    def precision(self) -> float:
        """The share of the findings that is right; 1 without any."""
        found = self.right + len(self.wrong)
        return self.right / found if found else 1.0

    @property
    def recall(self) -> float:
        """The share of what was planted that was found; 1 if nothing was."""
        return self.right / self.planted if self.planted else 1.0


def score(report: dict[str, Any], truth: dict[str, Any]) -> list[Score]:
    """Judge a report, kind by kind."""
    planted, documents = _planted(report, truth)
    found = _found(report, documents)
    kinds = sorted({place.kind for place in planted | found})
    return [
        Score(
            kind=kind,
            planted=sum(place.kind == kind for place in planted),
            right=sum(place.kind == kind for place in planted & found),
            missed=sorted(place for place in planted - found if place.kind == kind),
            wrong=sorted(place for place in found - planted if place.kind == kind),
        )
        for kind in kinds
    ]


def table(scores: list[Score]) -> str:
    """The scores as lines of text."""
    lines = [
        f"{'kind':<20} {'planted':>8} {'right':>6} {'missed':>6} {'wrong':>6} {'precision':>10} {'recall':>7}"
    ]
    lines += [
        f"{one.kind:<20} {one.planted:>8} {one.right:>6} {len(one.missed):>6} {len(one.wrong):>6}"
        f" {one.precision:>10.4f} {one.recall:>7.4f}"
        for one in scores
    ]
    return "\n".join(lines)


def _planted(report: dict[str, Any], truth: dict[str, Any]) -> tuple[set[Place], set[str]]:
    """What should be found, by the day and the retention time that the report was made with."""
    as_of = date.fromisoformat(report["as_of"])
    year = as_of.year - report["retention_years"]
    limit = date(year, as_of.month, min(as_of.day, calendar.monthrange(year, as_of.month)[1]))
    first: dict[tuple[str, str, str], Place] = {}
    has_findings = {entry["document"] for entry in truth["planted"] if entry["kind"] != "record_date"}
    for entry in truth["planted"]:
        kind, value = entry["kind"], entry["value"]
        if kind == "record_date":
            # Old records count where somebody is named in the same document, and the same day counts once.
            if date.fromisoformat(entry["day"]) >= limit or entry["document"] not in has_findings:
                continue
            kind, value = "date_past_retention", entry["day"]
        place = Place(kind, entry["document"], entry["part"], entry["line"], entry["column"])
        identifier = (kind, entry["document"], value)
        if identifier not in first or (place.line, place.column) < first[identifier][3:]:
            first[identifier] = place
    return set(first.values()), {entry["document"] for entry in truth["planted"]}


def _found(report: dict[str, Any], documents: set[str]) -> set[Place]:
    return {
        Place(found["kind"], document["scan"]["name"], found["part"], found["line"], found["column"])
        for document in report["documents"]
        if document["scan"]["name"] in documents
        for found in (*document["scan"]["findings"], *document["assessment"]["overdue"])
    }


def main() -> int:
    """Run from the command line; gives the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("report", type=Path)
    parser.add_argument("truth", type=Path)
    parser.add_argument("--least", type=float, default=0.0, help="lowest precision and recall that pass")
    parser.add_argument("--misses", action="store_true", help="also list what was missed and what was wrong")
    options = parser.parse_args()
    report, truth = (json.loads(path.read_text(encoding="utf-8")) for path in (options.report, options.truth))
    scores = score(report, truth)
    print(table(scores))
    if options.misses:
        for one in scores:
            for word, places in (("missed", one.missed), ("wrong", one.wrong)):
                for place in places:
                    print(
                        f"{word}: {place.kind} in {place.document} {place.part} {place.line}:{place.column}"
                    )
    return int(any(min(one.precision, one.recall) < options.least for one in scores))


if __name__ == "__main__":
    sys.exit(main())
