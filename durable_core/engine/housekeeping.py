"""The operations of an executor that make room: prune and sweep."""

from __future__ import annotations

from typing import TYPE_CHECKING

from durable_core.engine import admission, sweeping
from durable_core.engine.asking import ask
from durable_core.engine.damaged import count_damaged, fence_of, prune_damaged
from durable_core.engine.pruning import LeftRun, PrunedRun, count_run, prune_run
from durable_core.engine.retention import PruneReport, rules
from durable_core.engine.running import released_on_sigterm
from durable_core.errors import UsageError
from durable_core.identity import check_id
from durable_core.journal.damaged import DamagedHeader
from durable_core.records import CORRUPT, TOMBSTONE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from datetime import timedelta

    from durable_core.engine.drive import Tools
    from durable_core.engine.stopping import WayOut
    from durable_core.records import RunHeader
    from durable_core.store import Store

    _Chosen = RunHeader | DamagedHeader | LeftRun


class Housekeeping:
    """What an executor does with runs that are over."""

    store: Store
    _tools: Tools

    @released_on_sigterm
    async def prune(
        self,
        *,
        run_ids: str | Sequence[str] | None = None,
        older_than: timedelta | None = None,
        keep: int | None = None,
        status: str | Sequence[str] | None = None,
        workflow: str | None = None,
        planned: PruneReport | None = None,
        deadline: WayOut | None = None,
        damaged: bool = False,
        dry_run: bool = False,
    ) -> PruneReport:
        """Deletes runs that are over, with their steps and blobs.

        A run goes if all conditions given let it go; one that isn't over is left alone: cancel it first. An
        interrupted prune is finished by the next one. The id of a pruned run is free again.

        Args:
            run_ids: These, and no other condition.
            older_than: Only runs that ended so long ago, whenever they began.
            keep: The newest so many of each workflow stay, whatever their age.
            status: Only these: COMPLETED, FAILED, CANCELLED; PRUNING for what an earlier prune left half-way.
            workflow: Only its runs.
            planned: What a dry run told, and no other condition: a run that went on since then stays.
            deadline: From then on no run is begun with: the next prune goes on.
            damaged: Also those of `run_ids` whose header can't be read, over or not: that can't be told. One
                that may be driven still is left alone until its lease is over.
            dry_run: Only tell what would go.

        Raises:
            UsageError: No condition is given, or one that can't be.
            RunNotFound: There is no run of one of these ids; nothing was pruned.
            CorruptRecord: The header of one of them can't be read; nothing was pruned. Not with `damaged`.
            JournalUnavailable, StoreMisconfigured: The store can't be reached, or doesn't permit it.
        """
        conditions = (older_than, keep, status, workflow)
        if (run_ids is not None or planned is not None) and (
            any(one is not None for one in conditions) or (run_ids is not None and planned is not None)
        ):
            raise UsageError(
                "run_ids= and planned= say all about which runs go",
                remedy="Give no other condition with them",
            )
        if damaged and run_ids is None:
            raise UsageError(
                "damaged= is for runs that are named",
                remedy="Give run_ids= of those whose header can't be read",
            )
        if run_ids is not None:
            ids = (run_ids,) if isinstance(run_ids, str) else tuple(dict.fromkeys(run_ids))
            for run_id in ids:
                check_id(run_id, "run id")
            await self.store.journal.open()
            chosen: AsyncIterator[_Chosen] = _each([await self._named(one, damaged=damaged) for one in ids])
        elif planned is not None:
            await self.store.journal.open()
            chosen = _as_planned(self._tools, planned)
        else:
            retention = rules(older_than=older_than, keep=keep, status=status, workflow=workflow)
            await self.store.journal.open()
            chosen = retention.chosen(self._tools)
        return await _pruned(self._tools, chosen, deadline, dry_run=dry_run)

    async def _named(self, run_id: str, *, damaged: bool) -> RunHeader | DamagedHeader:
        found = await ask(self.store.journal.damaged_header, run_id) if damaged else None
        return found or await admission.header_of(self._tools, run_id, self.store.url)

    async def sweep(
        self, *, run_ids: str | Sequence[str] | None = None, dry_run: bool = False
    ) -> sweeping.SweepReport:
        """Takes what belongs to no run any more: late records of runs pruned a day ago, and orphan blobs.

        To be called once a day or so, by one process; several at once do no harm. No run is touched.

        Args:
            run_ids: Only what these have left behind; of all runs when None.
            dry_run: Only count.

        Raises:
            JournalUnavailable, StoreMisconfigured: The store can't be reached, or doesn't permit it.
        """
        ids = (run_ids,) if isinstance(run_ids, str) else run_ids
        for run_id in ids or ():
            check_id(run_id, "run id")
        await self.store.journal.open()
        return await sweeping.sweep(self._tools, ids, dry_run=dry_run)


async def _pruned(
    tools: Tools, chosen: AsyncIterator[_Chosen], deadline: WayOut | None, *, dry_run: bool
) -> PruneReport:
    runs: list[PrunedRun] = []
    left: list[LeftRun] = []
    async for header in chosen:
        if deadline is not None and deadline.left_s() <= 0:
            break
        if isinstance(header, LeftRun):
            left.append(header)
            continue
        if isinstance(header, DamagedHeader):
            found = await (count_damaged if dry_run else prune_damaged)(tools, header)
        else:
            found = await (count_run if dry_run else prune_run)(tools, header)
        if isinstance(found, PrunedRun):
            runs.append(found)
        elif found is not None:
            left.append(found)
    return PruneReport(dry_run=dry_run, runs=tuple(runs), left=tuple(left))


async def _each(headers: Sequence[RunHeader | DamagedHeader]) -> AsyncIterator[_Chosen]:
    for header in headers:
        yield header


async def _as_planned(tools: Tools, planned: PruneReport) -> AsyncIterator[_Chosen]:
    """The runs of a plan, as far as they are as they were then."""
    for run in planned.runs:
        if run.status == CORRUPT:
            seen = await ask(tools.journal.damaged_header, run.run_id)
            if seen is not None:
                same = (fence_of(seen) or 0) == run.fence
                yield seen if same else LeftRun(run.run_id, CORRUPT, "it went on since it was shown")
                continue
        header = await ask(tools.journal.header, run.run_id)
        if header is None or header.status == TOMBSTONE:  # somebody else has pruned it
            continue
        if header.fence != run.fence or run.status == CORRUPT:
            yield LeftRun(run.run_id, header.status, "it went on since it was shown")
        else:
            yield header
