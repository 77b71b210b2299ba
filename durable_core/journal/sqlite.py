"""The journal in a SQLite file: the default store.

Outcomes are committed with `synchronous=FULL`: one fsync a step, and no outcome is lost to a power cut. The
STARTED
record of an `at_least_once` step and renewals are committed with NORMAL: losing those to a power cut only
means that the step was never begun.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import WeakSet

from durable_core.clock import Clock, SystemClock, rfc3339
from durable_core.forking import restart_in_children
from durable_core.journal import _sqlite_chunks as chunks
from durable_core.journal import _sqlite_verbs as verbs
from durable_core.journal._sqlite_chunks import SqliteChunks
from durable_core.journal._sqlite_file import (
    BUSY_LIMIT_S,
    connect,
    gone,
    identity_of,
    in_thread,
    prepare,
    until_free,
)
from durable_core.journal._sqlite_listing import list_runs
from durable_core.journal._sqlite_looking import check_readable, look, may_only_be_read, not_writable
from durable_core.journal._sqlite_rows import tolerantly
from durable_core.journal._sqlite_writer import Writer
from durable_core.journal.base import Claim, Departure, Holding, Lease, Renewer, RunFilter
from durable_core.journal.paging import PAGE_ROWS, pages
from durable_core.records import ACTIVE, COMMITTED, STARTED, Reply, RunHeader, Seen, StepRecord
from durable_core.run_filter import with_text

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
    from pathlib import Path

    from durable_core.journal.chunks import ChunkLease
    from durable_core.records import Chunk

T = TypeVar("T")

FIRST_ROWS: Final = 125
NEXT: Final = "\x00"  # the first id after an id is that id and this
LAST: Final = "\U0010ffff"  # all ids that begin alike come before that beginning and this


class SqliteJournal(SqliteChunks):
    """A journal in one file, shared by any number of processes of one machine.

    Args:
        path: The file; made when it isn't there. Its folder must be. One that this user may only read can be
            looked at.
        clock: What leases are judged by.
        busy_limit_s: How long to wait for a file that another program has locked.
        read_only: Whether the file is only looked at, whatever this user may.
    """

    def __init__(
        self,
        path: Path,
        clock: Clock | None = None,
        *,
        busy_limit_s: float = BUSY_LIMIT_S,
        read_only: bool = False,
    ) -> None:
        self.path = path.resolve()  # one name for the file, its log and its blobs, whatever link led here
        self.clock = clock or SystemClock()
        self.busy_limit_s = busy_limit_s
        self.read_only = read_only
        self._begin_anew()
        restart_in_children(self)

    def _begin_anew(self) -> None:
        self._ready = False
        self._file: tuple[int, int] | None = None
        self._lock = threading.RLock()  # over opening and reading; writers belong to their threads
        self._writers: dict[int, Writer] = {}
        self._renewers: WeakSet[_SqliteRenewer] = WeakSet()
        self._of_thread = threading.local()
        self._reader: sqlite3.Connection | None = None

    # ---- Headers ----

    async def create(self, header: RunHeader, lease_ms: int = 0) -> Reply[RunHeader]:
        """One INSERT, or an UPDATE of the tombstone that it follows."""
        if header.owner is None:
            held = replace(header, lease_until_ms=0)
        else:
            until_ms = self.clock.now_ms() + lease_ms
            held = replace(header, lease_until_ms=until_ms, due_at_ms=until_ms)
        return await self.write_checked(verbs.create, held, recallable=True)

    async def acquire(
        self,
        seen: RunHeader,
        claim: Claim,
        *,
        statuses: Sequence[str] = ACTIVE,
        dead_owner: str | None = None,
    ) -> Reply[RunHeader]:
        """One UPDATE."""
        return await self.write_checked(
            verbs.acquire, seen, claim, tuple(statuses), dead_owner, self.clock.now_ms(), recallable=True
        )

    async def leave(
        self, lease: Lease, departure: Departure, *, wake_count: int | None = None
    ) -> Reply[RunHeader]:
        """One UPDATE."""
        return await self.write_checked(
            verbs.leave, lease, departure, wake_count, rfc3339(self.clock.now_ms())
        )

    async def cancel(self, seen: RunHeader, ended_at: str, error: str | None = None) -> Reply[RunHeader]:
        """One UPDATE."""
        return await self.write_checked(verbs.cancel, seen, ended_at, error)

    async def wake(self, seen: RunHeader) -> Reply[RunHeader]:
        """One UPDATE."""
        return await self.write_checked(verbs.wake, seen, self.clock.now_ms())

    async def due(self, *, limit: int = 100) -> list[RunHeader]:
        """One SELECT along an index."""
        now_ms = self.clock.now_ms()
        return await self.read(lambda reader: verbs.select_due(reader.cursor(), now_ms, limit))

    async def header(self, run_id: str) -> RunHeader | None:
        """One SELECT."""
        return await self.read(lambda reader: verbs.select_header(reader.cursor(), run_id))

    async def runs(self, wanted: RunFilter) -> list[RunHeader]:
        """One SELECT along an index; with a text more, where an error's traceback has it."""
        return await with_text(wanted, self._page)

    async def _page(self, wanted: RunFilter) -> list[RunHeader]:
        query, values = list_runs(wanted)
        rows = await self.read(lambda reader: tolerantly(reader, query, values))
        return [verbs.listed(row) for row in rows]

    def open_renewer(self) -> Renewer:
        """Over a connection of its own."""
        with self._lock:
            renewer = _SqliteRenewer(self)
            self._renewers.add(renewer)
            return renewer

    # ---- Steps ----

    # Plain functions that give the writer's own coroutine: two are made per step, and each frame shows.

    def begin(
        self, record: StepRecord, seen: Seen | None, lease: Holding, *, guarded: bool = False
    ) -> Coroutine[Any, Any, Reply[StepRecord]]:
        """One INSERT or UPDATE; synced unless it is a plain STARTED."""
        full = guarded or record.status != STARTED
        return self.write(verbs.begin, (record, seen, lease), full=full, alone=self.live <= 1)

    def commit(self, record: StepRecord) -> Coroutine[Any, Any, Reply[StepRecord]]:
        """One UPDATE, synced."""
        return self.write(verbs.commit, (record,), full=True, alone=self.live <= 1)

    async def put(self, record: StepRecord, seen: Seen | None, lease: Holding) -> Reply[StepRecord]:
        """As `begin`: the record is final, so it is synced."""
        return await self.begin(record, seen, lease)

    async def step(self, run_id: str, step_id: str) -> StepRecord | None:
        """One SELECT."""
        return await self.read(lambda reader: verbs.select_step(reader.cursor(), run_id, step_id))

    async def steps(self, run_id: str) -> AsyncIterator[list[StepRecord]]:
        """One SELECT a page, in the order of the primary key."""
        async for page in pages(self._select(verbs.STEP_PAGE), (run_id,), ("",), lambda row: row[1:2]):
            yield list(map(StepRecord._make, page))

    async def replay(self, run_id: str, within: str = "") -> AsyncIterator[list[StepRecord]]:
        """The COMMITTED ones with half of their columns, which takes half the time.

        The ids of a map's items lie side by side: they are leapt over, and the pages after that begin small,
        so that few of the next map's are read in vain.
        """
        first, rows = within, FIRST_ROWS
        while True:
            page = await self.read(
                partial(_replay_page, run_id=run_id, first=first, end=f"{within}{LAST}", rows=rows)
            )
            items = next((n for n, record in enumerate(page) if "[" in record.step_id[len(within) :]), None)
            if page[:items]:
                yield page[:items]
            if items is not None:
                of_item = page[items].step_id
                first, rows = f"{of_item[: of_item.index('[', len(within)) + 1]}{LAST}", FIRST_ROWS
            elif len(page) < rows:
                return
            else:
                first, rows = f"{page[-1].step_id}{NEXT}", min(4 * rows, PAGE_ROWS)

    async def progressed(self, run_id: str, fence: int) -> bool:
        """One SELECT over the run's records."""
        return (
            await self.read(lambda reader: reader.execute(verbs.PROGRESSED, (run_id, fence)).fetchone())
            is not None
        )

    # ---- The store ----

    async def open(self, *, create: bool = True) -> None:
        """Makes or migrates the schema, once per process; of a file that may only be read, looks at it."""
        if not self._ready:
            await in_thread(self._open, create=create)

    async def close(self) -> None:
        """Closes the connections of all threads; only when nothing is being written."""
        with self._lock:
            for writer in self._writers.values():
                with writer.lock:  # a thread may be in it, waiting for a busy file
                    writer.connection.close()
            if self._reader is not None:
                self._reader.close()
        self._begin_anew()

    # SQLite remembers per process which locks it has on a file, and a child inherits the memory without the
    # locks: its connections, new ones too, would write without any, until the inherited ones are closed. They
    # can only be closed in the child if no thread was inside them at the moment of the fork.

    def hold(self) -> None:
        """Before a fork: waits until no thread is inside a connection."""
        self._lock.acquire()
        self._held = [used.lock for used in self._connections()]
        for lock in self._held:
            lock.acquire()

    def let_go(self) -> None:
        """In the parent, after it."""
        for lock in self._held:
            lock.release()
        self._lock.release()

    def restart(self) -> None:
        """In the child: closes what was inherited. The parent's own locks keep it from touching the log."""
        for used in self._connections():
            used.connection.close()
        if self._reader is not None:
            self._reader.close()
        self._begin_anew()

    def _connections(self) -> list[Writer | _SqliteRenewer]:
        return [*self._writers.values(), *self._renewers]

    def _open(self, *, create: bool = True) -> None:
        with self._lock:
            if not self._ready:
                if self.read_only or may_only_be_read(
                    self.path
                ):  # asked again at each use: rights may be given meanwhile
                    check_readable(self.path, self.busy_limit_s, create=create and not self.read_only)
                    return
                prepare(self.path, self.busy_limit_s, create=create)
                self._file = identity_of(self.path)
                self._ready = True

    def write(
        self,
        verb: Callable[..., Any],
        args: tuple[Any, ...],
        *,
        full: bool,
        alone: bool,
        recallable: bool = False,
    ) -> Coroutine[Any, Any, Any]:
        """By the writer of this thread."""
        writer: Writer | None = getattr(self._of_thread, "writer", None)
        write = writer.write if writer is not None else self._write_first
        return write(verb, args, full=full, alone=alone, recallable=recallable)

    async def _write_first(
        self, verb: Callable[..., Any], args: tuple[Any, ...], *, full: bool, alone: bool, recallable: bool
    ) -> Any:
        writer = self._of_thread.writer = await in_thread(self._writer_of, threading.get_ident())
        return await writer.write(verb, args, full=full, alone=alone, recallable=recallable)

    def _writer_of(self, thread: int) -> Writer:
        """Made for a thread, or left to it by a call that was cancelled, or by a thread that has ended."""
        self._open()
        limit_s = self.busy_limit_s
        with self._lock:
            if not self._ready:
                raise not_writable(self.path)
            if thread not in self._writers:
                made = until_free(lambda: Writer(self.path, limit_s), self.path, limit_s=limit_s)
                self._writers[thread] = made
            return self._writers[thread]

    async def write_checked(
        self,
        verb: Callable[..., Reply[T]],
        *args: Any,
        alone: bool | None = None,
        recallable: bool = False,
    ) -> Reply[T]:
        """By the writer of this thread, synced; of headers and whatever else isn't written once a step."""
        if self._ready and identity_of(self.path) != self._file:
            raise gone(self.path)  # SQLite itself would go on with what is no more there
        alone = self.live == 0 if alone is None else alone
        reply: Reply[T] = await self.write(verb, args, full=True, alone=alone, recallable=recallable)
        return reply

    async def read(self, query: Callable[[sqlite3.Connection], T]) -> T:
        """In a thread."""
        return await in_thread(self._read_now, query)

    def _read_now(self, query: Callable[[sqlite3.Connection], T]) -> T:
        self._open()
        with self._lock:
            if not self._ready:
                return look(self.path, query, self.busy_limit_s)
            if self._reader is None:
                self._reader = until_free(lambda: connect(self.path), self.path, limit_s=self.busy_limit_s)
            reader = self._reader
            return until_free(lambda: query(reader), self.path, limit_s=self.busy_limit_s)


