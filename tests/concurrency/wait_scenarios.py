"""What the simulated processes run where a run waits: suspension, `RunBusy`, events and hand-overs.

A lost wake-up ends an execution: nobody has anything to do, and the run is SUSPENDED with an event untaken.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from datetime import timedelta
from functools import partial
from typing import Any

from durable_core import Context, workflow
from durable_core.codec import freeze
from durable_core.engine.asking import ask
from durable_core.envelope import seal
from durable_core.errors import DeadlineReached, Fenced, JournalUnavailable, RunBusy, RunEnded
from durable_core.records import COMPLETED, RUNNING, Event
from durable_core.workflow import Workflow
from tests.concurrency.actors import drives
from tests.concurrency.processes import Process
from tests.concurrency.promises import RUN, Violation
from tests.concurrency.scenarios import header_of, three
from tests.concurrency.simulation import Scenario, World

HAND_OVER = timedelta(minutes=1)


@workflow
async def waits(ctx: Context) -> list[Any]:
    return [await ctx.wait_for_event("go")]


@workflow
async def waits_twice(ctx: Context) -> list[Any]:
    return [await ctx.wait_for_event("go"), await ctx.wait_for_event("go")]


async def leg(ctx: Context) -> Any:
    return await ctx.wait_for_event("go")


@workflow
async def waits_side_by_side(ctx: Context) -> list[Any]:
    return [*await ctx.parallel(ctx.branch(leg), ctx.branch(leg))]


# ---- Who is there ----


def suspending(process: Process, wf: Workflow[..., Any]) -> Coroutine[Any, Any, Any]:
    return process.executor.run(wf, run_id=RUN, on_wait="suspend")


def waiting(
    wf: Workflow[..., Any],
    names: str,
    *events: str,
    created: bool = True,
    stored: tuple[str, ...] = (),
    queued: int | None = None,
) -> Callable[[World], None]:
    """Processes that drive the run, and one that sends each event.

    With `queued`, they look at it only when a message tells them to.
    """

    def prepare(world: World) -> None:
        if created:
            world.journal.headers[RUN] = header_of(wf)
        for seq, event_id in enumerate(stored):
            world.journal.letters[RUN, "go", seq] = event_of(event_id, seq)
        world.messages = queued or 0
        for name in names:
            if queued is None:
                world.process(name, lambda process: drives(process, partial(suspending, process, wf)))
            else:
                world.process(name, lambda process: handles(process, wf))
        for number, event_id in enumerate(events):
            world.process(f"S{number}", lambda process, event_id=event_id: sends(process, event_id))

    return prepare


def event_of(event_id: str, seq: int) -> Event:
    raw, _ = freeze(event_id)
    sealed = seal(raw)
    return Event(RUN, "go", seq, event_id, 1, sealed.data, None, sealed.codec, len(raw), sealed.output_hash)


async def sends(process: Process, event_id: str) -> None:
    """Sends an event, again until it knows that it is stored, and then a message."""
    process.role = process.name  # nobody else would keep this promise
    while True:
        try:
            await process.executor.signal(RUN, "go", event_id, event_id=event_id, early=True)
        except JournalUnavailable:
            continue
        except RunEnded:
            raise Violation(f"the run has ended without {event_id}") from None
        process.world.messages += 1
        return


async def handles(process: Process, wf: Workflow[..., Any]) -> None:
    """Drives the run for as long as it can whenever a message comes; what is left over is a new message."""
    world = process.world
    process.role = "drive"
    while True:
        await world.when("when told", lambda: world.messages > 0)
        world.messages -= 1
        process.acquired = False
        try:
            result = await process.executor.run(wf, run_id=RUN, on_wait="suspend", deadline=HAND_OVER)
        except RunBusy:
            if process.acquired:
                raise Violation(f"{process.name} was told that the run is busy: with itself") from None
            await knocks(process)
        except (DeadlineReached, JournalUnavailable):
            world.messages += 1
        except Fenced:
            world.promises.give_way(process)
        else:
            if result.status == COMPLETED:
                process.outcome = result.output


async def knocks(process: Process) -> None:
    """Before its message is dropped, the run's driver is told to look once more.

    A   looks: nothing ─────────────────────────────────── suspend [count = 0] ─▶ refused: looks again
    B                    acquire ─▶ busy ── wake, count 1
    """
    journal = process.tools.journal
    try:
        header = await ask(journal.header, RUN)
        if header is not None and header.status == RUNNING:
            await ask(journal.wake, header)
    except JournalUnavailable:
        process.world.messages += 1


# ---- The scenarios ----

WAIT_SCENARIOS = (
    Scenario(
        name="suspend, signal",
        prepare=waiting(waits, "AB", "e1"),
        steps=("event.go",),
        events=("e1",),
        budgets=(
            {},
            {"crash": 1, "lost": 1},
            {"late": 1, "lost": 1},
            {"pause": 1},
            {"skew": 1},
            {"outage": 1},
            {"renewal": 2},
        ),
    ),
    Scenario(
        name="RunBusy",
        prepare=waiting(waits, "AB", "e1", queued=1),
        steps=("event.go",),
        events=("e1",),
        budgets=({}, {"lost": 1}, {"renewal": 1}),
    ),
    Scenario(
        name="sent twice",
        prepare=waiting(waits_twice, "A", "e1", "e1", "e2"),
        steps=("event.go", "event.go#2"),
        events=("e1", "e2"),
        budgets=({}, {"late": 1}, {"lost": 1}),
    ),
    Scenario(
        name="take, branches",
        prepare=waiting(waits_side_by_side, "AB", stored=("e1", "e2")),
        steps=("leg/event.go", "leg#2/event.go"),
        events=("e1", "e2"),
        budgets=({"crash": 1, "lost": 1}, {"pause": 1}, {"skew": 1, "crash": 1}, {"late": 1}),
    ),
    Scenario(
        name="suspend, branches",
        prepare=waiting(waits_side_by_side, "AB", "e1", "e2"),
        steps=("leg/event.go", "leg#2/event.go"),
        events=("e1", "e2"),
        budgets=({}, {"lost": 1}, {"crash": 1}, {"skew": 1}),
    ),
    Scenario(
        name="hand-over, told",
        prepare=waiting(three, "AB", queued=1),
        steps=("s1", "s2", "s3"),
        budgets=({"alarm": 1}, {"alarm": 1, "lost": 1}, {"alarm": 2}),
    ),
    Scenario(
        name="early event",
        prepare=waiting(waits, "AB", "e1", created=False),
        steps=("event.go",),
        events=("e1",),
        budgets=({}, {"lost": 1, "late": 1}, {"crash": 1}),
    ),
)
