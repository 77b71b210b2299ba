"""`on_change="keep"` is decided once, for all who go on with the run, and work on its chunks."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from durable_core import Context, DurableWorkflowExecutor, RunFailed, step, workflow
from tests.stores import Place

SOON = timedelta(seconds=0.3)


@step
async def first(version: int) -> int:
    return version


async def recovered(executor: DurableWorkflowExecutor) -> list[str]:
    return [taken.status for taken in await executor.worker().recover()]


async def changed(executor: DurableWorkflowExecutor, name: str) -> Any:
    """A workflow whose first step takes something else than it did when it was suspended."""
    version = [1]

    @workflow(name=name)
    async def wf(ctx: Context) -> list[Any]:
        return [await ctx.step(first, version[0]), await ctx.wait_for_event("go")]

    await executor.run(wf, run_id="r1", on_wait="suspend")
    version[0] = 2
    return wf


async def test_a_worker_keeps_what_whoever_resumed_the_run_has_kept(place: Place) -> None:
    version = [1]

    @workflow(name="kept_by_workers")
    async def wf(ctx: Context) -> list[Any]:
        return [await ctx.step(first, version[0]), *[await ctx.wait_for_event("go") for _ in range(2)]]

    executor = place.executor()
    assert (await executor.run(wf, run_id="r1", on_wait="suspend")).status == "SUSPENDED"
    version[0] = 2
    kept = await executor.resume("r1", wf, on_change="keep", on_wait="suspend")
    assert kept.status == "SUSPENDED"
    for event in ("a", "b"):  # also by the worker after the next
        await executor.signal("r1", "go", event)
        assert await recovered(executor) == ["COMPLETED" if event == "b" else "SUSPENDED"]
    assert (await executor.resume("r1", wf)).output == [1, "a", "b"]


async def test_it_holds_until_somebody_resumes_the_run_without_it(place: Place) -> None:
    executor = place.executor()
    wf = await changed(executor, "kept_no_more")
    await executor.resume("r1", wf, on_change="keep", on_wait="suspend")
    with pytest.raises(RunFailed) as caught:
        await executor.resume("r1", wf, on_wait="suspend")
    assert caught.value.error["type"] == "StepMismatch"
    await executor.resume("r1", wf, on_change="keep", on_wait="suspend")
    await executor.signal("r1", "go", "a")
    assert await recovered(executor) == ["COMPLETED"]


async def test_without_it_a_worker_fails_a_run_that_has_changed(place: Place) -> None:
    executor = place.executor()
    await changed(executor, "kept_by_nobody")
    await executor.signal("r1", "go", "a")
    assert await recovered(executor) == ["FAILED"]
    assert (await executor.get("r1")).error["type"] == "StepMismatch"


@pytest.mark.parametrize("keeps", [True, False], ids=["kept", "not kept"])
async def test_items_of_a_chunk_that_have_changed_are_kept_with_it(place: Place, keeps: bool) -> None:
    items, stuck = [1, 2], [True]

    @step
    async def part(number: int) -> int:
        if number == 2 and stuck:
            await asyncio.Event().wait()
        return number

    @workflow(name=f"kept_chunk_{keeps}")
    async def wf(ctx: Context) -> list[int]:
        batch = await ctx.map(part, items, distribute=True, chunk_size=2, max_concurrency=1)
        return list(batch.outputs)

    executor = place.executor()
    await executor.run(wf, run_id="r1", on_wait="suspend")
    assert (await executor.work_chunk("r1", "part", 0, deadline=SOON)).status == "HANDED_BACK"
    items[0] = 7
    stuck.clear()
    changed: Any = "keep" if keeps else "error"
    await executor.resume("r1", wf, on_change=changed, on_wait="suspend")
    result = await executor.work_chunk("r1", "part", 0)
    assert result.status == ("DONE" if keeps else "STUCK")
    assert await recovered(executor) == ["COMPLETED" if keeps else "FAILED"]
    if keeps:
        assert (await executor.resume("r1", wf)).output == [1, 2]
    else:
        assert (await executor.get("r1")).error["type"] == "StepMismatch"
