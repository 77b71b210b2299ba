"""Pruning a run whose header can't be read.

Nobody takes over such a run: that takes reading its header. The owner of before may still be alive. Its lease
is waited for where that can be read; where it can't, the fence alone keeps the owner out, as it does after
every cancellation: that of the prune is above any that the owner can have.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from durable_core.clock import rfc3339
from durable_core.engine.asking import ask
from durable_core.engine.owners import is_dead_for_certain, lease_now_ms
from durable_core.engine.process import told
from durable_core.engine.pruning import LeftRun, PrunedRun, count_run, prune_run
from durable_core.errors import CorruptRecord
from durable_core.records import ACTIVE, CORRUPT, PRUNING, TOMBSTONE, RunHeader

if TYPE_CHECKING:
    from durable_core.engine.drive import Tools
    from durable_core.journal.damaged import DamagedHeader

UNKNOWN_WORKFLOW: Final = "unknown"
FENCE_LEAP: Final = 100_000
"""Where the fence can't be read, the prune's is so much above the highest that lies under the header: more
takeovers than any run has between two records."""

_HIGHEST_FENCE: Final = 2**53
_LONGEST_LEASE_MS: Final = 24 * 3600 * 1000  # none is longer; a time beyond that is damage, too


async def count_damaged(tools: Tools, seen: DamagedHeader) -> PrunedRun | LeftRun:
    """What `prune_damaged` would do, without doing it."""
    stand_in = await _stand_in(tools, seen)
    if isinstance(stand_in, LeftRun):
        return stand_in
    return _as_damaged(tools, await count_run(tools, stand_in), seen)


async def prune_damaged(tools: Tools, seen: DamagedHeader) -> PrunedRun | LeftRun | None:
    """Deletes a run whose header can't be read, and all that belongs to it.

    P   damaged, fence 2 ── replace ─▶ PRUNING, fence 3 ── acquire 4 ── … ── bury
    O   (its owner, alive after all) ────────────────── renew ─▶ refused: gives way

    Killed after the first write it is a run that a prune left half-way: the next one finishes it.

    Args:
        tools: The executor's.
        seen: The header as last read.

    Returns:
        As `prune_run`.
    """
    stand_in = await _stand_in(tools, seen)
    if isinstance(stand_in, LeftRun):
        return stand_in
    reply = await ask(tools.journal.replace_damaged, seen, stand_in)
    now = reply.row
    if not reply.ok and (now is None or now.created_by != stand_in.created_by):
        if now is not None and now.status == TOMBSTONE:
            return None
        status = now.status if now is not None else CORRUPT
        return LeftRun(seen.run_id, status, "it has changed since it was read")
    tools.log.warning("damaged_header_replaced", run_id=seen.run_id, fence=stand_in.fence, reason=seen.why)
    found = await prune_run(tools, stand_in)
    return _as_damaged(tools, found, seen) if found is not None else None


def fence_of(seen: DamagedHeader) -> int | None:
    """The fence that a damaged header tells of; None if it doesn't."""
    fence = seen.known.get("fence")
    return fence if isinstance(fence, int) and 0 <= fence < _HIGHEST_FENCE else None


async def _stand_in(tools: Tools, seen: DamagedHeader) -> RunHeader | LeftRun:
    """The header to take the place of the damaged one: PRUNING, nobody's, with its blobs as far as known.

    Or why the run is left: its owner may be at work, or what lies under the header can't be read either.
    """
    until_ms, process = _lease_of(tools, seen), seen.known.get("owner_process")
    if (until_ms or 0) >= lease_now_ms(tools) and not is_dead_for_certain(tools, process):
        until = rfc3339(until_ms or 0)
        why = f"{told(process)} may be driving it until {until}: end that, or ask again afterwards"
        return LeftRun(seen.run_id, CORRUPT, why)
    try:
        fence = await _next_fence(tools, seen)
    except CorruptRecord as error:
        return LeftRun(seen.run_id, CORRUPT, error.message)
    at, known = rfc3339(tools.clock.now_ms()), seen.known
    return RunHeader(
        run_id=seen.run_id,
        workflow=known.get("workflow") or UNKNOWN_WORKFLOW,
        status=PRUNING,
        created_by=os.urandom(10).hex(),
        fence=fence,
        input_ref=known.get("input_ref"),
        input_size=known.get("input_size"),
        output_ref=known.get("output_ref"),
        output_size=known.get("output_size"),
        created_at=known.get("created_at") or at,
        updated_at=at,
        ended_at=known.get("ended_at"),
    )


def _lease_of(tools: Tools, seen: DamagedHeader) -> int | None:
    """The end of the lease, 0 without any; None where it can't be read."""
    until_ms, latest_ms = seen.known.get("lease_until_ms"), lease_now_ms(tools) + _LONGEST_LEASE_MS
    return until_ms if isinstance(until_ms, int) and 0 <= until_ms <= latest_ms else None


async def _next_fence(tools: Tools, seen: DamagedHeader) -> int:
    """Above that of any owner there was."""
    fence = fence_of(seen)
    highest = fence or 0
    async for page in tools.journal.children(seen.run_id):
        highest = max(highest, *(child.fence for child in page))
    return highest + (1 if fence is not None else FENCE_LEAP)


def _as_damaged(tools: Tools, found: PrunedRun | LeftRun, seen: DamagedHeader) -> PrunedRun | LeftRun:
    """What is told of a run that was damaged, not of its stand-in."""
    if isinstance(found, LeftRun):
        return found
    status, damage = seen.known.get("status"), [seen.why]
    if status is None:
        damage.append("whether it is over can't be told")
    elif status in ACTIVE:
        damage.append(f"it isn't over: {status}")
    if _lease_of(tools, seen) is None:
        damage.append("whether somebody drives it can't be told")
    return replace(found, status=CORRUPT, fence=fence_of(seen) or 0, damage="; ".join(damage))
