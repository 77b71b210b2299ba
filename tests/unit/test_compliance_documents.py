from __future__ import annotations

import errno
import os
import threading
from email.message import EmailMessage
from pathlib import Path

import pytest

from functions.workflows.scanning import scan
from functions.workflows.scanning.listing import list_everything
from functions.workflows.scanning.models import DocumentRef, DocumentScan
from functions.workflows.scanning.reading import path_of

ADDRESS = "jo.berg@kestrel.se"


def scan_file(path: Path, *, max_bytes: int = 10_000) -> DocumentScan:
    ref = DocumentRef(name=path.name, uri=path.absolute().as_uri())
    return scan.scan_one(ref, max_bytes=max_bytes, key=b"key")


def names(*folders: Path, exclude: tuple[Path, ...] = ()) -> list[str]:
    listing = list_everything(
        [str(folder) for folder in folders], [], exclude=[str(path) for path in exclude]
    )
    return [ref.name for ref in listing.documents]


@pytest.mark.parametrize(
    ("content", "encoding"),
    [
        (f"Grüße\n  {ADDRESS}".encode(), "utf-8"),
        (f"Grüße\n  {ADDRESS}".encode("utf-8-sig"), "utf-8-sig"),
        (f"Grüße\n  {ADDRESS}".encode("latin-1"), "cp1252"),
        (f"Grüße\n  {ADDRESS}".encode("utf-16"), "utf-16"),
        (f"Gruesse\n  {ADDRESS}".encode("utf-16-le"), "utf-16-le"),
        (f"Gruesse\n  {ADDRESS}".encode("utf-16-be"), "utf-16-be"),
        (f"Grüße, Käse \n  {ADDRESS}".encode() + b"\xff", "utf-8 (damaged)"),
        (f"Grüße\r\n  {ADDRESS}".encode(), "utf-8"),
    ],
)
def test_a_document_is_read_in_whatever_encoding_it_has(
    tmp_path: Path, content: bytes, encoding: str
) -> None:
    (tmp_path / "a.txt").write_bytes(content)
    result = scan_file(tmp_path / "a.txt")
    (finding,) = result.findings
    assert (result.encoding, finding.line, finding.column) == (encoding, 2, 3)


def test_an_identifier_that_occurs_often_is_one_finding_at_its_first_place(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(f"x\nJO.BERG@kestrel.se and {ADDRESS}\n{ADDRESS}")
    (finding,) = scan_file(tmp_path / "a.txt").findings
    assert (finding.line, finding.column, finding.count) == (2, 1, 3)


def test_nothing_of_an_outcome_holds_an_identifier_in_clear(tmp_path: Path) -> None:
    clear = [ADDRESS, "DE89370400440532013000", "4539148803436467", "536-90-4399", "+442079460123"]
    (tmp_path / "a.txt").write_text("\n".join(clear))
    result = scan_file(tmp_path / "a.txt")
    dumped = result.model_dump_json()
    assert len(result.findings) == len(clear)
    assert not [value for value in clear if value in dumped or value.replace("-", "") in dumped]


def test_the_parts_of_an_email_are_scanned_with_their_encodings_undone(tmp_path: Path) -> None:
    message = EmailMessage()
    message["From"] = f"Jörg Berg <{ADDRESS}>"
    message["Date"] = "Fri, 04 Mar 2011 10:00:00 +0100"
    message["Message-ID"] = "<abc@mail.kestrel.se>"
    long_line = "é" * 70 + " (415) 555-0123"  # quoted-printable breaks it in the middle
    message.set_content(f"one\n{long_line}\n", cte="quoted-printable")
    message.add_attachment(b"name,ssn\nx,536904399\n", "text", "csv", filename="péople.csv")
    message.add_attachment(ADDRESS.encode(), "image", "png", filename="x.png")
    (tmp_path / "a.eml").write_bytes(message.as_bytes())
    result = scan_file(tmp_path / "a.eml")
    assert [(found.kind, found.part, found.line, found.column) for found in result.findings] == [
        ("email", "header From", 1, 12),
        ("phone", "body 1", 2, 72),
        ("ssn", "attachment péople.csv", 2, 3),
    ]
    assert [day.day.isoformat() for day in result.dates] == ["2011-03-04"]


def test_an_email_with_broken_headers_is_still_scanned(tmp_path: Path) -> None:
    (tmp_path / "a.eml").write_bytes(
        b"From: =?nonsense?b?AAA?= <jo.berg@kestrel.se>\nTo: <<<@@,;\n"
        b"Content-Type: text/plain; charset=no-such\n\n"
        b"call (415) 555-0123\n"
    )
    assert [found.kind for found in scan_file(tmp_path / "a.eml").findings] == ["email", "phone"]


@pytest.mark.parametrize(
    ("content", "reason"), [(b"PNG\x00\x01\x02" * 50, "binary"), (b"x" * 10_001, "larger than 10000 bytes")]
)
def test_a_document_that_is_no_text_or_too_large_is_an_outcome(
    tmp_path: Path, content: bytes, reason: str
) -> None:
    (tmp_path / "a.txt").write_bytes(content)
    result = scan_file(tmp_path / "a.txt")
    assert (result.status, result.reason) == ("unreadable", reason)


def test_an_empty_document_is_scanned_and_has_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.txt").touch()
    result = scan_file(tmp_path / "a.txt")
    assert (result.status, result.findings) == ("scanned", [])


def test_a_vanished_document_a_folder_and_a_link_are_outcomes(tmp_path: Path) -> None:
    (tmp_path / "real.txt").write_text(ADDRESS)
    (tmp_path / "link.txt").symlink_to("real.txt")
    (tmp_path / "folder.txt").mkdir()
    reasons = [scan_file(tmp_path / name).reason for name in ("gone.txt", "link.txt", "folder.txt")]
    assert reasons == ["vanished", "a symbolic link", "not a regular file"]


def test_a_named_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.txt")
    outcome: list[DocumentScan] = []
    thread = threading.Thread(target=lambda: outcome.append(scan_file(tmp_path / "pipe.txt")), daemon=True)
    thread.start()
    thread.join(timeout=5)
    assert [result.reason for result in outcome] == ["not a regular file"]


@pytest.mark.parametrize(
    ("number", "reason"), [(errno.EACCES, "permission denied"), (errno.ENAMETOOLONG, "name too long")]
)
def test_a_lasting_trouble_is_an_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, reason: str
) -> None:
    monkeypatch.setattr(os, "open", _failing(number))
    assert scan_file(tmp_path / "a.txt").reason == reason


