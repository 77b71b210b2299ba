"""A worker: takes runs that are due, and chunks of maps that are shared, so many at a time, beside others.

Nothing is kept here that matters: what is due is in the journal, and whoever acquires a run drives it. A run
that waits is left SUSPENDED and costs nothing. Workers look at different moments, and in another order, so
that they seldom ask for the same run.
"""

from __future__ import annotations

import asyncio
import random
import traceback
from collections import Counter
from typing import TYPE_CHECKING, Final

from durable_core.arguments import check_count, check_number
from durable_core.engine.chunk_offers import ChunkOffers, Offer
from durable_core.engine.chunk_result import BUSY, DONE, GONE
from durable_core.engine.chunk_taking import work_chunk
from durable_core.engine.draining import Drain
from durable_core.engine.due_runs import DueRun, DueRuns
from durable_core.engine.taking import LEFT, Taken, take
from durable_core.errors import CorruptRecord, DurableError, Fenced, JournalUnavailable, RunBusy, RunPruned

if TYPE_CHECKING:
    from collections.abc import Callable

    from durable_core.engine.drive import Tools

DEFAULT_CONCURRENCY: Final = 10
DEFAULT_DRAIN_S: Final = 20.0

_LOOK_EVERY_S: Final = 1.0
_LOOK_FOR_DEAD_EVERY_S: Final = 3.0
_JITTER: Final = 0.25
_CHOICE: Final = 4  # due runs looked at for each that can be started: two workers then seldom choose the same
_PER_HEADER_S: Final = 0.001  # a look at very many runs may not take all the time
_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 15.0


