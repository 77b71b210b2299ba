"""Calls that can't be meant as they are made: refused by name, before anything is written or run."""

from __future__ import annotations

import functools
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from durable_core import Context, DurableWorkflowExecutor, SyncContext, step, workflow
from durable_core.errors import CorruptRecord, RunFailed, RunInputMismatch, UsageError
from tests.stores import Place


@step
async def one() -> int:
    return 1


@workflow(name="refused_calls")
async def wf(ctx: Context) -> int:
    return await ctx.step(one)


@pytest.mark.parametrize(
    "options",
    [
        {"status": "completed"}, {"status": "DONE"}, {"status": "TOMBSTONE"}, {"status": ""}, {"status": 5},
        {"limit": -1}, {"limit": 0}, {"limit": 1.5}, {"limit": True}, {"limit": "9"},
        {"workflow": 5}, {"workflow": "\ud800"},
        {"prefix": 5}, {"prefix": "\ud800"}, {"prefix": "é"},
    ],
)  # fmt: skip
async def test_a_listing_of_what_cannot_be_is_refused(options: dict[str, Any], place: Place) -> None:
    executor = place.executor()
    await executor.run(wf, run_id="r1")
    with pytest.raises(UsageError):
        await executor.list(**options)
    assert [view.run_id for view in await executor.list(status="COMPLETED", limit=1, prefix="r")] == ["r1"]


@pytest.mark.parametrize("given", [5, "refused_calls", one, lambda ctx: 1, wf.bind(), False])
async def test_going_on_with_what_is_no_workflow_is_refused(given: Any, place: Place) -> None:
    executor = place.executor()
    await executor.start(wf, run_id="r1")
    with pytest.raises(UsageError, match=r"no workflow|bound"):
        await executor.resume("r1", given)
    with pytest.raises(UsageError, match=r"no workflow|bound"):
        await executor.fork("r1", wf=given)
    assert (await executor.get("r1")).status == "PENDING"
    assert (await executor.resume("r1", wf)).output == 1


# ---- Sessions ----


async def test_a_run_that_exists_is_met_again_in_its_own_session_only(place: Place) -> None:
    executor = place.executor()
    await executor.run(wf, run_id="with", session_id="s1")
    await executor.run(wf, run_id="without")
    await executor.start(wf, run_id="waits", session_id="s1")
    for session_id in ("s1", None):
        assert (await executor.run(wf, run_id="with", session_id=session_id)).output == 1
        assert (await executor.run(wf, resume_run_id="with", session_id=session_id)).output == 1
        assert (await executor.start(wf, run_id="waits", session_id=session_id)).session_id == "s1"
    for run_id, session_id, has in (
        ("with", "s2", "'s1'"),
        ("without", "s1", "no session"),
        ("waits", "s2", "'s1'"),
    ):
        for call in (
            executor.run(wf, run_id=run_id, session_id=session_id),
            executor.run(wf, resume_run_id=run_id, session_id=session_id),
            executor.start(wf, run_id=run_id, session_id=session_id),
        ):
            with pytest.raises(RunInputMismatch, match=has) as caught:
                await call
            assert caught.value.run_id == run_id
    assert (await executor.get("waits")).status == "PENDING"
    assert (await executor.get("without")).session_id is None


@pytest.mark.parametrize("session_id", ["", " ", 5, "a/b", "\ud800"])
async def test_a_session_that_cannot_be_one_is_refused(session_id: Any, place: Place) -> None:
    executor = place.executor()
    for call in (executor.run, executor.start):
        with pytest.raises(UsageError, match="session id"):
            await call(wf, run_id="r1", session_id=session_id)
    assert await executor.list() == []


# ---- Branches of the other kind ----


def plain_branch(ctx: SyncContext) -> int:
    return ctx.step(one)


async def async_branch(ctx: Context) -> int:
    return await ctx.step(one)


async def test_a_def_branch_of_an_async_workflow_is_refused_by_name(place: Place) -> None:
    @workflow(name="wrong_branch")
    async def mixed(ctx: Context) -> int:
        return await ctx.branch(plain_branch)  # type: ignore[arg-type]  # what is refused

    executor = place.executor()
    with pytest.raises(RunFailed) as caught:
        await executor.run(mixed, run_id="r1")
    assert isinstance(caught.value.__cause__, UsageError)
    assert "branch 'plain_branch' is a `def`, and this workflow is an `async def`" in str(caught.value)
    assert await executor.steps("r1") == []


