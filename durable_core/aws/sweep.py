"""`sweep_runs`: has runs driven that are due, lets old ones go, takes what the dead have left.

A pass ends with its invocation: it stops between two runs. What is due comes first, in every pass. The rest
is done once an hour, each time for another share of the runs, so that each is looked at once a day.
"""

from __future__ import annotations

import asyncio
import zlib
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from durable_core.aws.environment import read_environment
from durable_core.aws.requests import told_by
from durable_core.aws.sandbox import Handler, Invoked, Sandbox
from durable_core.clock import rfc3339
from durable_core.engine.sweeping import SECOND_PASS_S
from durable_core.errors import InvalidEvent
from durable_core.log import get_logger
from durable_core.records import CORRUPT, SUSPENDED

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from durable_core.aws.deadline import LambdaDeadline
    from durable_core.records import RunHeader

Part = Literal["due", "prune", "sweep"]

MOST_DUE: Final = 1_000
"""How many due runs one pass sends for: the next one is a minute later."""

GRACE_S: Final = 30
"""A run that was released or whose lease ended has a message on its way; it gets so long to arrive."""

STALLED_AFTER_S: Final = 900
"""A run that is due for longer isn't merely waiting its turn: an alarm is on it."""

_SHARES: Final = 24
_AT_ONCE: Final = 20


class SweepRequest(BaseModel):
    """Which parts of a sweep are to be done; of a schedule's event, as the time says.

    Attributes:
        do: `due`, `prune`, `sweep`.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    do: tuple[Part, ...] | None = None
    time: datetime | None = None


def sweep_handler() -> Handler[dict[str, int]]:
    """The handler of a function that a schedule triggers, once a minute.

    Called with `{"do": ["due", "prune", "sweep"]}` it does those, of all runs.

    Raises:
        UsageError: A variable of its environment is missing.

    Example:
        handler = sweep_handler()
    """
    environment = read_environment("drive_queue_url", "retention_days")
    sandbox = Sandbox("sweep_runs", environment)

    async def answer(invoked: Invoked) -> dict[str, int]:
        request = _request(invoked.event)
        sweep = _Sweep(sandbox, invoked.deadline, request)
        log = get_logger("durable_core")
        try:
            async with asyncio.timeout(max(invoked.deadline.left_s(), 0)):
                await sweep.done(environment.retention_days or 0)
        except TimeoutError:  # in the middle of a large run; the next pass goes on with it
            log.warning("sweep_cut_short")
        sandbox.metrics.put(sweep.counts)
        log.info("runs_swept", **sweep.counts)
        return sweep.counts

    return Handler(sandbox, answer)


def _request(event: object) -> SweepRequest:
    try:
        return SweepRequest.model_validate(event if event is not None else {})
    except ValidationError as error:
        raise InvalidEvent(f"the request can't be understood: {told_by(error)}") from None


class _Sweep:
    """One pass.

    Attributes:
        counts: What it came to, as metrics.
    """

    def __init__(self, sandbox: Sandbox, deadline: LambdaDeadline, request: SweepRequest) -> None:
        self._sandbox = sandbox
        self._deadline = deadline
        self._do = request.do
        self._now_ms = sandbox.clock.now_ms()
        self._at = request.time or datetime.fromtimestamp(self._now_ms / 1000, UTC)
        self.counts: dict[str, int] = {}

    async def done(self, retention_days: int) -> None:
        """Does the parts that are wanted now, one after the other."""
        if self._does("due"):
            await self._send_for_due()
        if self._does("prune") and retention_days:
            await self._prune(timedelta(days=retention_days))
        if self._does("sweep"):
            await self._look_through()

    def _does(self, part: Part) -> bool:
        """Whether a part is done in this pass."""
        if not self._has_time():
            return False
        return part in self._do if self._do is not None else part == "due" or self._at.minute == 0

    async def _send_for_due(self) -> None:
        """Has those driven that are due, and that no message is on its way for, as far as can be told."""
        found = await self._sandbox.executor.store.journal.due(limit=MOST_DUE)
        overdue = [header for header in found if header.due_at_ms <= self._now_ms - _grace_ms(header)]
        wanted = [one.run_id for one in overdue if one.status != CORRUPT]
        await self._sandbox.dispatch.drive_all(wanted)
        stalled = sum(one.due_at_ms <= self._now_ms - STALLED_AFTER_S * 1000 for one in found)
        self.counts |= {"RunsResent": len(wanted), "RunsStalled": stalled}

    async def _prune(self, retention: timedelta) -> None:
        """Lets go what has been over for long."""
        report = await self._sandbox.executor.prune(older_than=retention, deadline=self._deadline)
        self.counts["RunsPruned"] = len(report.runs)

    async def _look_through(self) -> None:
        """Takes late records of pruned runs, and orphan blobs."""
        executor, records, orphans = self._sandbox.executor, 0, 0
        async for run_ids in self._shares():
            if not self._has_time():
                break
            report = await executor.sweep(run_ids=run_ids)
            records, orphans = records + report.records, orphans + report.orphans
        self.counts |= {"LateRecords": records, "OrphanBlobs": orphans}

    async def _shares(self) -> AsyncIterator[list[str]]:
        """The ids that are looked at in this pass, some at a time."""
        some: list[str] = []
        async for run_id in self._candidates():
            if self._is_mine(run_id):
                some.append(run_id)
            if len(some) == _AT_ONCE:
                yield some
                some = []
        if some:
            yield some

    async def _candidates(self) -> AsyncIterator[str]:
        store = self._sandbox.executor.store
        before = rfc3339(self._now_ms - SECOND_PASS_S * 1000)
        tombstones = [one.run_id for one in await store.journal.tombstones(before, limit=MOST_DUE)]
        for run_id in tombstones:
            yield run_id
        known = set(tombstones)
        async for run_id in store.blobs.runs():
            if run_id not in known:
                yield run_id

    def _is_mine(self, run_id: str) -> bool:
        return self._do is not None or zlib.crc32(run_id.encode()) % _SHARES == self._at.hour

    def _has_time(self) -> bool:
        return self._deadline.left_s() > 0


def _grace_ms(header: RunHeader) -> int:
    return 0 if header.status == SUSPENDED else GRACE_S * 1000
