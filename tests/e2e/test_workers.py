"""Workers as processes: killed, side by side, stopped, and what they do with a thousand signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from durable_core import DurableWorkflowExecutor
from durable_core.clock import SystemClock, epoch_ms
from tests.e2e.programs.held import held
from tests.e2e.programs.nursery import ROOT, Nursery, open_nursery
from tests.e2e.programs.witness import Line, bodies, count
from tests.e2e.programs.working import STEPS, asked, napping, parts
from tests.waiting import full, until

pytestmark = pytest.mark.slow

WORKERS = 4
SIGNALS = 1000 if full() else 100
SENDERS = 8
PART_S = 0.2 if full() else 0.03
KILL_EVERY_S = 1.0


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    yield from open_nursery()


class Behind(SystemClock):
    """A clock that is behind: what it takes for a long wait is over soon."""

    def __init__(self, seconds: float) -> None:
        self._behind_ms = round(seconds * 1000)

    def now_ms(self) -> int:
        return super().now_ms() - self._behind_ms


def serve(nursery: Nursery, folder: Path, concurrency: int = 10) -> int:
    before = count(folder / "serving")
    pid = nursery.start("working", folder / "runs.db", folder, "serve", concurrency)
    until(lambda: count(folder / "serving") > before, "the worker")
    return pid


async def ended(executor: DurableWorkflowExecutor, status: str = "COMPLETED") -> int:
    return len(await executor.list(status=status, limit=10_000))


async def all_ended(executor: DurableWorkflowExecutor, total: int, limit_s: float = 120) -> None:
    deadline = time.monotonic() + limit_s
    while await ended(executor) < total:
        assert time.monotonic() < deadline, Counter(one.status for one in await executor.list(limit=10_000))
        time.sleep(0.02)  # noqa: ASYNC251 - nothing else runs in this process


async def test_a_sleeping_run_is_woken_when_it_is_due_and_not_before(
    nursery: Nursery, tmp_path: Path
) -> None:
    async with DurableWorkflowExecutor(db_path=tmp_path / "runs.db", clock=Behind(10)) as executor:
        for n in range(5):
            await executor.start(
                napping, run_id=f"r{n}", folder=str(tmp_path), seconds=11 + n / 5
            )  # too long to be waited for here
        assert {one.status for one in await executor.worker().recover()} == {"SUSPENDED"}
        due_ms = [(await executor.steps(f"r{n}"))[0].record.details()["wake_at_ms"] for n in range(5)]
        pid = serve(nursery, tmp_path)
        await all_ended(executor, 5)
        nursery.kill(pid)
        for n in range(5):
            ended_at = (await executor.get(f"r{n}")).ended_at
            assert ended_at is not None
            assert epoch_ms(ended_at) >= due_ms[n]  # how soon after it is in scripts/bench/workers.py
    assert len(bodies(tmp_path / "bodies")) == 5


async def test_killed_workers_repeat_only_what_was_in_flight(nursery: Nursery, tmp_path: Path) -> None:
    runs, concurrency = 200, 3
    async with DurableWorkflowExecutor(db_path=tmp_path / "runs.db") as executor:
        for n in range(runs):
            await executor.start(parts, run_id=f"r{n}", folder=str(tmp_path), seconds=PART_S)
        live = [serve(nursery, tmp_path, concurrency) for _ in range(WORKERS)]
        killed: list[int] = []
        next_kill = time.monotonic() + KILL_EVERY_S
        while await ended(executor) < runs:
            if time.monotonic() >= next_kill:
                next_kill += KILL_EVERY_S
                killed.append(live.pop(0))
                nursery.kill(killed[-1])
                live.append(serve(nursery, tmp_path, concurrency))
            assert len(killed) < 300
            time.sleep(0.01)  # noqa: ASYNC251 - nothing else runs in this process
        for pid in live:
            nursery.kill(pid)
        views = await executor.list(limit=1000)
        assert {one.status for one in views} == {"COMPLETED"}
        assert {tuple(one.counts.items()) for one in views} == {(("COMMITTED", STEPS),)}
    assert len(killed) >= 2
    starts: dict[tuple[str, str], list[Line]] = defaultdict(list)
    for line in bodies(tmp_path / "bodies"):
        starts[line.run_id, line.step_id].append(line)
    assert len(starts) == runs * STEPS
    repeated = [one for lines in starts.values() for one in lines[:-1]]
    assert all(one.pid in killed for one in repeated)
    assert max(Counter(one.pid for one in repeated).values(), default=0) <= concurrency
    assert all(len({one.key for one in lines}) == 1 for lines in starts.values())


async def test_each_of_many_suspended_runs_gets_its_own_signal_once(nursery: Nursery, tmp_path: Path) -> None:
    async with DurableWorkflowExecutor(db_path=tmp_path / "runs.db") as executor:
        for n in range(SIGNALS):
            await executor.start(asked, run_id=f"r{n}", folder=str(tmp_path))
        taken = await executor.worker(concurrency=50).recover()
        assert Counter(one.status for one in taken) == {"SUSPENDED": SIGNALS}
        workers = [serve(nursery, tmp_path) for _ in range(2)]
        senders = [
            nursery.start("working", tmp_path / "runs.db", tmp_path, "send", first, SENDERS, SIGNALS)
            for first in range(SENDERS)
        ]
        for pid in senders:
            assert nursery.wait(pid, 120) == 0
        await all_ended(executor, SIGNALS)
        for pid in workers:
            nursery.kill(pid)
        for n in range(SIGNALS):
            assert (await executor.run(asked, resume_run_id=f"r{n}")).output == f"thanks for answer {n}"
            pages = [page async for page in executor.store.journal.events(f"r{n}")]
            assert [(one.event_id, one.taken_by is not None) for page in pages for one in page] == [
                (f"e{n}", True)
            ]
    assert len(bodies(tmp_path / "bodies")) == SIGNALS


async def test_a_process_in_which_a_run_waits_releases_it_on_sigterm(
    nursery: Nursery, tmp_path: Path
) -> None:
    pid = nursery.start("working", tmp_path / "runs.db", tmp_path, "ask")
    async with DurableWorkflowExecutor(db_path=tmp_path / "runs.db") as executor:
        until(lambda: count(tmp_path / "asking") == 1, "the process")
        deadline = time.monotonic() + 20
        while not await waits_for_its_answer(executor):
            assert time.monotonic() < deadline
            time.sleep(0.02)  # noqa: ASYNC251 - nothing else runs in this process
        os.kill(pid, signal.SIGTERM)
        assert nursery.wait(pid) == 128 + signal.SIGTERM
        view = await executor.get("r1")
        assert (view.status, view.crashes, view.owner_process) == ("PENDING", 0, None)
        assert [one.status for one in await executor.steps("r1")] == ["STARTED"]
        await executor.signal("r1", "answer", "answer 1")
        assert (await executor.run(asked, resume_run_id="r1")).output == "thanks for answer 1"


async def waits_for_its_answer(executor: DurableWorkflowExecutor) -> bool:
    if await executor.store.journal.header("r1") is None:
        return False
    return [one.status for one in await executor.steps("r1")] == ["STARTED"]


async def test_of_two_workers_one_drives_a_run_and_the_other_takes_it_over(
    nursery: Nursery, tmp_path: Path
) -> None:
    pids = [serve(nursery, tmp_path) for _ in range(2)]
    async with DurableWorkflowExecutor(db_path=tmp_path / "runs.db") as executor:
        await executor.start(held, run_id="r1", folder=str(tmp_path))
        until((tmp_path / "inside").exists, "the body")
        time.sleep(1.0)  # noqa: ASYNC251 - the other one looks meanwhile
        lines = bodies(tmp_path / "bodies")
        assert [line.step_id for line in lines] == ["first", "gate"]
        driver = lines[-1].pid
        assert driver in pids
        nursery.kill(driver)
        until(lambda: len(bodies(tmp_path / "bodies")) == 3, "the other worker", limit_s=15)
        (tmp_path / "go").write_text("on")
        await all_ended(executor, 1)
        (other,) = [pid for pid in pids if pid != driver]
        nursery.kill(other)
    assert [(one.step_id, one.pid == driver) for one in bodies(tmp_path / "bodies")] == [
        ("first", True), ("gate", True), ("gate", False), ("last", False)
    ]  # fmt: skip


@pytest.mark.parametrize(("number", "drain", "code"), [(signal.SIGTERM, "20", 0), (signal.SIGINT, "0", 130)])
async def test_a_worker_that_is_asked_to_stop_drains(
    number: int, drain: str, code: int, tmp_path: Path
) -> None:
    command = [
        sys.executable, "-m", "durable_core.cli", "worker", "--workflows", "tests.e2e.programs.held",
        "--store", f"sqlite:///{tmp_path / 'runs.db'}", "--drain", drain, "--json",
    ]  # fmt: skip
    async with DurableWorkflowExecutor(db_path=tmp_path / "runs.db") as executor:
        await executor.start(held, run_id="r1", folder=str(tmp_path))
        process = subprocess.Popen(  # noqa: ASYNC220 - nothing else runs in this process
            command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, encoding="utf-8",
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        try:
            until((tmp_path / "inside").exists, "the body")
            process.send_signal(number)
            if code == 0:
                time.sleep(0.2)  # noqa: ASYNC251 - the worker waits for the body
                assert process.poll() is None
                (tmp_path / "go").write_text("on")
            out, told = process.communicate(timeout=20)
        finally:
            process.kill()
            process.wait()
        assert process.returncode == code, told
        assert json.loads(out) == {"runs": {"PENDING": 1}, "chunks": {}}
        assert "Traceback" not in told
        view = await executor.get("r1")
        assert (view.status, view.crashes) == ("PENDING", 0)
        steps: dict[str, Any] = {one.step_id: one for one in await executor.steps("r1")}
        assert steps["gate"].status == ("COMMITTED" if code == 0 else "STARTED")
        assert "last" not in steps
