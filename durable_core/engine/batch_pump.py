"""The workers of a map: they pull items and run them, no faster than what comes of them becomes durable."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from durable_core.outcomes import ERROR
from durable_core.rate import TokenBucket

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from durable_core.engine.batch_intake import Intake, Item
    from durable_core.engine.batch_items import Ended, ItemRunner
    from durable_core.engine.batch_log import ChunkLog
    from durable_core.engine.batch_progress import MapProgress
    from durable_core.engine.drive import Drive
    from durable_core.engine.step_records import Call
    from durable_core.map_options import MapOptions

_FAILURES_TOLD: Final = 3


class Pump:
    """Runs the items of one map, `max_concurrency` at a time.

    Never are more pulled than that beyond those that are durable and one segment: a slow journal slows the
    intake.

    Args:
        drive: Of the run.
        call: Of the map.
        options: Of the map.
        intake: Where items come from.
        runner: What runs one.
        log: Where outcomes go.
        progress: Is kept up to date.
        total: Of the items whose failures are tolerated; those of the intake when None.
        watch: Is called whenever an item is about to be started.
    """

    def __init__(
        self,
        drive: Drive,
        call: Call,
        options: MapOptions,
        intake: Intake,
        runner: ItemRunner,
        log: ChunkLog,
        progress: MapProgress,
        *,
        total: int | None = None,
        watch: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._drive = drive
        self._scope = call.scope
        self._options = options
        self._intake = intake
        self._runner = runner
        self._log = log
        self._progress = progress
        self._total = total
        self._watch = watch
        self.bucket = TokenBucket(options.rate, drive.tools.clock) if options.rate is not None else None
        self._starting = asyncio.Lock()
        self._workers: set[asyncio.Task[None]] = set()
        self._new_failures = 0
        self.first_failures: list[str] = []
        self.error: BaseException | None = None

    @property
    def failed(self) -> int:
        """Items that failed, now or in an earlier life."""
        return self._intake.failed_before + self._new_failures

    def is_over_limit(self) -> bool:
        """Whether more have failed than is tolerated."""
        limit = self._options.tolerated(self._total or self._intake.total)
        return limit is not None and self.failed > limit

    async def run(self) -> None:
        """Until every item has an outcome, or no more are to be started and those in flight have come to one.

        What ended it early is in `error`, or is seen in the drive and the scope.

        Raises:
            CancelledError: It was stopped from outside; so were the items.
        """
        self._start_worker()
        try:
            while self._workers:
                await asyncio.wait(self._workers)
        except asyncio.CancelledError:
            if self._drive.stopped is None:  # else it has cancelled them, and once is right
                for worker in self._workers:
                    worker.cancel()
            while self._workers:
                await asyncio.wait(self._workers)
            raise

    def _start_worker(self) -> None:
        worker = asyncio.get_running_loop().create_task(
            self._work(), name=f"durable:{self._drive.run_id}:map"
        )
        self._workers.add(worker)
        worker.add_done_callback(self._workers.discard)

    async def _work(self) -> None:
        drive, progress = self._drive, self._progress
        task = drive.enter()
        try:
            while (item := await self._next()) is not None:
                progress.in_flight += 1
                try:
                    ended = await self._runner.run(item)
                finally:
                    progress.in_flight -= 1
                self._finish(item, ended)
                if task in drive.deferred:
                    drive.deferred.discard(task)
                    return
                if self._log.is_full():
                    await self._log.until_room()
        except asyncio.CancelledError:
            pass  # by `run`, or because the drive is interrupted: either says so itself
        except BaseException as error:  # kept for whoever waits for all workers
            self.error = self.error or error
        finally:
            drive.leave(task, None, None)

    async def _next(self) -> Item | None:
        """The next item, once it may be started; None when no more are to be."""
        if self._watch is not None and not self._starts_no_more():
            await self._watch()
        if self.bucket is None:
            item = await self._pulled()
        else:
            async with self._starting:  # one waits for its start, the others for that: so they keep the order
                item = await self._pulled()
                delay_s = self.bucket.take_s() if item is not None else 0
                if delay_s:
                    await self._drive.pause(delay_s, self._scope)
        if item is None or self._starts_no_more() or not self._runner.has_time():
            return None
        if self._drive.held.is_over():
            await self._drive.check_lease()
        return item

    async def _pulled(self) -> Item | None:
        if self._starts_no_more():
            return None
        item = await self._intake.next()
        more = item is not None and not self._intake.exhausted
        if more and len(self._workers) < self._options.max_concurrency:
            self._start_worker()
        return item

    def _starts_no_more(self) -> bool:
        stopped = self._drive.stopped is not None or self.error is not None or self._is_halted()
        return stopped or self.is_over_limit()

    def _is_halted(self) -> bool:
        return self._scope.halt is not None and self._scope.halt.is_set()

    def _finish(self, item: Item, ended: Ended) -> None:
        outcome = ended.outcome
        progress = self._progress
        progress.total = self._intake.total
        progress.done += 1
        if outcome.kind == ERROR:
            progress.failed += 1
            self._new_failures += 1
            if len(self.first_failures) < _FAILURES_TOLD:
                self.first_failures.append(_told(item, outcome.error()))
        progress.log_if_due(self._drive.log)


def _told(item: Item, error: dict[str, Any]) -> str:
    named = f"item {item.position}" if item.key is None else f"item {item.key!r}"
    return f"{named}: {error.get('type')}: {error.get('message')}"
