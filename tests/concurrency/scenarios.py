"""What the simulated processes run: those scenarios of the protocol that need no map, wait or prune."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from datetime import timedelta
from functools import cache, partial
from hashlib import sha256
from typing import Any
from unittest.mock import patch

from durable_core import (
    Context,
    Done,
    DurableWorkflowExecutor,
    NotDone,
    Retry,
    current_step,
    step,
    workflow,
)
from durable_core.blobs.memory import MemoryBlobs
from durable_core.clock import rfc3339
from durable_core.engine.admission import Admitted
from durable_core.engine.driver import drive
from durable_core.engine.failure import as_json
from durable_core.errors import Fenced, JournalUnavailable, RunBusy, StepNotFound, UsageError
from durable_core.identity import KeyMaker, input_hash
from durable_core.journal.memory import MemoryJournal
from durable_core.records import (
    CANCELLED,
    COMMITTED,
    FAILED,
    RUNNING,
    STARTED,
    TOMBSTONE,
    RunHeader,
    StepRecord,
)
from durable_core.store import Store
from durable_core.testing.fake_clock import START_MS, FakeClock
from durable_core.workflow import Workflow
from tests.concurrency.actors import drives, effect, is_due
from tests.concurrency.processes import Process, here
from tests.concurrency.promises import FROM_BEFORE, RUN
from tests.concurrency.simulation import Scenario, World

FOREVER = 50
AGAIN = Retry(max_attempts=2, initial_delay_s=0, jitter=0)
LATER = Retry(max_attempts=2, initial_delay_s=60, jitter=0)  # longer than a lease


@step(crash_limit=FOREVER)
async def s1() -> str:
    return await effect("s1")


@step(crash_limit=FOREVER)
async def s2() -> str:
    return await effect("s2")


@step(crash_limit=FOREVER)
async def s3() -> str:
    return await effect("s3")


@step(pure=True)
async def p() -> str:
    return await effect("p")


@step(retry=AGAIN, crash_limit=FOREVER)
async def flaky() -> str:
    """Raises in the first attempt that gets to it, of all owners'."""
    done = await effect("flaky")
    if current_step().attempt == 1:
        raise ConnectionError("the first one never works")
    return done


@step(retry=AGAIN, crash_limit=FOREVER)
async def hopeless() -> str:
    await effect("hopeless")
    raise ConnectionError("it never works")


async def has_happened(key: str) -> Done | NotDone:
    """Asks the other side, which answers truthfully for this moment."""
    world = here().world

    async def look() -> bool:
        return bool(world.promises.bodies.get("guarded"))

    return Done("verified") if await world.gate("body", ("verify",), look) else NotDone()


@step(semantics="at_most_once", verify=has_happened, crash_limit=FOREVER)
async def guarded() -> str:
    return await effect("guarded")


@step(semantics="at_most_once", verify=has_happened, retry=AGAIN, crash_limit=FOREVER)
async def guarded_flaky() -> str:
    """Raises before it has its effect, the first time."""
    if current_step().attempt == 1:
        raise ConnectionError("not even begun")
    return await effect("guarded")


@workflow
async def three(ctx: Context) -> list[str]:
    return [await ctx.step(s1), await ctx.step(s2), await ctx.step(s3)]


@workflow
async def pure_first(ctx: Context) -> list[str]:
    return [await ctx.step(p), await ctx.step(s1)]


@workflow
async def retried(ctx: Context) -> list[str]:
    return [await ctx.step(flaky), await ctx.step(s2)]


@workflow
async def retried_later(ctx: Context) -> list[str]:
    return [await ctx.step(flaky.with_options(retry=LATER)), await ctx.step(s2)]


@workflow
async def failing(ctx: Context) -> list[str]:
    return [await ctx.step(s1), await ctx.step(hopeless)]


@workflow
async def once(ctx: Context) -> list[str]:
    return [await ctx.step(guarded)]


@workflow
async def once_retried(ctx: Context) -> list[str]:
    return [await ctx.step(guarded_flaky)]


async def left(ctx: Context) -> str:
    return await ctx.step(s1)


async def right(ctx: Context) -> str:
    return await ctx.step(s2)


@workflow
async def branches(ctx: Context) -> list[str]:
    return [*await ctx.parallel(ctx.branch(left), ctx.branch(right)), await ctx.step(s3)]


# ---- Who is there ----


def workers(
    wf: Workflow[..., Any], names: str, *, created: bool = True, deadline: timedelta | None = None
) -> Callable[[World], None]:
    """Processes that drive the run whenever it is due."""

    def prepare(world: World) -> None:
        if created:
            header = header_of(wf)
            world.journal.headers[RUN] = header
        for name in names:
            world.process(name, lambda process: drives(process, partial(run_it, process, wf, deadline)))

    return prepare


