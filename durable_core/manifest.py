"""Items that are read from a file of JSON lines, as they are needed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, overload

from pydantic import TypeAdapter, ValidationError

from durable_core.codec_classes import reason
from durable_core.errors import ManifestError, UsageError

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

T = TypeVar("T")

MAX_LINE_BYTES: Final = 16 * 1024 * 1024


class Jsonl(Generic[T]):
    """A manifest: one item a line, each a JSON value. Blank lines are none.

    It is read while the map runs, so it may be larger than memory; it must stay as it is until the map has
    committed.

    Args:
        path: The file.
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
        if isinstance(path, str) and "://" in path:
            raise UsageError(f"{path!r} is no file", remedy="Give the path of a local file")
        try:
            self.path = Path(path)
        except TypeError as error:
            raise UsageError(
                f"{path!r} is no path", remedy="Give the path of a file of JSON lines"
            ) from error
        self._adapter: TypeAdapter[T] | None = TypeAdapter(type) if type is not None else None

    def __iter__(self) -> Iterator[T]:
        """The items in order.

        Raises:
            ManifestError: The file can't be read, or a line isn't an item; names the line.
        """
        try:
            with self.path.open("rb") as file:
                for number, line in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES + 1), b""), 1):
                    if len(line) > MAX_LINE_BYTES:
                        raise self._broken(number, f"it has more than {MAX_LINE_BYTES} bytes")
                    if line.strip():
                        yield self._item(number, line)
        except OSError as error:
            raise ManifestError(
                f"the manifest {self.path} can't be read: {error.strerror or error}",
                remedy="Put it back as it was, and resume the run",
            ) from error

    def _item(self, number: int, line: bytes) -> T:
        try:
            found: T = json.loads(line, parse_constant=_refuse)
        except (ValueError, RecursionError) as error:
            raise self._broken(number, f"it is no JSON: {error}") from error
        if self._adapter is None:
            return found
        try:
            return self._adapter.validate_python(found)
        except ValidationError as error:
            raise self._broken(number, f"it doesn't fit its type: {reason(error)}") from error

    def _broken(self, number: int, why: str) -> ManifestError:
        return ManifestError(
            f"line {number} of the manifest {self.path} is no item: {why}",
            remedy="Mend the line, and resume the run: what is done stays done",
        )

    def __repr__(self) -> str:
        return f"Jsonl({str(self.path)!r})"


def _refuse(name: str) -> object:
    raise ValueError(f"{name} is not JSON")
