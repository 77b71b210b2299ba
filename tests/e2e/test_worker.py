"""A worker takes what is due, leaves alone what isn't its own, and survives what goes wrong about it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from durable_core import Context, DurableWorkflowExecutor, RunFailed, SyncContext, step, workflow
from durable_core.clock import rfc3339
from durable_core.engine.worker import Worker
from durable_core.errors import JournalUnavailable, StoreNotFound, UsageError
from durable_core.records import RunHeader
from durable_core.store import Store
from durable_core.stores import open_store
from durable_core.testing.fake_clock import FakeClock
from durable_core.testing.forwarding_journal import ForwardingJournal
from tests.stores import Place, Processes, crash, verb_of

Condition = Callable[[], Awaitable[bool]] | Callable[[], bool]

gates: dict[str, asyncio.Event] = {}
entered: list[str] = []
ran: list[str] = []


@pytest.fixture(autouse=True)
def _anew() -> None:
    gates.clear()
    entered.clear()
    ran.clear()


@step
async def note(name: str) -> str:
    ran.append(name)
    return name


@step
async def stand(name: str) -> str:
    entered.append(name)
    await gates.setdefault(name, asyncio.Event()).wait()
    ran.append(name)
    return name


@step
async def refuse() -> None:
    raise ValueError("no luck")


@workflow(name="worker_tiny")
async def tiny(ctx: Context, name: str) -> str:
    return await ctx.step(note, name)


@workflow(name="worker_standing")
async def standing(ctx: Context, name: str) -> str:
    await ctx.step(stand, name)
    return await ctx.step(note, f"after {name}")


@workflow(name="worker_sleepy")
async def sleepy(ctx: Context, name: str, seconds: float = 3600) -> str:
    await ctx.step(note, f"before {name}")
    await ctx.sleep(seconds)
    return await ctx.step(note, f"after {name}")


@workflow(name="worker_asking")
async def asking(ctx: Context, name: str) -> str:
    answer: str = await ctx.wait_for_event("answer", type=str)
    return await ctx.step(note, f"{name}: {answer}")


@workflow(name="worker_failing")
async def failing(ctx: Context) -> None:
    await ctx.step(refuse)


@workflow(name="worker_leaving")
async def leaving(ctx: Context) -> None:
    await ctx.step(note, "leaving")
    raise SystemExit(3)


@workflow(name="worker_leaving_plainly")
def leaving_plainly(ctx: SyncContext) -> None:
    ctx.step(note, "leaving")
    raise SystemExit(3)


@contextlib.asynccontextmanager
async def working(executor: DurableWorkflowExecutor, **options: Any) -> AsyncIterator[Worker]:
    """A worker that is drained at the end."""
    worker = executor.worker(**options)
    serving = asyncio.create_task(worker.serve())
    try:
        yield worker
    finally:
        if not serving.done() and not worker._drain.begun:  # a second time would interrupt
            worker.drain()
        async with asyncio.timeout(20):
            await serving


async def come_true(condition: Condition, limit_s: float = 15) -> None:
    async with asyncio.timeout(limit_s):
        while True:
            found = condition()
            if found if isinstance(found, bool) else await found:
                return
            await asyncio.sleep(0.005)


def has(executor: DurableWorkflowExecutor, status: str, *run_ids: str) -> Callable[[], Awaitable[bool]]:
    async def look() -> bool:
        return all([(await executor.get(run_id)).status == status for run_id in run_ids])

    return look


class Lines:
    """What was logged so far."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self._read: list[dict[str, Any]] = []

    def of(self, event: str) -> list[dict[str, Any]]:
        """Those of one event."""
        self._read += [json.loads(line) for line in self._capsys.readouterr().err.splitlines()]
        return [one for one in self._read if one["event"] == event]


@pytest.fixture
def lines(capsys: pytest.CaptureFixture[str]) -> Lines:
    return Lines(capsys)


