"""The same run leaves the same records in every store: but for times, random ids and where outputs are."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from durable_core import Context, Retry, step, workflow
from durable_core.errors import RunFailed, StepFailed
from durable_core.journal.base import Journal
from tests.aws_place import told
from tests.stores import WITH_DYNAMODB, Place

STORES = WITH_DYNAMODB


@step
async def small(given: str) -> dict[str, Any]:
    return {"given": given, "odd": ["\x00", "\ud800", "", "é"], "bytes": b"\x00\xff"}


@step
def large(kb: int) -> bytes:
    return random.Random(kb).randbytes(kb * 1024)


@step(retry=Retry(max_attempts=2, initial_delay_s=0))
async def failing() -> None:
    raise ValueError("as planned")


@step(pure=True)
async def pure(number: int) -> int:
    return number + 1


@step(semantics="at_most_once")
async def guarded() -> str:
    return "once"


@workflow
async def everything(ctx: Context, given: str) -> int:
    await ctx.step(small, given)
    await ctx.step(large, 2)
    await ctx.step(large, 20)
    await ctx.step(guarded)
    await ctx.step_if(False, small, "no")
    try:
        await ctx.step(failing)
    except StepFailed:
        found, _ = await ctx.parallel(ctx.branch(branch, 1), ctx.branch(branch, 2))
        return await ctx.step(pure, found)
    raise AssertionError("it has not failed")


async def branch(ctx: Context, number: int) -> int:
    return await ctx.step(pure, number)


@workflow
async def fails(ctx: Context, given: str) -> None:
    await ctx.step(small, given)
    await ctx.step(failing)


async def records_of(journal: Journal, run_id: str) -> list[dict[str, Any]]:
    header = await journal.header(run_id)
    assert header is not None
    found = [told(header)]
    async for page in journal.steps(run_id):
        found += map(told, page)
    for record in found:
        history = json.loads(record.get("attempts") or "[]")
        record["attempts"] = [
            {name: value for name, value in one.items() if not name.endswith("_at")} for one in history
        ]
    return sorted(found, key=lambda record: str(record.get("step_id", "")))


@pytest.mark.parametrize("wf", [everything, fails], ids=lambda wf: wf.name)
async def test_a_run_leaves_the_same_records_in_every_store(place: Place, wf: Any, tmp_path: Any) -> None:
    expected = Place("memory", tmp_path)
    found = []
    for one in (expected, place):
        store = one.store()
        executor = one.executor(store=store)
        try:
            await executor.run(wf, run_id="same", given="x")
        except RunFailed:
            assert wf is fails
        found.append(await records_of(store.journal, "same"))
    await expected.close()
    assert len(found[0]) > 2
    assert found[1] == found[0]
