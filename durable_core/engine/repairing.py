"""The operations of an executor on runs that it doesn't drive: signal, cancel, skip, fork."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from durable_core.engine import admission, calls, forks, operations, signals
from durable_core.engine.results import RunView, StepView, view_of
from durable_core.engine.running import released_on_sigterm
from durable_core.errors import UsageError
from durable_core.records import CANCELLED, COMPLETED

if TYPE_CHECKING:
    from durable_core.engine.drive import Tools
    from durable_core.records import RunHeader
    from durable_core.store import Store
    from durable_core.workflow import Workflow


class Repairing:
    """What people and other systems do to a run from outside."""

    store: Store
    _tools: Tools

    async def signal(
        self,
        run_id: str,
        name: str,
        payload: object = None,
        *,
        event_id: str | None = None,
        early: bool = False,
    ) -> str:
        """Sends an event to a run, and wakes it if it sleeps.

        Args:
            run_id: The run.
            name: What the run waits for it by.
            payload: Whatever can be stored.
            event_id: Sent twice with one id it is one event, also after it was taken; a new one when None.
            early: Send it although there is no such run yet: the next one of that id will find it.

        Returns:
            The event's id.

        Raises:
            RunNotFound: There is no such run, and it isn't early.
            RunEnded: The run is over.
            InputNotSerializable: The payload can't be stored.
        """
        await self.store.journal.open()
        return await signals.send(self._tools, run_id, name, payload, event_id=event_id, early=early)

    async def cancel(self, run_id: str) -> RunView:
        """Cancels a run: whoever drives it is fenced, and writes nothing more. An ended run stays as it is.

        Returns:
            The run as it is now: CANCELLED, or as it had ended.

        Raises:
            RunNotFound: There is no such run.
        """
        await self.store.journal.open()
        return view_of(await operations.cancel(self._tools, await self._header(run_id)))

    @released_on_sigterm
    async def skip(self, run_id: str, step_id: str, *, output: object = operations.UNSET) -> StepView:
        """Settles a step or a wait by hand that is STARTED or FAILED: the next resume uses the output given
        here, else None.

        Raises:
            RunNotFound, StepNotFound: There is no such run, or step.
            RunBusy: Somebody drives the run.
            UsageError: The run is over, or the step has an outcome that stands.
            InputNotSerializable: The output can't be stored.
        """
        await self.store.journal.open()
        header = await self._header(run_id)
        if header.status in (COMPLETED, CANCELLED):
            raise UsageError(f"the run is {header.status}: nothing is left to skip", run_id=run_id)
        record = await operations.skip(self._tools, header, step_id, output)
        return StepView(record, self._tools.values, self._tools.outcomes)

    @released_on_sigterm
    async def fork(
        self,
        run_id: str,
        *,
        wf: Workflow[..., Any] | None = None,
        new_run_id: str | None = None,
        from_step: str | None = None,
        inputs: dict[str, object] | None = None,
        dry_run: bool = False,
    ) -> forks.ForkPlan:
        """Makes a new run, to be resumed, that takes over the committed steps of another, which stays as it
        was.

        A step that the new run calls with another input is run anew.

        Args:
            run_id: The run to fork.
            wf: Its workflow; found by name when None.
            new_run_id: The new run's id; made up when None.
            from_step: Only steps begun before this one are taken over.
            inputs: Of the new run; those of the old one when None.
            dry_run: Only tell what would be taken over.

        Raises:
            RunNotFound, StepNotFound, WorkflowNotFound: There is none such.
            RunInputMismatch: The new id is taken.
        """
        await self.store.journal.open()
        header = await self._header(run_id)
        workflow = calls.meant(wf, header)
        return await forks.fork(
            self._tools,
            workflow,
            header,
            calls.run_id(workflow, new_run_id, self._tools.clock),
            from_step=from_step,
            inputs=workflow.checked(inputs) if inputs is not None else None,
            dry_run=dry_run,
        )

    async def _header(self, run_id: str) -> RunHeader:
        return await admission.header_of(self._tools, run_id, self.store.url)
