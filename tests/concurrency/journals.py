"""What simulated processes share: rows in memory, with the conditions of either kind of store, or a file."""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Coroutine, Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, Final, Generic, ParamSpec, Protocol, TypeVar

from typing_extensions import override

from durable_core.journal.base import Journal
from durable_core.journal.memory import MemoryJournal
from durable_core.journal.sqlite import SqliteJournal
from durable_core.records import Chunk, Event, RunHeader, Segment, StepRecord
from durable_core.testing.fake_clock import FakeClock
from durable_core.testing.forwarding_journal import ForwardingJournal
from tests.concurrency.clocks import Connection

K = TypeVar("K")
P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

IN_MEMORY_FILES: Final = Path("/dev/shm")  # noqa: S108 - a folder is made in it, where there is one: syncing costs nothing


class Rows(Protocol):
    """All that a journal knows, and a process's way to it."""

    @property
    def headers(self) -> MutableMapping[str, RunHeader]: ...
    @property
    def records(self) -> MutableMapping[tuple[str, str], StepRecord]: ...
    @property
    def logs(self) -> MutableMapping[tuple[str, str, int, int], Segment]: ...
    @property
    def letters(self) -> MutableMapping[tuple[str, str, int], Event]: ...
    @property
    def claims(self) -> MutableMapping[tuple[str, str, int], Chunk]: ...

    def connect(self, name: str, own: FakeClock) -> tuple[Journal, FakeClock]:
        """A journal whose calls don't wait, and the clock that its leases go by, for a process."""
        ...


class Kind(Protocol):
    """A kind of journal.

    Attributes:
        name: For people, and for `--on`.
    """

    @property
    def name(self) -> str: ...

    def empty(self, clock: FakeClock) -> Rows:
        """Without any rows, and with this clock of its own if it has one."""
        ...


# ---- In memory ----


class InMemory:
    """A dict, with the conditions of the SQL stores, or of DynamoDB."""

    def __init__(self, name: str, *, sql: bool) -> None:
        self.name, self.sql = name, sql

    def empty(self, clock: FakeClock) -> Rows:
        return _MemoryRows(clock, checks_header=self.sql)


class _MemoryRows(MemoryJournal):
    def connect(self, name: str, own: FakeClock) -> tuple[Journal, FakeClock]:
        connection = Connection(self, own, goes_by_own=not self.checks_header)
        return connection, connection.clock


SQL: Final = InMemory("sql", sql=True)
DYNAMODB: Final = InMemory("dynamodb", sql=False)


# ---- In a SQLite file ----


class InSqlite:
    """A file that is emptied for each execution; each process has connections of its own to it."""

    name = "sqlite"

    def __init__(self, path: Path, loop: asyncio.AbstractEventLoop) -> None:
        self._path, self._loop = path, loop
        self._journals: dict[str, SqliteJournal] = {}
        self.journal("", FakeClock())  # makes the file
        self._rows = _SqliteRows(self)

    def empty(self, clock: FakeClock) -> Rows:
        self._rows.clear()
        return self._rows

    def journal(self, name: str, own: FakeClock) -> Journal:
        """Of a process of that name; it has that of the execution before, with a clock of this one."""
        if name not in self._journals:
            self._journals[name] = SqliteJournal(self._path, own)
            self.wait_for(self._journals[name].open())
        self._journals[name].clock = own
        return _Prompt(self._journals[name], self.wait_for)

    def wait_for(self, call: Coroutine[Any, Any, T]) -> T:
        """Runs a call to its end on the event loop of the journals."""
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()

    def observer(self) -> sqlite3.Connection:
        """A connection to look at the rows by."""
        return sqlite3.connect(self._path, isolation_level=None)

    def close(self) -> None:
        self._rows.close()
        for journal in self._journals.values():
            self.wait_for(journal.close())


