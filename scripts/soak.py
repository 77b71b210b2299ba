"""Workers and drivers are killed at random, over a store whose calls fail: nothing is lost or done twice.

    python scripts/soak.py                                  30 minutes on SQLite
    python scripts/soak.py --store postgres --seconds 60    on a PostgreSQL server of its own
    python scripts/soak.py --store dynamodb                 on a stand-in for DynamoDB and S3
    python scripts/soak.py --store URL                      on a store that is there

Runs are started all the time: steps with small and large outputs, branches, a map, an event. Processes that
drive them are killed by SIGKILL at random moments and started again; one in twenty of their writes isn't
made, or loses its reply. Each run that has ended is judged - its output, each of its records, the starts of
its bodies against what had been acknowledged before - and pruned. In the end all is driven to its end, and
counted. It ends with 1 if anything was lost, done twice or damaged, or if memory grew without bound.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from typing_extensions import override

if __package__ in (None, ""):  # started as a file: the checkout isn't on the path yet
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from durable_core import Context, DurableWorkflowExecutor, configure_logging, current_step, step, workflow
from durable_core.errors import DurableError, JournalUnavailable
from durable_core.records import COMPLETED
from durable_core.stores import open_store
from durable_core.testing.durable_writes import Watch, Write, watched

ITEMS: Final = 12
FAULTS: Final = 0.05
_MOST_WAITING: Final = 40  # runs that haven't ended
_GROWN_MIB: Final = 150
_LOG: Final = "DURABLE_SOAK_LOG"


def note(kind: str, run_id: str, what: str) -> None:
    """Leaves a line, in one write: a body starts, or the workflow has its output."""
    file = os.open(os.environ[_LOG], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, f"{kind} {run_id} {what}\n".encode())
    finally:
        os.close(file)


def _starts() -> None:
    info = current_step()
    note("body", info.run_id, info.step_id)


@step
async def small(number: int) -> int:
    """A small output, soon."""
    _starts()
    await asyncio.sleep(0.005)
    return number + 1


@step
def large(number: int) -> bytes:
    """An output that goes to the blob store."""
    _starts()
    time.sleep(0.005)
    return b"".join(sha256(f"{number}:{part}".encode()).digest() for part in range(400))


@step
async def item(number: int) -> int:
    """An item of a map."""
    _starts()
    await asyncio.sleep(0.002)
    return number * 3


async def _branch(ctx: Context, number: int) -> int:
    return await ctx.step(small, await ctx.step(small, number))


@workflow(name="soak")
async def soak(ctx: Context, number: int) -> list[Any]:
    """A bit of everything."""
    one = await ctx.step(small, number)
    note("told", ctx.run_id, "small")
    blob = await ctx.step(large, number)
    note("told", ctx.run_id, "large")
    left, right = await ctx.parallel(ctx.branch(_branch, one), ctx.branch(_branch, number))
    batch = await ctx.map(item, range(ITEMS), max_concurrency=4)
    note("told", ctx.run_id, "item[")
    event = await ctx.wait_for_event("go", type=int)
    return [one, sha256(blob).hexdigest(), left, right, sum(batch.outputs), event]


def expected(number: int) -> list[Any]:
    """What the workflow has to come to."""
    blob = b"".join(sha256(f"{number}:{part}".encode()).digest() for part in range(400))
    total = 3 * sum(range(ITEMS))
    return [number + 1, sha256(blob).hexdigest(), number + 3, number + 2, total, number]


class Faulty(Watch):
    """Some writes aren't made, and some lose their reply."""

    @override
    def before(self, write: Write) -> None:
        if random.random() < FAULTS / 2:
            raise JournalUnavailable("as planned: not made")

    @override
    def after(self, write: Write) -> None:
        if random.random() < FAULTS / 2:
            raise JournalUnavailable("as planned: made, and the reply was lost")


async def work(url: str, *, drives: bool) -> None:
    """A worker; or one who starts runs that others may be driving. It is killed at some time."""
    store = watched(open_store(url), Faulty())
    executor = DurableWorkflowExecutor(store, lease_s=3)
    while True:
        with suppress(DurableError):
            if not drives:
                await executor.worker(concurrency=4).serve()
            for view in random.sample(found := await executor.list(status="PENDING"), min(3, len(found))):
                with suppress(DurableError):
                    await executor.resume(view.run_id, on_wait="suspend")
        await asyncio.sleep(0.2)


@dataclass
class Found:
    """What a soak has seen."""

    started: int = 0
    completed: int = 0
    kills: int = 0
    bodies: int = 0
    again: int = 0
    commits: int = 0
    wrong: list[str] = field(default_factory=list)
    rss_mib: list[float] = field(default_factory=list)


