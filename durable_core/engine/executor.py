"""The executor: what users start, resume and look at runs with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeVar, get_args, overload

from durable_core.clock import Clock, SystemClock
from durable_core.engine import admission, calls, looking
from durable_core.engine.blocking import BlockingExecutor
from durable_core.engine.carrying import Carrying
from durable_core.engine.chunk_taking import work_chunk
from durable_core.engine.dispatch import tell_drive
from durable_core.engine.driving import Driving
from durable_core.engine.housekeeping import Housekeeping
from durable_core.engine.repairing import Repairing
from durable_core.engine.results import RunResult, RunView, StepView, view_of
from durable_core.engine.running import How, drive_admitted, go_on, released_on_sigterm
from durable_core.engine.stopping import Deadline
from durable_core.engine.tools import check_settings, tools_of
from durable_core.engine.worker import DEFAULT_CONCURRENCY, DEFAULT_DRAIN_S, Worker
from durable_core.envelope import DEFAULT_CAP
from durable_core.errors import UsageError
from durable_core.log import ensure_configured
from durable_core.records import PENDING
from durable_core.store import Store
from durable_core.store_urls import store_url

if TYPE_CHECKING:
    import builtins
    import os
    from datetime import datetime, timedelta

    from durable_core.engine.chunk_result import ChunkResult
    from durable_core.engine.dispatch import Dispatch
    from durable_core.settings import CheckpointingConfig
    from durable_core.workflow import BoundWorkflow, Workflow

R = TypeVar("R")
OnChange = Literal["error", "keep"]
OnWait = Literal["block", "suspend"]

DEFAULT_LEASE_S: Final = 30.0
DEFAULT_RUN_CRASH_LIMIT: Final = 5
DEFAULT_GRACE_S: Final = 10.0


class DurableWorkflowExecutor(Driving, Repairing, Housekeeping, Carrying):
    """Runs workflows and resumes them from their last committed step.

    Args:
        store: The store's URL: `sqlite:///runs.db`, `postgresql://…`, `memory://`; or an opened `Store`.
            Without it, `db_path` and `backend`, or `DURABLE_STORE`, or `sqlite:///durable.db` in this folder.
        db_path: A SQLite file.
        backend: sqlite, postgres, dynamodb, s3 or memory.
        lease_s: Seconds that this process may be silent before another may take its runs over.
        run_crash_limit: Takeovers in a row from owners that finished nothing before a run is failed.
        grace_s: Seconds that a way out waits for `def` bodies.
        output_cap_bytes: The most raw bytes that a value may have.
        checkpointing: For runs with a `session_id`: whether and when checkpoints of their agents are saved.
        clock: The source of time. Without one it is the machine's, and for leases the store's if it has one.
        dispatch: Is told of every piece of work for others, where nobody looks for it.

    Raises:
        UsageError: The arguments name no store, contradict each other, or are out of range.

    Example:
        result = await DurableWorkflowExecutor(db_path="runs.db").run(quarterly_report, task="Q3")
    """

    def __init__(
        self,
        store: str | Store | None = None,
        *,
        db_path: str | os.PathLike[str] | None = None,
        backend: str | None = None,
        lease_s: float = DEFAULT_LEASE_S,
        run_crash_limit: int = DEFAULT_RUN_CRASH_LIMIT,
        grace_s: float = DEFAULT_GRACE_S,
        output_cap_bytes: int = DEFAULT_CAP,
        checkpointing: CheckpointingConfig | None = None,
        clock: Clock | None = None,
        dispatch: Dispatch | None = None,
    ) -> None:
        check_settings(lease_s, run_crash_limit, grace_s, output_cap_bytes)
        ensure_configured()  # a wrong setting is refused here, not in the middle of a run
        if not isinstance(store, Store):
            from durable_core.stores import open_store  # the one import that points up

            store = open_store(store_url(store, db_path, backend), clock)
        clock = clock or SystemClock()
        self.store: Store = store
        self._tools = tools_of(
            self.store,
            clock,
            lease_s=lease_s,
            run_crash_limit=run_crash_limit,
            grace_s=grace_s,
            output_cap_bytes=output_cap_bytes,
            checkpointing=checkpointing,
            dispatch=dispatch,
        )

    # ---- Running ----

    @overload
    async def run(
        self,
        wf: BoundWorkflow[R],
        *,
        run_id: str | None = None,
        resume_run_id: str | None = None,
        session_id: str | None = None,
        wait: bool = False,
        on_change: OnChange = "error",
        on_wait: OnWait = "block",
        deadline: datetime | timedelta | Deadline | None = None,
    ) -> RunResult[R]: ...

    @overload
    async def run(
        self,
        wf: Workflow[..., R],
        *,
        run_id: str | None = None,
        resume_run_id: str | None = None,
        session_id: str | None = None,
        wait: bool = False,
        on_change: OnChange = "error",
        on_wait: OnWait = "block",
        deadline: datetime | timedelta | Deadline | None = None,
        **inputs: object,
    ) -> RunResult[R]: ...

    @released_on_sigterm
    async def run(
        self,
        wf: Workflow[..., R] | BoundWorkflow[R],
        *,
        run_id: str | None = None,
        resume_run_id: str | None = None,
        session_id: str | None = None,
        wait: bool = False,
        on_change: OnChange = "error",
        on_wait: OnWait = "block",
        deadline: datetime | timedelta | Deadline | None = None,
        **inputs: object,
    ) -> RunResult[R]:
        """Runs a workflow to its end; starting the same run again is harmless.

        Args:
            wf: The workflow, or the workflow with its inputs (`wf.bind(…)`).
            run_id: The run's id; a new one when None. If the run exists with the same workflow and inputs: an
                ended one gives its recorded result, one that nobody drives is taken over.
            resume_run_id: The id of a run to go on with, also one that FAILED; without inputs, with the
                recorded ones.
            session_id: Under which agent checkpoints are kept.
            wait: When somebody else drives the run: wait for it instead of raising `RunBusy`.
            on_change: What happens to a committed step that is called with another input now: `error` raises
                `StepMismatch`, `keep` uses the recorded output.
            on_wait: What becomes of the run when everything in it waits: `block` waits here; `suspend` gives
                a result with status SUSPENDED, and whoever drives it when it is due or woken goes on.
            deadline: An aware datetime, or how long from now, at which the run has to be left; on Lambda
                `lambda_deadline(context)`.
            inputs: By name.

        Raises:
            RunFailed: The workflow failed, now or earlier.
            RunCancelled: It was cancelled.
            RunBusy: Somebody else drives it.
            RunInputMismatch: The id belongs to another workflow, other inputs or another session.
            RunNotFound: There is no run to resume.
            DeadlineReached: The run was left as PENDING, to be resumed.
            UsageError, InputNotSerializable: The call can't be made like this.
            Fenced, JournalUnavailable: The run was taken over meanwhile, or its store is out of reach.
        """
        workflow, named = calls.bound(wf, inputs)
        how = self._how(wait=wait, on_change=on_change, on_wait=on_wait, deadline=deadline)
        tools = self._tools.within(how.deadline)
        await self.store.journal.open()
        if resume_run_id is not None:
            if run_id not in (None, resume_run_id):
                raise UsageError("run_id and resume_run_id name different runs", remedy="Give one of them")
            header = await self._header(resume_run_id)
            admission.check_session(header, session_id)
            given = workflow.checked(named) if named or wf is not workflow else None
            return await go_on(tools, header, workflow, given, how, redrive=True)
        named = workflow.checked(named)
        chosen = calls.run_id(workflow, run_id, tools.clock)
        header, mine = await admission.create(tools, workflow, chosen, named, session_id=session_id)
        if mine:
            tools.log.info("run_started", run_id=chosen, fence=header.fence, workflow=workflow.name)
            return await drive_admitted(tools, admission.Admitted(header), workflow, how)
        admission.check_session(header, session_id)
        return await go_on(tools, header, workflow, named, how, redrive=False)

    async def start(
        self,
        wf: Workflow[..., R] | BoundWorkflow[R],
        *,
        run_id: str | None = None,
        session_id: str | None = None,
        **inputs: object,
    ) -> RunView:
        """Records a run for somebody else to drive; starting the same run again is harmless.

        Returns:
            The run as it is now.

        Raises:
            RunInputMismatch: The id belongs to another workflow, other inputs or another session.
            UsageError, InputNotSerializable: The call can't be made like this.
        """
        workflow, named = calls.bound(wf, inputs)
        named = workflow.checked(named)
        await self.store.journal.open()
        chosen = calls.run_id(workflow, run_id, self._tools.clock)
        header, mine = await admission.create(
            self._tools, workflow, chosen, named, owned=False, session_id=session_id
        )
        if not mine:
            admission.check_same(header, workflow, named)
            admission.check_session(header, session_id)
        if header.status == PENDING:  # not made here: whoever made it may not have come to tell
            await tell_drive(self._tools, header)
        return view_of(header)

    @released_on_sigterm
    async def resume(
        self,
        run_id: str,
        wf: Workflow[..., R] | None = None,
        *,
        wait: bool = False,
        on_change: OnChange = "error",
        on_wait: OnWait = "block",
        deadline: datetime | timedelta | Deadline | None = None,
    ) -> RunResult[R]:
        """Goes on with a run from its first step that isn't committed, with the recorded inputs.

        Args:
            run_id: The run; a FAILED one gets a fresh budget for the failures that ended it.
            wf: Its workflow; found by name among those this process has defined when None.
            wait: When somebody else drives the run: wait for it instead of raising `RunBusy`.
            on_change, on_wait, deadline: As of `run`.

        Raises:
            WorkflowNotFound: This process has not defined the workflow.
            RunNotFound, RunBusy, RunFailed, RunCancelled, RunInputMismatch, DeadlineReached: As from `run`.
        """
        how = self._how(wait=wait, on_change=on_change, on_wait=on_wait, deadline=deadline)
        await self.store.journal.open()
        header = await self._header(run_id)
        tools = self._tools.within(how.deadline)
        return await go_on(tools, header, calls.meant(wf, header), None, how, redrive=True)

    def run_sync(self, wf: Workflow[..., R] | BoundWorkflow[R], **options: Any) -> RunResult[R]:
        """`run`, for plain code: same arguments.

        Raises:
            RunningLoop: An event loop is running here; `await executor.run(…)` instead.
        """
        return calls.run_here(self.run(wf, **options), "run")

    @property
    def blocking(self) -> BlockingExecutor:
        """Every operation, for plain code."""
        return BlockingExecutor(self)

    def worker(self, *, concurrency: int = DEFAULT_CONCURRENCY, drain_s: float = DEFAULT_DRAIN_S) -> Worker:
        """What takes runs that are due and drives them: `await executor.worker().serve()`.

        Args:
            concurrency: How many runs are driven at a time.
            drain_s: How long steps in flight may go on once it is to stop.

        Raises:
            UsageError: A setting is out of range.
        """
        return Worker(self._tools, concurrency=concurrency, drain_s=drain_s)

    @released_on_sigterm
    async def work_chunk(
        self,
        run_id: str,
        step_id: str,
        chunk: int,
        *,
        deadline: datetime | timedelta | Deadline | None = None,
        workflow: Workflow[..., Any] | None = None,
    ) -> ChunkResult:
        """Works on one chunk of a map that several workers share, from its last segment on.

        Asked for twice, by whomever, is harmless.

        Args:
            run_id: The run.
            step_id: Of the map.
            chunk: Its number, from 0.
            deadline: An aware datetime, or how long from now, at which the chunk has to be left; what isn't
                done by then is handed back.
            workflow: The run's; found by name among those this process has defined when None.

        Raises:
            WorkflowNotFound, UsageError: This process hasn't defined the workflow; or the map isn't in it.
            Fenced: Somebody else took the chunk over meanwhile.
            JournalUnavailable: The store is out of reach; what was committed stays.
        """
        until = self._until(deadline)
        tools = self._tools.within(until)
        await self.store.journal.open()
        return await work_chunk(tools, run_id, step_id, chunk, workflow, until)

    # ---- Looking ----

    async def get(self, run_id: str) -> RunView:
        """One run.

        Raises:
            RunNotFound: There is none of that id.
        """
        await self.store.journal.open()
        return view_of(await self._header(run_id))

    async def list(
        self,
        *,
        status: str | None = None,
        workflow: str | None = None,
        prefix: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        text: str | None = None,
        before: RunView | None = None,
        limit: int = 100,
    ) -> list[RunView]:
        """Runs, newest first.

        Args:
            status: Only these.
            workflow: Only runs of this workflow.
            prefix: Only run ids that begin with this.
            since, until: Only runs created at this time or later, and before that one.
            text: Only runs that have this in their id, workflow, session or recorded error, in either case.
            before: The last run of the page before.
            limit: The most that are given.

        Raises:
            UsageError: There is no such status, or `limit` isn't a whole number from 1.
        """
        wanted = looking.wanted(
            status=status, workflow=workflow, prefix=prefix, since=since, until=until, text=text,
            before=before, limit=limit,
        )  # fmt: skip
        await self.store.journal.open()
        return [view_of(header) for header in await self.store.journal.runs(wanted)]

    async def steps(self, run_id: str, *, within: str = "") -> builtins.list[StepView]:
        """The steps of a run, in the order in which they were first begun.

        Args:
            run_id: The run.
            within: Only those whose ids begin so: a branch, `risk/`, or an item of a map, `extract[12]/`.
                Those of items are left out otherwise, for they may be millions.

        Raises:
            RunNotFound: There is no such run.
        """
        await self.store.journal.open()
        header = await self._header(run_id)
        records = await looking.steps_of(self.store.journal, header, within)
        return [StepView(record, self._tools.values, self._tools.outcomes) for record in records]

    # ---- The executor itself ----

    async def close(self) -> None:
        """Gives connections and threads back; the executor can be used again."""
        await self.store.close()

    async def __aenter__(self) -> Self:
        """Opens the store."""
        await self.store.journal.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Closes it."""
        await self.close()

    def _how(
        self, *, wait: bool, on_change: str, on_wait: str, deadline: datetime | timedelta | Deadline | None
    ) -> How:
        if on_change not in get_args(OnChange):
            raise UsageError(f"on_change={on_change!r} is unknown", remedy="Use 'error' or 'keep'")
        if on_wait not in get_args(OnWait):
            raise UsageError(f"on_wait={on_wait!r} is unknown", remedy="Use 'block' or 'suspend'")
        return How(wait, on_change == "keep", self._until(deadline), on_wait == "suspend")

    def _until(self, deadline: datetime | timedelta | Deadline | None) -> Deadline | None:
        if deadline is None or isinstance(deadline, Deadline):
            return deadline
        return Deadline(deadline, self._tools.clock)
