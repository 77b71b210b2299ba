"""What processes do while they are killed: steps, branches, maps, waits, agent checkpoints, a prune.

What the Lambda functions do is in `functions`.
"""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

from durable_core import Context, DurableWorkflowExecutor, NotDone, Retry, current_step, step, workflow
from durable_core.checkpointer import Checkpointer
from durable_core.engine.executor import DEFAULT_LEASE_S as LEASE_S
from durable_core.errors import RunNotFound
from durable_core.records import SUSPENDED
from durable_core.settings import CheckpointingConfig
from durable_core.testing.crash_trials import Act
from tests.crashes.passing import lets_pass, passes

RUN = "r1"


def noise(number: int) -> bytes:
    """12 KB that don't compress: a blob."""
    return b"".join(hashlib.sha256(f"{number}:{part}".encode()).digest() for part in range(384))


@step
async def small(number: int) -> int:
    await asyncio.sleep(0)  # so that it can be stopped
    return number + 1


@step
async def large(number: int) -> bytes:
    return noise(number)


@step(pure=True)
async def pure(number: int) -> int:
    return number * 2


@step(retry=Retry(max_attempts=3, initial_delay_s=0))
async def moody(number: int) -> int:
    if current_step().attempt == 1:
        raise ValueError("as planned")
    return number + 1


def was_done(key: str, number: int) -> NotDone:
    return NotDone()


@step(semantics="at_most_once", verify=was_done)
async def verified(number: int) -> int:
    return number + 1


@step(semantics="at_most_once")
async def once(number: int) -> int:
    return number + 1


@workflow
async def in_a_row(ctx: Context) -> list[Any]:
    """Each kind of step, one after the other."""
    found: list[Any] = [await ctx.step(small, 1), await ctx.step(large, 2), await ctx.step(pure, 3)]
    found += [await ctx.step(verified, 4), await ctx.step_if(False, small, 5), await ctx.step(once, 6)]
    return [found[0], hashlib.sha256(found[1]).hexdigest(), *found[2:], str(ctx.uuid4())]


@workflow
async def retried(ctx: Context) -> int:
    """A step that raises at first."""
    return await ctx.step(moody, await ctx.step(small, 1))


async def left(ctx: Context, number: int) -> int:
    return await ctx.step(small, await ctx.step(small, number))


async def right(ctx: Context, number: int) -> bytes:
    return await ctx.step(large, number)


@workflow
async def in_branches(ctx: Context) -> list[Any]:
    """Two branches, and two steps side by side."""
    one, other = await ctx.parallel(ctx.branch(left, 1), ctx.branch(right, 2))
    both = await asyncio.gather(ctx.step(small, one), ctx.step(pure, one))
    return [*both, hashlib.sha256(other).hexdigest()]


@step
async def item(number: int) -> int | bytes:
    await asyncio.sleep(0)
    return noise(number) if number == 4 else number * 3


async def with_steps(ctx: Context, number: int) -> int:
    return await ctx.step(small, number)


@workflow
async def in_maps(ctx: Context) -> list[Any]:
    """Items that are packed in several segments, one with an output of its own, and items with steps."""
    batch = await ctx.map(item, range(7), max_concurrency=2)
    inside = await ctx.map(with_steps, range(2), key=str, max_concurrency=1)
    outputs = [one if isinstance(one, int) else len(one) for one in batch.outputs]
    return [*outputs, *inside.outputs]


@workflow
async def in_shared_maps(ctx: Context) -> list[int]:
    """Two chunks, the second of which is short, and items with steps."""
    batch = await ctx.map(small, range(3), distribute=True, chunk_size=2, max_concurrency=1)
    inside = await ctx.map(with_steps, range(2), distribute=True, chunk_size=1, max_concurrency=1)
    return [*batch.outputs, *inside.outputs]


SHARED = {"small": 2, "with_steps": 2}
"""The chunks of its maps."""


@step
async def long(number: int) -> int:
    passes(LEASE_S + 1)
    return number + 1


@workflow
async def in_many_leases(ctx: Context) -> list[int]:
    """Each body takes longer than a lease."""
    first = await ctx.step(long, await ctx.step(long, 1))
    batch = await ctx.map(long, range(2), distribute=True, chunk_size=2, max_concurrency=1)
    return [first, *batch.outputs]


@workflow
async def waiting(ctx: Context) -> list[Any]:
    """Two events of one name, a time in between."""
    first = await ctx.wait_for_event("go", type=str)
    await ctx.sleep(0.001)
    second = await ctx.wait_for_event("go", type=str)
    return [first, second, await ctx.step(small, 1)]


async def run_in_a_row(executor: DurableWorkflowExecutor) -> object:
    return (await executor.run(in_a_row, run_id=RUN)).output


async def run_retried(executor: DurableWorkflowExecutor) -> object:
    return (await executor.run(retried, run_id=RUN)).output


async def run_in_branches(executor: DurableWorkflowExecutor) -> object:
    return (await executor.run(in_branches, run_id=RUN)).output


async def run_in_maps(executor: DurableWorkflowExecutor) -> object:
    return (await executor.run(in_maps, run_id=RUN)).output


