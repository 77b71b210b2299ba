"""Runs with records and blobs of every kind, and what a prune leaves of them."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from durable_core import Context, DurableWorkflowExecutor, step, workflow
from durable_core.blobs.base import blob_ref
from durable_core.records import COMPLETED, Child, Event, RunHeader, Segment


class Leftovers(NamedTuple):
    """What the store still has of a run."""

    header: RunHeader | None
    children: list[Child]
    blobs: set[str]


def noise(size_bytes: int, seed: object = 0) -> bytes:
    """Bytes that don't compress."""
    parts = range(size_bytes // 32 + 1)
    return b"".join(hashlib.sha256(f"{seed}:{n}".encode()).digest() for n in parts)[:size_bytes]


@step
async def large(number: int) -> bytes:
    return noise(10_000, number)


@step
async def small(number: int) -> int:
    return number


@workflow
async def ample(ctx: Context, ballast: bytes, larges: int = 3) -> bytes:
    """Large inputs, steps with small and with large outputs, and a large output."""
    total = b""
    for number in range(larges):
        total += await ctx.step(large, number)
        await ctx.step(small, number)
    return total + ballast[:1]


AMPLE_RECORDS = 6 + 3  # its steps; two segments and an event
AMPLE_BLOBS = 3 + 2 + 2 + 1  # of steps, input and output, of a segment, of the event


async def run_ample(executor: DurableWorkflowExecutor, run_id: str) -> None:
    """Runs it to its end, and puts segments and an event under it as well."""
    result = await executor.run(ample, run_id=run_id, ballast=noise(10_000, run_id))
    assert result.status == COMPLETED
    journal = executor.store.journal
    header = await journal.header(run_id)
    assert header is not None
    refs = [await put_blob(executor, run_id, f"item{n}") for n in range(3)]
    for seq, named in enumerate((None, f'["{refs[0]}","{refs[1]}"]')):
        segment = Segment(run_id, "map", 0, seq, f"{run_id}.{seq}", header.fence, items=2, refs=named)
        assert (await journal.append(segment)).ok
    event = Event(run_id, "approval", 0, "e1", header.base_fence + 1, ref=refs[2])
    assert (await journal.send(event, header)).ok


async def put_blob(executor: DurableWorkflowExecutor, run_id: str, attempt_id: str) -> str:
    """A blob that nothing points to yet."""
    data = noise(9_000, attempt_id)
    ref = blob_ref(run_id, attempt_id, data)
    await executor.store.blobs.put(ref, data)
    return ref


async def left_of(executor: DurableWorkflowExecutor, run_id: str) -> Leftovers:
    journal, blobs = executor.store.journal, executor.store.blobs
    return Leftovers(
        await journal.header(run_id),
        [child async for page in journal.children(run_id) for child in page],
        {ref async for ref in blobs.refs(run_id)},
    )
