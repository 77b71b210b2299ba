"""The statements of the PostgreSQL journal on steps. As in `_postgres_headers`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from durable_core.journal._postgres_rows import STEP, marks
from durable_core.journal.chunks import ChunkLease
from durable_core.records import COMMITTED, STARTED, StepRecord

if TYPE_CHECKING:
    from durable_core.journal.base import Holding
    from durable_core.records import Seen

# The header is read FOR SHARE, and before the record is written: a takeover that isn't committed yet is
# waited for, and then it counts; one that comes later waits for this record, and then reads it.
_MINE: Final = "SELECT 1 FROM durable.runs WHERE run_id = %s AND owner = %s AND fence = %s FOR SHARE"
# So is the chunk, for a step inside one of its items.
_MY_CHUNK: Final = (
    "SELECT 1 FROM durable.chunks WHERE run_id = %s AND step_id = %s AND chunk = %s AND owner = %s"
    " AND chunk_fence = %s FOR SHARE"
)

# A start over the record as last seen, by whoever drives the run.
#
#   A   sees STARTED a1 ── begin a2 [a1] ─▶ applied
#   B   sees STARTED a1 ────────── begin b2 [a1] ─▶ waits for A's, then refused: it is a2 by now
#   C                     acquire (not committed yet)
#   A                        begin ─▶ waits for C's header, then refused: it isn't A's any more
_BEGIN_NEW: Final = (
    f" INSERT INTO durable.checkpoints ({STEP}) SELECT {marks(StepRecord._fields)} FROM mine"
    " ON CONFLICT DO NOTHING"
)
_SET: Final = StepRecord._fields[2:]
_BEGIN_ANEW: Final = (
    f" UPDATE durable.checkpoints SET ({', '.join(_SET)}) = ROW ({marks(_SET)}) FROM mine"
    " WHERE run_id = %s AND step_id = %s AND status = %s AND attempt_id = %s"
)


def held_by(lease: Holding) -> tuple[str, tuple[object, ...]]:
    """What gives a row, locked, while a run, or a chunk, is its holder's; and what it takes."""
    if isinstance(lease, ChunkLease):
        return _MY_CHUNK, (lease.run_id, lease.step_id, lease.chunk, lease.owner, lease.chunk_fence)
    return _MINE, (lease.run_id, lease.owner, lease.fence)


def beginning(record: StepRecord, seen: Seen | None, lease: Holding) -> tuple[str, tuple[object, ...]]:
    """The statement, and what it takes."""
    held, mine = held_by(lease)
    first = f"WITH mine AS MATERIALIZED ({held})"
    if seen is None:
        return first + _BEGIN_NEW, mine + record
    return first + _BEGIN_ANEW, (*mine, *record[2:], record.run_id, record.step_id, *seen)


# The outcome of an attempt, if nobody has begun the step anew.
#
#   A   begin a1 ── body ── (paused) ─────────── commit a1 ─▶ refused: the attempt is b1
#   B                          begin b1 [a1] ── body ── commit b1 ─▶ applied
_OUTCOME: Final = (
    *("status", "output_hash", "output_data", "output_ref", "codec", "committed_at", "output_size"),
    *("error", "detail", "attempts"),
)
SET_OUTCOME: Final = f"UPDATE durable.checkpoints SET ({', '.join(_OUTCOME)}) = ROW ({marks(_OUTCOME)})"
IS_ATTEMPT: Final = (
    f"run_id = %s AND step_id = %s AND status = '{STARTED}' AND attempt_id = %s AND idempotency_key = %s"
)
COMMIT: Final = f"{SET_OUTCOME} WHERE {IS_ATTEMPT}"


def outcome_of(record: StepRecord) -> tuple[object, ...]:
    """What SET_OUTCOME takes."""
    return tuple(getattr(record, name) for name in _OUTCOME)


def attempt_of(record: StepRecord) -> tuple[object, ...]:
    """What IS_ATTEMPT takes."""
    return (record.run_id, record.step_id, record.attempt_id, record.idempotency_key)


RECORD: Final = f"SELECT {STEP} FROM durable.checkpoints WHERE run_id = %s AND step_id = %s"
STEP_PAGE: Final = (
    f"SELECT {STEP} FROM durable.checkpoints WHERE run_id = %s AND step_id > %s ORDER BY step_id LIMIT %s"
)


def _replayed(column: str, instead: str) -> str:
    return f"CASE WHEN status = '{COMMITTED}' THEN {instead} ELSE {column} END"


# In the order of a StepRecord; of COMMITTED ones, constants for what replaying an output doesn't take.
_LEFT_OUT: Final = {
    **dict.fromkeys(("started_at", "error", "detail", "attempts"), "NULL"),
    **dict.fromkeys(("idempotency_key", "attempt_id"), "''"),
    **dict.fromkeys(("step_index", "attempt", "crashes"), "0"),
}
_REPLAYED: Final = ", ".join(
    _replayed(name, _LEFT_OUT[name]) if name in _LEFT_OUT else name for name in StepRecord._fields
)
# From an id on, or after one, up to an end.
REPLAY_FROM, REPLAY_AFTER = (
    f"SELECT {_REPLAYED} FROM durable.checkpoints WHERE run_id = %s AND step_id {since} %s AND step_id < %s"
    " ORDER BY step_id LIMIT %s"
    for since in (">=", ">")
)

PROGRESSED: Final = (
    "SELECT 1 FROM durable.checkpoints"
    f" WHERE run_id = %(run_id)s AND fence = %(fence)s AND status <> '{STARTED}'"
    " UNION ALL SELECT 1 FROM durable.segments WHERE run_id = %(run_id)s AND fence = %(fence)s AND items > 0"
    " LIMIT 1"
)
