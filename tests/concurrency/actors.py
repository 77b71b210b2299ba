"""What simulated processes do: bodies that are counted, and driving the run whenever it is due."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from durable_core import current_step
from durable_core.errors import (
    DeadlineReached,
    Fenced,
    JournalUnavailable,
    RunBusy,
    RunCancelled,
    RunFailed,
    RunNotFound,
    RunPruned,
)
from durable_core.records import ACTIVE, COMPLETED, FAILED, PRUNING, SUSPENDED, TOMBSTONE, RunHeader
from tests.concurrency.processes import Process, here
from tests.concurrency.promises import RUN, Violation
from tests.concurrency.simulation import World


async def effect(name: str) -> str:
    """What every body does: has an effect that is counted, and gives an output that tells whose it is."""
    info, process = current_step(), here()

    async def happen() -> None:
        process.world.promises.ran(name, process.name, info.fence, info.idempotency_key)

    await process.world.gate("body", (name,), happen)
    return f"{name}@{info.fence}.{info.attempt}"


async def drives(process: Process, run: Callable[[], Coroutine[Any, Any, Any]]) -> None:
    """Drives the run whenever it is due, gives way when fenced, and comes back."""
    world = process.world
    process.role = "drive"
    while True:
        await world.when("when due", lambda: is_due(process) or _has_ended(world))
        if _has_ended(world):
            return
        process.acquired = False
        try:
            result = await run()
        except RunBusy:
            if process.acquired:
                raise Violation(f"{process.name} was told that the run is busy: with itself") from None
            continue
        except (DeadlineReached, JournalUnavailable, RunPruned):
            continue
        except Fenced:
            world.promises.give_way(process)
            continue
        except (RunFailed, RunCancelled, RunNotFound):
            return
        if result.status != COMPLETED:
            continue
        process.outcome = result.output
        return


async def prunes(process: Process, may_begin: Callable[[World], bool]) -> None:
    """Prunes the run once, at some moment when it may, and finishes what it or another left half-way."""
    world, begun = process.world, False
    process.role = "prune"
    while True:
        begins = _never if begun else may_begin
        await world.when(
            "when to prune",
            lambda begins=begins: _is_buried(world) or is_half_pruned(process) or begins(world),
        )
        if _is_buried(world):
            return
        try:
            await process.executor.prune(run_ids=[RUN])
        except JournalUnavailable:
            continue
        except RunNotFound:
            return
        begun = True


def _never(_: World) -> bool:
    return False


def is_half_pruned(process: Process) -> bool:
    """Whether a prune was cut short, as far as this process can tell."""
    header = process.world.header()
    return header is not None and header.status == PRUNING and _is_free(process, header)


def _is_buried(world: World) -> bool:
    header = world.header()
    return header is not None and (header.status == TOMBSTONE or header.base_fence > 0)


def _has_ended(world: World) -> bool:
    return world.scenario.has_ended(world.header())


def is_due(process: Process) -> bool:
    """Whether the run could be taken over, as far as this process can tell."""
    header = process.world.header()
    if header is None or header.status in (FAILED, TOMBSTONE):
        return True
    if header.status == SUSPENDED and header.due_at_ms > process.lease_clock.now_ms():
        return False
    return header.status in ACTIVE and _is_free(process, header)


def _is_free(process: Process, header: RunHeader) -> bool:
    return header.lease_until_ms < process.lease_clock.now_ms() or header.owner_process in process.world.dead
