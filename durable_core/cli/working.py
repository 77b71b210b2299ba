"""`durable worker` and `durable recover`."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from durable_core.cli import output
from durable_core.cli.finding import named_store
from durable_core.cli.jsonable import as_document
from durable_core.cli.loading import WORKFLOWS_VARIABLE, load_modules
from durable_core.cli.options import (  # noqa: TC001 - typer reads the annotations
    AsJson,
    LogFormat,
    LogLevel,
    StoreUrl,
    Workflows,
)
from durable_core.cli.outcome import DONE, RUN_FAILED, error_document, exit_code
from durable_core.engine.executor import DurableWorkflowExecutor
from durable_core.engine.taking import LEFT
from durable_core.engine.worker import DEFAULT_CONCURRENCY, DEFAULT_DRAIN_S
from durable_core.errors import Fenced, RunBusy, RunPruned, UsageError
from durable_core.log import configure_logging, get_logger
from durable_core.records import FAILED

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from durable_core.engine.taking import Taken
    from durable_core.engine.worker import Worker
    from durable_core.store import Store

Concurrency = Annotated[
    int, typer.Option("--concurrency", min=1, metavar="N", help="How many runs are driven at a time.")
]
Drain = Annotated[
    float,
    typer.Option(
        "--drain",
        min=0,
        metavar="SECONDS",
        help="When asked to stop: how long steps in flight may go on before they are interrupted.",
    ),
]
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def worker(
    workflows: Workflows = None,
    concurrency: Concurrency = DEFAULT_CONCURRENCY,
    drain: Drain = DEFAULT_DRAIN_S,
    store: StoreUrl = None,
    as_json: AsJson = False,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
) -> None:
    """Drive runs whenever they are due, until SIGTERM or Ctrl-C.

    That is: new ones, woken ones, and those whose process is dead.

    Any number of workers may share a store. A run of a workflow that isn't in MODULE is left to others.
    Asked to stop, it takes nothing more and lets steps in flight end; asked again, it interrupts them.

    Exit codes: 0 stopped with nothing interrupted, 130 or 143 if steps had to be interrupted.

    Example: durable worker --workflows invoices --store sqlite:///runs.db --concurrency 20
    """
    configure_logging(log_level, log_format)  # also on a terminal: its lines are all that there is to see
    opened, modules = named_store(store), _modules(workflows)
    counts, code = asyncio.run(_served(opened, modules, concurrency, drain))
    if as_json:
        output.write(as_document(counts))
    if code:
        raise typer.Exit(code)


def recover(
    workflows: Workflows = None,
    concurrency: Concurrency = DEFAULT_CONCURRENCY,
    drain: Drain = DEFAULT_DRAIN_S,
    store: StoreUrl = None,
    as_json: AsJson = False,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
) -> None:
    """Go on once with all runs that are due or whose process is dead, and end; such as in a cron job.

    FAILED runs are for `durable resume`. The exit code is 1 if a run failed, 6 if a damaged one was left.

    Example: durable recover --workflows invoices --store sqlite:///runs.db
    """
    configure_logging(log_level, log_format)
    opened, modules = named_store(store), _modules(workflows)
    taken, chunks, code = asyncio.run(_recovered(opened, modules, concurrency, drain))
    if as_json:
        document = {"runs": [_document(one) for one in taken], "count": len(taken), "chunks": chunks}
        output.write(as_document(document))
    else:
        output.write("".join(f"{_line(one)}\n" for one in taken))
        output.tell(_counted("run", Counter(one.status for one in taken)))
        if chunks:
            output.tell(_counted("chunk", chunks))
    if code := code or _exit_code(taken):
        raise typer.Exit(code)


def _modules(workflows: list[str] | None) -> list[str]:
    modules = load_modules(workflows)
    if not modules:
        raise UsageError(
            "no workflows are known here, so no run could be driven",
            remedy=f"Name their modules: --workflows MODULE, or {WORKFLOWS_VARIABLE}",
        )
    return modules


async def _served(
    store: Store, modules: list[str], concurrency: int, drain_s: float
) -> tuple[dict[str, dict[str, int]], int]:
    """What came of runs and of chunks, by status; and the exit code."""
    executor = DurableWorkflowExecutor(store)
    try:
        made = executor.worker(concurrency=concurrency, drain_s=drain_s)
        log = get_logger("durable_core")
        log.info("worker_started", store=store.url, workflows=modules, concurrency=concurrency)
        with _drained_on_signals(made) as asked, output.kept_for_the_result():
            await made.serve()
        counts = {"runs": dict(sorted(made.counts.items())), "chunks": dict(sorted(made.chunks.items()))}
        log.info("worker_stopped", **counts, interrupted=made.was_cut)
        return counts, 128 + asked[0] if made.was_cut else DONE
    finally:
        await executor.close()


async def _recovered(
    store: Store, modules: list[str], concurrency: int, drain_s: float
) -> tuple[list[Taken], dict[str, int], int]:
    executor = DurableWorkflowExecutor(store)
    try:
        made = executor.worker(concurrency=concurrency, drain_s=drain_s)
        with _drained_on_signals(made) as asked, output.kept_for_the_result():
            taken = await made.recover()
        return taken, dict(sorted(made.chunks.items())), 128 + asked[0] if asked else DONE
    finally:
        await executor.close()


@contextlib.contextmanager
def _drained_on_signals(made: Worker) -> Iterator[list[int]]:
    """SIGTERM and Ctrl-C stop the worker; gives which of them came."""
    loop, asked = asyncio.get_running_loop(), list[int]()

    def stop(number: int) -> None:
        asked.append(number)
        made.drain()

    for number in _SIGNALS:
        loop.add_signal_handler(number, stop, number)
    try:
        yield asked
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


# ---- Telling what came of a pass ----


def _document(taken: Taken) -> dict[str, Any]:
    error = error_document(taken.error) if taken.error is not None else None
    return {"run_id": taken.run_id, "workflow": taken.workflow, "status": taken.status, "error": error}


def _line(taken: Taken) -> str:
    reason = f": {taken.error.message}" if taken.error is not None else ""
    return output.clean(f"{taken.run_id}  {taken.status.lower()}{reason}")


def _counted(what: str, by_status: Mapping[str, int]) -> str:
    told = ", ".join(f"{number} {status.lower()}" for status, number in by_status.items())
    count = sum(by_status.values())
    return f"{count} {what}{'s' * (count != 1)}{f': {told}' if told else ''}"


def _exit_code(taken: list[Taken]) -> int:
    """The gravest thing that came up; a run that somebody else was faster to is in good hands."""
    codes = {RUN_FAILED for one in taken if one.status == FAILED}
    errors = [one.error for one in taken if one.status == LEFT and one.error is not None]
    codes |= {exit_code(error) for error in errors if not isinstance(error, RunBusy | RunPruned | Fenced)}
    return max(codes, default=DONE)
