"""`ctx.map` runs a function over items: each outcome in order, recorded, and none run twice that is."""

from __future__ import annotations

import asyncio
import functools
import json
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from durable_core import (
    Context,
    MapResult,
    Rate,
    Retry,
    RetryLater,
    SyncContext,
    step,
    workflow,
)
from durable_core.errors import (
    ItemsFailed,
    MapFailed,
    OutputNotSerializable,
    StepFailed,
    StepMismatch,
    UsageError,
)
from tests.e2e.batches import (
    World,
    added,
    batch_and_step,
    batch_of,
    batch_with_steps,
    failure,
    failure_again,
    one_by_one,
    outputs,
    plain,
    raises,
    resumed,
    sync_with_steps,
    tenfold,
    threaded,
    with_steps,
    world,
)
from tests.stores import Place


class Page(BaseModel):
    number: int
    text: str


@pytest.fixture(autouse=True)
def _fresh_world() -> None:
    world.__dict__.update(World().__dict__)


# ---- Functions ----


@workflow
async def mapping(ctx: Context, name: str) -> list[Any]:
    fn = FUNCTIONS[name]
    return list((await ctx.map(fn, world.items(), **world.options)).outputs)


@workflow
def sync_mapping(ctx: SyncContext, name: str) -> list[Any]:
    return list(ctx.map(FUNCTIONS[name], world.items(), **world.options).outputs)


FUNCTIONS: dict[str, Any] = {
    "step": tenfold,
    "def step": threaded,
    "plain": plain,
    "partial": functools.partial(added, 0, more=0),
    "partial of partial": functools.partial(functools.partial(added, 0), more=0),
    "context": with_steps,
    "sync context": sync_with_steps,
    "builtin": str,
    "with options": tenfold.with_options(retry=Retry(max_attempts=2, initial_delay_s=0)),
}


@pytest.mark.parametrize("wf", [mapping, sync_mapping], ids=["async", "def"])
@pytest.mark.parametrize("name", sorted(FUNCTIONS))
async def test_any_function_of_an_item_can_be_mapped(name: str, wf: Any, place: Place) -> None:
    result = await place.executor().run(wf, name=name)
    assert result.output == ([str(n) for n in range(5)] if name == "builtin" else [0, 10, 20, 30, 40])


@workflow
async def twice(ctx: Context) -> list[Any]:
    one = await ctx.map(tenfold, range(3))
    two = await ctx.map(tenfold, range(4))
    return [list(one.outputs), list(two.outputs)]


async def test_two_maps_of_one_function_are_two_steps(place: Place) -> None:
    executor = place.executor()
    assert await outputs(executor, wf=twice) == [[0, 10, 20], [0, 10, 20, 30]]
    views = await executor.steps("r1")
    assert [(view.step_id, view.status, view.record.kind) for view in views] == [
        ("tenfold", "COMMITTED", "map"),
        ("tenfold#2", "COMMITTED", "map"),
    ]
    assert (await executor.get("r1")).counts == {"COMMITTED": 2}


async def test_bound_arguments_go_before_the_item(place: Place) -> None:
    @workflow
    async def bound(ctx: Context) -> list[int]:
        return list((await ctx.map(functools.partial(added, 1000, more=7), [1, 2])).outputs)

    assert await outputs(place.executor(), wf=bound) == [1017, 1027]


@pytest.mark.over_dynamodb
async def test_an_annotation_restores_each_output(place: Place) -> None:
    @step
    async def page(number: int) -> Page:
        return Page(number=number, text="x" * number)

    @workflow
    async def pages(ctx: Context) -> Any:
        batch = await ctx.map(page, [1, 2])
        assert list(batch.outputs) == [Page(number=1, text="x"), Page(number=2, text="xx")]
        return [type(one).__name__ for one in batch.outputs]

    assert await outputs(place.executor(), wf=pages) == ["Page", "Page"]


async def test_a_body_gets_an_item_of_its_own(place: Place) -> None:
    items = [{"n": 1}, {"n": 2}]

    @step
    async def spoils(item: dict[str, int]) -> int:
        item["n"] += 100
        return item["n"]

    @workflow
    async def spoiled(ctx: Context) -> Any:
        return list((await ctx.map(spoils, items)).outputs)

    assert await outputs(place.executor(), wf=spoiled) == [101, 102]
    assert items == [{"n": 1}, {"n": 2}]


# ---- One item ----


async def test_a_body_is_told_which_item_it_has(place: Place) -> None:
    executor = place.executor()
    world.items, world.options = (lambda: ["a", "b", "c"]), {"max_concurrency": 1}
    await outputs(executor)
    assert [(info.item_index, info.item_key, info.attempt, info.step_id) for info in world.told] == [
        (0, None, 1, "tenfold[0]"),
        (1, None, 1, "tenfold[1]"),
        (2, None, 1, "tenfold[2]"),
    ]
    assert len({info.idempotency_key for info in world.told}) == 3
    assert {info.run_id for info in world.told} == {"r1"}