class _SqliteRenewer(Renewer):
    def __init__(self, journal: SqliteJournal) -> None:
        self.lock = threading.Lock()  # held inside the connection, so that a fork can wait for that
        self._path, self._clock, self._limit_s = journal.path, journal.clock, journal.busy_limit_s
        self.connection = until_free(lambda: connect(journal.path), journal.path, limit_s=self._limit_s)
        self.connection.execute("PRAGMA synchronous=NORMAL")

    def renew(self, lease: Lease, lease_ms: int) -> Reply[RunHeader]:
        return until_free(partial(self._renew, lease, lease_ms), self._path, limit_s=self._limit_s)

    def _renew(self, lease: Lease, lease_ms: int) -> Reply[RunHeader]:
        with self.lock:
            return verbs.renew(self.connection.cursor(), lease, self._clock.now_ms() + lease_ms)

    def renew_chunk(self, lease: ChunkLease, lease_ms: int) -> Reply[Chunk]:
        return until_free(partial(self._renew_chunk, lease, lease_ms), self._path, limit_s=self._limit_s)

    def _renew_chunk(self, lease: ChunkLease, lease_ms: int) -> Reply[Chunk]:
        with self.lock:
            return chunks.renew(self.connection.cursor(), lease, self._clock.now_ms() + lease_ms)

    def close(self) -> None:
        with self.lock:
            self.connection.close()


def _replay_page(
    reader: sqlite3.Connection, *, run_id: str, first: str, end: str, rows: int
) -> list[StepRecord]:
    values = (run_id, first, end, rows)
    page = list(map(StepRecord._make, reader.execute(verbs.REPLAY_PAGE, values).fetchall()))
    for n, record in enumerate(page):
        if record.status != COMMITTED:
            page[n] = verbs.select_step(reader.cursor(), run_id, record.step_id) or record
    return page
