"""A run's records as they are, and back again, in the PostgreSQL journal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from durable_core.journal._postgres_damaged import PostgresDamage
from durable_core.journal._postgres_headers import HEADER
from durable_core.journal._postgres_rows import RUN, RUN_COLUMNS, columns, header_of, marks, named_marks
from durable_core.journal.carrying import KEYS, KINDS, Kind, Record, kind_of
from durable_core.journal.paging import STORED_ROWS, TABLES, key_in, restored_at_once, stored_pages
from durable_core.records import Reply, RunHeader, Unreadable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from durable_core.journal._postgres_pool import Session
    from durable_core.journal.base import Lease

_READ: Final = {
    kind: f"SELECT {columns(KINDS[kind]._fields)} FROM durable.{table} WHERE run_id = %s"
    for kind, table in TABLES.items()
}
# A record of an imported run, by whoever still holds the import; what an earlier life left gives way. The
# header is read FOR SHARE, once for the records of one transaction: who prunes the import waits for them.
#
#   I   PRUNING, fence 3, base 2 ── restore s1 [none, or fence ≤ 2] ─▶ applied
#   P   acquire 4, PRUNING       ── I: restore s2 ─▶ refused: the header isn't I's any more
_HELD: Final = "SELECT 1 FROM durable.runs WHERE run_id = %s AND owner = %s AND fence = %s FOR SHARE"
_RESTORE: Final = {
    kind: (
        f"INSERT INTO durable.{table} AS old ({columns(KINDS[kind]._fields)})"
        f" VALUES ({marks(KINDS[kind]._fields)}) ON CONFLICT (run_id, {columns(KEYS[kind])})"
        f" DO UPDATE SET ({columns(KINDS[kind]._fields)})"
        f" = ROW ({', '.join(f'EXCLUDED.{name}' for name in KINDS[kind]._fields)}) WHERE old.fence <= %s"
    )
    for kind, table in TABLES.items()
}
_THE: Final = {
    kind: f"{_READ[kind]} AND {' AND '.join(f'{name} = %s' for name in KEYS[kind])}" for kind in TABLES
}
_RESTORE_HEADER: Final = (
    f"UPDATE durable.runs SET ({RUN}) = ROW ({named_marks(RUN_COLUMNS)})"
    f" WHERE run_id = %(run_id)s AND owner = %(holder)s AND fence = %(held)s RETURNING {RUN}"
)


class PostgresCarrying(PostgresDamage):
    """The verbs on whole runs."""

    async def as_stored(self, run_id: str, kind: Kind) -> AsyncIterator[list[Record | Unreadable]]:
        """One SELECT a page, along the primary key."""
        order, marked = columns(KEYS[kind]), marks(KEYS[kind])

        async def select(last: tuple[object, ...] | None) -> list[tuple[Any, ...]]:
            beyond = f" AND ({order}) > ({marked})" if last else ""
            query = f"{_READ[kind]}{beyond} ORDER BY {order} LIMIT %s"
            return (await self.pool.run(query, (run_id, *(last or ()), STORED_ROWS[kind]))).rows

        async for page in stored_pages(kind, select):
            yield page

    async def restore(self, records: Sequence[Record], lease: Lease) -> Reply[Record]:
        """A transaction for each portion."""
        for portion in restored_at_once(records):
            async with self.pool.transaction() as session:
                reply = await _restored(session, portion, lease)
            if not reply.ok:
                return reply
        return Reply(True)

    async def restore_header(self, header: RunHeader, lease: Lease) -> Reply[RunHeader]:
        """One UPDATE.

        I   create: PRUNING, fence 3 ── (paused past its lease) ── restore_header [fence 3] ─▶ refused
        P                                  acquire 4, PRUNING
        """
        values: dict[str, Any] = {name: getattr(header, name) for name in RUN_COLUMNS}
        values |= {"holder": lease.owner, "held": lease.fence}
        answer = await self.pool.run(_RESTORE_HEADER, values)
        if answer.rows:
            return Reply(True, header_of(answer.rows[0]))
        found = (await self.pool.run(HEADER, {"run_id": header.run_id})).rows
        return Reply(False, header_of(found[0]) if found else None)


async def _restored(session: Session, records: Sequence[Record], lease: Lease) -> Reply[Record]:
    """Some records of one kind, up to the first that can't be put."""
    is_mine = bool((await session.run(_HELD, (lease.run_id, lease.owner, lease.fence))).rows)
    for record in records:
        kind = kind_of(record)
        values = (*record, lease.base_fence)
        if is_mine and (await session.run(_RESTORE[kind], values)).changed == 1:
            continue
        found = (await session.run(_THE[kind], key_in(record))).rows
        stood = KINDS[kind]._make(found[0]) if found else None
        if stood != record:
            return Reply(False, stood)
    return Reply(True)
