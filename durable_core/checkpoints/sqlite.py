"""Checkpoints in the SQLite file of the journal, over a connection of their own."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final, TypeVar

from durable_core.checkpoints.base import (
    CheckpointRecord,
    CheckpointStore,
    Place,
    SessionStats,
    as_text,
    from_text,
    overtaken,
)
from durable_core.errors import JournalUnavailable
from durable_core.forking import restart_in_children
from durable_core.identity import check_id
from durable_core.journal._sqlite_file import BUSY_LIMIT_S, connect, identity_of, prepare, until_free
from durable_core.journal._sqlite_verbs import held_by

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from durable_core.journal.base import Holding

T = TypeVar("T")

_KNOWN: Final = (
    "id, session_id, agent_id, step_id, seq, format, size_bytes, state_hash, metadata, created_at, state_ref"
)
_PLACE: Final = "session_id, seq, id, state_ref, size_bytes"
_NEXT: Final = "(SELECT coalesce(max(seq), 0) + 1 FROM agent_checkpoints WHERE session_id = ?)"
# The newest of the session is found along one index, the newest of its agent along another.
_OLD: Final = (
    " session_id = :session"
    " AND seq <= (SELECT max(seq) FROM agent_checkpoints WHERE session_id = :session) - :keep"
    " AND seq < (SELECT max(seq) FROM agent_checkpoints AS newer"
    " WHERE newer.session_id = :session AND newer.agent_id = old.agent_id)"
)
_FOREIGN: Final = "NOT EXISTS (SELECT 1 FROM runs WHERE run_id = ?)"  # its journal is in another place
_STATS: Final = (
    "SELECT count(*), count(DISTINCT agent_id), coalesce(sum(size_bytes), 0), coalesce(max(seq), 0),"
    " min(created_at), max(created_at) FROM agent_checkpoints WHERE session_id = ?"
)


class SqliteCheckpoints(CheckpointStore):
    """Checkpoints in one file, shared by any number of processes of one machine.

    Args:
        path: The file; made when it isn't there. Its folder must be.
        busy_limit_s: How long to wait for a file that another program has locked.
    """

    def __init__(self, path: Path, *, busy_limit_s: float = BUSY_LIMIT_S) -> None:
        self.path = path.resolve()
        self.busy_limit_s = busy_limit_s
        self._begin_anew()
        restart_in_children(self)

    def _begin_anew(self) -> None:
        self._lock = threading.Lock()  # over the connection
        self._connection: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None

    # ---- Writing ----

    def append(self, record: CheckpointRecord, lease: Holding | None = None) -> int:
        """One INSERT, synced.

        A   INSERT … max(seq) + 1 ─▶ 8         the statement holds the file's write lock from before it reads:
        B                INSERT … max(seq) + 1 ─▶ 9     nobody can take the place between look and put
        C   (its run was taken over) INSERT … WHERE the header is C's ─▶ nothing: Fenced
        """
        check_id(record.session_id, "session id")
        may_save, asked = ("1", ()) if lease is None else _may_save(lease)
        values = (
            record.id, record.session_id, record.agent_id, record.step_id, record.session_id, record.format,
            record.size_bytes, record.state_hash, record.metadata, record.created_at_ms, record.state_ref,
            as_text(record), *asked,
        )  # fmt: skip

        def insert(connection: sqlite3.Connection) -> int:
            connection.execute("BEGIN IMMEDIATE")
            try:
                connection.execute(
                    f"INSERT INTO agent_checkpoints ({_KNOWN}, state_blob)"
                    f" SELECT ?, ?, ?, ?, {_NEXT}, ?, ?, ?, ?, ?, ?, ? WHERE {may_save}"
                    " ON CONFLICT (id) DO NOTHING",
                    values,
                )
                row = connection.execute(
                    "SELECT seq FROM agent_checkpoints WHERE id = ?", (record.id,)
                ).fetchone()
                if row is None and lease is not None:
                    raise overtaken(record, lease)
                connection.execute("COMMIT")
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
            return int(row[0])

        return self._do(insert)

    def remove(self, places: Sequence[Place]) -> int:
        """One DELETE; not synced, because losing it to a power cut loses nothing."""
        ids = tuple(place.id for place in places)
        statement = f"DELETE FROM agent_checkpoints WHERE id IN ({', '.join('?' * len(ids))})"

        def delete(connection: sqlite3.Connection) -> int:
            connection.execute("PRAGMA synchronous=NORMAL")
            try:
                return connection.execute(statement, ids).rowcount
            finally:
                connection.execute("PRAGMA synchronous=FULL")

        return self._do(delete) if ids else 0

    # ---- Reading ----

    def latest(self, session_id: str, agent_id: str | None = None) -> CheckpointRecord | None:
        """One SELECT along an index."""
        of_agent, values = (" AND agent_id = ?", (agent_id,)) if agent_id is not None else ("", ())
        return self._one(f"session_id = ?{of_agent}", session_id, *values)

    def of_step(self, session_id: str, step_id: str) -> CheckpointRecord | None:
        """One SELECT along an index."""
        return self._one("session_id = ? AND step_id = ?", session_id, step_id)

    def at(self, session_id: str, seq: int) -> CheckpointRecord | None:
        """One SELECT along an index."""
        return self._one("session_id = ? AND seq = ?", session_id, seq)

    def page(
        self,
        session_id: str,
        *,
        agent_id: str | None = None,
        before: int | None = None,
        limit: int = 100,
        with_state: bool = False,
    ) -> list[CheckpointRecord]:
        """One SELECT along an index."""
        given: dict[str, object] = {"session_id = ?": session_id, "agent_id = ?": agent_id, "seq < ?": before}
        asked = {condition: value for condition, value in given.items() if value is not None}
        return self._records(" AND ".join(asked), (*asked.values(), limit), with_state=with_state)

    def prunable(self, session_id: str, keep: int, *, limit: int | None = None) -> Sequence[Place]:
        """One SELECT along an index."""
        query = f"SELECT {_PLACE} FROM agent_checkpoints AS old WHERE {_OLD} ORDER BY seq LIMIT :limit"
        wanted = {"session": session_id, "keep": keep, "limit": -1 if limit is None else limit}
        return [Place(*row) for row in self._rows(query, wanted)]

    def places(self, session_id: str, *, limit: int | None = None) -> Sequence[Place]:
        """One SELECT along an index."""
        query = f"SELECT {_PLACE} FROM agent_checkpoints WHERE session_id = ? ORDER BY seq LIMIT ?"
        return [Place(*row) for row in self._rows(query, (session_id, -1 if limit is None else limit))]

    def stats(self, session_id: str) -> SessionStats:
        """One SELECT over the session."""
        (row,) = self._rows(_STATS, (session_id,))
        return SessionStats(session_id, *row)

    def sessions(self, *, after: str = "", limit: int = 100) -> Sequence[str]:
        """One SELECT a name, each a step along the index: what a session holds isn't read."""
        found: list[str] = []
        while len(found) < limit:
            query = "SELECT min(session_id) FROM agent_checkpoints WHERE session_id > ?"
            ((name,),) = self._rows(query, (found[-1] if found else after,))
            if name is None:
                break
            found.append(name)
        return found

    # ---- The connection ----

    def open(self, *, create: bool = True) -> None:
        """Makes or migrates the schema, and connects."""
        with self._lock:
            self._connected(create=create)

    def close(self) -> None:
        """Closes the connection."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
            self._connection = None

    def hold(self) -> None:
        """Before a fork: waits until no thread is inside the connection (see `SqliteJournal`)."""
        self._lock.acquire()

    def let_go(self) -> None:
        """In the parent, after it."""
        self._lock.release()

    def restart(self) -> None:
        """In the child: closes what was inherited."""
        if self._connection is not None:
            self._connection.close()
        self._begin_anew()

    def _connected(self, *, create: bool = True) -> sqlite3.Connection:
        if self._connection is None:
            prepare(self.path, self.busy_limit_s, create=create)
            self._connection = until_free(lambda: connect(self.path), self.path, limit_s=self.busy_limit_s)
            # One text that isn't UTF-8 must not hide the others; what it is part of fails its checks.
            self._connection.text_factory = lambda text: text.decode("utf-8", "backslashreplace")
            self._file = identity_of(self.path)
        elif identity_of(self.path) != self._file:  # SQLite itself would go on with what is no more there
            raise JournalUnavailable(
                f"{self.path} was removed or replaced while it was in use",
                remedy="Put the file back and start the program anew",
            )
        return self._connection

    def _do(self, work: Callable[[sqlite3.Connection], T]) -> T:
        with self._lock:
            connection = self._connected()
            return until_free(lambda: work(connection), self.path, limit_s=self.busy_limit_s)

    def _rows(self, query: str, values: Any) -> list[tuple[Any, ...]]:
        return self._do(lambda connection: connection.execute(query, values).fetchall())

    def _one(self, condition: str, *values: object) -> CheckpointRecord | None:
        return next(iter(self._records(condition, (*values, 1), with_state=True)), None)

    def _records(
        self, condition: str, values: tuple[object, ...], *, with_state: bool
    ) -> list[CheckpointRecord]:
        state = "state_blob" if with_state else "NULL"
        query = f"SELECT {_KNOWN}, {state} FROM agent_checkpoints WHERE {condition} ORDER BY seq DESC LIMIT ?"
        return [_record(row) for row in self._rows(query, values)]


def _may_save(lease: Holding) -> tuple[str, tuple[object, ...]]:
    held, mine = held_by(lease)
    return f"({held} OR {_FOREIGN})", (*mine, lease.run_id)


def _record(row: tuple[Any, ...]) -> CheckpointRecord:
    """A record from its columns as they are; whether they hold what they should is seen when it is opened."""
    ref, text = row[-2:]
    return CheckpointRecord._make((*row[:-2], from_text(row[5], text), ref))
