"""Runs for pages: `python reported.py FOLDER` leaves runs.db there, with one run of each sort."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sqlite3
import sys
from pathlib import Path

from durable_core import Context, DurableWorkflowExecutor, Retry, configure_logging, step, workflow
from durable_core.errors import RunFailed

OWNED = "</script><script>document.title = 'owned'</script><img src=x onerror=\"document.title = 'owned'\">"
STEPS = 10_000
calls: list[int] = []


@step
async def hostile(text: str) -> dict[str, str]:
    return {text: text}


@step(retry=Retry(max_attempts=3, initial_delay_s=0.02))
async def flaky() -> int:
    calls.append(1)
    if len(calls) < 3:
        raise ConnectionError("the line is dead")
    return len(calls)


@step
async def item(text: str) -> str:
    if OWNED in text:
        raise KeyError(text)
    return text


@step
async def nap(n: int) -> str:
    await asyncio.sleep(0.02 * n)
    return "z" * n * 1_000


@step
async def refuse(text: str) -> None:
    raise ValueError(text)


async def naps(ctx: Context, least: int) -> None:
    for n in range(least, least + 4):
        await ctx.step(nap, n)


@workflow
async def odd(ctx: Context, text: str) -> None:
    await ctx.step(hostile, text)
    await ctx.step(flaky)
    await ctx.parallel(ctx.branch(naps, 1), ctx.branch(naps, 3))
    names = [*(f"d{n}" for n in range(30)), text]
    await ctx.map(item, names, key=lambda name: name, tolerate_failures=1, max_concurrency=4)
    await ctx.step(refuse, text)


@step
async def deadly() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@workflow
async def dying(ctx: Context) -> None:
    await ctx.step(nap, 1)
    await ctx.step(deadly)


@step(pure=True)
async def note(n: int) -> dict[str, int]:
    return {"n": n}


async def notes(ctx: Context, count: int) -> None:
    for n in range(count):
        await ctx.step(note, n)


@workflow
async def many(ctx: Context, steps: int) -> None:
    await ctx.parallel(*(ctx.branch(notes, steps // 10) for _ in range(10)))


def main(folder: Path) -> None:
    configure_logging(level="critical")
    executor = DurableWorkflowExecutor(store=f"sqlite:///{folder / 'runs.db'}")
    with contextlib.suppress(RunFailed):
        executor.run_sync(odd, run_id="odd", text=OWNED)
    executor.run_sync(many, run_id="many", steps=STEPS)
    executor.run_sync(many, run_id="damaged", steps=20)
    with sqlite3.connect(folder / "runs.db") as connection:
        connection.execute(
            "UPDATE checkpoints SET status = ? WHERE step_id = 'notes/note#2' AND run_id = 'damaged'",
            (OWNED,),
        )
        connection.execute(
            "UPDATE checkpoints SET step_id = ? WHERE step_id = 'notes/note' AND run_id = 'damaged'",
            (f"{OWNED}/x",),
        )
    executor.run_sync(dying, run_id="dying")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
