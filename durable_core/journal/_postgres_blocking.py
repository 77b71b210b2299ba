"""A connection for plain code, in whatever thread: renewals, and outputs that are read lazily."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.pq import ConnStatus

from durable_core.forking import restart_in_children
from durable_core.journal._postgres_server import Answer, Server, has_rows, text_of, translated

if TYPE_CHECKING:
    from durable_core.journal._postgres_server import Connection, Values

inherited: list[object] = []
"""Connections of the parent, in a forked child: kept, because deleting one would tell of one left open."""


class BlockingConnection:
    """Connects when it is first asked, and again after it was lost, closed or inherited by a fork.

    Args:
        server: Where to.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._begin_anew()
        restart_in_children(self)

    def _begin_anew(self) -> None:
        self._lock = threading.Lock()  # held inside the connection
        self._connection: Connection | None = None

    def run(self, query: str, values: Values = None) -> Answer:
        """Makes one statement, as `Pool.run`.

        Raises:
            JournalUnavailable, StoreMisconfigured, CorruptRecord, UsageError: It failed, or nobody knows.
        """
        with self._lock:
            if self._connection is None:
                self._connection = self._server.connect_blocking()
            try:
                cursor = self._connection.execute(text_of(query, self._server.schema), values, binary=True)
                return Answer(cursor.fetchall() if has_rows(cursor.pgresult) else [], cursor.rowcount)
            except (psycopg.Error, UnicodeError) as error:
                if self._connection.pgconn.status == ConnStatus.BAD:
                    self._connection = None
                raise translated(error, self._server.shown) from error

    def close(self) -> None:
        """Gives it back; it connects again if it is asked again."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    # Nothing is waited for before a fork: the child has no use for what the connection was doing.

    def hold(self) -> None:
        """Before a fork."""

    let_go = hold

    def restart(self) -> None:
        """In the child."""
        if self._connection is not None:
            abandon(self._connection)
        self._begin_anew()


def abandon(connection: psycopg.BaseConnection[Any]) -> None:
    """Leaves an inherited connection to the parent.

    Closing it properly would end the parent's session: the socket is one and the same. Only the child's copy
    is closed, so that the server notices the parent's own end.
    """
    inherited.append(connection)
    if not connection.closed:
        os.close(connection.pgconn.socket)
