"""A SQLite file: connections to it, its schema, and what its errors mean."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
import time
from contextlib import closing
from contextvars import ContextVar
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

from durable_core.clock import SystemClock, rfc3339
from durable_core.errors import (
    CorruptRecord,
    DurableError,
    JournalUnavailable,
    SchemaTooNew,
    StoreMisconfigured,
    StoreNotFound,
)

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
T = TypeVar("T")

SCHEMA_VERSION: Final = 5
BUSY_LIMIT_S: Final = 30.0
BUSY_PAUSE_S: Final = 0.0005
GIVE_ACCESS: Final = (
    "Give this user write access to the file and its folder, or name another store (--store, DURABLE_STORE)"
)
_OUR_NAMES: Final = (
    "schema_version", "runs", "checkpoints", "segments", "events", "chunks", "agent_checkpoints",
)  # fmt: skip
_NETWORK_FILE_SYSTEMS: Final = (
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "smbfs",
    "9p",
    "fuse.sshfs",
    "afs",
    "glusterfs",
    "ceph",
)


def connect(path: Path) -> sqlite3.Connection:
    """A connection that may move between threads, without the driver's own transactions.

    Raises:
        sqlite3.Error: The file can't be opened, or is busy.
    """
    # timeout 0: a busy file is waited for by retrying (see until_free), because SQLite's own waiting starves
    # the one of two writers that sleeps longer.
    connection = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA wal_autocheckpoint=500")  # pages; a little faster than the default of 1000
        connection.execute("PRAGMA journal_size_limit=67108864")  # a log grown by a long reader shrinks again
        connection.execute("PRAGMA synchronous=FULL")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def identity_of(path: Path) -> tuple[int, int] | None:
    """Which file a path names now; None if it names none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def is_busy(error: sqlite3.Error) -> bool:
    """Whether another connection is in the way, so that trying again helps."""
    primary = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return primary in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL)


_called_off: ContextVar[threading.Event | None] = ContextVar("called_off", default=None)


