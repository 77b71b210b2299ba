"""One document: read it, find what is in it, keep nothing in clear."""

from __future__ import annotations

import errno
import hashlib
import os
from typing import TYPE_CHECKING, Final

from functions.workflows.scanning.dates import find_dates
from functions.workflows.scanning.detectors import detect
from functions.workflows.scanning.masking import fingerprint, mask
from functions.workflows.scanning.models import DocumentRef, DocumentScan, Finding, Kind, RecordDate
from functions.workflows.scanning.reading import Unreadable, passages_of, path_of, read_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import date

    from functions.workflows.scanning.passage import Passage

# Of the document, not of the moment: trying again gives the same answer.
_LASTING: Final = {
    errno.ENOENT: "vanished",
    errno.ENOTDIR: "vanished",
    errno.EACCES: "permission denied",
    errno.EPERM: "permission denied",
    errno.EISDIR: "not a regular file",
    errno.ENXIO: "not a regular file",
    errno.ELOOP: "a symbolic link",
    errno.ENAMETOOLONG: "name too long",
}


def scan_one(ref: DocumentRef, *, max_bytes: int, key: bytes) -> DocumentScan:
    """Scan a document. One that can't be read is an outcome, too.

    Raises:
        OSError: A trouble that may pass, such as too many open files or a network drive that is away.
    """
    if ref.problem:
        return unreadable(ref, ref.problem)
    try:
        content = read_bytes(path_of(ref.uri), max_bytes, follow=ref.named)
        passages, encoding = passages_of(ref.name, content)
    except Unreadable as why:
        return unreadable(ref, str(why))
    except OSError as error:
        if error.errno not in _LASTING:
            raise
        return unreadable(ref, _LASTING[error.errno])
    dates, mentioned = _dates(passages)
    return DocumentScan(
        name=ref.name,
        status="scanned",
        size_bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        encoding=encoding,
        findings=_findings(passages, key),
        dates=dates,
        dates_mentioned=mentioned,
    )


def unreadable(ref: DocumentRef, reason: str) -> DocumentScan:
    """The outcome of a document that can't be scanned."""
    return DocumentScan(name=ref.name, status="unreadable", reason=reason)


def note_scan(scan_log: str, name: str) -> None:
    """Append a document's name to a log, before it is scanned.

    The journal knows what was committed; how often a body really ran only the body itself can tell. One write
    to a file opened for appending is never mixed with another's, whichever thread or process makes it, and
    survives the death of its process: the lines of an interrupted run and its resumption count together.
    """
    log = os.open(scan_log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.write(log, f"{name}\n".encode())
    finally:
        os.close(log)


def _findings(passages: Iterable[Passage], key: bytes) -> list[Finding]:
    first: dict[tuple[Kind, str], tuple[str, int, int]] = {}
    counts: dict[tuple[Kind, str], int] = {}
    for passage in passages:
        for match in detect(passage):
            identifier = match.kind, match.value
            first.setdefault(identifier, (passage.part, *passage.place(match.start)))
            counts[identifier] = counts.get(identifier, 0) + 1
    return [
        Finding(
            kind=kind,
            masked=mask(kind, value),
            fingerprint=fingerprint(kind, value, key),
            part=part,
            line=line,
            column=column,
            count=counts[kind, value],
        )
        for (kind, value), (part, line, column) in first.items()
    ]


def _dates(passages: Iterable[Passage]) -> tuple[list[RecordDate], int]:
    first: dict[date, tuple[str, int, int]] = {}
    counts: dict[date, int] = {}
    mentioned = 0
    for passage in passages:
        for found in find_dates(passage):
            if not (found.is_record or passage.part == "header Date"):
                mentioned += 1
                continue
            first.setdefault(found.day, (passage.part, *passage.place(found.start)))
            counts[found.day] = counts.get(found.day, 0) + 1
    dates = [
        RecordDate(day=day, part=part, line=line, column=column, count=counts[day])
        for day, (part, line, column) in first.items()
    ]
    return dates, mentioned
