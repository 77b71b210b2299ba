"""A worker takes one run: what came of it, whatever that was."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from durable_core.engine.asking import ask
from durable_core.engine.running import How, go_on
from durable_core.errors import (
    DeadlineReached,
    DurableError,
    Fenced,
    RunBusy,
    RunCancelled,
    RunFailed,
    RunPruned,
)
from durable_core.records import CANCELLED, FAILED, PENDING, RUNNING

if TYPE_CHECKING:
    from durable_core.engine.drive import Tools
    from durable_core.engine.stopping import WayOut
    from durable_core.engine.tally import Tally
    from durable_core.records import RunHeader
    from durable_core.workflow import Workflow

LEFT: Final = "LEFT"


class Taken(NamedTuple):
    """What came of a run that was to be taken.

    Attributes:
        status: Of the run: COMPLETED, FAILED, CANCELLED, SUSPENDED, or PENDING when the worker was stopped;
            LEFT when it could not be driven.
        error: Why it was left.
    """

    run_id: str
    workflow: str
    status: str
    error: DurableError | None = None


async def take(
    tools: Tools,
    header: RunHeader,
    workflow: Workflow[..., Any],
    way_out: WayOut,
    tally: Tally | None = None,
) -> Taken:
    """Drives a run until it ends, suspends or has to be left; a FAILED one isn't driven again.

    Raises nothing that is about this run: others must not suffer from it.
    """
    told = Taken(header.run_id, header.workflow, LEFT)
    how = How(wait=False, keeps_changed=None, deadline=way_out, suspends=True, tally=tally)
    try:
        try:
            result = await go_on(tools, header, workflow, None, how, redrive=False)
            return told._replace(status=result.status)
        except RunBusy:
            await _call_on_its_driver(tools, header.run_id)
            raise
    except RunFailed:
        return told._replace(status=FAILED)
    except RunCancelled:
        return told._replace(status=CANCELLED)
    except DeadlineReached:
        return told._replace(status=PENDING)
    except (RunBusy, RunPruned, Fenced) as error:
        return told._replace(error=error)
    except DurableError as error:
        tools.log.error("run_left", run_id=header.run_id, code=error.code, reason=str(error))
        return told._replace(error=error)
    except Exception as error:  # a defect that one run comes upon; it is told, and the other runs go on
        # Neither its text nor the variables of its frames: payloads may be among them.
        kind, where = type(error).__qualname__, "".join(traceback.format_tb(error.__traceback__))
        tools.log.error("run_left", run_id=header.run_id, error=kind, traceback=where)
        return told._replace(error=DurableError(f"{type(error).__qualname__}: {error}", run_id=header.run_id))


async def _call_on_its_driver(tools: Tools, run_id: str) -> None:
    """Whoever was faster may have looked before what this worker came for: its driver looks once more.

    A   acquire ── looks: nothing ─────────────────────── suspend [count = 0] ─▶ refused: looks again
    W               acquire ─▶ busy ── wake [RUNNING] ─▶ count 1

    A run that has stopped running meanwhile says itself when it is due, and isn't woken.
    """
    now = await ask(tools.journal.header, run_id)
    if now is not None and now.status == RUNNING:
        await ask(tools.journal.wake, now)
