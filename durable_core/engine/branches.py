"""Branches side by side, each under its own scope; one that fails halts the others at a step boundary."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from durable_core.context import Halt
from durable_core.errors import BranchFailed, BranchHalted

if TYPE_CHECKING:
    from durable_core.context import Branch, Scope
    from durable_core.engine.drive import Drive


async def join(drive: Drive, scope: Scope, branches: tuple[Branch[Any], ...]) -> list[Any]:
    """Runs branches until each has ended or stands at a step boundary.

    Returns:
        Their results, in order.

    Raises:
        BranchFailed: One failed; its error is chained, or the group of errors when several did.
    """
    halt = Halt(scope.halt)
    for branch in branches:
        branch.scope.halt = halt
    loop = asyncio.get_running_loop()
    tasks = [
        loop.create_task(_run(branch), name=f"durable:{drive.run_id}:{branch.name}") for branch in branches
    ]
    waiting: set[asyncio.Task[Any]] = set(tasks)
    try:
        while waiting:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if any(task.cancelled() or task.exception() is not None for task in done):
                halt.set()
                drive.wake(halt)
    except asyncio.CancelledError:
        halt.set()
        for task in waiting:
            task.cancel()
        await asyncio.wait(tasks)
        for task in tasks:  # read, so that it isn't reported as lost
            _ = task.cancelled() or task.exception()
        raise
    return _results(drive, branches, tasks)


async def _run(branch: Branch[Any]) -> Any:
    return await branch


def _results(drive: Drive, branches: tuple[Branch[Any], ...], tasks: list[asyncio.Task[Any]]) -> list[Any]:
    failures: list[tuple[Branch[Any], BaseException]] = []
    for branch, task in zip(branches, tasks, strict=True):
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, BranchHalted):
            failures.append((branch, error))
    drive.check()
    if not failures:
        if any(task.exception() is not None for task in tasks):  # halted by a failure around us
            raise BranchHalted("a sibling of an outer branch has failed")
        return [task.result() for task in tasks]
    control = next((error for _, error in failures if not isinstance(error, Exception)), None)
    if control is not None:
        raise control
    branch, first = failures[0]
    errors = [error for _, error in failures if isinstance(error, Exception)]
    cause = first if len(errors) == 1 else ExceptionGroup("several branches failed", errors)
    raise BranchFailed(drive.run_id, branch.name, f"{type(first).__qualname__}: {first}") from cause