class Worker:
    """Takes runs that are due, or whose driver is dead, and drives them until they end or wait.

    What room is left goes to chunks of maps with `distribute=True`, each of which counts like a run. A run of
    a workflow that this process has not defined is left alone; a FAILED one is for `resume`.

    Args:
        tools: The executor's.
        concurrency: How many runs are driven, and chunks worked on, at a time.
        drain_s: How long steps that are in flight may go on once the worker is to stop.

    Attributes:
        counts: How many runs were taken, by what came of them.
        chunks: How many chunks were worked on, by what came of them.

    Raises:
        UsageError: A setting is out of range.

    Example:
        worker = executor.worker(concurrency=20)
        await worker.serve()
    """

    def __init__(
        self, tools: Tools, *, concurrency: int = DEFAULT_CONCURRENCY, drain_s: float = DEFAULT_DRAIN_S
    ) -> None:
        check_count("concurrency", concurrency)
        check_number("drain_s", drain_s, least=0)
        self._tools = tools
        self._concurrency = concurrency
        self._drain_s = drain_s
        self._due = DueRuns(tools)
        self._drain = Drain()
        self._offers = ChunkOffers(tools, self._due)
        self._driven: dict[str, asyncio.Task[Taken]] = {}
        self._worked_on: set[asyncio.Task[None]] = set()
        self._on_taken: Callable[[Taken], None] = lambda _: None
        self._stirred = asyncio.Event()  # a run was left
        self._stop = asyncio.Event()
        self._cut_timer: asyncio.TimerHandle | None = None
        self._is_open = False
        self._dead_looked_for_ms = -_LOOK_FOR_DEAD_EVERY_S * 1000
        self._failed_looks = 0
        self.counts: Counter[str] = Counter()
        self.chunks: Counter[str] = Counter()

    async def serve(self) -> None:
        """Works until it is drained; a store out of reach is waited for.

        Raises:
            StoreMisconfigured, SchemaTooNew: The store can't be worked with.
        """
        try:
            while not self._drain.begun:
                await self._rest(await self._look_safely())
        finally:
            await self._leave()

    async def recover(self) -> list[Taken]:
        """Drives once what is due now, or has a dead driver, and ends.

        Returns:
            What came of each run, in the order in which they came to it.

        Raises:
            StoreNotFound: There is no store.
            JournalUnavailable, StoreMisconfigured: The store is out of reach, or can't be worked with.
        """
        await self._tools.journal.open(create=False)
        headers = [*await self._due.all(), *await self._due.orphaned()]
        found: list[Taken] = []
        self._on_taken = found.append
        waiting = self._due.known({header.run_id: header for header in headers}.values())
        try:
            await self._take_all(waiting)
            done = self.chunks[DONE]
            while (offers := await self._offers.some(self._room())) and not self._drain.begun:
                for offer in offers:
                    self._start_chunk(offer)
                await self._until_room()
            await self._until_idle()
            if self.chunks[DONE] > done:  # some of these runs may go on now
                await self._take_all(self._due.known(await self._due.all()))
        finally:
            await self._leave()
        return found

    async def _take_all(self, waiting: list[DueRun]) -> None:
        while waiting and not self._drain.begun:
            while waiting and self._room():
                self._start(waiting.pop(0))
            await self._until_room()
        await self._until_idle()

    def drain(self) -> None:
        """Takes no more runs, and leaves the others at the next step boundary; `serve` then returns.

        What is still in flight after `drain_s`, or when this is called again, is interrupted.
        """
        if self._drain.begun:
            self._drain.cut()
            return
        self._tools.log.info("worker_draining", runs=len(self._driven), chunks=len(self._worked_on))
        self._drain.begin()
        self._stop.set()
        self._stirred.set()
        self._cut_timer = asyncio.get_running_loop().call_later(self._drain_s, self._drain.cut)

    @property
    def was_cut(self) -> bool:
        """Whether steps in flight had to be interrupted when it was drained."""
        return self._drain.was_cut

    # ---- Looking ----

    async def _look_safely(self) -> float:
        """Looks for runs and starts them; gives how long to wait before the next look, in seconds."""
        log = self._tools.log
        try:
            if not self._is_open:
                await self._tools.journal.open()
                self._is_open = True
            pause_s = await self._look()
        except (JournalUnavailable, CorruptRecord) as error:
            pause_s = min(_FIRST_PAUSE_S * 2 ** min(self._failed_looks, 10), _LONGEST_PAUSE_S)
            self._failed_looks += 1
            log.warning(
                "worker_cannot_look", reason=str(error), next_look_s=pause_s, times=self._failed_looks
            )
        else:
            if self._failed_looks:
                log.info("worker_looks_again", after=self._failed_looks)
            self._failed_looks = 0
        return pause_s * random.uniform(1 - _JITTER, 1 + _JITTER)

    async def _look(self) -> float:
        room = self._room()
        left_alone = self._due.left_alone
        headers, is_full = await self._due.page(room * _CHOICE)
        found = self._due.known(header for header in headers if header.run_id not in self._driven)
        random.shuffle(found)
        if not found:
            found = await self._orphaned()
        if self._drain.begun:
            return 0
        for due in found[:room]:
            self._start(due)
        offers = await self._offers.some(self._room())
        for offer in offers:
            self._start_chunk(offer)
        if offers and not self._room():  # there may be more
            return 0
        if len(found) > room or (is_full and (found or self._due.left_alone > left_alone)):
            return 0
        return max(_LOOK_EVERY_S, len(headers) * _PER_HEADER_S)

    async def _orphaned(self) -> list[DueRun]:
        now_ms = self._tools.clock.boot_ms()
        if now_ms - self._dead_looked_for_ms < _LOOK_FOR_DEAD_EVERY_S * 1000:
            return []
        self._dead_looked_for_ms = now_ms
        self._due.forget_old()
        return self._due.known(await self._due.orphaned())

    async def _rest(self, pause_s: float) -> None:
        """Waits for the next look: so long, then until there is room for a run."""
        if pause_s:
            nap = asyncio.ensure_future(self._tools.clock.sleep(pause_s))
            stop = asyncio.ensure_future(self._stop.wait())
            try:
                await asyncio.wait((nap, stop), return_when=asyncio.FIRST_COMPLETED)
            finally:
                nap.cancel()
                stop.cancel()
                await asyncio.wait((nap, stop))
        await self._until_room()

    def _room(self) -> int:
        return max(self._concurrency - len(self._driven) - len(self._worked_on), 0)

    async def _until_room(self) -> None:
        while not self._room() and not self._drain.begun:
            self._stirred.clear()
            await self._stirred.wait()

    async def _until_idle(self) -> None:
        while self._driven or self._worked_on:
            self._stirred.clear()
            await self._stirred.wait()

    # ---- Driving ----

    def _start(self, due: DueRun) -> None:
        run_id = due.header.run_id
        call = take(self._tools, due.header, due.workflow, self._drain.way_out())
        task = self._driven[run_id] = asyncio.create_task(call, name=f"durable-worker:{run_id}")
        task.add_done_callback(lambda ended: self._ended(run_id, ended))

    def _ended(self, run_id: str, task: asyncio.Task[Taken]) -> None:
        del self._driven[run_id]
        self._stirred.set()
        if task.cancelled() or task.exception() is not None:
            return
        taken = task.result()
        self.counts[taken.status] += 1
        self._on_taken(taken)
        if taken.status == LEFT and not isinstance(taken.error, RunBusy | RunPruned | Fenced):
            self._due.rest(run_id)
        else:
            self._due.went_on(run_id)

    def _start_chunk(self, offer: Offer) -> None:
        name = f"durable-worker:{offer.header.run_id}:{offer.chunk}"
        task = asyncio.create_task(self._work_on(offer), name=name)
        self._worked_on.add(task)
        task.add_done_callback(self._chunk_ended)

    def _chunk_ended(self, task: asyncio.Task[None]) -> None:
        self._worked_on.discard(task)
        self._stirred.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error

    async def _work_on(self, offer: Offer) -> None:
        """Works on a chunk; what comes of it is told, and the worker goes on."""
        run_id, step_id = offer.header.run_id, offer.of.record.step_id
        log = self._tools.log
        try:
            result = await work_chunk(
                self._tools, run_id, step_id, offer.chunk, offer.workflow, self._drain.way_out()
            )
        except Fenced as error:
            log.warning("chunk_fenced", run_id=run_id, step_id=step_id, reason=str(error))
        except DurableError as error:
            self._due.rest(run_id)
            log.error("chunk_left", run_id=run_id, step_id=step_id, code=error.code, reason=str(error))
        except Exception as error:  # a defect that one map comes upon; the others go on
            self._due.rest(run_id)
            kind, where = type(error).__qualname__, "".join(traceback.format_tb(error.__traceback__))
            log.error("chunk_left", run_id=run_id, step_id=step_id, error=kind, traceback=where)
        else:
            if result.status not in (BUSY, GONE):  # somebody else was faster: this worker had none of it
                self.chunks[result.status] += 1

    async def _leave(self) -> None:
        """Waits for the runs that are being left; if the worker wasn't drained, it is being cancelled."""
        if not self._drain.begun:
            for task in (*self._driven.values(), *self._worked_on):
                task.cancel()
        try:
            await self._until_idle()
        except asyncio.CancelledError:
            self._drain.cut()
            await self._until_idle()
            raise
        finally:
            if self._cut_timer is not None:
                self._cut_timer.cancel()
