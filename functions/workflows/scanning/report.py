"""The report: merged from the outcomes, written as JSON and CSV, the same bytes for the same documents."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
from collections import Counter
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from functions.workflows.scanning.models import DocumentReport, Kind, Level, Report, ReportFiles

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import date
    from pathlib import Path

    from functions.workflows.scanning.models import Assessment, DocumentScan, Finding, Listing, Opinion

JSON_NAME: Final = "compliance.json"
CSV_NAME: Final = "compliance.csv"
_COLUMNS: Final = (
    "document",
    "status",
    "reason",
    "level",
    "score",
    "kind",
    "masked",
    "fingerprint",
    "part",
    "line",
    "column",
    "count",
    "category",
    "sensitivity",
)
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")


def merge(
    listing: Listing,
    scans: Sequence[DocumentScan],
    assessments: Sequence[Assessment],
    opinions: Sequence[Opinion],
    *,
    as_of: date,
    retention_years: int,
) -> Report:
    """One report from the outcomes of all documents: worst first, by name among equals."""
    opinion_of = {opinion.name: opinion for opinion in opinions}
    documents = [
        DocumentReport(scan=scan, assessment=assessment, opinion=opinion_of.get(scan.name))
        for scan, assessment in zip(scans, assessments, strict=True)
    ]
    documents.sort(key=lambda document: (-document.assessment.score, document.scan.name))
    kinds = Counter(finding.kind for document in documents for finding in _findings(document))
    levels = Counter(assessment.level for assessment in assessments)
    return Report(
        as_of=as_of,
        retention_years=retention_years,
        key_id=listing.key_id,
        ignored=listing.ignored,
        scanned=sum(scan.status == "scanned" for scan in scans),
        unreadable=sum(scan.status == "unreadable" for scan in scans),
        findings={kind.value: kinds[kind] for kind in Kind},
        levels={level.value: levels[level] for level in Level},
        documents=documents,
    )


def write(report: Report, folder: Path) -> ReportFiles:
    """Write both files. Doing so again, also after dying half-way, gives the same files.

    Raises:
        OSError: The folder can't be made or written to.
    """
    folder.mkdir(parents=True, exist_ok=True)
    as_json = (json.dumps(report.model_dump(mode="json"), indent=1, ensure_ascii=False) + "\n").encode()
    as_csv = _csv(report).encode()
    return ReportFiles(
        json_path=str(_replace(folder / JSON_NAME, as_json)),
        csv_path=str(_replace(folder / CSV_NAME, as_csv)),
        json_sha256=hashlib.sha256(as_json).hexdigest(),
        csv_sha256=hashlib.sha256(as_csv).hexdigest(),
    )


def _findings(document: DocumentReport) -> Iterator[Finding]:
    yield from document.scan.findings
    yield from document.assessment.overdue


def _replace(path: Path, content: bytes) -> Path:
    """A reader sees the old file or the whole new one; so does a re-run after a crash between the two."""
    temporary = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def _csv(report: Report) -> str:
    """A row per finding; a document without any has one row, so that none is missing from the sheet."""
    sheet = io.StringIO()
    rows = csv.writer(sheet, lineterminator="\n")
    rows.writerow(_COLUMNS)
    for document in report.documents:
        scan, assessment, opinion = document.scan, document.assessment, document.opinion
        about = (scan.name, scan.status, scan.reason, assessment.level.value, assessment.score)
        said = (opinion.category, opinion.sensitivity.value) if opinion else ("", "")
        for found in _findings(document):
            where = (found.kind.value, found.masked, found.fingerprint, found.part, found.line, found.column)
            rows.writerow(map(_inert, (*about, *where, found.count, *said)))
        if not scan.findings and not assessment.overdue:
            rows.writerow(map(_inert, (*about, *[""] * 7, *said)))
    return sheet.getvalue()


def _inert(cell: object) -> object:
    """Spreadsheets run what begins like a formula, and file names are written by strangers."""
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell
