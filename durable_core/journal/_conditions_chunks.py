"""The conditional writes of the DynamoDB journal on chunks. As in `_conditions`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from durable_core.journal._conditions import Changes, woken
from durable_core.journal._dynamodb_keys import chunk_key, key
from durable_core.journal._dynamodb_requests import (
    Condition,
    Write,
    absent,
    below,
    equals,
    put,
    update,
)
from durable_core.journal._items import chunk_item

if TYPE_CHECKING:
    from durable_core.journal.chunks import ChunkDeparture, ChunkLease
    from durable_core.records import Chunk, RunHeader


def claim(table: str, held: Chunk, seen: Chunk | None, dead_owner: str | None, now_ms: int) -> Write:
    """The next chunk fence, for whoever still finds the chunk as seen and free.

    A   claim 1 ── (dies)
    B                sees 1 ── claim 1→2 ─▶ applied
    C                sees 1 ───────── claim 1→2 ─▶ refused: it is 2 by now
    """
    if seen is None:
        return put(table, chunk_item(held), absent("pk"))
    as_seen = equals("fence", seen.fence) & equals("chunk_fence", seen.chunk_fence)
    free = below("lease_until_ms", now_ms) if dead_owner is None else equals("owner", dead_owner)
    return put(table, chunk_item(held), as_seen & equals("status", seen.status) & free)


def renew(table: str, lease: ChunkLease, until_ms: int) -> Write:
    """A longer lease, for its holder.

    A   claim ── renew ─▶ applied ── (paused) ────────── renew ─▶ refused: give way
    B                                       claim
    """
    return update(table, _place(lease), {"lease_until_ms": until_ms}, _mine(lease))


def leave(table: str, lease: ChunkLease, departure: ChunkDeparture) -> Write:
    """Gives the chunk up, by its owner only."""
    changes: Changes = {
        "status": departure.status,
        "succeeded": departure.succeeded,
        "failed": departure.failed,
        "gone": departure.gone,
        "error": departure.error,
        "updated_at": departure.updated_at,
    }
    if not departure.keep_lease:  # 0 and not nothing: a comparison with nothing never holds
        changes |= {"owner": None, "owner_process": None, "lease_until_ms": 0}
    return update(table, _place(lease), changes, _mine(lease))


def wake(table: str, seen: RunHeader, now_ms: int) -> Write:
    """In one transaction with the end of a chunk: the run is woken, from the status that it was seen with.

    D   count 0 ── looks: the chunk is RUNNING ──────────── suspend [count = 0] ─▶ refused: looks again
    A                                              leave, count 1
    """
    return woken(table, seen, now_ms, equals("status", seen.status))


def _place(lease: ChunkLease) -> dict[str, dict[str, str]]:
    return key(lease.run_id, chunk_key(lease.step_id, lease.chunk))


def _mine(lease: ChunkLease) -> Condition:
    return equals("owner", lease.owner) & equals("chunk_fence", lease.chunk_fence)
