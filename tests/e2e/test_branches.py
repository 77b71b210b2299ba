"""Branches: scopes of their own in whatever order; one that fails halts the others at a boundary."""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
from typing import Any

import pytest

from durable_core import Context, DurableWorkflowExecutor, Retry, current_step, step, workflow
from durable_core.errors import AmbiguousStep, BranchFailed, InvalidId, RunFailed, StepFailed, UsageError
from durable_core.identity import MAX_ID_CHARS, MAX_STEP_ID_CHARS
from tests.stores import Place, Processes, crash, statuses, verb_of


@step
async def fetch(name: str, number: int) -> str:
    return f"{name}{number}"


@step
async def join_up(parts: list[str]) -> str:
    return "+".join(parts)


class Order:
    """The order in which branches come to their steps: by a number of turns of the loop for each."""

    def __init__(self, turns: dict[str, int]) -> None:
        self.turns = turns
        self.keys: dict[str, str] = {}
        self.bodies: list[str] = []

    async def come(self, who: str) -> None:
        for _ in range(self.turns.get(who, 0)):
            await asyncio.sleep(0)

    @property
    def workflow(self) -> Any:
        @step(name="work", crash_limit=9)
        async def work(who: str, number: int) -> tuple[str, int]:
            info = current_step()
            assert self.keys.setdefault(info.step_id, info.idempotency_key) == info.idempotency_key
            self.bodies.append(info.step_id)
            return who, number

        async def lane(ctx: Context, who: str, inner: bool = True) -> list[object]:
            await self.come(who)
            found: list[object] = [await ctx.step(work, who, 0)]
            if inner:
                found += await ctx.parallel(
                    ctx.branch(lane, f"{who}x", False), ctx.branch(lane, f"{who}y", False)
                )
            await self.come(who)
            found.append(await ctx.step(work, who, 1))
            return [*found, str(ctx.uuid4()), ctx.random()]

        @workflow(name="lanes")
        async def lanes(ctx: Context) -> list[object]:
            found = await ctx.parallel(*(ctx.branch(lane, who) for who in "abc"))
            return [*found, str(ctx.uuid4())]

        return lanes


IDS = [
    f"lane{suffix}/{inner}work{repeat}"
    for suffix in ("", "#2", "#3")
    for inner in ("", "lane/", "lane#2/")
    for repeat in ("", "#2")
]


async def test_branches_that_run_in_any_order_have_the_same_ids_keys_and_results(place: Place) -> None:
    seen: list[Any] = []
    for turns in itertools.permutations((0, 3, 7)):
        order = Order(dict(zip("abc", turns, strict=True)))
        executor = place.executor()
        run_id = "r1" if not seen else f"r{len(seen) + 1}"
        result = await executor.run(order.workflow, run_id=run_id)
        views = await executor.steps(run_id)
        assert sorted(order.bodies) == sorted(IDS)
        seen.append(sorted((view.step_id, view.record.step_index, view.record.input_hash) for view in views))
        assert result.output[0][0] == ("a", 0)
    assert all(found == seen[0] for found in seen)


@pytest.mark.parametrize("seed", range(8))
async def test_branches_that_crash_and_resume_in_another_order_are_never_mistaken_for_each_other(
    seed: int, place: Place, processes: Processes
) -> None:
    rng = random.Random(seed)
    undisturbed = Place("memory", place.folder)
    expected = (await undisturbed.executor().run(Order({}).workflow, run_id="r1")).output
    order = Order({})
    for _ in range(3):
        order.turns = {who: rng.randrange(9) for who in ("a", "b", "c", "ax", "by")}
        left = rng.randrange(2, 9)

        def enough(verb: str, *_: object, counted: Any = itertools.count(1), left: int = left) -> bool:  # noqa: B008 - one count for each crash
            return verb == "commit" and next(counted) >= left

        wf = order.workflow
        await crash(place, processes, lambda executor, wf=wf: executor.run(wf, run_id="r1"), at=enough)
    order.turns = {who: rng.randrange(9) for who in "abc"}
    result = await place.executor().resume("r1", order.workflow)
    assert result.output == expected
    assert result.counts == {"COMMITTED": len(IDS)}
    assert sorted(order.keys) == sorted(IDS)


