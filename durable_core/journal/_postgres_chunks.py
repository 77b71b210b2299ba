"""Chunks in the PostgreSQL journal: who works on which part of a map. As in `_postgres_headers`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from durable_core.journal._postgres_headers import IS_ACTIVE, NOW, WOKEN
from durable_core.journal._postgres_logs import PostgresLogs
from durable_core.journal._postgres_rows import CHUNK, named_marks
from durable_core.journal.chunks import SHARED_MARK
from durable_core.journal.paging import pages
from durable_core.records import ACTIVE, MAP_KIND, STARTED, Chunk, Reply, StepRecord

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from durable_core.journal.chunks import ChunkDeparture, ChunkLease

_KEY: Final = "run_id = %(run_id)s AND step_id = %(step_id)s AND chunk = %(chunk)s"
THE_CHUNK: Final = f"SELECT {CHUNK} FROM durable.chunks WHERE {_KEY}"
CHUNK_PAGE: Final = (
    f"SELECT {CHUNK} FROM durable.chunks WHERE run_id = %s AND step_id = %s AND chunk > %s"
    " ORDER BY chunk LIMIT %s"
)

# The next chunk fence, for whoever still finds the chunk as seen and free.
#
#   A   claim 1 ── (dies)
#   B                sees 1 ── claim 1→2 ─▶ applied
#   C                sees 1 ───────── claim 1→2 ─▶ waits for B's, then refused: it is 2 by now
_GIVEN: Final = tuple(name for name in Chunk._fields if name != "lease_until_ms")
CLAIM_NEW: Final = (
    f"INSERT INTO durable.chunks ({', '.join(_GIVEN)}, lease_until_ms)"
    f" VALUES ({named_marks(_GIVEN)}, {NOW} + %(lease_ms)s::bigint) ON CONFLICT DO NOTHING"
    f" RETURNING {CHUNK}"
)
CLAIM_ANEW: Final = (
    f"UPDATE durable.chunks SET {', '.join(f'{name} = %({name})s' for name in _GIVEN[3:])},"
    f" lease_until_ms = {NOW} + %(lease_ms)s::bigint WHERE {_KEY}"
    " AND fence = %(seen_fence)s AND chunk_fence = %(seen_chunk_fence)s AND status = %(seen_status)s"
    f" AND CASE WHEN %(dead_owner)s::text IS NULL THEN lease_until_ms < {NOW} ELSE owner = %(dead_owner)s END"
    f" RETURNING {CHUNK}"
)

# A longer lease, for its holder.
#
#   A   claim ── renew ─▶ applied ── (paused) ────────── renew ─▶ refused: give way
#   B                                       claim
RENEW: Final = (
    f"UPDATE durable.chunks SET lease_until_ms = {NOW} + %(lease_ms)s::bigint"
    f" WHERE {_KEY} AND owner = %(owner)s AND chunk_fence = %(chunk_fence)s RETURNING {CHUNK}"
)

# Gives the chunk up, by its owner only; the run is woken in the same statement.
#
#   D   count 0 ── looks: the chunk is RUNNING ──────────── suspend [count = 0] ─▶ waits, then refused
#   A                                              leave, count 1
LEAVE: Final = (
    "WITH gone AS (UPDATE durable.chunks SET status = %(status)s,"
    " owner = CASE WHEN %(keep_lease)s THEN owner END,"
    " owner_process = CASE WHEN %(keep_lease)s THEN owner_process END,"
    " lease_until_ms = CASE WHEN %(keep_lease)s THEN lease_until_ms ELSE 0 END, succeeded = %(succeeded)s,"
    " failed = %(failed)s, gone = %(gone)s, error = %(error)s, updated_at = %(updated_at)s"
    f" WHERE {_KEY} AND owner = %(owner)s AND chunk_fence = %(chunk_fence)s RETURNING {CHUNK}),"
    f" woken AS ({WOKEN} FROM (SELECT 1 FROM gone) AS one"
    f" WHERE %(wakes)s AND run_id = %(run_id)s AND {IS_ACTIVE})"
    f" SELECT {CHUNK} FROM gone"
)

OPEN_MAPS: Final = (
    f"SELECT {', '.join(f'map.{name}' for name in StepRecord._fields)}"
    " FROM durable.checkpoints AS map JOIN durable.runs AS run USING (run_id)"
    f" WHERE map.kind = '{MAP_KIND}' AND map.status = '{STARTED}' AND position(%s in map.detail) > 0"
    f" AND run.status IN ({', '.join(repr(status) for status in ACTIVE)}) LIMIT %s"
)


def renewal(lease: ChunkLease, lease_ms: int, now: int | None) -> dict[str, Any]:
    """What RENEW takes."""
    return {**lease._asdict(), "lease_ms": lease_ms, "now": now}


class PostgresChunks(PostgresLogs):
    """The verbs on chunks."""

    async def claim(
        self, claimed: Chunk, seen: Chunk | None, lease_ms: int, *, dead_owner: str | None = None
    ) -> Reply[Chunk]:
        """One INSERT or UPDATE."""
        values = {**claimed._asdict(), "lease_ms": lease_ms, "now": self._now()}
        if seen is None:
            return await self._write_chunk(CLAIM_NEW, values)
        as_seen = {
            "seen_fence": seen.fence, "seen_chunk_fence": seen.chunk_fence, "seen_status": seen.status,
            "dead_owner": dead_owner,
        }  # fmt: skip
        return await self._write_chunk(CLAIM_ANEW, values | as_seen)

    async def leave_chunk(
        self, lease: ChunkLease, departure: ChunkDeparture, *, wakes: bool = False
    ) -> Reply[Chunk]:
        """One statement."""
        names = departure.__dataclass_fields__
        values = {name: getattr(departure, name) for name in names} | lease._asdict()
        return await self._write_chunk(LEAVE, values | {"wakes": wakes, "now": self._now()})

    async def chunk(self, run_id: str, step_id: str, chunk: int) -> Chunk | None:
        """One SELECT."""
        return await self._chunk({"run_id": run_id, "step_id": step_id, "chunk": chunk})

    async def chunks(self, run_id: str, step_id: str) -> AsyncIterator[list[Chunk]]:
        """One SELECT a page, along the primary key."""
        async for page in pages(self._select(CHUNK_PAGE), (run_id, step_id), (-1,), lambda row: row[2:3]):
            yield list(map(Chunk._make, page))

    async def open_maps(self, *, limit: int = 100) -> list[StepRecord]:
        """One SELECT along an index that has nothing else."""
        return list(map(StepRecord._make, (await self.pool.run(OPEN_MAPS, (SHARED_MARK, limit))).rows))

    async def _write_chunk(self, query: str, values: dict[str, Any]) -> Reply[Chunk]:
        answer = await self.pool.run(query, values)
        if answer.rows:
            return Reply(True, Chunk._make(answer.rows[0]))
        return Reply(
            False, await self._chunk({name: values[name] for name in ("run_id", "step_id", "chunk")})
        )

    async def _chunk(self, key: dict[str, Any]) -> Chunk | None:
        found = (await self.pool.run(THE_CHUNK, key)).rows
        return Chunk._make(found[0]) if found else None
