"""One worker on SQLite: tiny runs a second, how late it wakes others, what idling costs and asks of DynamoDB.

    python scripts/bench/workers.py            everything, in half a minute
    python scripts/bench/workers.py --quick    fewer and smaller rounds
    python scripts/bench/workers.py --json     for machines

Figures are printed beside their targets, never asserted. The requests are counted in an hour of a fake clock:
every verb that an idle worker calls, times the partitions of the index that DynamoDB is asked about.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

if __package__ in (None, ""):  # started as a file: the checkout isn't on the path yet
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from durable_core import Context, DurableWorkflowExecutor, configure_logging, step, workflow
from durable_core.aws.table import SHARDS
from durable_core.clock import SystemClock, epoch_ms
from durable_core.engine.suspension import SHORT_WAIT_S
from durable_core.store import Store
from durable_core.stores import open_store
from durable_core.testing.fake_clock import FakeClock
from durable_core.testing.forwarding_journal import ForwardingJournal
from scripts.bench.report import Figure, machine, show, spread

_HOUR_S: Final = 3600


class Scale(NamedTuple):
    """How much of everything."""

    rounds: int
    runs: int
    sleepers: int
    idle_s: float


FULL: Final = Scale(rounds=5, runs=1000, sleepers=20, idle_s=15)
QUICK: Final = Scale(rounds=3, runs=200, sleepers=5, idle_s=3)


@step
async def nothing(number: int) -> int:
    """As small as a step can be."""
    return number


@workflow(name="bench_tiny")
async def tiny(ctx: Context, number: int) -> int:
    """One step."""
    return await ctx.step(nothing, number)


async def runs_per_s(path: Path, runs: int) -> float:
    """How many recorded runs one worker starts and ends a second."""
    async with DurableWorkflowExecutor(db_path=path) as executor:
        for number in range(runs):
            await executor.start(tiny, run_id=f"r{number}", number=number)
        worker = executor.worker()
        began = time.perf_counter()
        serving = asyncio.create_task(worker.serve())
        while worker.counts["COMPLETED"] < runs:  # noqa: ASYNC110 - a worker says nothing of each run
            await asyncio.sleep(0.005)
        took_s = time.perf_counter() - began
        worker.drain()
        await serving
    return runs / took_s


@workflow(name="bench_sleeper")
async def sleeper(ctx: Context, seconds: float) -> None:
    """Suspended, until it is due."""
    await ctx.sleep(seconds)


class _Behind(SystemClock):
    """A clock that is behind by what is waited for in the process: longer waits are over soon."""

    def now_ms(self) -> int:
        """That time."""
        return super().now_ms() - round(SHORT_WAIT_S * 1000)


async def late_ms(path: Path, runs: int) -> list[float]:
    """By how much runs that sleep end after their time, a tenth of a second apart."""
    async with DurableWorkflowExecutor(db_path=path, clock=_Behind()) as executor:
        for number in range(runs):
            await executor.start(sleeper, run_id=f"s{number}", seconds=SHORT_WAIT_S + 1 + number / 10)
        await executor.worker().recover()
        sleeps = [(await executor.steps(f"s{number}"))[0].record.details() for number in range(runs)]
    async with DurableWorkflowExecutor(db_path=path) as executor:
        worker = executor.worker()
        serving = asyncio.create_task(worker.serve())
        while worker.counts["COMPLETED"] < runs:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.005)
        worker.drain()
        await serving
        late = []
        for number in range(runs):
            ended_at = (await executor.get(f"s{number}")).ended_at
            late.append(float(epoch_ms(str(ended_at)) - sleeps[number]["wake_at_ms"]))
    return late


async def idle_share(path: Path, seconds: float) -> float:
    """The share of one core that a worker takes with nothing to do, in percent."""
    async with DurableWorkflowExecutor(db_path=path) as executor:
        worker = executor.worker()
        serving = asyncio.create_task(worker.serve())
        await asyncio.sleep(1)  # what is done once is done
        before_s, began = _processor_s(), time.perf_counter()
        await asyncio.sleep(seconds)
        share = (_processor_s() - before_s) / (time.perf_counter() - began)
        worker.drain()
        await serving
    return share * 100


class Counting(ForwardingJournal):
    """Counts what an idle worker asks."""

    asked = 0

    async def ask(self, call: Any, *args: Any, **options: Any) -> Any:
        """One request for each partition of the index that is asked; maps that are shared have one."""
        self.asked += 1 if call.__name__ == "open_maps" else SHARDS
        return await super().ask(call, *args, **options)


async def requests_per_hour() -> int:
    """What an idle worker asks of DynamoDB in an hour: its looks go along indexes of several partitions."""
    clock = FakeClock()
    inner = open_store("memory://", clock)
    journal = Counting(inner.journal)
    executor = DurableWorkflowExecutor(Store(inner.url, journal, inner.blobs), clock=clock)
    worker = executor.worker()
    end_ms = clock.boot_ms() + _HOUR_S * 1000
    serving = asyncio.create_task(worker.serve())
    while clock.boot_ms() < end_ms:  # noqa: ASYNC110 - the worker turns the clock itself
        await asyncio.sleep(0)
    worker.drain()
    await serving
    return journal.asked


async def measure(folder: Path, scale: Scale) -> list[Figure]:
    """All of it."""
    rates = [await runs_per_s(folder / f"runs{n}.db", scale.runs) for n in range(scale.rounds)]
    late = await late_ms(folder / "sleepers.db", scale.sleepers)
    idle = await idle_share(folder / "runs0.db", scale.idle_s)
    return [
        Figure(
            name="tiny runs by one worker, per s", unit="/s", target=200, better="more", value=spread(rates)
        ),
        Figure(name="sleeping runs woken after their time", unit="ms", target=2000, value=spread(late)),
        Figure(name="idle worker, share of a core", unit="%", target=1, value=spread([idle])),
        Figure(
            name="idle worker, DynamoDB requests per h", unit="", value=spread([await requests_per_hour()])
        ),
    ]


def _processor_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main(arguments: list[str] | None = None, scale: Scale | None = None) -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description="One worker on SQLite: under load, and idle.")
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
