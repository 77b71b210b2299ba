"""From a file's bytes to passages: opening with care, and decoding what names no encoding."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote_to_bytes, urlsplit

from functions.workflows.scanning.mail import mail_passages
from functions.workflows.scanning.passage import Format, Passage

if TYPE_CHECKING:
    from collections.abc import Sequence

_FORMATS: Final[dict[str, Format]] = {
    ".csv": "csv",
    ".tsv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
}
_MARKS: Final = (  # UTF-32 first: its little-endian mark begins with UTF-16's
    (b"\xff\xfe\x00\x00", "utf-32"),
    (b"\x00\x00\xfe\xff", "utf-32"),
    (b"\xef\xbb\xbf", "utf-8-sig"),
    (b"\xff\xfe", "utf-16"),
    (b"\xfe\xff", "utf-16"),
)
_SAMPLE_BYTES: Final = 8192


class Unreadable(Exception):
    """A document can't be scanned, and trying again won't help; the message is the reason."""


def path_of(uri: str) -> Path:
    """The path of a `file:` URI, also of one whose name is no valid text."""
    return Path(os.fsdecode(unquote_to_bytes(urlsplit(uri).path)))


def read_bytes(path: Path, max_bytes: int, *, follow: bool) -> bytes:
    """A regular file's content.

    Args:
        path: The file.
        max_bytes: Most bytes that are read into memory.
        follow: Whether the last part of the path may be a symbolic link. A listed file that has become one
            since could lead anywhere.

    Raises:
        Unreadable: It isn't a regular file, or is too large.
        OSError: As the system reports it.
    """
    # Without O_NONBLOCK, opening a named pipe would wait for its writer, perhaps for ever.
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    with os.fdopen(os.open(path, flags), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise Unreadable("not a regular file")
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise Unreadable(f"larger than {max_bytes} bytes")
    return content


def decode(content: bytes) -> tuple[str, str]:
    """Text and the encoding it was taken for.

    Raises:
        Unreadable: It is binary.
    """
    for mark, encoding in _MARKS:
        if content.startswith(mark):
            return content.decode(encoding, "replace"), encoding
    sample = content[:_SAMPLE_BYTES]
    if b"\x00" in sample:
        return _decode_with_nulls(content, sample)
    try:
        return content.decode("utf-8"), "utf-8"
    except UnicodeDecodeError:
        damaged = content.decode("utf-8", "replace")
    # A damaged UTF-8 text has more whole characters than broken ones; one in another encoding hardly any.
    whole = len(re.findall("[^\x00-\x7f\ufffd]", damaged))
    if whole >= damaged.count("\ufffd"):
        return damaged, "utf-8 (damaged)"
    return content.decode("cp1252", "replace"), "cp1252"


def passages_of(name: str, content: bytes) -> tuple[Sequence[Passage], str]:
    """The passages of a document and its encoding; its name tells the format.

    Raises:
        Unreadable: It is binary.
    """
    if Path(name).suffix.lower() == ".eml":
        return mail_passages(content, form_of), "mail"
    text, encoding = decode(content)
    return [Passage(text, form=form_of(name))], encoding


def form_of(name: str) -> Format:
    """The format of a document or attachment, by its name."""
    return _FORMATS.get(Path(name).suffix.lower(), "text")


def _decode_with_nulls(content: bytes, sample: bytes) -> tuple[str, str]:
    """UTF-16 without a mark has a zero in every second byte; anything else with zeros is binary."""
    for first, encoding in ((1, "utf-16-le"), (0, "utf-16-be")):
        zeros, others = sample[first::2].count(0), sample[1 - first :: 2].count(0)
        if others == 0 and zeros > len(sample) // 4:
            return content.decode(encoding, "replace"), encoding
    raise Unreadable("binary")
