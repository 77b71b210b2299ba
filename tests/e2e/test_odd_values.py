"""Values that codecs get wrong, through the whole engine: the same live and resumed, or refused by name."""

from __future__ import annotations

import asyncio
import io
import threading
from collections import defaultdict, deque
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from durable_core import Context, DurableWorkflowExecutor, step, workflow
from durable_core.errors import InputNotSerializable, RunFailed, StepFailed
from tests.odd_values import ODD_VALUES, identical, values
from tests.stores import Place, Processes, crash, statuses, verb_of

NAMES = sorted(ODD_VALUES)


@step
async def gives(name: str) -> Any:
    return ODD_VALUES[name]


@step
def takes(value: Any) -> bool:
    return True


@step
async def last() -> str:
    return "last"


async def test_every_odd_output_is_the_same_live_and_resumed(place: Place, processes: Processes) -> None:
    seen: list[dict[str, Any]] = []

    @workflow(name="odd_outputs")
    async def wf(ctx: Context) -> None:
        found: dict[str, Any] = {}
        seen.append(found)
        for name in NAMES:
            found[name] = await ctx.step(gives, name)
        await ctx.step(last)

    await crash(place, processes, lambda ex: ex.run(wf, run_id="r1"), at=verb_of("begin", "last"))
    await place.executor().resume("r1", wf)
    live, resumed = seen
    assert len(live) == len(resumed) == len(NAMES) >= 150
    assert [name for name in NAMES if not identical(live[name], ODD_VALUES[name])] == []
    assert [name for name in NAMES if not identical(resumed[name], live[name])] == []


async def test_every_odd_argument_is_recognised_when_it_is_passed_again(
    place: Place, processes: Processes
) -> None:
    @workflow(name="odd_arguments")
    async def wf(ctx: Context) -> int:
        found = [await ctx.step(takes.with_options(pure=True), ODD_VALUES[name]) for name in NAMES]
        await ctx.step(last)
        return len(found)

    await crash(place, processes, lambda ex: ex.run(wf, run_id="r1"), at=verb_of("begin", "last"))
    result = await place.executor().resume("r1", wf)
    assert result.output == len(NAMES)
    assert result.counts == {"COMMITTED": len(NAMES) + 1}


@pytest.mark.over_dynamodb
async def test_odd_inputs_and_outputs_of_a_run_come_back_the_same(place: Place) -> None:
    @workflow(name="odd_run")
    async def wf(ctx: Context, given: Any) -> Any:
        return given

    executor = place.executor()
    batch = {name: ODD_VALUES[name] for name in NAMES}
    live = await executor.run(wf, run_id="r1", given=batch)
    again = await executor.run(wf, run_id="r1", given=batch)
    by_id = await executor.resume("r1", wf)
    for result in (live, again, by_id):
        assert [name for name in NAMES if not identical(result.output[name], ODD_VALUES[name])] == []


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=values)
def test_whatever_the_codec_claims_to_store_passes_through_a_run(value: Any) -> None:
    @step(name="gives_it")
    async def gives_it() -> Any:
        return value

    @workflow(name="any_value")
    async def wf(ctx: Context, given: Any) -> Any:
        found = await ctx.step(gives_it)
        assert identical(found, value)
        assert identical(given, value)
        await ctx.step(takes, found)
        return found

    async def run() -> None:
        executor = DurableWorkflowExecutor("memory://")
        live = await executor.run(wf, run_id="r1", given=value)
        again = await executor.run(wf, run_id="r1", given=value)
        copied = await executor.fork("r1", wf=wf, new_run_id="r2")
        assert copied.kept == ["gives_it", "takes"]
        forked = await executor.resume("r2", wf)
        await executor.close()
        assert forked.counts == {"COMMITTED": 2}
        assert identical(live.output, value)
        assert identical(again.output, value)
        assert identical(forked.output, value)

    asyncio.run(run())


