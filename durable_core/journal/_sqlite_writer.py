"""The writing connection of one event loop.

alone     step ── write ──▶ file          made at once on the loop's thread: no turn of the loop
shared    step ─┐
          step ─┼─ one turn ─ write ──▶   all that was asked for in one turn shares one transaction
          step ─┘
busy      ── tried in a thread ──▶        another process has the file; further requests queue
"""

from __future__ import annotations

import asyncio
import random
import sqlite3
import threading
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from durable_core.journal._sqlite_file import BUSY_PAUSE_S, connect, is_busy, locked_too_long, translated

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from durable_core.errors import DurableError

# A direct write holds the event loop; after this long without a turn the loop gets one.
LOOP_TURN_EVERY_S: Final = 0.002


class Asked(NamedTuple):
    """One conditional write that waits for its turn: `op(cursor, *args)` makes it and gives its reply."""

    op: Callable[..., Any]
    args: tuple[Any, ...]
    full: bool
    reply: asyncio.Future[Any]


class Writer:
    """Owned by the thread of one event loop.

    Args:
        path: The file.
        busy_limit_s: How long a busy file is waited for.
    """

    def __init__(self, path: Path, busy_limit_s: float) -> None:
        self._path = path
        self._busy_limit_s = busy_limit_s
        self.lock = threading.Lock()  # held inside the connection, so that a fork can wait for that
        self.connection = connect(path)
        self._cursor = self.connection.cursor()
        self._full = True  # PRAGMA synchronous as it stands
        self._loop: asyncio.AbstractEventLoop | None = None
        self._asked: list[Asked] = []
        self._waiting = False  # a thread is using the connection, waiting for a busy file
        self._turn_at = 0.0

    async def write(
        self,
        op: Callable[..., Any],
        args: tuple[Any, ...],
        *,
        full: bool,
        alone: bool,
        recallable: bool = False,
    ) -> Any:
        """Makes one write durable, alone or with what else was asked for.

        Args:
            op: Makes the write with a cursor, in one statement when it succeeds.
            args: What `op` takes after the cursor.
            full: Whether the write must survive a power cut; else only the death of the process.
            alone: Whether no other step could share the write.
            recallable: Whether a write that waits for its turn is dropped when its caller is cancelled. Once
                the caller is told of that, the write has been made or never will be. Others are made all the
                same.

        Raises:
            JournalUnavailable, StoreMisconfigured, CorruptRecord: The file could not be written.
        """
        if alone and not self._asked and not self._waiting:
            now = time.perf_counter()
            if now - self._turn_at > LOOP_TURN_EVERY_S:
                self._turn_at = now
                await asyncio.sleep(0)
            if not self._asked and not self._waiting:
                try:
                    with self.lock:
                        self._set_durability(full)
                        return op(self._cursor, *args)  # one statement: its own transaction
                except sqlite3.Error as error:
                    if not is_busy(error):
                        raise translated(error, self._path) from error
        return await self._share(op, args, full, recallable)

    async def _share(
        self, op: Callable[..., Any], args: tuple[Any, ...], full: bool, recallable: bool
    ) -> Any:
        loop = asyncio.get_running_loop()
        if (
            loop is not self._loop
        ):  # an earlier loop of this thread ended; whoever asked there is gone with it
            self._loop, self._asked, self._waiting = loop, [], False
        reply: asyncio.Future[Any] = loop.create_future()
        self._asked.append(Asked(op, args, full, reply))
        if len(self._asked) == 1 and not self._waiting:
            loop.call_soon(self._flush)
        if not recallable:  # shielded: a caller that is cancelled goes, its write is made all the same
            return await asyncio.shield(reply)
        try:
            return await reply
        except asyncio.CancelledError:
            with self.lock:  # whatever is being written is written; from now on this isn't
                raise

    def _flush(self) -> None:
        if self._waiting or not self._asked:
            return
        group, self._asked = self._asked, []
        try:
            _answer(group, self._transact(group))
        except sqlite3.Error as error:
            if is_busy(error):
                self._wait_in_thread(group)
            else:
                self._one_by_one(group, translated(error, self._path))

    def _transact(self, group: list[Asked]) -> list[Any]:
        """All of a group in one transaction; the strictest of them decides how durable it is."""
        with self.lock:
            self._set_durability(any(asked.full for asked in group))
            self._cursor.execute("BEGIN IMMEDIATE")
            try:
                replies = [
                    None if asked.reply.cancelled() else asked.op(self._cursor, *asked.args)
                    for asked in group
                ]
                self._cursor.execute("COMMIT")
            finally:
                if self.connection.in_transaction:
                    self._cursor.execute("ROLLBACK")
        return replies

    def _one_by_one(self, group: list[Asked], error: DurableError) -> None:
        """After a group failed: a write that is bad by itself must not take the others with it."""
        if len(group) == 1:
            _refuse(group, error)
            return
        for asked in group:
            self._asked.append(asked)
            self._flush()

    def _set_durability(self, full: bool) -> None:
        # FULL syncs the log at each commit, NORMAL only at checkpoints; a later FULL commit syncs what came
        # before it.
        if full is not self._full:
            self._cursor.execute("PRAGMA synchronous=FULL" if full else "PRAGMA synchronous=NORMAL")
            self._full = full

    def _wait_in_thread(self, group: list[Asked]) -> None:
        self._waiting = True
        working = asyncio.get_running_loop().run_in_executor(None, self._transact_when_free, group)

        def done(future: asyncio.Future[list[Any]]) -> None:
            self._waiting = False
            error = future.exception()
            if error is None:
                _answer(group, future.result())
            elif isinstance(error, sqlite3.Error):
                self._one_by_one(group, translated(error, self._path))
            else:
                _refuse(group, error)
            self._flush()

        working.add_done_callback(done)

    def _transact_when_free(self, group: list[Asked]) -> list[Any]:
        """In a thread: the whole transaction, as soon as the file is free, if anybody still wants it."""
        until = time.monotonic() + self._busy_limit_s
        while not all(asked.reply.cancelled() for asked in group):
            try:
                return self._transact(group)
            except sqlite3.Error as error:
                if not is_busy(error):
                    raise
                if time.monotonic() > until:
                    raise locked_too_long(self._path, self._busy_limit_s) from error
            time.sleep(
                BUSY_PAUSE_S * (0.5 + random.random())
            )  # drawn anew, so that two waiters don't keep step
        return [None] * len(group)


def _answer(group: list[Asked], replies: list[Any]) -> None:
    for asked, reply in zip(group, replies, strict=True):
        if not asked.reply.done():
            asked.reply.set_result(reply)


def _refuse(group: list[Asked], error: BaseException) -> None:
    for asked in group:
        if not asked.reply.done():
            asked.reply.set_exception(error)
            asked.reply.exception()  # who still waits gets it; nobody else is told
