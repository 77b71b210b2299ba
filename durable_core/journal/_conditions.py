"""The conditional writes of the DynamoDB journal, one function each: what is written, and what must hold.

DynamoDB decides about each item on its own, one request after the other. A refusal brings the item that stood
in the way, or none if there is none. So every writer whose reply was lost asks again and finds itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from durable_core.clock import rfc3339
from durable_core.journal._dynamodb_keys import (
    HEADER,
    child_key,
    chunk_key,
    event_key,
    grave_of,
    index_of,
    key,
)
from durable_core.journal._dynamodb_requests import (
    Condition,
    Value,
    Write,
    absent,
    at_most,
    below,
    check,
    delete,
    equals,
    one_of,
    present,
    put,
    unchanged,
    update,
)
from durable_core.journal._items import event_item, header_item, item_of, segment_item, step_item
from durable_core.journal.chunks import ChunkLease
from durable_core.records import (
    ACTIVE,
    CANCELLED,
    ENDED,
    PENDING,
    PRUNING,
    STARTED,
    SUSPENDED,
    TOMBSTONE,
    Event,
    RunHeader,
    Segment,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from durable_core.journal.base import Claim, Departure, Holding, Lease
    from durable_core.journal.carrying import Record
    from durable_core.journal.damaged import DamagedHeader
    from durable_core.records import Child, Seen, StepRecord

Changes = dict[str, Value | None]

_KEPT_BY_TOMBSTONES: Final = ("run_id", "workflow", "created_at", "ended_at")
_ZERO_IN_TOMBSTONES: Final = ("wake_count", "crashes", "idle_drives", "lease_until_ms")


# ---- Headers ----


def create(table: str, header: RunHeader) -> Write:
    """A header where there is none, or over the tombstone that it goes on from.

    A   create ─▶ applied
    B         create ─▶ refused by A's header; A, whose reply was lost, finds its own owner in it
    """
    free = absent("pk")
    if header.base_fence:  # the tombstone may have vanished since
        free |= equals("status", TOMBSTONE) & equals("fence", header.base_fence)
    return put(table, header_item(header), free)


def acquire(
    table: str, seen: RunHeader, claim: Claim, statuses: Sequence[str], dead_owner: str | None, now_ms: int
) -> Write:
    """The next fence, for whoever still finds the fence as seen and the run free.

    A   (dies)
    B         header: fence 1 ── acquire 1→2 ─▶ applied
    C         header: fence 1 ────────── acquire 1→2 ─▶ refused: the fence is 2 by now
    """
    until_ms = now_ms + claim.lease_ms
    changes = _status(seen.run_id, claim.status) | {
        "owner": claim.owner,
        "owner_process": claim.owner_process,
        "fence": seen.fence + 1,
        "lease_until_ms": until_ms,
        "due_at_ms": until_ms,
        "crashes": claim.crashes,
        "gone": claim.gone,
        "updated_at": rfc3339(now_ms),
    }
    if claim.status != PRUNING:
        changes["ended_at"] = None
    if claim.fingerprint is not None:
        changes["fingerprint"] = claim.fingerprint
    free = below("lease_until_ms", now_ms) if dead_owner is None else equals("owner", dead_owner)
    return _change(
        table, seen.run_id, changes, equals("fence", seen.fence) & one_of("status", statuses) & free
    )


def renew(table: str, lease: Lease, until_ms: int) -> Write:
    """A longer lease, for its holder; the header tells of wake-ups and of who took over.

    A   acquire ── renew ─▶ applied ── (paused) ────────── renew ─▶ refused: give way
    B                                       acquire
    """
    return _change(table, lease.run_id, {"lease_until_ms": until_ms, "due_at_ms": until_ms}, _mine(lease))


def leave(table: str, lease: Lease, departure: Departure, wake_count: int | None, now: str) -> Write:
    """Gives the run up: released, suspended or ended; only by its owner, and only if nothing woke it
    meanwhile.

    A   count 0 ── looks: no event ────────────────── suspend [count = 0] ─▶ refused: look again
    S                               signal: count 1
    """
    changes = _status(lease.run_id, departure.status) | {
        "due_at_ms": departure.due_at_ms,
        "output_hash": departure.output_hash,
        "output_data": departure.output_data,
        "output_ref": departure.output_ref,
        "output_codec": departure.output_codec,
        "output_size": departure.output_size,
        "counts": departure.counts,
        "idle_drives": departure.idle_drives,
        "updated_at": now,
    }
    if departure.status != PRUNING:
        changes["ended_at"] = now if departure.status in ENDED else None
    if not departure.keep_error:
        changes["error"] = departure.error
    if not departure.keep_lease:
        changes |= _given_up()
    condition = _mine(lease)
    if wake_count is not None:
        condition &= equals("wake_count", wake_count)
    return _change(table, lease.run_id, changes, condition)


def cancel(table: str, seen: RunHeader, ended_at: str, error: str | None) -> Write:
    """The end of an active run by somebody else: the higher fence keeps its owner from going on.

    A   acquire fence 1 ── begin s1 ─────────────────────── renew ─▶ refused: the header isn't A's any more
    X                               cancel: fence 2
    """
    changes = _status(seen.run_id, CANCELLED) | _given_up()
    changes |= {"fence": seen.fence + 1, "error": error, "updated_at": ended_at, "ended_at": ended_at}
    return _change(table, seen.run_id, changes, equals("fence", seen.fence) & one_of("status", ACTIVE))


def wake(table: str, seen: RunHeader, now_ms: int) -> Write:
    """One more in the wake count of an active run: a driver that has looked in vain looks again.

    A   count 0 ── looks: nothing ───────────── suspend [count = 0] ─▶ refused
    W                              wake ─▶ applied: count 1
    """
    return woken(table, seen, now_ms, equals("status", seen.status))


def woken(table: str, seen: RunHeader, now_ms: int, condition: Condition) -> Write:
    """One more in the wake count; a sleeping run is due now."""
    changes: Changes = {}
    if seen.status == SUSPENDED:
        changes = _status(seen.run_id, PENDING) | {"due_at_ms": now_ms}
    return update(table, key(seen.run_id, HEADER), changes, condition, count="wake_count")


# ---- Steps ----


def begin(table: str, record: StepRecord, seen: Seen | None) -> Write:
    """A start over the record as last seen; also an outcome in one write.

    A   sees STARTED a1 ── begin a2 [a1] ─▶ applied
    B   sees STARTED a1 ────────── begin b2 [a1] ─▶ refused: it is a2 by now
    """
    if seen is None:
        return put(table, step_item(record), absent("pk"))
    as_it_was = equals("status", seen.status) & equals("attempt_id", seen.attempt_id)
    return put(table, step_item(record), as_it_was)


def held(table: str, lease: Holding) -> Write:
    """In one transaction with a guarded `begin`, or a checkpoint: the run, or the chunk of the item that it
    is inside, is still its writer's.

    A   acquire 1 ── (paused past its lease) ── begin s1 [fence 1] ─▶ refused
    B                  acquire 2
    """
    if isinstance(lease, ChunkLease):
        place = key(lease.run_id, chunk_key(lease.step_id, lease.chunk))
        return check(table, place, equals("owner", lease.owner) & equals("chunk_fence", lease.chunk_fence))
    return check(table, key(lease.run_id, HEADER), _mine(lease))


def commit(table: str, record: StepRecord) -> Write:
    """The outcome of an attempt, if nobody has begun the step anew.

    A   begin a1 ── body ── (paused) ─────────── commit a1 ─▶ refused: the attempt is b1
    B                          begin b1 [a1] ── body ── commit b1 ─▶ applied
    """
    mine = equals("attempt_id", record.attempt_id) & equals("idempotency_key", record.idempotency_key)
    return put(table, step_item(record), equals("status", STARTED) & mine)


# ---- Segments and events ----


def append(table: str, segment: Segment) -> Write:
    """A segment at a free place of its chunk's log.

    A   (paused) ─────────────────────────── append 1 ─▶ refused: B's claim is there
    B   append 1, empty ─▶ applied ── reads 0
    """
    return put(table, segment_item(segment), absent("pk"))


def send(table: str, event: Event, seen: RunHeader | None, now_ms: int) -> tuple[Write, Write]:
    """An event at a free place, to the life of the run that its sender saw; an active run is woken with it.

    The status has to be as seen, too, since it decides how the run is woken; whoever is refused for that
    alone sends the same again with the status that came back.

    S   header: life 1 ── send ─▶ applied, and the count is one more
    T   header: life 1 ─────────── (the run is pruned, and its id begun anew) ── send ─▶ refused: life 2
    """
    letter = put(table, event_item(event), absent("pk"))
    if seen is None:
        return letter, check(table, key(event.run_id, HEADER), absent("pk"))
    same_life = equals("status", seen.status) & equals("base_fence", seen.base_fence)
    if seen.status in ACTIVE:
        return letter, woken(table, seen, now_ms, same_life)
    return letter, check(table, key(event.run_id, HEADER), same_life)


def take(table: str, event: Event, outcome: StepRecord) -> tuple[Write, Write]:
    """An event for one waiting step, with that step's outcome.

    A   STARTED a1 ── take 0 ─▶ applied: taken and COMMITTED
    B   (another branch) STARTED b1 ── take 0 ─▶ refused, its record as it was: the next event
    """
    place = key(event.run_id, event_key(event.name, event.seq))
    taken = update(table, place, {"taken_by": outcome.attempt_id}, present("pk") & absent("taken_by"))
    return taken, commit(table, outcome)


# ---- Imports ----


def restore(table: str, record: Record, base_fence: int) -> Write:
    """A record of an imported run; what an earlier life of the id left gives way.

    I   PRUNING, fence 3, base 2 ── restore s1 [none, or fence ≤ 2] ─▶ applied ── (paused) ── restore s2
    P                                  acquire 4, PRUNING ── deletes s1 ── bury

    The late s2 lies under the tombstone, fence 4, where it counts as absent.
    """
    return put(table, item_of(record), absent("pk") | at_most("fence", base_fence))


def restore_header(table: str, header: RunHeader, lease: Lease) -> Write:
    """The header that the run really has, by whoever still holds the import.

    I   create: PRUNING, fence 3 ── (paused past its lease) ── restore_header [fence 3] ─▶ refused
    P                                  acquire 4, PRUNING
    """
    return put(table, header_item(header), _mine(lease))


def replace_damaged(table: str, seen: DamagedHeader, header: RunHeader) -> Write:
    """A readable header over a damaged one, if all of that is as it was seen.

    P   damaged ── replace ─▶ applied: PRUNING
    Q   damaged ───────────── replace ─▶ refused: it isn't as it was seen
    X   (mends it) ── P: replace ─▶ refused
    """
    return put(table, header_item(header), unchanged(dict(seen.row), RunHeader.__dataclass_fields__))


# ---- Pruning ----


def erase(table: str, run_id: str, child: Child, fence: int) -> Write:
    """A record of an ended run, unless a later life of the id has put it.

    P   lists s1 (fence 1) ────────────────────────── delete s1 [fence ≤ 2] ─▶ stays
    A                        (id begun anew) begin s1: fence 3
    """
    return delete(table, key(run_id, child_key(child)), at_most("fence", fence))


def bury(table: str, lease: Lease, at: str) -> Write:
    """The tombstone in place of the header, by the pruner that acquired it.

    P   acquire 2, PRUNING ── (paused) ────────────────────── bury [fence 2] ─▶ refused
    Q                           acquire 3, PRUNING ── bury [fence 3] ─▶ applied
    """
    kept = (*_KEPT_BY_TOMBSTONES, "fence")
    changes: Changes = {name: None for name in RunHeader.__dataclass_fields__ if name not in kept}
    changes |= _status(lease.run_id, TOMBSTONE)
    changes |= dict.fromkeys(_ZERO_IN_TOMBSTONES, 0)
    changes |= {"base_fence": lease.fence, "input_hash": "", "updated_at": at}
    changes |= grave_of(lease.run_id, at)
    return _change(table, lease.run_id, changes, _mine(lease))


def expire(table: str, seen: RunHeader, expires_at_s: int) -> Write:
    """An end for a tombstone that is still the one that was seen; it has been looked at then.

    P   finds nothing under fence 2 ──────────────────── expire [TOMBSTONE, fence 2] ─▶ refused: it lives
    A                                  create: fence 3
    Q   finds nothing, too ── expire ─▶ applied, unless it lives: of two, one gives the end
    """
    changes: Changes = {"expires_at_s": expires_at_s, "due_shard": None, "due_at_ms": 0}
    still = equals("status", TOMBSTONE) & equals("fence", seen.fence) & absent("expires_at_s")
    return _change(table, seen.run_id, changes, still)


# ---- Parts ----


def _change(table: str, run_id: str, changes: Changes, condition: Condition) -> Write:
    return update(table, key(run_id, HEADER), changes, condition)


def _mine(lease: Lease) -> Condition:
    return equals("owner", lease.owner) & equals("fence", lease.fence)


def _status(run_id: str, status: str) -> Changes:
    return {"status": status, **index_of(run_id, status)}


def _given_up() -> Changes:
    # 0 and not nothing: a comparison with nothing never holds, and nobody could acquire the run again.
    return {"owner": None, "owner_process": None, "lease_until_ms": 0}