async def test_a_keyed_item_is_known_by_its_key(place: Place) -> None:
    world.items, world.options = (lambda: ["a", "b"]), {"key": lambda item: f"doc/{item} ü"}
    await outputs(place.executor())
    assert [(info.item_index, info.item_key) for info in world.told] == [(0, "doc/a ü"), (1, "doc/b ü")]
    assert all(info.step_id.startswith("tenfold[k-") for info in world.told)


@pytest.mark.over_dynamodb
async def test_an_item_that_runs_again_has_the_same_idempotency_key(place: Place) -> None:
    executor = place.executor()
    world.gives[3] = raises(ValueError("no"))
    assert isinstance(await failure(executor), MapFailed)
    world.gives.clear()
    assert await resumed(executor) == [0, 10, 20, 30, 40]
    first, again = (info for info in world.told if info.item_index == 3)
    assert first.idempotency_key == again.idempotency_key
    assert len({info.idempotency_key for info in world.told}) == 5


async def test_an_item_is_tried_again_as_its_step_says(place: Place) -> None:
    place.turn_clock()
    executor = place.executor()
    left = [ConnectionError("1"), ConnectionError("2")]
    world.gives[2] = lambda: raises(left.pop())() if left else "at last"
    world.options = {"retry": Retry(max_attempts=3, initial_delay_s=8, factor=2, jitter=0)}
    assert await outputs(executor) == [0, 10, "at last", 30, 40]
    assert [info.attempt for info in world.told if info.item_index == 2] == [1, 2, 3]
    assert place.turned.slept == [8, 16]
    assert len({info.idempotency_key for info in world.told if info.item_index == 2}) == 1


async def test_an_item_may_say_when_to_try_it_again(place: Place) -> None:
    place.turn_clock()
    left = [RetryLater(42.0)]
    world.gives[2] = lambda: raises(left.pop())() if left else "at last"
    world.options = {"retry": Retry(max_attempts=2)}
    assert (await outputs(place.executor()))[2] == "at last"
    assert place.turned.slept == [42.0]


async def test_what_is_given_up_on_is_not_tried_again(place: Place) -> None:
    world.gives[2] = raises(ValueError("never"))
    world.options = {"retry": Retry(max_attempts=5, give_up_on=(ValueError,)), "tolerate_failures": 1}
    assert await outputs(place.executor()) == [0, 10, 30, 40]
    assert world.ran.count(2) == 1


async def test_an_item_that_takes_too_long_fails(place: Place) -> None:
    @step(timeout_s=0.02)
    async def slow(item: int) -> int:
        if item == 1:
            await asyncio.sleep(60)
        return item

    @workflow
    async def slowly(ctx: Context) -> Any:
        batch = await ctx.map(slow, range(3), tolerate_failures=1)
        return [one.error["code"] for one in batch.failures if one.error], list(batch.outputs)

    assert await outputs(place.executor(), wf=slowly) == (["STEP_TIMED_OUT"], [0, 2])


# ---- Outputs ----


async def test_outputs_are_in_the_order_of_the_items_whatever_the_order_they_came_in(place: Place) -> None:
    going = [asyncio.Event() for _ in range(8)]

    def of(item: int) -> Any:
        async def give() -> int:
            if item < 7:
                await going[item + 1].wait()
            going[item].set()
            return item * 10

        return give

    world.items = lambda: range(8)
    world.gives = {item: of(item) for item in range(8)}
    assert await outputs(place.executor()) == [item * 10 for item in range(8)]


ODD = [
    None, "", 0, [], {}, "ü€😀", "line\nbreak", {"$": "tuple"}, "x" * 8190, "x" * 8191, "y" * 20_000,
    b"\0" * 9000, {(1, 2), (3, 4)}, Decimal("1.10"), {1: "a", "1": "b"}, "\ud83d", (1, (2,)), "],[", '","',
    timedelta(1, 2, 3),
]  # fmt: skip


@pytest.mark.parametrize("value", ODD, ids=lambda value: ascii(value)[:12])
@pytest.mark.parametrize("with_keys", [False, True], ids=["by position", "by key"])
async def test_any_output_comes_back_as_it_was(value: object, with_keys: bool, place: Place) -> None:
    executor = place.executor()
    world.gives = {1: lambda: value}
    world.options = {"key": lambda item: f"ключ {item}"} if with_keys else {}
    world.gives["end"] = raises(ValueError("not yet"))
    await failure(executor, wf=batch_and_step)
    world.gives["end"] = lambda: None
    world.ran.clear()
    assert await resumed(place.executor(), wf=batch_and_step) == [0, value, 20, 30, 40]
    assert world.ran == []


