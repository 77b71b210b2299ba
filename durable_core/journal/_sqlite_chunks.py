"""Chunks in the SQLite journal: who works on which part of a map. As in `_sqlite_verbs`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from durable_core.journal._sqlite_logs import SqliteLogs
from durable_core.journal._sqlite_verbs import STEP_COLUMNS, columns, marks, wake_active
from durable_core.journal.chunks import SHARED_MARK
from durable_core.journal.paging import pages
from durable_core.records import ACTIVE, MAP_KIND, STARTED, Chunk, Reply, StepRecord

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import AsyncIterator

    from durable_core.journal.chunks import ChunkDeparture, ChunkLease

_KEY: Final = "run_id = ? AND step_id = ? AND chunk = ?"
_CHUNK: Final = f"SELECT {columns(Chunk._fields)} FROM chunks WHERE {_KEY}"
CHUNK_PAGE: Final = (
    f"SELECT {columns(Chunk._fields)} FROM chunks"
    " WHERE run_id = ? AND step_id = ? AND chunk > ? ORDER BY chunk LIMIT ?"
)
_CLAIM_NEW = (
    f"INSERT INTO chunks ({columns(Chunk._fields)}) VALUES ({marks(Chunk._fields)}) ON CONFLICT DO NOTHING"
)
_SET = Chunk._fields[3:]
_CLAIM_ANEW = (
    f"UPDATE chunks SET ({columns(_SET)}) = ({marks(_SET)})"
    f" WHERE {_KEY} AND fence = ? AND chunk_fence = ? AND status = ?"
)
_RENEW = f"UPDATE chunks SET lease_until_ms = ? WHERE {_KEY} AND owner = ? AND chunk_fence = ?"
_LEAVE = (
    "UPDATE chunks SET status = ?, owner = CASE WHEN ? THEN owner END,"
    " owner_process = CASE WHEN ? THEN owner_process END,"
    " lease_until_ms = CASE WHEN ? THEN lease_until_ms ELSE 0 END,"
    " succeeded = ?, failed = ?, gone = ?, error = ?, updated_at = ?"
    f" WHERE {_KEY} AND owner = ? AND chunk_fence = ?"
)
# The index is named and its condition spelled as in it: or SQLite may look through all steps there are.
OPEN_MAPS: Final = (
    f"SELECT {', '.join(f'map.{name}' for name in STEP_COLUMNS)}"
    " FROM checkpoints AS map INDEXED BY checkpoints_by_open_map CROSS JOIN runs AS run USING (run_id)"
    f" WHERE map.kind = '{MAP_KIND}' AND map.status = '{STARTED}' AND instr(map.detail, ?)"
    f" AND run.status IN ({', '.join(repr(status) for status in ACTIVE)}) LIMIT ?"
)


class SqliteChunks(SqliteLogs):
    """The verbs on chunks."""

    async def claim(
        self, claimed: Chunk, seen: Chunk | None, lease_ms: int, *, dead_owner: str | None = None
    ) -> Reply[Chunk]:
        """One INSERT or UPDATE."""
        now_ms = self.clock.now_ms()
        held = claimed._replace(lease_until_ms=now_ms + lease_ms)
        return await self.write_checked(claim, held, seen, now_ms, dead_owner)

    async def leave_chunk(
        self, lease: ChunkLease, departure: ChunkDeparture, *, wakes: bool = False
    ) -> Reply[Chunk]:
        """One UPDATE, or, with the header's, two in one transaction."""
        alone = False if wakes else None
        return await self.write_checked(leave, lease, departure, wakes, self.clock.now_ms(), alone=alone)

    async def chunk(self, run_id: str, step_id: str, chunk: int) -> Chunk | None:
        """One SELECT."""
        key = (run_id, step_id, chunk)
        return await self.read(lambda reader: select_chunk(reader.cursor(), *key))

    async def chunks(self, run_id: str, step_id: str) -> AsyncIterator[list[Chunk]]:
        """One SELECT a page, along the primary key."""
        async for page in pages(self._select(CHUNK_PAGE), (run_id, step_id), (-1,), lambda row: row[2:3]):
            yield list(map(Chunk._make, page))

    async def open_maps(self, *, limit: int = 100) -> list[StepRecord]:
        """One SELECT along an index that has nothing else."""
        return await self.read(partial(select_open_maps, limit=limit))


def claim(
    cursor: sqlite3.Cursor, held: Chunk, seen: Chunk | None, now_ms: int, dead_owner: str | None
) -> Reply[Chunk]:
    """The next chunk fence, for whoever still finds the chunk as seen and free.

    A   claim 1 ── (dies)
    B                sees 1 ── claim 1→2 ─▶ applied
    C                sees 1 ───────── claim 1→2 ─▶ refused: it is 2 by now
    """
    if seen is None:
        applied = cursor.execute(_CLAIM_NEW, held).rowcount == 1
    else:
        free = "lease_until_ms < ?" if dead_owner is None else "owner = ?"
        as_seen = (*held[:3], seen.fence, seen.chunk_fence, seen.status)
        values = (*held[3:], *as_seen, now_ms if dead_owner is None else dead_owner)
        applied = cursor.execute(f"{_CLAIM_ANEW} AND {free}", values).rowcount == 1
    return Reply(True, held) if applied else Reply(False, select_chunk(cursor, *held[:3]))


def renew(cursor: sqlite3.Cursor, lease: ChunkLease, until_ms: int) -> Reply[Chunk]:
    """A longer lease, for its holder.

    A   claim ── renew ─▶ applied ── (paused) ────────── renew ─▶ refused: give way
    B                                       claim
    """
    key = (lease.run_id, lease.step_id, lease.chunk)
    applied = cursor.execute(_RENEW, (until_ms, *key, lease.owner, lease.chunk_fence)).rowcount == 1
    return Reply(applied, select_chunk(cursor, *key))


def leave(
    cursor: sqlite3.Cursor, lease: ChunkLease, departure: ChunkDeparture, wakes: bool, now_ms: int
) -> Reply[Chunk]:
    """Gives the chunk up, by its owner only; the run is woken with it.

    D   count 0 ── looks: the chunk is RUNNING ──────────── suspend [count = 0] ─▶ refused: looks again
    A                                              leave, count 1
    """
    key = (lease.run_id, lease.step_id, lease.chunk)
    values = (
        departure.status,
        *[departure.keep_lease] * 3,
        departure.succeeded,
        departure.failed,
        departure.gone,
        departure.error,
        departure.updated_at,
        *key,
        lease.owner,
        lease.chunk_fence,
    )
    applied = cursor.execute(_LEAVE, values).rowcount == 1
    if applied and wakes:
        wake_active(cursor, lease.run_id, now_ms)
    return Reply(applied, select_chunk(cursor, *key))


def select_chunk(cursor: sqlite3.Cursor, run_id: str, step_id: str, chunk: int) -> Chunk | None:
    """The chunk as it is now."""
    row = cursor.execute(_CHUNK, (run_id, step_id, chunk)).fetchone()
    return Chunk._make(row) if row else None


def select_open_maps(reader: sqlite3.Connection, *, limit: int) -> list[StepRecord]:
    """Maps that are shared and have begun, of active runs."""
    return list(map(StepRecord._make, reader.execute(OPEN_MAPS, (SHARED_MARK, limit)).fetchall()))
