"""The statements of the PostgreSQL journal on segments, events and tombstones. As in `_postgres_headers`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from durable_core.journal._postgres_headers import IS_ACTIVE, WOKEN
from durable_core.journal._postgres_rows import (
    EVENT,
    RUN,
    RUN_COLUMNS,
    SEGMENT,
    marks,
    named_marks,
)
from durable_core.journal._postgres_steps import IS_ATTEMPT, SET_OUTCOME, attempt_of, outcome_of
from durable_core.records import PRUNING, TOMBSTONE, Child, Event, Segment, StepRecord

if TYPE_CHECKING:
    from collections.abc import Sequence

# ---- Segments ----

# A segment at a free place of its chunk's log.
#
#   A   (paused) ─────────────────────────── append 1 ─▶ refused: B's claim is there
#   B   append 1, empty ─▶ applied ── reads 0
APPEND: Final = (
    f"INSERT INTO durable.segments ({SEGMENT}) VALUES ({marks(Segment._fields)}) ON CONFLICT DO NOTHING"
)
_SEGMENTS: Final = f"SELECT {SEGMENT} FROM durable.segments WHERE run_id = %s AND step_id = %s AND chunk = %s"
THE_SEGMENT: Final = f"{_SEGMENTS} AND seq = %s"
SEGMENT_PAGE: Final = f"{_SEGMENTS} AND seq > %s ORDER BY seq LIMIT %s"
LAST_SEGMENT: Final = f"{_SEGMENTS} ORDER BY seq DESC LIMIT 1"
SEGMENT_RANGE: Final = f"{_SEGMENTS} AND seq BETWEEN %s AND %s ORDER BY seq"

# ---- Events ----

# An event at a free place, to the life of the run that its sender saw; the run is woken with it. The header
# is locked as its update will need it, so that two senders don't wait for each other.
#
#   S   header: life 1 ── send ─▶ applied, and the count is one more
#   T   header: life 1 ─────────── (the run is pruned, and its id begun anew) ── send ─▶ refused: life 2
#   A   count 0 ── looks: no event ── suspend [count = 0] ─▶ waits for S's, then refused: look again
SEND: Final = (
    "WITH life AS MATERIALIZED (SELECT 1 FROM durable.runs WHERE run_id = %(run_id)s"
    f" AND base_fence = %(base_fence)s AND (status = '{TOMBSTONE}') = %(buried)s FOR NO KEY UPDATE),"
    f" sent AS (INSERT INTO durable.events ({EVENT}) SELECT {named_marks(Event._fields)} FROM life"
    " ON CONFLICT DO NOTHING RETURNING 1),"
    f" woken AS ({WOKEN} FROM sent WHERE run_id = %(run_id)s AND {IS_ACTIVE})"
    " SELECT 1 FROM sent"
)

# To a run that isn't there yet. For the length of the transaction the sender holds the place of its header,
# under a mark of its own that nobody ever sees: who creates the run waits for the event.
#
#   S   holds the place ── event ── frees it ─▶ applied
#   A                   create ─▶ waits for S, then applied; its first look finds the event
#   A   create ─▶ applied
#   S             holds the place ─▶ refused: there is a header
HOLD_PLACE: Final = (
    "INSERT INTO durable.runs"
    " (run_id, workflow, input_hash, status, created_by, fence, base_fence, created_at, updated_at)"
    f" VALUES (%(run_id)s, '', '', '{PRUNING}', %(mark)s, 0, 0, '', '') ON CONFLICT DO NOTHING"
)
SEND_EARLY: Final = (
    f"INSERT INTO durable.events ({EVENT}) VALUES ({named_marks(Event._fields)}) ON CONFLICT DO NOTHING"
)
FREE_PLACE: Final = "DELETE FROM durable.runs WHERE run_id = %(run_id)s AND created_by = %(mark)s"

THE_EVENT: Final = f"SELECT {EVENT} FROM durable.events WHERE run_id = %s AND name = %s AND seq = %s"
_EVENTS: Final = f"SELECT {EVENT} FROM durable.events WHERE run_id = %s"
EVENT_PAGE: Final = f"{_EVENTS} AND (name, seq) > (%s, %s) ORDER BY name, seq LIMIT %s"
EVENTS_OF_NAME: Final = f"{_EVENTS} AND name = %s AND seq > %s ORDER BY seq LIMIT %s"

# An event for one waiting step, with that step's outcome. The step is locked first: what it requires still
# holds when its outcome is written.
#
#   A   STARTED a1 ── take 0 ─▶ applied: taken and COMMITTED
#   B   (another branch) STARTED b1 ── take 0 ─▶ waits, then refused, its record as it was: the next event
TAKE: Final = (
    f"WITH waiting AS MATERIALIZED (SELECT 1 FROM durable.checkpoints WHERE {IS_ATTEMPT} FOR NO KEY UPDATE),"
    " taken AS (UPDATE durable.events SET taken_by = %s FROM waiting"
    " WHERE run_id = %s AND name = %s AND seq = %s AND taken_by IS NULL RETURNING 1)"
    f" {SET_OUTCOME} FROM taken WHERE {IS_ATTEMPT}"
)


def taking(event: Event, outcome: StepRecord) -> tuple[object, ...]:
    """What TAKE takes."""
    attempt = attempt_of(outcome)
    return (*attempt, outcome.attempt_id, event.run_id, event.name, event.seq, *outcome_of(outcome), *attempt)


# ---- Pruning ----

_CHILDREN: Final = {
    "step": "SELECT 'step', step_id, 0, 0, fence, output_ref, output_size FROM durable.checkpoints",
    "segment": "SELECT 'segment', step_id, chunk, seq, fence, refs, size FROM durable.segments",
    "event": "SELECT 'event', name, 0, seq, fence, ref, size FROM durable.events",
    "chunk": "SELECT 'chunk', step_id, chunk, 0, fence, NULL, 0 FROM durable.chunks",
}
_AFTER: Final = {
    "step": ("step_id > %(name)s", "step_id"),
    "segment": ("(step_id, chunk, seq) > (%(name)s, %(chunk)s, %(seq)s)", "step_id, chunk, seq"),
    "event": ("(name, seq) > (%(name)s, %(seq)s)", "name, seq"),
    "chunk": ("(step_id, chunk) > (%(name)s, %(chunk)s)", "step_id, chunk"),
}
CHILD_PAGES: Final = {
    kind: f"{_CHILDREN[kind]} WHERE run_id = %(run_id)s AND {after} ORDER BY {order} LIMIT %(rows)s"
    for kind, (after, order) in _AFTER.items()
}


def child_of(run_id: str, row: tuple[Any, ...]) -> Child:
    """A child from a row of such a page.

    Raises:
        CorruptRecord: The blobs of a segment aren't a list.
    """
    kind, name, chunk, seq, fence, stored, size_bytes = row
    if kind == "segment":
        refs = Segment(run_id, name, chunk, seq, "", fence, refs=stored).blob_refs()
    else:
        refs = () if stored is None else (stored,)
    return Child(kind, name, chunk, seq, fence, refs, size_bytes or 0)


# Records of ended runs, unless a later life of the id has put them.
#
#   P   lists s1 (fence 1) ────────────────────────── delete s1 [fence ≤ 2] ─▶ stays
#   A                        (id begun anew) begin s1: fence 3
_GONE: Final = (
    "unnest(%(names)s::text[], %(chunks)s::bigint[], %(seqs)s::bigint[]) AS gone (name, chunk, seq)"
)
_UNDER: Final = f"USING {_GONE} WHERE old.run_id = %(run_id)s AND old.fence <= %(fence)s"
DELETE: Final = {
    "step": f"DELETE FROM durable.checkpoints AS old {_UNDER} AND old.step_id = gone.name",
    "segment": f"DELETE FROM durable.segments AS old {_UNDER}"
    " AND old.step_id = gone.name AND old.chunk = gone.chunk AND old.seq = gone.seq",
    "event": f"DELETE FROM durable.events AS old {_UNDER} AND old.name = gone.name AND old.seq = gone.seq",
    "chunk": f"DELETE FROM durable.chunks AS old {_UNDER}"
    " AND old.step_id = gone.name AND old.chunk = gone.chunk",
}


def deletion(run_id: str, children: Sequence[Child], fence: int) -> dict[str, object]:
    """What DELETE takes."""
    return {
        "run_id": run_id,
        "fence": fence,
        "names": [child.name for child in children],
        "chunks": [child.chunk for child in children],
        "seqs": [child.seq for child in children],
    }


# The tombstone in place of the header, by the pruner that acquired it.
#
#   P   acquire 2, PRUNING ── (paused) ────────────────────── bury [fence 2] ─▶ refused
#   Q                           acquire 3, PRUNING ── bury [fence 3] ─▶ applied
_ZEROED: Final = ("wake_count", "crashes", "idle_drives", "lease_until_ms", "due_at_ms")
_KEPT: Final = ("run_id", "workflow", "fence", "created_at", "ended_at")
_CHANGED: Final = ("status", "base_fence", "updated_at", "input_hash")
BURY: Final = (
    ", ".join(
        (
            f"UPDATE durable.runs SET status = '{TOMBSTONE}', base_fence = fence, updated_at = %(at)s",
            "input_hash = ''",
            *(f"{name} = 0" for name in _ZEROED),
            *(f"{name} = NULL" for name in RUN_COLUMNS if name not in (*_ZEROED, *_KEPT, *_CHANGED)),
        )
    )
    + f" WHERE run_id = %(run_id)s AND owner = %(owner)s AND fence = %(fence)s RETURNING {RUN}"
)
TOMBSTONES: Final = (
    f"SELECT {RUN} FROM durable.runs WHERE status = '{TOMBSTONE}' AND updated_at < %s"
    " AND expires_at_s IS NULL ORDER BY updated_at, run_id LIMIT %s"
)

# An end for a tombstone that is still the one that was seen.
#
#   P   finds nothing under fence 2 ──────────────────── expire [TOMBSTONE, fence 2] ─▶ refused: it lives
#   A                                  create: fence 3
#   Q   finds nothing, too ── expire ─▶ applied, unless it lives: of two, one gives the end
EXPIRE: Final = (
    "UPDATE durable.runs SET expires_at_s = %(expires_at_s)s"
    f" WHERE run_id = %(run_id)s AND status = '{TOMBSTONE}' AND fence = %(fence)s"
    f" AND expires_at_s IS NULL RETURNING {RUN}"
)
_NOW_S: Final = "coalesce(%(now)s::bigint / 1000, floor(extract(epoch FROM statement_timestamp()))::bigint)"
PURGE: Final = (
    "DELETE FROM durable.runs WHERE run_id IN (SELECT run_id FROM durable.runs"
    f" WHERE status = '{TOMBSTONE}' AND expires_at_s <= {_NOW_S} LIMIT %(limit)s)"
    f" AND status = '{TOMBSTONE}' AND expires_at_s <= {_NOW_S}"  # again, of the row as it is by then
)
