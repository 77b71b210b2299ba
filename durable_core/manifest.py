"""Items that are read from JSON lines, in a file or in S3, as they are needed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, overload

from pydantic import TypeAdapter, ValidationError

from durable_core.arguments import check_count, finite, no_constant
from durable_core.aws.ranges import bucket_and_key, open_object
from durable_core.codec_classes import reason
from durable_core.errors import DurableError, JournalUnavailable, UsageError
from durable_core.manifest_lines import LineRange, Lines, ManifestFile, Source, is_blank, ranges_of

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator

T = TypeVar("T")

_MARK: Final = "\ufeff"  # some editors put it at the beginning of a file


class Jsonl(Generic[T]):
    """A manifest: one item a line, each a JSON value. Blank lines are none.

    It is read while the map runs, so it may be larger than memory; it must stay as it is until the map has
    committed.

    Args:
        path: The file, or `s3://BUCKET/KEY`. S3 is found as by any program of AWS: by the region and the
            credentials of the environment, the profile or the role, and by `AWS_ENDPOINT_URL`.
        type: What each line is validated as.

    Raises:
        UsageError: The path is no path.

    Example:
        batch = await ctx.map(extract, Jsonl("documents.jsonl", type=Document))
    """

    @overload
    def __init__(self: Jsonl[Any], path: str | os.PathLike[str]) -> None: ...

    @overload
    def __init__(self, path: str | os.PathLike[str], *, type: type[T]) -> None: ...

    def __init__(self, path: str | os.PathLike[str], *, type: Any = None) -> None:
        self.path = _checked(path)
        self._adapter: TypeAdapter[T] | None = TypeAdapter(type) if type is not None else None

    def __iter__(self) -> Items[T]:
        """The items in order, beginning with the first."""
        return Items(self._open, None, self._adapter)

    def read(self, among: LineRange) -> Items[T]:
        """The items of some lines.

        Args:
            among: As `ranges` gave it, perhaps in another process.
        """
        return Items(self._open, among, self._adapter)

    def ranges(self, items_each: int) -> Iterator[LineRange]:
        """Divides it into ranges of so many items each, without looking at the items; blocks.

        Args:
            items_each: The last range may have fewer.

        Raises:
            ManifestError: It can't be read.
            JournalUnavailable: S3 doesn't answer.
        """
        check_count("items_each", items_each)
        return ranges_of(self._open(), items_each)

    def _open(self) -> Source:
        return ManifestFile(self.path) if isinstance(self.path, Path) else open_object(self.path)

    def __repr__(self) -> str:
        return f"Jsonl({str(self.path)!r})"


class Items(Generic[T]):
    """The items of a manifest as they are read, once. Only `fill` reads, which blocks.

    Args:
        opens: Opens the manifest, when the first item is asked for.
        among: Which lines; None: all.
        adapter: What each item is validated by, if by anything.
    """

    def __init__(
        self, opens: Callable[[], Source], among: LineRange | None, adapter: TypeAdapter[T] | None
    ) -> None:
        self._opens = opens
        self._among = among
        self._adapter = adapter
        self._lines: Lines | None = None
        self._error: DurableError | None = None

    @property
    def is_dry(self) -> bool:
        """Whether the next item needs a read."""
        return self._error is None and (self._lines is None or self._lines.is_dry)

    def fill(self) -> None:
        """Reads on. Whatever the next item can't be had for is raised when it is asked for.

        Raises:
            JournalUnavailable: S3 doesn't answer; to be tried again.
        """
        try:
            if self._lines is None:
                self._lines = Lines(self._opens(), self._among)
            self._lines.fill()
        except JournalUnavailable:
            raise
        except DurableError as error:
            self._error = error

    def __iter__(self) -> Items[T]:
        return self

    def __next__(self) -> T:
        """The next item.

        Raises:
            ManifestError: The manifest can't be read or was changed, or a line, which it names, is no item.
            JournalUnavailable: S3 doesn't answer.
        """
        while True:
            if self.is_dry:
                self.fill()
            lines = self._lines
            if self._error is not None or lines is None:
                self.close()
                raise self._error or StopIteration
            line = next(lines)
            if not is_blank(line):
                return self._item(lines, line)

    def close(self) -> None:
        """Gives back what is held for reading."""
        if self._lines is not None:
            self._lines.close()

    def _item(self, lines: Lines, line: bytes) -> T:
        try:
            text = line.decode()
            found: T = _DECODER.decode(text.removeprefix(_MARK) if lines.number == 1 else text)
        except UnicodeDecodeError as error:
            raise lines.broken(f"it is no UTF-8: {error.reason} at byte {error.start}") from error
        except (ValueError, RecursionError) as error:
            raise lines.broken(f"it is no JSON: {error}") from error
        if self._adapter is None:
            return found
        try:
            return self._adapter.validate_python(found)
        except ValidationError as error:
            raise lines.broken(f"it doesn't fit its type: {reason(error)}") from error


def _checked(path: object) -> Path | str:
    if isinstance(path, str) and "://" in path:
        if path[:5].lower() != "s3://":
            raise UsageError(
                f"{path.partition('://')[0]}:// is no place of a manifest",
                remedy="Give the path of a local file, or s3://BUCKET/KEY",
            )
        bucket_and_key(path)
        return path
    try:
        found = Path(path)  # type: ignore[arg-type]  # it says so itself
    except TypeError as error:
        raise UsageError(f"{path!r} is no path", remedy="Give the path of a file of JSON lines") from error
    if found.parts[:1] == ("s3:",):
        raise UsageError(f"{found} has lost a slash", remedy='Give it as a text: Jsonl("s3://BUCKET/KEY")')
    return found


_DECODER: Final = json.JSONDecoder(parse_float=finite, parse_constant=no_constant)
