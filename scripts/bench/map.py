"""Maps on SQLite: items per second, journal writes and write units per item, growth, memory.

    python scripts/bench/map.py            a minute or two
    python scripts/bench/map.py --quick    less of everything
    python scripts/bench/map.py --full     with a million items, in growth and in memory: many minutes
    python scripts/bench/map.py --json     for machines

No-op items and the floor (map_floor.py: the same segments by bare sqlite3) take turns, each round on a file
of its own; a ratio is taken within its pair. Real-shaped items really sleep for 1 to 3 seconds, those of all
shapes side by side, since they leave the machine idle. What they need of the store is told in the units that
DynamoDB would charge for the same segments: one for each KB of a segment that was begun. Memory is that of a
process of its own. Times are printed beside their targets, never asserted.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import random
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

if __package__ in (None, ""):  # started as a file: the checkout isn't on the path yet
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from durable_core import Context, DurableWorkflowExecutor, Jsonl, configure_logging, step, workflow
from durable_core.records import Segment
from scripts.bench import floor, map_floor
from scripts.bench.report import Figure, machine, peak_rss_mib, show, spread

CONCURRENCY: Final = 32
UNIT_BYTES: Final = 1024
MOST_MIB: Final = 286.0  # 300 MB
SHAPES: Final = tuple((size, linger_ms) for size in (200, 2000) for linger_ms in (0, 1000))


class Scale(NamedTuple):
    """How much of everything.

    Attributes:
        pairs, items: Rounds of no-op items beside the floor, and items in each.
        growth: Numbers of items by which the cost of one is compared.
        large: Items of the run whose memory is measured.
        shaped: Real-shaped items of each shape.
        seconds: How long one of those takes, at least and at most.
    """

    pairs: int
    items: int
    growth: tuple[int, ...]
    large: int
    shaped: int
    seconds: tuple[float, float] = (1.0, 3.0)


NORMAL: Final = Scale(pairs=7, items=10_000, growth=(1000, 10_000, 100_000), large=100_000, shaped=160)
QUICK: Final = Scale(pairs=5, items=5_000, growth=(1000, 10_000), large=20_000, shaped=64)
FULL: Final = Scale(
    pairs=9, items=10_000, growth=(1000, 10_000, 100_000, 1_000_000), large=1_000_000, shaped=960
)
_GROWTH_ROUNDS: Final = 5  # of the smaller numbers; the largest is run once
_DURABILITY: Final = "WAL, wal_autocheckpoint 500; synchronous FULL for segments: one fsync each"

_bodies = 0
_read_s = 0.0
_outputs: dict[int, list[str]] = {}


@step(name=map_floor.MAP_ID)
async def noop(index: int) -> int:
    """A body that does nothing."""
    global _bodies
    _bodies += 1
    return index


@step
async def work(index: int, size: int, seconds: tuple[float, float]) -> str:
    """A body that waits for somebody else."""
    await asyncio.sleep(random.Random(index).uniform(*seconds))  # as long in every shape
    return _outputs[size][index]


@step
async def take(record: dict[str, int]) -> int:
    """A body that reads a line of a manifest."""
    return record["id"]


@workflow(name="bench_map")
async def mapped(ctx: Context, items: int) -> int:
    """No-op items."""
    batch = await ctx.map(noop, range(items), max_concurrency=CONCURRENCY)
    return batch.succeeded


@workflow(name="bench_shaped")
async def shaped(ctx: Context, items: int, size: int, linger_ms: int, seconds: tuple[float, float]) -> int:
    """Real-shaped items."""
    each = partial(work, size=size, seconds=seconds)
    batch = await ctx.map(each, range(items), max_concurrency=CONCURRENCY, linger_ms=linger_ms)
    return batch.succeeded


@workflow(name="bench_manifest")
async def from_manifest(ctx: Context, manifest: str) -> int:
    """Items from a file; their outputs are read back in order."""
    global _read_s
    batch = await ctx.map(take, Jsonl(manifest), max_concurrency=CONCURRENCY)
    began = time.perf_counter()
    for at, item in enumerate(batch.iter()):
        _check(item.output == at, f"item {at} came back as {item.output}")
    _read_s = time.perf_counter() - began
    return batch.succeeded


class Written(NamedTuple):
    """A round of no-op items: seconds, those of the processor, items by segment, and all records written."""

    took_s: float
    cpu_s: float
    sizes: list[int]
    writes: int


async def ours_written(path: Path, items: int) -> Written:
    """Maps new items through the engine, in a file of its own."""
    global _bodies
    _bodies = 0
    async with DurableWorkflowExecutor(db_path=path) as executor:
        began, cpu_began = time.perf_counter(), time.process_time()
        result = await executor.run(mapped, run_id=floor.RUN_ID, items=items)
        took_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu_began
    _check(_bodies == items == result.output, f"{_bodies} of {items} bodies ran")
    sizes = [one.items for one in _segments(path)]
    writes = len(sizes) + 4  # two of the map's own record, two of the run's header
    return Written(took_s, cpu_s, sizes, writes)


async def measure_noop(folder: Path, scale: Scale) -> list[Figure]:
    """No-op items: ours and the floor in turn."""
    pairs = list[tuple[Written, float]]()
    sizes: list[int] = (await ours_written(folder / "warm.db", scale.items)).sizes
    for pair in range(-1, scale.pairs):  # the first warms both up, and doesn't count
        bare_s = await map_floor.write(folder / f"floor{pair}.db", sizes) if pair % 2 else None
        mine = await ours_written(folder / f"ours{pair}.db", scale.items)
        sizes = mine.sizes
        if bare_s is None:
            bare_s = await map_floor.write(folder / f"floor{pair}.db", sizes)
        if pair >= 0:
            pairs.append((mine, bare_s))
    count = scale.items
    return [
        Figure(name="floor, items per s", unit="/s", value=spread([count / bare for _, bare in pairs])),
        Figure(
            name="ours, items per s", unit="/s", target=20_000, better="more",
            value=spread([count / mine.took_s for mine, _ in pairs]),
        ),
        Figure(
            name="items per s, ours to floor", unit="x",
            value=spread([bare / mine.took_s for mine, bare in pairs]),
        ),
        Figure(
            name="overhead per item", unit="us",
            value=spread([(mine.took_s - bare) / count * 1e6 for mine, bare in pairs]),
        ),
        Figure(
            name="processor time per item", unit="us",
            value=spread([mine.cpu_s / count * 1e6 for mine, _ in pairs]),
        ),
        Figure(
            name="journal writes per item", unit="", target=0.1,
            value=spread([mine.writes / count for mine, _ in pairs]),
        ),
    ]  # fmt: skip


async def measure_growth(folder: Path, scale: Scale) -> list[Figure]:
    """What an item costs in a small map and in a large one."""
    figures, medians = list[Figure](), list[float]()
    for items in scale.growth:
        rounds = 1 if items == scale.growth[-1] else _GROWTH_ROUNDS
        took = [
            (await ours_written(folder / f"growth{items}-{n}.db", items)).took_s / items * 1e6
            for n in range(rounds)
        ]
        value = spread(took)
        medians.append(value.median)
        figures.append(Figure(name=f"cost of an item among {items:,}", unit="us", value=value))
    few, many = scale.growth[0], scale.growth[-1]
    ratio = spread([medians[-1] / medians[0]])
    return [*figures, Figure(name=f"growth from {few:,} to {many:,}", unit="x", value=ratio, target=1.3)]


# ---- Real-shaped items ----


async def measure_shaped(folder: Path, scale: Scale) -> list[Figure]:
    """What items of 1 to 3 seconds need of the store."""
    for size in {size for size, _ in SHAPES}:
        _outputs[size] = texts(scale.shaped, size)
    found = await asyncio.gather(*(_shaped(folder, scale, *shape) for shape in SHAPES))
    return [figure for figures in found for figure in figures]


async def _shaped(folder: Path, scale: Scale, size: int, linger_ms: int) -> list[Figure]:
    path = folder / f"shaped{size}-{linger_ms}.db"
    async with DurableWorkflowExecutor(db_path=path) as executor:
        bound = shaped.bind(items=scale.shaped, size=size, linger_ms=linger_ms, seconds=scale.seconds)
        result = await executor.run(bound, run_id=floor.RUN_ID)
    _check(result.output == scale.shaped, f"{result.output} of {scale.shaped} items came out")
    return _stored(f"{size} B, linger {linger_ms} ms", _segments(path), scale.shaped, linger_ms)


def texts(count: int, size: int) -> list[str]:
    """Random texts whose JSON has so many bytes; of what they hold, compression can spare a quarter."""
    drawn = random.Random(size)
    return [base64.b64encode(drawn.randbytes(size))[: size - 2].decode() for _ in range(count)]


def _stored(what: str, segments: list[Segment], items: int, linger_ms: int) -> list[Figure]:
    raw = sum(one.size or 0 for one in segments)
    packed = sum(len(one.data or b"") for one in segments)
    units = sum(units_of(one) for one in segments)
    return [
        Figure(name=f"{what}: items per segment", unit="", value=spread([items / len(segments)])),
        Figure(name=f"{what}: raw bytes per item", unit="B", value=spread([raw / items])),
        Figure(name=f"{what}: packed bytes per item", unit="B", value=spread([packed / items])),
        Figure(name=f"{what}: write units per item", unit="", value=spread([units / items])),
        Figure(
            name=f"{what}: units x 1 KB to raw bytes", unit="x", target=1.1 if linger_ms else None,
            value=spread([units * UNIT_BYTES / raw]),
        ),
        Figure(
            name=f"{what}: units x 1 KB to packed bytes", unit="x",
            value=spread([units * UNIT_BYTES / packed]),
        ),
    ]  # fmt: skip


def units_of(segment: Segment) -> int:
    """The write units of a segment's put on DynamoDB: one a KB begun, of the names and values it holds."""
    keys = {
        "pk": f"RUN#{segment.run_id}",
        "sk": f"SEG#{segment.step_id}!{segment.chunk:08d}!{segment.seq:08d}",
    }
    size = sum(len(name) + _size_of(value) for name, value in {**segment._asdict(), **keys}.items())
    return -(-size // UNIT_BYTES)


def _size_of(value: str | bytes | int | None) -> int:
    if value is None:  # not written
        return 0
    if isinstance(value, int):
        return (len(str(value)) + 1) // 2 + 1
    return len(value)


def _segments(path: Path) -> list[Segment]:
    """The segments with outcomes that a run has left, in order."""
    query = f"SELECT {', '.join(Segment._fields)} FROM segments WHERE items > 0 ORDER BY seq"  # noqa: S608 - names only
    with closing(sqlite3.connect(path)) as connection:
        return [Segment._make(row) for row in connection.execute(query)]


# ---- Memory ----


def measure_memory(folder: Path, scale: Scale) -> list[Figure]:
    """Many items from a manifest, and their outputs read back, in a process of its own."""
    manifest = folder / "items.jsonl"
    with manifest.open("w", encoding="utf-8") as file:
        file.writelines(f'{{"id": {n}}}\n' for n in range(scale.large))
    command = [sys.executable, __file__, "--manifest", str(manifest)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found = json.loads(done.stdout)
    _check(found["items"] == scale.large, f"{found['items']} of {scale.large} items came out")
    of = f"{scale.large:,} items from JSONL"
    return [
        Figure(
            name=f"{of}: per s", unit="/s", value=spread([scale.large / found["took_s"]]), better="more"
        ),
        Figure(name=f"{of}: read back per s", unit="/s", value=spread([scale.large / found["read_s"]])),
        Figure(name=f"{of}: peak memory", unit="MiB", value=spread([found["peak_mib"]]), target=MOST_MIB),
        Figure(name=f"{of}: on disk per item", unit="B", value=spread([found["size_bytes"] / scale.large])),
    ]  # fmt: skip


async def _map_manifest(manifest: Path) -> dict[str, float]:
    path = manifest.with_name("manifest.db")
    async with DurableWorkflowExecutor(db_path=path) as executor:
        began = time.perf_counter()
        result = await executor.run(from_manifest, run_id=floor.RUN_ID, manifest=str(manifest))
        took_s = time.perf_counter() - began - _read_s
    return {
        "items": result.output,
        "took_s": took_s,
        "read_s": _read_s,
        "peak_mib": peak_rss_mib(),
        "size_bytes": floor.size_bytes(path),
    }


async def measure(folder: Path, scale: Scale) -> list[Figure]:
    """All of it."""
    figures = await measure_noop(folder, scale)
    figures += await measure_shaped(folder, scale)
    figures += await measure_growth(folder, scale)
    return figures + await asyncio.to_thread(measure_memory, folder, scale)


def _check(condition: bool, otherwise: str) -> None:
    """A figure of something that went wrong is no figure."""
    if not condition:
        raise RuntimeError(f"the benchmark does not measure what it claims: {otherwise}")


def main(arguments: list[str] | None = None, scale: Scale | None = None) -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description="Maps on SQLite, beside the floor.")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="smaller and fewer rounds")
    size.add_argument("--full", action="store_true", help="with a million items: many minutes")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--folder", type=Path, help="where to put the files; a temporary folder if not given")
    parser.add_argument("--manifest", type=Path, help=argparse.SUPPRESS)  # the process of its own
    options = parser.parse_args(arguments)
    if options.manifest is not None:
        print(json.dumps(asyncio.run(_map_manifest(options.manifest))))
        return
    scale = scale or (QUICK if options.quick else FULL if options.full else NORMAL)
    with tempfile.TemporaryDirectory(prefix="durable-bench-", dir=options.folder) as folder:
        about = machine(Path(folder)) | {"durability": _DURABILITY}
        show(about, asyncio.run(measure(Path(folder), scale)), as_json=options.json)


if __name__ == "__main__":
    configure_logging(level="error")  # not a line for each of the runs, above the table
    main()
