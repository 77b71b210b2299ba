"""The connections of one process to its PostgreSQL server.

A connection is bound to no event loop while nobody uses it. So one pool serves all loops and threads, one
`asyncio.run` after the other finds the connections of the one before, and there is no task in the background
that would outlive its loop.

    loop 1   take ── statement ── give back ─┐          (ends)
    loop 2                                   └ take ── statement ── give back
    forked   (closes its copies of the sockets without a word to the server) ── connects anew
"""

from __future__ import annotations

import asyncio
import random
import select
import threading
from collections import deque
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import psycopg
from psycopg.pq import TransactionStatus

from durable_core.errors import JournalUnavailable
from durable_core.forking import restart_in_children
from durable_core.journal._postgres_blocking import BlockingConnection, abandon
from durable_core.journal._postgres_server import Answer, Server, has_rows, text_of, translated

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from durable_core.journal._postgres_server import AsyncConnection, Values

WAIT_LIMIT_S: Final = 30.0
_CONNECT_AGAIN_AFTER_S: Final = 0.1
# Nothing was applied then, and nobody is asked whether to go on: another transaction was in the way.
_IN_THE_WAY: Final = ("40001", "40P01")
_TRIES: Final = 8
_CANCELLED_AFTER_S: Final = 1.0  # a write takes milliseconds, unless something is in its way
_PAUSE_S: Final = 0.005


