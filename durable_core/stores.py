"""The only place that knows concrete stores: from a URL to a journal and a blob store."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, quote, unquote_to_bytes, urlsplit

from durable_core.blobs.filesystem import FilesystemBlobs
from durable_core.blobs.memory import MemoryBlobs
from durable_core.errors import UsageError
from durable_core.journal.memory import MemoryJournal
from durable_core.journal.sqlite import SqliteJournal
from durable_core.store import Store

if TYPE_CHECKING:
    from durable_core.clock import Clock

STORE_VARIABLE: Final = "DURABLE_STORE"
DEFAULT_URL: Final = "sqlite:///durable.db"
BACKENDS: Final = ("sqlite", "postgres", "dynamodb", "s3", "memory")
_SCHEMES: Final = {"postgres": "postgresql", "s3": "dynamodb"}
_COMING: Final = ("postgresql", "dynamodb")
_LONGEST_SUFFIX: Final = "-journal"  # of the files that SQLite and the blob store put beside it
_UNUSABLE: Final = (errno.ENAMETOOLONG, errno.ELOOP)
_SHOWN: Final = 120


def store_url(store: str | None, db_path: str | os.PathLike[str] | None, backend: str | None) -> str:
    """The URL that the executor's arguments and the environment name.

    Args:
        store: A URL, which says everything.
        db_path: A SQLite file.
        backend: sqlite, postgres, dynamodb, s3 or memory.

    Raises:
        UsageError: They contradict each other, or don't name a store.
    """
    if backend is not None and backend not in BACKENDS:
        raise UsageError(f"unknown backend {backend!r}", remedy=f"Use one of: {', '.join(BACKENDS)}")
    if store is not None:
        if not isinstance(store, str):
            raise UsageError(
                f"store= is a {type(store).__name__}",
                remedy="Give a URL such as sqlite:///runs.db, or a Store",
            )
        if db_path is not None:
            raise UsageError("both store= and db_path= name a store", remedy="Give one of them")
        return _of_backend(store, backend)
    if db_path is not None:
        if backend not in (None, "sqlite"):
            raise UsageError(
                f"db_path= belongs to SQLite, not to backend={backend!r}",
                remedy=f"Name the store by URL: store= or {STORE_VARIABLE}",
            )
        if not isinstance(db_path, str | bytes | os.PathLike):
            raise UsageError(f"db_path= is a {type(db_path).__name__}", remedy="Give a path")
        if not os.fspath(db_path):
            raise UsageError("db_path is empty", remedy="Name a file")
        return f"sqlite:///{quote(_bytes_of(db_path))}"
    found = os.environ.get(STORE_VARIABLE)
    if found:
        return _of_backend(found, backend)
    if backend == "memory":
        return "memory://"
    if backend not in (None, "sqlite"):
        raise UsageError(
            f"backend={backend!r} needs to know where",
            remedy=f"Name the store by URL: store= or {STORE_VARIABLE}",
        )
    return DEFAULT_URL


def open_store(url: str, clock: Clock | None = None) -> Store:
    """The store that a URL names; nothing is connected yet.

    Args:
        url: `sqlite:///file.db` (relative), `sqlite:////abs/file.db`, or `memory://`.
        clock: What leases are judged by.

    Raises:
        UsageError: The URL names no store, or has unknown options.
    """
    scheme, parts = _scheme(url), urlsplit(url)
    options = parse_qsl(parts.query, keep_blank_values=True)
    if parts.fragment:
        raise UsageError(
            f"{url!r} has a part after #, which means nothing here", remedy="Write # in a name as %23"
        )
    if scheme in _COMING:
        raise UsageError(f"{scheme} stores aren't part of this version", remedy="Use sqlite:///FILE for now")
    if options:
        raise UsageError(
            f"unknown option {options[0][0]!r} in the store URL", remedy=f"{scheme} stores take none"
        )
    if scheme == "memory":
        return Store("memory://", MemoryJournal(clock), MemoryBlobs())
    path = os.fsdecode(unquote_to_bytes(_bytes_of(parts.path)))[1:] if not parts.netloc else ""
    if not path:
        raise UsageError(
            f"{url!r} names no SQLite file",
            remedy="Write sqlite:///runs.db, or sqlite:////absolute/path/runs.db",
        )
    journal = _sqlite_journal(path, clock)
    return Store(f"sqlite:///{path}", journal, FilesystemBlobs(Path(f"{journal.path}.blobs")))


def _sqlite_journal(path: str, clock: Clock | None) -> SqliteJournal:
    """Of a file that can have this name; whether it may be opened is seen when it is."""
    try:
        journal = SqliteJournal(Path(path), clock)
    except (ValueError, RuntimeError, OSError) as error:  # a null byte, a lone surrogate; a loop of links
        raise _no_name(path, str(error)) from error
    try:
        os.lstat(f"{journal.path}{_LONGEST_SUFFIX}")
    except OSError as error:
        if error.errno in _UNUSABLE:
            raise _no_name(path, error.strerror or str(error)) from error
    return journal


def _bytes_of(path: str | os.PathLike[str]) -> bytes:
    """The name as the file system has it: it needn't be UTF-8."""
    try:
        return os.fsencode(path)
    except UnicodeEncodeError as error:
        raise _no_name(os.fspath(path), error.reason) from error


def _no_name(path: str, reason: str) -> UsageError:
    shown = path if len(path) <= _SHOWN else f"{path[:_SHOWN]}…"
    return UsageError(f"{shown!r} can't be the name of a SQLite file: {reason}", remedy="Name another file")


def _of_backend(url: str, backend: str | None) -> str:
    scheme = _scheme(url)
    if backend is not None and _SCHEMES.get(backend, backend) != scheme:
        raise UsageError(
            f"the store URL is of {scheme}, backend= says {backend!r}", remedy="Leave backend= out"
        )
    return url


def _scheme(url: str) -> str:
    scheme = url.partition("://")[0] if "://" in url else ""
    if scheme not in ("sqlite", "memory", *_COMING):
        shown = scheme or url.partition("@")[2] or url  # never a password
        raise UsageError(
            f"{shown!r} is no store URL",
            remedy="Use sqlite:///file.db, memory://, postgresql://… or dynamodb://TABLE?bucket=BUCKET",
        )
    return scheme
