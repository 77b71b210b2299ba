"""Sequential steps on SQLite: how fast they are written, how large they are, how fast a run comes back.

    python scripts/bench/steps.py            the figures for the README: a few minutes
    python scripts/bench/steps.py --quick    a tenth of it, to see whether something got worse
    python scripts/bench/steps.py --json     for machines

Ours and the floor (floor.py: bare sqlite3 with the same records and fsyncs) take turns in one process, each
round on a file of its own; a ratio is taken within its pair, so that a machine that slows down slows both.
Times are printed beside their targets, never asserted.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if __package__ in (None, ""):  # started as a file: the checkout isn't on the path yet
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from durable_core import Context, DurableWorkflowExecutor, configure_logging, step, workflow
from scripts.bench import floor, journals
from scripts.bench.report import Figure, machine, peak_rss_mib, show, spread

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

TICK_S: Final = 0.001


class Scale(NamedTuple):
    """How much of everything."""

    pairs: int
    steps: int
    resumed: tuple[int, ...]
    resumes: int


FULL: Final = Scale(pairs=9, steps=2000, resumed=(1000, 100_000), resumes=5)
QUICK: Final = Scale(pairs=5, steps=500, resumed=(1000, 10_000), resumes=3)
# By the number of resumed steps: milliseconds, and times the bare loop.
_MOST_MS: Final = {1000: 20.0}
_MOST_X: Final = {100_000: 3.0}

_bodies = 0
_outputs: list[str] = []
_stopped_at_once = False  # the run is to exist, without steps


@step(name=floor.STEP_NAME)
async def draw(index: int) -> str:
    """A body that does nothing but give an output that was there before the clock started."""
    global _bodies
    _bodies += 1
    return _outputs[index]


@workflow(name="bench_steps")
async def sequential(ctx: Context, steps: int) -> int:
    """Steps one after the other; gives the length of all outputs together."""
    total = 0
    for index in range(0 if _stopped_at_once else steps):
        total += len(await ctx.step(draw, index))
    return total


class Written(NamedTuple):
    """A round of new steps: seconds, and bytes on disk a step."""

    took_s: float
    bytes_per_step: float


async def ours_written(path: Path, steps: int, *, stalls: list[float] | None = None) -> Written:
    """Runs new steps through the engine, in a file of its own."""
    global _bodies
    _bodies = 0
    async with DurableWorkflowExecutor(db_path=path) as executor, _ticking(stalls):
        began = time.perf_counter()
        result = await executor.run(sequential, run_id=floor.RUN_ID, steps=steps)
        took_s = time.perf_counter() - began
    _check(_bodies == steps and result.counts == {"COMMITTED": steps}, f"{_bodies} of {steps} bodies ran")
    return Written(took_s, floor.size_bytes(path) / steps)


async def floor_written(path: Path, steps: int) -> Written:
    """Runs as many at the floor."""
    took_s = await floor.write(path, steps)
    return Written(took_s, floor.size_bytes(path) / steps)


async def ours_resumed(path: Path, steps: int, *, stalls: list[float] | None = None) -> float:
    """Resumes a run whose steps are all committed, by an executor that has not seen it; gives the seconds."""
    global _bodies
    _bodies = 0
    journals.reopen(path, floor.RUN_ID)
    async with DurableWorkflowExecutor(db_path=path) as executor, _ticking(stalls):
        began = time.perf_counter()
        result = await executor.resume(floor.RUN_ID, sequential)
        took_s = time.perf_counter() - began
    _check(_bodies == 0, f"{_bodies} bodies ran again")
    _check(result.output == steps * (floor.OUTPUT_BYTES - 2), "the outputs did not all come back")
    return took_s


async def measure_writing(folder: Path, scale: Scale) -> list[Figure]:
    """New steps: ours and the floor in turn."""
    ours, bare = list[Written](), list[Written]()
    for pair in range(-1, scale.pairs):  # the first warms both up, and doesn't count
        first = await floor_written(folder / f"floor{pair}.db", scale.steps) if pair % 2 else None
        mine = await ours_written(folder / f"ours{pair}.db", scale.steps)
        other = first or await floor_written(folder / f"floor{pair}.db", scale.steps)
        if pair >= 0:
            ours.append(mine)
            bare.append(other)
    stalls: list[float] = []
    await ours_written(folder / "stall.db", scale.steps, stalls=stalls)
    pairs = list(zip(ours, bare, strict=True))
    count = scale.steps
    return [
        Figure(name="floor, steps per s", unit="/s", value=spread([count / one.took_s for one in bare])),
        Figure(name="ours, steps per s", unit="/s", value=spread([count / one.took_s for one in ours])),
        Figure(
            name="steps per s, ours to floor", unit="x", target=0.70, better="more",
            value=spread([other.took_s / mine.took_s for mine, other in pairs]),
        ),
        Figure(
            name="overhead per step", unit="us",
            value=spread([(mine.took_s - other.took_s) / count * 1e6 for mine, other in pairs]),
        ),
        Figure(name="floor, bytes per step", unit="B", value=spread([one.bytes_per_step for one in bare])),
        Figure(name="ours, bytes per step", unit="B", value=spread([one.bytes_per_step for one in ours])),
        Figure(
            name="bytes per step, ours to floor", unit="x", target=1.15,
            value=spread([mine.bytes_per_step / other.bytes_per_step for mine, other in pairs]),
        ),
        Figure(name="longest stall while steps run", unit="ms", value=spread([max(stalls) * 1000])),
        Figure(name="peak memory so far", unit="MiB", value=spread([peak_rss_mib()])),
    ]  # fmt: skip


async def measure_resuming(folder: Path, steps: int, times: int) -> list[Figure]:
    """Committed steps: resumed, and read by the bare loop, in turn."""
    path = folder / f"resume{steps}.db"
    await make_run(path, steps)
    await ours_resumed(path, steps)  # shows whatever is wrong with the records, and warms the file's cache
    ours, bare = list[float](), list[float]()
    for _ in range(times):
        count, bare_s = floor.read(path)
        _check(count == steps, f"the bare loop read {count} of {steps} steps")
        bare.append(bare_s)
        ours.append(await ours_resumed(path, steps))
    stalls: list[float] = []
    await ours_resumed(path, steps, stalls=stalls)
    return [
        Figure(name=f"bare loop over {steps:,} steps", unit="ms", value=spread([one * 1000 for one in bare])),
        Figure(
            name=f"resume of {steps:,} steps", unit="ms", target=_MOST_MS.get(steps),
            value=spread([one * 1000 for one in ours]),
        ),
        Figure(
            name=f"resume of {steps:,}, ours to bare loop", unit="x", target=_MOST_X.get(steps),
            value=spread([mine / other for mine, other in zip(ours, bare, strict=True)]),
        ),
        Figure(name=f"longest stall while {steps:,} resume", unit="ms", value=spread([max(stalls) * 1000])),
        Figure(name=f"peak memory after {steps:,}", unit="MiB", value=spread([peak_rss_mib()])),
    ]  # fmt: skip


async def make_run(path: Path, steps: int) -> None:
    """A run with committed steps and no end."""
    global _stopped_at_once
    _stopped_at_once = True
    try:
        async with DurableWorkflowExecutor(db_path=path) as executor:
            await executor.run(sequential, run_id=floor.RUN_ID, steps=steps)
    finally:
        _stopped_at_once = False
    journals.fill(path, floor.RUN_ID, floor.STEP_NAME, _outputs[:steps])


async def measure(folder: Path, scale: Scale) -> list[Figure]:
    """All of it. Memory is the process's peak, so what needs most of it comes last."""
    _outputs[:] = floor.outputs(max(scale.steps, *scale.resumed))
    figures = await measure_writing(folder, scale)
    for steps in scale.resumed:
        figures += await measure_resuming(folder, steps, scale.resumes)
    return figures


