"""A run's records as they are, and back again, in the SQLite journal."""

from __future__ import annotations

import sqlite3
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from durable_core.journal._sqlite_damaged import SqliteDamage
from durable_core.journal._sqlite_rows import as_bound, escaped
from durable_core.journal._sqlite_verbs import (
    MINE,
    RUN_COLUMNS,
    columns,
    marks,
    select_header,
)
from durable_core.journal.carrying import KEYS, KINDS, Kind, Record, kind_of
from durable_core.journal.paging import STORED_ROWS, TABLES, key_in, restored_at_once, stored_pages
from durable_core.records import Reply, RunHeader, Unreadable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Sequence

    from durable_core.journal.base import Lease

_COLUMNS: Final = {kind: made._fields for kind, made in KINDS.items()}

# The texts below are put together from the names above and from constants; every value is bound.

_READ: Final = {
    kind: f"SELECT {columns(_COLUMNS[kind])} FROM {table} WHERE run_id = ?" for kind, table in TABLES.items()
}
# A record of an imported run, by whoever still holds the import; what an earlier life left gives way.
#
#   I   PRUNING, fence 3, base 2 ── restore s1 [none, or fence ≤ 2] ─▶ applied
#   P   acquire 4, PRUNING       ── I: restore s2 ─▶ refused: the header isn't I's any more
_RESTORE: Final = {
    kind: (
        f"INSERT INTO {table} ({columns(_COLUMNS[kind])}) SELECT {marks(_COLUMNS[kind])} WHERE {MINE}"
        f" ON CONFLICT (run_id, {columns(KEYS[kind])}) DO UPDATE SET"
        f" {', '.join(f'{name} = excluded.{name}' for name in _COLUMNS[kind][1:])}"
        f" WHERE {table}.fence <= ?"
    )
    for kind, table in TABLES.items()
}
_THE: Final = {
    kind: f"{_READ[kind]} AND {' AND '.join(f'{name} = ?' for name in KEYS[kind])}" for kind in TABLES
}
_RESTORE_HEADER: Final = (
    f"UPDATE runs SET {', '.join(f'{name} = ?' for name in RUN_COLUMNS)}"
    " WHERE run_id = ? AND owner = ? AND fence = ?"
)


class SqliteCarrying(SqliteDamage):
    """The verbs on whole runs."""

    def write(
        self, verb: Callable[..., Any], args: tuple[Any, ...], *, full: bool, alone: bool
    ) -> Coroutine[Any, Any, Any]:
        """Makes a write: `verb(cursor, *args)`; `alone` only if that is one statement."""
        raise NotImplementedError

    async def as_stored(self, run_id: str, kind: Kind) -> AsyncIterator[list[Record | Unreadable]]:
        """One SELECT a page, along the primary key."""

        async def select(last: tuple[object, ...] | None) -> list[tuple[Any, ...]]:
            return await self.read(partial(_page, run_id=run_id, kind=kind, last=last))

        async for page in stored_pages(kind, select):
            yield page

    async def restore(self, records: Sequence[Record], lease: Lease) -> Reply[Record]:
        """A transaction for each portion, which the header's write makes durable."""
        for portion in restored_at_once(records):
            reply: Reply[Record] = await self.write(restore, (portion, lease), full=False, alone=False)
            if not reply.ok:
                return reply
        return Reply(True)

    async def restore_header(self, header: RunHeader, lease: Lease) -> Reply[RunHeader]:
        """One UPDATE, synced."""
        return await self.write_checked(restore_header, header, lease)


def restore(cursor: sqlite3.Cursor, records: Sequence[Record], lease: Lease) -> Reply[Record]:
    """Some records of one kind, up to the first that can't be put."""
    mine = (lease.run_id, lease.owner, lease.fence)
    for record in records:
        kind = kind_of(record)
        if cursor.execute(_RESTORE[kind], (*record, *mine, lease.base_fence)).rowcount == 1:
            continue
        row = cursor.execute(_THE[kind], key_in(record)).fetchone()
        stood = KINDS[kind]._make(row) if row else None
        if stood != record:
            return Reply(False, stood)
    return Reply(True)


def restore_header(cursor: sqlite3.Cursor, header: RunHeader, lease: Lease) -> Reply[RunHeader]:
    """The header that the run really has, by whoever still holds the import.

    I   create: PRUNING, fence 3 ── (paused past its lease) ── restore_header [fence 3] ─▶ refused
    P                                  acquire 4, PRUNING
    """
    row = tuple(getattr(header, name) for name in RUN_COLUMNS)
    applied = cursor.execute(_RESTORE_HEADER, (*row, header.run_id, lease.owner, lease.fence)).rowcount == 1
    return Reply(applied, header if applied else select_header(cursor, header.run_id))


# ---- Reading what may be damaged ----


def _page(
    reader: sqlite3.Connection, *, run_id: str, kind: Kind, last: tuple[object, ...] | None
) -> list[tuple[Any, ...]]:
    order = columns(KEYS[kind])
    query, values = _READ[kind], [run_id]
    if last is not None:
        after, key = as_bound(last)
        query, values = f"{query} AND ({order}) > ({', '.join(after)})", [run_id, *key]
    query = f"{query} ORDER BY {order} LIMIT {STORED_ROWS[kind]}"
    try:
        return reader.execute(query, values).fetchall()
    except sqlite3.OperationalError as error:
        if "decode" not in str(error):
            raise
    return escaped(reader, query, values)  # one text isn't UTF-8: it would hide the others
