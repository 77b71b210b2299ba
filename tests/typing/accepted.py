"""What type checkers must accept, with the types that they must see; read by them only, never run."""

from __future__ import annotations

from collections.abc import Coroutine
from datetime import timedelta
from typing import Any, assert_type

from durable_core import (
    BoundWorkflow,
    Context,
    DurableWorkflowExecutor,
    Retry,
    RunResult,
    SyncContext,
    Workflow,
    step,
    workflow,
)
from durable_core.context import Branch


class Extraction:
    pages: int


@step
async def extract(path: str, *, deep: bool = False) -> Extraction:
    raise NotImplementedError


@step(retry=Retry(max_attempts=4), timeout_s=60)
def count(found: Extraction, start: int = 0) -> int:
    return found.pages + start


async def plain(number: int) -> list[str]:
    return [str(number)]


def plain_def(number: int) -> bytes:
    return bytes(number)


async def lane(ctx: Context, path: str, times: int = 1) -> int:
    return await ctx.step(count, await ctx.step(extract, path), start=times)


async def other_lane(ctx: Context) -> str:
    return ctx.run_id


@workflow
async def report(ctx: Context, task: str, limit: int = 3) -> dict[str, int]:
    found = await ctx.step(extract, task, deep=True)
    assert_type(found, Extraction)
    await assert_type(ctx.step(count, found), Coroutine[Any, Any, int])
    assert_type(await ctx.step(count, found, 2), int)
    assert_type(await ctx.step(plain, 1), list[str])
    assert_type(await ctx.step(plain_def, 1), bytes)
    assert_type(await ctx.step_if(limit > 1, extract, task), Extraction | None)
    assert_type(await ctx.step_if(limit > 1, count, found), int | None)
    assert_type(await ctx.step(count.with_options(timeout_s=5), found), int)
    assert_type(ctx.branch(lane, "a"), Branch[int])
    assert_type(await ctx.branch(lane, "a", times=2), int)
    assert_type(await ctx.parallel(ctx.branch(lane, "a"), ctx.branch(other_lane)), tuple[int, str])
    assert_type(
        await ctx.parallel(ctx.branch(lane, "a"), ctx.branch(other_lane), ctx.branch(lane, "b")),
        tuple[int, str, int],
    )
    assert_type(await ctx.parallel(*[ctx.branch(lane, "a")]), tuple[int, ...])
    assert_type(ctx.random(), float)
    await assert_type(ctx.sleep(5), Coroutine[Any, Any, None])
    await ctx.sleep(timedelta(hours=1))
    await ctx.sleep(until=ctx.now() + timedelta(hours=1))
    await assert_type(ctx.wait_for_event("go", type=Extraction), Coroutine[Any, Any, Extraction])
    assert_type(await ctx.wait_for_event("go", type=int, timeout=timedelta(days=2)), int)
    assert_type(await ctx.wait_for_event("go", type=Extraction, timeout=5, default=None), Extraction | None)
    assert_type(await ctx.wait_for_event("go", type=int, default="none"), int | str)
    assert_type(await ctx.wait_for_event("go", timeout=0.5), Any)
    assert_type(await ctx.wait_for_event("go", default=None), Any)
    return {task: limit}


def plain_lane(ctx: SyncContext, path: str) -> int:
    return ctx.step(count, ctx.step(extract, path))


@workflow(name="plain-report")
def plain_report(ctx: SyncContext, task: str) -> int:
    found = ctx.step(extract, task)
    assert_type(found, Extraction)
    assert_type(ctx.step(count, found, start=1), int)
    assert_type(ctx.step_if(True, count, found), int | None)
    assert_type(ctx.parallel(ctx.branch(plain_lane, "a"), ctx.branch(plain_lane, "b")), tuple[int, int])
    ctx.sleep(5)
    ctx.sleep(until=ctx.now() + timedelta(hours=1))
    assert_type(ctx.wait_for_event("go", type=Extraction), Extraction)
    assert_type(ctx.wait_for_event("go", type=int, timeout=5, default=None), int | None)
    assert_type(ctx.wait_for_event("go"), Any)
    return 1


async def main(executor: DurableWorkflowExecutor) -> None:
    assert_type(report.bind("x", limit=2), BoundWorkflow[dict[str, int]])
    assert_type(plain_report.bind(task="x"), BoundWorkflow[int])
    result = await executor.run(report, task="x", run_id="r1", deadline=timedelta(minutes=5))
    assert_type(result, RunResult[dict[str, int]])
    assert_type(result.output, dict[str, int])
    assert_type((await executor.run(report.bind("x"), wait=True)).output, dict[str, int])
    assert_type((await executor.run(plain_report, task="x")).output, int)
    assert_type((await executor.resume("r1", report)).output, dict[str, int])
    assert_type(executor.run_sync(report.bind("x")).output, dict[str, int])
    assert_type(executor.blocking.run(plain_report.bind("x")).output, int)
    assert_type(await executor.signal("r1", "go", {"approved": True}, event_id="e1", early=True), str)
    await executor.run(report, task="x", on_wait="suspend")
    assert_type(await extract("x"), Extraction)
    assert_type(count(await extract("x")), int)


def takes_any_workflow(wf: Workflow[..., int]) -> BoundWorkflow[int]:
    return wf.bind(task="x")


takes_any_workflow(plain_report)
