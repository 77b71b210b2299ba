"""Operations on runs: start, run again, resume, wait, cancel, skip, fork, deadlines, changed code."""

from __future__ import annotations

import asyncio
import hashlib
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from durable_core import (
    Context,
    DurableWorkflowExecutor,
    Retry,
    current_step,
    step,
    workflow,
)
from durable_core.errors import (
    DeadlineReached,
    InputNotSerializable,
    RunBusy,
    RunCancelled,
    RunFailed,
    RunInputMismatch,
    RunNotFinished,
    RunNotFound,
    StepMismatch,
    StepNotFound,
    UsageError,
    WorkflowNotFound,
)
from tests.stores import Place, Processes, crash, statuses, verb_of


class World:
    """What the steps of `report` do, and what they did."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.broken: set[str] = set()
        self.inside = asyncio.Event()
        self.go = asyncio.Event()
        self.go.set()
        self.suffix = ""

    @property
    def workflow(self) -> Any:
        @step
        async def part(name: str) -> str:
            self.ran.append(name)
            self.inside.set()
            await self.go.wait()
            if name in self.broken:
                raise ValueError(f"{name} is broken")
            return f"<{name}>"

        @workflow(name="report")
        async def report(ctx: Context, title: str = "t", tags: set[str] | None = None) -> str:
            found = await ctx.step(part, f"{title}1{self.suffix}")
            return found + await ctx.step(part, f"{title}2")

        return report


@pytest.fixture
def world() -> World:
    return World()


# ---- Starting is idempotent ----


async def test_a_completed_run_gives_its_result_again(world: World, place: Place) -> None:
    executor = place.executor()
    first = await executor.run(world.workflow, run_id="r1", title="x")
    for again in (
        await executor.run(world.workflow, run_id="r1", title="x"),
        await executor.run(world.workflow.bind("x"), run_id="r1"),
        await executor.run(world.workflow, resume_run_id="r1"),
        await executor.run(world.workflow, resume_run_id="r1", title="x"),
        await executor.resume("r1", world.workflow),
        await executor.run(world.workflow, run_id="r1", title="x", wait=True),
    ):
        assert (again.output, again.status, again.counts) == (first.output, "COMPLETED", {"COMMITTED": 2})
    assert world.ran == ["x1", "x2"]


@pytest.mark.over_dynamodb
async def test_a_failed_run_raises_its_failure_again_and_only_a_resume_tries_again(
    world: World, place: Place
) -> None:
    executor = place.executor()
    world.broken = {"t2"}
    with pytest.raises(RunFailed) as first:
        await executor.run(world.workflow, run_id="r1")
    assert first.value.__cause__ is not None
    for _ in range(2):
        with pytest.raises(RunFailed, match="t2 is broken") as caught:
            await executor.run(world.workflow, run_id="r1")
        assert str(caught.value) == str(first.value)
    assert world.ran == ["t1", "t2"]
    world.broken = set()
    assert (await executor.run(world.workflow, resume_run_id="r1")).output == "<t1><t2>"
    assert world.ran == ["t1", "t2", "t2"]


async def test_a_cancelled_run_stays_cancelled(world: World, place: Place) -> None:
    executor = place.executor()
    await executor.start(world.workflow, run_id="r1")
    await executor.cancel("r1")
    for attempt in (
        lambda: executor.run(world.workflow, run_id="r1"),
        lambda: executor.run(world.workflow, resume_run_id="r1"),
        lambda: executor.resume("r1", world.workflow),
    ):
        with pytest.raises(RunCancelled):
            await attempt()
    assert world.ran == []


async def test_a_run_that_nobody_drives_is_taken_over(
    world: World, place: Place, processes: Processes
) -> None:
    wf = world.workflow
    await crash(place, processes, lambda ex: ex.run(wf, run_id="r1"), at=verb_of("begin", "part#2"))
    assert (await place.executor().run(wf, run_id="r1")).output == "<t1><t2>"
    assert world.ran == ["t1", "t2"]


async def test_a_live_run_is_busy_and_left_alone(world: World, place: Place) -> None:
    world.go.clear()
    running = asyncio.ensure_future(place.executor().run(world.workflow, run_id="r1"))
    await world.inside.wait()
    executor = place.executor()
    for attempt in (
        lambda: executor.run(world.workflow, run_id="r1"),
        lambda: executor.resume("r1", world.workflow),
        lambda: executor.skip("r1", "part"),
    ):
        with pytest.raises(RunBusy) as caught:
            await attempt()
        assert 0 < caught.value.lease_left_s <= 30
    world.go.set()
    assert (await running).output == "<t1><t2>"
    assert world.ran == ["t1", "t2"]


async def test_who_waits_for_a_live_run_gets_its_result(world: World, place: Place) -> None:
    place.turn_clock()
    world.go.clear()
    running = asyncio.ensure_future(place.executor().run(world.workflow, run_id="r1"))
    await world.inside.wait()
    executor = place.executor()
    waiting = [
        asyncio.ensure_future(executor.run(world.workflow, run_id="r1", wait=True)),
        asyncio.ensure_future(executor.resume("r1", world.workflow, wait=True)),
    ]
    for _ in range(20):
        await asyncio.sleep(0)
    assert not any(one.done() for one in waiting)
    world.go.set()
    assert {result.output for result in await asyncio.gather(running, *waiting)} == {"<t1><t2>"}
    assert world.ran == ["t1", "t2"]


@pytest.mark.over_dynamodb
async def test_who_waits_goes_on_with_a_run_whose_lease_ends(
    world: World, place: Place, processes: Processes
) -> None:
    clock, wf = place.turn_clock(), world.workflow
    processes.next_is_unknown()
    executor, journal = place.mortal()
    journal.dies_at = verb_of("begin", "part#2")
    with pytest.raises(Exception, match="the owner is dead"):
        await executor.run(wf, run_id="r1")
    processes.next_lives()
    before = clock.now
    with pytest.raises(RunBusy, match="elsewhere"):
        await place.executor().run(wf, run_id="r1")
    assert (await place.executor().run(wf, run_id="r1", wait=True)).output == "<t1><t2>"
    assert 30 <= (clock.now - before) / 1000 <= 31


@pytest.mark.parametrize("late_ms", [-1, 0, 1, 10**9])
async def test_a_lease_is_over_only_after_its_end(
    late_ms: int, world: World, place: Place, processes: Processes
) -> None:
    clock, wf = place.turn_clock(), world.workflow
    processes.next_is_unknown()
    executor, journal = place.mortal(lease_s=2)
    journal.dies_at = verb_of("begin", "part#2")
    with pytest.raises(Exception, match="the owner is dead"):
        await executor.run(wf, run_id="r1")
    clock.now = (await place.executor().get("r1")).lease_until_ms + late_ms
    if late_ms > 0:
        assert (await place.executor().resume("r1", wf)).output == "<t1><t2>"
    else:
        with pytest.raises(RunBusy):
            await place.executor().resume("r1", wf)


async def test_other_inputs_or_another_workflow_under_a_taken_id_are_refused_in_every_state(
    world: World, place: Place
) -> None:
    @workflow(name="another")
    async def another(ctx: Context, title: str = "t") -> None:
        raise AssertionError

    executor = place.executor()
    await executor.start(world.workflow, run_id="pending", title="x")
    await executor.run(world.workflow, run_id="completed", title="x")
    await executor.start(world.workflow, run_id="cancelled", title="x")
    await executor.cancel("cancelled")
    world.broken = {"x1"}
    with pytest.raises(RunFailed):
        await executor.run(world.workflow, run_id="failed", title="x")
    world.ran.clear()
    for run_id in ("pending", "completed", "cancelled", "failed"):
        for bound in (world.workflow.bind("y"), another.bind("x")):
            for attempt in (
                executor.run(bound, run_id=run_id),
                executor.start(bound, run_id=run_id),
                executor.run(bound, resume_run_id=run_id),
            ):
                with pytest.raises(RunInputMismatch) as caught:
                    await attempt
                if bound.workflow is another:
                    assert "'report'" in str(caught.value)
                    assert "'another'" in str(caught.value)
    assert world.ran == []


async def test_equal_inputs_are_the_same_in_whatever_order_they_are_given(world: World, place: Place) -> None:
    executor = place.executor()
    await executor.run(world.workflow, run_id="r1", title="x", tags={"a", "b", "c"})
    again = await executor.run(world.workflow, run_id="r1", tags={"c", "b", "a"}, title="x")
    assert again.output == "<x1><x2>"
    with pytest.raises(RunInputMismatch):
        await executor.run(world.workflow, run_id="r1", title="x")


async def test_resume_without_inputs_uses_the_recorded_ones(
    world: World, place: Place, processes: Processes
) -> None:
    wf = world.workflow
    await crash(
        place, processes, lambda ex: ex.run(wf, run_id="r1", title="x"), at=verb_of("begin", "part#2")
    )
    with pytest.raises(RunInputMismatch):
        await place.executor().run(wf.bind(), resume_run_id="r1")
    assert (await place.executor().run(wf, resume_run_id="r1")).output == "<x1><x2>"
    assert world.ran == ["x1", "x2"]


async def test_two_ids_that_name_different_runs_are_refused(world: World, place: Place) -> None:
    executor = place.executor()
    with pytest.raises(UsageError, match="different runs"):
        await executor.run(world.workflow, run_id="r1", resume_run_id="r2")
    assert await executor.list() == []


async def test_a_run_that_is_not_there_cannot_be_operated_on(world: World, place: Place) -> None:
    executor = place.executor()
    for attempt in (
        lambda: executor.run(world.workflow, resume_run_id="gone"),
        lambda: executor.resume("gone"),
        lambda: executor.get("gone"),
        lambda: executor.steps("gone"),
        lambda: executor.cancel("gone"),
        lambda: executor.skip("gone", "part"),
        lambda: executor.fork("gone"),
    ):
        with pytest.raises(RunNotFound, match="gone"):
            await attempt()


async def test_a_run_is_resumed_by_the_name_of_its_workflow_and_an_unknown_one_is_told(place: Place) -> None:
    executor = place.executor()
    await executor.run(by_name, run_id="r1", number=2)
    assert (await executor.resume("r1")).output == 3
    local = workflow(name="nobody_defines_it_later")(by_name.fn)
    await executor.start(local, run_id="r2", number=2)
    from durable_core.workflow import _registered

    _registered.pop("nobody_defines_it_later")
    with pytest.raises(WorkflowNotFound, match="nobody_defines_it_later"):
        await executor.resume("r2")
    assert (await executor.resume("r2", local)).output == 3


@step
async def plus_one(number: int) -> int:
    return number + 1


@workflow
async def by_name(ctx: Context, number: int) -> int:
    return await ctx.step(plus_one, number)


async def test_a_started_run_waits_for_who_drives_it(world: World, place: Place) -> None:
    executor = place.executor()
    view = await executor.start(world.workflow, run_id="r1", title="x", session_id="s1")
    again = await executor.start(world.workflow, run_id="r1", title="x")
    assert (view.status, view.fence, view.session_id, view.owner_process) == ("PENDING", 0, "s1", None)
    assert again == view
    assert world.ran == []
    assert (await executor.run(world.workflow, run_id="r1", title="x")).output == "<x1><x2>"
    assert (await executor.start(world.workflow, run_id="r1", title="x")).status == "COMPLETED"


async def test_a_run_without_an_id_gets_one_that_tells_its_workflow(world: World, place: Place) -> None:
    executor = place.executor()
    ids = {(await executor.run(world.workflow)).run_id for _ in range(3)}
    assert len(ids) == 3
    assert all(run_id.startswith("report-2") for run_id in ids)


# ---- Cancel ----


async def test_cancel_tells_the_state_that_stands_whenever_it_comes(world: World, place: Place) -> None:
    executor, other = place.executor(), place.executor()
    turn_s = 0.002 if place.kind == "dynamodb" else 0  # its requests are in threads, and take no turns
    seen: set[str] = set()
    for turns in range(40):
        run_id = f"r{turns}"
        world.inside.clear()
        if turns == 1:  # however fast the machine is, one is cancelled in a body
            world.go.clear()

        async def cancel(run_id: str = run_id, turns: int = turns) -> str:
            if turns % 2:  # else from the beginning: how many turns that takes is the machine's
                await world.inside.wait()
            for _ in range(turns):
                await asyncio.sleep(turn_s)
            try:
                return (await other.cancel(run_id)).status
            except RunNotFound:
                return "NOT THERE YET"
            finally:
                world.go.set()

        ran, told = await asyncio.gather(
            executor.run(world.workflow, run_id=run_id), cancel(), return_exceptions=True
        )
        stands = (await executor.get(run_id)).status
        assert stands == ("COMPLETED" if told == "NOT THERE YET" else told)
        assert isinstance(ran, RunCancelled) == (stands == "CANCELLED"), ran
        seen.add(stands)
    assert seen == {"COMPLETED", "CANCELLED"}


async def test_cancel_is_harmless_twice_and_on_an_ended_run(world: World, place: Place) -> None:
    executor = place.executor()
    await executor.run(world.workflow, run_id="done")
    assert (await executor.cancel("done")).status == "COMPLETED"
    await executor.start(world.workflow, run_id="r1")
    first, second = await executor.cancel("r1"), await executor.cancel("r1")
    assert first == second
    assert first.ended_at is not None


# ---- Skip ----


async def test_a_failed_step_is_skipped_with_an_output_that_the_run_goes_on_with(
    world: World, place: Place
) -> None:
    executor = place.executor()
    world.broken = {"t1"}
    with pytest.raises(RunFailed):
        await executor.run(world.workflow, run_id="r1")
    view = await executor.skip("r1", "part", output="[by hand]")
    assert (view.status, await view.output()) == ("SKIPPED", "[by hand]")
    assert view.record.details() == {"skipped_by_hand": True}
    assert view.attempts[-1]["error"] == "ERROR"
    assert (await executor.get("r1")).status == "FAILED"
    assert (await executor.resume("r1", world.workflow)).output == "[by hand]<t2>"
    assert world.ran == ["t1", "t2"]


async def test_a_step_that_is_skipped_without_an_output_gives_none(place: Place) -> None:
    @step
    async def poison() -> int:
        raise ValueError("no")

    @workflow(name="skips_none")
    async def wf(ctx: Context) -> str:
        return repr(await ctx.step(poison))

    executor = place.executor()
    with pytest.raises(RunFailed):
        await executor.run(wf, run_id="r1")
    view = await executor.skip("r1", "poison")
    with pytest.raises(RunNotFinished):
        await view.output()
    result = await executor.resume("r1", wf)
    assert (result.output, result.counts) == ("None", {"SKIPPED": 1})


async def test_a_large_output_given_by_hand_is_spilled_and_read_back(place: Place) -> None:
    large = b"".join(hashlib.sha256(bytes([n % 256, n // 256])).digest() for n in range(2000))

    @step
    async def poison() -> bytes:
        raise ValueError("no")

    @workflow(name="skips_large")
    async def wf(ctx: Context) -> bytes:
        return await ctx.step(poison)

    executor = place.executor()
    with pytest.raises(RunFailed):
        await executor.run(wf, run_id="r1")
    view = await executor.skip("r1", "poison", output=large)
    assert view.record.output_ref is not None
    assert (await executor.resume("r1", wf)).output == large


async def test_only_a_step_without_an_outcome_that_stands_can_be_skipped(world: World, place: Place) -> None:
    executor = place.executor()
    world.broken = {"t2"}
    with pytest.raises(RunFailed):
        await executor.run(world.workflow, run_id="r1")
    with pytest.raises(UsageError, match="COMMITTED"):
        await executor.skip("r1", "part")
    with pytest.raises(StepNotFound):
        await executor.skip("r1", "part#9")
    with pytest.raises(InputNotSerializable):
        await executor.skip("r1", "part#2", output=object())
    assert await statuses(executor, "r1") == {"part": "COMMITTED", "part#2": "FAILED"}
    await executor.skip("r1", "part#2", output="a slip")
    assert (await executor.skip("r1", "part#2")).record.output_hash is None  # a skip can be corrected
    await executor.cancel("r1")
    assert (await executor.get("r1")).status == "FAILED"
    await executor.run(world.workflow, run_id="r2", title="ok")
    with pytest.raises(UsageError, match="COMPLETED"):
        await executor.skip("r2", "part")


# ---- Fork ----


async def test_a_fork_takes_over_what_is_unchanged_and_runs_the_rest(world: World, place: Place) -> None:
    executor = place.executor()
    await executor.run(world.workflow, run_id="r1")
    before = [view.record for view in await executor.steps("r1")]
    world.suffix = "-changed"
    world.ran.clear()
    plan = await executor.fork("r1", wf=world.workflow, new_run_id="r2")
    assert (plan.run_id, plan.kept, plan.left) == ("r2", ["part", "part#2"], [])
    assert world.ran == []
    assert (await executor.get("r2")).forked_from == "r1"
    result = await executor.resume("r2", world.workflow)
    assert result.output == "<t1-changed><t2>"
    assert world.ran == ["t1-changed"]
    assert result.counts == {"COMMITTED": 2}
    assert [view.record for view in await executor.steps("r1")] == before
    after = {view.step_id: view.record for view in await executor.steps("r2")}
    assert after["part#2"].idempotency_key == before[1].idempotency_key
    assert after["part"].idempotency_key != before[0].idempotency_key


async def test_a_dry_run_tells_the_same_and_makes_nothing(world: World, place: Place) -> None:
    executor = place.executor()
    world.broken = {"t2"}
    with pytest.raises(RunFailed):
        await executor.run(world.workflow, run_id="r1")
    plan = await executor.fork("r1", wf=world.workflow, dry_run=True)
    assert (plan.run_id, plan.kept, plan.left) == (None, ["part"], ["part#2"])
    assert [view.run_id for view in await executor.list()] == ["r1"]


@pytest.mark.parametrize(
    ("from_step", "kept"),
    [
        ("part", []),
        ("part#2", ["part"]),
        ("part#3", ["part", "part#2"]),
        (None, ["part", "part#2", "part#3"]),
    ],
)
async def test_a_fork_takes_over_only_what_was_begun_before_a_step(
    from_step: str | None, kept: list[str], place: Place
) -> None:
    ran: list[str] = []

    @step
    async def part(name: str) -> str:
        ran.append(name)
        return name

    @workflow(name="three")
    async def wf(ctx: Context) -> str:
        return "".join([await ctx.step(part, name) for name in "abc"])

    executor = place.executor()
    await executor.run(wf, run_id="r1")
    plan = await executor.fork("r1", wf=wf, new_run_id="r2", from_step=from_step)
    assert plan.kept == kept
    assert sorted(plan.kept + plan.left) == ["part", "part#2", "part#3"]
    ran.clear()
    assert (await executor.resume("r2", wf)).output == "abc"
    assert ran == list("abc")[len(kept) :]


async def test_a_fork_with_other_inputs_runs_anew_what_they_change(world: World, place: Place) -> None:
    executor = place.executor()
    await executor.run(world.workflow, run_id="r1", title="x")
    await executor.fork("r1", wf=world.workflow, new_run_id="r2", inputs={"title": "y"})
    assert (await executor.resume("r2", world.workflow)).output == "<y1><y2>"
    assert world.ran == ["x1", "x2", "y1", "y2"]


async def test_a_forks_blobs_are_its_own(place: Place) -> None:
    @step
    async def large() -> bytes:
        return b"".join(hashlib.sha256(bytes([n % 256, n // 256])).digest() for n in range(1000))

    @workflow(name="forks_blobs")
    async def wf(ctx: Context) -> int:
        return len(await ctx.step(large))

    executor = place.executor()
    await executor.run(wf, run_id="r1")
    await executor.fork("r1", wf=wf, new_run_id="r2")
    old, new = (await executor.steps("r1"))[0], (await executor.steps("r2"))[0]
    assert old.record.output_ref is not None
    assert new.record.output_ref is not None
    assert new.record.output_ref.startswith("runs/r2/")
    await executor.store.blobs.delete(old.record.output_ref)
    assert len(await new.output()) == 32_000  # type: ignore[arg-type]
    assert (await executor.resume("r2", wf)).output == 32_000


async def test_a_fork_of_a_fork_and_one_that_crashes_keep_all_that_was_taken_over(
    world: World, place: Place, processes: Processes
) -> None:
    executor, wf = place.executor(), world.workflow
    await executor.run(wf, run_id="r1")
    await executor.fork("r1", wf=wf, new_run_id="r2")
    await executor.fork("r2", wf=wf, new_run_id="r3")
    world.suffix = "-new"
    world.ran.clear()
    await crash(place, processes, lambda ex: ex.resume("r3", wf), at=verb_of("commit", "part"))
    assert (await place.executor().resume("r3", wf)).output == "<t1-new><t2>"
    assert world.ran == ["t1-new", "t1-new"]


async def test_a_fork_under_a_taken_id_or_from_an_unknown_step_makes_nothing(
    world: World, place: Place
) -> None:
    executor = place.executor()
    await executor.run(world.workflow, run_id="r1")
    with pytest.raises(RunInputMismatch):
        await executor.fork("r1", wf=world.workflow, new_run_id="r1")
    with pytest.raises(StepNotFound, match="part#7"):
        await executor.fork("r1", wf=world.workflow, new_run_id="r2", from_step="part#7")
    with pytest.raises(UsageError):
        await executor.fork("r1", wf=world.workflow, new_run_id="r2", inputs={"nonsense": 1})
    assert [view.run_id for view in await executor.list()] == ["r1"]


async def test_a_fork_for_another_workflow_is_refused(world: World, place: Place) -> None:
    executor = place.executor()
    await executor.run(world.workflow, run_id="r1")
    with pytest.raises(RunInputMismatch, match="'by_name'"):
        await executor.fork("r1", wf=by_name, new_run_id="r2")
    assert [view.run_id for view in await executor.list()] == ["r1"]


async def test_recorded_inputs_that_no_longer_fit_are_told_and_go_on_when_they_do(
    place: Place, processes: Processes
) -> None:
    @workflow(name="signature")
    async def before(ctx: Context, number: int) -> int:
        return await ctx.step(plus_one, number)

    @workflow(name="signature")
    async def after(ctx: Context, number: int, factor: int) -> int:
        return await ctx.step(plus_one, number) * factor

    await crash(
        place, processes, lambda ex: ex.run(before, run_id="r1", number=1), at=verb_of("begin", "plus_one")
    )
    executor = place.executor()
    with pytest.raises(UsageError, match="factor") as caught:
        await executor.resume("r1", after)
    assert caught.value.run_id == "r1"
    assert (await executor.resume("r1", before)).output == 2


# ---- Changed inputs of steps ----


async def test_with_keep_a_changed_step_keeps_its_recorded_output_and_says_so(
    world: World, place: Place, processes: Processes, capsys: pytest.CaptureFixture[str]
) -> None:
    wf = world.workflow
    await crash(place, processes, lambda ex: ex.run(wf, run_id="r1"), at=verb_of("begin", "part#2"))
    world.suffix = "-changed"
    executor = place.executor()
    with pytest.raises(RunFailed) as caught:
        await executor.resume("r1", wf)
    assert isinstance(caught.value.__cause__, StepMismatch)
    capsys.readouterr()
    assert (await executor.resume("r1", wf, on_change="keep")).output == "<t1><t2>"
    assert world.ran == ["t1", "t2"]
    told = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["step_id"] for line in told if line["event"] == "changed_input_kept_old_output"] == ["part"]


async def test_keep_is_for_committed_steps_only(place: Place) -> None:
    argument, broken = "a", True

    @step
    async def poison(name: str) -> str:
        if broken:
            raise ValueError("no")
        return name

    @workflow(name="keeps")
    async def wf(ctx: Context) -> str:
        return await ctx.step(poison, argument)

    executor = place.executor()
    with pytest.raises(RunFailed):
        await executor.run(wf, run_id="r1")
    argument, broken = "b", False
    with pytest.raises(RunFailed) as caught:
        await executor.resume("r1", wf, on_change="keep")
    assert isinstance(caught.value.__cause__, StepMismatch)


async def test_an_unknown_way_to_take_changes_is_refused(world: World, place: Place) -> None:
    with pytest.raises(UsageError, match="'ignore'"):
        await place.executor().run(world.workflow, on_change="ignore")  # type: ignore[call-overload]


async def test_code_that_changed_is_told_on_resume_and_so_are_steps_it_no_longer_asks_for(
    place: Place, processes: Processes, capsys: pytest.CaptureFixture[str]
) -> None:
    @workflow(name="deployed")
    async def first(ctx: Context) -> int:
        await ctx.step(plus_one.with_options(name="gone"), 1)
        await ctx.step(plus_one.with_options(name="gone"), 2)
        return await ctx.step(plus_one, 1)

    @workflow(name="deployed")
    async def second(ctx: Context) -> int:
        return await ctx.step(plus_one, 1)

    await crash(place, processes, lambda ex: ex.run(first, run_id="r1"), at=verb_of("begin", "plus_one"))
    executor = place.executor()
    assert (await executor.get("r1")).fingerprint == first.fingerprint != second.fingerprint
    capsys.readouterr()
    result = await executor.resume("r1", second)
    told = {line["event"]: line for line in map(json.loads, capsys.readouterr().err.splitlines())}
    assert told["workflow_changed"]["run_id"] == "r1"
    assert sorted(told["recorded_steps_not_asked_for"]["step_ids"]) == ["gone", "gone#2"]
    assert (await executor.get("r1")).fingerprint == second.fingerprint
    assert result.counts == {"COMMITTED": 3}


async def test_unchanged_code_says_nothing_of_a_change(
    world: World, place: Place, processes: Processes, capsys: pytest.CaptureFixture[str]
) -> None:
    wf = world.workflow
    await crash(place, processes, lambda ex: ex.run(wf, run_id="r1"), at=verb_of("begin", "part#2"))
    await place.executor().resume("r1", wf)
    err = capsys.readouterr().err
    assert "workflow_changed" not in err
    assert "recorded_steps_not_asked_for" not in err


# ---- Deadlines ----


async def test_a_step_in_flight_at_a_deadline_that_commits_in_time_is_kept(place: Place) -> None:
    ran: list[str] = []

    @step
    async def work(name: str, seconds: float) -> str:
        ran.append(name)
        await asyncio.sleep(seconds)
        return name

    @workflow(name="deadline_kept")
    async def wf(ctx: Context) -> str:
        return await ctx.step(work, "a", 3.64) + await ctx.step(work, "b", 0)

    executor = place.executor()
    with pytest.raises(DeadlineReached) as caught:
        await executor.run(wf, run_id="r1", deadline=timedelta(seconds=4))
    assert caught.value.retryable
    assert await statuses(executor, "r1") == {"work": "COMMITTED"}
    view = await executor.get("r1")
    assert (view.status, view.owner_process, view.counts) == ("PENDING", None, {"COMMITTED": 1})
    assert (await executor.resume("r1", wf)).output == "ab"
    assert ran == ["a", "b"]


async def test_a_step_in_flight_at_a_deadline_that_does_not_commit_is_interrupted_and_not_crashed(
    place: Place,
) -> None:
    ran: list[int] = []

    @step
    async def work() -> str:
        ran.append(current_step().attempt)
        if len(ran) == 1:
            await asyncio.Event().wait()
        return "done"

    @workflow(name="deadline_missed")
    async def wf(ctx: Context) -> str:
        try:
            return await ctx.step(work)
        except Exception:
            return "swallowed"

    executor = place.executor()
    with pytest.raises(DeadlineReached):
        await executor.run(wf, run_id="r1", deadline=datetime.now(UTC) + timedelta(seconds=1))
    record = (await executor.steps("r1"))[0].record
    assert (record.status, record.details()["interrupted"]) == ("STARTED", True)
    assert (await executor.resume("r1", wf)).output == "done"
    record = (await executor.steps("r1"))[0].record
    assert (record.attempt, record.crashes, ran) == (2, 0, [1, 2])


async def test_a_deadline_ends_a_wait_for_a_retry(place: Place) -> None:
    @step(retry=Retry(initial_delay_s=3600, max_delay_s=3600))
    async def flaky() -> None:
        raise ValueError("no")

    @workflow(name="deadline_retry")
    async def wf(ctx: Context) -> None:
        await ctx.step(flaky)

    executor = place.executor()
    async with asyncio.timeout(10):
        with pytest.raises(DeadlineReached):
            await executor.run(wf, run_id="r1", deadline=timedelta(seconds=1))
    record = (await executor.steps("r1"))[0].record
    assert (record.status, record.error_info()["type"]) == ("STARTED", "ValueError")
    assert "interrupted" not in record.details()


@pytest.mark.parametrize(
    "deadline",
    [timedelta(0), timedelta(seconds=-1), datetime.now(UTC) - timedelta(days=1), datetime(2999, 1, 1)],  # noqa: DTZ001
)
async def test_a_deadline_that_is_past_or_has_no_zone_is_refused_before_anything_is_written(
    deadline: Any, world: World, place: Place
) -> None:
    executor = place.executor()
    with pytest.raises(UsageError, match="deadline="):
        await executor.run(world.workflow, deadline=deadline)
    assert await executor.list() == []


# ---- Interruption of the caller ----


async def test_a_cancelled_caller_releases_the_run(world: World, place: Place) -> None:
    world.go.clear()
    executor = place.executor()
    running = asyncio.ensure_future(executor.run(world.workflow, run_id="r1"))
    await world.inside.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    view = await executor.get("r1")
    assert (view.status, view.owner_process, view.lease_until_ms) == ("PENDING", None, 0)
    record = (await executor.steps("r1"))[0].record
    assert (record.status, record.details()) == ("STARTED", {"interrupted": True})
    world.go.set()
    assert (await place.executor().run(world.workflow, run_id="r1")).output == "<t1><t2>"
    assert (await executor.steps("r1"))[0].record.crashes == 0


# ---- Looking ----


async def test_views_tell_what_a_run_and_its_steps_are(world: World, place: Place) -> None:
    executor = place.executor()
    world.broken = {"t2"}
    with pytest.raises(RunFailed):
        await executor.run(world.workflow, run_id="r1", session_id="s")
    view = await executor.get("r1")
    assert (view.workflow, view.status, view.fence, view.crashes) == ("report", "FAILED", 1, 0)
    assert (view.error["type"], view.error["steps"], view.session_id) == ("StepFailed", ["part#2"], "s")
    assert view.created_at <= view.updated_at == view.ended_at
    first, second = await executor.steps("r1")
    assert (first.step_id, first.status, await first.output()) == ("part", "COMMITTED", "<t1>")
    assert (second.error["type"], second.error["message"]) == ("ValueError", "t2 is broken")
    with pytest.raises(RunNotFinished):
        await second.output()
    assert first.error == {}


async def test_a_result_that_is_not_there_yet_is_an_error_and_not_none(world: World, place: Place) -> None:
    from durable_core import RunResult

    result: RunResult[str] = RunResult("r1", "SUSPENDED", None, {"COMMITTED": 1})
    with pytest.raises(RunNotFinished, match="SUSPENDED"):
        result.output  # noqa: B018 - looking is what raises


async def test_runs_are_listed_newest_first_filtered_and_in_pages(world: World, place: Place) -> None:
    clock = place.turn_clock()
    executor = place.executor()
    for number in range(5):
        clock.turn(1)
        await executor.start(world.workflow, run_id=f"r{number}")
    await executor.run(world.workflow, run_id="r2")
    clock.turn(1)
    await executor.start(by_name, run_id="q-5", number=1)

    async def ids(**wanted: Any) -> list[str]:
        return [view.run_id for view in await executor.list(**wanted)]

    assert await ids() == ["q-5", "r4", "r3", "r2", "r1", "r0"]
    assert await ids(status="COMPLETED") == ["r2"]
    assert await ids(workflow="by_name") == ["q-5"]
    assert await ids(prefix="r") == ["r4", "r3", "r2", "r1", "r0"]
    page = await executor.list(limit=4)
    rest = await executor.list(limit=4, before=page[-1])
    assert [view.run_id for view in page + rest] == await ids()
    for text in ("%", "_", "r%", "'", '"', "\\", "r'; DROP TABLE runs; --", "$.x", "[r]*", "R"):
        assert await ids(prefix=text) == []
        assert await ids(workflow=text) == []
    assert len(await ids()) == 6


async def test_runs_and_steps_of_one_moment_are_listed_in_an_order_that_stays(place: Place) -> None:
    place.turn_clock()

    @workflow(name="moment")
    async def wf(ctx: Context) -> None:
        for number in range(30):
            await ctx.step(plus_one, number)

    executor = place.executor()
    for number in range(20):
        await executor.start(by_name, run_id=f"r{number}", number=1)
    await executor.run(wf, run_id="m")
    order = [view.run_id for view in await executor.list()]
    for _ in range(3):
        assert [view.run_id for view in await executor.list()] == order
    by_pages: list[str] = []
    last = None
    while page := await executor.list(limit=3, before=last):
        by_pages += [view.run_id for view in page]
        last = page[-1]
    assert by_pages == order
    steps = [view.step_id for view in await executor.steps("m")]
    assert steps == ["plus_one", *(f"plus_one#{number}" for number in range(2, 31))]


async def test_an_executor_can_be_used_again_after_it_was_closed(world: World, place: Place) -> None:
    executor: DurableWorkflowExecutor = place.executor()
    await executor.run(world.workflow, run_id="r1")
    await executor.close()
    await executor.close()
    if place.kind == "sqlite":
        assert (await executor.get("r1")).status == "COMPLETED"
    assert (await executor.run(world.workflow, run_id="r2")).output == "<t1><t2>"


@pytest.mark.parametrize("damage", ["gone", "cut"])
async def test_a_fork_runs_anew_the_step_whose_large_output_is_lost(tmp_path: Path, damage: str) -> None:
    bodies: list[str] = []

    @step
    async def large() -> str:
        bodies.append("large")
        return "".join(map(str, range(20_000)))

    @step
    async def small() -> int:
        bodies.append("small")
        return 1

    @workflow(name="spilling")
    async def wf(ctx: Context) -> int:
        return len(await ctx.step(large)) + await ctx.step(small)

    async with DurableWorkflowExecutor(db_path=tmp_path / "runs.db") as executor:
        before = await executor.run(wf, run_id="r1")
        (blob,) = (tmp_path / "runs.db.blobs" / "runs" / "r1").iterdir()
        if damage == "gone":
            blob.unlink()
        else:
            blob.write_bytes(blob.read_bytes()[:-1])
        plan = await executor.fork("r1", new_run_id="r2")
        assert (plan.kept, plan.left) == (["small"], ["large"])
        assert (await executor.resume("r2")).output == before.output
        assert bodies == ["large", "small", "large"]
