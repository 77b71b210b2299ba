"""An exported run: one file that any store can take in.

It is a zip with seven parts. `manifest.json` says what it is, and has the hash of each other part. The run's
header is `header.json`; `steps.jsonl`, `segments.jsonl`, `events.jsonl` and `chunks.jsonl` have a record a
line, in the order of their keys, with the columns of the store: bytes as base64, and none that is null.
`blobs.bin` has each large output after a line of JSON with its name and size.
"""

from __future__ import annotations

import json
import zipfile
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from contextlib import contextmanager
from dataclasses import asdict, fields
from hashlib import sha256
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from durable_core.errors import CorruptRecord
from durable_core.journal.carrying import KINDS, read_row
from durable_core.records import RunHeader, Unreadable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import IO

    from durable_core.journal.carrying import Kind, Record

FORMAT: Final = "durable-run"
VERSION: Final = 1
MANIFEST: Final = "manifest.json"
HEADER: Final = "header.json"
BLOBS: Final = "blobs.bin"
PARTS: Final[dict[Kind, str]] = {kind: f"{kind}s.jsonl" for kind in KINDS}
NAMES: Final = (HEADER, *PARTS.values(), BLOBS)

_BYTES: Final = frozenset({"input_data", "output_data", "data"})
_HEADER_FIELDS: Final = tuple(field.name for field in fields(RunHeader))
_LARGEST: Final = 2**63
_ZIPPED_AT: Final = (1980, 1, 1, 0, 0, 0)  # so that the same run gives the same parts


class Part(NamedTuple):
    """What the manifest says of a part.

    Attributes:
        sha256: Of its bytes, in hex.
        size_bytes: How many there are.
        amount: How many records or blobs.
    """

    sha256: str
    size_bytes: int
    amount: int


class Manifest(NamedTuple):
    """What an exported run says of itself."""

    run_id: str
    workflow: str
    status: str
    root_hash: str
    exported_at: str
    parts: dict[str, Part]

    def document(self) -> dict[str, Any]:
        """As it is written."""
        parts = {name: part._asdict() for name, part in self.parts.items()}
        written_by = f"durable-core {version('durable-core')}"
        return (
            {"format": FORMAT, "version": VERSION, "written_by": written_by}
            | self._asdict()
            | {"parts": parts}
        )


# ---- Records and lines ----


def header_line(header: RunHeader) -> bytes:
    """A header as it is written."""
    return _line(asdict(header).items())


def record_line(record: Record) -> bytes:
    """A record as it is written."""
    return _line(record._asdict().items())


def header_of_line(line: bytes) -> RunHeader:
    """The header in a line, whose columns may be of any type.

    Raises:
        CorruptRecord: It is none.
    """
    columns = _columns(line, _HEADER_FIELDS)
    try:
        return RunHeader(**columns)
    except TypeError as error:
        raise CorruptRecord(f"the header lacks a column: {error}") from error


def record_of_line(kind: Kind, line: bytes, run_id: str) -> Record:
    """The record in a line.

    Raises:
        CorruptRecord: It is none, or one of another run.
    """
    columns = _columns(line, KINDS[kind]._fields)
    record = read_row(kind, [columns.get(name) for name in KINDS[kind]._fields])
    if isinstance(record, Unreadable):
        raise CorruptRecord(f"the {kind} {record.name!r:.140} can't be one: {record.why}")
    if record.run_id != run_id:
        raise CorruptRecord(f"a {kind} is of another run, {record.run_id!r:.140}")
    return record


def _line(columns: Iterable[tuple[str, Any]]) -> bytes:
    told = {
        name: b64encode(value).decode("ascii") if name in _BYTES else value
        for name, value in columns
        if value is not None
    }
    return json.dumps(told, separators=(",", ":")).encode("ascii") + b"\n"


def _columns(line: bytes, names: Iterable[str]) -> dict[str, Any]:
    try:
        found = json.loads(line)
        if not isinstance(found, dict) or not found.keys() <= set(names):
            raise ValueError("it isn't an object of the known columns")
        for name in _BYTES & found.keys():
            found[name] = b64decode(found[name], validate=True)
        for name, value in found.items():
            if type(value) is str and "\0" in value:
                raise ValueError(f"its {name} has a null character")
            if type(value) is int and not -_LARGEST <= value < _LARGEST:
                raise ValueError(f"its {name} is too large a number")
    except (ValueError, TypeError, RecursionError, Base64Error) as error:
        raise CorruptRecord(f"a line can't be read: {error}") from error
    return found


# ---- Writing ----


class PartWriter:
    """Writes one part, and hashes it on the way.

    Args:
        stream: Where to.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._hash = sha256()
        self._size = 0
        self.count = 0

    def add(self, *data: bytes) -> None:
        """A record, or a blob behind its line."""
        for some in data:
            self._hash.update(some)
            self._size += len(some)
            self._stream.write(some)
        self.count += 1

    def part(self) -> Part:
        """What was written."""
        return Part(self._hash.hexdigest(), self._size, self.count)


class BundleWriter:
    """Writes the parts of a bundle one after the other; the manifest comes last.

    Args:
        file: Where to, from its beginning.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._zip = zipfile.ZipFile(file, "w", allowZip64=True)
        self.parts: dict[str, Part] = {}

    @contextmanager
    def part(self, name: str) -> Iterator[PartWriter]:
        """One part. Blobs are compressed already."""
        with self._zip.open(_entry(name), "w", force_zip64=True) as stream:
            writer = PartWriter(stream)
            yield writer
        self.parts[name] = writer.part()

    def finish(self, manifest: Manifest) -> None:
        """Writes the manifest, and the directory of the zip."""
        text = json.dumps(manifest.document(), indent=2).encode("ascii")
        self._zip.writestr(_entry(MANIFEST), text + b"\n")
        self._zip.close()

    def abandon(self) -> None:
        """Leaves a file that is no zip: nobody may take it for a whole one."""
        self._zip.fp = None  # or closing would complete it


def blob_line(name: str, data: bytes) -> bytes:
    """What comes before a blob."""
    return json.dumps({"name": name, "size_bytes": len(data)}, separators=(",", ":")).encode("ascii") + b"\n"


def _entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, _ZIPPED_AT)
    entry.compress_type = zipfile.ZIP_STORED if name == BLOBS else zipfile.ZIP_DEFLATED
    entry.external_attr = 0o600 << 16
    return entry