def run_it(process: Process, wf: Workflow[..., Any], deadline: timedelta | None) -> Coroutine[Any, Any, Any]:
    return process.executor.run(wf, run_id=RUN, deadline=deadline)


def with_operator(
    does: Callable[[DurableWorkflowExecutor], Coroutine[Any, Any, object]],
    *,
    once_left_in: str | None = None,
) -> Callable[[World], None]:
    """Somebody does something to the run at some moment, or once its owner is gone and left it in a step."""

    async def act(process: Process) -> None:
        def is_time() -> bool:
            record = process.world.journal.records.get((RUN, once_left_in or ""))
            return once_left_in is None or (
                record is not None and record.status == STARTED and is_due(process)
            )

        await process.world.when("when wanted", is_time)
        try:
            await does(process.executor)
        except (JournalUnavailable, RunBusy, StepNotFound, UsageError, Fenced):
            return

    def prepare(world: World) -> None:
        workers(three, "AB")(world)
        world.process("X", act)

    return prepare


def resumed(world: World) -> None:
    """A run that FAILED because of its first step is resumed by two at once."""
    failed_run(world)
    for name in "AB":
        world.process(name, lambda process: drives(process, partial(process.executor.resume, RUN, retried)))


def failed_run(world: World) -> None:
    error = as_json({"code": "STEP_FAILED", "steps": ["flaky"], "fence": 1})
    world.journal.headers[RUN] = replace(header_of(retried), status=FAILED, fence=1, error=error)
    world.journal.records[RUN, "flaky"] = first_record("flaky", FAILED)._replace(attempt=2, error=error)


def reused(names: str, *old: str) -> Callable[[World], None]:
    """The id of a pruned run is used again; Z is an owner of its earlier life that wakes up."""

    def prepare(world: World) -> None:
        world.journal.headers[RUN] = replace(header_of(pure_first), status=TOMBSTONE, fence=3, base_fence=3)
        for step_id in old:
            world.journal.records[RUN, step_id] = old_record(step_id, fence=2)
        for name in names:
            if name == "Z":
                world.process(name, zombie)
            else:
                world.process(
                    name, lambda process: drives(process, partial(run_it, process, pure_first, None))
                )

    return prepare


def strayed(world: World) -> None:
    """A has begun the step, and was paused past its lease just before its body; B and C are there."""
    world.journal.headers[RUN] = replace(
        header_of(once), status=RUNNING, owner="A.0", owner_process="A", fence=1, lease_until_ms=1
    )
    record = world.journal.records[RUN, "guarded"] = first_record("guarded", STARTED)

    async def body() -> None:
        world.promises.ran("guarded", "A", 1, record.idempotency_key)

    world.process("A", lambda process: world.gate("body", ("guarded",), body))
    for name in "BC":
        world.process(name, lambda process: drives(process, partial(run_it, process, once, None)))


async def zombie(process: Process) -> None:
    header = replace(
        header_of(pure_first), status=RUNNING, owner="Z.0", owner_process="Z", fence=1, lease_until_ms=0
    )
    process.fence = header.fence
    try:
        await drive(process.tools, Admitted(header), pure_first)
    except (Fenced, JournalUnavailable):
        return


@cache
def header_of(wf: Workflow[..., Any]) -> RunHeader:
    """A run as `start` makes it."""
    journal = MemoryJournal(FakeClock())
    executor = DurableWorkflowExecutor(Store("memory://", journal, MemoryBlobs()), clock=journal.clock)
    with patch("durable_core.engine.admission.new_owner", lambda: "start"):
        asyncio.run(executor.start(wf, run_id=RUN))
    return journal.headers[RUN]


def first_record(step_id: str, status: str) -> StepRecord:
    """Of the run's first step, by its first owner."""
    hashed = input_hash(step_id, (), {})
    return StepRecord(
        RUN, step_id, 0, status, hashed, None, None, None, None, rfc3339(START_MS), None,
        KeyMaker(RUN).key(0, hashed), 1, 0, "A.1", 1,
    )  # fmt: skip


def old_record(step_id: str, fence: int) -> StepRecord:
    """Of an earlier life of the run's id: with the same input, so that nothing but the fence tells."""
    key = KeyMaker(RUN).key(0 if step_id == "p" else 1, input_hash(step_id, (), {}))
    output = f'"{step_id}@old"'.encode()
    return StepRecord(
        RUN, step_id, 0 if step_id == "p" else 1, COMMITTED, input_hash(step_id, (), {}),
        sha256(output).hexdigest(), output, None, "json", rfc3339(START_MS), rfc3339(START_MS), key, 1, 0,
        f"{FROM_BEFORE}{step_id}", fence, output_size=len(output),
    )  # fmt: skip


# ---- The scenarios ----

