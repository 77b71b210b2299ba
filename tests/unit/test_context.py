"""What a context gives that isn't awaited: the same on every replay, and its own in every scope."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from durable_core import Context, step, workflow
from durable_core.control_flow import BranchHalted
from durable_core.errors import AmbiguousStep
from durable_core.scope import Halt, Scope
from tests.stores import Place, Processes, crash, verb_of


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    found = Place("memory", tmp_path)
    found.turn_clock()
    yield found
    await found.close()


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> Processes:
    return Processes(monkeypatch)


# ---- Scopes ----


def test_repeats_of_a_name_are_numbered_and_each_call_has_its_ordinal() -> None:
    scope = Scope("risk/")
    calls = [scope.allot(name, "me") for name in ("a", "b", "a", "a", "b")]
    assert calls == [("risk/a", 0), ("risk/b", 1), ("risk/a#2", 2), ("risk/a#3", 3), ("risk/b#2", 4)]


def test_a_branch_of_a_name_and_a_step_of_it_are_numbered_together() -> None:
    scope = Scope()
    assert scope.allot_branch("risk", "me").path == "risk/"
    assert scope.allot("risk", "me")[0] == "risk#2"
    assert scope.allot_branch("risk", "me").path == "risk#3/"


def test_a_name_belongs_to_whoever_called_it_first() -> None:
    scope = Scope()
    scope.allot("a", "one")
    scope.allot("b", "other")
    with pytest.raises(AmbiguousStep, match="'a'"):
        scope.allot("a", "other")
    assert scope.allot("a", "one") == ("a#2", 2)
    assert Scope("x/").allot("a", "other") == ("x/a", 0)


def test_a_halt_reaches_the_branches_inside_and_not_those_around() -> None:
    outer = Halt(None)
    inner = Halt(outer)
    inside, around = Scope("o/i/", inner), Scope("o/", outer)
    inner.set()
    with pytest.raises(BranchHalted):
        inside.check()
    around.check()
    outer.set()
    with pytest.raises(BranchHalted):
        around.check()
    Scope().check()


# ---- now, random, uuid4 ----


@step
async def work(number: int) -> int:
    return number


def drawn(ctx: Context) -> list[Any]:
    return [ctx.uuid4(), ctx.random(), ctx.random(), ctx.uuid4()]


async def test_what_is_drawn_is_the_same_on_replay_and_differs_by_run_scope_and_ordinal(
    place: Place, processes: Processes
) -> None:
    seen: list[list[Any]] = []

    async def lane(ctx: Context) -> list[Any]:
        return drawn(ctx)

    @workflow(name="draws")
    async def wf(ctx: Context) -> None:
        found = [*drawn(ctx), *await ctx.branch(lane), *await ctx.branch(lane)]
        seen.append(found)
        await ctx.step(work, 1)

    await crash(place, processes, lambda ex: ex.run(wf, run_id="r1"), at=verb_of("commit", "work"))
    executor = place.executor()
    await executor.resume("r1", wf)
    await executor.run(wf, run_id="r2")
    first, again, other = seen
    assert first == again
    assert set(first).isdisjoint(other)
    assert len(set(first)) == len(first) == 12
    ids = [one for one in first if isinstance(one, uuid.UUID)]
    assert {one.version for one in ids} == {4}
    assert {one.variant for one in ids} == {uuid.RFC_4122}
    assert all(0 <= one < 1 for one in first if isinstance(one, float))


async def test_now_is_the_runs_creation_until_a_step_of_the_scope_has_returned(
    place: Place, processes: Processes
) -> None:
    clock = place.turned
    seen: list[list[datetime]] = []

    async def lane(ctx: Context) -> datetime:
        before = ctx.now()
        clock.turn(100)
        await ctx.step(work, 9)
        return before

    @workflow(name="times")
    async def wf(ctx: Context) -> None:
        found = [ctx.now()]
        seen.append(found)
        clock.turn(10)
        found.append(ctx.now())
        await ctx.step(work, 1)
        found.append(ctx.now())
        clock.turn(10)
        found.append(await ctx.branch(lane))
        found.append(ctx.now())
        await ctx.step(work, 2)
        found.append(ctx.now())

    created = datetime.fromtimestamp(clock.now / 1000, UTC)
    await crash(place, processes, lambda ex: ex.run(wf, run_id="r1"), at=verb_of("commit", "work#2"))
    executor = place.executor()
    clock.turn(10_000)
    await executor.resume("r1", wf)
    first, again = seen
    assert first == again[: len(first)]
    offsets = [(one - created).total_seconds() for one in again]
    assert offsets[:5] == [0, 0, 10, 0, 10]
    assert offsets[5] > 10_000
    assert all(one.tzinfo is UTC for one in again)
    assert (await executor.get("r1")).created_at == created.isoformat(timespec="milliseconds").replace(
        "+00:00", "Z"
    )


async def test_now_is_the_same_on_replay_after_a_failed_and_a_skipped_step(
    place: Place, processes: Processes
) -> None:
    clock = place.turned
    seen: list[list[datetime]] = []

    @step
    async def poison() -> None:
        raise ValueError("no")

    @workflow(name="times_of_failures")
    async def wf(ctx: Context) -> None:
        found: list[datetime] = []
        seen.append(found)
        clock.turn(10)
        await ctx.step_if(False, work, 1)
        found.append(ctx.now())
        clock.turn(10)
        try:
            await ctx.step(poison)
        except Exception:
            found.append(ctx.now())
        await ctx.step(work.with_options(name="last"), 1)

    await crash(place, processes, lambda ex: ex.run(wf, run_id="r1"), at=verb_of("begin", "last"))
    await place.executor().resume("r1", wf)
    assert seen[0] == seen[1]


async def test_a_workflow_knows_whether_it_replays_and_its_run_id(place: Place, processes: Processes) -> None:
    seen: list[list[bool]] = []

    @workflow(name="replays")
    async def wf(ctx: Context) -> str:
        found: list[bool] = []
        seen.append(found)
        for number in range(4):
            found.append(ctx.is_replaying)
            await ctx.step(work, number)
        found.append(ctx.is_replaying)
        return ctx.run_id

    await crash(place, processes, lambda ex: ex.run(wf, run_id="r1"), at=verb_of("begin", "work#3"))
    assert (await place.executor().resume("r1", wf)).output == "r1"
    assert seen == [[False, False, False], [True, True, False, False, False]]
