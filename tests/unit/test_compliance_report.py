from __future__ import annotations

import csv
import json
import sys
from datetime import date
from pathlib import Path

import pytest

from functions.workflows.scanning import report, risk, scan
from functions.workflows.scanning.listing import list_everything
from functions.workflows.scanning.masking import fingerprint, key_id, mask
from functions.workflows.scanning.models import (
    DocumentScan,
    Finding,
    Kind,
    Level,
    Listing,
    RecordDate,
    Report,
)
from scripts import make_documents, score_scan

AS_OF = date(2026, 1, 1)


def scan_of(name: str = "a.txt", *, kinds: tuple[Kind, ...] = (), days: tuple[str, ...] = ()) -> DocumentScan:
    findings = [Finding(kind=kind, masked=f"*{at}", line=at + 1, column=1) for at, kind in enumerate(kinds)]
    dates = [RecordDate(day=date.fromisoformat(day), line=9, column=at + 1) for at, day in enumerate(days)]
    return DocumentScan(name=name, status="scanned", findings=findings, dates=dates)


def report_of(*scans: DocumentScan) -> Report:
    assessed = [risk.assess(one, as_of=AS_OF, retention_years=7) for one in scans]
    return report.merge(Listing(documents=[]), scans, assessed, [], as_of=AS_OF, retention_years=7)


def scan_folder(folder: Path) -> Report:
    listing = list_everything([str(folder)], [])
    return report_of(*[scan.scan_one(ref, max_bytes=2**25, key=b"key") for ref in listing.documents])


@pytest.mark.parametrize(
    ("day", "overdue"), [("2018-12-31", True), ("2019-01-01", False), ("2025-01-01", False)]
)
def test_a_record_is_overdue_the_day_after_its_retention_ends(day: str, overdue: bool) -> None:
    assessed = risk.assess(scan_of(kinds=(Kind.EMAIL,), days=(day,)), as_of=AS_OF, retention_years=7)
    assert [found.masked for found in assessed.overdue] == ([day] if overdue else [])
    assert assessed.document_date == date.fromisoformat(day)


def test_an_old_document_about_nobody_is_not_overdue() -> None:
    assessed = risk.assess(scan_of(days=("1999-01-01",)), as_of=AS_OF, retention_years=7)
    assert (assessed.overdue, assessed.level) == ([], Level.NONE)


def test_the_day_of_a_leap_year_has_a_counterpart_in_every_year() -> None:
    assert risk.years_before(date(2024, 2, 29), 7) == date(2017, 2, 28)
    assert risk.years_before(date(2024, 2, 29), 4) == date(2020, 2, 29)


@pytest.mark.parametrize(
    ("kinds", "level"),
    [
        ((), Level.NONE),
        ((Kind.EMAIL,), Level.LOW),
        ((Kind.EMAIL, Kind.PHONE, Kind.PHONE), Level.MEDIUM),
        ((Kind.SSN,), Level.HIGH),
        ((Kind.SSN, Kind.CARD), Level.CRITICAL),
        ((Kind.CARD,) * 500, Level.CRITICAL),
    ],
)
def test_the_level_grows_with_kind_and_number(kinds: tuple[Kind, ...], level: Level) -> None:
    assessed = risk.assess(scan_of(kinds=kinds), as_of=AS_OF, retention_years=7)
    assert assessed.level is level
    assert 0 <= assessed.score <= 100


@pytest.mark.parametrize(
    ("kind", "value", "masked"),
    [
        (Kind.EMAIL, "jo.berg@kestrel.co.uk", "j***@k***.uk"),
        (Kind.IBAN, "DE89370400440532013000", "DE****************3000"),
        (Kind.CARD, "4539148803436467", "************6467"),
        (Kind.SSN, "536904399", "*******99"),
        (Kind.PHONE, "+442079460123", "***********23"),
    ],
)
def test_a_mask_shows_only_what_its_owner_needs_to_recognise_it(kind: Kind, value: str, masked: str) -> None:
    assert mask(kind, value) == masked


def test_a_fingerprint_tells_identifiers_kinds_and_keys_apart_and_needs_a_key() -> None:
    same = fingerprint(Kind.SSN, "536904399", b"k")
    assert same == fingerprint(Kind.SSN, "536904399", b"k")
    others = [
        fingerprint(Kind.SSN, "536904398", b"k"),
        fingerprint(Kind.PHONE, "536904399", b"k"),
        fingerprint(Kind.SSN, "536904399", b"K"),
        fingerprint(Kind.SSN, "536904399", b""),
    ]
    assert len({same, *others}) == 5
    assert (others[3], key_id(b"")) == ("", "")


