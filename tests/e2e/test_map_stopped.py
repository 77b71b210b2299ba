"""Items with steps of their own while the run is stopped: what they make of a refused step is no outcome."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from durable_core import Context, SyncContext, current_step, step, workflow
from durable_core.errors import RunFailed
from tests.stores import Place, Processes


@pytest.mark.parametrize("catches", [False, True], ids=["bare", "catches"])
async def test_def_items_in_flight_are_gone_on_with_after_an_interruption(
    catches: bool, place: Place
) -> None:
    inside = threading.Event()
    waits = [True]

    @step
    async def work(item: int) -> int:
        if waits:
            inside.set()
            await asyncio.sleep(20)
        return item * 10

    def each(ctx: SyncContext, item: int) -> int:
        try:
            return ctx.step(work, item)
        except Exception:
            if not catches:
                raise
            return -1

    @workflow(name="def_items_interrupted")
    async def wf(ctx: Context) -> list[int]:
        return list((await ctx.map(each, range(4))).outputs)

    executor = place.executor()
    running = asyncio.ensure_future(executor.run(wf, run_id="r1"))
    await asyncio.to_thread(inside.wait, 20)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (await executor.get("r1")).status == "PENDING"
    waits.clear()
    assert (await executor.resume("r1", wf)).output == [0, 10, 20, 30]


@pytest.mark.over_dynamodb
@pytest.mark.parametrize("kind", ["async", "def"])
async def test_an_item_that_catches_everything_takes_no_path_on_a_step_in_doubt(
    kind: str, place: Place, processes: Processes
) -> None:
    inside, go = asyncio.Event(), asyncio.Event()

    @step(semantics="at_most_once")
    async def pay(item: int) -> str:
        if item == 1 and current_step().fence == 1:
            inside.set()
            await go.wait()
        return f"paid {item}"

    async def each(ctx: Context, item: int) -> str:
        try:
            return await ctx.step(pay, item)
        except Exception:
            return "fallback"

    def plain(ctx: SyncContext, item: int) -> str:
        try:
            return ctx.step(pay, item)
        except Exception:
            return "fallback"

    @workflow(name="item_in_doubt")
    async def wf(ctx: Context) -> list[Any]:
        if kind == "async":
            return list((await ctx.map(each, range(3), max_concurrency=1)).outputs)
        return list((await ctx.map(plain, range(3), max_concurrency=1)).outputs)

    processes.next_is_doomed()
    zombie = asyncio.ensure_future(place.executor().run(wf, run_id="r1"))
    await inside.wait()
    processes.next_lives()
    executor = place.executor()
    with pytest.raises(RunFailed, match="StepInDoubt"):
        await executor.resume("r1", wf)
    await executor.skip("r1", f"{'each' if kind == 'async' else 'plain'}[1]/pay", output="by hand")
    assert (await executor.resume("r1", wf)).output == ["paid 0", "by hand", "paid 2"]
    go.set()
    await asyncio.wait((zombie,))
    assert zombie.exception() is not None
