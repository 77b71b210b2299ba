"""The lines of a manifest, read part by part, from a file or an object of S3; all of them or some."""

from __future__ import annotations

from stat import S_ISDIR, S_ISREG
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from durable_core.errors import ManifestError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from os import stat_result
    from pathlib import Path

MAX_LINE_BYTES: Final = 16 * 1024 * 1024
_FILE_PART_BYTES: Final = 256 * 1024


class LineRange(NamedTuple):
    """Some lines that follow one another.

    Attributes:
        start: Of the first line, in bytes from the beginning.
        size_bytes: Of all of them.
        line: The number of the first, from 1.
        items: How many of them aren't blank.
        version: Of the manifest that they were counted in.
    """

    start: int
    size_bytes: int
    line: int
    items: int
    version: str


class Source(Protocol):
    """What a manifest is read from: one version of it, or an error.

    Attributes:
        size: In bytes.
        version: Differs once it has been changed.
        part_bytes: How much is best read at once.
    """

    size: int
    version: str
    part_bytes: int

    def read(self, start: int, length: int) -> bytes:
        """A part; shorter only at the end.

        Raises:
            ManifestError: It can't be read, or has been changed.
            JournalUnavailable: It can't be reached now.
        """
        ...

    def close(self) -> None:
        """Gives back what is held for it."""
        ...


class Lines:
    """Lines, one after the other. Blank ones are among them.

    Args:
        source: Of the manifest; it is closed at the end, or by `close`.
        among: Which lines; default: all.

    Attributes:
        start: Of the line that comes next, in bytes.
        number: Of the line that came last, from 1.

    Raises:
        ManifestError: The manifest isn't the version that `among` is of.
    """

    def __init__(self, source: Source, among: LineRange | None = None) -> None:
        self._source = source
        if among is not None and among.version != source.version:
            self.close()
            raise changed(source)
        self.start = self._read_to = among.start if among is not None else 0
        self._end = among.start + among.size_bytes if among is not None else source.size
        self.number = among.line - 1 if among is not None else 0
        self._lines: Iterator[bytes] = iter(())
        self._whole = 0  # lines that were read to their end and not given yet
        self._rest = b""  # the beginning of the one after them

    @property
    def is_dry(self) -> bool:
        """Whether the next line needs a read."""
        return not self._whole and self._read_to < self._end

    def fill(self) -> None:
        """Reads on until there is a line, or to the end.

        Raises:
            ManifestError: The manifest can't be read, was changed, or has a line that is too long.
            JournalUnavailable: It can't be reached now; what was read is kept.
        """
        while self.is_dry:
            length = min(self._source.part_bytes, self._end - self._read_to)
            part = self._source.read(self._read_to, length)
            self._read_to += len(part)
            lines = (self._rest + part).split(b"\n")
            self._rest = lines.pop()
            if self._read_to >= self._end and self._rest:  # nothing need end the last line
                lines.append(self._rest)
                self._rest = b""
            self._lines, self._whole = iter(lines), len(lines)
            if len(self._rest) > MAX_LINE_BYTES and not lines:
                raise broken(self._source, self.number + 1, f"it has more than {MAX_LINE_BYTES} bytes")

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        """The next line, without its end."""
        if not self._whole:
            self.fill()
        line = next(self._lines, None)
        if line is None:
            self.close()
            raise StopIteration
        self._whole -= 1
        self.number += 1
        self.start = min(self.start + len(line) + 1, self._end)
        if len(line) > MAX_LINE_BYTES:
            raise self.broken(f"it has more than {MAX_LINE_BYTES} bytes")
        return line

    def close(self) -> None:
        """Closes the source."""
        self._source.close()

    def broken(self, why: str) -> ManifestError:
        """The error for the line that came last."""
        return broken(self._source, self.number, why)


def ranges_of(source: Source, items_each: int) -> Iterator[LineRange]:
    """Divides a manifest into ranges of so many items; the last one may have fewer, none has none."""
    lines = Lines(source)
    try:
        start, line, items = 0, 1, 0
        for found in lines:
            items += not is_blank(found)
            if items == items_each:
                yield LineRange(start, lines.start - start, line, items, source.version)
                start, line, items = lines.start, lines.number + 1, 0
        if items:
            yield LineRange(start, lines.start - start, line, items, source.version)
    finally:
        lines.close()


def is_blank(line: bytes) -> bool:
    """Whether a line is no item."""
    return not line or line.isspace()


class ManifestFile:
    """A file, as it was when this was made."""

    part_bytes = _FILE_PART_BYTES

    def __init__(self, path: Path) -> None:
        """Looks at the file; it isn't kept open.

        Raises:
            ManifestError: It can't be read.
        """
        self._path = path
        try:
            found = path.stat()
            if not S_ISREG(found.st_mode) and not S_ISDIR(found.st_mode):  # a folder can't be opened
                raise ManifestError(
                    f"the manifest {path} is no regular file, and could be read only once",
                    remedy="Write it into a file first",
                )
            path.open("rb").close()
        except (OSError, ValueError) as error:  # a null byte in the name
            raise self._unreadable(error) from error
        self.size = found.st_size
        self.version = _version(found)

    def read(self, start: int, length: int) -> bytes:
        """A part of the file."""
        try:
            with self._path.open("rb") as file:
                file.seek(start)
                data = file.read(length)
                found = self._path.stat()
        except OSError as error:
            raise self._unreadable(error) from error
        if _version(found) != self.version or len(data) < min(length, self.size - start):
            raise changed(self)
        return data

    def close(self) -> None:
        """Nothing is held."""

    def __str__(self) -> str:
        return str(self._path)

    def _unreadable(self, error: Exception) -> ManifestError:
        reason = getattr(error, "strerror", None) or error
        return ManifestError(
            f"the manifest {self._path} can't be read: {reason}",
            remedy="Put it back as it was, and resume the run",
        )


def changed(source: object) -> ManifestError:
    """The error for a manifest that isn't as it was."""
    return ManifestError(
        f"the manifest {source} was changed while it was read",
        remedy="Put it back as it was, leave it until the map has committed, and resume the run",
    )


def broken(source: object, number: int, why: str) -> ManifestError:
    """The error for a line that is no item."""
    return ManifestError(
        f"line {number} of the manifest {source} is no item: {why}",
        remedy="Mend the line, and resume the run: what is done stays done",
    )


def _version(found: stat_result) -> str:
    return f"{found.st_size}-{found.st_mtime_ns}"
