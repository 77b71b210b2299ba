# ruff: noqa: F841, RUF059 - a wrong type needs a variable to go to
"""What type checkers must refuse: each line that ends in `# error` is one mistake; never run."""

from __future__ import annotations

from durable_core import Context, DurableWorkflowExecutor, Retry, SyncContext, step, workflow


@step
async def extract(path: str, *, deep: bool = False) -> bytes:
    return path.encode()


@step
def count(found: bytes) -> int:
    return len(found)


async def lane(ctx: Context, path: str) -> int:
    return len(path)


def plain_lane(ctx: SyncContext, path: str) -> int:
    return len(path)


async def no_context(path: str) -> int:
    return len(path)


@workflow
async def report(ctx: Context, task: str, limit: int = 3) -> int:
    await ctx.step(extract, 1)  # error
    await ctx.step(extract)  # error
    await ctx.step(extract, "a", "b")  # error
    await ctx.step(extract, "a", deep="yes")  # error
    await ctx.step(extract, "a", shallow=True)  # error
    await ctx.step(count, "text")  # error
    await ctx.step(3)  # error
    await ctx.step_if(True, count, 3)  # error
    await ctx.step_if(True, extract)  # error
    wrong: str = await ctx.step(count, b"x")  # error
    maybe: int = await ctx.step_if(True, count, b"x")  # error
    ctx.branch(lane, 3)  # error
    ctx.branch(lane)  # error
    ctx.branch(lane, "a", times=2)  # error
    ctx.branch(no_context, "a")  # error
    ctx.branch(plain_lane, "a")  # error
    await ctx.parallel(lane)  # error
    one, two, three = await ctx.parallel(ctx.branch(lane, "a"), ctx.branch(lane, "b"))  # error
    await ctx.sleep("soon")  # error
    await ctx.sleep(until=5)  # error
    await ctx.wait_for_event(3)  # error
    await ctx.wait_for_event("go", timeout="long")  # error
    event: str = await ctx.wait_for_event("go", type=int)  # error
    either: int = await ctx.wait_for_event("go", type=int, default=None)  # error
    return 1


@workflow
def plain_report(ctx: SyncContext, task: str) -> int:
    ctx.step(extract, 1)  # error
    ctx.step(count, b"x").upper()  # error
    ctx.branch(plain_lane, 3)  # error
    ctx.branch(lane, "a").name.upper(3)  # error
    ctx.sleep("soon")  # error
    event: str = ctx.wait_for_event("go", type=int)  # error
    return 1


async def main(executor: DurableWorkflowExecutor) -> None:
    report.bind()  # error
    report.bind(3)  # error
    report.bind("x", limit="many")  # error
    report.bind("x", speed=3)  # error
    report.bind("x", 3, 4)  # error
    plain_report.bind(task=3)  # error
    text: str = (await executor.run(report, task="x")).output  # error
    other: str = (await executor.run(report.bind("x"))).output  # error
    await executor.run(lane, path="x")  # error
    await executor.run(report.bind("x"), on_change="ignore")  # error
    await executor.run(report, task="x", deadline=5)  # error
    await executor.run(report, task="x", on_wait="leave")  # error
    await extract(3)  # error
    count("x")  # error


@step(retries=3)  # error
async def unknown_option() -> None: ...


@step(retry=3)  # error
async def wrong_option() -> None: ...


@step(semantics="exactly_once")  # error
async def wrong_semantics() -> None: ...


extract.with_options(timeout="5")  # error
Retry(max_attempts="3")  # error


@workflow  # error
async def takes_no_context() -> None: ...


@workflow  # error
async def takes_something_else(number: int) -> None: ...
