"""Reading an exported run that anybody may have made, or damaged, without believing anything it says.

The zip has seven parts with known names, and nothing else, so there is nothing to unpack: no path is ever
followed. Whatever a part claims of its size, no more is read of it at once than the longest line or the
largest blob that may be. Each part has to have the hash that the manifest says, its records have to come in
the order of their keys, which makes each one once, and every blob the hash in its name.
"""

from __future__ import annotations

import json
import zipfile
from hashlib import sha256
from io import BufferedReader
from typing import TYPE_CHECKING, Any, Final

from durable_core.blobs.base import MAX_BLOB_BYTES, is_ref
from durable_core.engine.bundle import (
    BLOBS,
    FORMAT,
    HEADER,
    MANIFEST,
    NAMES,
    PARTS,
    VERSION,
    Manifest,
    Part,
    header_of_line,
    record_of_line,
)
from durable_core.errors import CorruptRecord, DurableError, SchemaTooNew, UsageError
from durable_core.identity import check_id
from durable_core.journal.carrying import KEYS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path
    from types import TracebackType
    from typing import IO, Self

    from durable_core.journal.carrying import Kind, Record
    from durable_core.records import RunHeader, Unreadable

MAX_LINE_BYTES: Final = 16 * 1024 * 1024
MAX_MANIFEST_BYTES: Final = 64 * 1024
MAX_DIRECTORY_BYTES: Final = 16 * 1024
_PAGE: Final = 200
_ENCRYPTED: Final = 0x1
_COMPRESSIONS: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_END_OF_ZIP: Final = b"PK\x05\x06"
_END_BYTES: Final = 22
_REMEDY: Final = "Export the run again; nothing of this file was taken in"


