"""Plain `def` workflows, and plain code that runs and looks at runs without a loop of its own."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from durable_core import Context, DurableWorkflowExecutor, Retry, SyncContext, current_step, step, workflow
from durable_core.engine.blocking import BlockingExecutor
from durable_core.errors import (
    AmbiguousStep,
    BranchFailed,
    DeadlineReached,
    Fenced,
    JournalUnavailable,
    RunCancelled,
    RunFailed,
    RunningLoop,
    StepFailed,
)
from tests.stores import Place, Processes, crash, statuses, verb_of


@step
def add(one: int, other: int) -> int:
    return one + other


@step(pure=True)
async def square(number: int) -> int:
    return number * number


def lane(ctx: SyncContext, number: int) -> list[Any]:
    found: list[Any] = [ctx.step(add, number, 1), ctx.step(square, number)]
    if number:
        found += ctx.parallel(ctx.branch(lane, 0), ctx.branch(lane, 0))
    return [*found, str(ctx.uuid4()), ctx.random()]


@workflow(name="plain_everything")
def everything(ctx: SyncContext, number: int) -> dict[str, Any]:
    return {
        "step": ctx.step(add, number, 2),
        "async step": ctx.step(square, number),
        "skipped": ctx.step_if(False, add, 1, 1),
        "not skipped": ctx.step_if(True, add, 1, 1),
        "lanes": list(ctx.parallel(ctx.branch(lane, 1), ctx.branch(lane, 2))),
        "uuid": str(ctx.uuid4()),
        "random": ctx.random(),
        "now": ctx.now(),
        "run_id": ctx.run_id,
    }


IDS = {
    "add", "square", "add#2", "add#3",
    *(f"{path}/{name}" for lane in ("lane", "lane#2") for path in (lane, f"{lane}/lane", f"{lane}/lane#2")
      for name in ("add", "square")),
}  # fmt: skip


@pytest.mark.over_dynamodb
async def test_a_def_workflow_has_every_verb(place: Place) -> None:
    executor = place.executor()
    result = await executor.run(everything, run_id="r1", number=3)
    assert result.output["step"] == 5
    assert result.output["async step"] == 9
    assert result.output["skipped"] is None
    assert result.output["not skipped"] == 2
    assert [found[:2] for found in result.output["lanes"]] == [[2, 1], [3, 4]]
    assert result.output["run_id"] == "r1"
    assert set(await statuses(executor, "r1")) == IDS
    assert result.counts == {"COMMITTED": len(IDS) - 1, "SKIPPED": 1}


@pytest.mark.parametrize("at", sorted(IDS))
async def test_a_def_workflow_that_crashes_at_any_step_ends_as_if_nothing_had_happened(
    at: str, tmp_path: Any, processes: Processes
) -> None:
    place = Place("memory", tmp_path)
    undisturbed = await Place("memory", tmp_path).executor().run(everything, run_id="r1", number=3)

    def matches(verb: str, *args: Any) -> bool:
        return verb in ("commit", "put", "begin") and args[0].step_id == at

    await crash(place, processes, lambda ex: ex.run(everything, run_id="r1", number=3), at=matches)
    result = await place.executor().resume("r1", everything)
    for output in (result.output, undisturbed.output):
        assert isinstance(output.pop("now"), object)
    assert result.output == undisturbed.output
    assert result.counts == undisturbed.counts
    await place.close()


async def test_an_async_and_a_def_workflow_make_the_same_records(place: Place) -> None:
    async def async_lane(ctx: Context, number: int) -> int:
        return await ctx.step(add, number, 1)

    @workflow(name="same")
    async def asynchronous(ctx: Context) -> list[Any]:
        first = await ctx.step(square, 2)
        one, two = await ctx.parallel(
            ctx.branch(async_lane, 1),
            ctx.branch(async_lane, 2),
        )
        return [first, one, two, ctx.random(), str(ctx.uuid4())]

    def sync_lane(ctx: SyncContext, number: int) -> int:
        return ctx.step(add, number, 1)

    sync_lane.__name__ = "async_lane"

    @workflow(name="same")
    def plain(ctx: SyncContext) -> list[Any]:
        first = ctx.step(square, 2)
        one, two = ctx.parallel(ctx.branch(sync_lane, 1), ctx.branch(sync_lane, 2))
        return [first, one, two, ctx.random(), str(ctx.uuid4())]

    def told(views: list[Any]) -> list[Any]:
        kept = ("step_id", "step_index", "input_hash", "output_hash", "idempotency_key")
        return sorted(tuple(getattr(view.record, name) for name in kept) for view in views)

    one, other = Place("memory", place.folder).executor(), place.executor()
    outputs = [(await one.run(asynchronous, run_id="r")).output, (await other.run(plain, run_id="r")).output]
    assert outputs[0] == outputs[1]
    assert told(await one.steps("r")) == told(await other.steps("r"))


async def test_a_def_workflow_that_caught_a_failure_takes_the_same_path_again(
    place: Place, processes: Processes
) -> None:
    ran: list[str] = []

    @step(retry=Retry(max_attempts=2, initial_delay_s=0))
    def poison() -> None:
        ran.append(f"poison {current_step().attempt}")
        raise ValueError("no")

    @workflow(name="plain_falls_back")
    def wf(ctx: SyncContext) -> list[Any]:
        try:
            ctx.step(poison)
        except StepFailed as error:
            return [error.error["message"], ctx.step(add, 1, 2), ctx.step(add, 3, 4)]
        raise AssertionError

    await crash(place, processes, lambda ex: ex.run(wf, run_id="r1"), at=verb_of("commit", "add#2"))
    assert (await place.executor().resume("r1", wf)).output == ["no", 3, 7]
    assert ran == ["poison 1", "poison 2"]


async def test_a_failing_branch_of_threads_halts_its_siblings_at_a_boundary(place: Place) -> None:
    inside, failed = threading.Event(), threading.Event()

    @step
    def slow(number: int) -> int:
        inside.set()
        failed.wait(20)
        time.sleep(0.02)  # the failure has to be recorded before this body ends
        return number

    @step
    def poison() -> None:
        inside.wait(20)
        failed.set()
        raise ValueError("no")

    def bad(ctx: SyncContext) -> None:
        ctx.step(poison)

    def good(ctx: SyncContext) -> None:
        for number in range(3):
            try:
                ctx.step(slow, number)
            except Exception:
                raise AssertionError("a halt must get past this") from None

    @workflow(name="plain_halts")
    def wf(ctx: SyncContext) -> None:
        ctx.parallel(ctx.branch(good), ctx.branch(bad))

    executor = place.executor()
    with pytest.raises(RunFailed) as caught:
        await executor.run(wf, run_id="r1")
    assert isinstance(caught.value.__cause__, BranchFailed)
    assert caught.value.__cause__.branch == "bad"
    assert await statuses(executor, "r1") == {"good/slow": "COMMITTED", "bad/poison": "FAILED"}


async def test_a_step_name_called_from_two_threads_is_ambiguous(place: Place) -> None:
    @workflow(name="plain_ambiguous")
    def wf(ctx: SyncContext) -> list[str]:
        found: list[str] = [str(ctx.step(add, 1, 1))]

        def other() -> None:
            try:
                ctx.step(add, 2, 2)
            except AmbiguousStep as error:
                found.append(error.code)

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        return found

    executor = place.executor()
    assert (await executor.run(wf, run_id="r1")).output == ["2", "AMBIGUOUS_STEP"]
    assert await statuses(executor, "r1") == {"add": "COMMITTED"}


async def test_a_def_workflow_is_poisoned_when_the_store_goes(place: Place) -> None:
    seen: list[str] = []

    @workflow(name="plain_poisoned")
    def wf(ctx: SyncContext) -> None:
        for number in range(4):
            try:
                ctx.step(add, number, 0)
            except Exception as error:
                seen.append(type(error).__name__)

    executor, journal = place.mortal()
    journal.dies_at = verb_of("commit", "add#2")
    with pytest.raises(JournalUnavailable):
        await executor.run(wf, run_id="r1")
    assert seen == ["JournalUnavailable"] * 3


async def test_a_def_workflow_gives_way_to_a_cancellation_and_to_a_new_owner(
    place: Place, processes: Processes
) -> None:
    inside, go = threading.Event(), threading.Event()

    @step
    def work() -> int:
        inside.set()
        go.wait(20)
        return current_step().fence

    @workflow(name="plain_gives_way")
    def wf(ctx: SyncContext) -> list[int]:
        return [ctx.step(work), ctx.step(work)]

    executor = place.executor()
    running = asyncio.ensure_future(place.executor().run(wf, run_id="r1"))
    await asyncio.to_thread(inside.wait, 20)
    await executor.cancel("r1")
    go.set()
    with pytest.raises(RunCancelled):
        await running
    inside.clear()
    go.clear()
    processes.next_is_doomed()
    zombie = asyncio.ensure_future(place.executor().run(wf, run_id="r2"))
    await asyncio.to_thread(inside.wait, 20)
    inside.clear()
    processes.next_lives()
    taken = asyncio.ensure_future(executor.resume("r2", wf))
    await asyncio.to_thread(inside.wait, 20)
    go.set()
    assert (await taken).output == [2, 2]
    with pytest.raises(Fenced):
        await zombie


async def test_a_def_workflow_is_released_only_when_its_own_code_has_come_to_a_verb(place: Place) -> None:
    inside, go = threading.Event(), threading.Event()
    seen: list[str] = []

    @workflow(name="plain_busy")
    def wf(ctx: SyncContext) -> int:
        found = ctx.step(add, 1, 2)
        inside.set()
        go.wait(20)
        try:
            ctx.step(add, 3, 4)
        except BaseException as error:
            seen.append(type(error).__name__)
            raise
        return found

    executor = place.executor()
    running = asyncio.ensure_future(executor.run(wf, run_id="r1"))
    await asyncio.to_thread(inside.wait, 20)
    running.cancel()
    for _ in range(20):
        await asyncio.sleep(0)
    assert not running.done()
    assert (await executor.get("r1")).status == "RUNNING"
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert seen == ["RunInterrupted"]
    assert (await executor.get("r1")).status == "PENDING"
    assert (await executor.resume("r1", wf)).output == 3


async def test_a_def_workflow_leaves_at_its_deadline_and_goes_on(place: Place) -> None:
    from datetime import timedelta

    @step
    async def waits() -> str:
        if current_step().attempt == 1:
            await asyncio.Event().wait()
        return "done"

    @workflow(name="plain_deadline")
    def wf(ctx: SyncContext) -> str:
        return ctx.step(waits)

    executor = place.executor()
    with pytest.raises(DeadlineReached):
        await executor.run(wf, run_id="r1", deadline=timedelta(seconds=1))
    assert (await executor.resume("r1", wf)).output == "done"
    assert (await executor.steps("r1"))[0].record.crashes == 0


async def test_three_hundred_branches_of_threads_hold_up_nobody(tmp_path: Any) -> None:
    def one(ctx: SyncContext, number: int) -> int:
        return ctx.step(square, number)

    @workflow(name="plain_wide")
    def wf(ctx: SyncContext) -> int:
        return sum(ctx.parallel(*(ctx.branch(one, number) for number in range(300))))

    executor = Place("memory", tmp_path).executor()
    assert (await executor.run(wf)).output == sum(number * number for number in range(300))


# ---- Plain code ----


def test_plain_code_has_every_operation(place_here: DurableWorkflowExecutor) -> None:
    blocking = place_here.blocking
    assert blocking.run(everything, run_id="r1", number=3).output["step"] == 5
    assert place_here.run_sync(everything, run_id="r1", number=3).output["step"] == 5
    assert blocking.run(everything.bind(number=3), run_id="r1").output["step"] == 5
    assert blocking.resume("r1", everything).output["step"] == 5
    assert blocking.start(everything, run_id="r2", number=1).status == "PENDING"
    assert {view.run_id for view in blocking.list()} == {"r1", "r2"}
    assert blocking.cancel("r2").status == "CANCELLED"
    assert blocking.get("r1").status == "COMPLETED"
    steps = blocking.steps("r1")
    assert len(steps) == len(IDS)
    assert blocking.output(next(view for view in steps if view.step_id == "add")) == 5
    assert blocking.fork("r1", wf=everything, new_run_id="r3").run_id == "r3"
    assert blocking.resume("r3", everything).output["step"] == 5
    blocking.close()


def test_plain_code_skips_a_step_by_hand(place_here: DurableWorkflowExecutor) -> None:
    @step
    def poison() -> str:
        raise ValueError("no")

    @workflow(name="plain_skips")
    def wf(ctx: SyncContext) -> str:
        return ctx.step(poison)

    with pytest.raises(RunFailed):
        place_here.blocking.run(wf, run_id="r1")
    assert place_here.blocking.skip("r1", "poison", output="by hand").status == "SKIPPED"
    assert place_here.blocking.resume("r1", wf).output == "by hand"
    place_here.blocking.close()


@pytest.mark.parametrize("verb", ["step", "step_if", "parallel"])
def test_a_verb_on_the_engines_own_loop_is_an_error_and_no_deadlock(verb: str) -> None:
    found: list[str] = []

    def calls_it(ctx: SyncContext) -> None:
        try:
            if verb == "step":
                ctx.step(add, 1, 2)
            elif verb == "step_if":
                ctx.step_if(True, add, 1, 2)
            else:
                ctx.parallel(ctx.branch(lane, 0))
        except Exception as error:
            found.append(type(error).__name__)

    @workflow(name="plain_on_the_loop")
    def wf(ctx: SyncContext) -> None:
        done = threading.Event()

        def on_the_loop() -> None:
            calls_it(ctx)
            done.set()

        ctx._loop.call_soon_threadsafe(on_the_loop)
        done.wait(5)

    executor = DurableWorkflowExecutor("memory://")
    running = threading.Thread(target=lambda: executor.blocking.run(wf), daemon=True)
    running.start()
    running.join(5)
    assert found == ["RunningLoop"]


@pytest.mark.parametrize("raised", [StopIteration(3), KeyboardInterrupt(), SystemExit(3)], ids=repr)
def test_whatever_ends_a_def_workflow_ends_the_run_and_hangs_nothing(
    raised: BaseException, place_here: DurableWorkflowExecutor
) -> None:
    ended: list[bool] = []

    @workflow(name="plain_raises")
    def wf(ctx: SyncContext) -> int:
        found = ctx.step(add, 1, 2)
        if not ended:
            ended.append(True)
            raise raised
        return found

    is_failure = isinstance(raised, Exception)
    with pytest.raises(RunFailed if is_failure else type(raised)):
        place_here.blocking.run(wf, run_id="r1")
    assert place_here.blocking.get("r1").status == ("FAILED" if is_failure else "PENDING")
    assert place_here.blocking.resume("r1", wf).output == 3
    place_here.blocking.close()


@pytest.fixture(params=["memory", "sqlite"])
def place_here(request: pytest.FixtureRequest, tmp_path: Any) -> DurableWorkflowExecutor:
    """An executor without any event loop around it."""
    return Place(request.param, tmp_path).executor()


BLOCKING: dict[str, Callable[[DurableWorkflowExecutor, Any], object]] = {
    "run": lambda ex, _: ex.blocking.run(everything, number=1),
    "start": lambda ex, _: ex.blocking.start(everything, number=1),
    "resume": lambda ex, _: ex.blocking.resume("r1", everything),
    "get": lambda ex, _: ex.blocking.get("r1"),
    "list": lambda ex, _: ex.blocking.list(),
    "steps": lambda ex, _: ex.blocking.steps("r1"),
    "output": lambda ex, view: ex.blocking.output(view),
    "signal": lambda ex, _: ex.blocking.signal("r1", "go"),
    "cancel": lambda ex, _: ex.blocking.cancel("r1"),
    "skip": lambda ex, _: ex.blocking.skip("r1", "add"),
    "fork": lambda ex, _: ex.blocking.fork("r1"),
    "prune": lambda ex, _: ex.blocking.prune(keep=1),
    "sweep": lambda ex, _: ex.blocking.sweep(),
    "drive": lambda ex, _: ex.blocking.drive("r1", deadline=None),
    "work_chunk": lambda ex, _: ex.blocking.work_chunk("r1", "add", 0),
    "verify": lambda ex, _: ex.blocking.verify("r1"),
    "replay": lambda ex, _: ex.blocking.replay("r1", everything),
    "export_run": lambda ex, _: ex.blocking.export_run("r1", "r1.durable"),
    "import_run": lambda ex, _: ex.blocking.import_run("r1.durable"),
    "close": lambda ex, _: ex.blocking.close(),
}


def public(cls: type) -> set[str]:
    return {name for name in dir(cls) if not name.startswith("_")}


def test_no_operation_is_forgotten_in_plain_code() -> None:
    operations = {
        name
        for name in public(DurableWorkflowExecutor)
        if inspect.iscoroutinefunction(getattr(DurableWorkflowExecutor, name))
    }
    assert operations
    assert public(BlockingExecutor) == operations | {"output"}
    assert set(BLOCKING) == public(BlockingExecutor)


@pytest.mark.parametrize("name", [*sorted(BLOCKING), "run_sync"])
async def test_every_blocking_method_under_a_running_loop_is_an_error_that_names_await(
    name: str, place: Place
) -> None:
    executor = place.executor()
    await executor.run(everything, run_id="r1", number=1)
    view = (await executor.steps("r1"))[0]
    call = BLOCKING.get(name, lambda ex, _: ex.run_sync(everything, number=1))
    with pytest.raises(RunningLoop, match=r"await ") as caught:
        call(executor, view)
    assert ("run" if name == "run_sync" else name) in str(caught.value)
    assert [view.run_id for view in await executor.list()] == ["r1"]
    assert (await executor.get("r1")).status == "COMPLETED"


async def test_blocking_methods_work_in_a_thread_beside_a_loop(place: Place) -> None:
    executor = place.executor()
    found = await asyncio.to_thread(lambda: executor.blocking.run(everything, run_id="r1", number=3).output)
    assert found["step"] == 5
    assert (await executor.get("r1")).status == "COMPLETED"


def test_the_same_executor_works_in_one_loop_after_another(place_here: DurableWorkflowExecutor) -> None:
    for number in range(3):
        assert asyncio.run(_once(place_here, number)) == number * number
    place_here.blocking.close()


async def _once(executor: DurableWorkflowExecutor, number: int) -> int:
    return (await executor.run(squares, number=number)).output


@workflow
async def squares(ctx: Context, number: int) -> int:
    return await ctx.step(square, number)
