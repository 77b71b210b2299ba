"""Branches side by side, each under its own scope; one that fails halts the others at a step boundary.

A join that failed is recorded, with the branch that it named: a workflow that caught that takes the same path
on replay, where branches get no further than they had come, and the same one is named.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from durable_core.clock import rfc3339
from durable_core.control_flow import BranchHalted
from durable_core.engine.failure import as_json, described
from durable_core.errors import BranchFailed
from durable_core.identity import input_hash, new_attempt_id
from durable_core.journal.base import as_seen
from durable_core.records import FAILED, JOIN_KIND, StepRecord
from durable_core.scope import Halt

if TYPE_CHECKING:
    from durable_core.context import Branch
    from durable_core.engine.drive import Drive
    from durable_core.scope import Scope

JOIN: Final = "!join"


def is_join(step_id: str) -> bool:
    """Whether an id is that of a join, in whatever scope."""
    return step_id.rpartition("/")[2].startswith(JOIN)


async def join(
    drive: Drive, scope: Scope, branches: tuple[Branch[Any], ...], step_id: str, index: int
) -> list[Any]:
    """Runs branches until each has ended or stands at a step boundary.

    Returns:
        Their results, in order.

    Raises:
        BranchFailed: One failed; its error is chained, or the group of errors when several did.
    """
    seen = drive.records.pop(step_id, None)
    failed = seen if seen is not None and drive.owns(seen) and not drive.is_reopened(seen) else None
    halt = Halt(scope.halt, replays=failed is not None)
    loop = asyncio.get_running_loop()
    tasks = []
    for branch in branches:
        branch.scope.halt = halt
        tasks.append(
            loop.create_task(_run(drive, branch, halt), name=f"durable:{drive.run_id}:{branch.name}")
        )
    if tasks:
        await _ended(tasks, halt)
    drive.check()
    errors = _failures(branches, tasks)
    if failed is not None:
        raise _replayed(failed) from _cause([error for _, error in errors])
    if not errors:
        return [task.result() for task in tasks]
    (branch, first), *_ = errors
    told = described(first)
    error = BranchFailed(drive.run_id, branch.name, f"{told['type']}: {told['message']}")
    error.join_id = step_id
    await _record(drive, seen, error, index)
    raise error from _cause([one for _, one in errors])


async def _run(drive: Drive, branch: Branch[Any], halt: Halt) -> Any:
    try:
        return await branch
    except BaseException:  # whatever ends a branch halts the others; it is raised on
        halt.set()
        drive.wake(halt)
        raise


async def _ended(tasks: list[asyncio.Task[Any]], halt: Halt) -> None:
    try:
        await asyncio.wait(tasks)
    except asyncio.CancelledError:
        halt.set()
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        raise
    finally:
        for task in tasks:  # read, so that none is reported as lost when another one counts
            _ = task.done() and (task.cancelled() or task.exception())


def _failures(
    branches: tuple[Branch[Any], ...], tasks: list[asyncio.Task[Any]]
) -> list[tuple[Branch[Any], Exception]]:
    """The branches that failed, and how; raises what isn't a failure: control flow, a halt around us."""
    found: list[tuple[Branch[Any], Exception]] = []
    halted: BaseException | None = None
    for branch, task in zip(branches, tasks, strict=True):
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if isinstance(
            error, BaseExceptionGroup
        ):  # a task group in the branch: what is left of it without the halt
            ours, rest = error.split(BranchHalted)
            error = rest if rest is not None else BranchHalted(*ours.args[:1]) if ours is not None else None
        if isinstance(error, BranchHalted):
            halted = error
        elif isinstance(error, Exception):
            found.append((branch, error))
        elif error is not None:
            raise error
    if halted is not None and not found and not branches[0].scope.is_replayed():
        raise halted
    return found


def _cause(errors: list[Exception]) -> Exception | None:
    if len(errors) > 1:
        return ExceptionGroup("several branches failed", errors)
    return errors[0] if errors else None


async def _record(drive: Drive, seen: StepRecord | None, error: BranchFailed, index: int) -> None:
    """Puts the record of a join that failed; over an earlier one, when the run was resumed for that."""
    step_id = error.join_id or JOIN
    drive.check_may_begin(step_id)
    now, hashed = rfc3339(drive.tools.clock.now_ms()), input_hash(step_id, (), {})
    told = {**described(error), "branch": error.branch}
    record = StepRecord(
        drive.run_id, step_id, index, FAILED, hashed, None, None, None, None, now, now,
        drive.keys.key(index, hashed), seen.attempt + 1 if seen is not None else 1, 0,
        new_attempt_id(drive.place()),
        drive.lease.fence, JOIN_KIND, None, as_json(told),
    )  # fmt: skip
    with drive.inside():
        reply = await drive.ask(drive.tools.journal.put, record, as_seen(seen), drive.lease)
    if not reply.ok and (reply.row is None or reply.row.attempt_id != record.attempt_id):
        raise drive.fenced_by(reply.row)
    drive.redrive.discard(step_id)


def _replayed(record: StepRecord) -> BranchFailed:
    told = record.error_info()
    error = BranchFailed(record.run_id, str(told.get("branch", "")), "")
    error.message, error.join_id = str(told.get("message", "")), record.step_id
    return error