def test_the_worst_documents_come_first_and_equals_by_name() -> None:
    merged = report_of(scan_of("b"), scan_of("c", kinds=(Kind.SSN,)), scan_of("a"))
    assert [document.scan.name for document in merged.documents] == ["c", "a", "b"]
    assert merged.findings["ssn"] == 1
    assert (merged.levels["none"], merged.levels["high"]) == (2, 1)


def test_the_report_has_the_same_bytes_wherever_and_however_often_it_is_written(tmp_path: Path) -> None:
    merged = report_of(scan_of("a", kinds=(Kind.SSN,)), scan_of("é\n"))
    files = [report.write(merged, tmp_path / where) for where in ("x", "deep/y", "x")]
    assert len({(one.json_sha256, one.csv_sha256) for one in files}) == 1
    assert (tmp_path / "x/compliance.json").read_bytes() == (tmp_path / "deep/y/compliance.json").read_bytes()
    assert sorted(path.name for path in (tmp_path / "x").iterdir()) == ["compliance.csv", "compliance.json"]


def test_a_write_that_fails_leaves_the_old_report_and_no_litter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report.write(report_of(scan_of("old")), tmp_path)
    monkeypatch.setattr(Path, "replace", _full_disk)
    with pytest.raises(OSError, match="No space"):
        report.write(report_of(scan_of("new")), tmp_path)
    assert "old" in (tmp_path / "compliance.json").read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["compliance.csv", "compliance.json"]


def _full_disk(*_: object) -> None:
    raise OSError(28, "No space left on device")


def test_the_sheet_has_every_document_and_no_cell_that_runs_as_a_formula(tmp_path: Path) -> None:
    report.write(report_of(scan_of("=cmd()", kinds=(Kind.SSN, Kind.CARD)), scan_of("clean")), tmp_path)
    with (tmp_path / "compliance.csv").open(newline="") as sheet:
        rows = list(csv.DictReader(sheet))
    assert [(row["document"], row["kind"]) for row in rows] == [
        ("'=cmd()", "ssn"),
        ("'=cmd()", "card"),
        ("clean", ""),
    ]


@pytest.mark.parametrize("seed", [1, 7])
def test_every_kind_is_found_in_made_documents_with_precision_and_recall_of_98_percent(
    tmp_path: Path, seed: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_documents.make_folder(tmp_path / "made", count=240, seed=seed)
    assert made.documents >= 250
    report.write(scan_folder(made.root), tmp_path / "report")
    arguments = ["x", str(tmp_path / "report/compliance.json"), str(tmp_path / "made/truth.json")]
    monkeypatch.setattr(sys, "argv", [*arguments, "--least", "0.98", "--misses"])
    code = score_scan.main()
    shown = capsys.readouterr().out
    assert code == 0, shown
    truth = json.loads((tmp_path / "made/truth.json").read_text())
    kinds = [entry["kind"] for entry in truth["planted"]]
    assert all(kinds.count(kind) >= 300 for kind in ("email", "phone", "iban", "card", "ssn", "record_date"))


def test_made_documents_are_the_same_bytes_for_the_same_seed(tmp_path: Path) -> None:
    for where, seed in (("a", 3), ("b", 3), ("c", 4)):
        make_documents.make_folder(tmp_path / where, count=10, seed=seed)
    contents = [
        [(path.name, path.read_bytes()) for path in sorted((tmp_path / where).rglob("*")) if path.is_file()]
        for where in "abc"
    ]
    assert contents[0] == contents[1]
    assert contents[0] != contents[2]


def test_the_score_counts_misses_and_wrong_findings_by_kind() -> None:
    entry = {"document": "d", "kind": "ssn", "value": "1", "part": "", "line": 1, "column": 1}
    truth = {"planted": [entry, entry | {"value": "2", "line": 2}]}
    findings = [
        {"kind": "ssn", "part": "", "line": 1, "column": 1},
        {"kind": "ssn", "part": "", "line": 5, "column": 1},
    ]
    document = {"scan": {"name": "d", "findings": findings}, "assessment": {"overdue": []}}
    elsewhere = {"scan": {"name": "real", "findings": findings}, "assessment": {"overdue": []}}
    (one,) = score_scan.score(
        {"as_of": "2026-01-01", "retention_years": 7, "documents": [document, elsewhere]}, truth
    )
    assert (one.precision, one.recall) == (0.5, 0.5)
    assert [place.line for place in (*one.missed, *one.wrong)] == [2, 5]