async def test_a_worker_drives_runs_that_were_only_recorded(place: Place) -> None:
    web, mine = place.executor(), place.executor()
    for n in range(25):
        await web.start(tiny, run_id=f"r{n}", name=f"{n}")
    async with working(mine, concurrency=4) as worker:
        await come_true(has(web, "COMPLETED", *(f"r{n}" for n in range(25))))
    assert sorted(ran) == sorted(f"{n}" for n in range(25))
    assert worker.counts == {"COMPLETED": 25}


async def test_it_drives_no_more_runs_at_a_time_than_it_may(place: Place) -> None:
    web, mine = place.executor(), place.executor()
    for n in range(5):
        await web.start(standing, run_id=f"r{n}", name=f"{n}")
    async with working(mine, concurrency=2, drain_s=0):
        await come_true(lambda: len(entered) == 2)
        await asyncio.sleep(0.05)
        assert len(entered) == 2
        gates[entered[0]].set()
        await come_true(lambda: len(entered) == 3)
        await asyncio.sleep(0.05)
        assert len(entered) == 3


async def test_a_sleeping_run_is_suspended_and_woken_in_its_time() -> None:
    clock = FakeClock()
    executor = DurableWorkflowExecutor("memory://", clock=clock)
    await executor.start(sleepy, run_id="r1", name="one")
    began_ms, woken_ms = clock.now_ms(), []
    async with working(executor):
        await come_true(has(executor, "COMPLETED", "r1"))
        woken_ms.append(clock.now_ms())
    assert ran == ["before one", "after one"]
    assert (woken_ms[0] - began_ms) / 1000 >= 3600
    view = await executor.get("r1")
    assert view.status == "COMPLETED"
    await executor.close()


@pytest.mark.over_dynamodb
async def test_a_signal_wakes_a_run_that_no_process_waits_in(place: Place) -> None:
    web, mine = place.executor(), place.executor()
    await web.start(asking, run_id="r1", name="one")
    async with working(mine):
        await come_true(has(web, "SUSPENDED", "r1"))
        await web.signal("r1", "answer", "yes")
        await come_true(has(web, "COMPLETED", "r1"))
    assert ran == ["one: yes"]


async def test_a_run_that_fails_is_recorded_and_the_worker_goes_on(place: Place) -> None:
    web, mine = place.executor(), place.executor()
    await web.start(failing, run_id="bad")
    async with working(mine) as worker:
        await come_true(has(web, "FAILED", "bad"))
        await web.start(tiny, run_id="good", name="good")
        await come_true(has(web, "COMPLETED", "good"))
    assert worker.counts == {"FAILED": 1, "COMPLETED": 1}


@pytest.mark.parametrize("wf", [leaving, leaving_plainly], ids=["async", "plain"])
async def test_a_workflow_that_ends_its_process_ends_no_worker(place: Place, wf: Any) -> None:
    web, mine = place.executor(), place.executor()
    await web.start(wf, run_id="leaves")
    async with working(mine):
        await come_true(has(web, "FAILED", "leaves"))
        await web.start(tiny, run_id="good", name="good")
        await come_true(has(web, "COMPLETED", "good"))
    assert "SystemExit(3)" in (await web.get("leaves")).error["message"]


async def test_a_failed_run_is_not_resumed(place: Place) -> None:
    web, mine = place.executor(), place.executor()
    with pytest.raises(RunFailed):
        await web.run(failing, run_id="bad")
    assert await mine.worker().recover() == []
    assert (await web.get("bad")).fence == 1


async def test_unknown_workflows_are_left_alone_and_hide_nothing(place: Place, lines: Lines) -> None:
    web, mine = place.executor(), place.executor()
    for n in range(60):
        await put_run(web, f"other{n}", "nobody_knows", b"{}")
    await web.start(tiny, run_id="mine", name="mine")
    async with working(mine, concurrency=1):
        await come_true(has(web, "COMPLETED", "mine"))
        await asyncio.sleep(0)
    told = lines.of("run_left_alone")
    assert len({one["run_id"] for one in told}) == len(told) > 0
    assert "nobody_knows" in told[0]["reason"]
    assert ran == ["mine"]
    assert (await web.get("other7")).status == "PENDING"


