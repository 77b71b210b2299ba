"""The conditional writes and the reads of the SQLite journal, one function each: a cursor in, a reply out.

A write is one statement when it succeeds, so it is atomic by itself or inside a group's transaction. A
refusal is followed by one read of what stood in the way.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from durable_core.clock import rfc3339
from durable_core.errors import CorruptRecord
from durable_core.journal._sqlite_rows import tolerantly
from durable_core.journal.chunks import ChunkLease
from durable_core.journal.damaged import HEADER_TYPES, mending
from durable_core.records import (
    ACTIVE,
    CANCELLED,
    CORRUPT,
    ENDED,
    PENDING,
    PRUNING,
    RUN_STATUSES,
    RUNNING,
    SUSPENDED,
    TOMBSTONE,
    Reply,
    RunHeader,
    Seen,
    StepRecord,
)

if TYPE_CHECKING:
    import sqlite3

    from durable_core.journal.base import Claim, Departure, Holding, Lease

RUN_COLUMNS: Final = tuple(HEADER_TYPES)
STEP_COLUMNS: Final = StepRecord._fields
APPLIED: Final[Reply[StepRecord]] = Reply(True)


def columns(names: tuple[str, ...]) -> str:
    return ", ".join(names)


def marks(names: tuple[str, ...]) -> str:
    return ", ".join("?" * len(names))


# The texts below are put together from the column names above and from constants; every value is bound.

# ---- Headers ----

_CREATE = f"INSERT INTO runs ({columns(RUN_COLUMNS)}) VALUES ({marks(RUN_COLUMNS)}) ON CONFLICT DO NOTHING"
_RECREATE = (
    f"UPDATE runs SET {', '.join(f'{name} = ?' for name in RUN_COLUMNS)}"
    f" WHERE run_id = ? AND status = '{TOMBSTONE}' AND fence = ?"
)
HEADER: Final = f"SELECT {columns(RUN_COLUMNS)} FROM runs WHERE run_id = ?"


def create(cursor: sqlite3.Cursor, header: RunHeader) -> Reply[RunHeader]:
    """A header where there is none, or over the tombstone that it goes on from.

    A   create ─▶ applied
    B         create ─▶ refused by A's header; A, whose reply was lost, finds its own owner in it
    """
    row = tuple(getattr(header, name) for name in RUN_COLUMNS)
    if cursor.execute(_CREATE, row).rowcount == 1:
        return Reply(True, header)
    if (
        header.base_fence
        and cursor.execute(_RECREATE, (*row, header.run_id, header.base_fence)).rowcount == 1
    ):
        return Reply(True, header)
    return Reply(False, select_header(cursor, header.run_id))


def acquire(
    cursor: sqlite3.Cursor,
    seen: RunHeader,
    claim: Claim,
    statuses: tuple[str, ...],
    dead_owner: str | None,
    now_ms: int,
) -> Reply[RunHeader]:
    """The next fence, for whoever still finds the fence as seen and the run free.

    A   (dies)
    B         header: fence 1 ── acquire 1→2 ─▶ applied
    C         header: fence 1 ────────── acquire 1→2 ─▶ refused: the fence is 2 by now
    """
    free = "lease_until_ms < ?" if dead_owner is None else "owner = ?"
    statement = (
        "UPDATE runs SET status = ?, owner = ?, owner_process = ?, fence = fence + 1, lease_until_ms = ?,"
        " due_at_ms = ?, crashes = ?, gone = ?, fingerprint = coalesce(?, fingerprint), updated_at = ?,"
        f" ended_at = CASE ? WHEN '{PRUNING}' THEN ended_at END"
        f" WHERE run_id = ? AND fence = ? AND status IN ({marks(statuses)}) AND {free}"
    )
    values = (
        claim.status,
        claim.owner,
        claim.owner_process,
        now_ms + claim.lease_ms,
        now_ms + claim.lease_ms,
        claim.crashes,
        claim.gone,
        claim.fingerprint,
        rfc3339(now_ms),
        claim.status,
        seen.run_id,
        seen.fence,
        *statuses,
        now_ms if dead_owner is None else dead_owner,
    )
    applied = cursor.execute(statement, values).rowcount == 1
    return Reply(applied, select_header(cursor, seen.run_id))


_RENEW = "UPDATE runs SET lease_until_ms = ?, due_at_ms = ? WHERE run_id = ? AND owner = ? AND fence = ?"


def renew(cursor: sqlite3.Cursor, lease: Lease, until_ms: int) -> Reply[RunHeader]:
    """A longer lease, for its holder; the header tells of wake-ups and of who took over.

    A   acquire ── renew ─▶ applied ── (paused) ────────── renew ─▶ refused: give way
    B                                       acquire
    """
    values = (until_ms, until_ms, lease.run_id, lease.owner, lease.fence)
    applied = cursor.execute(_RENEW, values).rowcount == 1
    return Reply(applied, select_header(cursor, lease.run_id))


_LEAVE = (
    "UPDATE runs SET status = ?, owner = CASE WHEN ? THEN owner END,"
    " owner_process = CASE WHEN ? THEN owner_process END,"
    " lease_until_ms = CASE WHEN ? THEN lease_until_ms ELSE 0 END, due_at_ms = ?,"
    " output_hash = ?, output_data = ?, output_ref = ?, output_codec = ?, output_size = ?,"
    " error = CASE WHEN ? THEN error ELSE ? END, counts = ?, idle_drives = ?,"
    f" updated_at = ?, ended_at = CASE ? WHEN '{PRUNING}' THEN ended_at ELSE ? END"
    " WHERE run_id = ? AND owner = ? AND fence = ?"
)


def leave(
    cursor: sqlite3.Cursor, lease: Lease, departure: Departure, wake_count: int | None, now: str
) -> Reply[RunHeader]:
    """Gives the run up: released, suspended or ended; only by its owner, and only if nothing woke it
    meanwhile.

    A   count 0 ── looks: no event ────────────────── suspend [count = 0] ─▶ refused: look again
    S                               signal: count 1
    """
    values = (
        departure.status,
        *[departure.keep_lease] * 3,
        departure.due_at_ms,
        departure.output_hash,
        departure.output_data,
        departure.output_ref,
        departure.output_codec,
        departure.output_size,
        departure.keep_error,
        departure.error,
        departure.counts,
        departure.idle_drives,
        now,
        departure.status,
        now if departure.status in ENDED else None,
        lease.run_id,
        lease.owner,
        lease.fence,
    )
    statement = _LEAVE if wake_count is None else f"{_LEAVE} AND wake_count = ?"
    applied = cursor.execute(statement, values if wake_count is None else (*values, wake_count)).rowcount == 1
    return Reply(applied, select_header(cursor, lease.run_id))


_CANCEL = (
    f"UPDATE runs SET status = '{CANCELLED}', owner = NULL, owner_process = NULL, lease_until_ms = 0,"
    f" fence = fence + 1, error = ?, updated_at = ?, ended_at = ?"
    f" WHERE run_id = ? AND fence = ? AND status IN ({marks(ACTIVE)})"
)


def cancel(cursor: sqlite3.Cursor, seen: RunHeader, ended_at: str, error: str | None) -> Reply[RunHeader]:
    """The end of an active run by somebody else: the higher fence keeps its owner from writing more.

    A   acquire fence 1 ── begin s1 ─────────────────────── begin s2 ─▶ refused: the header isn't A's any more
    X                               cancel: fence 2
    """
    values = (error, ended_at, ended_at, seen.run_id, seen.fence, *ACTIVE)
    applied = cursor.execute(_CANCEL, values).rowcount == 1
    return Reply(applied, select_header(cursor, seen.run_id))


_WAKE = (
    "UPDATE runs SET wake_count = wake_count + 1,"
    f" due_at_ms = CASE WHEN status = '{SUSPENDED}' THEN ? ELSE due_at_ms END,"
    f" status = CASE WHEN status = '{SUSPENDED}' THEN '{PENDING}' ELSE status END WHERE run_id = ?"
)
# The index is named, or SQLite prefers the one by status, and sorts; and the statuses are spelled as in it.
DUE: Final = (
    f"SELECT {columns(RUN_COLUMNS)} FROM runs INDEXED BY runs_by_due"
    f" WHERE status IN ('{PENDING}', '{RUNNING}', '{SUSPENDED}')"
    " AND due_at_ms <= ? AND lease_until_ms < ? ORDER BY due_at_ms, run_id LIMIT ?"
)


def wake(cursor: sqlite3.Cursor, seen: RunHeader, now_ms: int) -> Reply[RunHeader]:
    """One more in the wake count: a driver that has looked in vain looks again instead of suspending.

    A   count 0 ── looks: nothing ───────────── suspend [count = 0] ─▶ refused
    W                              wake ─▶ applied: count 1
    """
    allowed = seen.status in ACTIVE
    values = (now_ms, seen.run_id, seen.status)
    applied = allowed and cursor.execute(f"{_WAKE} AND status = ?", values).rowcount == 1
    return Reply(applied, select_header(cursor, seen.run_id))


def wake_active(cursor: sqlite3.Cursor, run_id: str, now_ms: int) -> None:
    """The same, whatever active status the run has: with the record that it is woken for."""
    cursor.execute(f"{_WAKE} AND status IN ({marks(ACTIVE)})", (now_ms, run_id, *ACTIVE))


def select_due(cursor: sqlite3.Cursor, now_ms: int, limit: int) -> list[RunHeader]:
    """Active runs that are due and under no lease; one that can't be read doesn't hide the others."""
    rows = tolerantly(cursor.connection, DUE, (now_ms, now_ms, limit))
    return [listed(row) for row in rows]


def select_header(cursor: sqlite3.Cursor, run_id: str) -> RunHeader | None:
    """The header as it is now."""
    row = cursor.execute(HEADER, (run_id,)).fetchone()
    return header_of(row) if row else None


def header_of(row: tuple[Any, ...]) -> RunHeader:
    """A header from its columns.

    Raises:
        CorruptRecord: A column doesn't hold what it should; somebody else wrote the row.
    """
    for (name, allowed), value in zip(HEADER_TYPES.items(), row, strict=True):
        if type(value) not in allowed:
            raise _corrupt(row, f"{name} is a {type(value).__name__}")
    header = RunHeader(*row)
    if header.status not in RUN_STATUSES:
        raise _corrupt(row, f"its status is {header.status!r}")
    return header


def listed(row: tuple[Any, ...]) -> RunHeader:
    """A header for a listing: one that can't be read tells why, and doesn't hide the others."""
    try:
        return header_of(row)
    except CorruptRecord as error:
        known = dict(zip(RUN_COLUMNS, row, strict=True))
        told = {"code": error.code, "type": CorruptRecord.__name__, "message": error.message}
        return RunHeader(
            run_id=str(known["run_id"]),
            workflow=str(known["workflow"]),
            status=CORRUPT,
            error=json.dumps(told),
            created_at=str(known["created_at"]),
            updated_at=str(known["updated_at"]),
        )


def _corrupt(row: tuple[Any, ...], why: str) -> CorruptRecord:
    return CorruptRecord(
        f"the run's header can't be read: {why}",
        run_id=str(row[0]),
        remedy=mending(str(row[0])),
    )


# ---- Steps ----

MINE: Final = "EXISTS (SELECT 1 FROM runs WHERE run_id = ? AND owner = ? AND fence = ?)"
_MY_CHUNK = (
    "EXISTS (SELECT 1 FROM chunks WHERE run_id = ? AND step_id = ? AND chunk = ? AND owner = ?"
    " AND chunk_fence = ?)"
)
_BEGIN_NEW = f"INSERT INTO checkpoints ({columns(STEP_COLUMNS)}) SELECT {marks(STEP_COLUMNS)} WHERE "
_BEGIN_ANEW = (
    f"UPDATE checkpoints SET ({columns(STEP_COLUMNS[2:])}) = ({marks(STEP_COLUMNS[2:])})"
    " WHERE run_id = ? AND step_id = ? AND status = ? AND attempt_id = ? AND "
)
_COMMIT = (
    "UPDATE checkpoints SET status = ?, output_hash = ?, output_data = ?, output_ref = ?, codec = ?,"
    " committed_at = ?, output_size = ?, error = ?, detail = ?, attempts = ?"
    " WHERE run_id = ? AND step_id = ? AND status = 'STARTED' AND attempt_id = ? AND idempotency_key = ?"
)
_STEP = f"SELECT {columns(STEP_COLUMNS)} FROM checkpoints WHERE run_id = ? AND step_id = ?"
STEP_PAGE: Final = (
    f"SELECT {columns(STEP_COLUMNS)} FROM checkpoints WHERE run_id = ? AND step_id > ?"
    " ORDER BY step_id LIMIT ?"
)
# In the order of a StepRecord; constants for what replaying an output doesn't take.
REPLAY_PAGE: Final = (
    "SELECT run_id, step_id, 0, status, input_hash, output_hash, output_data, output_ref, codec, NULL,"
    " committed_at, '', 0, 0, '', fence, kind, output_size, NULL, NULL, NULL"
    " FROM checkpoints WHERE run_id = ? AND step_id >= ? AND step_id < ? ORDER BY step_id LIMIT ?"
)
PROGRESSED: Final = (
    "SELECT 1 FROM checkpoints WHERE run_id = ?1 AND fence = ?2 AND status <> 'STARTED' UNION ALL"
    " SELECT 1 FROM segments WHERE run_id = ?1 AND fence = ?2 AND items > 0 LIMIT 1"
)


def held_by(lease: Holding) -> tuple[str, tuple[object, ...]]:
    """The condition that a run, or a chunk, is its holder's, and what it takes."""
    if type(lease) is ChunkLease:
        return _MY_CHUNK, (lease.run_id, lease.step_id, lease.chunk, lease.owner, lease.chunk_fence)
    return MINE, (lease.run_id, lease.owner, lease.fence)


