"""Checkpoints in the PostgreSQL database of the journal, over the connection that it keeps for plain code."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Any, Final

from durable_core.checkpoints.base import (
    CheckpointRecord,
    CheckpointStore,
    Place,
    SessionStats,
    as_text,
    from_text,
    overtaken,
)
from durable_core.checkpoints.spilled import wait_for
from durable_core.errors import JournalUnavailable
from durable_core.identity import check_id
from durable_core.journal._postgres_schema import prepare
from durable_core.journal._postgres_steps import held_by

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from durable_core.journal._postgres_pool import Pool
    from durable_core.journal.base import Holding

_TRIES: Final = 1000
_PAUSE_S: Final = 0.002
_TABLE: Final = "durable.agent_checkpoints"
_KNOWN: Final = (
    "id, session_id, agent_id, step_id, seq, format, size_bytes, state_hash, metadata, created_at, state_ref"
)
_PLACE: Final = "session_id, seq, id, state_ref, size_bytes"
# Whether it may be saved, and its place if it was. What its writer holds is read FOR SHARE: a takeover that
# isn't committed yet is waited for, and then it counts; one that comes later finds the record.
_FOREIGN: Final = "NOT EXISTS (SELECT FROM durable.runs WHERE run_id = %s)"  # its journal is in another place
_APPEND: Final = (
    f", put AS (INSERT INTO {_TABLE} ({_KNOWN}, state_blob) SELECT %s, %s, %s, %s,"
    f" (SELECT coalesce(max(seq), 0) + 1 FROM {_TABLE} WHERE session_id = %s),"
    " %s, %s, %s, %s, %s, %s, %s FROM may_save WHERE yes ON CONFLICT DO NOTHING RETURNING seq)"
    " SELECT yes, (SELECT seq FROM put) FROM may_save"
)
_MINE: Final = f"SELECT seq FROM {_TABLE} WHERE id = %s"
_OLD: Final = (
    f"SELECT {_PLACE} FROM {_TABLE} AS old WHERE session_id = %s"
    f" AND seq <= (SELECT max(seq) FROM {_TABLE} WHERE session_id = %s) - %s"
    f" AND seq < (SELECT max(seq) FROM {_TABLE} AS newer"
    " WHERE newer.session_id = old.session_id AND newer.agent_id = old.agent_id) ORDER BY seq LIMIT %s"
)
# Two that prune at once don't wait for one another, each for a row that the other holds.
_REMOVE: Final = (
    f"DELETE FROM {_TABLE} WHERE id IN (SELECT id FROM {_TABLE} WHERE id = ANY(%s) FOR UPDATE SKIP LOCKED)"
)
_STATS: Final = (
    "SELECT count(*), count(DISTINCT agent_id), coalesce(sum(size_bytes), 0)::bigint, coalesce(max(seq), 0),"
    f" min(created_at), max(created_at) FROM {_TABLE} WHERE session_id = %s"
)
# From one session's name to the next, without reading what it holds.
_SESSIONS: Final = (
    "WITH RECURSIVE session (id) AS ("
    f"(SELECT min(session_id) FROM {_TABLE} WHERE session_id > %s)"
    f" UNION ALL SELECT (SELECT min(session_id) FROM {_TABLE} WHERE session_id > session.id)"
    " FROM session WHERE session.id IS NOT NULL) SELECT id FROM session WHERE id IS NOT NULL LIMIT %s"
)


class PostgresCheckpoints(CheckpointStore):
    """Checkpoints in one schema.

    Args:
        pool: The journal's connections.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._ready = False

    # ---- Writing ----

    def append(self, record: CheckpointRecord, lease: Holding | None = None) -> int:
        """One INSERT when it succeeds.

        A   INSERT … max(seq) + 1 = 8 ── commit ─▶ 8
        B      INSERT … max(seq) + 1 = 8 ─▶ waits ─▶ A's is there: nothing ── again: 9
        C   acquire (not committed yet)
        A      INSERT … ─▶ waits for C's header ─▶ it isn't A's any more: nothing ─▶ Fenced
        """
        check_id(record.session_id, "session id")
        statement, asked = _appending(lease)
        values = (
            *asked,
            record.id, record.session_id, record.agent_id, record.step_id, record.session_id, record.format,
            record.size_bytes, record.state_hash, record.metadata, record.created_at_ms, record.state_ref,
            as_text(record),
        )  # fmt: skip
        for tried in range(_TRIES):
            ((may_save, seq),) = self._rows(statement, values)
            if seq is not None:
                return int(seq)
            if not may_save or not tried:  # an earlier try of the caller's, maybe, whose reply was lost
                found = self._rows(_MINE, (record.id,))
                if found:
                    return int(found[0][0])
            if lease is not None and not may_save:
                raise overtaken(record, lease)
            time.sleep(_PAUSE_S * random.random())
        raise JournalUnavailable(
            f"{_TRIES} others were faster to save into session {record.session_id!r}",
            remedy="Save again; or give each of so many writers a session of its own",
        )

    def remove(self, places: Sequence[Place]) -> int:
        """One DELETE."""
        self.open()
        return self._pool.run_blocking(_REMOVE, ([place.id for place in places],)).changed

    # ---- Reading ----

    def latest(self, session_id: str, agent_id: str | None = None) -> CheckpointRecord | None:
        """One SELECT along an index."""
        asked: dict[str, object] = {"session_id = %s": session_id}
        if agent_id is not None:
            asked["agent_id = %s"] = agent_id
        return self._one(asked)

    def of_step(self, session_id: str, step_id: str) -> CheckpointRecord | None:
        """One SELECT along an index."""
        return self._one({"session_id = %s": session_id, "step_id = %s": step_id})

    def at(self, session_id: str, seq: int) -> CheckpointRecord | None:
        """One SELECT along an index."""
        asked: dict[str, object] = {"session_id = %s": session_id, "seq = %s": seq}
        return self._one(asked)

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
        given = {"session_id = %s": session_id, "agent_id = %s": agent_id, "seq < %s": before}
        asked = {condition: value for condition, value in given.items() if value is not None}
        return self._records(asked, limit, with_state=with_state)

    def prunable(self, session_id: str, keep: int, *, limit: int | None = None) -> Sequence[Place]:
        """One SELECT along an index."""
        return [Place(*row) for row in self._rows(_OLD, (session_id, session_id, keep, limit))]

    def places(self, session_id: str, *, limit: int | None = None) -> Sequence[Place]:
        """One SELECT along an index."""
        query = f"SELECT {_PLACE} FROM {_TABLE} WHERE session_id = %s ORDER BY seq LIMIT %s"
        return [Place(*row) for row in self._rows(query, (session_id, limit))]

    def stats(self, session_id: str) -> SessionStats:
        """One SELECT over the session."""
        (row,) = self._rows(_STATS, (session_id,))
        return SessionStats(session_id, *row)

    def sessions(self, *, after: str = "", limit: int = 100) -> Sequence[str]:
        """One SELECT, a step along the index for each."""
        return [name for (name,) in self._rows(_SESSIONS, (after, limit))]

    # ---- The database ----

    def open(self, *, create: bool = True) -> None:
        """Makes or migrates the schema, once per process."""
        if not self._ready:
            wait_for(prepare(self._pool, create=create))
            self._ready = True

    def close(self) -> None:
        """Closes the connections; the journal connects again if it still needs one."""
        self._pool.close()
        self._ready = False

    def _rows(self, query: str, values: tuple[object, ...]) -> list[tuple[Any, ...]]:
        self.open()
        return self._pool.run_blocking(query, values).rows

    def _one(self, asked: Mapping[str, object]) -> CheckpointRecord | None:
        return next(iter(self._records(asked, 1, with_state=True)), None)

    def _records(
        self, asked: Mapping[str, object], limit: int, *, with_state: bool
    ) -> list[CheckpointRecord]:
        state = "state_blob" if with_state else "NULL::text"
        query = (
            f"SELECT {_KNOWN}, {state} FROM {_TABLE} WHERE {' AND '.join(asked)} ORDER BY seq DESC LIMIT %s"
        )
        rows = self._rows(query, (*asked.values(), limit))
        return [CheckpointRecord._make((*row[:-2], from_text(row[5], row[-1]), row[-2])) for row in rows]


def _appending(lease: Holding | None) -> tuple[str, tuple[object, ...]]:
    """The statement that appends, and what it takes before the columns of the record."""
    if lease is None:
        return f"WITH may_save AS (SELECT TRUE AS yes){_APPEND}", ()
    held, mine = held_by(lease)
    judged = f"SELECT EXISTS (SELECT FROM mine) OR {_FOREIGN} AS yes"
    first = f"WITH mine AS MATERIALIZED ({held}), may_save AS MATERIALIZED ({judged})"
    return f"{first}{_APPEND}", (*mine, lease.run_id)