async def run_in_shared_maps(executor: DurableWorkflowExecutor) -> object:
    """The process that drives the run works on all chunks."""
    return (await executor.run(in_shared_maps, run_id=RUN)).output


async def share_maps(executor: DurableWorkflowExecutor) -> object:
    """Drives the run whenever it may be, and works on its chunks meanwhile, as a worker does."""
    while True:
        result = await executor.run(in_shared_maps, run_id=RUN, on_wait="suspend")
        if result.status != SUSPENDED:
            return result.output
        done = [
            await executor.work_chunk(RUN, name, chunk)
            for name, chunks in SHARED.items()
            for chunk in range(chunks)
        ]
        if not any(one.items for one in done):  # somebody else is at work on the rest
            await executor._tools.clock.sleep(1)


async def run_in_many_leases(executor: DurableWorkflowExecutor) -> object:
    with lets_pass(executor._tools.clock):
        return (await executor.run(in_many_leases, run_id=RUN)).output


async def send_and_wait(executor: DurableWorkflowExecutor) -> object:
    """Sends what the run waits for, twice, as whoever wants to be sure; drives it whenever it may be."""
    for event in ("first", "second"):
        result = await executor.run(waiting, run_id=RUN, on_wait="suspend")
        if result.status != SUSPENDED:
            return result.output
        for _ in range(2):
            await executor.signal(RUN, "go", event, event_id=event)
    while True:
        result = await executor.run(waiting, run_id=RUN, on_wait="suspend")
        if result.status != SUSPENDED:
            return result.output
        await asyncio.sleep(0.005)


async def drive_while_due(executor: DurableWorkflowExecutor) -> object:
    """Drives the run to where it waits; what it waits for is there by then, or comes from somebody else."""
    result = await executor.run(waiting, run_id=RUN, on_wait="suspend")
    await send_both(executor)
    while result.status == SUSPENDED:
        if RUN not in {header.run_id for header in await executor.store.journal.due()}:
            return "asleep, with all that it waits for at hand"
        result = await executor.run(waiting, run_id=RUN, on_wait="suspend")
    return result.output


async def send_the_first(executor: DurableWorkflowExecutor) -> object:
    return await executor.signal(RUN, "go", "first", event_id="first", early=True)


async def send_both(executor: DurableWorkflowExecutor) -> object:
    await executor.signal(RUN, "go", "first", event_id="first", early=True)
    return await executor.signal(RUN, "go", "second", event_id="second", early=True)


async def save_checkpoints(executor: DurableWorkflowExecutor) -> object:
    """Saves what isn't saved yet of an agent's states, small and large, and lets the oldest go."""
    config = CheckpointingConfig(enabled=True, retention_per_session=2)
    checkpointer = Checkpointer(config, executor.store)

    def save() -> list[Any]:
        for number in range(4):
            latest = checkpointer.load_latest("s1")
            if latest is None or latest.state["number"] < number:
                state = {"number": number, "noise": noise(number).hex() if number % 2 else ""}
                checkpointer.save("s1", "agent", f"step{number}", state)
        checkpointer.prune("s1", 2)
        kept = checkpointer.list("s1")
        return [[one.step_id, checkpointer.load_by_step("s1", one.step_id) is not None] for one in kept]

    saving = asyncio.ensure_future(asyncio.to_thread(save))
    try:
        return await asyncio.shield(saving)
    except asyncio.CancelledError:
        await saving  # a thread goes on
        raise


async def prune_checkpoints(executor: DurableWorkflowExecutor) -> object:
    checkpointer = Checkpointer(CheckpointingConfig(enabled=True), executor.store)
    return (await asyncio.to_thread(checkpointer.prune, "s1", 2)) is not None


async def run_with_agents(executor: DurableWorkflowExecutor) -> object:
    """A run whose steps are saved as checkpoints of a session."""
    saving = DurableWorkflowExecutor(
        executor.store, checkpointing=CheckpointingConfig(enabled=True), clock=executor._tools.clock
    )
    output = (await saving.run(retried, run_id=RUN, session_id="s1")).output
    checkpointer = Checkpointer(CheckpointingConfig(enabled=True), executor.store)
    latest = await asyncio.to_thread(checkpointer.load_latest, "s1")
    assert latest is not None
    return [output, latest.step_id]


async def prune(executor: DurableWorkflowExecutor) -> object:
    try:
        await executor.prune(run_ids=[RUN])
    except RunNotFound:
        return "gone"
    return "gone"


ACTS = {
    "steps": Act(run_in_a_row, RUN),
    "retries": Act(run_retried, RUN),
    "branches": Act(run_in_branches, RUN),
    "maps": Act(run_in_maps, RUN),
    "shared maps": Act(run_in_shared_maps, RUN, takes_long=True),
    "chunks": Act(share_maps, RUN, takes_long=True),
    "renewals": Act(run_in_many_leases, RUN, takes_long=True),
    "waits": Act(send_and_wait, RUN),
    "signals": Act(drive_while_due, RUN, before=send_the_first, meanwhile=send_both),
    "agents": Act(run_with_agents, RUN),
    "checkpoints": Act(save_checkpoints, RUN, meanwhile=prune_checkpoints),
    "prune": Act(prune, RUN, before=run_in_maps),
}
