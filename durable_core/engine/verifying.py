"""Verifying runs: each record by itself, and all of a run against each other. Nothing is written.

header ── steps ── segments ── events ── header again: has it gone on meanwhile?

A run that goes on while it is looked at may seem damaged: an event is there whose step was read before it
was begun. So such a run is looked at again, and only what is found each time counts.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from durable_core.blobs.base import is_run_id
from durable_core.clock import rfc3339
from durable_core.engine import admission, sweeping
from durable_core.engine.asking import ask
from durable_core.engine.findings import DAMAGE, Finding, Findings, VerifiedRun
from durable_core.engine.pruning import delete_blobs
from durable_core.engine.verify_header import Life, unsound
from durable_core.engine.verify_run import Look, told
from durable_core.engine.verify_session import check_session
from durable_core.engine.verify_values import ValueCheck
from durable_core.errors import CorruptRecord
from durable_core.identity import KeyMaker
from durable_core.journal.base import RunFilter
from durable_core.journal.carrying import KINDS
from durable_core.records import ACTIVE, CORRUPT, PRUNING, TOMBSTONE, Event, RunHeader, Unreadable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from durable_core.engine.drive import Tools
    from durable_core.journal.carrying import Kind, Record

ORPHAN: Final = "orphan-blob"
LATE: Final = "late-record"
_PAGE: Final = 500
_LOOKS: Final = 3
_MOST_ANCESTORS: Final = 100
_WRITTEN_TO: Final = frozenset({*ACTIVE, PRUNING})
_LATEST: Final = "9999-12-31T23:59:59.999Z"


async def verified_runs(tools: Tools) -> AsyncIterator[VerifiedRun]:
    """All runs of a store, newest first; then tombstones, and ids that only blobs are left of."""
    seen: set[str] = set()
    before: tuple[str, str] | None = None
    while True:
        page = await ask(tools.journal.runs, RunFilter(before=before, limit=_PAGE))
        fresh = [header for header in page if header.run_id not in seen]
        for header in fresh:
            seen.add(header.run_id)
            yield await verified(tools, header.run_id)
        if len(page) < _PAGE or not fresh:
            break
        before = (page[-1].created_at, page[-1].run_id)
    async for run_id in _left_behind(tools):
        if run_id not in seen:
            seen.add(run_id)
            found = await verified(tools, run_id)
            if found.findings:
                yield found


async def verified_each(tools: Tools, run_ids: Sequence[str]) -> AsyncIterator[VerifiedRun]:
    """Those named."""
    for run_id in run_ids:
        yield await verified(tools, run_id)


async def _left_behind(tools: Tools) -> AsyncIterator[str]:
    limit = _PAGE
    while len(graves := await ask(tools.journal.tombstones, _LATEST, limit=limit)) >= limit:
        limit *= 2
    for grave in graves:
        yield grave.run_id
    async for run_id in tools.values.blobs.runs():
        yield run_id


async def verified(tools: Tools, run_id: str) -> VerifiedRun:
    """One run, as it is now.

    Raises:
        JournalUnavailable, StoreMisconfigured: The store can't be reached, or doesn't permit it.
    """
    found = await _looked_at(tools, run_id)
    for _ in range(_LOOKS - 1):
        if found.is_sound or not await _may_have_gone_on(tools, found):
            break
        again = await _looked_at(tools, run_id)
        lasting = {(one.kind, one.where, one.message) for one in found.findings}
        kept = [
            one
            for one in again.findings
            if one.severity != DAMAGE or (one.kind, one.where, one.message) in lasting
        ]
        damaged = sum(one.severity == DAMAGE for one in kept)
        found = replace(again, findings=tuple(kept), damaged=damaged)
    return found


async def _may_have_gone_on(tools: Tools, found: VerifiedRun) -> bool:
    """Whether somebody may have written to the run while it was looked at; it may have ended since, too."""
    if found.status in _WRITTEN_TO:
        return True
    try:
        header = await ask(tools.journal.header, found.run_id)
    except CorruptRecord:
        return False
    return header is not None and header.status in _WRITTEN_TO


async def _looked_at(tools: Tools, run_id: str) -> VerifiedRun:
    findings = Findings(run_id)
    if not is_run_id(run_id):
        findings.damage("header-unreadable", None, "no run can have that id")
        return told(run_id, None, findings, dict.fromkeys(KINDS, 0))
    header, is_whole = await _header(tools, run_id, findings)
    if header is None or header.status in (TOMBSTONE, PRUNING):
        return await _without_life(tools, run_id, header, findings)
    values = ValueCheck(tools.values, findings)
    life = await life_of(tools, header, is_whole=is_whole)
    look = Look(values, header if is_whole else None, life, findings)
    await look.take(tools.journal)
    await _find_orphans(tools, run_id, findings)
    checkpoints = 0
    if header.session_id is not None and tools.checkpoints is not None:
        checkpoints = await check_session(tools.checkpoints, tools.values.blobs, header.session_id, findings)
    return replace(look.result(header), checkpoints=checkpoints)


async def _header(tools: Tools, run_id: str, findings: Findings) -> tuple[RunHeader | None, bool]:
    """The header, and whether it can be relied on; one that can't be read as far as its id goes."""
    try:
        header = await ask(tools.journal.header, run_id)
    except CorruptRecord as error:
        findings.damage("header-unreadable", None, error.message)
        return RunHeader(run_id=run_id, workflow="", status=CORRUPT), False
    if header is None or (why := unsound(header)) is None:
        return header, True
    findings.damage("header-unreadable", None, why)
    return RunHeader(run_id=run_id, workflow="", status=CORRUPT), False


