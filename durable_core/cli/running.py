"""`durable run` and `durable resume`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
import sys
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from durable_core.cli import output
from durable_core.cli.finding import complete_run_id, is_unrecorded, named_store
from durable_core.cli.inputs import read_inputs
from durable_core.cli.jsonable import as_document
from durable_core.cli.loading import load_modules, load_workflow
from durable_core.cli.options import (
    AsJson,
    LogFormat,
    LogLevel,
    OnWait,
    RunId,
    StoreUrl,
    Wait,
    Workflows,
    set_up_logging,
)
from durable_core.cli.outcome import INTERRUPTED, NOT_FINISHED, RUN_FAILED, TERMINATED, FailedRun, Stopped
from durable_core.cli.progress import keep_telling, status_line
from durable_core.cli.render import value_text
from durable_core.clock import SystemClock, rfc3339
from durable_core.engine.executor import DurableWorkflowExecutor
from durable_core.engine.failure import escaped_steps
from durable_core.errors import RunFailed, UsageError
from durable_core.identity import check_id, new_run_id
from durable_core.records import COMPLETED
from durable_core.settings import load_config
from durable_core.workflow import BoundWorkflow

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from durable_core.engine.results import RunResult, RunView
    from durable_core.store import Store

    Driving = Callable[[DurableWorkflowExecutor], Awaitable[RunResult[Any]]]


def run(
    target: Annotated[
        str,
        typer.Argument(metavar="MODULE:WORKFLOW", help="Such as invoices:month_end or jobs/nightly.py:main."),
    ],
    given: Annotated[
        str | None,
        typer.Option(
            "--input",
            metavar="JSON|@FILE|-",
            help="The inputs: a JSON object, a file with one, or - for standard input.",
        ),
    ] = None,
    run_id: Annotated[
        str | None,
        typer.Option("--run-id", metavar="ID", help="Starting the same id again is harmless."),
    ] = None,
    session_id: Annotated[
        str | None,
        typer.Option(
            "--session",
            metavar="ID",
            help="Of its agents' checkpoints, if durable.toml enables them.",
        ),
    ] = None,
    store: StoreUrl = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Only record the run, for a worker to drive; its id is printed.")
    ] = False,
    replay_only: Annotated[
        bool,
        typer.Option(
            "--replay-only",
            help="Go through the run --run-id again by what is recorded: no step is run, nothing is written.",
        ),
    ] = False,
    wait: Wait = False,
    on_wait: OnWait = "block",
    as_json: AsJson = False,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
) -> None:
    """Run a workflow to its end; its output goes to standard output.

    What the workflow itself prints goes to standard error.

    Example: durable run invoices:month_end --input '{"customers": ["ann"]}' --run-id june
    """
    if detach and wait:
        raise UsageError("--detach waits for nobody", remedy="Leave --wait out, or --detach")
    verbose = set_up_logging(log_level, log_format)
    if run_id is not None:
        check_id(run_id, "run id")
    if replay_only:
        _replay(target, run_id, store, as_json, given=given, others=detach or wait or session_id is not None)
        return
    opened = named_store(store)
    workflow = load_workflow(target)
    bound = BoundWorkflow(workflow, workflow.from_json(read_inputs(given)))
    chosen = run_id if run_id is not None else _new_id(workflow.name)
    if detach:
        _tell_recorded(asyncio.run(_recorded(opened, bound, chosen)), as_json)
        return
    again = _resume_command(chosen, [target.rpartition(":")[0]], store)
    errand = _Errand(chosen, again, verbose, is_new=True)
    how: Any = {"wait": wait, "on_wait": on_wait, "session_id": session_id}
    _finish(
        _driven(opened, lambda executor: executor.run(bound, run_id=chosen, **how), errand), errand, as_json
    )


def resume(
    run_id: RunId,
    workflows: Workflows = None,
    store: StoreUrl = None,
    wait: Wait = False,
    on_wait: OnWait = "block",
    as_json: AsJson = False,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
) -> None:
    """Go on with a run from its first step that isn't committed, with the recorded inputs.

    Example: durable resume june --workflows invoices
    """
    verbose = set_up_logging(log_level, log_format)
    opened = named_store(store)
    chosen = asyncio.run(_named_run(opened, run_id))
    errand = _Errand(chosen, _resume_command(chosen, load_modules(workflows), store), verbose)
    how: Any = {"wait": wait, "on_wait": on_wait}
    result = _driven(opened, lambda executor: executor.resume(chosen, **how), errand)
    _finish(result, errand, as_json)


def _replay(
    target: str, given_id: str | None, url: str | None, as_json: bool, *, given: str | None, others: bool
) -> None:
    """Goes through a run again, and tells what the workflow returns now."""
    if given_id is None or given is not None or others:
        raise UsageError(
            "--replay-only takes the recorded inputs of a run",
            remedy="Name the run with --run-id, and give neither --input, --session, --detach nor --wait",
        )
    workflow = load_workflow(target)
    store = named_store(url, read_only=True)

    async def replayed() -> RunResult[Any]:
        async with DurableWorkflowExecutor(store) as executor:
            return await executor.replay(await complete_run_id(store.journal, given_id, store.url), workflow)

    with output.kept_for_the_result():
        try:
            result = asyncio.run(replayed())
        except RunFailed as error:
            remedy = "This is what the workflow makes of what is recorded; nothing was changed"
            raise FailedRun(
                error, steps=error.error.get("steps", ()), traceback=None, remedy=remedy
            ) from error
    _finish(result, _Errand(result.run_id, "", verbose=False), as_json)


async def _recorded(store: Store, bound: BoundWorkflow[Any], run_id: str) -> RunView:
    async with DurableWorkflowExecutor(store) as executor:
        return await executor.start(bound, run_id=run_id)


def _tell_recorded(view: RunView, as_json: bool) -> None:
    if as_json:
        output.write(as_document({"run_id": view.run_id, "status": view.status, "counts": view.counts}))
    else:
        output.write(f"{output.clean(view.run_id)}\n")


async def _named_run(store: Store, given: str) -> str:
    try:
        await store.journal.open(create=False)
        return await complete_run_id(store.journal, given, store.url)
    finally:
        await store.journal.close()


def _new_id(workflow: str) -> str:
    """An id chosen here, so that it can be told however the run ends."""
    return new_run_id(workflow, rfc3339(SystemClock().now_ms()))


# ---- Driving ----

_STOPPING: Final = b"\r\nStopping: what is in flight is finished first. Ctrl-C again stops at once.\r\n"


class _Errand(NamedTuple):
    """What is being driven, and what is told when it stops.

    Attributes:
        again: The command that goes on with the run.
        verbose: Show the traceback of a failure.
        is_new: It may be stopped before it is recorded.
    """

    run_id: str
    again: str
    verbose: bool
    is_new: bool = False


def _driven(store: Store, driving: Driving, errand: _Errand) -> RunResult[Any]:
    """Drives a run, with a line on the terminal that says how far it is.

    Raises:
        Stopped: By Ctrl-C or SIGTERM.
        DurableError: As the run ended.
    """
    try:
        with status_line(errand.run_id) as tell, output.kept_for_the_result():
            return asyncio.run(_drive(store, driving, errand.run_id, tell))
    except KeyboardInterrupt:
        raise _stopped("interrupted", store, errand, INTERRUPTED) from None
    except SystemExit as left:
        if left.code == TERMINATED:
            raise _stopped("terminated", store, errand, TERMINATED) from None
        raise Stopped(
            f"the workflow ended the process: SystemExit({left.code!r})",
            run_id=errand.run_id,
            remedy=f"Let it raise another exception, then go on with: {errand.again}",
            exit_code=RUN_FAILED,
        ) from None
    except RunFailed as error:
        raise FailedRun(
            error,
            steps=escaped_steps(error, errand.run_id) or error.error.get("steps", ()),
            traceback=error.error.get("traceback") if errand.verbose else None,
            remedy=f"Mend the cause, then: {errand.again}",
        ) from error


async def _drive(
    store: Store, driving: Driving, run_id: str, tell: Callable[[str], None] | None
) -> RunResult[Any]:
    async with DurableWorkflowExecutor(store, checkpointing=load_config()) as executor:
        teller = asyncio.create_task(keep_telling(store.journal, run_id, tell)) if tell is not None else None
        try:
            with _saying_that_it_stops():
                return await driving(executor)
        finally:
            if teller is not None:
                teller.cancel()
                await asyncio.wait((teller,))


@contextlib.contextmanager
def _saying_that_it_stops() -> Iterator[None]:
    """At Ctrl-C on a terminal, says at once that the way out has begun: steps in flight may take time."""
    previous = signal.getsignal(signal.SIGINT)
    if not sys.stderr.isatty() or not callable(previous):
        yield
        return
    descriptor, told = sys.__stderr__.fileno() if sys.__stderr__ else 2, False

    def interrupt(number: int, frame: Any) -> Any:
        nonlocal told
        if not told:  # straight to the descriptor: a signal may come in the middle of a write
            told = True
            os.write(descriptor, _STOPPING)
        return previous(number, frame)

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


# ---- Telling how it ended ----


def _finish(result: RunResult[Any], errand: _Errand, as_json: bool) -> None:
    """Writes the result; a run that has not come to its end gives exit code 5."""
    done = result.status == COMPLETED
    value = result.output if done else None
    if as_json:
        output.write(
            as_document(
                {"run_id": result.run_id, "status": result.status, "output": value, "counts": result.counts}
            )
        )
    elif done:
        output.write(f"{value_text(value)}\n")
    if sys.stderr.isatty() and not as_json:
        told = ", ".join(f"{count} {status.lower()}" for status, count in result.counts.items()) or "no steps"
        output.tell(f"{result.run_id}: {result.status} ({told})")
    if not done:
        if not as_json:
            output.tell(f"The run waits: a worker goes on with it, or: {errand.again}")
        raise typer.Exit(NOT_FINISHED)


def _stopped(how: str, store: Store, errand: _Errand, code: int) -> Stopped:
    if errand.is_new and is_unrecorded(store, errand.run_id):
        return Stopped(
            f"{how} before the run was recorded",
            run_id=errand.run_id,
            remedy="Start it again",
            exit_code=code,
        )
    return Stopped(
        f"{how}; nothing that was committed is lost",
        run_id=errand.run_id,
        remedy=f"Go on with: {errand.again}",
        exit_code=code,
    )


def _resume_command(run_id: str, modules: list[str], store: str | None) -> str:
    words = ["durable", "resume"]
    if not run_id.startswith("-"):
        words.append(run_id)
    for module in modules:
        words += ["--workflows", module]
    if store is not None and "@" not in store:  # a URL with a password in it isn't repeated
        words += ["--store", store]
    if run_id.startswith("-"):  # it would be read as an option
        words += ["--", run_id]
    return shlex.join(words)
