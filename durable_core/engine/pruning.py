"""Pruning one run. Killed after any write it can be repeated; until then the run stays PRUNING.

acquire as PRUNING      nobody drives it any more, and no resume takes it over
what lies under it      portion by portion: the records on fence ≤ mine, then the blobs that they named
the tombstone           keeps the fence: the next life of the id goes on from there
the header's blobs      and those of the run that nothing named, once they are old

A pointer goes first, its blob second, so that no record ever points to nothing. Who is killed between the two
leaves orphans, which `sweeping` takes a day later; so it does with what zombies write under the tombstone.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from durable_core.blobs.base import is_ref
from durable_core.clock import rfc3339
from durable_core.engine import admission
from durable_core.engine.asking import ask
from durable_core.engine.hold import Hold
from durable_core.engine.lease import lost_to
from durable_core.engine.process import told
from durable_core.errors import CorruptRecord, DurableError, Fenced
from durable_core.journal.base import Departure
from durable_core.records import ACTIVE, CORRUPT, ENDED, PRUNING, TOMBSTONE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from durable_core.engine.drive import Tools
    from durable_core.records import Child, RunHeader

ORPHAN_AGE_S: Final = 24 * 3600
"""A blob that nothing points to is an orphan only when it is older: its pointer may be on its way."""

_PORTION: Final = 100
_BLOBS_AT_ONCE: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class PrunedRun:
    """A run that was pruned, or that would be.

    Attributes:
        status: As it had ended; PRUNING, if an earlier prune was cut short; CORRUPT, if its header couldn't
            be read.
        ended_at: RFC 3339, UTC; None where that is no longer known.
        fence: As it was found: a run with a higher one went on since.
        records: Steps, segments and events.
        blobs: Those that these and the header pointed to.
        size_bytes: Of inputs and outputs, before compression.
        damage: What is wrong with a header that can't be read, and what therefore can't be told of the run.
    """

    run_id: str
    workflow: str
    status: str
    ended_at: str | None
    fence: int
    records: int
    blobs: int
    size_bytes: int
    damage: str | None = None


@dataclass(frozen=True, slots=True)
class LeftRun:
    """A run that is left as it is.

    Attributes:
        status: As it was found.
        why: One clause, for a person.
    """

    run_id: str
    status: str
    why: str


class Cleared(NamedTuple):
    """How many records and blobs were deleted, and how large they were."""

    records: int
    blobs: int
    size_bytes: int


async def prune_run(tools: Tools, seen: RunHeader) -> PrunedRun | LeftRun | None:
    """Deletes a run that is over, and all that belongs to it.

    Args:
        tools: The executor's.
        seen: Its header as last read.

    Returns:
        What was pruned, or why it wasn't; None: somebody else has pruned it.

    Raises:
        JournalUnavailable, StoreMisconfigured: The store can't be reached, or doesn't permit it.
    """
    if (why := why_left(tools, seen)) is not None:
        return LeftRun(seen.run_id, seen.status, why)
    began_ms = tools.clock.boot_ms()
    taken = await admission.acquire_to_prune(tools, seen)
    if taken is None or (not isinstance(taken, admission.Admitted) and taken.status == TOMBSTONE):
        return None
    if not isinstance(taken, admission.Admitted):
        return LeftRun(taken.run_id, taken.status, why_left(tools, taken) or "it went on since it was read")
    header = taken.header
    hold = Hold(tools, header)
    try:
        cleared = await clear(tools, header.run_id, header.fence, hold.check)
        await _bury(tools, hold)
    except Fenced as error:
        return LeftRun(header.run_id, PRUNING, error.message)
    except CorruptRecord as error:
        await _release(tools, hold, header, error)
        return LeftRun(header.run_id, PRUNING, error.message)
    except BaseException as error:  # whatever it is, also a cancellation: the next prune goes on at once
        await _release(tools, hold, header, error)
        raise
    finally:
        tools.renewals.drop(hold.held)
    named = _own(header.run_id, refs_of(header))
    # Older than the prune by a day: a later life of the id may begin from now on, and its blobs are younger.
    age_s = ORPHAN_AGE_S + (tools.clock.boot_ms() - began_ms) / 1000
    orphans = [ref async for ref in tools.values.blobs.refs(header.run_id, older_than_s=age_s)]
    await delete_blobs(tools, [*dict.fromkeys((*named, *orphans))])
    tools.log.info("run_pruned", run_id=header.run_id, fence=header.fence, records=cleared.records)
    return _pruned(seen, Cleared(cleared.records, cleared.blobs + len(named), cleared.size_bytes))


async def count_run(tools: Tools, seen: RunHeader) -> PrunedRun | LeftRun:
    """What `prune_run` would do, without doing it."""
    if (why := why_left(tools, seen)) is not None:
        return LeftRun(seen.run_id, seen.status, why)
    records, blobs, size_bytes = 0, len(_own(seen.run_id, refs_of(seen))), 0
    try:
        async for page in tools.journal.children(seen.run_id):
            records += len(page)
            blobs += len(named_by(seen.run_id, page))
            size_bytes += sum(child.size_bytes for child in page)
    except CorruptRecord as error:
        return LeftRun(seen.run_id, seen.status, error.message)
    return _pruned(seen, Cleared(records, blobs, size_bytes))


def why_left(tools: Tools, header: RunHeader) -> str | None:
    """Why a run can't be pruned now, as far as its header tells; None if it can."""
    if header.status in ACTIVE:
        return "it isn't over; cancel it first"
    if header.status == CORRUPT:
        return "its header can't be read"
    if header.status not in (*ENDED, PRUNING):
        return f"it has the unknown status {header.status!r:.40}"
    if not admission.is_free(tools, header):
        return f"{told(header.owner_process)} is pruning it"
    return None


