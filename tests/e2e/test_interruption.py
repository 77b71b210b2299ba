"""Stopped from outside: deploys, Ctrl-C, blocked loops and bodies that won't end. None of it is a crash."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import threading
import time
from collections import Counter
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import pytest

from durable_core import Context, DurableWorkflowExecutor, current_step, step, workflow
from durable_core.engine.results import StepView
from durable_core.engine.stopping import until_terminated
from durable_core.errors import RunBusy
from tests.e2e.programs import deploys
from tests.e2e.programs.witness import bodies, count, noted, statuses
from tests.stores import Place, Processes
from tests.waiting import moment, until

DEPLOYS = 10


@pytest.fixture(scope="module")
def children() -> ForkServerContext:
    """Processes that have imported everything: a deploy in a tenth of a second."""
    found = multiprocessing.get_context("forkserver")
    found.set_forkserver_preload(["tests.e2e.programs.deploys"])
    return found


def start(children: ForkServerContext, target: Any, *args: Any) -> Any:
    child = children.Process(target=target, args=args, daemon=True)
    child.start()
    return child


def ended(child: Any) -> int:
    child.join(20)
    assert child.exitcode is not None, "the child never ended"
    return int(child.exitcode)


async def views(folder: Path, run_id: str = "r1") -> list[StepView]:
    async with DurableWorkflowExecutor(db_path=folder / "runs.db") as executor:
        return await executor.steps(run_id)


async def header(folder: Path, run_id: str = "r1") -> Any:
    async with DurableWorkflowExecutor(db_path=folder / "runs.db") as executor:
        return await executor.get(run_id)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "sent", "code"), [("deploys", signal.SIGTERM, 143), ("plain_deploys", signal.SIGINT, 1)]
)
async def test_ten_deploys_during_a_run_count_no_crash_and_run_nothing_twice_that_was_committed(
    name: str, sent: signal.Signals, code: int, children: ForkServerContext, tmp_path: Path
) -> None:
    log = tmp_path / "bodies"
    committed: set[str] = set()
    stopped = 0
    for _ in range(DEPLOYS):
        before = count(log)
        child = start(children, deploys.main, name, str(tmp_path))
        until(lambda before=before, child=child: count(log) > before or not child.is_alive(), "a body")
        moment(0.01)  # into the body
        os.kill(child.pid, sent)
        assert ended(child) == code
        stopped += 1
        now = await header(tmp_path)
        assert (now.status, now.owner_process, now.crashes) == ("PENDING", None, 0)
        again = {line.step_id for line in bodies(log)[before:]}
        assert again.isdisjoint(committed)
        found = statuses(tmp_path / "runs.db", "r1")
        committed = {step_id for step_id, status in found.items() if status == "COMMITTED"}
        assert set(found.values()) <= {"COMMITTED", "STARTED"}
    assert stopped == DEPLOYS
    assert len(committed) < deploys.STEPS
    assert ended(start(children, deploys.main, name, str(tmp_path))) == 0
    assert noted(tmp_path / "outcome") == [sum(range(deploys.STEPS))]
    records = [view.record for view in await views(tmp_path)]
    assert len(records) == deploys.STEPS
    assert {(record.status, record.crashes) for record in records} == {("COMMITTED", 0)}
    assert {one["error"] for record in records for one in record.history()} <= {"INTERRUPTED"}
    starts = Counter(line.step_id for line in bodies(log))
    assert all(starts[record.step_id] <= record.attempt for record in records)
    keys: dict[str, set[str]] = {}
    for line in bodies(log):
        keys.setdefault(line.step_id, set()).add(line.key)
    assert all(len(found) == 1 for found in keys.values())


@pytest.mark.slow
async def test_of_a_poison_step_among_fifty_siblings_exactly_that_one_fails(
    children: ForkServerContext, tmp_path: Path
) -> None:
    deaths = 0
    while (code := ended(start(children, deploys.main, "poisoned", str(tmp_path)))) != 0:
        assert code == -signal.SIGKILL
        deaths += 1
    poison = f"sibling#{deploys.SIBLINGS // 2 + 1}"
    assert deaths == 3
    assert noted(tmp_path / "outcome") == [[f"CRASH_LIMIT_REACHED {poison}"]]
    records = {view.step_id: view.record for view in await views(tmp_path)}
    assert records.pop(poison).crashes == 3
    assert len(records) == deploys.SIBLINGS
    assert {record.status for record in records.values()} == {"COMMITTED"}
    assert max(record.crashes for record in records.values()) <= 1
    assert Counter(line.step_id for line in bodies(tmp_path / "bodies"))[poison] == 3


@pytest.mark.slow
async def test_a_def_body_that_outlasts_a_deploy_is_not_begun_beside_itself_and_is_no_crash(
    children: ForkServerContext, tmp_path: Path
) -> None:
    child = start(children, deploys.main, "outlasts", str(tmp_path), 0.05)
    until((tmp_path / "let-go").exists, "the body")
    os.kill(child.pid, signal.SIGTERM)
    until(lambda: (tmp_path / "runs.db").exists(), "the file")
    assert ended(child) == 143
    left = await header(tmp_path)
    assert left.status == "PENDING"
    assert left.owner_process is not None  # its lease is left to run out
    async with DurableWorkflowExecutor(db_path=tmp_path / "runs.db") as executor:
        result = await executor.resume("r1", deploys.outlasts)
        assert result.output == "done"
        record = (await executor.steps("r1"))[0].record
    assert (record.attempt, record.crashes) == (2, 0)
    assert record.history()[0]["error"] == "INTERRUPTED"


@pytest.mark.slow
async def test_a_deploy_releases_a_run_also_when_another_that_began_first_has_ended(
    children: ForkServerContext, tmp_path: Path
) -> None:
    child = start(children, deploys.two_at_once, str(tmp_path))
    until((tmp_path / "inside").exists, "the body")
    until((tmp_path / "first-is-over").exists, "the end of the other run")
    os.kill(child.pid, signal.SIGTERM)
    assert ended(child) == 143
    assert (await header(tmp_path)).status == "PENDING"
    async with DurableWorkflowExecutor(db_path=tmp_path / "runs.db") as executor:
        assert (await executor.resume("r1", deploys.long)).output == "done"
        assert (await executor.steps("r1"))[0].record.crashes == 0


# ---- In this process ----


async def test_sigterm_releases_the_run_and_leaves_with_its_own_exit_code(place: Place) -> None:
    ran: list[int] = []

    @step
    async def stopped() -> str:
        ran.append(current_step().attempt)
        if len(ran) == 1:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.Event().wait()
        return "done"

    @workflow(name="sigterm")
    async def wf(ctx: Context) -> str:
        try:
            return await ctx.step(stopped)
        except Exception:
            return "swallowed"

    executor = place.executor()
    with pytest.raises(SystemExit) as caught:
        await executor.run(wf, run_id="r1")
    assert caught.value.code == 143
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert (await executor.get("r1")).status == "PENDING"
    assert (await executor.resume("r1", wf)).output == "done"
    record = (await executor.steps("r1"))[0].record
    assert (record.attempt, record.crashes) == (2, 0)


async def test_an_operation_may_be_awaited_inside_another() -> None:
    """In one task: the outer one is still watched when the inner one has ended."""
    with until_terminated():
        with until_terminated() as inner:
            pass
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(asyncio.CancelledError):
            await asyncio.sleep(5)
        assert inner.is_set()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


async def test_an_applications_own_handler_of_sigterm_stays_in_charge(place: Place) -> None:
    received: list[int] = []

    @step
    async def signals_itself() -> str:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0.01)
        return "went on"

    @workflow(name="own_handler")
    async def wf(ctx: Context) -> str:
        return await ctx.step(signals_itself)

    def handler(number: int, _: object) -> None:
        received.append(number)

    before = signal.signal(signal.SIGTERM, handler)
    try:
        assert (await place.executor().run(wf)).output == "went on"
        assert signal.getsignal(signal.SIGTERM) is handler
    finally:
        signal.signal(signal.SIGTERM, before)
    assert received == [signal.SIGTERM]


@pytest.mark.over_dynamodb
async def test_a_def_body_in_flight_is_awaited_and_its_commit_kept(place: Place) -> None:
    inside, go = threading.Event(), threading.Event()
    ran: list[int] = []

    @step
    def body() -> str:
        ran.append(1)
        inside.set()
        go.wait(20)
        return "done"

    @step
    async def after() -> None:
        ran.append(2)

    @workflow(name="awaited")
    async def wf(ctx: Context) -> str:
        found = await ctx.step(body)
        await ctx.step(after)
        return found

    executor = place.executor()
    running = asyncio.ensure_future(executor.run(wf, run_id="r1"))
    await asyncio.to_thread(inside.wait, 20)
    running.cancel()
    for _ in range(5):
        await asyncio.sleep(0)
    assert not running.done()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert ran == [1]
    assert (await executor.get("r1")).counts == {"COMMITTED": 1}
    assert (await executor.resume("r1", wf)).output == "done"
    assert ran == [1, 2]


async def test_a_def_body_that_outlasts_the_grace_leaves_the_run_to_its_lease(place: Place) -> None:
    inside, go = threading.Event(), threading.Event()
    ran: list[int] = []

    @step
    def body() -> str:
        ran.append(current_step().fence)
        inside.set()
        if len(ran) == 1:
            go.wait(20)
        return f"fence {current_step().fence}"

    @workflow(name="outlasted")
    async def wf(ctx: Context) -> str:
        return await ctx.step(body)

    clock = place.turn_clock()
    executor = place.executor(grace_s=0.02)
    running = asyncio.ensure_future(executor.run(wf, run_id="r1"))
    await asyncio.to_thread(inside.wait, 20)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    other = place.executor()
    with pytest.raises(RunBusy):
        await other.resume("r1", wf)
    assert ran == [1]
    clock.turn(31)
    go.set()
    assert (await other.resume("r1", wf)).output == "fence 2"
    assert (await other.steps("r1"))[0].record.crashes == 0


@pytest.mark.slow
async def test_a_step_that_blocks_the_loop_longer_than_its_lease_keeps_it(
    tmp_path: Path, processes: Processes
) -> None:
    places = [Place(kind, tmp_path) for kind in ("memory", "sqlite")]
    processes.next_is_unknown()  # so that only the lease tells whether the driver lives
    await asyncio.gather(*(_blocks_its_loop(place) for place in places))
    for place in places:
        await place.close()


async def _blocks_its_loop(place: Place) -> None:
    inside = threading.Event()

    @step
    async def blocks() -> int:
        inside.set()
        time.sleep(2.2)  # noqa: ASYNC251 - the whole loop, on purpose
        return current_step().fence

    @step
    async def after() -> int:
        return current_step().fence

    @workflow(name="blocked")
    async def wf(ctx: Context) -> list[int]:
        return [await ctx.step(blocks), await ctx.step(after)]

    executor, other = place.executor(lease_s=1), place.executor(lease_s=1)

    def drive_it() -> list[int]:
        async def run() -> list[int]:
            found = (await executor.run(wf, run_id="r1")).output
            await executor.close()
            return found

        return asyncio.run(run())

    driven = asyncio.ensure_future(asyncio.to_thread(drive_it))
    await asyncio.to_thread(inside.wait, 20)
    refused = 0
    while (await other.get("r1")).status == "RUNNING" and not driven.done() and refused < 40:
        with pytest.raises(RunBusy):
            await other.resume("r1", wf)
        refused += 1
        await asyncio.sleep(0.05)
    assert refused == 40
    assert await driven == [1, 1]
    assert (await other.get("r1")).fence == 1