def begin(cursor: sqlite3.Cursor, record: StepRecord, seen: Seen | None, lease: Holding) -> Reply[StepRecord]:
    """A start over the record as last seen, by whoever drives the run, or works on the chunk that it is in.

    A   sees STARTED a1 ── begin a2 [a1] ─▶ applied
    B   sees STARTED a1 ────────── begin b2 [a1] ─▶ refused: it is a2 by now
    """
    held, mine = held_by(lease)
    if seen is None:
        applied = cursor.execute(f"{_BEGIN_NEW}{held} ON CONFLICT DO NOTHING", record + mine).rowcount == 1
    else:
        key = (record.run_id, record.step_id, *seen)
        applied = cursor.execute(f"{_BEGIN_ANEW}{held}", record[2:] + key + mine).rowcount == 1
    return APPLIED if applied else Reply(False, select_step(cursor, record.run_id, record.step_id))


def commit(cursor: sqlite3.Cursor, record: StepRecord) -> Reply[StepRecord]:
    """The outcome of an attempt, if nobody has begun the step anew.

    A   begin a1 ── body ── (paused) ─────────── commit a1 ─▶ refused: the attempt is b1
    B                          begin b1 [a1] ── body ── commit b1 ─▶ applied
    """
    values = (
        record.status,
        record.output_hash,
        record.output_data,
        record.output_ref,
        record.codec,
        record.committed_at,
        record.output_size,
        record.error,
        record.detail,
        record.attempts,
        record.run_id,
        record.step_id,
        record.attempt_id,
        record.idempotency_key,
    )
    if cursor.execute(_COMMIT, values).rowcount == 1:
        return APPLIED
    return Reply(False, select_step(cursor, record.run_id, record.step_id))


def select_step(cursor: sqlite3.Cursor, run_id: str, step_id: str) -> StepRecord | None:
    """The record as it is now."""
    row = cursor.execute(_STEP, (run_id, step_id)).fetchone()
    return StepRecord._make(row) if row else None
