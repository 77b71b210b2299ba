"""Segments, events and pruning in the SQLite journal: what lies under a header besides steps.

As in `_sqlite_verbs`: a cursor in, a reply out. A write of more than one statement runs inside a transaction
of its group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from durable_core.errors import CorruptRecord
from durable_core.journal._sqlite_verbs import (
    APPLIED,
    RUN_COLUMNS,
    columns,
    commit,
    header_of,
    marks,
    select_header,
    select_step,
    wake_active,
)
from durable_core.records import TOMBSTONE, Child, Event, Reply, RunHeader, Segment, StepRecord

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Sequence

    from durable_core.journal.base import Lease

# ---- Segments ----

_APPEND = (
    f"INSERT INTO segments ({columns(Segment._fields)}) VALUES ({marks(Segment._fields)})"
    " ON CONFLICT DO NOTHING"
)
_SEGMENT = f"SELECT {columns(Segment._fields)} FROM segments WHERE run_id = ? AND step_id = ? AND chunk = ?"
SEGMENT_PAGE: Final = f"{_SEGMENT} AND seq > ? ORDER BY seq LIMIT ?"
SEGMENT_RANGE: Final = f"{_SEGMENT} AND seq BETWEEN ? AND ? ORDER BY seq"
LAST_SEGMENT: Final = f"{_SEGMENT} ORDER BY seq DESC LIMIT 1"
_APPENDED: Final[Reply[Segment]] = Reply(True)


def append(cursor: sqlite3.Cursor, segment: Segment) -> Reply[Segment]:
    """A segment at a free place of its chunk's log.

    A   (paused) ─────────────────────────── append 1 ─▶ refused: B's claim is there
    B   append 1, empty ─▶ applied ── reads 0
    """
    if cursor.execute(_APPEND, segment).rowcount == 1:
        return _APPENDED
    row = cursor.execute(f"{_SEGMENT} AND seq = ?", (*segment[:4],)).fetchone()
    return Reply(False, Segment._make(row) if row else None)


# ---- Events ----

_SEND = f"INSERT INTO events ({columns(Event._fields)}) SELECT {marks(Event._fields)}"
_NO_HEADER = "NOT EXISTS (SELECT 1 FROM runs WHERE run_id = ?)"
_SAME_LIFE = "EXISTS (SELECT 1 FROM runs WHERE run_id = ? AND base_fence = ? AND (status = ?) = ?)"
_EVENT = f"SELECT {columns(Event._fields)} FROM events WHERE run_id = ? AND name = ? AND seq = ?"
_EVENTS = f"SELECT {columns(Event._fields)} FROM events WHERE run_id = ?"
EVENT_PAGE: Final = f"{_EVENTS} AND (name, seq) > (?, ?) ORDER BY name, seq LIMIT ?"
EVENTS_OF_NAME: Final = f"{_EVENTS} AND name = ? AND seq > ? ORDER BY seq LIMIT ?"
_TAKE = (
    "UPDATE events SET taken_by = ? WHERE run_id = ? AND name = ? AND seq = ? AND taken_by IS NULL"
    " AND EXISTS (SELECT 1 FROM checkpoints WHERE run_id = ? AND step_id = ? AND status = 'STARTED'"
    " AND attempt_id = ? AND idempotency_key = ?)"
)


def send(cursor: sqlite3.Cursor, event: Event, seen: RunHeader | None, now_ms: int) -> Reply[Event]:
    """An event at a free place, to the life of the run that its sender saw; the run is woken with it.

    S   header: life 1 ── send ─▶ applied, and the count is one more
    T   header: life 1 ─────────── (the run is pruned, and its id begun anew) ── send ─▶ refused: life 2
    """
    if seen is None:
        life: tuple[object, ...] = (event.run_id,)
        query = f"{_SEND} WHERE {_NO_HEADER} ON CONFLICT DO NOTHING"
    else:
        life = (event.run_id, seen.base_fence, TOMBSTONE, seen.status == TOMBSTONE)
        query = f"{_SEND} WHERE {_SAME_LIFE} ON CONFLICT DO NOTHING"
    if cursor.execute(query, (*event, *life)).rowcount == 1:
        wake_active(cursor, event.run_id, now_ms)
        return Reply(True, event)
    row = cursor.execute(_EVENT, (event.run_id, event.name, event.seq)).fetchone()
    return Reply(False, Event._make(row) if row else None)


def take(cursor: sqlite3.Cursor, event: Event, outcome: StepRecord) -> Reply[StepRecord]:
    """An event for one waiting step, with that step's outcome.

    A   STARTED a1 ── take 0 ─▶ applied: taken and COMMITTED
    B   (another branch) STARTED b1 ── take 0 ─▶ refused, its record as it was: the next event
    """
    step = (outcome.run_id, outcome.step_id, outcome.attempt_id, outcome.idempotency_key)
    values = (outcome.attempt_id, event.run_id, event.name, event.seq, *step)
    if cursor.execute(_TAKE, values).rowcount == 1:
        commit(cursor, outcome)
        return APPLIED
    return Reply(False, select_step(cursor, outcome.run_id, outcome.step_id))


# ---- Pruning ----

# Each kind has the same columns as `Child`, so that one query serves them all.
_CHILDREN = {
    "step": "SELECT 'step', step_id, 0, 0, fence, output_ref, output_size FROM checkpoints",
    "segment": "SELECT 'segment', step_id, chunk, seq, fence, refs, size FROM segments",
    "event": "SELECT 'event', name, 0, seq, fence, ref, size FROM events",
    "chunk": "SELECT 'chunk', step_id, chunk, 0, fence, NULL, 0 FROM chunks",
}
_AFTER = {
    "step": ("(step_id) > (?)", "step_id"),
    "segment": ("(step_id, chunk, seq) > (?, ?, ?)", "step_id, chunk, seq"),
    "event": ("(name, seq) > (?, ?)", "name, seq"),
    "chunk": ("(step_id, chunk) > (?, ?)", "step_id, chunk"),
}
DELETE: Final = {
    "step": "DELETE FROM checkpoints WHERE run_id = ? AND step_id = ? AND fence <= ?",
    "segment": "DELETE FROM segments WHERE (run_id, step_id, chunk, seq) = (?, ?, ?, ?) AND fence <= ?",
    "event": "DELETE FROM events WHERE run_id = ? AND name = ? AND seq = ? AND fence <= ?",
    "chunk": "DELETE FROM chunks WHERE run_id = ? AND step_id = ? AND chunk = ? AND fence <= ?",
}
KINDS: Final = tuple(_CHILDREN)
_BEFORE_ALL: Final = Child("", "", -1, -1, 0)


def child_query(kind: str) -> str:
    """The query for a page of children: after a key, up to a limit."""
    after, order = _AFTER[kind]
    return f"{_CHILDREN[kind]} WHERE run_id = ? AND {after} ORDER BY {order} LIMIT ?"


def child_page(cursor: sqlite3.Cursor, run_id: str, kind: str, last: Child | None, limit: int) -> list[Child]:
    """The next children of a kind after the last one that was given."""
    key = _key(kind, last or _BEFORE_ALL)
    rows = cursor.execute(child_query(kind), (run_id, *key, limit)).fetchall()
    for row in rows:
        if type(row[4]) is not int:
            raise CorruptRecord(f"the fence of its {kind} {row[1]!r:.100} is no number", run_id=run_id)
    return [Child._make((*row[:5], _refs(run_id, row), row[6] if type(row[6]) is int else 0)) for row in rows]


def _refs(run_id: str, row: tuple[Any, ...]) -> tuple[str, ...]:
    kind, name, chunk, seq, fence, stored, _ = row
    if kind == "segment":
        return Segment(run_id, name, chunk, seq, "", fence, refs=stored).blob_refs()
    return () if stored is None else (stored,)


def delete(
    cursor: sqlite3.Cursor, run_id: str, kind: str, children: Sequence[Child], fence: int
) -> Reply[None]:
    """Records of ended runs, unless a later life of the id has put them.

    P   lists s1 (fence 1) ────────────────────────── delete s1 [fence ≤ 2] ─▶ stays
    A                        (id begun anew) begin s1: fence 3
    """
    cursor.executemany(DELETE[kind], [(run_id, *_key(kind, child), fence) for child in children])
    return Reply(True)


def _key(kind: str, child: Child) -> tuple[object, ...]:
    return {
        "step": (child.name,),
        "segment": (child.name, child.chunk, child.seq),
        "event": (child.name, child.seq),
        "chunk": (child.name, child.chunk),
    }[kind]


_ZEROED: Final = ("wake_count", "crashes", "idle_drives", "lease_until_ms", "due_at_ms")
_KEPT: Final = ("run_id", "workflow", "fence", "created_at", "ended_at")
_CHANGED: Final = ("status", "base_fence", "updated_at", "input_hash")
_BURY = ", ".join(
    (
        f"UPDATE runs SET status = '{TOMBSTONE}', base_fence = fence, updated_at = ?, input_hash = ''",
        *(f"{name} = 0" for name in _ZEROED),
        *(f"{name} = NULL" for name in RUN_COLUMNS if name not in (*_ZEROED, *_KEPT, *_CHANGED)),
    )
)
# The indexes are named, because SQLite prefers the one by status, and reads all tombstones.
TOMBSTONES: Final = (
    f"SELECT {columns(RUN_COLUMNS)} FROM runs INDEXED BY runs_by_burial"
    f" WHERE status = '{TOMBSTONE}' AND updated_at < ? AND expires_at_s IS NULL"
    " ORDER BY updated_at, run_id LIMIT ?"
)
_EXPIRE = (
    f"UPDATE runs SET expires_at_s = ? WHERE run_id = ? AND status = '{TOMBSTONE}' AND fence = ?"
    " AND expires_at_s IS NULL"
)
PURGE: Final = (
    "DELETE FROM runs WHERE run_id IN (SELECT run_id FROM runs INDEXED BY runs_by_end"
    f" WHERE status = '{TOMBSTONE}' AND expires_at_s <= ? LIMIT ?)"
)


def bury(cursor: sqlite3.Cursor, lease: Lease, at: str) -> Reply[RunHeader]:
    """The tombstone in place of the header, by the pruner that acquired it.

    P   acquire 2, PRUNING ── (paused) ────────────────────── bury [fence 2] ─▶ refused
    Q                           acquire 3, PRUNING ── bury [fence 3] ─▶ applied
    """
    query = f"{_BURY} WHERE run_id = ? AND owner = ? AND fence = ?"
    applied = cursor.execute(query, (at, lease.run_id, lease.owner, lease.fence)).rowcount == 1
    return Reply(applied, select_header(cursor, lease.run_id))


def select_tombstones(cursor: sqlite3.Cursor, before: str, limit: int) -> list[RunHeader]:
    """Tombstones without an end."""
    return [header_of(row) for row in cursor.execute(TOMBSTONES, (before, limit)).fetchall()]


def expire(cursor: sqlite3.Cursor, seen: RunHeader, expires_at_s: int) -> Reply[RunHeader]:
    """An end for a tombstone that is still the one that was seen.

    P   finds nothing under fence 2 ──────────────────── expire [TOMBSTONE, fence 2] ─▶ refused: it lives
    A                                  create: fence 3
    Q   finds nothing, too ── expire ─▶ applied, unless it lives: of two, one gives the end
    """
    applied = cursor.execute(_EXPIRE, (expires_at_s, seen.run_id, seen.fence)).rowcount == 1
    return Reply(applied, select_header(cursor, seen.run_id))


def purge(cursor: sqlite3.Cursor, now_s: int, limit: int) -> Reply[int]:
    """Some tombstones whose end has come."""
    return Reply(True, cursor.execute(PURGE, (now_s, limit)).rowcount)
