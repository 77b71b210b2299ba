"""Bad input, changed code, values that can't be stored: a typed error that names the cause, and nothing lost.

Each of these mends the cause afterwards and resumes: what was committed isn't run again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from durable_core import Context, DurableWorkflowExecutor, step, workflow
from durable_core.errors import (
    InputNotSerializable,
    InvalidId,
    OutputNotSerializable,
    RunFailed,
    RunInputMismatch,
    RunNotFound,
    StepFailed,
    StepMismatch,
)
from tests.e2e.faulty import (
    fails,
    flow,
    gave,
    one,
    other_flow,
    raising,
    retried,
    sql,
    stops_after_two,
    three,
    two,
    with_retry,
    world,
)


@pytest.fixture(autouse=True)
def _new_world() -> None:
    world.__init__()  # type: ignore[misc]  # as new


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


@pytest.fixture
async def executor(db: Path) -> AsyncIterator[DurableWorkflowExecutor]:
    async with DurableWorkflowExecutor(db_path=db) as opened:
        yield opened


# ---- Ids ----

BAD_IDS = [
    "", " ", "\t\n", "a b", "../up", "a/b", "/etc/passwd", ".hidden", "..", "a\x00b", "a" * 129,
    "r#2", "r[1]", "é", "r1\n", 5, True, b"r1", ["r1"],
]  # fmt: skip


@pytest.mark.parametrize("bad", BAD_IDS, ids=[repr(bad)[:12] for bad in BAD_IDS])
async def test_an_id_that_cannot_be_one_is_refused_by_every_operation(
    bad: Any, executor: DurableWorkflowExecutor
) -> None:
    for attempt in (
        executor.run(flow, run_id=bad),
        executor.run(flow, resume_run_id=bad),
        executor.resume(bad),
        executor.resume(bad, flow),
        executor.get(bad),
        executor.steps(bad),
    ):
        with pytest.raises(InvalidId, match="can't be a run id"):
            await attempt
    assert await executor.list() == []
    assert world.ran == []


async def test_none_is_no_run_to_look_at_or_resume(executor: DurableWorkflowExecutor) -> None:
    nothing: Any = None
    for attempt in (executor.resume(nothing), executor.get(nothing), executor.steps(nothing)):
        with pytest.raises(InvalidId):
            await attempt


@pytest.mark.parametrize("good", ["a", "a" * 128, "A-Z_0.9:x@y+z=1", "-", "2026-11-29"])
async def test_an_id_within_the_rules_is_taken(good: str, executor: DurableWorkflowExecutor) -> None:
    assert (await executor.run(flow, run_id=good)).run_id == good


async def test_a_run_that_does_not_exist_is_told_apart_from_a_bad_id(
    executor: DurableWorkflowExecutor,
) -> None:
    for attempt in (
        executor.resume("nowhere"),
        executor.run(flow, resume_run_id="nowhere"),
        executor.get("nowhere"),
        executor.steps("nowhere"),
    ):
        with pytest.raises(RunNotFound, match=r"nowhere.*durable list"):
            await attempt
    assert await executor.list() == []


@pytest.mark.parametrize("ghost", ["", "   ", "../up"])
async def test_a_row_with_an_impossible_id_starts_nothing(
    ghost: str, db: Path, executor: DurableWorkflowExecutor
) -> None:
    await stops_after_two(executor)
    sql(db, "UPDATE runs SET run_id = ?, status = 'RUNNING', owner = 'x'", ghost)
    assert [view.run_id for view in await executor.list()] == [ghost]  # seen, so that it can be removed
    for attempt in (
        executor.resume(ghost),
        executor.run(flow, resume_run_id=ghost),
        executor.run(flow, run_id=ghost),
    ):
        with pytest.raises(InvalidId):
            await attempt
    assert world.ran == []
    assert len(await executor.list()) == 1


# ---- An id that is taken ----


async def test_another_workflow_under_a_taken_id_is_refused_and_the_first_goes_on(
    executor: DurableWorkflowExecutor,
) -> None:
    await stops_after_two(executor)
    for attempt in (
        executor.run(other_flow, run_id="r1"),
        executor.run(other_flow, resume_run_id="r1"),
        executor.resume("r1", other_flow),
    ):
        with pytest.raises(RunInputMismatch, match=r"'flow'.*'other_flow'"):
            await attempt
    assert (await executor.resume("r1", flow)).output == ["one", "two", "three"]
    assert world.ran == ["three"]


async def test_other_inputs_under_a_taken_id_are_refused_and_the_first_go_on(
    executor: DurableWorkflowExecutor,
) -> None:
    await stops_after_two(executor, given=1)
    for other in ({"given": 2}, {"given": "1"}, {"given": 1.0}, {"given": None}, {}):
        for given in ({"run_id": "r1"}, {"resume_run_id": "r1"} if other else {"run_id": "r1"}):
            with pytest.raises(RunInputMismatch, match="other inputs"):
                await executor.run(flow, **given, **other)
    assert (await executor.run(flow, resume_run_id="r1", given=1)).output == ["one", "two", "three"]
    assert world.ran == ["three"]


# ---- Code that changed ----


async def test_a_changed_step_input_is_a_mismatch_that_is_not_retried_and_can_be_put_back(
    executor: DurableWorkflowExecutor,
) -> None:
    await stops_after_two(executor)
    world.given = 2
    for _ in range(2):
        with pytest.raises(RunFailed) as caught:
            await executor.resume("r1", flow)
        mismatch = caught.value.__cause__
        assert isinstance(mismatch, StepMismatch)
        assert not mismatch.retryable
        assert (mismatch.run_id, mismatch.step_id) == ("r1", "one")
        assert "(2)" in str(mismatch)
    assert world.ran == []
    world.given = 1
    assert (await executor.resume("r1", flow)).output == ["one", "two", "three"]
    assert world.ran == ["three"]


async def test_a_changed_input_of_a_retried_step_is_not_retried(executor: DurableWorkflowExecutor) -> None:
    @workflow(name="changing")
    async def changing(ctx: Context) -> Any:
        found = await ctx.step(retried, world.given)
        if world.broken:
            raise RuntimeError("as planned")
        return found

    world.broken = True
    await fails(executor, wf=changing)
    world.given = "other"
    with pytest.raises(RunFailed) as caught:
        await executor.resume("r1", changing)
    assert isinstance(caught.value.__cause__, StepMismatch)
    assert world.ran == ["retried"]


@pytest.mark.parametrize(
    ("now", "runs", "gives"),
    [
        pytest.param(
            ["zero", "one", "two", "three"], ["zero", "three"], ["zero", "one", "two", "three"], id="inserted"
        ),
        pytest.param(["two", "three"], ["three"], ["two", "three"], id="removed"),
        pytest.param(["two", "one", "three"], ["three"], ["two", "one", "three"], id="reordered"),
        pytest.param(["uno", "two", "three"], ["uno", "three"], ["uno", "two", "three"], id="renamed"),
    ],
)
async def test_a_step_never_gets_the_outcome_of_another(
    now: list[str], runs: list[str], gives: list[str], executor: DurableWorkflowExecutor
) -> None:
    """Version 2 of the code finds each step of version 1 by its name, and runs what is new."""

    def version(names: list[str], stop_after: int | None = None) -> Any:
        @workflow(name="versioned")
        async def versioned(ctx: Context) -> list[Any]:
            found = []
            for name in names:
                if len(found) == stop_after:
                    raise RuntimeError("as planned")
                found.append(await ctx.step(named(name), "same"))
            return found

        return versioned

    await fails(executor, wf=version(["one", "two", "three"], stop_after=2))
    world.ran.clear()
    assert (await executor.resume("r1", version(now))).output == gives
    assert world.ran == runs


def named(name: str) -> Any:
    async def body(given: object) -> Any:
        return gave(name)

    return step(name=name)(body)


async def test_an_output_of_none_is_an_output(executor: DurableWorkflowExecutor) -> None:
    world.gives["two"] = lambda: None
    await stops_after_two(executor)
    assert (await executor.resume("r1", flow)).output == ["one", None, "three"]
    assert world.ran == ["three"]


async def test_an_exception_between_steps_is_resumed_after_the_last_committed_one(
    executor: DurableWorkflowExecutor,
) -> None:
    await stops_after_two(executor)
    assert (await executor.resume("r1", flow)).output == ["one", "two", "three"]
    assert world.ran == ["three"]


async def test_a_resume_that_met_another_obstacle_still_gives_the_failed_step_a_fresh_budget(
    executor: DurableWorkflowExecutor,
) -> None:
    world.gives["two"] = raising(ValueError("as planned"))
    await fails(executor)
    world.gives.clear()
    world.given = 2
    with pytest.raises(RunFailed) as caught:
        await executor.resume("r1", flow)
    assert isinstance(caught.value.__cause__, StepMismatch)
    world.given = 1
    assert (await executor.resume("r1", flow)).output == ["one", "two", "three"]
    assert world.ran == ["one", "two", "two", "three"]


# ---- Outputs that can't be stored ----


class Handle:
    """As a client of some service: nothing that can be stored."""


class Circle:
    def __init__(self) -> None:
        self.me = self


def circular() -> list[Any]:
    found: list[Any] = [1]
    found.append(found)
    return found


UNSTORABLE = {
    "object": (lambda: {"items": [1, {"conn": Handle()}]}, ".items[1].conn"),
    "lambda": (lambda: {"call": lambda: 1}, ".call"),
    "generator": (lambda: [(n for n in range(3))], "[0]"),
    "coroutine_function": (lambda: {"f": one.fn}, ".f"),
    "circle": (circular, "[1]"),
    "instance": (lambda: [Circle()], "[0]"),
}


@pytest.mark.parametrize("kind", UNSTORABLE)
@pytest.mark.parametrize("name", ["two", "retried"])
async def test_an_output_that_cannot_be_stored_fails_its_step_after_one_body(
    name: str, kind: str, executor: DurableWorkflowExecutor
) -> None:
    wf: Any = flow if name == "two" else with_retry
    world.gives[name], path = UNSTORABLE[kind]
    failed = await fails(executor, wf=wf)
    assert isinstance(failed.__cause__, StepFailed)
    cause = failed.__cause__.__cause__
    assert isinstance(cause, OutputNotSerializable)
    assert (cause.run_id, cause.step_id) == ("r1", name)
    assert cause.path.startswith(path)
    assert world.ran == ["one", name]
    steps = {view.step_id: view for view in await executor.steps("r1")}
    assert (steps[name].status, steps[name].error["code"]) == ("FAILED", "OUTPUT_NOT_SERIALIZABLE")
    assert steps["one"].status == "COMMITTED"
    again = await fails(executor, wf=wf)  # asking again starts nothing
    assert again.error["message"] == failed.error["message"]
    assert world.ran == ["one", name]
    world.gives.clear()
    assert (await executor.resume("r1", wf)).status == "COMPLETED"
    assert world.ran[2] == name
    assert "one" not in world.ran[2:]


async def test_a_failed_run_tells_the_same_when_it_is_asked_again(executor: DurableWorkflowExecutor) -> None:
    world.gives["two"] = raising(ValueError("as planned"))
    live = await fails(executor)
    again = await fails(executor)
    assert set(live.error) == {"code", "type", "message", "traceback"}
    assert again.error == live.error
    assert str(again) == str(live)
    assert world.ran == ["one", "two"]


async def test_an_output_over_the_cap_is_refused_once_with_its_size(db: Path) -> None:
    world.gives["retried"] = lambda: "x" * 5000
    async with DurableWorkflowExecutor(db_path=db, output_cap_bytes=4096) as executor:
        failed = await fails(executor, wf=with_retry)
        assert failed.__cause__ is not None
        assert getattr(failed.__cause__.__cause__, "code", None) == "OUTPUT_TOO_LARGE"
        assert "5002 bytes" in str(failed.__cause__)
        assert "4096" in str(failed.__cause__)
        assert world.ran == ["one", "retried"]
        world.gives["retried"] = lambda: "x" * 4000
        assert (await executor.resume("r1", with_retry)).output == ["one", "x" * 4000]
    assert world.ran == ["one", "retried", "retried"]


async def test_an_input_over_the_cap_or_unstorable_starts_nothing(db: Path) -> None:
    async with DurableWorkflowExecutor(db_path=db, output_cap_bytes=4096) as executor:
        for bad in ("x" * 5000, Handle(), circular()):
            with pytest.raises(InputNotSerializable) as caught:
                await executor.run(flow, run_id="r1", given=bad)
            assert caught.value.run_id == "r1"
        assert await executor.list() == []
        assert world.ran == []


async def test_an_argument_that_cannot_be_hashed_fails_before_its_body(
    executor: DurableWorkflowExecutor,
) -> None:
    world.given = Handle()
    failed = await fails(executor)
    assert isinstance(failed.__cause__, InputNotSerializable)
    assert failed.__cause__.step_id == "one"
    assert world.ran == []
    world.given = 1
    assert (await executor.resume("r1", flow)).status == "COMPLETED"


async def test_ten_megabytes_pass_as_input_argument_and_output(executor: DurableWorkflowExecutor) -> None:
    size = 10 * 1024 * 1024
    world.gives["two"] = lambda: "y" * size
    await stops_after_two(executor, given="x" * size)
    result = await executor.run(flow, resume_run_id="r1", given="x" * size)
    assert len(result.output[1]) == size
    assert world.ran == ["three"]


# ---- Exceptions ----


class NeedsKeywords(Exception):
    def __init__(self, *, code: int, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even that")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (NeedsKeywords(code=409, detail="taken"), "409: taken"),
        (Unspeakable("x"), "can't be shown"),
        (ValueError(Handle(), b"\xff"), "Handle object"),
        (ValueError("\ud83d lone"), "lone"),
        (ValueError("x" * 10_000_000), "characters left out"),
        (KeyError("missing"), "missing"),
    ],
    ids=["keywords", "unspeakable", "holds_objects", "surrogate", "ten_megabytes", "key"],
)
async def test_any_exception_of_a_step_is_recorded_and_told_the_same_when_it_is_replayed(
    error: Exception, told: str, executor: DurableWorkflowExecutor, db: Path
) -> None:
    """The workflow catches it, and so takes the same path when it is resumed."""
    seen: list[dict[str, str]] = []

    @workflow(name="catching")
    async def catching(ctx: Context) -> Any:
        try:
            await ctx.step(two, 0)
        except StepFailed as failure:
            seen.append(failure.error)
        if world.broken:
            raise RuntimeError("as planned")
        return await ctx.step(three, 0)

    world.gives["two"], world.broken = raising(error), True
    await fails(executor, wf=catching)
    world.broken = False
    world.gives.clear()
    assert (await executor.resume("r1", catching)).output == "three"
    assert world.ran == ["two", "three"]  # caught, so it wasn't what the run failed of: it isn't run again
    live, replayed = seen
    assert live == replayed
    assert live["type"] == type(error).__name__
    assert told in live["message"]
    assert "in give" in live["traceback"]
    (size,) = sql(db, "SELECT length(error) FROM checkpoints WHERE step_id = 'two'")[0]
    assert size < 100_000
    shown = {view.step_id: view.error for view in await executor.steps("r1")}
    assert shown["two"] == live