async def test_an_unknown_workflow_is_told_of_once_in_a_while(lines: Lines) -> None:
    clock = FakeClock()
    executor = DurableWorkflowExecutor("memory://", clock=clock)
    await put_run(executor, "other", "nobody_knows", b"{}")

    def told() -> int:
        return len(lines.of("run_left_alone"))

    begin = clock.now_ms()
    async with working(executor):
        await come_true(lambda: clock.now_ms() > begin + 500_000)
        assert told() == 1
        await come_true(lambda: told() == 2)
    await executor.close()


async def test_a_dead_drivers_run_is_found_before_its_lease_ends(place: Place, processes: Processes) -> None:
    await crash(
        place, processes, lambda one: one.run(tiny, run_id="r1", name="one"), at=verb_of("commit", "note")
    )
    mine = place.executor()
    async with working(mine):
        await come_true(has(mine, "COMPLETED", "r1"), limit_s=5)
    assert ran == ["one", "one"]


async def test_recover_takes_what_is_due_once_and_ends(place: Place, processes: Processes) -> None:
    await crash(
        place, processes, lambda one: one.run(tiny, run_id="dead", name="dead"), at=verb_of("commit", "note")
    )
    web, mine = place.executor(), place.executor()
    for n in range(7):
        await web.start(tiny, run_id=f"r{n}", name=f"{n}")
    await web.start(sleepy, run_id="sleeps", name="s")
    await web.start(failing, run_id="fails")
    taken = await mine.worker(concurrency=3).recover()
    by_id = {one.run_id: one.status for one in taken}
    assert by_id == {
        **{f"r{n}": "COMPLETED" for n in range(7)},
        "dead": "COMPLETED", "sleeps": "SUSPENDED", "fails": "FAILED",
    }  # fmt: skip
    assert await mine.worker().recover() == []


async def test_recover_makes_no_store(tmp_path: Path) -> None:
    executor = DurableWorkflowExecutor(db_path=tmp_path / "none.db")
    with pytest.raises(StoreNotFound):
        await executor.worker().recover()
    await executor.close()


@pytest.mark.parametrize("options", [{"concurrency": 0}, {"drain_s": -1}, {"concurrency": True}])
async def test_settings_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        DurableWorkflowExecutor("memory://").worker(**options)


async def test_a_drain_lets_steps_in_flight_commit_and_releases_the_rest(place: Place) -> None:
    web, mine = place.executor(), place.executor()
    await web.start(standing, run_id="r1", name="one")
    async with working(mine) as worker:
        await come_true(lambda: entered == ["one"])
        worker.drain()
        await asyncio.sleep(0.02)
        assert (await web.get("r1")).status == "RUNNING"
        gates["one"].set()
        await come_true(has(web, "PENDING", "r1"))
    assert ran == ["one"]
    assert not worker.was_cut
    assert (await web.steps("r1"))[0].status == "COMMITTED"
    assert (await web.resume("r1", standing)).output == "after one"
    assert ran == ["one", "after one"]


async def test_a_drain_interrupts_what_takes_too_long_and_counts_no_crash(place: Place) -> None:
    web, mine = place.executor(), place.executor()
    await web.start(standing, run_id="r1", name="one")
    async with working(mine, drain_s=0.05) as worker:
        await come_true(lambda: entered == ["one"])
        worker.drain()
        await come_true(has(web, "PENDING", "r1"))
    assert worker.was_cut
    gates["one"].set()
    assert (await web.resume("r1", standing)).output == "after one"
    stood = (await web.steps("r1"))[0]
    assert (stood.record.attempt, stood.record.crashes) == (2, 0)