@pytest.mark.parametrize(
    "item", [None, "\udcc3", {(1, 2)}, Decimal("1.10"), {1: 2, "1": 3}, b"x", (), float("inf")], ids=ascii
)
async def test_any_data_can_be_an_item(item: Any, place: Place) -> None:
    seen: list[Any] = []

    @step
    async def looks(given: Any) -> bool:
        seen.append(given)
        if len(seen) == 1:
            raise ValueError("not yet")
        return bool(given == item)

    @workflow
    async def looking(ctx: Context) -> Any:
        return list((await ctx.map(looks, [item])).outputs)

    assert isinstance(await failure(place.executor(), wf=looking), MapFailed)
    assert await resumed(place.executor(), wf=looking) == [True]
    assert [type(one) for one in seen] == [type(item)] * 2


async def test_outputs_of_five_megabytes(place: Place) -> None:
    executor = place.executor()
    world.items = lambda: range(3)
    for item in range(3):
        world.gives[item] = lambda item=item: f"{item}" * 5_000_000
    assert [len(one) for one in await outputs(executor)] == [5_000_000] * 3
    again = await place.executor().run(batch_of, run_id="r1")
    assert [one[:2] for one in again.output] == ["00", "11", "22"]


async def test_an_output_that_cannot_be_stored_is_its_items_failure(place: Place) -> None:
    world.gives[1] = lambda: {"deep": [object()]}
    world.options = {"tolerate_failures": 1}
    world.after = lambda batch: [(one.index, one.error) for one in batch.failures]
    ((index, error),) = await outputs(place.executor())
    assert (index, error["code"], error["type"]) == (
        1,
        "OUTPUT_NOT_SERIALIZABLE",
        OutputNotSerializable.__name__,
    )
    assert ".deep[0]" in error["message"]
    assert world.ran.count(1) == 1


@pytest.mark.parametrize(("items", "found"), [([], []), ([7], [70]), ([7, 7], [70, 70])])
async def test_few_items(items: list[int], found: list[int], place: Place) -> None:
    executor = place.executor()
    world.items = lambda: items
    world.after = lambda batch: [
        batch.succeeded,
        batch.failed,
        batch.total,
        len(batch.outputs),
        list(batch.outputs),
    ]
    assert await outputs(executor) == [len(items), 0, len(items), len(items), found]
    assert await outputs(place.executor()) == [len(items), 0, len(items), len(items), found]


@pytest.mark.parametrize(
    "items",
    [
        lambda: [1, 2],
        lambda: (1, 2),
        lambda: range(1, 3),
        lambda: one_by_one([1, 2]),
        lambda: {1: 0, 2: 0}.keys(),
    ],
)
async def test_items_of_any_iterable(items: Any, place: Place) -> None:
    world.items = items
    assert await outputs(place.executor()) == [10, 20]


# ---- Refused ----


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"max_concurrency": 0}, "max_concurrency"),
        ({"max_concurrency": -1}, "max_concurrency"),
        ({"max_concurrency": 1.5}, "max_concurrency"),
        ({"max_concurrency": True}, "max_concurrency"),
        ({"key": "id"}, "key="),
        ({"rate": 5}, "rate="),
        ({"tolerate_failures": -1}, "tolerate_failures"),
        ({"tolerate_failures": 1.01}, "tolerate_failures"),
        ({"tolerate_failures": float("nan")}, "tolerate_failures"),
        ({"tolerate_failures": "3"}, "tolerate_failures"),
        ({"tolerate_failures": True}, "tolerate_failures"),
        ({"linger_ms": -1}, "linger_ms"),
        ({"retry": 3}, "retry="),
        ({"chunk_size": 0}, "chunk_size"),
        ({"chunk_size": 5}, "distribute=True"),
        ({"distribute": "yes"}, "distribute"),
        ({"collect": "no"}, "collect"),
        ({"concurrency": 5}, "'concurrency'"),
    ],
    ids=lambda given: str(given) if isinstance(given, dict) else "",
)
async def test_an_option_that_cannot_be_meant_is_refused_by_its_name(
    options: dict[str, Any], named: str, place: Place
) -> None:
    world.options = options
    error = await failure(place.executor())
    assert isinstance(error, UsageError)
    assert named in str(error)
    assert world.ran == []
    assert await place.executor().steps("r1") == []


@pytest.mark.parametrize("items", [5, None, "abc", b"abc", {"a": 1}, {1, 2}, frozenset({1})], ids=repr)
async def test_what_is_no_list_of_items_is_refused_before_anything_is_recorded(
    items: Any, place: Place
) -> None:
    world.items = lambda: items
    error = await failure(place.executor())
    assert isinstance(error, UsageError)
    assert type(items).__name__ in str(error)
    assert await place.executor().steps("r1") == []