class _Turn:
    """One place among the connections that may be open at once: granted, or waited for."""

    __slots__ = ("connection", "given_up", "granted", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.granted: asyncio.Future[None] | None = None
        self.connection: AsyncConnection | None = None
        self.given_up = False

    def give_up(self) -> None:
        """Cuts a connection that doesn't answer: to ask the server politely would take as long again."""
        self.given_up = True
        if self.connection is not None:
            self.connection.pgconn.finish()


class Pool:
    """Connections that are opened when they are needed, and kept until the pool is closed.

    Args:
        server: Where to.
        wait_limit_s: How long a free connection, a server that restarts or a reply is waited for.
    """

    def __init__(self, server: Server, *, wait_limit_s: float = WAIT_LIMIT_S) -> None:
        self.server = server
        self.wait_limit_s = wait_limit_s
        self._blocking = BlockingConnection(server)
        self._begin_anew()
        restart_in_children(self)

    @property
    def place(self) -> str:
        """As people may see it."""
        return self.server.shown

    def _begin_anew(self) -> None:
        self._lock = threading.Lock()  # never held while anything is waited for
        self._idle: list[AsyncConnection] = []
        self._out: set[_Turn] = set()
        self._queue: deque[_Turn] = deque()
        self._answered = False

    # ---- Statements ----

    async def run(self, query: str, values: Values = None) -> Answer:
        """Makes one statement, a transaction of its own.

        A caller that is cancelled waits no longer for what is busy, but leaves only when the write has been
        made or never will be: what it asks for next can't overtake it.

        Args:
            query: `durable.` in it stands for the schema.
            values: By place or by name.

        Raises:
            JournalUnavailable, StoreMisconfigured, CorruptRecord, UsageError: It failed, or nobody knows.
        """
        made = asyncio.ensure_future(self._run(text_of(query, self.server.schema), values))
        try:
            return await asyncio.shield(made)
        except asyncio.CancelledError:
            made.add_done_callback(_forget)
            if not (await asyncio.wait((made,), timeout=_CANCELLED_AFTER_S))[0]:
                made.cancel()  # the server is asked to stop it, and says what came of it
                await asyncio.wait((made,))
            raise

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Session]:
        """Several statements that are applied together, at the end, or not at all."""
        turn = await self._take()
        try:
            session = Session(self, turn)
            await session.run("BEGIN")
            yield session
            await session.run("COMMIT")
        finally:
            self._give_back(turn)  # in the middle of a transaction: it is closed, and all is undone

    async def _run(self, query: str, values: Values) -> Answer:
        for left in reversed(range(_TRIES)):
            turn = await self._take()
            try:
                return await self.on(turn, query, values)
            except psycopg.Error as error:
                if error.sqlstate not in _IN_THE_WAY or not left:
                    raise translated(error, self.place) from error
            finally:
                self._give_back(turn)
            await asyncio.sleep(_PAUSE_S * (0.5 + random.random()))
        raise AssertionError("unreachable")

    async def on(self, turn: _Turn, query: str, values: Values) -> Answer:
        """Makes a statement on a connection that was taken."""
        connection = turn.connection
        assert connection is not None  # noqa: S101 - for the type checker: `_take` connects
        timer = turn.loop.call_later(self.wait_limit_s, turn.give_up)
        try:
            cursor = await connection.execute(query, values, binary=True)
            rows = await cursor.fetchall() if has_rows(cursor.pgresult) else []
            return Answer(rows, cursor.rowcount)
        except UnicodeError as error:
            raise translated(error, self.place) from error
        except psycopg.Error as error:
            if turn.given_up:
                self._drop_idle()  # they may lead to the same silence, and would take as long each
                raise self._silent() from error
            raise
        finally:
            timer.cancel()

    def run_blocking(self, query: str, values: Values = None) -> Answer:
        """The same as `run`, for plain code in any thread, over a connection of its own."""
        return self._blocking.run(query, values)

    # ---- Connections ----

    def close(self) -> None:
        """Closes what is idle, and later what is in use; the pool can be used again."""
        with self._lock:
            idle, self._idle, self._out = self._idle, [], set()
        for connection in idle:
            connection.pgconn.finish()
        self._blocking.close()

    async def _take(self) -> _Turn:
        turn = _Turn(asyncio.get_running_loop())
        with self._lock:
            if len(self._out) < self.server.connections:
                self._out.add(turn)
            else:
                turn.granted = turn.loop.create_future()
                self._queue.append(turn)
        try:
            if turn.granted is not None:
                await self._wait_for(turn.granted)
            turn.connection = self._pop_idle() or await self._connect()
        except BaseException:  # whatever ends the wait, the turn goes to the next in line; it is raised on
            self._give_back(turn)
            raise
        return turn

    async def _wait_for(self, granted: asyncio.Future[None]) -> None:
        try:
            await asyncio.wait_for(granted, self.wait_limit_s)
        except TimeoutError as error:
            raise JournalUnavailable(
                f"all {self.server.connections} connections to {self.place} were in use"
                f" for {self.wait_limit_s:g} s",
                waited_s=self.wait_limit_s,
                remedy="Allow more (?connections=…), or let the server answer faster",
            ) from error

    def _give_back(self, turn: _Turn) -> None:
        connection, turn.connection = turn.connection, None
        with self._lock:
            if turn in self._queue:
                self._queue.remove(turn)
            kept = turn in self._out and connection is not None and _is_fit(connection)
            self._out.discard(turn)
            if kept and connection is not None:
                self._idle.append(connection)
            while self._queue and len(self._out) < self.server.connections:
                following = self._queue.popleft()
                try:
                    following.loop.call_soon_threadsafe(_grant, following)
                except RuntimeError:  # its loop is closed, and who waited there is gone with it
                    continue
                self._out.add(following)
        if connection is not None and not kept:
            connection.pgconn.finish()

    def _pop_idle(self) -> AsyncConnection | None:
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection = self._idle.pop()
            if _is_fit(connection) and not _is_readable(connection.pgconn.socket):
                return connection
            connection.pgconn.finish()  # the server has closed it: an idle one has nothing else to tell

    def _drop_idle(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.pgconn.finish()

    async def _connect(self) -> AsyncConnection:
        """A server that has answered before may be restarting: it is waited for."""
        until = asyncio.get_running_loop().time() + self.wait_limit_s
        while True:
            try:
                async with asyncio.timeout_at(until):
                    connection = await self.server.connect()
            except TimeoutError as error:
                raise self._silent() from error
            except JournalUnavailable as error:
                if not self._answered:
                    raise
                if asyncio.get_running_loop().time() > until:
                    error.waited_s = self.wait_limit_s
                    raise
            else:
                self._answered = True
                return connection
            await asyncio.sleep(_CONNECT_AGAIN_AFTER_S)

    def _silent(self) -> JournalUnavailable:
        return JournalUnavailable(
            f"{self.place} hasn't answered for {self.wait_limit_s:g} s",
            waited_s=self.wait_limit_s,
            remedy="See to the server and the network, and resume: everything committed is safe",
        )

    # ---- Forks ----

    def hold(self) -> None:
        """Before a fork."""
        self._lock.acquire()

    def let_go(self) -> None:
        """In the parent, after it."""
        self._lock.release()

    def restart(self) -> None:
        """In the child."""
        out = [turn.connection for turn in self._out if turn.connection is not None]
        for connection in (*self._idle, *out):
            abandon(connection)
        self._begin_anew()


class Session:
    """Statements inside one transaction."""

    def __init__(self, pool: Pool, turn: _Turn) -> None:
        self._pool = pool
        self._turn = turn

    async def run(self, query: str, values: Values = None) -> Answer:
        """Makes one; as `Pool.run`.

        Raises:
            JournalUnavailable, StoreMisconfigured, CorruptRecord, UsageError: It failed; all is undone.
        """
        try:
            return await self._pool.on(self._turn, text_of(query, self._pool.server.schema), values)
        except psycopg.Error as error:
            raise translated(error, self._pool.place) from error


def _forget(made: asyncio.Future[Answer]) -> None:
    if not made.cancelled():
        made.exception()  # nobody is left to be told


def _grant(turn: _Turn) -> None:
    if turn.granted is not None and not turn.granted.done():
        turn.granted.set_result(None)


def _is_fit(connection: AsyncConnection) -> bool:
    return not connection.closed and connection.pgconn.transaction_status == TransactionStatus.IDLE


def _is_readable(socket: int) -> bool:
    poll = select.poll()
    poll.register(socket, select.POLLIN)
    return bool(poll.poll(0))