class _Prompt(ForwardingJournal):
    """A journal whose coroutines are done at their first step: the work is done on another event loop."""

    def __init__(self, inner: Journal, wait_for: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        super().__init__(inner)
        self._wait_for = wait_for

    @override
    async def ask(self, call: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **options: P.kwargs) -> T:
        reply: T = self._wait_for(super().ask(call, *args, **options))
        return reply


class _SqliteRows:
    """The rows of the file, read again whenever somebody has written."""

    def __init__(self, kind: InSqlite) -> None:
        self._kind = kind
        self._observer = kind.observer()
        self._version: object = None
        columns = tuple(field.name for field in fields(RunHeader))
        self.headers = _Table[str, RunHeader](self, "runs", columns, 1, lambda row: RunHeader(*row))
        self.records = _Table[tuple[str, str], StepRecord](
            self, "checkpoints", StepRecord._fields, 2, StepRecord._make
        )
        self.logs = _Table[tuple[str, str, int, int], Segment](
            self, "segments", Segment._fields, 4, Segment._make
        )
        self.letters = _Table[tuple[str, str, int], Event](self, "events", Event._fields, 3, Event._make)
        self.claims = _Table[tuple[str, str, int], Chunk](self, "chunks", Chunk._fields, 3, Chunk._make)

    @property
    def _tables(self) -> tuple[_Table[Any, Any], ...]:
        return self.headers, self.records, self.logs, self.letters, self.claims

    def connect(self, name: str, own: FakeClock) -> tuple[Journal, FakeClock]:
        return self._kind.journal(name, own), own

    def clear(self) -> None:
        for table in self._tables:
            self.execute(table.clearing)

    def execute(self, statement: str, values: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        """Writes by our own hand."""
        self._version = None
        return self._observer.execute(statement, values).fetchall()

    def look(self) -> None:
        """Brings the tables up to date."""
        (version,) = self._observer.execute("PRAGMA data_version").fetchone()
        if version != self._version:
            for table in self._tables:
                table.read(self._observer.execute(table.query).fetchall())
            self._version = version

    def close(self) -> None:
        self._observer.close()


class _Table(MutableMapping[K, R], Generic[K, R]):
    """A table as a dict by its key, the first columns of it."""

    def __init__(
        self,
        rows: _SqliteRows,
        name: str,
        columns: tuple[str, ...],
        key_columns: int,
        made: Callable[[tuple[Any, ...]], R],
    ) -> None:
        named, key, marks = (
            ", ".join(columns),
            ", ".join(columns[:key_columns]),
            ", ".join("?" * len(columns)),
        )
        self.query = f"SELECT {named} FROM {name} ORDER BY {key}"  # noqa: S608 - names of ours
        self.clearing = f"DELETE FROM {name}"  # noqa: S608
        self._putting = f"INSERT OR REPLACE INTO {name} ({named}) VALUES ({marks})"  # noqa: S608
        self._rows, self._columns, self._key_columns, self._made = rows, columns, key_columns, made
        self._known: dict[K, R] = {}

    def read(self, found: list[tuple[Any, ...]]) -> None:
        width = self._key_columns
        self._known = {row[0] if width == 1 else row[:width]: self._made(row) for row in found}

    def _now(self) -> dict[K, R]:
        self._rows.look()
        return self._known

    def __getitem__(self, key: K) -> R:
        return self._now()[key]

    def __iter__(self) -> Iterator[K]:
        return iter(self._now())

    def __len__(self) -> int:
        return len(self._now())

    def __setitem__(self, key: K, row: R) -> None:
        self._rows.execute(self._putting, tuple(getattr(row, name) for name in self._columns))

    def __delitem__(self, key: K) -> None:
        raise NotImplementedError("nobody takes single rows away")


@contextmanager
def sqlite_file() -> Iterator[InSqlite]:
    """A file for as long as this lasts."""
    place = IN_MEMORY_FILES if IN_MEMORY_FILES.is_dir() else None
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="journals")
    thread.start()
    try:
        with tempfile.TemporaryDirectory(dir=place) as folder:
            kind = InSqlite(Path(folder) / "runs.db", loop)
            try:
                yield kind
            finally:
                kind.close()
    finally:
        asyncio.run_coroutine_threadsafe(loop.shutdown_default_executor(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@contextmanager
def kinds(*names: str) -> Iterator[list[Kind]]:
    """Those of these names, in their order."""
    if "sqlite" not in names:
        yield [{"sql": SQL, "dynamodb": DYNAMODB}[name] for name in names]
        return
    with sqlite_file() as kind:
        yield [{"sql": SQL, "dynamodb": DYNAMODB, "sqlite": kind}[name] for name in names]
