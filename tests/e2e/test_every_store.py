"""One run is the same in every store: its records, its outputs of any size, its odd values."""

from __future__ import annotations

import os
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from durable_core import Context, StepFailed, step, workflow
from durable_core.outcomes import outcomes_of
from tests.aws_place import AwsPlace
from tests.stores import WITH_DYNAMODB, Place
from tests.waiting import full

STORES = WITH_DYNAMODB

KB = 1024
SIZES = [0, 1, KB, 6 * KB, 8 * KB - 1, 8 * KB, 8 * KB + 1, 399 * KB, 401 * KB, 5 * KB * KB]
if full():
    SIZES += [400 * KB - 1, 400 * KB, 400 * KB + 1, KB * KB, 6 * KB * KB]
# An id is random, and a header says who wrote it.
RANDOM = ("attempt_id", "output_ref", "started_at", "committed_at", "attempts", "error")
OF_HEADER = ("created_by", "owner_process", "due_at_ms", "created_at", "updated_at", "ended_at")


@step
async def gives(value: Any) -> Any:
    return value


@step
async def fails() -> None:
    raise ValueError("nul \0, lone \ud800")


@step(semantics="at_most_once")
async def once() -> str:
    return "once"


@step(pure=True)
async def spilled(size: int) -> bytes:
    return random.Random(size).randbytes(size)


async def branch(ctx: Context) -> list[Any]:
    return [
        await ctx.step(gives, "nul \0, lone \ud800"),
        await ctx.step(gives, set()),
        await ctx.step(gives, ""),
    ]


@workflow
async def all_kinds(ctx: Context, names: dict[str, int]) -> list[Any]:
    done: list[Any] = [await ctx.step(gives, names), len(await ctx.step(spilled, 30_000))]
    try:
        await ctx.step(fails)
    except StepFailed:
        done.append(await ctx.step_if(False, gives, 1))
    done.append(await ctx.step(once))
    return [*done, *await ctx.parallel(ctx.branch(branch))]


async def places(tmp_path: Path, postgres_url: str, aws: AwsPlace) -> AsyncIterator[Place]:
    """One of each kind, which is closed before the next."""
    for kind in STORES:
        url = postgres_url if kind == "postgres" else None
        place = Place(kind, tmp_path, url=url, opens=aws.store if kind == "dynamodb" else None)
        yield place
        await place.close()


async def test_one_run_leaves_the_same_records_in_every_store(
    tmp_path: Path, postgres_url: str, aws: AwsPlace
) -> None:
    found = []
    async for place in places(tmp_path, postgres_url, aws):
        place.turn_clock()
        executor = place.executor()
        result = await executor.run(all_kinds, run_id="r1", names={"b": 2, "a": 1, "#[]!/": 3})
        journal = executor.store.journal
        header = await journal.header("r1")
        assert header is not None
        records = [record async for page in journal.steps("r1") for record in page]
        assert {record.run_id for record in records} == {"r1"}
        found.append(
            (
                result.output,
                sorted(record._replace(**dict.fromkeys(RANDOM, "")) for record in records),
                replace(header, **dict.fromkeys(OF_HEADER, None)),  # type: ignore[arg-type]  # compared, not used
            )
        )
    assert len(found[0][1]) == 8
    for other in found[1:]:
        assert other == found[0]


@workflow
async def shared_map(ctx: Context) -> list[Any]:
    batch = await ctx.map(gives, ["a", 1, {"b": None}], distribute=True, chunk_size=2)
    return list(batch.outputs)


async def test_a_map_that_is_shared_leaves_the_same_chunks_and_outcomes_in_every_store(
    tmp_path: Path, postgres_url: str, aws: AwsPlace
) -> None:
    """How many outcomes go into one segment depends on how quick the store is; what they are doesn't."""
    found = []
    async for place in places(tmp_path, postgres_url, aws):
        executor = place.executor()
        result = await executor.run(shared_map, run_id="r2")
        journal = executor.store.journal
        record = await journal.step("r2", "gives")
        assert record is not None
        segments = [page for chunk in range(2) async for page in journal.segments("r2", "gives", chunk)]
        chunks = [chunk async for page in journal.chunks("r2", "gives") for chunk in page]
        found.append(
            (
                result.output,
                (record.status, record.input_hash, record.output_hash, record.idempotency_key, record.kind),
                [chunk._replace(owner=None, owner_process=None, updated_at="") for chunk in chunks],
                sorted(one for page in segments for segment in page for one in outcomes_of(segment)),
            )
        )
    assert found[0][0] == ["a", 1, {"b": None}]
    assert [(chunk.status, chunk.succeeded) for chunk in found[0][2]] == [("COMPLETED", 2), ("COMPLETED", 1)]
    assert [outcome.item_index for outcome in found[0][3]] == [0, 1, 2]
    for other in found[1:]:
        assert other == found[0]


@pytest.mark.parametrize("shrinks", [False, True] if full() else [False], ids=str)
@pytest.mark.parametrize("size", SIZES)
async def test_an_output_of_any_size_comes_back_in_its_own_and_in_a_later_life(
    place: Place, size: int, shrinks: bool
) -> None:
    value = bytes(size) if shrinks else os.urandom(size)

    @workflow(name="sized")
    async def wf(ctx: Context) -> bytes:
        return bytes(await ctx.step(gives, value))

    executor = place.executor()
    assert (await executor.run(wf, run_id="r1")).output == value
    (view,) = await place.executor().steps("r1")
    assert view.record.output_size is not None
    assert view.record.output_size >= size
    assert await view.output() == value
