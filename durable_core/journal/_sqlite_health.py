"""Examining a SQLite file and its place. What is tried is taken back."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Final

from durable_core.clock import epoch_ms
from durable_core.errors import DurableError
from durable_core.health import FAIL, OK, WARN, Check, failed, tried
from durable_core.journal._sqlite_file import (
    GIVE_ACCESS,
    SCHEMA_VERSION,
    check_place,
    connect,
    file_system,
    no_store,
    schema_version,
    until_free,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from durable_core.clock import Clock

_WITHOUT_RESET_BUG: Final = (3, 51, 3)
_SCARCE_BYTES: Final = 1024**3
_TOO_FEW_BYTES: Final = 50 * 1024**2
_LONG_LOG_BYTES: Final = 512 * 1024**2
_CHECKED_BELOW_BYTES: Final = 512 * 1024**2  # of larger files a check of all pages takes too long
_BUSY_LIMIT_S: Final = 2.0
_PROBE: Final = (
    "INSERT INTO runs (run_id, workflow, input_hash, status, fence, base_fence, created_at, updated_at)"
    " VALUES (' ', '', '', 'PRUNING', 0, 0, '', '')"
)


def examine(path: Path, clock: Clock) -> Iterator[Check]:
    """All checks of a file, one after the other; blocking."""
    yield _version()
    yield from tried("place", lambda: _place(path))
    yield _room(path)
    try:
        if not path.exists():
            raise no_store(path)
        with closing(until_free(lambda: connect(path), path, limit_s=_BUSY_LIMIT_S)) as connection:
            yield from _of_file(path, connection, clock)
    except DurableError as error:
        yield failed("store", error)


def _version() -> Check:
    told = f"SQLite {sqlite3.sqlite_version}"
    if sqlite3.sqlite_version_info >= _WITHOUT_RESET_BUG:
        return Check("sqlite", OK, told)
    return Check(
        "sqlite",
        WARN,
        f"{told} has the WAL-reset bug: in very rare cases two processes that write at once damage the file",
        "Use a Python whose sqlite3.sqlite_version is 3.51.3 or newer, or one process at a time; back up",
    )


def _place(path: Path) -> str:
    check_place(path)
    return f"{path} is on {file_system(path.parent) or 'a disk'}, and may be written"


def _room(path: Path) -> Check:
    try:
        free = shutil.disk_usage(path.parent).free
    except OSError as error:
        return Check("room", FAIL, f"{path.parent} can't be looked at: {error.strerror}", GIVE_ACCESS)
    told = f"{free / 1024**3:.1f} GiB are free in {path.parent}"
    if free >= _SCARCE_BYTES:
        return Check("room", OK, told)
    return Check("room", FAIL if free < _TOO_FEW_BYTES else WARN, told, "Free some space, or prune runs")


def _of_file(path: Path, connection: sqlite3.Connection, clock: Clock) -> Iterator[Check]:
    version = until_free(lambda: schema_version(connection, path), path, limit_s=_BUSY_LIMIT_S)
    if version == 0:
        raise no_store(path)
    yield Check("store", OK, f"{path} can be read")
    old = f"version {version}, from before this durable-core; brought up to {SCHEMA_VERSION} on the next use"
    yield Check("schema", OK, f"version {version}" if version == SCHEMA_VERSION else old)
    yield _log(path, connection)
    yield from tried("write", lambda: _written(path, connection))
    yield _blobs(path)
    yield _clock(connection, clock)
    if path.stat().st_size < _CHECKED_BELOW_BYTES:
        yield _pages(path, connection)


def _log(path: Path, connection: sqlite3.Connection) -> Check:
    ((mode,),) = until_free(lambda: connection.execute("PRAGMA journal_mode").fetchall(), path)
    if mode != "wal":
        return Check(
            "wal",
            WARN,
            f"the journal mode is {mode}, not wal",
            "It is set on the next use, unless another program changes it: find out which",
        )
    log = path.with_name(f"{path.name}-wal")
    size = log.stat().st_size if log.exists() else 0
    if size > _LONG_LOG_BYTES:
        return Check(
            "wal",
            WARN,
            f"the log beside the file has {size / 1024**2:.0f} MiB: somebody reads without an end",
            "Find it (`fuser`, `lsof`), and end it",
        )
    return Check("wal", OK, f"write-ahead log, {size / 1024:.0f} KiB")


def _written(path: Path, connection: sqlite3.Connection) -> str:
    """A record is put in a transaction that is rolled back."""

    def attempt() -> None:
        connection.execute("BEGIN IMMEDIATE")
        try:
            connection.execute(_PROBE)
        finally:
            connection.execute("ROLLBACK")

    until_free(attempt, path, limit_s=_BUSY_LIMIT_S)
    return "a record was put and taken back"


def _blobs(path: Path) -> Check:
    folder = path.with_name(f"{path.name}.blobs")
    place = folder if folder.exists() else path.parent
    if os.access(place, os.R_OK | os.W_OK | os.X_OK):
        return Check("blobs", OK, f"large outputs go to {folder}")
    return Check("blobs", FAIL, f"{place} can't be written by this user", GIVE_ACCESS)


def _clock(connection: sqlite3.Connection, clock: Clock) -> Check:
    """Whether the clock was set back since a run was last changed."""
    ((latest,),) = connection.execute("SELECT max(updated_at) FROM runs WHERE updated_at < 'A'").fetchall()
    try:
        ahead_ms = epoch_ms(latest) - clock.now_ms() if latest else 0
    except (TypeError, ValueError):
        ahead_ms = 0  # that is damage, which `verify` tells of
    if ahead_ms <= 0:
        return Check("clock", OK, "no run was changed in the future")
    return Check(
        "clock",
        WARN,
        f"a run was changed {ahead_ms / 1000:.1f} s from now: a clock was set back, or is wrong",
        "Let the clock follow a time server; leases and waits may take that much longer",
    )


def _pages(path: Path, connection: sqlite3.Connection) -> Check:
    read: Callable[[], list[tuple[str]]] = lambda: connection.execute("PRAGMA quick_check(1)").fetchall()  # noqa: E731
    try:
        ((told,),) = until_free(read, path, limit_s=_BUSY_LIMIT_S)
    except DurableError as error:
        return failed("pages", error)
    if told == "ok":
        return Check("pages", OK, "all pages of the file are as they should be")
    return Check(
        "pages",
        FAIL,
        f"the file is damaged: {told:.200}",
        "Restore it from a backup, or use `sqlite3 .recover`",
    )
