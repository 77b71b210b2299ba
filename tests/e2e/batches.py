"""Maps whose items do what a test says, and what was done with each of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import pytest

from durable_core import (
    Context,
    DurableWorkflowExecutor,
    MapResult,
    SyncContext,
    current_step,
    step,
    workflow,
)
from durable_core.current import StepInfo
from durable_core.errors import RunFailed


class World:
    """What maps are given and what their items do now: a test changes it between two drives of a run.

    Attributes:
        ran: The items whose bodies were started, in order.
        told: What each body was told of itself.
        gives: What the bodies of some items do instead of returning ten times the item.
        items: Makes the items anew for each drive.
        options: Of the map.
        after: What the workflow does once the map is done.
    """

    def __init__(self) -> None:
        self.ran: list[Any] = []
        self.told: list[StepInfo] = []
        self.gives: dict[Any, Callable[[], Any]] = {}
        self.items: Callable[[], Any] = lambda: range(5)
        self.options: dict[str, Any] = {}
        self.after: Callable[[MapResult[Any]], Any] = lambda batch: list(batch.outputs)

    def taken(self) -> list[Any]:
        """What ran since it was last asked, sorted."""
        ran, self.ran = self.ran, []
        return sorted(ran)


world = World()


def gave(item: Any) -> Any:
    world.ran.append(item)
    world.told.append(current_step())
    return world.gives.get(item, lambda: item * 10)()


@step
async def tenfold(item: Any) -> Any:
    """An item's body, which may wait if the test says so."""
    found = gave(item)
    return await found if isinstance(found, Awaitable) else found


@step
def threaded(item: Any) -> Any:
    return gave(item)


async def plain(item: Any) -> Any:
    return gave(item)


async def added(base: int, item: int, *, more: int = 0) -> int:
    return base + int(gave(item)) + more


@step
async def fetched(item: Any) -> Any:
    found = gave(item)
    return await found if isinstance(found, Awaitable) else found


@step
async def checked(found: Any) -> Any:
    gave(f"checked {found}")
    return found


async def with_steps(ctx: Context, item: Any) -> Any:
    """An item of two steps."""
    world.gives.setdefault(f"checked {item * 10}", lambda: None)
    return await ctx.step(checked, await ctx.step(fetched, item))


def sync_with_steps(ctx: SyncContext, item: Any) -> Any:
    world.gives.setdefault(f"checked {item * 10}", lambda: None)
    return ctx.step(checked, ctx.step(fetched, item))


@workflow
async def batch_of(ctx: Context) -> Any:
    return world.after(await ctx.map(tenfold, world.items(), **world.options))


@workflow
async def batch_with_steps(ctx: Context) -> Any:
    return world.after(await ctx.map(with_steps, world.items(), **world.options))


@step
async def end() -> str:
    world.gives.get("end", lambda: None)()
    return "the end"


@workflow
async def batch_and_step(ctx: Context) -> Any:
    """A map, and a step after it that a test can fail."""
    batch = await ctx.map(tenfold, world.items(), **world.options)
    await ctx.step(end)
    return world.after(batch)


async def outputs(executor: DurableWorkflowExecutor, run_id: str = "r1", wf: Any = batch_of) -> Any:
    """Starts or resumes the run; gives its output."""
    return (await executor.run(wf, run_id=run_id)).output


async def resumed(
    executor: DurableWorkflowExecutor, run_id: str = "r1", wf: Any = batch_of, **options: Any
) -> Any:
    return (await executor.resume(run_id, wf, **options)).output


async def failure(executor: DurableWorkflowExecutor, run_id: str = "r1", wf: Any = batch_of) -> BaseException:
    """Why the run fails."""
    with pytest.raises(RunFailed) as caught:
        await executor.run(wf, run_id=run_id)
    assert caught.value.__cause__ is not None
    return caught.value.__cause__


async def failure_again(
    executor: DurableWorkflowExecutor, run_id: str = "r1", wf: Any = batch_of, **options: Any
) -> BaseException:
    """Why the resumed run fails."""
    with pytest.raises(RunFailed) as caught:
        await executor.resume(run_id, wf, **options)
    assert caught.value.__cause__ is not None
    return caught.value.__cause__


def raises(error: BaseException) -> Callable[[], Any]:
    def give() -> Any:
        raise error

    return give


def waits(event: asyncio.Event, value: Any = 0) -> Callable[[], Any]:
    """A body that waits for an event."""

    async def give() -> Any:
        await event.wait()
        return value

    return give


def one_by_one(items: Iterable[Any], pulled: list[Any] | None = None, stops_at: Any = None) -> Iterable[Any]:
    """A generator: can be had once."""
    for item in items:
        if pulled is not None:
            pulled.append(item)
        if stops_at is not None and item == stops_at:
            raise OSError(f"no item {item}")
        yield item


def keyed(items: Sequence[Any] | range) -> list[dict[str, Any]]:
    """Items with an id."""
    return [{"id": f"doc-{item}", "n": item} for item in items]