async def test_a_cancelled_worker_releases_its_runs(place: Place) -> None:
    web, mine = place.executor(), place.executor()
    await web.start(standing, run_id="r1", name="one")
    serving = asyncio.create_task(mine.worker().serve())
    await come_true(lambda: entered == ["one"])
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    assert (await web.get("r1")).status == "PENDING"


class Unreachable(ForwardingJournal):
    """A journal that is out of reach for a while."""

    away = True
    asked = 0

    async def ask(self, call: Any, *args: Any, **options: Any) -> Any:
        if self.away:
            self.asked += 1
            raise JournalUnavailable("the network is down", waited_s=60)
        return await super().ask(call, *args, **options)


async def test_a_store_out_of_reach_is_waited_for(lines: Lines) -> None:
    clock = FakeClock()
    inner = open_store("memory://", clock)
    journal = Unreachable(inner.journal)
    web = DurableWorkflowExecutor(inner, clock=clock)
    await web.start(tiny, run_id="r1", name="one")
    mine = DurableWorkflowExecutor(Store(inner.url, journal, inner.blobs), clock=clock)
    async with working(mine):
        await come_true(lambda: journal.asked >= 20)
        assert clock.now_ms() - FakeClock().now_ms() > 100_000  # it asks less and less often
        journal.away = False
        await come_true(has(web, "COMPLETED", "r1"))
        await come_true(lambda: bool(lines.of("worker_looks_again")))
    assert lines.of("worker_cannot_look")


class Rival(ForwardingJournal):
    """A journal in which somebody else is faster to a run."""

    acquired_by: DurableWorkflowExecutor | None = None
    woken: list[RunHeader]

    async def acquire(self, seen: RunHeader, claim: Any, **options: Any) -> Any:
        other, self.acquired_by = self.acquired_by, None
        if other is not None:
            self.task = asyncio.create_task(other.resume(seen.run_id, standing))
            await come_true(lambda: bool(entered))
        return await super().acquire(seen, claim, **options)

    async def wake(self, seen: RunHeader) -> Any:
        self.woken.append(seen)
        return await super().wake(seen)


async def test_a_worker_that_comes_second_tells_the_first_to_look_again(place: Place) -> None:
    web = place.executor()
    store = place.store()
    journal = Rival(store.journal)
    journal.acquired_by, journal.woken = web, []
    await web.start(standing, run_id="r1", name="one")
    mine = place.executor(store=Store(store.url, journal, store.blobs))
    taken = await mine.worker().recover()
    assert [(one.status, one.error.code if one.error else None) for one in taken] == [("LEFT", "RUN_BUSY")]
    header = await web.store.journal.header("r1")
    assert header is not None
    assert (header.status, header.fence, header.wake_count) == ("RUNNING", 1, 1)
    gates["one"].set()
    await journal.task
    assert ran == ["one", "after one"]


async def test_what_cannot_be_driven_is_left_alone_for_longer_each_time(
    lines: Lines,
) -> None:
    clock = FakeClock()
    executor = DurableWorkflowExecutor("memory://", clock=clock)
    await put_run(executor, "bad", "worker_tiny", b"{")
    await executor.start(tiny, run_id="good", name="good")
    begin = clock.now_ms()
    async with working(executor):
        await come_true(has(executor, "COMPLETED", "good"))
        await come_true(lambda: clock.now_ms() > begin + 600_000)
    tried = len(lines.of("run_left"))
    assert 5 <= tried <= 12
    assert (await executor.get("bad")).status == "PENDING"
    await executor.close()


class SlowToTell(ForwardingJournal):
    """A journal whose reply to a take is on its way for so long that a driver may look meanwhile."""

    async def take(self, event: Any, outcome: Any) -> Any:
        reply = await super().take(event, outcome)
        await asyncio.sleep(0.3)
        return reply