class Loose:
    """No codec knows it."""


class Text(str):
    """A subclass that would come back as its base."""


def _circle() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


def _deep(levels: int) -> Any:
    found: Any = []
    for _ in range(levels):
        found = [found]
    return found


REFUSED: dict[str, Any] = {
    "object": Loose(),
    "class": Loose,
    "lambda": lambda: 1,
    "generator": (n for n in range(3)),
    "lock": threading.Lock(),
    "open file": io.StringIO("x"),
    "str subclass": Text("x"),
    "fraction": Fraction(1, 3),
    "complex": 1j,
    "range": range(3),
    "bytearray": bytearray(b"x"),
    "memoryview": memoryview(b"x"),
    "deque": deque([1]),
    "defaultdict": defaultdict(int),
    "exception": ValueError("x"),
    "module": io,
    "ellipsis": ...,
    "circle": _circle(),
    "5,000 levels": _deep(5_000),
}


@pytest.mark.parametrize("name", sorted(REFUSED))
async def test_what_cannot_be_stored_fails_its_step_once_naming_where_it_is(name: str, place: Place) -> None:
    bodies: list[int] = []

    @step
    async def odd() -> Any:
        bodies.append(1)
        return {"fine": 1, "items": [0, REFUSED[name]]}

    @workflow(name="refused_output")
    async def wf(ctx: Context) -> str:
        await ctx.step(last)
        try:
            await ctx.step(odd)
        except StepFailed as error:
            return f"{error.error['code']} {error.error['message']}"
        raise AssertionError

    executor = place.executor()
    told = (await executor.run(wf, run_id="r1")).output
    assert told.startswith("OUTPUT_NOT_SERIALIZABLE")
    assert ".items[1]" in told
    assert bodies == [1]
    assert await statuses(executor, "r1") == {"last": "COMMITTED", "odd": "FAILED"}


@pytest.mark.parametrize("name", sorted(REFUSED))
async def test_what_cannot_be_stored_is_refused_as_input_before_anything_runs(
    name: str, place: Place
) -> None:
    bodies: list[int] = []

    @step
    async def body(value: Any) -> None:
        bodies.append(1)

    @workflow(name="refused_argument")
    async def wf(ctx: Context) -> None:
        await ctx.step(body, {"fine": 1, "items": [0, REFUSED[name]]})

    @workflow(name="refused_input")
    async def with_input(ctx: Context, value: Any) -> None:
        bodies.append(1)

    executor = place.executor()
    with pytest.raises(RunFailed) as caught:
        await executor.run(wf, run_id="r1")
    assert isinstance(caught.value.__cause__, InputNotSerializable)
    assert ".items[1]" in str(caught.value.__cause__)
    with pytest.raises(InputNotSerializable, match=r"value"):
        await executor.run(with_input, run_id="r2", value=[REFUSED[name]])
    assert bodies == []
    assert [view.run_id for view in await executor.list()] == ["r1"]


async def test_an_item_that_cannot_be_stored_loses_nothing_that_was_committed_before_it(
    place: Place, tmp_path: Path
) -> None:
    mended: list[bool] = []
    bodies: list[int] = []

    @step
    async def item(number: int) -> Any:
        bodies.append(number)
        return Loose() if number == 40 and not mended else "caf\udcc3" if number == 39 else number

    @workflow(name="items")
    async def wf(ctx: Context) -> int:
        return len([await ctx.step(item, number) for number in range(50)])

    executor = place.executor()
    with pytest.raises(RunFailed, match="Loose"):
        await executor.run(wf, run_id="r1")
    assert (await executor.get("r1")).counts == {"COMMITTED": 40, "FAILED": 1}
    assert (await executor.get("r1")).error["steps"] == ["item#41"]
    mended.append(True)
    bodies.clear()
    assert (await executor.resume("r1", wf)).output == 50
    assert bodies == list(range(40, 50))