def test_a_passing_trouble_is_raised_for_the_step_to_try_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "open", _failing(errno.EMFILE))
    with pytest.raises(OSError, match="Too many open files"):
        scan_file(tmp_path / "a.txt")


def _failing(number: int) -> object:
    def fail(*_: object, **__: object) -> int:
        raise OSError(number, os.strerror(number))

    return fail


def test_listing_is_sorted_stays_inside_and_leaves_out_what_it_is_told_to(tmp_path: Path) -> None:
    root = tmp_path / "docs"
    for name in ("b/z.md", "b/a.csv", "a.txt", "report/compliance.json", "x.bin", "d.dist-info/METADATA"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    (root / "loop").symlink_to(".")
    assert names(root, exclude=(root / "report",)) == [
        "docs/a.txt",
        "docs/b/a.csv",
        "docs/b/z.md",
        "docs/d.dist-info/METADATA",
    ]


def test_links_are_listed_with_where_they_lead_and_never_followed(tmp_path: Path) -> None:
    root = tmp_path / "docs"
    root.mkdir()
    (tmp_path / "secret.txt").write_text(ADDRESS)
    (root / "a.txt").write_text("x")
    for name, target in (("in.txt", "a.txt"), ("out.txt", "../secret.txt"), ("self.txt", "self.txt")):
        (root / name).symlink_to(target)
    listing = list_everything([str(root)], [])
    results = [scan.scan_one(ref, max_bytes=100, key=b"") for ref in listing.documents]
    assert [(result.name, result.reason) for result in results] == [
        ("docs/a.txt", ""),
        ("docs/in.txt", "a symbolic link"),
        ("docs/out.txt", "a symbolic link out of the folder"),
        ("docs/self.txt", "a symbolic link to nowhere"),
    ]


def test_two_folders_of_one_name_are_told_apart_and_nested_ones_scanned_once(tmp_path: Path) -> None:
    for folder in ("x/docs", "y/docs"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "a.txt").touch()
    assert names(tmp_path / "x/docs", tmp_path / "y/docs") == ["docs/a.txt", "docs-2/a.txt"]
    assert names(tmp_path / "x", tmp_path / "x/docs", tmp_path / "x") == ["x/docs/a.txt"]
    assert names(tmp_path / "x/docs", tmp_path / "x/docs", tmp_path / "y/docs") == [
        "docs/a.txt",
        "docs-2/a.txt",
    ]


def test_a_folder_that_cannot_be_listed_is_an_outcome_and_not_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "docs/closed").mkdir(parents=True)
    (tmp_path / "docs/a.txt").touch()
    real = os.scandir

    def scandir(path: str) -> object:
        if path.endswith("closed"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    listing = list_everything([str(tmp_path / "docs")], [])
    results = [scan.scan_one(ref, max_bytes=100, key=b"") for ref in listing.documents]
    assert [(result.name, result.reason) for result in results] == [
        ("docs/a.txt", ""),
        ("docs/closed", "folder can't be listed"),
    ]


def test_a_mistyped_folder_is_an_error_and_not_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "a.txt").touch()
    with pytest.raises(FileNotFoundError):
        names(tmp_path / "nowhere")
    with pytest.raises(NotADirectoryError):
        names(tmp_path / "a.txt")


def test_a_document_asked_for_by_path_may_have_any_name_and_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").write_text(ADDRESS)
    (tmp_path / "link").symlink_to("real")
    (ref,) = list_everything([], [str(tmp_path / "link")]).documents
    assert len(scan.scan_one(ref, max_bytes=100, key=b"").findings) == 1


def test_a_name_that_is_no_text_is_printable_and_still_leads_to_its_file(tmp_path: Path) -> None:
    raw = os.fsencode(tmp_path) + b"/caf\xe9 1\n.txt"
    Path(os.fsdecode(raw)).write_text(ADDRESS)
    (ref,) = list_everything([str(tmp_path)], []).documents
    assert ref.name == f"{tmp_path.name}/caf\\xe9 1\\n.txt"
    assert os.fsencode(path_of(DocumentRef.model_validate_json(ref.model_dump_json()).uri)) == raw
    assert len(scan.scan_one(ref, max_bytes=100, key=b"").findings) == 1


def test_the_scan_log_gets_one_whole_line_per_scan_from_many_threads(tmp_path: Path) -> None:
    log = tmp_path / "scan.log"
    threads = [
        threading.Thread(target=scan.note_scan, args=(str(log), f"document {index} é")) for index in range(40)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(log.read_text().splitlines()) == sorted(f"document {index} é" for index in range(40))