async def test_a_run_is_not_suspended_for_an_event_that_it_has_just_taken(place: Place) -> None:
    store = place.store()
    mine = place.executor(store=Store(store.url, SlowToTell(store.journal), store.blobs))
    await mine.start(asking, run_id="r1", name="one")
    await mine.signal("r1", "answer", "yes")
    taken = await mine.worker().recover()
    assert [one.status for one in taken] == ["COMPLETED"]
    assert ran == ["one: yes"]


class Defective(ForwardingJournal):
    """A journal with a defect that one run comes upon."""

    async def acquire(self, seen: RunHeader, claim: Any, **options: Any) -> Any:
        if seen.run_id == "bad":
            raise RuntimeError(f"unexpected {seen.input_data!r}")
        return await super().acquire(seen, claim, **options)


async def test_a_defect_that_one_run_comes_upon_is_told_and_the_others_go_on(
    place: Place, lines: Lines
) -> None:
    store = place.store()
    mine = place.executor(store=Store(store.url, Defective(store.journal), store.blobs))
    await mine.start(tiny, run_id="bad", name="m4rk3r")
    await mine.start(tiny, run_id="good", name="good")
    taken = {one.run_id: one.status for one in await mine.worker().recover()}
    assert taken == {"bad": "LEFT", "good": "COMPLETED"}
    (told,) = lines.of("run_left")
    assert (told["run_id"], told["error"]) == ("bad", "RuntimeError")
    assert "in acquire" in told["traceback"]
    assert "m4rk3r" not in json.dumps(told)


@pytest.mark.parametrize("run_id", ["", " ", "a/b"])
async def test_a_row_under_no_id_is_told_of_and_never_run(place: Place, lines: Lines, run_id: str) -> None:
    mine = place.executor()
    await put_run(mine, run_id, "worker_tiny", b'{"name":"ghost"}')
    assert await mine.worker().recover() == []
    assert [one["run_id"] for one in lines.of("run_left_alone")] == [run_id]
    assert ran == []


async def test_workers_with_the_same_list_run_everything_once(place: Place) -> None:
    web = place.executor()
    for n in range(30):
        await web.start(tiny, run_id=f"r{n}", name=f"{n}")
    passes = [place.executor().worker(concurrency=5).recover() for _ in range(3)]
    taken = [one for found in await asyncio.gather(*passes) for one in found]
    assert sorted(ran) == sorted(f"{n}" for n in range(30))
    assert sum(one.status == "COMPLETED" for one in taken) >= 30
    assert {one.error.code for one in taken if one.error is not None} <= {"RUN_BUSY"}
    assert {one.fence for one in await web.list()} == {1}


async def test_a_damaged_header_hides_no_other_run(tmp_path: Path, lines: Lines) -> None:
    async with DurableWorkflowExecutor(db_path=tmp_path / "runs.db") as executor:
        await executor.start(tiny, run_id="damaged", name="never")
        await executor.start(tiny, run_id="sound", name="sound")
        with contextlib.closing(sqlite3.connect(tmp_path / "runs.db")) as file, file:
            file.execute("UPDATE runs SET fence = 'x' WHERE run_id = 'damaged'")
        taken = await executor.worker().recover()
        assert [(one.run_id, one.status) for one in taken] == [("sound", "COMPLETED")]
    assert [one["run_id"] for one in lines.of("run_corrupt")] == ["damaged"]


async def put_run(executor: DurableWorkflowExecutor, run_id: str, workflow_name: str, inputs: bytes) -> None:
    """A run as somebody else may have left it in the store."""
    now_ms = executor._tools.clock.now_ms()
    header = RunHeader(
        run_id, workflow_name, input_data=inputs, input_codec="json", input_size=len(inputs),
        due_at_ms=now_ms - 1000, created_at=rfc3339(now_ms), updated_at=rfc3339(now_ms),
    )  # fmt: skip
    await executor.store.journal.open()
    assert (await executor.store.journal.create(header)).ok