class Bundle:
    """An exported run in a file. Its structure is checked on opening, its parts as they are read.

    Args:
        path: The file.

    Raises:
        UsageError: There is no such file, or it can't be read.
        CorruptRecord: It is no exported run.
        SchemaTooNew: A newer version of this package wrote it.

    Attributes:
        manifest: What it says of itself.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file: IO[bytes] = path.open("rb")
        except (OSError, ValueError) as error:
            raise UsageError(
                f"{path} can't be read: {getattr(error, 'strerror', None) or error}",
                remedy="Give a file that `durable export` has written",
            ) from error
        try:
            self._zip = self._opened()
            self.manifest = self._read_manifest()
        except BaseException as error:  # whatever it is, the file is given back
            self._file.close()
            raise self._told(error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._zip.close()
        self._file.close()

    # ---- Parts ----

    def header(self) -> RunHeader:
        """The run's header; its columns may be of any type.

        Raises:
            CorruptRecord: It is none.
        """
        try:
            with self._part(HEADER) as part:
                lines = list(part.lines())
            if len(lines) != 1:
                raise CorruptRecord(f"it has {len(lines)} headers")
            header = header_of_line(lines[0])
            if header.run_id != self.manifest.run_id:
                raise CorruptRecord("its header is of another run than its manifest")
            return header
        except Exception as error:
            raise self._told(error) from error

    async def as_stored(self, run_id: str, kind: Kind) -> AsyncIterator[list[Record | Unreadable]]:
        """All records of a kind, in pages; as of journals, but what can't be read is raised.

        Raises:
            CorruptRecord: One can't be read, or they aren't those that the manifest has the hash of.
        """
        page: list[Record | Unreadable] = []
        try:
            for record in self._records(run_id, kind):
                page.append(record)
                if len(page) == _PAGE:
                    yield page
                    page = []
        except Exception as error:
            raise self._told(error) from error
        if page:
            yield page

    def blobs(self) -> Iterator[tuple[str, bytes]]:
        """The refs and bytes of all blobs, checked against their names.

        Raises:
            CorruptRecord: One is damaged, or they aren't those that the manifest has the hash of.
        """
        try:
            with self._part(BLOBS) as part:
                while (line := part.line()) is not None:
                    name, size = _blob_line(line)
                    ref = f"runs/{self.manifest.run_id}/{name}"
                    data = part.exactly(size)
                    if not is_ref(ref) or sha256(data).hexdigest() != ref[-64:]:
                        raise CorruptRecord(f"the blob {name!r:.260} doesn't have the hash in its name")
                    part.count += 1
                    yield ref, data
        except Exception as error:
            raise self._told(error) from error

    def _records(self, run_id: str, kind: Kind) -> Iterator[Record]:
        last: tuple[Any, ...] | None = None
        with self._part(PARTS[kind]) as part:
            for line in part.lines():
                record = record_of_line(kind, line, run_id)
                key = tuple(getattr(record, name) for name in KEYS[kind])
                if last is not None and key <= last:
                    raise CorruptRecord(f"the {kind} {key!r:.200} is there twice, or out of order")
                last = key
                yield record

    def _part(self, name: str) -> _PartReader:
        return _PartReader(self._zip.open(name), self.manifest.parts[name], name)

    # ---- Its structure ----

    def _opened(self) -> zipfile.ZipFile:
        """The zip, once it is known that its directory is as small as ours."""
        size = self._file.seek(0, 2)
        self._file.seek(max(0, size - _END_BYTES))
        end = self._file.read(_END_BYTES)
        if len(end) < _END_BYTES or end[:4] != _END_OF_ZIP:
            raise CorruptRecord("it is no zip, or cut short")
        entries, directory_bytes = int.from_bytes(end[10:12], "little"), int.from_bytes(end[12:16], "little")
        if entries != len(NAMES) + 1 or directory_bytes > MAX_DIRECTORY_BYTES:
            raise CorruptRecord(f"it has {entries} parts, not the {len(NAMES) + 1} of an exported run")
        self._file.seek(0)
        found = zipfile.ZipFile(self._file)
        names = sorted(entry.filename for entry in found.infolist())
        if names != sorted((MANIFEST, *NAMES)):
            raise CorruptRecord(f"its parts are {', '.join(names)!r:.300}")
        for entry in found.infolist():
            if entry.flag_bits & _ENCRYPTED or entry.compress_type not in _COMPRESSIONS:
                raise CorruptRecord(f"its {entry.filename} is encrypted, or compressed in an unknown way")
        return found

    def _read_manifest(self) -> Manifest:
        entry = self._zip.getinfo(MANIFEST)
        if entry.file_size > MAX_MANIFEST_BYTES:
            raise CorruptRecord("its manifest is too large")
        found = json.loads(self._zip.read(MANIFEST))
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise CorruptRecord("its manifest is of something else")
        given = found.get("version")
        if type(given) is not int or given < 1:
            raise CorruptRecord(f"its version is {given!r:.40}")
        if given > VERSION:
            raise SchemaTooNew(
                f"it was written in version {given} of the format, and this one knows {VERSION}",
                remedy="Use the version of durable-core that wrote it, or a newer one",
            )
        parts = {name: _part_of(found["parts"][name]) for name in NAMES}
        for name, part in parts.items():
            if self._zip.getinfo(name).file_size != part.size_bytes:
                raise CorruptRecord(f"its {name} has another size than its manifest says")
        told = [found[name] for name in Manifest._fields[:-1]]
        if not all(isinstance(one, str) for one in told):
            raise CorruptRecord("its manifest isn't one")
        check_id(found["run_id"], "run id")
        return Manifest._make([*told, parts])

    def _told(self, error: BaseException) -> BaseException:
        """What is wrong with the file, by its name."""
        if isinstance(error, SchemaTooNew):
            error.message = f"{self.path}: {error.message}"
            return error
        if isinstance(error, DurableError):
            return CorruptRecord(f"{self.path} is no whole exported run: {error.message}", remedy=_REMEDY)
        if isinstance(error, Exception) and not isinstance(error, MemoryError):
            return CorruptRecord(
                f"{self.path} is no whole exported run: {str(error) or type(error).__name__}", remedy=_REMEDY
            )
        return error


class _PartReader:
    """Reads a part, and compares it with what the manifest says once it is read to its end."""

    def __init__(self, stream: Any, told: Part, name: str) -> None:
        self._stream = BufferedReader(stream, 256 * 1024)
        self._told = told
        self._name = name
        self._hash = sha256()
        self.count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._check_end()
        finally:
            self._stream.close()

    def line(self) -> bytes | None:
        """The next line; None at the end."""
        found = self._stream.readline(MAX_LINE_BYTES + 1)
        if len(found) > MAX_LINE_BYTES:
            raise CorruptRecord(f"{self._name} has a line of more than {MAX_LINE_BYTES} bytes")
        self._hash.update(found)
        return found or None

    def lines(self) -> Iterator[bytes]:
        """Every line, counted."""
        while (found := self.line()) is not None:
            self.count += 1
            yield found

    def exactly(self, size: int) -> bytes:
        """So many bytes."""
        found = self._stream.read(size)
        if len(found) != size:
            raise CorruptRecord(f"{self._name} is cut short")
        self._hash.update(found)
        return found

    def _check_end(self) -> None:
        if self._stream.read(1):
            raise CorruptRecord(f"{self._name} has something behind its end")
        if (self._hash.hexdigest(), self.count) != (self._told.sha256, self._told.amount):
            raise CorruptRecord(f"{self._name} isn't what the manifest has the hash of")


def _part_of(found: Any) -> Part:
    part = Part(found["sha256"], found["size_bytes"], found["amount"])
    if type(part.sha256) is not str or type(part.size_bytes) is not int or type(part.amount) is not int:
        raise CorruptRecord("its manifest isn't one")
    return part


def _blob_line(line: bytes) -> tuple[str, int]:
    found = json.loads(line)
    name, size = found["name"], found["size_bytes"]
    if type(name) is not str or type(size) is not int or not 0 <= size <= MAX_BLOB_BYTES:
        raise CorruptRecord("a blob has no name, or no size that it can have")
    return name, size
