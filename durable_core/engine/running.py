"""Going on with a run that exists, and driving one to its end for its caller."""

from __future__ import annotations

import asyncio
import functools
import signal
from typing import TYPE_CHECKING, Any, Final, NamedTuple, ParamSpec, TypeVar

from durable_core.control_flow import HandOver, RunInterrupted
from durable_core.engine import admission
from durable_core.engine.asking import ask
from durable_core.engine.driver import drive
from durable_core.engine.keeping import keeps_changed
from durable_core.engine.results import RunResult, counts_of, result_of
from durable_core.engine.stopping import until_terminated
from durable_core.errors import DeadlineReached, Fenced, RunBusy, RunCancelled
from durable_core.records import CANCELLED, COMPLETED, FAILED, PENDING

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from durable_core.engine.drive import Tools
    from durable_core.engine.stopping import WayOut
    from durable_core.engine.tally import Tally
    from durable_core.records import RunHeader
    from durable_core.workflow import Workflow

P = ParamSpec("P")
R = TypeVar("R")

_POLL_S: Final = 0.2


class How(NamedTuple):
    """How a run is to be driven.

    Attributes:
        wait: Whether to wait for somebody else who drives it.
        keeps_changed: Whether recorded outputs are used although their inputs have changed; None: as whoever
            resumed the run last has decided.
        deadline: When it has to be left.
        suspends: Whether it is left when everybody in it waits.
        tally: Counts what the drives come to.
    """

    wait: bool
    keeps_changed: bool | None
    deadline: WayOut | None
    suspends: bool = False
    tally: Tally | None = None


def released_on_sigterm(
    operation: Callable[P, Coroutine[Any, Any, R]],
) -> Callable[P, Coroutine[Any, Any, R]]:
    """An operation that drives a run: SIGTERM cancels it, and ends the process once the run is released."""

    @functools.wraps(operation)
    async def watched(*args: P.args, **kwargs: P.kwargs) -> R:
        with until_terminated() as terminated:
            try:
                return await operation(*args, **kwargs)
            except (RunInterrupted, asyncio.CancelledError):
                if terminated.is_set():
                    raise SystemExit(128 + signal.SIGTERM) from None
                raise

    return watched


async def go_on(
    tools: Tools,
    header: RunHeader,
    workflow: Workflow[..., R],
    inputs: dict[str, object] | None,
    how: How,
    *,
    redrive: bool,
) -> RunResult[R]:
    """With a run that exists: its result, or a takeover.

    Args:
        tools: The executor's.
        header: As last read.
        workflow: As asked for.
        inputs: As asked for; None for the recorded ones.
        how: To drive it.
        redrive: Whether a FAILED run is driven again.

    Raises:
        RunBusy, RunPruned, RunInputMismatch, RunFailed, RunCancelled, DeadlineReached: As they say.
    """
    while True:
        admission.check_not_pruned(header)
        admission.check_same(header, workflow, inputs)
        if header.status in (COMPLETED, CANCELLED) or (header.status == FAILED and not redrive):
            return await result_of(header, tools.values, tools.outcomes, workflow.adapter)
        if how.wait and not admission.is_free(tools, header):
            if how.deadline is not None and how.deadline.left_s() <= _POLL_S:
                raise DeadlineReached(
                    "the deadline came while another process drove the run", run_id=header.run_id
                )
            await tools.clock.sleep(_POLL_S)
            found = await ask(tools.journal.header, header.run_id)
            header = found if found is not None else header
            continue
        try:
            admitted = await admission.acquire(tools, header, workflow.fingerprint, keeps=how.keeps_changed)
        except RunBusy:
            if not how.wait:
                raise
            admitted = await ask(tools.journal.header, header.run_id) or header  # somebody else was faster
        if isinstance(admitted, admission.Admitted):
            break
        header = admitted
    tools.log.info(
        "run_resumed",
        run_id=header.run_id,
        fence=admitted.header.fence,
        workflow=workflow.name,
        was=header.status,
    )
    return await drive_admitted(tools, admitted, workflow, how)


async def drive_admitted(
    tools: Tools, admitted: admission.Admitted, workflow: Workflow[..., Any], how: How
) -> RunResult[Any]:
    """Drives an acquired run, and tells its caller how it ended.

    Raises:
        RunFailed, RunCancelled, DeadlineReached: As they say.
    """
    run_id, patience = admitted.header.run_id, 0
    while True:
        try:
            ended, output = await drive(
                tools,
                admitted,
                workflow,
                keeps_changed=how.keeps_changed or keeps_changed(admitted.header),
                suspends=how.suspends,
                patience=patience,
                deadline=how.deadline,
                tally=how.tally,
            )
        except Fenced:
            now = await tools.journal.header(run_id)
            if now is not None and now.status == CANCELLED:
                raise RunCancelled("the run was cancelled", run_id=run_id) from None
            raise
        except HandOver:
            raise DeadlineReached(
                "the deadline came before the end",
                run_id=run_id,
                remedy="Resume it: it goes on where it stopped",
            ) from None
        if ended.status != PENDING:
            return RunResult(run_id, ended.status, output, counts_of(ended))
        try:  # it was left because everybody seemed to wait, and there is something to do
            again = await admission.acquire(tools, ended, workflow.fingerprint)
        except RunBusy:  # somebody else was faster, and goes on with it
            return RunResult(run_id, ended.status, None, counts_of(ended))
        if not isinstance(again, admission.Admitted):
            return await result_of(again, tools.values, tools.outcomes, workflow.adapter)
        admitted, patience = again, patience + bool(output)
