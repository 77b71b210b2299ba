"""Which documents there are: a sorted walk that never leaves its folders."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from functions.workflows.scanning.models import DocumentRef, Listing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_TEXT_SUFFIXES = """
    .txt .text .md .markdown .rst .csv .tsv .json .jsonl .ndjson .eml .log .html .htm .xml .yaml .yml
    .toml .ini .cfg
"""
SUFFIXES: Final = frozenset(_TEXT_SUFFIXES.split())
# Text files that go without a suffix.
_BARE_NAMES = """
    METADATA RECORD WHEEL INSTALLER REQUESTED LICENSE LICENCE COPYING NOTICE README AUTHORS CHANGELOG
    CHANGES
"""
_NAMES: Final = frozenset(_BARE_NAMES.split())


def list_everything(
    folders: Sequence[str], documents: Sequence[str], *, exclude: Sequence[str] = (), key_id: str = ""
) -> Listing:
    """All documents under folders, and the ones named, each once.

    Args:
        folders: Walked to the bottom in sorted order, not following links to folders.
        documents: Paths that are taken as they are, whatever their names.
        exclude: Files and folders to leave out, such as the one that the report is written to.
        key_id: Kept in the listing.

    Raises:
        NotADirectoryError: A folder isn't one: a mistyped path is no empty folder.
    """
    left_out = {Path(path).resolve() for path in exclude}
    labels = _labels([Path(folder) for folder in folders])
    found: dict[str, DocumentRef] = {}
    ignored = 0
    for label, folder in labels:
        closed: list[OSError] = []
        for path in _files(folder, left_out, closed.append):
            if path.suffix.lower() in SUFFIXES or path.name.partition("-")[0] in _NAMES:
                name = f"{label}/{path.relative_to(folder).as_posix()}"
                ref = _checked(name, path, folder)
                found.setdefault(ref.uri, ref)
            else:
                ignored += 1
        for error in closed:
            path = Path(os.fsdecode(error.filename))
            name = f"{label}/{path.relative_to(folder).as_posix()}"
            found[path.as_uri()] = DocumentRef(
                name=printable(name), uri=path.as_uri(), problem="folder can't be listed"
            )
    for document in documents:
        uri = Path(document).absolute().as_uri()
        found.setdefault(uri, DocumentRef(name=printable(Path(document).as_posix()), uri=uri, named=True))
    return Listing(documents=list(found.values()), ignored=ignored, key_id=key_id)


def printable(name: str) -> str:
    """A file name as text: bytes that are no UTF-8, and line ends, are written as escapes."""
    text = os.fsencode(name).decode("utf-8", "backslashreplace")
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def _labels(folders: Sequence[Path]) -> list[tuple[str, Path]]:
    """Each folder with the name the report gives it: its own, with a number if another has the same."""
    labels: dict[str, Path] = {}
    for folder in folders:
        resolved = folder.resolve(strict=True)
        if not resolved.is_dir():
            raise NotADirectoryError(f"{folder} is no folder")
        if resolved in labels.values():
            continue
        base, label, number = resolved.name or "root", resolved.name or "root", 1
        while label in labels:
            number += 1
            label = f"{base}-{number}"
        labels[label] = resolved
    return list(labels.items())


def _files(folder: Path, left_out: set[Path], on_error: Callable[[OSError], None]) -> Iterator[Path]:
    for parent, folders, files in os.walk(folder, onerror=on_error):
        here = Path(parent)
        # Sorted in place: os.walk descends in this order, and a run listed again must list the same.
        folders[:] = sorted(name for name in folders if here / name not in left_out)
        yield from (here / name for name in sorted(files) if here / name not in left_out)


def _checked(name: str, path: Path, folder: Path) -> DocumentRef:
    """A link is never followed: what it leads to is listed by its own name, or isn't ours."""
    problem = ""
    if path.is_symlink():
        problem = _leads_where(path, folder)
    return DocumentRef(name=printable(name), uri=path.as_uri(), problem=problem)


def _leads_where(link: Path, folder: Path) -> str:
    try:
        target = link.resolve(strict=True)
    except (OSError, RuntimeError):  # RuntimeError: a loop, before Python 3.13
        return "a symbolic link to nowhere"
    return "a symbolic link" if target.is_relative_to(folder) else "a symbolic link out of the folder"