@pytest.mark.over_dynamodb
async def test_a_step_that_committed_in_a_branch_before_a_crash_never_runs_again(
    place: Place, processes: Processes
) -> None:
    order = Order({"a": 0, "b": 5, "c": 5})
    wf = order.workflow
    await crash(
        place, processes, lambda executor: executor.run(wf, run_id="r1"), at=verb_of("begin", "lane/work#2")
    )
    done = {
        name for name, status in (await statuses(place.executor(), "r1")).items() if status == "COMMITTED"
    }
    assert "lane/work" in done
    order.bodies.clear()
    await place.executor().resume("r1", wf)
    assert done.isdisjoint(order.bodies)
    assert sorted(done | set(order.bodies)) == sorted(IDS)


async def test_the_join_waits_until_every_branch_has_ended(place: Place) -> None:
    ended: list[int] = []

    async def lane(ctx: Context, number: int) -> int:
        await ctx.step(fetch, "x", number)
        for _ in range(number * 5):
            await asyncio.sleep(0)
        ended.append(number)
        return number

    @workflow
    async def wf(ctx: Context) -> list[int]:
        found = await ctx.parallel(*(ctx.branch(lane, number) for number in (4, 0, 2)))
        return [*found, len(ended)]

    assert (await place.executor().run(wf)).output == [4, 0, 2, 3]


class Halting:
    """One branch fails once its sibling is in its first body; the sibling's second step must not begin."""

    def __init__(self) -> None:
        self.inside = asyncio.Event()
        self.failed = asyncio.Event()
        self.bodies: list[str] = []
        self.mended = False
        self.sibling_ended: list[str] = []

    @property
    def workflow(self) -> Any:
        @step
        async def slow(number: int) -> int:
            self.bodies.append(f"slow {number}")
            self.inside.set()
            if not self.mended:
                await self.failed.wait()
                await asyncio.sleep(0.1)  # longer than any store takes to write the failure
            return number

        @step
        async def poison() -> str:
            self.bodies.append("poison")
            if self.mended:
                return "mended"
            await self.inside.wait()
            self.failed.set()
            raise ValueError("no")

        async def bad(ctx: Context) -> str:
            return await ctx.step(poison)

        async def good(ctx: Context) -> list[int]:
            try:
                return [await ctx.step(slow, 1), await ctx.step(slow, 2)]
            except Exception as error:  # what halts a branch must get past this
                self.sibling_ended.append(type(error).__name__)
                return []

        @workflow(name="halting")
        async def halting(ctx: Context) -> list[object]:
            return list(await ctx.parallel(ctx.branch(bad), ctx.branch(good)))

        return halting


async def test_a_branch_that_fails_lets_the_others_reach_a_step_boundary_and_names_itself(
    place: Place,
) -> None:
    world, executor = Halting(), place.executor()
    with pytest.raises(RunFailed) as caught:
        await executor.run(world.workflow, run_id="r1")
    failure = caught.value.__cause__
    assert isinstance(failure, BranchFailed)
    assert failure.branch == "bad"
    assert "'bad'" in str(failure)
    assert isinstance(failure.__cause__, StepFailed)
    assert isinstance(failure.__cause__.__cause__, ValueError)
    assert await statuses(executor, "r1") == {"bad/poison": "FAILED", "good/slow": "COMMITTED"}
    assert world.sibling_ended == []
    world.mended = True
    world.bodies.clear()
    result = await executor.resume("r1", world.workflow)
    assert result.output == ["mended", [1, 2]]
    assert sorted(world.bodies) == ["poison", "slow 2"]
    assert result.counts == {"COMMITTED": 3}


async def test_a_sibling_that_waits_for_a_retry_is_not_waited_for(place: Place) -> None:
    clock = place.turn_clock(waits=True)
    tried = asyncio.Event()
    bodies: list[str] = []

    @step(retry=Retry(max_attempts=2, initial_delay_s=3600, max_delay_s=3600, jitter=0))
    async def again_in_an_hour() -> None:
        bodies.append("again_in_an_hour")
        tried.set()
        raise OSError("not yet")

    @step
    async def poison() -> None:
        await tried.wait()
        while not clock.slept:  # noqa: ASYNC110 - the engine's wait has no event to wait for
            await asyncio.sleep(0)
        raise ValueError("no")

    async def bad(ctx: Context) -> None:
        await ctx.step(poison)

    async def waiting(ctx: Context) -> None:
        await ctx.step(again_in_an_hour)

    @workflow
    async def wf(ctx: Context) -> None:
        await ctx.parallel(ctx.branch(waiting), ctx.branch(bad))

    executor = place.executor()
    async with asyncio.timeout(10):
        with pytest.raises(RunFailed, match="branch 'bad' failed"):
            await executor.run(wf, run_id="r1")
    assert bodies == ["again_in_an_hour"]
    assert await statuses(executor, "r1") == {"waiting/again_in_an_hour": "STARTED", "bad/poison": "FAILED"}
    assert 360 in clock.slept  # a long wait is slept in parts


