"""Maps that workers share: no item is lost or doubled, and the end of the last chunk is never missed.

A lost wake-up ends an execution: nobody has anything to do, and the run is SUSPENDED although each chunk is
done. Only where somebody has died may it be left to the run's safety net.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from durable_core import Context, workflow
from durable_core.engine.chunk_claims import shared_map
from durable_core.errors import Fenced, JournalUnavailable
from durable_core.journal.chunks import is_shared
from durable_core.records import PENDING, RUNNING
from tests.concurrency.actors import drives
from tests.concurrency.map_scenarios import item
from tests.concurrency.processes import Process
from tests.concurrency.promises import RUN
from tests.concurrency.scenarios import header_of
from tests.concurrency.simulation import Scenario, World
from tests.concurrency.wait_scenarios import suspending

MAP = "item"


@workflow
async def shared_in_two(ctx: Context) -> list[str]:
    return list((await ctx.map(item, (0, 1), distribute=True, chunk_size=1, max_concurrency=1)).outputs)


@workflow
async def shared_whole(ctx: Context) -> list[str]:
    return list((await ctx.map(item, (0, 1), distribute=True, chunk_size=2, max_concurrency=1)).outputs)


def sharing(wf: object, drivers: str, workers: str) -> Callable[[World], None]:
    """Processes that drive the run, and processes that work on its chunks."""

    def prepare(world: World) -> None:
        world.journal.headers[RUN] = header_of(wf)  # type: ignore[arg-type]  # a workflow
        for name in drivers:
            world.process(name, lambda process: drives(process, partial(suspending, process, wf)))  # type: ignore[arg-type]
        for name in workers:
            world.process(name, works)

    return prepare


async def works(process: Process) -> None:
    """Works on whatever chunk is free, until the run is over."""
    world = process.world
    process.role = "work"
    while True:
        await world.when("when free", lambda: free_chunk(process) is not None or _is_over(world))
        chunk = free_chunk(process)
        if chunk is None:
            return
        try:
            await process.executor.work_chunk(RUN, MAP, chunk)
        except JournalUnavailable:
            continue
        except Fenced:
            world.promises.give_chunk_up(process)


def free_chunk(process: Process) -> int | None:
    """The first chunk that could be claimed, as far as this process can tell."""
    world, header = process.world, process.world.header()
    record = world.journal.records.get((RUN, MAP))
    if header is None or record is None or not is_shared(record) or _is_over(world):
        return None
    of = shared_map(record, header.base_fence)
    for number in range(of.chunks):
        chunk = world.journal.claims.get((RUN, MAP, number))
        if chunk is None or chunk.status == PENDING:
            return number
        is_left = chunk.owner_process in world.dead or chunk.lease_until_ms < process.lease_clock.now_ms()
        if chunk.status == RUNNING and is_left:
            return number
    return None


def _is_over(world: World) -> bool:
    return world.scenario.has_ended(world.header())


SHARED_MAP_SCENARIOS = (
    Scenario(
        name="shared map",
        prepare=sharing(shared_in_two, "A", "WX"),
        steps=(MAP,),
        budgets=({}, {"lost": 1}, {"late": 1}, {"outage": 1}),
        extra=2,
    ),
    Scenario(
        name="shared map, deaths",
        prepare=sharing(shared_in_two, "AB", "WX"),
        steps=(MAP,),
        budgets=({"crash": 1}, {"vanish": 1}, {"crash": 1, "lost": 1}),
        extra=3,
    ),
    Scenario(
        name="shared map, one chunk",
        prepare=sharing(shared_whole, "A", "WX"),
        steps=(MAP,),
        budgets=({"crash": 1}, {"vanish": 1, "late": 1}, {"renewal": 1}),
        extra=3,
    ),
    Scenario(
        name="shared map, stalls",
        prepare=sharing(shared_in_two, "A", "WX"),
        steps=(MAP,),
        budgets=({"stall": 1}, {"stall": 1, "late": 1}, {"stall skew": 1}, {"stall": 1, "stall skew": 1}),
        extra=4,
    ),
    Scenario(
        name="shared map, one chunk, stalls",
        prepare=sharing(shared_whole, "A", "WX"),
        steps=(MAP,),
        budgets=({"stall": 2}, {"stall": 1, "lost": 1}, {"stall skew": 1, "renewal": 1}),
        extra=4,
    ),
)