async def life_of(tools: Tools, header: RunHeader, *, is_whole: bool) -> Life:
    """What the records of a run are judged by; a fork's have the keys of the runs it comes from."""
    if not is_whole:
        return Life(header.run_id, knows_all_keys=False)
    ids, known, parent = [header.run_id], True, header.forked_from
    while parent is not None:
        ids.append(parent)
        try:
            above = await ask(tools.journal.header, parent) if is_run_id(parent) else None
        except CorruptRecord:
            above = None
        if above is None or above.status == TOMBSTONE or len(ids) > _MOST_ANCESTORS:
            known = False  # it may have been a fork itself
            break
        parent = above.forked_from
    keys = [KeyMaker(one) for one in ids]
    return Life(header.run_id, header.base_fence, header.fence, header.status, keys, known)


# ---- What is no run any more ----


async def _without_life(
    tools: Tools, run_id: str, header: RunHeader | None, findings: Findings
) -> VerifiedRun:
    """An id that was pruned, is half-way through a prune or an import, or was never a run's."""
    seen: dict[Kind, int] = dict.fromkeys(KINDS, 0)
    base_fence = header.fence if header is not None else 0
    above = late = 0
    for kind in KINDS:
        try:
            async for page in tools.journal.as_stored(run_id, kind):
                seen[kind] += len(page)
                of_runs = [
                    one for one in page if not isinstance(one, Unreadable) and not _is_early(one, base_fence)
                ]
                above += sum(one.fence > base_fence for one in of_runs)
                late += sum(one.fence <= base_fence for one in of_runs)
        except CorruptRecord as error:
            findings.damage("store-damaged", None, error.message)
    if header is not None and header.status == PRUNING:
        if admission.is_free(tools, header):
            findings.notice("cut-short", None, "a prune or an import was cut short: prune it, or repeat it")
        return told(run_id, header, findings, seen)
    if above:
        findings.damage("header-missing", None, f"{above} records lie under no header")
    if late and header is not None:
        is_old = header.updated_at < rfc3339(tools.clock.now_ms() - sweeping.SECOND_PASS_S * 1000)
        repair = f"delete the {late} records that lie under the tombstone of {run_id}" if is_old else None
        findings.leftover(LATE, None, f"{late} records lie under a tombstone", repair)
    if header is not None and header.fence != header.base_fence:
        findings.damage("header-contradicts", None, "a tombstone's fences differ")
    await _find_orphans(tools, run_id, findings)
    return told(run_id, header, findings, seen)


def _is_early(record: Record, base_fence: int) -> bool:
    """Whether it is an event that was sent before its run."""
    return isinstance(record, Event) and record.fence == base_fence + 1


async def _find_orphans(tools: Tools, run_id: str, findings: Findings) -> None:
    """Blobs that nothing points to, and that are too old for their pointer to be on its way."""
    try:
        orphans = await sweeping.orphans_of(tools, run_id)
    except CorruptRecord:  # who can't read a pointer must not say that there is none; that is told already
        return
    for ref in sorted(orphans):
        findings.leftover(ORPHAN, ref, "nothing points to it", f"delete the blob {ref}")


# ---- Repairs ----


async def repaired(tools: Tools, run: VerifiedRun, announce: Callable[[Finding], None]) -> VerifiedRun:
    """Makes the repairs that are safe: what belongs to nothing is deleted, once it is old enough.

    Args:
        tools: The executor's.
        run: As it was verified.
        announce: Called with each finding before it is repaired.
    """
    done: list[Finding] = []
    for found in run.findings:
        if found.repair is None:
            done.append(found)
            continue
        announce(found)
        if found.kind == ORPHAN and found.where is not None:
            await delete_blobs(tools, [found.where])
        else:
            await sweeping.sweep(tools, [run.run_id], dry_run=False)
        done.append(replace(found, is_repaired=True))
    return replace(run, findings=tuple(done))