# Random executions have the most of each fault, so one kind more makes the others rarer: clocks are set in
# scenarios of their own.
STANDARD = (
    {"crash": 1, "lost": 1, "late": 1},
    {"pause": 1, "late": 1},
    {"skew": 1, "late": 1},
    {"crash": 1, "skew": 1},
    {"vanish": 1, "outage": 1},
    {"pause": 1, "renewal": 2},
)
PLAIN_SCENARIOS = (
    Scenario(name="3 steps", prepare=workers(three, "AB"), steps=("s1", "s2", "s3"), budgets=STANDARD),
    Scenario(
        name="3 steps, three drivers",
        prepare=workers(three, "ABC"),
        steps=("s1", "s2", "s3"),
        budgets=(
            {"crash": 2, "lost": 2},
            {"skew": 2, "late": 1},
            {"pause": 2, "lost": 1},
            {"vanish": 1, "skew": 1},
            {"step": 2, "crash": 1},
        ),
    ),
    Scenario(
        name="new run",
        prepare=workers(three, "AB", created=False),
        steps=("s1", "s2", "s3"),
        budgets=({"lost": 1, "pause": 1}, *STANDARD),
    ),
    Scenario(name="pure step", prepare=workers(pure_first, "AB"), steps=("p", "s1"), budgets=STANDARD),
    Scenario(
        name="retried step", prepare=workers(retried, "AB"), steps=("flaky", "s2"), budgets=STANDARD, extra=1
    ),
    Scenario(
        name="retried later",
        prepare=workers(retried_later, "AB"),
        steps=("flaky", "s2"),
        budgets=({"step": 1, "crash": 1}, {"step": 2}, {"skew": 1, "lost": 1}, {"step": 1, "pause": 1}),
        extra=1,
    ),
    Scenario(
        name="hopeless step",
        prepare=workers(failing, "AB"),
        steps=(),
        budgets=STANDARD,
        extra=1,
        may_end=(FAILED,),
        may_complete=False,
    ),
    Scenario(
        name="at_most_once",
        prepare=workers(once, "ABC"),
        steps=("guarded",),
        budgets=({"crash": 2}, {"skew": 1}, {"crash": 1, "skew": 1}, {"vanish": 1}, {"pause": 1, "lost": 1}),
        once=("guarded",),
        may_end=(FAILED,),
    ),
    Scenario(
        name="at_most_once, stray",
        prepare=strayed,
        steps=("guarded",),
        budgets=({"crash": 1}, {"vanish": 1}, {"outage": 1}, {"crash": 1, "lost": 1}),
        once=("guarded",),
        may_end=(FAILED,),
    ),
    Scenario(
        name="at_most_once, retried",
        prepare=workers(once_retried, "AB"),
        steps=("guarded_flaky",),
        budgets=({"crash": 1, "lost": 1},),
        once=("guarded",),
    ),
    Scenario(
        name="at_most_once, all dead",
        prepare=workers(once, "ABC"),
        steps=("guarded",),
        budgets=({"crash": 2}, {"crash": 2, "lost": 1}, {"crash": 2, "late": 1}),
        once=("guarded",),
    ),
    Scenario(
        name="hand-over",
        prepare=workers(three, "AB", deadline=timedelta(minutes=1)),
        steps=("s1", "s2", "s3"),
        budgets=({"alarm": 2}, {"alarm": 1, "lost": 1}, {"alarm": 1, "skew": 1}),
    ),
    Scenario(
        name="branches",
        prepare=workers(branches, "AB"),
        steps=("left/s1", "right/s2", "s3"),
        budgets=({"crash": 1}, {"skew": 1}, {"lost": 1}),
    ),
    Scenario(
        name="cancelled",
        prepare=with_operator(lambda executor: executor.cancel(RUN)),
        steps=("s1", "s2", "s3"),
        budgets=({"lost": 1}, {"skew": 1}, {"crash": 1, "late": 1}),
        may_end=(CANCELLED,),
    ),
    Scenario(
        name="skipped",
        prepare=with_operator(lambda executor: executor.skip(RUN, "s2", output="by hand"), once_left_in="s2"),
        steps=("s1", "s2", "s3"),
        budgets=({"crash": 1}, {"skew": 1}, {"outage": 1, "crash": 1}, {"lost": 1, "pause": 1}),
    ),
    Scenario(
        name="resumed",
        prepare=resumed,
        steps=("flaky", "s2"),
        budgets=({"crash": 1}, {"skew": 1}, {"lost": 1}, {"pause": 1, "outage": 1}),
        resumes=True,
    ),
    Scenario(
        name="reuse, old records",
        prepare=reused("AB", "p", "s1"),
        steps=("p", "s1"),
        budgets=({"lost": 1, "crash": 1}, {"late": 1}, {"skew": 1}),
    ),
    Scenario(
        name="reuse, zombie",
        prepare=reused("ZAB"),
        steps=("p", "s1"),
        budgets=({}, {"lost": 1}, {"late": 1}, {"skew": 1}),
        extra=1,
    ),
)
