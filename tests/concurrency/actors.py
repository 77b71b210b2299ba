"""What simulated processes do: bodies that are counted, and driving the run whenever it is due."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from durable_core import current_step
from durable_core.errors import DeadlineReached, Fenced, JournalUnavailable, RunBusy, RunCancelled, RunFailed
from durable_core.records import ACTIVE, FAILED, TOMBSTONE
from tests.concurrency.processes import Process, here
from tests.concurrency.promises import Violation
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
    process.drives = True
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
        except (DeadlineReached, JournalUnavailable):
            continue
        except Fenced:
            world.promises.give_way(process)
            continue
        except (RunFailed, RunCancelled):
            return
        process.outcome = result.output
        return


def _has_ended(world: World) -> bool:
    return world.scenario.has_ended(world.header())


def is_due(process: Process) -> bool:
    """Whether the run could be taken over, as far as this process can tell."""
    header = process.world.header()
    if header is None or header.status in (FAILED, TOMBSTONE):
        return True
    if header.status not in ACTIVE:
        return False
    return header.lease_until_ms < process.clock.now_ms() or header.owner_process in process.world.dead