class Soak:
    """One soak.

    Args:
        url: Of the store.
        folder: For what its processes leave.
        processes: How many there are at a time.
    """

    def __init__(self, url: str, folder: Path, processes: int) -> None:
        self.url = url
        self.log = folder / "log"
        self.log.touch()
        self.processes = processes
        self.found = Found()
        self.executor = DurableWorkflowExecutor(url, lease_s=3)
        self._lines: dict[str, list[tuple[str, str]]] = {}
        self._read = 0
        self._live: list[subprocess.Popen[bytes]] = []

    async def run(self, seconds: float) -> Found:
        """Soaks for so long, and then lets all come to its end."""
        await self.executor.store.journal.open()
        until = time.monotonic() + seconds
        next_kill = 0.0
        try:
            while time.monotonic() < until:
                self._keep_alive()
                await self._start_some()
                await self._judge_ended()
                if time.monotonic() > next_kill:
                    self._kill_one()
                    next_kill = time.monotonic() + random.expovariate(1)
                self.found.rss_mib.append(_rss_mib())
                await asyncio.sleep(0.1)
        finally:
            self._end_all()
        await self._finish()
        await self.executor.close()
        return self.found

    def _keep_alive(self) -> None:
        self._live = [one for one in self._live if one.poll() is None]
        while len(self._live) < self.processes:
            role = "drive" if len(self._live) % 3 == 2 else "work"
            command = [sys.executable, __file__, "--role", role, "--store", self.url]
            self._live.append(subprocess.Popen(command, env={**os.environ, _LOG: str(self.log)}))

    def _kill_one(self) -> None:
        if self._live:
            random.choice(self._live).send_signal(signal.SIGKILL)
            self.found.kills += 1

    def _end_all(self) -> None:
        for one in self._live:
            one.kill()
            one.wait()

    async def _start_some(self) -> None:
        while self.found.started - self.found.completed < _MOST_WAITING:
            number = self.found.started = self.found.started + 1
            run_id = f"soak-{number}"
            await self.executor.start(soak, run_id=run_id, number=number)
            await self.executor.signal(run_id, "go", number, event_id="go")

    async def _judge_ended(self) -> None:
        for status in ("COMPLETED", "FAILED"):
            for view in await self.executor.list(status=status, workflow="soak"):
                await self._judge(view.run_id, view.status)

    async def _judge(self, run_id: str, status: str) -> None:
        self.found.completed += 1
        if status != COMPLETED:
            error = (await self.executor.get(run_id)).error
            self.found.wrong.append(f"{run_id} is {status}: {error.get('type')}: {error.get('message')}")
        else:
            output = (await self.executor.resume(run_id, soak)).output
            if output != expected(int(run_id.rpartition("-")[2])):
                self.found.wrong.append(f"{run_id} came to {output}")
        verified = await self.executor.verify(run_id)
        if not verified.is_sound:
            self.found.wrong += [f"{run_id} is damaged: {one.message}" for one in verified.findings]
        one = verified.runs[0]
        self.found.commits += one.steps + one.segments + one.events
        self._judge_bodies(run_id)
        await self.executor.prune(run_ids=[run_id])

    def _judge_bodies(self, run_id: str) -> None:
        """No body starts after the workflow was told its output."""
        self._take_lines()
        told: set[str] = set()
        started = Counter[str]()
        for kind, what in self._lines.pop(run_id, []):
            if kind == "told":
                told.add(what)
                continue
            started[what] += 1
            if what in told or (what.startswith("item[") and "item[" in told):
                self.found.wrong.append(f"{run_id}: the body of {what} ran again after its output was told")
        self.found.bodies += sum(started.values())
        self.found.again += sum(times - 1 for times in started.values())

    def _take_lines(self) -> None:
        with self.log.open("rb") as file:
            file.seek(self._read)
            read = file.read()
        whole = read[: read.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.decode().splitlines():
            kind, run_id, what = line.split(" ", 2)
            self._lines.setdefault(run_id, []).append((kind, what))

    async def _finish(self) -> None:
        """Drives what is left to its end, undisturbed, and judges it."""
        os.environ[_LOG] = str(self.log)
        until = time.monotonic() + 120
        while self.found.completed < self.found.started and time.monotonic() < until:
            for number in range(1, self.found.started + 1):
                with suppress(DurableError):  # pruned already, or its dead owner's lease isn't over
                    await self.executor.resume(f"soak-{number}", soak, on_wait="suspend")
            await self._judge_ended()
            await asyncio.sleep(0.2)
        lost = self.found.started - self.found.completed
        if lost:
            self.found.wrong.append(f"{lost} runs have not come to their end")


def _rss_mib() -> float:
    status = Path("/proc/self/status")
    if not status.exists():  # not Linux
        return 0.0
    return int(status.read_text().split("VmRSS:")[1].split()[0]) / 1024


def judged(found: Found) -> int:
    """Prints what was seen; gives the exit code."""
    rss = found.rss_mib or [0.0]
    grown = max(rss[len(rss) // 2 :]) - max(rss[: max(1, len(rss) // 2)])
    if grown > _GROWN_MIB:
        found.wrong.append(f"memory has grown by {grown:.0f} MiB in the second half")
    told = {
        "runs started": found.started,
        "runs ended and judged": found.completed,
        "processes killed": found.kills,
        "bodies started": found.bodies,
        "of them again, in doubt": found.again,
        "records": found.commits,
        "lost, done twice or damaged": len(found.wrong),
        "peak memory MiB": round(max(rss)),
        "growth in the second half MiB": round(grown),
    }
    print(json.dumps(told, indent=2))
    for what in found.wrong[:50]:
        print(f"WRONG {what}")
    return int(bool(found.wrong))


def main() -> int:
    """Soaks, or is one of the processes that are killed."""
    parser = argparse.ArgumentParser(description="Kills processes at random over a store that fails.")
    parser.add_argument("--store", default="sqlite", help="sqlite, postgres, dynamodb, or a store's URL")
    parser.add_argument("--seconds", type=float, default=1800)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--seed", type=int, help="of the moments; not of what the system makes of them")
    parser.add_argument("--role", choices=("work", "drive"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    configure_logging(level="critical")
    if options.role:
        asyncio.run(work(options.store, drives=options.role == "drive"))
    random.seed(options.seed)
    with ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="durable-soak-")))
        url = options.store
        if "://" not in url:
            from tests.crashes.killing import stores

            url = opened.enter_context(stores(url, None))()
        return judged(asyncio.run(Soak(url, folder, options.processes).run(options.seconds)))


if __name__ == "__main__":
    sys.exit(main())