async def test_a_failure_in_an_inner_branch_names_both_and_halts_all_around_it(place: Place) -> None:
    inside, failed = asyncio.Event(), asyncio.Event()

    @step
    async def poison() -> None:
        await inside.wait()
        failed.set()
        raise ValueError("no")

    @step
    async def slow(number: int) -> int:
        inside.set()
        await failed.wait()
        await asyncio.sleep(0.1)  # longer than any store takes to write the failure
        return number

    async def leaf(ctx: Context) -> None:
        await ctx.step(poison)

    async def inner(ctx: Context) -> None:
        await ctx.parallel(ctx.branch(leaf))

    async def deep(ctx: Context) -> None:
        await ctx.step(slow, 1)
        await ctx.step(slow, 2)

    async def other(ctx: Context) -> None:
        await ctx.parallel(ctx.branch(deep))

    @workflow
    async def wf(ctx: Context) -> None:
        await ctx.parallel(ctx.branch(inner), ctx.branch(other))

    executor = place.executor()
    with pytest.raises(RunFailed) as caught:
        await executor.run(wf, run_id="r1")
    outer = caught.value.__cause__
    assert isinstance(outer, BranchFailed)
    assert outer.branch == "inner"
    assert isinstance(outer.__cause__, BranchFailed)
    assert outer.__cause__.branch == "inner/leaf"
    assert isinstance(outer.__cause__.__cause__, StepFailed)
    assert await statuses(executor, "r1") == {"inner/leaf/poison": "FAILED", "other/deep/slow": "COMMITTED"}
    assert (await executor.get("r1")).error["steps"] == ["inner/leaf/poison"]


async def test_when_several_branches_fail_all_their_failures_are_chained_and_redriven(place: Place) -> None:
    mended: list[int] = []
    barrier = asyncio.Barrier(2)

    @step
    async def poison(number: int) -> int:
        if not mended:
            await barrier.wait()
            raise ValueError(f"no {number}")
        mended.append(number)
        return number

    async def lane(ctx: Context, number: int) -> int:
        return await ctx.step(poison, number)

    @workflow
    async def wf(ctx: Context) -> list[int]:
        return list(await ctx.parallel(ctx.branch(lane, 1), ctx.branch(lane, 2)))

    executor = place.executor()
    with pytest.raises(RunFailed) as caught:
        await executor.run(wf, run_id="r1")
    failure = caught.value.__cause__
    assert isinstance(failure, BranchFailed)
    assert isinstance(failure.__cause__, ExceptionGroup)
    assert len(failure.__cause__.exceptions) == 2
    mended.append(0)
    assert (await executor.resume("r1", wf)).output == [1, 2]
    assert sorted(mended) == [0, 1, 2]


# ---- gather and task groups ----


async def test_branches_run_under_gather_and_task_groups_as_under_parallel(place: Place) -> None:
    async def lane(ctx: Context, number: int) -> str:
        return await ctx.step(fetch, "n", number)

    @workflow
    async def wf(ctx: Context) -> list[str]:
        found = list(await asyncio.gather(ctx.branch(lane, 1), ctx.branch(lane, 2)))
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(ctx.branch(lane, number)) for number in (3, 4)]
        return [*found, *(task.result() for task in tasks), await ctx.branch(lane, 5)]

    executor = place.executor()
    assert (await executor.run(wf, run_id="r1")).output == ["n1", "n2", "n3", "n4", "n5"]
    assert set(await statuses(executor, "r1")) == {"lane/fetch", *(f"lane#{n}/fetch" for n in (2, 3, 4, 5))}


async def test_steps_gathered_by_one_task_are_told_apart_by_the_order_of_their_calls(
    place: Place, processes: Processes
) -> None:
    delays = iter((5, 0, 3, 0, 5, 3))
    ran: list[tuple[str, int]] = []

    @step
    async def work(number: int) -> int:
        for _ in range(next(delays, 0)):
            await asyncio.sleep(0)
        ran.append((current_step().step_id, number))
        return number * 10

    @workflow
    async def wf(ctx: Context) -> list[int]:
        return list(await asyncio.gather(*(ctx.step(work, number) for number in range(3))))

    await crash(
        place, processes, lambda executor: executor.run(wf, run_id="r1"), at=verb_of("commit", "work")
    )
    assert (await place.executor().resume("r1", wf)).output == [0, 10, 20]
    assert set(ran) == {("work", 0), ("work#2", 1), ("work#3", 2)}


