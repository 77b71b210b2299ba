"""A process that forks, and then closes its executor while its child works with the same store."""

from __future__ import annotations

import asyncio
import os
import sys
import time
import traceback
from pathlib import Path

from durable_core import Context, DurableWorkflowExecutor, step, workflow
from tests.e2e.programs.sharing import counting
from tests.e2e.programs.witness import leave, note
from tests.waiting import until

STEPS = 50


@step
def forks(url: str, folder: str, whose: str) -> int:
    time.sleep(0.1)  # several renewals: their connection is open, too
    return _fork(_Family.executor, url, folder, whose)


@workflow
async def forking_inside(ctx: Context, url: str, folder: str, whose: str) -> int:
    return await ctx.step(forks, url, folder, whose)


class _Family:
    executor: DurableWorkflowExecutor


def main(url: str, folder: str, when: str, whose: str) -> int:
    """Forks after a run or inside one; the child uses the executor that it inherited or a new one."""
    executor = _Family.executor = DurableWorkflowExecutor(url, lease_s=0.06)
    executor.run_sync(counting, run_id="before", steps=3, acks=None)
    if when == "after":
        child = _fork(executor, url, folder, whose)
    else:
        child = executor.run_sync(forking_inside, run_id="r1", url=url, folder=folder, whose=whose).output
    asyncio.run(executor.close())
    leave(f"{folder}/go")
    os.waitpid(child, 0)
    return 0


def _fork(executor: DurableWorkflowExecutor, url: str, folder: str, whose: str) -> int:
    child = os.fork()
    if child == 0:
        _child(executor if whose == "inherited" else DurableWorkflowExecutor(url), folder)
    note(f"{folder}/pids", child)
    until(Path(folder, "ready").exists, "the child")
    return child


def _child(executor: DurableWorkflowExecutor, folder: str) -> None:
    try:
        executor.run_sync(counting, run_id="child", steps=3, acks=None)
        leave(f"{folder}/ready")
        until(Path(folder, "go").exists, "the parent's close")
        executor.run_sync(counting, run_id="orphan", steps=STEPS, acks=f"{folder}/acks")
        leave(f"{folder}/done")
        until(Path(folder, "never").exists, "its death")
    except BaseException:  # nothing may go on as if this were the parent
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(70)