# ---- What lies under a header ----


async def clear(tools: Tools, run_id: str, fence: int, check: Callable[[], Awaitable[None]]) -> Cleared:
    """Deletes the records of a run up to a fence, and the blobs that they named.

    P   lists s1 (fence 1) ───────────────────────────────── delete s1 [fence ≤ 2] ─▶ stays, with its blob
    A                        (the id begun anew) begin s1: fence 3

    Args:
        tools: The executor's.
        run_id: The run.
        fence: Records above it are of a later life, and stay.
        check: Raises if nothing more may be deleted.
    """
    records = blobs = size_bytes = 0
    async for page in tools.journal.children(run_id):
        mine = [child for child in page if child.fence <= fence]
        for start in range(0, len(mine), _PORTION):
            portion = mine[start : start + _PORTION]
            named = named_by(run_id, portion)
            await check()
            await ask(tools.journal.delete, run_id, portion, fence)
            await delete_blobs(tools, named)
            records, blobs = records + len(portion), blobs + len(named)
            size_bytes += sum(child.size_bytes for child in portion)
    return Cleared(records, blobs, size_bytes)


async def delete_blobs(tools: Tools, refs: Sequence[str]) -> None:
    """Deletes blobs, some side by side; those that are gone are fine."""
    for start in range(0, len(refs), _BLOBS_AT_ONCE):
        portion = refs[start : start + _BLOBS_AT_ONCE]
        deletes = [ask(tools.values.blobs.delete, ref) for ref in portion]
        for ended in await asyncio.gather(*deletes, return_exceptions=True):  # none is left at work
            if isinstance(ended, BaseException):
                raise ended


def named_by(run_id: str, children: Iterable[Child]) -> list[str]:
    """The run's own blobs that records point to."""
    return _own(run_id, (ref for child in children for ref in child.refs))


def refs_of(header: RunHeader) -> list[str]:
    """The blobs that a header points to."""
    return [ref for ref in (header.input_ref, header.output_ref) if ref is not None]


def _own(run_id: str, refs: Iterable[str]) -> list[str]:
    """Without those that only a damaged record can name: of another run, or no blobs at all."""
    return [ref for ref in refs if is_ref(ref) and ref.startswith(f"runs/{run_id}/")]


def _pruned(seen: RunHeader, cleared: Cleared) -> PrunedRun:
    own = sum(size for size in (seen.input_size, seen.output_size) if isinstance(size, int))
    return PrunedRun(
        run_id=seen.run_id,
        workflow=seen.workflow,
        status=seen.status,
        ended_at=seen.ended_at,
        fence=seen.fence,
        records=cleared.records,
        blobs=cleared.blobs,
        size_bytes=cleared.size_bytes + own,
    )


# ---- The ends of a prune ----


async def _bury(tools: Tools, hold: Hold) -> None:
    """Puts the tombstone in the place of the header.

    P   PRUNING, fence 3 ── (paused past its lease) ────────────────────── bury [fence 3] ─▶ refused
    Q                         acquire: PRUNING, fence 4 ── … ── bury [fence 4] ─▶ applied

    Raises:
        Fenced: Another pruner has taken over.
    """
    await hold.check()
    tools.renewals.drop(hold.held)
    reply = await ask(tools.journal.bury, hold.lease, rfc3339(tools.clock.now_ms()))
    row = reply.row
    own = row is not None and (row.status, row.fence) == (TOMBSTONE, hold.lease.fence)
    if not (reply.ok or own):
        raise lost_to(row, hold.lease)


async def _release(tools: Tools, hold: Hold, header: RunHeader, error: BaseException) -> None:
    """Lets the next prune go on without waiting for the end of the lease. The header keeps its pointers."""
    tools.renewals.drop(hold.held)
    departure = Departure(
        status=PRUNING,
        output_hash=header.output_hash,
        output_data=header.output_data,
        output_ref=header.output_ref,
        output_codec=header.output_codec,
        output_size=header.output_size,
        keep_error=True,
        counts=header.counts,
    )
    log = tools.log.bind(run_id=header.run_id, fence=header.fence)
    try:
        await ask(tools.journal.leave, hold.lease, departure)
    except DurableError as failure:  # the lease runs out by itself, and a dead pruner is seen at once
        log.warning("prune_not_released", reason=str(failure))
    else:
        log.warning("prune_cut_short", reason=str(error) or type(error).__qualname__)