@pytest.mark.parametrize("repeat", range(10))
async def test_gathered_steps_of_different_names_resume_without_a_mismatch_in_any_order(
    repeat: int, place: Place, processes: Processes
) -> None:
    rng = random.Random(repeat)

    async def body(letter: str) -> str:
        for _ in range(rng.randrange(6)):
            await asyncio.sleep(0)
        return letter

    steps = [step(name=letter)(body) for letter in "abcde"]

    @workflow(name="gathers")
    async def wf(ctx: Context) -> str:
        return "".join(await asyncio.gather(*(ctx.step(one, one.name) for one in steps)))

    commits = itertools.count(1)
    await crash(
        place,
        processes,
        lambda executor: executor.run(wf, run_id="r1"),
        at=lambda verb, *_: verb == "commit" and next(commits) > 2,
    )
    assert (await place.executor().resume("r1", wf)).output == "abcde"


async def test_a_sibling_failing_in_a_task_group_interrupts_a_step_and_does_not_crash_it(
    place: Place,
) -> None:
    bodies: list[str] = []
    mended: list[bool] = []
    inside = asyncio.Event()

    @step
    async def long() -> str:
        bodies.append("long")
        inside.set()
        if len(bodies) == 1:
            await asyncio.Event().wait()
        return "done"

    @step
    async def poison() -> str:
        await inside.wait()
        if not mended:
            raise ValueError("no")
        return "mended"

    @workflow
    async def wf(ctx: Context) -> list[str]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(ctx.step(long)), group.create_task(ctx.step(poison))]
        return [task.result() for task in tasks]

    executor = place.executor()
    with pytest.raises(RunFailed, match="ExceptionGroup"):
        await executor.run(wf, run_id="r1")
    view = {view.step_id: view for view in await executor.steps("r1")}
    assert view["long"].status == "STARTED"
    assert view["long"].record.details()["interrupted"] is True
    mended.append(True)
    result = await executor.resume("r1", wf)
    assert result.output == ["done", "mended"]
    record = {view.step_id: view.record for view in await executor.steps("r1")}["long"]
    assert (record.attempt, record.crashes) == (2, 0)
    assert record.history()[0]["error"] == "INTERRUPTED"


# ---- Where order would decide identity ----


async def test_a_step_name_called_from_two_tasks_is_ambiguous_at_once_and_the_run_can_go_on(
    place: Place,
) -> None:
    ran: list[int] = []
    fixed: list[bool] = []

    @step
    async def score(number: int) -> int:
        ran.append(number)
        return number

    async def helper(ctx: Context, number: int) -> int:
        return await ctx.step(score, number)

    @workflow(name="ambiguous")
    async def wf(ctx: Context) -> list[int]:
        if fixed:
            return list(await asyncio.gather(*(ctx.branch(helper, number) for number in range(3))))
        return list(await asyncio.gather(*(helper(ctx, number) for number in range(3))))

    executor = place.executor()
    with pytest.raises(RunFailed) as caught:
        await executor.run(wf, run_id="r1")
    assert isinstance(caught.value.__cause__, AmbiguousStep)
    assert "ctx.branch" in str(caught.value.__cause__)
    assert "ctx.map" in str(caught.value.__cause__)
    assert "'score'" in str(caught.value.__cause__)
    assert ran in ([], [0])
    fixed.append(True)
    assert (await executor.resume("r1", wf)).output == [0, 1, 2]


async def test_different_step_names_may_be_called_from_different_tasks(place: Place) -> None:
    async def one(ctx: Context) -> str:
        return await ctx.step(fetch.with_options(name="one"), "a", 1)

    async def other(ctx: Context) -> str:
        return await ctx.step(fetch.with_options(name="other"), "b", 2)

    @workflow
    async def wf(ctx: Context) -> list[str]:
        return list(await asyncio.gather(one(ctx), other(ctx)))

    assert (await place.executor().run(wf)).output == ["a1", "b2"]


async def test_a_branch_name_called_from_two_tasks_is_ambiguous_too(place: Place) -> None:
    async def lane(ctx: Context) -> str:
        return await ctx.step(fetch, "a", 1)

    async def helper(ctx: Context) -> str:
        return await ctx.branch(lane)

    @workflow
    async def wf(ctx: Context) -> None:
        await asyncio.gather(helper(ctx), helper(ctx))

    with pytest.raises(RunFailed, match="AmbiguousStep"):
        await place.executor().run(wf)