@pytest.mark.parametrize(
    ("fn", "told"),
    [
        (5, "not callable"),
        (step(semantics="at_most_once")(plain), "at_most_once"),
        (step(retry=Retry(max_attempts=2))(with_steps), "steps of its own"),
        (step(timeout_s=3)(with_steps), "steps of its own"),
    ],
)
async def test_a_function_that_cannot_be_mapped_is_refused(fn: Any, told: str, place: Place) -> None:
    @workflow
    async def wrong(ctx: Context) -> None:
        await ctx.map(fn, [1])

    error = await failure(place.executor(), wf=wrong)
    assert isinstance(error, UsageError)
    assert told in str(error)
    assert await place.executor().steps("r1") == []


async def test_a_map_inside_a_plain_body_is_refused(place: Place) -> None:
    @workflow
    async def nested(ctx: Context) -> Any:
        async def body(item: int) -> Any:
            return await ctx.map(tenfold, [item])

        return await ctx.map(body, [1])

    error = await failure(place.executor(), wf=nested)
    assert isinstance(error, MapFailed)
    assert "inside the body of a step" in str(error)


async def test_an_item_that_cannot_be_hashed_is_named(place: Place) -> None:
    world.items = lambda: [1, 2, object()]
    error = await failure(place.executor())
    assert isinstance(error, MapFailed)
    assert "item 2" in str(error)
    assert error.succeeded == 2


# ---- Failures ----


@pytest.mark.parametrize(
    ("tolerated", "fails"),
    [(0, True), (1, True), (2, False), (3, False), (0.19, True), (0.2, False), (1.0, False), (0.0, True)],
)
@pytest.mark.parametrize("once", [False, True], ids=["total known", "total unknown"])
async def test_as_many_items_may_fail_as_are_tolerated(
    tolerated: float, fails: bool, once: bool, place: Place
) -> None:
    world.items = (lambda: one_by_one(range(10))) if once else (lambda: range(10))
    world.gives = {item: raises(ValueError(f"no {item}")) for item in (3, 9)}
    world.options = {"tolerate_failures": tolerated, "max_concurrency": 1}
    world.after = lambda batch: [batch.succeeded, batch.failed, batch.total]
    if not fails:
        assert await outputs(place.executor()) == [8, 2, 10]
        return
    error = await failure(place.executor())
    assert isinstance(error, MapFailed)
    late = tolerated == 1 or tolerated == 0.19 or (once and isinstance(tolerated, float))
    assert (error.succeeded, error.failed) == ((8, 2) if late else (3, 1))
    assert world.ran == list(range(10 if late else 4))


async def test_past_the_limit_nothing_more_is_taken_and_what_is_in_flight_commits(place: Place) -> None:
    executor, go = place.executor(), asyncio.Event()

    async def failing() -> None:
        go.set()
        raise ValueError("no")

    async def late() -> str:
        await go.wait()
        await asyncio.sleep(0.01)
        return "late"

    world.items = lambda: range(1000)
    world.gives = {0: late, 1: failing}
    world.options = {"max_concurrency": 2}
    error = await failure(executor)
    assert isinstance(error, MapFailed)
    assert (error.succeeded, error.failed) == (1, 1)
    assert world.ran == [0, 1]
    world.gives = {}
    assert (await resumed(executor))[:3] == ["late", 10, 20]
    assert world.ran.count(0) == 1


async def test_a_failed_map_is_a_failure_that_the_workflow_can_catch_and_replays(place: Place) -> None:
    seen: list[Any] = []

    @workflow
    async def catching(ctx: Context) -> str:
        try:
            await ctx.map(tenfold, range(5), max_concurrency=1)
        except MapFailed as error:
            seen.append((error.succeeded, error.failed, error.code, str(error)))
        await ctx.step(end_or_not)
        return "went on"

    @step
    async def end_or_not() -> None:
        world.gives["end"]()

    world.gives = {2: raises(KeyError("two")), "end": raises(ValueError("not yet"))}
    await failure(place.executor(), wf=catching)
    world.gives["end"] = lambda: None
    assert await resumed(place.executor(), wf=catching) == "went on"
    assert seen[0] == seen[1]
    assert seen[0][:3] == (2, 1, "MAP_FAILED")
    assert "item 2: KeyError: 'two'" in seen[0][3]
    assert world.ran == [0, 1, 2]  # caught and dealt with, so it isn't tried again


async def test_resume_runs_only_what_failed_and_what_is_missing(place: Place) -> None:
    world.items = lambda: range(50)
    world.gives = {item: raises(ValueError("no")) for item in (3, 7, 20)}
    world.options = {"max_concurrency": 4, "tolerate_failures": 2}
    error = await failure(place.executor())
    assert isinstance(error, MapFailed)
    done = error.succeeded
    assert error.failed == 3
    assert 18 <= done <= 24
    world.taken()
    world.gives = {20: raises(ValueError("still"))}
    assert len(await resumed(place.executor())) == 49
    again = world.taken()
    assert len(again) == 50 - done
    assert {3, 7, 20} <= set(again)
    assert not set(again) & set(range(3))