async def test_an_async_branch_of_a_def_workflow_is_refused_by_name(place: Place) -> None:
    @workflow(name="wrong_sync_branch")
    def mixed(ctx: SyncContext) -> Any:
        return ctx.parallel(ctx.branch(async_branch))  # type: ignore[arg-type]  # what is refused

    executor = place.executor()
    with pytest.raises(RunFailed) as caught:
        await executor.run(mixed, run_id="r1")
    assert isinstance(caught.value.__cause__, UsageError)
    assert "branch 'async_branch' is an `async def`, and this workflow is a `def`" in str(caught.value)
    assert await executor.steps("r1") == []


async def test_a_decorated_async_branch_is_one(place: Place) -> None:
    def passed_on(fn: Any) -> Any:
        @functools.wraps(fn)
        def inner(*args: Any) -> Any:
            return fn(*args)

        return inner

    @workflow(name="decorated_branch")
    async def decorated(ctx: Context) -> int:
        return int(await ctx.branch(passed_on(async_branch)))

    executor = place.executor()
    assert (await executor.run(decorated, run_id="r1")).output == 1


# ---- What is recorded ----


@pytest.mark.over_dynamodb
async def test_a_skip_keeps_the_counts_true(place: Place) -> None:
    ran: list[int] = []

    @step
    async def broken() -> int:
        ran.append(1)
        raise ValueError("as planned")

    @workflow(name="counted")
    async def counted(ctx: Context) -> list[int]:
        return [await ctx.step(one), await ctx.step(broken)]

    executor = place.executor()
    with pytest.raises(RunFailed):
        await executor.run(counted, run_id="r1")
    assert (await executor.get("r1")).counts == {"COMMITTED": 1, "FAILED": 1}
    await executor.skip("r1", "broken", output=2)
    left = await executor.get("r1")
    assert (left.status, left.counts) == ("FAILED", {"COMMITTED": 1, "SKIPPED": 1})
    await executor.skip("r1", "broken", output=3)
    assert (await executor.get("r1")).counts == {"COMMITTED": 1, "SKIPPED": 1}
    result = await executor.resume("r1", counted)
    assert (result.output, result.counts) == ([1, 3], {"COMMITTED": 1, "SKIPPED": 1})


async def test_a_refused_skip_leaves_the_counts(place: Place) -> None:
    executor = place.executor()
    await executor.run(wf, run_id="r0")

    @step
    async def broken() -> None:
        raise ValueError("as planned")

    @workflow(name="counted_still")
    async def failing(ctx: Context) -> None:
        await ctx.step(one)
        await ctx.step(broken)

    with pytest.raises(RunFailed):
        await executor.run(failing, run_id="r1")
    with pytest.raises(UsageError):
        await executor.skip("r1", "one")
    assert (await executor.get("r1")).counts == {"COMMITTED": 1, "FAILED": 1}


@pytest.mark.parametrize("kind", ["map", "event", "sleep", "join", "odd"])
@pytest.mark.parametrize("status", ["COMMITTED", "SKIPPED", "STARTED"])
async def test_a_record_that_is_no_steps_is_not_used_as_one(kind: str, status: str, tmp_path: Path) -> None:
    async with DurableWorkflowExecutor(db_path=tmp_path / "runs.db") as executor:
        await executor.run(wf, run_id="r1")
        with closing(sqlite3.connect(tmp_path / "runs.db")) as connection, connection:
            connection.execute("UPDATE checkpoints SET kind = ?, status = ?", (kind, status))
            connection.execute("UPDATE runs SET status = 'PENDING'")
        with pytest.raises(RunFailed) as caught:
            await executor.resume("r1", wf)
    cause = caught.value.__cause__
    assert isinstance(cause, CorruptRecord)
    assert (cause.run_id, cause.step_id) == ("r1", "one")
    assert f"kind '{kind}'" in str(cause)
