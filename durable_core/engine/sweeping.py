"""What a store gathers that belongs to no run any more: leftovers under tombstones, and orphan blobs.

A zombie, an owner that was paused while its run was pruned, may still put a record: it lies under the
tombstone, where it counts as absent. A day after the prune a sweep takes what there is; when it finds nothing
any more, the tombstone gets its end, which is longer than any zombie lives.

An orphan is a blob that is older than a day and that no record points to, nor will: whoever put it died
before its commit, or a prune was killed between a pointer and its blob.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from durable_core.blobs.base import attempt_of
from durable_core.clock import rfc3339
from durable_core.engine import pruning
from durable_core.engine.asking import ask
from durable_core.engine.pruning import LeftRun, clear, delete_blobs, named_by, refs_of
from durable_core.errors import CorruptRecord
from durable_core.records import STARTED, TOMBSTONE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from durable_core.engine.drive import Tools
    from durable_core.records import RunHeader

SECOND_PASS_S: Final = 24 * 3600
"""How long after its prune a run is looked through again."""

TOMBSTONE_LIFE_S: Final = 31 * 24 * 3600
"""How long a tombstone stays once nothing is left under it: longer than any zombie."""

_PAGE: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepReport:
    """What a sweep did, or would do.

    Attributes:
        dry_run: Whether nothing was changed.
        records: Late records found under tombstones.
        blobs: Those that these named.
        orphans: Blobs that nothing points to.
        expired: Tombstones under which nothing is left, so that they were given an end.
        purged: Tombstones whose end had come. Where the store sees to that itself, none.
        left: Runs that couldn't be looked through.
    """

    dry_run: bool
    records: int = 0
    blobs: int = 0
    orphans: int = 0
    expired: int = 0
    purged: int = 0
    left: tuple[LeftRun, ...] = ()


async def sweep(tools: Tools, run_ids: Sequence[str] | None, *, dry_run: bool) -> SweepReport:
    """Takes what belongs to no run any more.

    Args:
        tools: The executor's.
        run_ids: Only what these ids have left behind; of all when None.
        dry_run: Only count.

    Raises:
        JournalUnavailable, StoreMisconfigured: The store can't be reached, or doesn't permit it.
    """
    sweeper = _Sweeper(tools, dry_run)
    await sweeper.look_under_tombstones(run_ids)
    if run_ids is not None:
        for run_id in run_ids:
            await sweeper.take_orphans(run_id)
    else:
        async for run_id in tools.values.blobs.runs():
            await sweeper.take_orphans(run_id)
    purged = 0 if dry_run else await ask(tools.journal.purge)
    report = SweepReport(
        dry_run=dry_run,
        records=sweeper.records,
        blobs=sweeper.blobs,
        orphans=sweeper.orphans,
        expired=sweeper.expired,
        purged=purged,
        left=tuple(sweeper.left),
    )
    if not dry_run:
        tools.log.info("store_swept", records=report.records, blobs=report.blobs, orphans=report.orphans,
                       expired=report.expired, purged=report.purged)  # fmt: skip
    return report


async def orphans_of(tools: Tools, run_id: str) -> list[str]:
    """The blobs of a run that are old, and that no record of any fence points to, or can come to.

    First the blobs, then the pointers: one that is written meanwhile is seen, or its attempt is.

    P   blob b (old) ── children: s1 STARTED, no pointer ──────────────────── steps: s1 names b ─▶ b stays
    A                                                      commit s1, names b
    """
    blobs, journal = tools.values.blobs, tools.journal
    found = {ref async for ref in blobs.refs(run_id, older_than_s=pruning.ORPHAN_AGE_S)}
    if not found:
        return []
    header = await ask(journal.header, run_id)
    writers = {header.owner} if header is not None else set()  # may be about to end the run
    found.difference_update(refs_of(header) if header is not None else ())
    async for page in journal.children(run_id):
        for child in page:
            found.difference_update(child.refs)
    if not found:
        return []
    async for records in journal.steps(run_id):
        for record in records:
            found.discard(record.output_ref or "")
            if record.status == STARTED:  # however long ago: it can still commit
                writers.add(record.attempt_id)
    return [ref for ref in found if attempt_of(ref) not in writers]


class _Sweeper:
    """One sweep, and what it has come to so far."""

    def __init__(self, tools: Tools, dry_run: bool) -> None:
        self.tools, self.dry_run = tools, dry_run
        self.records = self.blobs = self.orphans = self.expired = 0
        self.left: list[LeftRun] = []
        self._taken: set[str] = set()

    async def look_under_tombstones(self, run_ids: Sequence[str] | None) -> None:
        """The second pass over what was pruned a day ago, and earlier."""
        before = rfc3339(self.tools.clock.now_ms() - SECOND_PASS_S * 1000)
        async for tombstone in (
            self._those_named(run_ids, before) if run_ids is not None else self._all(before)
        ):
            try:
                await self._look_under(tombstone)
            except CorruptRecord as error:
                self.left.append(LeftRun(tombstone.run_id, TOMBSTONE, error.message))

    async def take_orphans(self, run_id: str) -> int:
        """Deletes the orphans of a run, once; gives how many there were."""
        if run_id in self._taken:
            return 0
        self._taken.add(run_id)
        try:
            orphans = await orphans_of(self.tools, run_id)
        except CorruptRecord as error:  # who can't read a pointer must not say that there is none
            self.left.append(LeftRun(run_id, "", error.message))
            return 0
        if not self.dry_run:
            await delete_blobs(self.tools, orphans)
        self.orphans += len(orphans)
        return len(orphans)

    async def _those_named(self, run_ids: Sequence[str], before: str) -> AsyncIterator[RunHeader]:
        for run_id in run_ids:
            header = await ask(self.tools.journal.header, run_id)
            if header is None or header.status != TOMBSTONE or header.expires_at_s is not None:
                continue
            if header.updated_at < before:
                yield header

    async def _all(self, before: str) -> AsyncIterator[RunHeader]:
        seen: set[str] = set()
        while True:
            # Those that were given no end come again, so ask for as many more.
            limit = _PAGE + len(seen)
            page = await ask(self.tools.journal.tombstones, before, limit=limit)
            for tombstone in page:
                if tombstone.run_id not in seen:
                    seen.add(tombstone.run_id)
                    yield tombstone
            if len(page) < limit:
                return

    async def _look_under(self, tombstone: RunHeader) -> None:
        """Takes what is left under a tombstone; gives it its end if there is nothing.

        P   finds nothing under fence 3 ───────────────────── expire [TOMBSTONE, fence 3] ─▶ refused: in use
        A                                 create: RUNNING, fence 4
        """
        run_id, fence = tombstone.run_id, tombstone.fence
        if self.dry_run:
            records, blobs = await self._counted(run_id, fence)
        else:
            records, blobs, _ = await clear(self.tools, run_id, fence, _nothing_to_check)
        self.records, self.blobs = self.records + records, self.blobs + blobs
        if records or await self.take_orphans(run_id) or await self._is_anything_there(run_id):
            return
        self.expired += 1
        if not self.dry_run:
            expires_at_s = self.tools.clock.now_ms() // 1000 + TOMBSTONE_LIFE_S
            await ask(self.tools.journal.expire, tombstone, expires_at_s)

    async def _counted(self, run_id: str, fence: int) -> tuple[int, int]:
        records = blobs = 0
        async for page in self.tools.journal.children(run_id):
            mine = [child for child in page if child.fence <= fence]
            records, blobs = records + len(mine), blobs + len(named_by(run_id, mine))
        return records, blobs

    async def _is_anything_there(self, run_id: str) -> bool:
        """A record of a life that has just begun, or a blob that is too young to be told for an orphan."""
        async for page in self.tools.journal.children(run_id):
            if page:
                return True
        async for _ in self.tools.values.blobs.refs(run_id):
            return True
        return False


async def _nothing_to_check() -> None:
    """A tombstone has no owner; the fence alone keeps a later life's records."""
