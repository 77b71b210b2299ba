"""What may be marked as a step or workflow, with which options, names and inputs."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel

from durable_core import Context, DurableWorkflowExecutor, Retry, Step, SyncContext, step, workflow
from durable_core.errors import InvalidId, RunFailed, UnresolvedAnnotation, UsageError
from durable_core.workflow import registered, step_of
from tests.naming import told

# ---- Steps ----


def test_a_step_is_named_by_its_function_or_by_its_name() -> None:
    @step
    def plain() -> None: ...

    @step(name="other.name")
    async def named() -> None: ...

    assert (plain.name, plain.is_async) == ("plain", False)
    assert (named.name, named.is_async) == ("other.name", True)
    assert plain.__doc__ == plain.fn.__doc__
    assert "plain" in repr(plain)


BAD_OPTIONS: list[dict[str, Any]] = [
    *({"name": value} for value in ("", "a/b", ".a", "a#2", "ä", "a" * 129, 1)),
    *({"retry": value} for value in (3, None, True, {"max_attempts": 3})),
    *({"timeout_s": value} for value in (0, -1, float("nan"), float("inf"), "1", True)),
    *({"crash_limit": value} for value in (0, -1, 1.5, None, True)),
    *({"semantics": value} for value in ("exactly_once", "", None, "AT_MOST_ONCE")),
    {"semantics": "at_most_once", "pure": True},
    {"semantics": "at_most_once", "retry": Retry()},
    {"verify": lambda key: None},
    {"verify": lambda key: None, "pure": True},
    {"retries": 3},
    {"timeout": 3},
]


@pytest.mark.parametrize("options", BAD_OPTIONS, ids=lambda options: repr(sorted(options)))
def test_an_option_that_cannot_be_meant_is_refused_when_it_is_written(options: dict[str, Any]) -> None:
    def fn() -> None: ...

    with pytest.raises(UsageError):
        step(**options)(fn)
    with pytest.raises(UsageError):
        step(fn).with_options(**options)


def test_with_options_changes_what_it_names_and_nothing_else() -> None:
    @step(retry=Retry(max_attempts=7), timeout_s=5, crash_limit=2)
    def fn() -> None: ...

    varied = fn.with_options(timeout_s=9, name="varied")
    assert (varied.options.timeout_s, varied.name) == (9, "varied")
    assert (varied.options.retry.max_attempts, varied.options.crash_limit) == (7, 2)
    assert (fn.options.timeout_s, fn.name) == (5, "fn")


class Adder:
    def add(self, one: int) -> int:
        return one + 1

    def __call__(self, one: int) -> int:
        return one + 2


def helper(one: int, other: int = 10) -> int:
    return one + other


@pytest.mark.parametrize(
    ("given", "name", "output"), [(helper, "helper", 11), (Adder().add, "add", 2), (abs, "abs", 1)]
)
async def test_any_callable_with_a_name_can_be_a_step(given: Any, name: str, output: int) -> None:
    @workflow(name="any_callable")
    async def wf(ctx: Context) -> int:
        return await ctx.step(given, 1)

    async with DurableWorkflowExecutor("memory://") as executor:
        result = await executor.run(wf, run_id="r1")
        assert result.output == output
        assert [view.step_id for view in await executor.steps("r1")] == [name]


@pytest.mark.parametrize(
    "given", [lambda: 1, Adder(), functools.partial(helper, 1), 3, None, "helper", helper(1)], ids=told
)
def test_what_has_no_name_or_cannot_be_called_is_no_step_and_says_what_to_do(given: Any) -> None:
    with pytest.raises(UsageError) as caught:
        step_of(given)
    assert caught.value.remedy


def test_a_name_makes_a_step_of_what_has_none() -> None:
    assert step_of(step(name="added")(functools.partial(helper, 1))).name == "added"
    assert step(name="object")(Adder()).is_async is False


def test_a_workflow_is_no_step() -> None:
    @workflow(name="inner_one")
    async def inner(ctx: Context) -> None: ...

    with pytest.raises(UsageError, match="inner_one"):
        step_of(inner)


def test_a_plain_function_is_one_step_however_often_it_is_used() -> None:
    assert step_of(helper) is step_of(helper)
    marked = step(helper)
    assert step_of(marked) is marked


async def test_an_annotation_that_cannot_be_resolved_is_refused_before_the_body_runs() -> None:
    ran: list[int] = []

    @step
    def typed() -> Missing:  # type: ignore[name-defined]  # noqa: F821 - the point of it
        ran.append(1)

    @workflow(name="unresolved")
    async def wf(ctx: Context) -> None:
        await ctx.step(typed)

    async with DurableWorkflowExecutor("memory://") as executor:
        with pytest.raises(RunFailed) as caught:
            await executor.run(wf, run_id="r1")
        assert isinstance(caught.value.__cause__, UnresolvedAnnotation)
        assert "Missing" in str(caught.value.__cause__)
        assert await executor.steps("r1") == []
    assert ran == []


# ---- Workflows ----


def test_a_workflow_is_named_by_its_function_or_by_its_name() -> None:
    @workflow
    async def plain_name(ctx: Context) -> None: ...

    @workflow(name="given-name")
    def other(ctx: SyncContext) -> None: ...

    assert (plain_name.name, plain_name.is_async) == ("plain_name", True)
    assert (other.name, other.is_async) == ("given-name", False)
    assert registered("given-name")[-1] is other
    assert registered("nobody-has-this-name") == []


def test_a_function_that_is_defined_again_replaces_itself() -> None:
    made = []
    for number in range(3):

        @workflow(name="again")
        async def again(ctx: Context, number: int = number) -> int:
            return number

        made.append(again)
    assert registered("again") == [made[-1]]


def _no_context() -> Any:
    async def wf() -> None: ...

    return wf


def _keyword_context() -> Any:
    async def wf(*, ctx: Context) -> None: ...

    return wf


def _star_args() -> Any:
    async def wf(ctx: Context, *paths: str) -> None: ...

    return wf


def _star_kwargs() -> Any:
    async def wf(ctx: Context, **more: str) -> None: ...

    return wf


def _positional_only() -> Any:
    async def wf(ctx: Context, path: str, /) -> None: ...

    return wf


@pytest.mark.parametrize("make", [_no_context, _keyword_context, _star_args, _star_kwargs, _positional_only])
def test_what_has_no_context_or_inputs_without_names_is_no_workflow(make: Any) -> None:
    with pytest.raises(UsageError, match="'wf'"):
        workflow(make())


@pytest.mark.parametrize("name", ["", "a/b", ".a", "ä", "a" * 129])
def test_a_workflows_name_follows_the_rule(name: str) -> None:
    async def wf(ctx: Context) -> None: ...

    with pytest.raises(InvalidId):
        workflow(name=name)(wf)


@workflow
async def typed(ctx: Context, count: int, name: str = "n", *, tags: tuple[str, ...] = ()) -> str:
    return f"{count} {name} {tags!r}"


@pytest.mark.parametrize(
    ("args", "kwargs", "bound"),
    [
        ((1,), {}, {"count": 1}),
        ((1, "x"), {}, {"count": 1, "name": "x"}),
        ((1,), {"tags": ("a",)}, {"count": 1, "tags": ("a",)}),
        ((), {"name": "x", "count": 2}, {"name": "x", "count": 2}),
    ],
)
def test_bind_names_the_inputs_and_fills_no_default_in(args: Any, kwargs: Any, bound: dict[str, Any]) -> None:
    assert typed.bind(*args, **kwargs).inputs == bound


@pytest.mark.parametrize(
    ("args", "kwargs", "told"),
    [
        ((), {}, "missing: count"),
        ((1, "a", (), 4), {}, "takes 3 inputs"),
        ((1,), {"count": 2}, "'count' twice"),
        ((1,), {"cuont": 2}, "unknown: cuont"),
        ((), {"cuont": 2}, "unknown: cuont"),
    ],
)
async def test_inputs_that_do_not_fit_are_refused_before_a_run_is_made(
    args: Any, kwargs: Any, told: str
) -> None:
    with pytest.raises(UsageError, match=told):
        typed.bind(*args, **kwargs)
    if not args:
        async with DurableWorkflowExecutor("memory://") as executor:
            for verb in (executor.run, executor.start):
                with pytest.raises(UsageError, match=told):
                    await verb(typed, **kwargs)
            assert await executor.list() == []


async def test_an_input_named_like_an_option_of_run_can_only_be_bound() -> None:
    @workflow(name="clashes")
    async def wf(ctx: Context, run_id: str, wait: int) -> str:
        return f"{run_id} {wait} {ctx.run_id}"

    async with DurableWorkflowExecutor("memory://") as executor:
        with pytest.raises(UsageError, match="bind"):
            await executor.run(wf, run_id="r1")
        assert (await executor.run(wf.bind("mine", wait=3), run_id="r1")).output == "mine 3 r1"
        with pytest.raises(UsageError, match="bound"):
            await executor.run(typed.bind(1), count=2)


@pytest.mark.parametrize("given", [None, 3, "typed", helper, typed.fn, Step], ids=told)
async def test_only_a_workflow_can_be_run(given: Any) -> None:
    async with DurableWorkflowExecutor("memory://") as executor:
        with pytest.raises(UsageError, match="@workflow"):
            await executor.run(given)


class Order(BaseModel):
    sku: str
    count: int = 1


@dataclass
class Window:
    first: int
    last: int


async def test_inputs_that_came_as_json_become_what_the_annotations_say() -> None:
    @workflow(name="from_json")
    async def wf(ctx: Context, orders: list[Order], window: Window, tags: frozenset[str]) -> str:
        return repr((orders, window, sorted(tags)))

    inputs = wf.from_json(
        {"orders": [{"sku": "a"}], "window": {"first": 1, "last": "2"}, "tags": ["x", "y", "x"]}
    )
    assert inputs == {
        "orders": [Order(sku="a")],
        "window": Window(1, 2),
        "tags": frozenset({"x", "y"}),
    }
    async with DurableWorkflowExecutor("memory://") as executor:
        assert (await executor.run(wf, run_id="r", **inputs)).output == repr(
            ([Order(sku="a")], Window(1, 2), ["x", "y"])
        )
        again = await executor.run(wf, run_id="r", orders=[Order(sku="a")], **{
            "window": Window(1, 2), "tags": frozenset({"y", "x"})})  # fmt: skip
        assert again.status == "COMPLETED"
    with pytest.raises(UsageError, match=r"orders\.0\.sku"):
        wf.from_json({"orders": [{}], "window": {"first": 1, "last": 2}, "tags": []})


async def test_a_workflow_called_directly_is_the_plain_function() -> None:
    @workflow(name="called")
    async def wf(ctx: Any, number: int) -> tuple[Any, int]:
        return ctx, number

    assert await wf("any context", 3) == ("any context", 3)


def test_the_fingerprint_follows_the_source() -> None:
    @workflow(name="fingerprinted")
    async def one(ctx: Context) -> int:
        return 1

    @workflow(name="fingerprinted")
    async def other(ctx: Context) -> int:
        return 2

    assert one.fingerprint == workflow(one.fn).fingerprint
    assert one.fingerprint != other.fingerprint
