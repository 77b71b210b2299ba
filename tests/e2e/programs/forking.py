"""A process that uses its executor, forks, and lets its children use the one that they inherited."""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path

from durable_core import Context, DurableWorkflowExecutor, step, workflow
from tests.e2e.programs.sharing import counting
from tests.e2e.programs.witness import note


@step
def in_thread(number: int) -> int:
    return number + 1


@workflow
async def threaded(ctx: Context, number: int) -> int:
    return await ctx.step(in_thread, number)


def main(url: str, folder: str, children: int, steps: int) -> int:
    """Runs once, forks, and goes on beside its children; each notes its pid, and acknowledges its steps."""
    executor = DurableWorkflowExecutor(url)
    executor.run_sync(counting, run_id="before", steps=5, acks=None)
    executor.run_sync(threaded, run_id="before-threaded", number=1)
    pids = []
    for number in range(children):
        pid = os.fork()
        if pid == 0:
            _child(executor, folder, number, steps)
        pids.append(pid)
    note(Path(folder, "pids"), pids)
    executor.run_sync(counting, run_id="parent", steps=steps, acks=f"{folder}/parent.acks")
    return max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids)


def _child(executor: DurableWorkflowExecutor, folder: str, number: int, steps: int) -> None:
    code = 70
    try:
        executor.run_sync(threaded, run_id=f"child-{number}-threaded", number=number)
        executor.run_sync(
            counting, run_id=f"child-{number}", steps=steps, acks=f"{folder}/child-{number}.acks"
        )
        code = 0
    except BaseException:  # nothing may go on as if this were the parent
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)