async def test_failures_within_what_is_tolerated_stay_as_they_are(place: Place) -> None:
    executor = place.executor()
    world.gives = {2: raises(ValueError("no")), "end": raises(ValueError("not yet"))}
    world.options = {"tolerate_failures": 1}
    world.after = lambda batch: [(one.index, one.error["message"]) for one in batch.failures if one.error]
    await failure(executor, wf=batch_and_step)
    world.gives = {}
    world.taken()
    assert await resumed(executor, wf=batch_and_step) == [(2, "no")]
    assert world.taken() == []


async def test_an_items_own_failed_step_gets_a_fresh_budget_too(place: Place) -> None:
    executor = place.executor()
    world.gives = {2: raises(ValueError("no"))}
    error = await failure(executor, wf=batch_with_steps)
    assert isinstance(error, MapFailed)
    world.gives = {}
    world.ran.clear()
    assert await resumed(executor, wf=batch_with_steps) == [0, 10, 20, 30, 40]
    assert [one for one in world.ran if one == 2] == [2]
    assert not {0, 1} & {one for one in world.ran if isinstance(one, int)}


# ---- Rate, linger ----


async def test_items_start_no_faster_than_the_rate(place: Place) -> None:
    clock = place.turn_clock()
    world.items, world.options = (lambda: range(6)), {"rate": Rate(2, per_s=60)}
    begun = clock.now
    await outputs(place.executor())
    assert world.taken() == [0, 1, 2, 3, 4, 5]
    assert clock.slept == [30] * 5
    assert clock.now - begun == 150_000  # and nothing is waited for after the last one


async def test_a_map_that_is_done_already_waits_for_no_rate(place: Place) -> None:
    clock = place.turn_clock()
    world.options = {"rate": Rate(1, per_s=1000)}
    world.gives["end"] = raises(ValueError("not yet"))
    await failure(place.executor(), wf=batch_and_step)
    world.gives.clear()
    before = clock.now
    await resumed(place.executor(), wf=batch_and_step)
    assert clock.now == before


async def test_too_many_failures_end_the_wait_for_the_rate(place: Place) -> None:
    clock = place.turn_clock()
    world.items, world.gives = (lambda: range(100)), {0: raises(ValueError("no"))}
    world.options = {"rate": Rate(1, per_s=10)}
    begun = clock.now
    await failure(place.executor())
    assert world.ran == [0]
    assert clock.now - begun <= 10_000


async def test_finished_items_wait_for_others_to_be_written_with(place: Place) -> None:
    clock = place.turn_clock(waits=True)
    executor, journal = place.mortal()
    events = [asyncio.Event() for _ in range(3)]

    def of(item: int) -> Any:
        async def give() -> int:
            await events[item].wait()
            return item

        return give

    world.items, world.gives = (lambda: range(3)), {item: of(item) for item in range(3)}
    world.options = {"linger_ms": 1000}
    running = asyncio.ensure_future(outputs(executor))
    await _until(lambda: len(world.ran) == 3)
    events[0].set()
    events[1].set()
    await _until(lambda: bool(clock.slept))
    assert journal.calls.count("append") == 0
    clock.turn(1)
    await _until(lambda: journal.calls.count("append") == 1)
    events[2].set()  # the last one lingers for nobody
    assert await running == [0, 1, 2]
    assert journal.calls.count("append") == 2


async def test_what_finishes_during_the_last_but_one_write_does_not_linger_either(place: Place) -> None:
    clock = place.turn_clock(waits=True)
    executor, journal = place.mortal()
    events, gate, inner = [asyncio.Event() for _ in range(3)], asyncio.Event(), journal.append
    writing = asyncio.Event()

    async def append(segment: Any) -> Any:
        writing.set()
        await gate.wait()
        return await inner(segment)

    def of(item: int) -> Any:
        async def give() -> int:
            await events[item].wait()
            return item

        return give

    journal.append = append  # type: ignore[method-assign]
    world.items, world.gives = (lambda: range(3)), {item: of(item) for item in range(3)}
    world.options = {"linger_ms": 1000}
    running = asyncio.ensure_future(outputs(executor))
    await _until(lambda: len(world.ran) == 3)
    events[0].set()
    await _until(lambda: len(clock.slept) == 1)
    clock.turn(1)
    await writing.wait()
    events[1].set()
    events[2].set()
    for _ in range(100):
        await asyncio.sleep(0)
    gate.set()
    async with asyncio.timeout(20):
        assert await running == [0, 1, 2]
    assert clock.slept == [1]


