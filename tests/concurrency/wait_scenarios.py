"""What the simulated processes run where a run waits: suspension, `RunBusy`, events and hand-overs.

A lost wake-up ends an execution: nobody has anything to do, and the run is SUSPENDED with an event untaken.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

from durable_core import Context, workflow
from durable_core.codec import freeze
from durable_core.engine.asking import ask
from durable_core.envelope import seal
from durable_core.errors import DeadlineReached, Fenced, JournalUnavailable, RunBusy, RunEnded
from durable_core.records import COMMITTED, COMPLETED, RUNNING, Event, StepRecord
from durable_core.workflow import Workflow
from tests.concurrency.actors import drives
from tests.concurrency.processes import Process
from tests.concurrency.promises import RUN, Violation
from tests.concurrency.scenarios import header_of, s1, s2, three
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


async def other_leg(ctx: Context) -> Any:
    return await ctx.wait_for_event("come")


@workflow
async def waits_for_both(ctx: Context) -> list[Any]:
    return [*await ctx.parallel(ctx.branch(leg), ctx.branch(other_leg))]


async def steps_beside(ctx: Context) -> list[str]:
    return [await ctx.step(s1), await ctx.step(s2)]


@workflow
async def waits_beside_steps(ctx: Context) -> list[Any]:
    event, steps = await ctx.parallel(ctx.branch(leg), ctx.branch(steps_beside))
    return [event, *steps]


# ---- Who is there ----


class Letter(NamedTuple):
    """An event that somebody sends; once a step is committed, if one is named."""

    event_id: str
    name: str = "go"
    after: str = ""


E1, E2 = Letter("e1"), Letter("e2")


def suspending(process: Process, wf: Workflow[..., Any]) -> Coroutine[Any, Any, Any]:
    return process.executor.run(wf, run_id=RUN, on_wait="suspend")


def waiting(
    wf: Workflow[..., Any],
    names: str,
    *letters: Letter,
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
        for number, letter in enumerate(letters):
            world.process(f"S{number}", lambda process, letter=letter: sends(process, letter))

    return prepare


def event_of(event_id: str, seq: int) -> Event:
    raw, _ = freeze(event_id)
    sealed = seal(raw)
    return Event(RUN, "go", seq, event_id, 1, sealed.data, None, sealed.codec, len(raw), sealed.output_hash)


async def sends(process: Process, letter: Letter) -> None:
    """Sends an event, again until it knows that it is stored, and then a message."""
    world, event_id = process.world, letter.event_id
    process.role = process.name  # nobody else would keep this promise
    if letter.after:
        await world.when("when wanted", lambda: is_committed(world.journal.records.get((RUN, letter.after))))
    while True:
        try:
            await process.executor.signal(RUN, letter.name, event_id, event_id=event_id, early=True)
        except JournalUnavailable:
            continue
        except RunEnded:
            raise Violation(f"the run has ended without {event_id}") from None
        world.messages += 1
        return


def is_committed(record: StepRecord | None) -> bool:
    return record is not None and record.status == COMMITTED


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
        prepare=waiting(waits, "AB", E1),
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
        prepare=waiting(waits, "AB", E1, queued=1),
        steps=("event.go",),
        events=("e1",),
        budgets=({}, {"lost": 1}, {"renewal": 1}),
    ),
    Scenario(
        name="sent twice",
        prepare=waiting(waits_twice, "A", E1, E1, E2),
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
        prepare=waiting(waits_for_both, "AB", E1, Letter("e2", "come", after="leg/event.go")),
        steps=("leg/event.go", "other_leg/event.come"),
        events=("e1", "e2"),
        budgets=({}, {"lost": 1}, {"crash": 1}, {"skew": 1}),
    ),
    Scenario(
        name="suspend, three drivers",
        prepare=waiting(waits_twice, "ABC", E1, Letter("e2", after="event.go")),
        steps=("event.go", "event.go#2"),
        events=("e1", "e2"),
        budgets=({"crash": 2, "lost": 1}, {"skew": 2}, {"pause": 2, "lost": 1}, {"step": 1, "vanish": 1}),
    ),
    Scenario(
        name="suspend, steps beside",
        prepare=waiting(waits_beside_steps, "AB", Letter("e1", after="steps_beside/s2")),
        steps=("leg/event.go", "steps_beside/s1", "steps_beside/s2"),
        events=("e1",),
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
        prepare=waiting(waits, "AB", E1, created=False),
        steps=("event.go",),
        events=("e1",),
        budgets=({}, {"lost": 1, "late": 1}, {"crash": 1}),
    ),
)
