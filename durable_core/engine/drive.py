"""The state of one drive: what one owner knows of its run, from acquire to the way out."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from durable_core.clock import epoch_ms
from durable_core.control_flow import ControlFlow, RunInterrupted
from durable_core.engine.asking import ask_again
from durable_core.engine.ranks import Ranked
from durable_core.engine.tally import Tally
from durable_core.errors import DurableError, Fenced, JournalUnavailable, StepNotFound, UsageError
from durable_core.identity import place
from durable_core.log import get_logger
from durable_core.plain_code import PlainCode
from durable_core.records import FAILED

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from structlog.typing import FilteringBoundLogger

    from durable_core.checkpointer import Checkpointer
    from durable_core.checkpoints.base import CheckpointStore
    from durable_core.clock import Clock
    from durable_core.engine.asking import R
    from durable_core.engine.dispatch import Dispatch
    from durable_core.engine.invocation import Invocation
    from durable_core.engine.lease import HeldLease, Renewals
    from durable_core.engine.outputs import StoredOutcomes
    from durable_core.engine.stopping import WayOut
    from durable_core.engine.suspension import Suspension
    from durable_core.engine.threads import BodyThreads
    from durable_core.engine.values import Values
    from durable_core.identity import KeyMaker
    from durable_core.journal.base import Holding, Journal
    from durable_core.records import RunHeader, Segment, StepRecord
    from durable_core.scope import Halt, Scope
    from durable_core.step_definition import Step


_REFUSALS_TOLD: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """What all drives of one executor share.

    Attributes:
        outcomes: What the results of maps are read by.
        threads: Where `def` bodies run.
        lease_ms: How long a lease lasts from each renewal, in a process that has no known end.
        run_crash_limit: Takeovers in a row from owners that finished nothing before a run is failed.
        grace_s: How long a way out waits for `def` bodies before it leaves the lease to run out.
        checkpointer: Saves checkpoints of runs that belong to a session; None when none are wanted.
        dispatch: Is told of work for others; None where they look for it.
        longest_s: The longest that each step has been seen to take, by its name, where there is a deadline.
        invocation: Where the process is ended at a known time.
        checkpoints: Where checkpoints of agents are; None where the store keeps none.
        views: The maps that chunks of are worked on here, by what tells them apart.
    """

    journal: Journal
    values: Values
    outcomes: StoredOutcomes
    clock: Clock
    renewals: Renewals
    threads: BodyThreads
    lease_ms: int
    grace_s: float
    run_crash_limit: int
    checkpointer: Checkpointer | None = None
    dispatch: Dispatch | None = None
    longest_s: dict[str, float] = field(default_factory=dict)
    invocation: Invocation | None = None
    checkpoints: CheckpointStore | None = None
    views: dict[Any, Any] = field(default_factory=dict)

    def lease_now_ms(self) -> int:
        """How long a lease has to last that is taken or renewed now."""
        return self.lease_ms if self.invocation is None else self.invocation.lease_ms(self.clock)

    def within(self, way_out: WayOut | None) -> Tools:
        """These tools, for drives that are in one invocation, if that is what ends them."""
        invocation = way_out.invocation if way_out is not None else None
        return self if invocation is None else replace(self, invocation=invocation)

    @property
    def log(self) -> FilteringBoundLogger:
        """A logger, as logging is configured now."""
        return get_logger("durable_core")


@dataclass(slots=True, kw_only=True)
class Drive(Ranked):
    """One owner's drive of one run.

    Attributes:
        gone: The fences of owners that never released the run, and from when on each is dead for certain, not
            merely out of its lease: milliseconds since the epoch; None: nobody can tell.
        redrive: Ids of the failures that get a fresh budget, and haven't had it yet.
        redrive_fence: The fence under which the run failed; what failed later has had its fresh budget.
        grace_s: How long a cancellation waits for `def` bodies; none is left at a deadline.
        keeps_changed: Recorded outputs are used although their steps are called with another input now.
        records_only: Whether it only replays what is recorded: it begins nothing, and writes nothing.
        way_out: What may make this drive leave the run before its end.
        tally: What the drive comes to.
        begun: How many steps this drive was the first to begin.
        records: What earlier drives recorded and this one has not come to; a step takes its record out.
        counts: Steps of the run by status.
        stopped: Why nothing more may be begun; the first reason stays.
        left_early: The drive is being left before its steps have come to a boundary.
        refusals: How often a verb has raised because the drive is stopped.
        tasks: The tasks that are inside a step, each with how many it is in.
        deferred: The tasks that were cancelled while a `def` body ran: cancelled once its outcome is
            committed.
        strays: `def` bodies that go on after nobody waits for them any more.
        entered: How often a task has come to a step.
        suspension: Who waits, and what becomes of the run when nobody does anything else.
        plain_code: Threads of `def` workflow code that are not inside a verb.
        suspects: Held by a step that was running when its process died: these run one at a time.
        idle: Set when the last task leaves its step.
    """

    tools: Tools
    header: RunHeader
    lease: Holding
    keys: KeyMaker
    gone: dict[int, int | None] = field(default_factory=dict)
    redrive: set[str] = field(default_factory=set)
    redrive_fence: int = 0
    keeps_changed: bool = False
    records_only: bool = False
    grace_s: float = field(init=False)
    way_out: WayOut | None = None
    tally: Tally = field(default_factory=Tally)
    held: HeldLease = field(init=False)
    log: FilteringBoundLogger = field(init=False)
    begun: int = 0
    records: dict[str, StepRecord] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    stopped: BaseException | None = None
    left_early: bool = False
    refusals: int = 0
    workflow_task: asyncio.Task[Any] | None = None
    tasks: dict[asyncio.Task[Any], int] = field(default_factory=dict)
    entered: int = 0
    deferred: set[asyncio.Task[Any] | None] = field(default_factory=set)
    strays: set[asyncio.Future[Any]] = field(default_factory=set)
    suspects: asyncio.Lock = field(default_factory=asyncio.Lock)
    suspension: Suspension = field(init=False)
    plain_code: PlainCode = field(default_factory=PlainCode)
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    _pauses: dict[asyncio.Task[None], tuple[Halt | None, bool]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Takes what is fixed for the whole drive, or changed by it."""
        self.log = self.tools.log
        self.grace_s = self.tools.grace_s

    @property
    def run_id(self) -> str:
        """The run."""
        return self.header.run_id

    # ---- What may still be done ----

    def stop(self, reason: BaseException) -> None:
        """From now on every verb raises this, whatever the workflow catches; waits between attempts end."""
        if self.stopped is None:
            self.stopped = reason
        self.wake(None)

    def interrupt(self, reason: BaseException) -> None:
        """Stops from outside: nothing more is begun, and what can be cancelled is."""
        self.stop(reason)
        if self.workflow_task is not None:
            self.workflow_task.cancel()
        for task in self.tasks:
            task.cancel()

    def counted(self) -> dict[str, int]:
        """Steps by status, as the header has them."""
        return {status: count for status, count in sorted(self.counts.items()) if count}

    def check(self) -> None:
        """Raises why nothing more may be begun, if so.

        A workflow that goes on all the same, catching exceptions in a loop, is ended by one that isn't an
        `Exception`.
        """
        if self.stopped is not None:
            self.refusals += 1
            if self.refusals > _REFUSALS_TOLD:
                raise RunInterrupted(f"the run is stopped: {self.stopped}") from self.stopped
            raise poison(self.stopped)

    def check_may_begin(self, step_id: str) -> None:
        """Refuses to begin a step where only what is recorded is replayed.

        Raises:
            StepNotFound: It has no outcome; the drive is stopped.
        """
        if self.records_only:
            error = StepNotFound(
                "the workflow comes to a step that has no recorded outcome, and only those are replayed",
                run_id=self.run_id,
                step_id=step_id,
                remedy="Resume the run, or a fork of it, to run the step",
            )
            self.stop(error)
            raise error

    async def check_lease(self) -> None:
        """Renews a lease that may be over, before anything is started under it.

        Raises:
            Fenced: It is somebody else's by now.
            JournalUnavailable: Nobody can tell.
        """
        await self.ask(asyncio.to_thread, self.tools.renewals.renew_now, self.held)

    async def ask(self, verb: Callable[..., Awaitable[R]], *args: Any, **options: Any) -> R:
        """One journal call, made again as it was when no reply came; the journal's errors stop the drive."""
        try:
            try:  # in this frame, because it is done twice a step
                return await verb(*args, **options)
            except JournalUnavailable as error:
                return await ask_again(error, verb, *args, **options)
        except DurableError as error:
            error.run_id = error.run_id or self.run_id
            self.stop(error)
            raise

    async def pages(self, found: AsyncIterator[R]) -> AsyncIterator[R]:
        """What a journal gives page by page; its errors stop the drive."""
        try:
            async for page in found:
                yield page
        except DurableError as error:
            error.run_id = error.run_id or self.run_id
            self.stop(error)
            raise

    def place(self) -> str:
        """The place, among the steps of the run, of one that is first begun now."""
        self.begun += 1
        return place(self.lease.fence, self.begun)

    def fenced_by(self, row: StepRecord | Segment | None) -> Fenced:
        """Stops, because a refusal tells that somebody else drives the run."""
        whose = f"fence {row.fence}" if row is not None else "another process"
        error = Fenced(
            f"another driver began the step or took the run over ({whose}, ours is {self.lease.fence})",
            run_id=self.run_id,
            step_id=row.step_id if row is not None else None,
            remedy="This process has given way and writes nothing more to the run",
        )
        self.stop(error)
        return error

    # ---- What a record means under this fence ----

    def owns(self, record: StepRecord) -> bool:
        """Whether a record is of this life of the run's id."""
        return record.fence > self.lease.base_fence

    def is_redriven(self, record: StepRecord, step: Step[..., Any]) -> bool:
        """Whether a FAILED step gets a fresh budget: it ended the resumed run, and wasn't redone since."""
        unguarded = not step.options.is_guarded or step.options.verify is not None
        return unguarded and record.step_id in self.redrive and record.fence <= self.redrive_fence

    def is_reopened(self, record: StepRecord) -> bool:
        """Whether a join that failed is tried again: the run was resumed because of it."""
        return record.step_id in self.redrive and record.fence <= self.redrive_fence

    def crashed(self, record: StepRecord) -> bool:
        """Whether the owner of an attempt died in it: it never released the run."""
        return self.rank(record) in self.gone

    def has_ended(self, record: StepRecord) -> bool:
        """Whether nobody can still be in a body: it ended, or its process is dead for certain.

        Never, where an attempt before it was begun over while its own owner might still be alive.
        """
        if record.details().get("unsure"):
            return False
        dead_from_ms = self.gone.get(self.rank(record))
        if dead_from_ms is not None and self.tools.clock.now_ms() >= dead_from_ms:
            return True
        detail = record.details()
        stopped = bool(detail.get("interrupted") or detail.get("overran"))
        ended = record.status == FAILED or record.error is not None or stopped
        return ended and not detail.get("left_running")

    def ran_half_its_time(self, attempt: StepRecord) -> bool:
        """Whether a body that is interrupted has had at least half of what one invocation may take."""
        if attempt.started_at is None:
            return False
        return self.is_half_its_time(self.tools.clock.now_ms() - epoch_ms(attempt.started_at))

    def is_half_its_time(self, ran_ms: int) -> bool:
        """Whether so long is at least half of what one invocation may take."""
        invocation = self.tools.invocation
        return invocation is not None and ran_ms >= invocation.time_out_ms / 2

    # ---- Who is in a step ----

    def enter(self) -> asyncio.Task[Any]:
        """A step goes live in the current task."""
        task = asyncio.current_task()
        if task is None:
            raise UsageError("a step was awaited outside a task", remedy="Await it in the workflow")
        self.tasks[task] = self.tasks.get(task, 0) + 1
        self.entered += 1
        self.tools.journal.live += 1
        return task

    def leave(self, task: asyncio.Task[Any], before: str | None, after: str | None) -> None:
        """A step has reached its boundary; its record had one status when it was called, another now."""
        self.tools.journal.live -= 1
        if before is not None:
            self.counts[before] -= 1
        if after is not None:
            self.counts[after] += 1
        left = self.tasks[task] - 1
        if left:
            self.tasks[task] = left
        else:
            del self.tasks[task]
            if not self.tasks:
                self.idle.set()

    @contextmanager
    def inside(self) -> Iterator[None]:
        """The current task is busy with the engine's own work for a step."""
        task = self.enter()
        try:
            yield
        finally:
            self.leave(task, None, None)

    async def pause(self, seconds: float, scope: Scope, *, listens: bool = False) -> None:
        """Waits at a step boundary, until the drive or the branch is stopped; or, if it listens, an event
        may have come.
        """
        sleeper = asyncio.get_running_loop().create_task(_slept(self.tools.clock, seconds))
        self._pauses[sleeper] = scope.halt, listens
        try:
            if self.stopped is None and not (scope.halt is not None and scope.halt.is_set()):
                await asyncio.wait((sleeper,))
                if not sleeper.cancelled():
                    sleeper.result()  # a clock that can't wait says so; who waits would ask it for ever
        finally:
            del self._pauses[sleeper]
            sleeper.cancel()

    def wake(self, halt: Halt | None) -> None:
        """Ends the waits between attempts: of halted branches, or all when the drive is stopped."""
        for sleeper, (of, _) in list(self._pauses.items()):
            if halt is None or (of is not None and of.is_set()):
                sleeper.cancel()

    def is_waking(self) -> bool:
        """Whether the wait of somebody has ended who hasn't gone on yet."""
        return any(sleeper.done() or sleeper.cancelling() for sleeper in self._pauses)

    def listen(self) -> None:
        """Ends the waits of those who listen."""
        for sleeper, (_, listens) in list(self._pauses.items()):
            if listens:
                sleeper.cancel()


async def _slept(clock: Clock, seconds: float) -> None:
    await clock.sleep(seconds)


def poison(reason: BaseException) -> BaseException:
    """A fresh instance of a reason to raise: one raised twice would gather tracebacks and contexts."""
    if isinstance(reason, ControlFlow | asyncio.CancelledError):
        return type(reason)(*reason.args)
    return reason