async def _until(condition: Any) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - what is waited for is no event
            await asyncio.sleep(0.001)


# ---- Concurrency and back pressure ----


@pytest.mark.parametrize("most", [1, 3, 1000])
async def test_no_more_items_are_in_work_than_allowed(most: int, place: Place) -> None:
    at_work, seen, full = 0, [], asyncio.Event()

    @step
    async def worked(item: int) -> None:
        nonlocal at_work
        at_work += 1
        seen.append(at_work)
        if at_work == min(most, 200):
            full.set()
        await full.wait()
        await asyncio.sleep(0.0005 * (item % 3))
        at_work -= 1

    @workflow
    async def busy(ctx: Context) -> None:
        await ctx.map(worked, range(200), max_concurrency=most)

    await outputs(place.executor(), wf=busy)
    assert max(seen) == min(most, 200)


async def test_a_slow_journal_slows_the_intake(place: Place) -> None:
    executor, journal = place.mortal()
    gate, pulled = asyncio.Event(), []
    inner = journal.append

    async def slow(segment: Any) -> Any:
        await gate.wait()
        return await inner(segment)

    journal.append = slow  # type: ignore[method-assign]
    world.items = lambda: one_by_one(range(2000), pulled)
    world.options = {"max_concurrency": 4}
    running = asyncio.ensure_future(outputs(executor))
    await _until(lambda: len(pulled) >= 256)
    for _ in range(100):
        await asyncio.sleep(0)
    assert 256 <= len(pulled) <= 256 + 4
    gate.set()
    assert len(await running) == 2000


# ---- Results ----


@step
async def summed(batch: MapResult[int], outputs: Any) -> list[Any]:
    world.ran.append("summed")
    return [batch.succeeded, sum(batch.outputs), sum(outputs), type(outputs).__name__]


@workflow
async def handing_on(ctx: Context) -> Any:
    batch = await ctx.map(tenfold, world.items(), **world.options)
    return [await ctx.step(summed, batch, batch.outputs), batch]


async def test_a_result_travels_to_a_step_and_out_of_the_workflow(place: Place) -> None:
    executor = place.executor()
    told, batch = await outputs(executor, wf=handing_on)
    assert told == [5, 100, 100, "MapOutputs"]
    assert isinstance(batch, MapResult)
    assert list(batch.outputs) == [0, 10, 20, 30, 40]
    await executor.close()
    other = (await place.executor().run(handing_on, run_id="r1")).output[1]
    assert list(other.outputs) == [0, 10, 20, 30, 40]
    assert other == batch
    assert hash(other) == hash(batch)
    view = {one.step_id: one for one in await place.executor().steps("r1")}
    assert await view["summed"].output() == told
    assert list((await view["tenfold"].output()).outputs) == [0, 10, 20, 30, 40]


async def test_a_result_can_be_read_after_its_executor_was_closed(place: Place) -> None:
    executor = place.executor()
    _, batch = await outputs(executor, wf=handing_on)
    await executor.close()
    assert list(batch.outputs) == [0, 10, 20, 30, 40]


async def test_outputs_are_a_sequence(place: Place) -> None:
    world.items, world.gives = (lambda: range(600)), {3: raises(ValueError("no"))}
    world.options, world.after = {"tolerate_failures": 1}, lambda batch: batch
    batch = await outputs(place.executor())
    found = batch.outputs
    wanted = [item * 10 for item in range(600) if item != 3]
    assert len(found) == 599
    assert found[0] == 0
    assert found[3] == 40
    assert found[-1] == 5990
    assert found[2:6] == [20, 40, 50, 60]
    assert found[::-1] == wanted[::-1]
    assert found == wanted
    assert wanted == found
    assert found != wanted[:-1]
    assert 40 in found
    assert 30 not in found
    assert found.index(50) == 4
    assert list(reversed(found)) == wanted[::-1]
    with pytest.raises(IndexError):
        found[599]
    with pytest.raises(TypeError):
        found["a"]


async def test_every_item_can_be_had_with_what_came_of_it(place: Place) -> None:
    world.items, world.options = (lambda: ["a", "b", "c"]), {"tolerate_failures": 1, "key": lambda item: item}
    world.gives = {"a": lambda: 1, "b": raises(ValueError("no b")), "c": lambda: None}
    world.after = lambda batch: batch
    batch = await outputs(place.executor())
    found = list(batch.iter())
    assert [(one.index, one.key, one.succeeded, one.attempts) for one in found] == [
        (0, "a", True, 1),
        (1, "b", False, 1),
        (2, "c", True, 1),
    ]
    assert [found[0].output, found[2].output] == [1, None]
    with pytest.raises(ItemsFailed, match="item 1 failed: ValueError: no b"):
        _ = found[1].output
    assert [one.index for one in batch.failures] == [1]
    assert "ValueError: no b" in batch.failures[0].error["traceback"]
    with pytest.raises(ItemsFailed, match=r"1 of 3 items failed \(item 1: ValueError: no b\)"):
        batch.raise_for_failures()