async def in_thread(work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Runs blocking work in a thread, where `until_free` stops waiting once the caller is cancelled.

    An event loop that ends waits for its threads: one that waited on would hold up a process that is asked to
    stop.
    """
    called_off = threading.Event()
    token = _called_off.set(called_off)
    try:
        return await asyncio.to_thread(work, *args, **kwargs)
    except asyncio.CancelledError:
        called_off.set()
        raise
    finally:
        _called_off.reset(token)


def until_free(attempt: Callable[[], T], path: Path, *, limit_s: float = BUSY_LIMIT_S) -> T:
    """Repeats what a busy file refuses, for blocking callers.

    Raises:
        JournalUnavailable: The file stayed busy for `limit_s`, or nobody waits any more (see `in_thread`).
    """
    until = time.monotonic() + limit_s
    called_off = _called_off.get()
    while True:
        if called_off is not None and called_off.is_set():
            raise JournalUnavailable(f"nobody waits for {path} any more")
        try:
            return attempt()
        except sqlite3.Error as error:
            if not is_busy(error):
                raise translated(error, path) from error
            if time.monotonic() > until:
                raise locked_too_long(path, limit_s) from error
        time.sleep(BUSY_PAUSE_S)


def gone(path: Path) -> JournalUnavailable:
    """The error of a file that isn't there any more, or is another one."""
    return JournalUnavailable(
        f"{path} was removed or replaced while it was in use",
        remedy="Put the file back and start the run anew",
    )


def locked_too_long(path: Path, limit_s: float) -> JournalUnavailable:
    """The error of a file that stayed busy."""
    return JournalUnavailable(
        f"another program has kept {path} locked for {limit_s:g} s",
        waited_s=limit_s,
        remedy="Find it (`fuser`, `lsof`), end it or let it finish, and resume: nothing was lost",
    )


def translated(error: sqlite3.Error, path: Path) -> DurableError:
    """The error of this package that a SQLite error stands for."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if "UTF-8" in str(error):  # the driver's own, without a code
        return CorruptRecord(f"a text in {path} isn't UTF-8: {error}", remedy="Restore it from a backup")
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return CorruptRecord(
            f"{path} can't be read as a SQLite database: {error}",
            remedy="Restore it from a backup, or copy out what is left with `sqlite3 FILE .recover`",
        )
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH):
        return StoreMisconfigured(
            f"{path} can't be written: {error}",
            remedy=GIVE_ACCESS,
        )
    if code == sqlite3.SQLITE_CANTOPEN:
        return StoreMisconfigured(
            f"{path} can't be opened: {error}", remedy="Name a file in a folder that this user can write"
        )
    if code == sqlite3.SQLITE_ERROR:
        return StoreMisconfigured(
            f"{path} doesn't have the tables that it should: {error}",
            remedy="Use a file of its own for the journal",
        )
    if code == sqlite3.SQLITE_FULL:
        return JournalUnavailable(
            f"no room is left to write {path}: {error}",
            remedy="Free some space and resume: everything committed is safe",
        )
    return JournalUnavailable(
        f"{path} can't be used now: {error}",
        remedy="See to the disk and resume: everything committed is safe",
    )


def prepare(path: Path, limit_s: float = BUSY_LIMIT_S, *, create: bool = True) -> None:
    """Makes the file and its schema, or migrates it.

    Args:
        path: The file.
        limit_s: How long a busy file is waited for.
        create: Whether they are made where there are none.

    Raises:
        StoreNotFound: There are none, and none are to be made.
        StoreMisconfigured: The place can't be written, is on a network file system, or belongs to something
            else.
        SchemaTooNew: A newer version of this package made it.
        CorruptRecord: It isn't a database.
        JournalUnavailable: It is locked, or the disk is full.
    """
    if not create and not path.exists():
        raise no_store(path)
    check_place(path)
    with closing(until_free(lambda: connect(path), path, limit_s=limit_s)) as connection:
        # Before the log is switched on: a file of another program stays as it was.
        version = until_free(lambda: schema_version(connection, path), path, limit_s=limit_s)
        if version == 0 and not create:
            raise no_store(path)
        until_free(lambda: _use_wal(connection, path), path, limit_s=limit_s)
        if version != SCHEMA_VERSION:
            until_free(lambda: _migrate(connection, path), path, limit_s=limit_s)


def no_store(path: Path) -> StoreNotFound:
    return StoreNotFound(
        f"there is no store in {path}",
        remedy="Name the one that runs were started with: --store, DURABLE_STORE",
    )


def check_place(path: Path) -> None:
    folder = path.parent
    if not folder.is_dir():
        raise StoreMisconfigured(
            f"the folder of the SQLite file {path} doesn't exist",
            remedy=f"Make it (`mkdir -p {folder}`), or name another store (--store, DURABLE_STORE)",
        )
    if path.is_dir():
        raise StoreMisconfigured(f"{path} is a folder, not a SQLite file", remedy="Name a file in it")
    kind = file_system(folder)
    if kind in _NETWORK_FILE_SYSTEMS:
        raise StoreMisconfigured(
            f"{path} is on a network file system ({kind}), where SQLite's write-ahead log loses data",
            remedy="Put the file on a local disk, or use a postgresql:// or dynamodb:// store",
        )
    writable = os.access(path, os.W_OK) if path.exists() else os.access(folder, os.W_OK)
    if not writable or not os.access(folder, os.W_OK):
        raise StoreMisconfigured(
            f"{path} can't be written by this user, or its folder can't",
            remedy=GIVE_ACCESS,
        )


def file_system(folder: Path) -> str:
    """The type of the file system a folder is on; empty where the system doesn't tell."""
    mounts = Path("/proc/self/mountinfo")
    if not mounts.exists():
        return ""
    best, kind = -1, ""
    for line in mounts.read_text("utf-8", "surrogateescape").splitlines():
        fields, _, rest = line.partition(" - ")
        point = fields.split(" ")[4].encode().decode("unicode_escape")
        if len(point) > best and (folder == Path(point) or Path(point) in folder.parents):
            best, kind = len(point), rest.split(" ")[0]
    return kind


def _use_wal(connection: sqlite3.Connection, path: Path) -> None:
    (mode,) = connection.execute("PRAGMA journal_mode=WAL").fetchone()
    if mode != "wal":
        raise StoreMisconfigured(
            f"{path} can't use a write-ahead log (journal mode stays {mode!r})",
            remedy="Put the file on a local disk that allows shared memory, or use another store",
        )


def schema_version(connection: sqlite3.Connection, path: Path) -> int:
    """The version of our schema in the file; 0 where there is none yet.

    Raises:
        StoreMisconfigured: The names are taken by another program.
        SchemaTooNew: It is newer than what this version knows.
    """
    marks = ", ".join("?" * len(_OUR_NAMES))
    query = f"SELECT name, type FROM sqlite_master WHERE name IN ({marks})"
    taken = dict(connection.execute(query, _OUR_NAMES))
    if not taken:
        return 0
    columns = [row[1] for row in connection.execute("PRAGMA table_info(schema_version)")]
    ours = columns == ["version", "applied_at"] and taken.get("runs") == taken.get("checkpoints") == "table"
    (version,) = connection.execute("SELECT max(version) FROM schema_version").fetchone() if ours else (None,)
    if not isinstance(version, int) or version < 1:
        raise StoreMisconfigured(
            f"{path} belongs to another program: it has its own {', '.join(sorted(taken))}",
            remedy="Use a file of its own for the journal",
        )
    if version > SCHEMA_VERSION:
        raise SchemaTooNew(
            f"{path} has schema version {version}; this durable-core knows up to {SCHEMA_VERSION}",
            remedy="Upgrade durable-core (`pip install -U durable-core`), or use another file",
        )
    return version


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Applies what is missing, in one transaction: of several processes that open a new file, one does it."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = schema_version(connection, path)
        if version == 0:
            connection.execute(
                "CREATE TABLE schema_version (version INTEGER NOT NULL PRIMARY KEY, applied_at TEXT NOT NULL)"
            )
        for step in range(version + 1, SCHEMA_VERSION + 1):
            for statement in _statements(step):
                connection.execute(statement)
            applied = rfc3339(SystemClock().now_ms())
            connection.execute("INSERT INTO schema_version VALUES (?, ?)", (step, applied))
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _statements(version: int) -> list[str]:
    folder = resources.files("durable_core.journal").joinpath("schema")
    text = folder.joinpath(f"sqlite_{version:03d}.sql").read_text("utf-8")
    found, pending = [], ""
    for line in text.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            found.append(pending.strip())
            pending = ""
    return found