@asynccontextmanager
async def _ticking(stalls: list[float] | None) -> AsyncIterator[None]:
    """Notes how much later than asked for the event loop came round, every millisecond."""
    if stalls is None:
        yield
        return

    async def tick() -> None:
        while True:
            began = time.perf_counter()
            await asyncio.sleep(TICK_S)
            stalls.append(max(0.0, time.perf_counter() - began - TICK_S))

    ticker = asyncio.create_task(tick())
    await asyncio.sleep(2 * TICK_S)  # it ticks before there is anything to measure
    try:
        yield
        await asyncio.sleep(2 * TICK_S)  # the stall that is going on ends in a tick
    finally:
        ticker.cancel()


def _check(condition: bool, otherwise: str) -> None:
    """A figure of something that went wrong is no figure."""
    if not condition:
        raise RuntimeError(f"the benchmark does not measure what it claims: {otherwise}")


def main(arguments: list[str] | None = None, scale: Scale | None = None) -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description="Sequential steps on SQLite, beside the floor.")
    parser.add_argument("--quick", action="store_true", help="smaller and fewer rounds")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--folder", type=Path, help="where to put the files; a temporary folder if not given")
    options = parser.parse_args(arguments)
    scale = scale or (QUICK if options.quick else FULL)
    with tempfile.TemporaryDirectory(prefix="durable-bench-", dir=options.folder) as folder:
        about = machine(Path(folder))
        show(about, asyncio.run(measure(Path(folder), scale)), as_json=options.json)


if __name__ == "__main__":
    configure_logging(level="error")  # not a line for each of the runs, above the table
    main()