async def test_a_result_is_written_as_lines_of_json(place: Place, tmp_path: Path) -> None:
    world.gives = {1: raises(ValueError("no")), 2: lambda: "z" * 20_000, 3: lambda: "ü"}
    world.options, world.after = {"tolerate_failures": 1, "key": lambda item: f"k{item}"}, lambda batch: batch
    batch = await outputs(place.executor())
    target = tmp_path / "found.jsonl"
    assert batch.to_jsonl(target) == 5
    lines = [json.loads(line) for line in target.read_text().splitlines()]
    assert [(line["index"], line["key"]) for line in lines] == [(n, f"k{n}") for n in range(5)]
    assert [line.get("output") for line in lines] == [0, None, "z" * 20_000, "ü", 40]
    assert lines[1]["error"]["message"] == "no"
    assert names(tmp_path, ".jsonl", ".part") == ["found.jsonl"]
    with pytest.raises(OSError, match="nowhere"):
        batch.to_jsonl(tmp_path / "nowhere" / "x.jsonl")


def names(folder: Path, *suffixes: str) -> list[str]:
    return [path.name for path in folder.iterdir() if path.suffix in suffixes]


async def test_a_map_that_collects_nothing_has_no_outputs_but_all_else(place: Place) -> None:
    world.options, world.after = {"collect": False}, lambda batch: batch
    batch = await outputs(place.executor())
    with pytest.raises(UsageError, match="collect=False"):
        _ = batch.outputs
    assert [one.output for one in batch.iter()] == [0, 10, 20, 30, 40]
    assert (batch.succeeded, batch.total) == (5, 5)
    batch.raise_for_failures()


async def test_an_annotated_result_restores_its_outputs(place: Place) -> None:
    @step
    async def page(number: int) -> Page:
        return Page(number=number, text="")

    @step
    async def counted(batch: MapResult[Page]) -> int:
        return sum(one.number for one in batch.outputs)

    @workflow
    async def typed(ctx: Context) -> MapResult[Page]:
        batch = await ctx.map(page, [1, 2])
        assert await ctx.step(counted, batch) == 3
        return batch

    executor = place.executor()
    assert list((await outputs(executor, wf=typed)).outputs) == [
        Page(number=1, text=""),
        Page(number=2, text=""),
    ]
    assert (await outputs(place.executor(), wf=typed)).outputs[0].number == 1


async def test_a_result_is_no_larger_than_a_reference(place: Place) -> None:
    world.items = lambda: range(2000)
    executor = place.executor()
    await outputs(executor, wf=handing_on)
    (view,) = [one for one in await executor.steps("r1") if one.step_id == "tenfold"]
    assert view.record.output_size is not None
    assert view.record.output_size < 500


# ---- Branches, nesting ----


async def lane(ctx: Context, base: int) -> list[int]:
    return list((await ctx.map(functools.partial(added, base), range(base, base + 4))).outputs)


async def test_maps_run_side_by_side_in_branches(place: Place) -> None:
    @workflow
    async def two_lanes(ctx: Context) -> Any:
        return await ctx.parallel(ctx.branch(lane, 0), ctx.branch(lane, 100))

    found = await outputs(place.executor(), wf=two_lanes)
    assert found == ([0, 10, 20, 30], [1100, 1110, 1120, 1130])
    assert set(await _statuses(place)) == {"lane/added", "lane#2/added"}


async def test_an_item_may_have_a_map_of_its_own(place: Place) -> None:
    async def each(ctx: Context, item: int) -> int:
        inner = await ctx.map(tenfold, range(item))
        return sum(inner.outputs)

    @workflow
    async def nested(ctx: Context) -> Any:
        return list((await ctx.map(each, [1, 2, 3])).outputs)

    executor = place.executor()
    assert await outputs(executor, wf=nested) == [0, 10, 30]
    views = await executor.steps("r1", within="each[2]/")
    assert [(view.step_id, view.status) for view in views] == [("each[2]/tenfold", "COMMITTED")]


async def test_an_item_may_have_branches(place: Place) -> None:
    async def each(ctx: Context, item: int) -> list[int]:
        one, two = await ctx.parallel(ctx.branch(left, item), ctx.branch(right, item))
        return [one, two]

    async def left(ctx: Context, item: int) -> int:
        return await ctx.step(fetched_one, item)

    async def right(ctx: Context, item: int) -> int:
        return await ctx.step(fetched_one, item + 1)

    @step
    async def fetched_one(item: int) -> int:
        return item

    @workflow
    async def branched(ctx: Context) -> Any:
        return list((await ctx.map(each, range(3))).outputs)

    assert await outputs(place.executor(), wf=branched) == [[0, 1], [1, 2], [2, 3]]


