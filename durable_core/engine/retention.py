"""Which runs are kept, and which go: by age, by count, by status, by name."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from durable_core.arguments import check_count
from durable_core.clock import rfc3339
from durable_core.engine.asking import ask
from durable_core.errors import UsageError
from durable_core.identity import check_id
from durable_core.journal.base import RunFilter
from durable_core.records import ACTIVE, ENDED, PRUNING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from durable_core.engine.drive import Tools
    from durable_core.engine.pruning import LeftRun, PrunedRun
    from durable_core.records import RunHeader

PRUNABLE: Final = (*ENDED, PRUNING)

_PAGE: Final = 1000
_LONGEST: Final = timedelta(days=36_500)


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneReport:
    """What a prune did, or would do.

    Attributes:
        dry_run: Whether nothing was changed.
        runs: What was pruned, or would be.
        left: What was asked for or met, and stays; and why.
    """

    dry_run: bool
    runs: tuple[PrunedRun, ...] = ()
    left: tuple[LeftRun, ...] = ()

    @property
    def run_ids(self) -> tuple[str, ...]:
        """The ids of what was pruned."""
        return tuple(run.run_id for run in self.runs)

    @property
    def records(self) -> int:
        """Their steps, segments and events."""
        return sum(run.records for run in self.runs)

    @property
    def blobs(self) -> int:
        """The blobs that these pointed to."""
        return sum(run.blobs for run in self.runs)

    @property
    def size_bytes(self) -> int:
        """Their inputs and outputs, before compression."""
        return sum(run.size_bytes for run in self.runs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """Which runs go: those that are over and that every condition given here lets go.

    Attributes:
        older_than: Only runs that ended at least so long ago.
        keep: The newest so many of each workflow stay, whatever their age.
        statuses: Only these; PRUNING are those that an earlier prune left half-way.
        workflow: Only its runs.
    """

    older_than: timedelta | None
    keep: int | None
    statuses: tuple[str, ...]
    workflow: str | None

    async def chosen(self, tools: Tools) -> AsyncIterator[RunHeader]:
        """The headers of the runs that go, while they may be pruned already.

        No more than `keep` of each workflow are held.
        """
        latest = None
        if self.older_than is not None:
            until_ms = tools.clock.now_ms() - self.older_than // timedelta(milliseconds=1)
            latest = rfc3339(max(0, until_ms))
        newest: dict[str, list[tuple[str, str, RunHeader]]] = {}
        for status in self.statuses:
            async for header in _listed(tools, status, self.workflow):
                if status == PRUNING:  # nobody can use it any more
                    yield header
                    continue
                going = header
                if self.keep is not None:
                    kept = newest.setdefault(header.workflow, [])
                    one = (_end_of(header), header.run_id, header)
                    if len(kept) < self.keep:
                        heapq.heappush(kept, one)
                        continue
                    going = heapq.heappushpop(kept, one)[-1]  # the oldest of them; with keep=0, itself
                if latest is None or _end_of(going) <= latest:
                    yield going


def rules(
    *,
    older_than: timedelta | None,
    keep: int | None,
    status: str | Sequence[str] | None,
    workflow: str | None,
) -> Retention:
    """Checks what was asked for.

    Raises:
        UsageError: It names no condition at all, or one that can't be.
    """
    if older_than is None and keep is None and status is None and workflow is None:
        raise UsageError(
            "nothing says which runs are to go",
            remedy="Give run ids, older_than, keep, status or workflow; keep=0 for all that are over",
        )
    if older_than is not None:
        _check_age(older_than)
    if keep is not None:
        check_count("keep", keep, least=0)
    if workflow is not None:
        check_id(workflow, "workflow name")
    return Retention(older_than=older_than, keep=keep, statuses=_statuses(status), workflow=workflow)


def _check_age(older_than: object) -> None:
    if not isinstance(older_than, timedelta) or not timedelta() <= older_than <= _LONGEST:
        raise UsageError(f"older_than={older_than!r} must be a timedelta from 0 to {_LONGEST.days} days")


def _statuses(status: str | Sequence[str] | None) -> tuple[str, ...]:
    if status is None:
        return (PRUNING, *ENDED)
    given = (status,) if isinstance(status, str) else tuple(dict.fromkeys(status))
    for one in given:
        if one in ACTIVE:
            raise UsageError(
                f"status={one!r}: a run that isn't over is never pruned", remedy="Cancel it first"
            )
        if one not in PRUNABLE:
            raise UsageError(
                f"status={one!r} is no status of a run that is over",
                remedy=f"Use one of: {', '.join(PRUNABLE)}",
            )
    if not given:
        raise UsageError("status names none", remedy=f"Use one of: {', '.join(PRUNABLE)}")
    return tuple(sorted(given, key=lambda one: one != PRUNING))  # what was begun is finished first


async def _listed(tools: Tools, status: str, workflow: str | None) -> AsyncIterator[RunHeader]:
    """The headers with a status; what was listed may be pruned before the next page."""
    before: tuple[str, str] | None = None
    while True:
        wanted = RunFilter(status=status, workflow=workflow, before=before, limit=_PAGE)
        page = await ask(tools.journal.runs, wanted)
        for header in page:
            yield header
        if len(page) < _PAGE:
            return
        before = (page[-1].created_at, page[-1].run_id)


def _end_of(header: RunHeader) -> str:
    """When it ended; runs are judged by that, not by when they began."""
    return header.ended_at or header.updated_at