async def test_the_same_step_name_in_two_branches_is_two_steps(place: Place) -> None:
    async def lane(ctx: Context, number: int) -> str:
        return await ctx.step(fetch, "a", number)

    @workflow
    async def wf(ctx: Context) -> list[str]:
        first = await ctx.step(fetch, "root", 0)
        return [first, *await ctx.parallel(ctx.branch(lane, 1), ctx.branch(lane, 2))]

    executor = place.executor()
    assert (await executor.run(wf, run_id="r1")).output == ["root0", "a1", "a2"]
    assert set(await statuses(executor, "r1")) == {"fetch", "lane/fetch", "lane#2/fetch"}


# ---- What can't be a branch ----


class Nameless:
    async def __call__(self, ctx: Context) -> None:
        await ctx.step(fetch, "a", 1)


def _named(name: str) -> Any:
    async def fn(ctx: Context) -> None:
        await ctx.step(fetch, "a", 1)

    fn.__name__ = name
    return fn


@pytest.mark.parametrize(
    ("fn", "kind"),
    [
        (lambda ctx: None, UsageError),
        (Nameless(), UsageError),
        (_named("a/b"), InvalidId),
        (_named(".hidden"), InvalidId),
        (_named("ä"), InvalidId),
    ],
    ids=["lambda", "no name", "path-like", "leading dot", "not ASCII"],
)
async def test_what_has_no_name_that_a_branch_can_have_is_refused_before_it_runs(
    fn: Any, kind: type[Exception], place: Place
) -> None:
    @workflow
    async def wf(ctx: Context) -> None:
        await ctx.parallel(ctx.branch(fn))

    executor = place.executor()
    with pytest.raises(RunFailed) as caught:
        await executor.run(wf, run_id="r1")
    assert type(caught.value.__cause__) is kind
    assert await executor.steps("r1") == []


def _deep(names: list[str], leaf: str) -> Any:
    """A branch in a branch in a branch, and a step in the innermost."""

    async def fn(ctx: Context) -> Any:
        inner = names[1:]
        if not inner:
            return await ctx.step(fetch.with_options(name=leaf), "a", 1)
        return await ctx.branch(_deep(inner, leaf))

    fn.__name__ = names[0]
    return fn


@pytest.mark.over_dynamodb
async def test_the_longest_step_id_is_the_same_in_every_store_and_one_more_character_is_refused(
    place: Place,
) -> None:
    names = ["n" * MAX_ID_CHARS] * 7
    room = MAX_STEP_ID_CHARS - 7 * (MAX_ID_CHARS + 1)

    @workflow
    async def wf(ctx: Context, more: int) -> Any:
        return await ctx.branch(_deep(names, "s" * (room + more)))

    executor = place.executor()
    await executor.run(wf, run_id="r1", more=0)
    (view,) = await executor.steps("r1")
    assert len(view.step_id) == MAX_STEP_ID_CHARS
    assert (await place.executor().run(wf, run_id="r1", more=0)).status == "COMPLETED"
    with pytest.raises(RunFailed) as caught:
        await executor.run(wf, run_id="r2", more=1)
    assert isinstance(caught.value.__cause__, InvalidId)
    assert await executor.steps("r2") == []


@pytest.mark.parametrize("given", [1, None, "lane", fetch])
async def test_parallel_takes_only_branches(given: Any, place: Place) -> None:
    @workflow
    async def wf(ctx: Context) -> None:
        await ctx.parallel(given)

    with pytest.raises(RunFailed, match="is no branch"):
        await place.executor().run(wf)


async def test_parallel_of_no_branches_gives_nothing(place: Place) -> None:
    @workflow
    async def wf(ctx: Context) -> list[object]:
        return list(await ctx.parallel())

    assert (await place.executor().run(wf)).output == []


def test_a_hundred_branches_of_three_steps_are_three_hundred_steps(tmp_path: Any) -> None:
    async def lane(ctx: Context, number: int) -> str:
        parts = [await ctx.step(fetch, "p", number), await ctx.step(fetch, "q", number)]
        return await ctx.step(join_up, parts)

    @workflow
    async def wf(ctx: Context) -> int:
        return len(set(await ctx.parallel(*(ctx.branch(lane, number) for number in range(100)))))

    threads = threading.active_count()
    executor = DurableWorkflowExecutor(db_path=tmp_path / "runs.db")
    result = executor.blocking.run(wf)
    executor.blocking.close()
    assert result.output == 100
    assert result.counts == {"COMMITTED": 300}
    assert threading.active_count() <= threads + 1
