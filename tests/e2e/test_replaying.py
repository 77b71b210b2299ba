"""Replaying: what a workflow makes of what is recorded, with no body run and nothing written."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from durable_core import Context, DurableWorkflowExecutor, RunFailed, StepMismatch, step, workflow
from durable_core.errors import RunInputMismatch, RunNotFound, StepNotFound
from durable_core.stores import open_store
from tests.damages import RUN, everything, run_everything
from tests.raw_store import raw
from tests.stores import WITH_DYNAMODB_IF_FULL, Place, Processes, crash, verb_of

STORES = WITH_DYNAMODB_IF_FULL

BODIES: list[str] = []


@step
async def count(name: str) -> str:
    BODIES.append(name)
    if name == "bad":
        raise ValueError(name)
    return name.upper()


@step(pure=True)
async def reckon(name: str) -> str:
    BODIES.append(name)
    return name.upper()


@step(pure=True)
async def later(name: str) -> str:
    BODIES.append(name)
    return name


@pytest.mark.over_dynamodb
async def test_a_run_gives_what_it_gave_and_no_body_is_run(place: Place) -> None:
    """Steps, maps, branches, waits and failures, from their records alone; nothing is changed."""
    executor = place.executor()
    await run_everything(executor)
    first = await executor.run(everything, run_id=RUN, size=20_000)
    under = raw(place)
    before = under.snapshot()
    other = place.executor()
    assert (await other.replay(RUN, everything)).output == first.output
    assert (await other.replay(RUN, everything, on_change="keep")).output == first.output
    assert under.snapshot() == before


VARIANTS: dict[str, Callable[[Context], Any]] = {
    "a step": lambda ctx: ctx.step(count, "more"),
    "a pure step": lambda ctx: ctx.step(later, "more"),
    "a step that is skipped": lambda ctx: ctx.step_if(False, count, "more"),
    "a map": lambda ctx: ctx.map(later, ["more"]),
    "a sleep": lambda ctx: ctx.sleep(3600),
    "an event": lambda ctx: ctx.wait_for_event("go"),
}


@pytest.mark.parametrize("name", VARIANTS)
async def test_a_step_without_a_recorded_outcome_is_named(place: Place, name: str) -> None:
    """Whatever the workflow catches."""
    BODIES.clear()
    goes_on = False

    @workflow(name="growing")
    async def growing(ctx: Context) -> str:
        first = str(await ctx.step(count, "one"))
        if goes_on:
            with contextlib.suppress(Exception):
                await VARIANTS[name](ctx)
        return first

    executor = place.executor()
    await executor.run(growing, run_id=RUN)
    before = raw(place).snapshot()
    goes_on = True
    with pytest.raises(StepNotFound, match="no recorded outcome") as caught:
        await executor.replay(RUN, growing)
    assert caught.value.step_id is not None
    assert BODIES == ["one"]
    assert raw(place).snapshot() == before


async def test_what_a_dead_owner_was_in_has_no_outcome(place: Place, processes: Processes) -> None:
    @workflow(name="dying")
    async def dying(ctx: Context) -> str:
        await ctx.step(reckon, "one")
        return str(await ctx.step(count, "two"))

    await crash(place, processes, lambda ex: ex.run(dying, run_id=RUN), at=verb_of("commit", "count"))
    with pytest.raises(StepNotFound) as caught:
        await place.executor().replay(RUN, dying)
    assert caught.value.step_id == "count"


async def test_a_run_may_be_replayed_while_somebody_drives_it(place: Place) -> None:
    entered, go_on = asyncio.Event(), asyncio.Event()

    @step(name="held")
    async def held() -> None:
        entered.set()
        await go_on.wait()

    @workflow(name="holding")
    async def holding(ctx: Context) -> str:
        first = str(await ctx.step(count, "one"))
        await ctx.step(held)
        return first

    executor = place.executor()
    running = asyncio.create_task(executor.run(holding, run_id=RUN))
    await entered.wait()
    with pytest.raises(StepNotFound) as caught:
        await place.executor().replay(RUN, holding)
    assert caught.value.step_id == "held"
    go_on.set()
    assert (await running).output == "ONE"
    assert (await place.executor().replay(RUN, holding)).output == "ONE"


async def test_a_failed_run_fails_again_as_it_did_and_is_not_tried_again(place: Place) -> None:
    BODIES.clear()

    @workflow(name="failing")
    async def failing(ctx: Context) -> str:
        return str(await ctx.step(count, "bad"))

    executor = place.executor()
    with pytest.raises(RunFailed) as first:
        await executor.run(failing, run_id=RUN)
    with pytest.raises(RunFailed) as again:
        await place.executor().replay(RUN, failing)
    assert again.value.error["message"] == first.value.error["message"]
    assert BODIES == ["bad"]


async def test_changed_code_is_seen(place: Place) -> None:
    word = "one"

    @workflow(name="changing")
    async def changing(ctx: Context) -> str:
        return str(await ctx.step(count, word))

    @workflow(name="another")
    async def another(ctx: Context) -> None: ...

    executor = place.executor()
    await executor.run(changing, run_id=RUN)
    word = "two"
    with pytest.raises(RunFailed) as caught:
        await executor.replay(RUN, changing)
    assert isinstance(caught.value.__cause__, StepMismatch)
    assert (await executor.replay(RUN, changing, on_change="keep")).output == "ONE"
    with pytest.raises(RunInputMismatch):
        await executor.replay(RUN, another)
    with pytest.raises(RunNotFound):
        await executor.replay("nobody", changing)


def test_a_store_that_is_only_looked_at_is_not_opened_for_writing(tmp_path: Path) -> None:
    """Not even while somebody else has it locked."""
    path = tmp_path / "runs.db"

    async def made() -> Any:
        async with DurableWorkflowExecutor(f"sqlite:///{path}") as executor:
            await run_everything(executor)
            return (await executor.run(everything, run_id=RUN, size=20_000)).output

    output = asyncio.run(made())
    names = sorted(one.name for one in tmp_path.iterdir())
    data = path.read_bytes()

    async def replayed() -> Any:
        async with DurableWorkflowExecutor(open_store(f"sqlite:///{path}", read_only=True)) as executor:
            return (await executor.replay(RUN, everything)).output

    assert asyncio.run(replayed()) == output
    assert (path.read_bytes(), sorted(one.name for one in tmp_path.iterdir())) == (data, names)
    other = sqlite3.connect(path)
    other.execute("BEGIN IMMEDIATE")
    try:
        assert asyncio.run(replayed()) == output
    finally:
        other.close()