async def test_a_failing_sibling_branch_stops_a_map_and_keeps_what_it_did(place: Place) -> None:
    failing = asyncio.Event()

    async def batch(ctx: Context) -> Any:
        return list((await ctx.map(tenfold, range(100), max_concurrency=1)).outputs)

    async def breaks(ctx: Context) -> Any:
        return await ctx.step(broken)

    @step
    async def broken() -> None:
        await failing.wait()
        world.gives["end"]()

    @workflow
    async def two(ctx: Context) -> Any:
        return await ctx.parallel(ctx.branch(batch), ctx.branch(breaks))

    async def third() -> int:
        failing.set()
        await asyncio.sleep(0.05)
        return 30

    world.gives = {3: third, "end": raises(ValueError("broken"))}
    executor = place.executor()
    await failure(executor, wf=two)
    assert 4 <= len(world.ran) < 100
    ran = world.taken()
    world.gives = {"end": lambda: None}
    found = await resumed(executor, wf=two)
    assert found[0] == [item * 10 for item in range(100)]
    assert world.taken() == list(range(len(ran), 100))


async def _statuses(place: Place) -> dict[str, str]:
    return {view.step_id: view.status for view in await place.executor().steps("r1")}


# ---- Replay ----


async def test_a_map_that_has_committed_runs_no_body_again(place: Place) -> None:
    world.gives["end"] = raises(ValueError("not yet"))
    await failure(place.executor(), wf=batch_and_step)
    world.gives.clear()
    world.taken()
    assert await resumed(place.executor(), wf=batch_and_step) == [0, 10, 20, 30, 40]
    assert world.taken() == []


@pytest.mark.parametrize(
    "now", [[0, 1, 2, 3], [0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 9], [4, 3, 2, 1, 0], []], ids=str
)
@pytest.mark.parametrize("with_keys", [False, True], ids=["by position", "by key"])
async def test_other_items_than_those_that_committed_are_a_mismatch(
    now: list[int], with_keys: bool, place: Place
) -> None:
    world.options = {"key": str} if with_keys else {}
    world.gives["end"] = raises(ValueError("not yet"))
    await failure(place.executor(), wf=batch_and_step)
    world.gives.clear()
    world.taken()
    world.items = lambda: now
    error = await failure_again(place.executor(), wf=batch_and_step)
    assert isinstance(error, StepMismatch)
    assert error.step_id == "tenfold"
    assert await resumed(place.executor(), wf=batch_and_step, on_change="keep") == [0, 10, 20, 30, 40]
    assert world.taken() == []


async def test_other_bound_arguments_are_a_mismatch(place: Place) -> None:
    base = 0

    @workflow
    async def bound(ctx: Context) -> Any:
        return list((await ctx.map(functools.partial(added, base), range(3))).outputs)

    world.gives[2] = raises(ValueError("no"))
    await failure(place.executor(), wf=bound)
    base = 5
    assert isinstance(await failure_again(place.executor(), wf=bound), StepMismatch)
    base, world.gives = 0, {}
    assert await resumed(place.executor(), wf=bound) == [0, 10, 20]


async def test_a_step_where_a_map_was_is_refused(place: Place) -> None:
    is_map = True

    @workflow
    async def either(ctx: Context) -> Any:
        if is_map:
            await ctx.map(tenfold, [1])
        else:
            await ctx.step(tenfold, 1)
        await ctx.step(failing_end)

    @step
    async def failing_end() -> None:
        raise ValueError("not yet")

    await failure(place.executor(), wf=either)
    is_map = False
    error = await failure_again(place.executor(), wf=either)
    assert not isinstance(error, StepFailed)
    assert error.code in ("STEP_MISMATCH", "CORRUPT_RECORD")  # type: ignore[attr-defined]


async def test_a_deadline_leaves_what_has_finished_and_counts_no_crash(place: Place) -> None:
    from durable_core.errors import DeadlineReached

    executor = place.executor()
    world.items = lambda: range(20)
    world.gives[10] = lambda: asyncio.sleep(30)
    world.options = {"max_concurrency": 1}
    with pytest.raises(DeadlineReached):
        await executor.run(batch_of, run_id="r1", deadline=timedelta(seconds=0.3))
    begun = world.taken()
    assert begun == list(range(len(begun)))  # a busy machine may not have come to the one that waits
    assert len(begun) <= 11
    world.gives.clear()
    assert len(await outputs(place.executor())) == 20
    assert set(begun) & set(world.taken()) <= {begun[-1] if begun else None}
    assert (await executor.get("r1")).crashes == 0
