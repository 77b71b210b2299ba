"""A SQLite file that this user may read but not write: looked at, never touched.

log beside it    somebody has it open, or died in it: it is read through that log, as others write it
no log           nobody has it open: it is read as it is, since SQLite would have to make a log to lock it
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from durable_core.errors import DurableError, StoreMisconfigured
from durable_core.journal._sqlite_file import (
    GIVE_ACCESS,
    SCHEMA_VERSION,
    no_store,
    schema_version,
    until_free,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

T = TypeVar("T")


class _State(NamedTuple):
    has_log: bool
    changed_ns: int
    size_bytes: int


def may_only_be_read(path: Path) -> bool:
    """Whether there is such a file, and this user may read it but not write it."""
    if not os.access(path, os.R_OK) or not path.is_file():
        return False
    return not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK))


def check_readable(path: Path, limit_s: float, *, create: bool) -> None:
    """Refuses a file whose runs can't be read.

    Raises:
        StoreNotFound, StoreMisconfigured: It holds no store, and none may be made, or can be.
        SchemaTooNew, CorruptRecord, JournalUnavailable: As of `prepare`.
    """
    if not path.is_file():
        raise no_store(path)
    version = look(path, lambda connection: schema_version(connection, path), limit_s)
    if version == 0:
        raise not_writable(path) if create else no_store(path)
    if version != SCHEMA_VERSION:
        raise StoreMisconfigured(
            f"{path} is of an older version of durable-core, and this user can't write it", remedy=GIVE_ACCESS
        )


def look(path: Path, query: Callable[[sqlite3.Connection], T], limit_s: float) -> T:
    """What a query finds now, over a connection of its own.

    A file read as it is may be opened and written by somebody meanwhile: then it is read again.

    Raises:
        StoreMisconfigured: There is a log that this user can't read the file through.
        JournalUnavailable, CorruptRecord: As of any read.
    """
    while True:
        before = _state_of(path)
        try:
            found = _looked_once(path, query, before.has_log, limit_s)
        except DurableError:
            if before.has_log or _state_of(path) == before:
                raise
            continue
        if before.has_log or _state_of(path) == before:
            return found


def _looked_once(path: Path, query: Callable[[sqlite3.Connection], T], has_log: bool, limit_s: float) -> T:
    connection = until_free(lambda: _connect(path, has_log), path, limit_s=limit_s)
    with closing(connection):
        return until_free(lambda: query(connection), path, limit_s=limit_s)


def not_writable(path: Path) -> StoreMisconfigured:
    """The refusal of a write."""
    return StoreMisconfigured(
        f"{path} can be read by this user, but not written, or its folder can't", remedy=GIVE_ACCESS
    )


def _state_of(path: Path) -> _State:
    try:
        found = path.stat()
    except OSError:  # removed meanwhile: the next look finds none
        return _State(False, 0, 0)
    return _State(os.path.lexists(f"{path}-wal"), found.st_mtime_ns, found.st_size)


def _connect(path: Path, has_log: bool) -> sqlite3.Connection:
    how = "mode=ro" if has_log else "mode=ro&immutable=1"
    connection = sqlite3.connect(f"{path.as_uri()}?{how}", uri=True, timeout=0, isolation_level=None)
    try:
        connection.execute("SELECT 1 FROM sqlite_master LIMIT 1")
    except sqlite3.Error as error:
        connection.close()
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if has_log and code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN):
            raise StoreMisconfigured(
                f"{path} can't be read without write access while there is a log beside it: {error}",
                remedy=f"{GIVE_ACCESS}; or read it once nobody has it open",
            ) from error
        raise
    return connection
