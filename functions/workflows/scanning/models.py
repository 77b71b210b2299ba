"""The typed values that travel between the steps of a scan; none of them ever holds a clear identifier."""

from __future__ import annotations

from datetime import date
from enum import StrEnum
from typing import Literal

from pydantic import BaseModel, ConfigDict


class Kind(StrEnum):
    """What a finding is."""

    EMAIL = "email"
    PHONE = "phone"
    IBAN = "iban"
    CARD = "card"
    SSN = "ssn"
    PAST_RETENTION = "date_past_retention"


class Level(StrEnum):
    """How much a document matters, from its score."""

    NONE = "none"
    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    CRITICAL = "critical"


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class DocumentRef(_Value):
    """One document to scan.

    Attributes:
        name: How the report calls it: its folder's name and its path there, bytes that are no text escaped.
        uri: Where it is, as a `file:` URI: its encoding carries every name a file system allows through JSON.
        named: Whether it was asked for by its own path, and not found in a folder: then it may be a link.
        problem: Why listing already knows that it can't be read; empty otherwise.
    """

    name: str
    uri: str
    named: bool = False
    problem: str = ""


class Listing(_Value):
    """What there is to scan, in order.

    Attributes:
        ignored: Files that are no documents by their name.
        key_id: Tells which fingerprint key the run began with, without telling the key; empty without one.
    """

    documents: list[DocumentRef]
    ignored: int = 0
    key_id: str = ""


class Finding(_Value):
    """One identifier in one document, however often it occurs there.

    Attributes:
        masked: The identifier with most of it blotted out.
        fingerprint: HMAC-SHA-256 of the normalised identifier, cut to 128 bits: the same identifier has the
            same one in every document. Empty without a key: nine digits are soon found from a plain hash.
        part: Where inside an e-mail: `header To`, `body 1`, `attachment x.csv`; empty for other documents.
        line, column: Of the first occurrence, from 1, in characters.
        count: Occurrences in this document.
    """

    kind: Kind
    masked: str
    fingerprint: str = ""
    part: str = ""
    line: int
    column: int
    count: int = 1


class RecordDate(_Value):
    """A date that a document gives itself or one of its records (`Signed on: …`), and not only mentions."""

    day: date
    part: str = ""
    line: int
    column: int
    count: int = 1


class DocumentScan(_Value):
    """The outcome of one document.

    Attributes:
        reason: Why it is unreadable; empty otherwise.
        sha256: Of the bytes that were scanned, so that a reader can tell whether the file has changed since.
        dates: Record dates, by position.
        dates_mentioned: How many other dates the text has.
    """

    name: str
    status: Literal["scanned", "unreadable"]
    reason: str = ""
    size_bytes: int = 0
    sha256: str = ""
    encoding: str = ""
    findings: list[Finding] = []
    dates: list[RecordDate] = []
    dates_mentioned: int = 0


class Assessment(_Value):
    """What a document's findings amount to.

    Attributes:
        score: 0 to 100.
        document_date: Its first record date, if it has one.
        overdue: A finding for each record date that is past retention.
    """

    name: str
    score: int
    level: Level
    document_date: date | None = None
    overdue: list[Finding] = []


class Opinion(_Value):
    """What a language model says of a document whose identifiers were blotted out before it saw them.

    Attributes:
        status: `failed` when no usable answer came; `reason` then says why.
    """

    name: str
    status: Literal["answered", "failed"]
    category: str = ""
    sensitivity: Level = Level.NONE
    reason: str = ""


class DocumentReport(_Value):
    """One document in the report."""

    scan: DocumentScan
    assessment: Assessment
    opinion: Opinion | None = None


class Report(_Value):
    """The merged result, worst documents first; without run ids, clock times and paths it is repeatable."""

    as_of: date
    retention_years: int
    key_id: str
    ignored: int
    scanned: int
    unreadable: int
    findings: dict[str, int]
    levels: dict[str, int]
    documents: list[DocumentReport]


class ReportFiles(_Value):
    """Where the report is, and the SHA-256 of each file."""

    json_path: str
    csv_path: str
    json_sha256: str
    csv_sha256: str


class ScanSummary(_Value):
    """What the workflow returns."""

    documents: int
    scanned: int
    unreadable: int
    findings: dict[str, int]
    levels: dict[str, int]
    report: ReportFiles
