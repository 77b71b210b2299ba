"""A connection for plain code that reads a map's outputs from the SQLite journal, in whatever thread."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from durable_core.errors import JournalUnavailable
from durable_core.forking import restart_in_children
from durable_core.journal._sqlite_below import SEGMENT_RANGE
from durable_core.journal._sqlite_file import connect, gone, identity_of, until_free
from durable_core.journal._sqlite_looking import look, may_only_be_read
from durable_core.journal.chunks import SegmentReader
from durable_core.records import Segment

if TYPE_CHECKING:
    import sqlite3
    from pathlib import Path


class SqliteReader(SegmentReader):
    """Outlives the journal that opened it, threads and forks; connects when it is first asked.

    Args:
        path: The file, which must be there.
        busy_limit_s: How long a busy file is waited for.
        read_only: Whether the file is only looked at.
    """

    def __init__(self, path: Path, busy_limit_s: float, *, read_only: bool = False) -> None:
        self._read_only = read_only
        self._path, self._busy_limit_s = path, busy_limit_s
        self._file = identity_of(path)
        self._closed = False
        self._begin_anew()
        restart_in_children(self)

    def _begin_anew(self) -> None:
        self._lock = threading.Lock()  # held inside the connection
        self._connection: sqlite3.Connection | None = None

    def read(self, run_id: str, step_id: str, chunk: int, first: int, last: int) -> list[Segment]:
        """One SELECT.

        Raises:
            JournalUnavailable: The reader is closed, or its file was removed, replaced or stayed busy.
        """
        values = (run_id, step_id, chunk, first, last)
        rows = until_free(lambda: self._rows(values), self._path, limit_s=self._busy_limit_s)
        return list(map(Segment._make, rows))

    def close(self) -> None:
        """Gives the connection back; twice is fine."""
        with self._lock:
            self._closed = True
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _rows(self, values: tuple[object, ...]) -> list[tuple[Any, ...]]:
        with self._lock:
            if self._closed:
                raise JournalUnavailable(
                    f"the reader of {self._path} is closed", remedy="Get the map's result anew from its run"
                )
            if self._file is None or identity_of(self._path) != self._file:
                raise gone(self._path)  # SQLite would read what is no more there, or make an empty file
            if self._connection is None:
                if self._read_only or may_only_be_read(self._path):
                    return look(
                        self._path,
                        lambda of: of.execute(SEGMENT_RANGE, values).fetchall(),
                        self._busy_limit_s,
                    )
                self._connection = connect(self._path)
            return self._connection.execute(SEGMENT_RANGE, values).fetchall()

    # As the journal itself: a child must close what it inherited (see `SqliteJournal.hold`).

    def hold(self) -> None:
        """Before a fork: waits until no thread is inside the connection."""
        self._lock.acquire()

    def let_go(self) -> None:
        """In the parent, after it."""
        self._lock.release()

    def restart(self) -> None:
        """In the child: closes what was inherited, and connects anew when it is asked."""
        if self._connection is not None:
            self._connection.close()
        self._begin_anew()
