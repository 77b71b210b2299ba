"""One SQLite file, many users: processes, forks, readers, other programs; `DURABLE_FULL=1` is full scale."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from durable_core import Context, DurableWorkflowExecutor, step, workflow
from durable_core.errors import JournalUnavailable, StoreMisconfigured
from durable_core.journal import _sqlite_file, paging
from durable_core.journal.sqlite import SqliteJournal
from durable_core.records import COMPLETED
from durable_core.stores import Store, open_store
from durable_core.testing.samples import AT, RUN, attempt, header, pruning
from durable_core.testing.samples import committed as committed_record
from tests.e2e.programs.nursery import Nursery, is_over, open_nursery
from tests.e2e.programs.sharing import counting
from tests.e2e.programs.witness import (
    committed,
    count,
    integrity,
    leave,
    left,
    names,
    noted,
    size_of,
    statuses,
)
from tests.waiting import full, until

STEPS = 4000 if full() else 200
LOCKED_S = 10.0 if full() else 2.0
LOG_MAX_BYTES = 64 * 1024 * 1024


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    yield from open_nursery()


# ---- Processes ----


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 8])
async def test_processes_that_share_a_file_all_get_their_share(
    processes: int, nursery: Nursery, tmp_path: Path
) -> None:
    db = tmp_path / "runs.db"
    runs = [f"r{number}" for number in range(processes)]
    steps = STEPS * 2 // processes
    pids = [nursery.start("sharing", db, run, steps, tmp_path) for run in runs]
    reading = DurableWorkflowExecutor(db_path=db)
    await reading.list()  # makes the schema
    leave(tmp_path / "go")
    looks = 0
    async with asyncio.timeout(120), reading:
        while not all(is_over(pid) for pid in pids):
            for view in await reading.list():
                assert len(await reading.steps(view.run_id)) <= steps
            looks += 1
    assert [nursery.wait(pid) for pid in pids] == [0] * processes
    assert looks > 0
    speeds = [float(left(tmp_path / f"{run}.speed") or 0) for run in runs]
    assert min(speeds) >= sum(speeds) / processes / 10, f"slowest to fastest {min(speeds) / max(speeds):.2f}"
    assert all(len(committed(db, run)) == steps for run in runs)
    assert integrity(db) == "ok"


@pytest.mark.slow
async def test_a_file_that_others_open_and_close_all_the_time_stays_whole(
    nursery: Nursery, tmp_path: Path
) -> None:
    db = tmp_path / "runs.db"
    leave(tmp_path / "go")
    pid = nursery.start("sharing", db, "r1", STEPS, tmp_path)
    async with asyncio.timeout(120):
        for _ in range(500 if full() else 50):
            async with DurableWorkflowExecutor(db_path=db) as passing:
                await passing.list()
    assert nursery.wait(pid) == 0
    assert len(committed(db, "r1")) == STEPS
    assert integrity(db) == "ok"


@pytest.mark.slow
def test_forked_children_use_the_executor_that_they_inherited(nursery: Nursery, tmp_path: Path) -> None:
    """Two of four are killed; the others, and the parent, lose nothing."""
    db = tmp_path / "runs.db"
    parent = nursery.start("forking", f"sqlite:///{db}", tmp_path, 4, STEPS)
    (pids,) = until(lambda: noted(tmp_path / "pids"), "the children")
    assert isinstance(pids, list)
    for number in (0, 1):
        until(
            lambda number=number: count(tmp_path / f"child-{number}.acks") > 0, f"child {number}", limit_s=10
        )
        os.kill(pids[number], signal.SIGKILL)
    nursery.wait(parent)
    assert integrity(db) == "ok"
    for run in ("parent", *(f"child-{number}" for number in range(4))):
        assert len(committed(db, run)) >= count(tmp_path / f"{run}.acks")
    for run in ("parent", "child-2", "child-3"):
        assert len(committed(db, run)) == STEPS


@pytest.mark.slow
@pytest.mark.parametrize("whose", ["inherited", "new"])
@pytest.mark.parametrize("when", ["after", "inside"])
def test_what_a_forked_child_commits_after_its_parent_has_closed_is_kept(
    when: str, whose: str, nursery: Nursery, tmp_path: Path
) -> None:
    """SQLite's locks aren't inherited: a parent that takes itself for the last user deletes the log."""
    db = tmp_path / "runs.db"
    parent = nursery.start("parting", f"sqlite:///{db}", tmp_path, when, whose)
    (child,) = until(lambda: noted(tmp_path / "pids"), "the child")
    assert isinstance(child, int)
    until(lambda: (tmp_path / "done").exists() or is_over(child), "the child's commits")
    assert len(committed(db, "orphan")) == count(tmp_path / "acks") == 50
    os.kill(child, signal.SIGKILL)
    assert nursery.wait(parent) == 0
    assert len(committed(db, "orphan")) == 50
    assert integrity(db) == "ok"


@pytest.mark.slow
async def test_writers_never_wait_long_for_a_large_pruning(nursery: Nursery, tmp_path: Path) -> None:
    """Of 200,000 rows at full scale, interrupted and continued, beside four processes that save."""
    db = tmp_path / "runs.db"
    rows, folder = 200_000 if full() else 6_000, tmp_path
    journal = SqliteJournal(db)
    await journal.open()
    await journal.create(header(status=COMPLETED, fence=1))
    with closing(sqlite3.connect(db)) as filling:
        row = committed_record(attempt(), b"x" * 1000)
        marks = ", ".join("?" * len(row))
        filling.executemany(
            f"INSERT INTO checkpoints ({', '.join(row._fields)}) VALUES ({marks})",  # noqa: S608  # their names
            (row._replace(step_id=f"s#{n}") for n in range(rows)),
        )
        filling.commit()
    runs = [f"w{number}" for number in range(4)]
    pids = [nursery.start("saving", db, run, folder) for run in runs]
    until(lambda: all((folder / f"{run}.ready").exists() for run in runs), "the writers")
    deleted = 0
    for owner in ("first", "second"):
        me = await pruning(journal, owner)
        async for page in journal.children(RUN):
            await journal.delete(RUN, page, me.fence)
            deleted += len(page)
            if owner == "first" and deleted >= rows // 3:
                break
    assert deleted == rows
    assert (await journal.bury(me, AT)).ok
    await journal.close()
    leave(folder / "stop")
    assert [nursery.wait(pid) for pid in pids] == [0] * 4
    assert max(float(left(folder / f"{run}.slowest") or "inf") for run in runs) < 2
    assert all(len(committed(db, run)) == int(left(folder / f"{run}.saved") or 0) for run in runs)
    assert statuses(db, RUN) == {}
    assert integrity(db) == "ok"


async def test_a_link_and_the_real_path_are_one_file(tmp_path: Path) -> None:
    real = tmp_path / "data"
    real.mkdir()
    link = tmp_path / "link.db"
    link.symlink_to(real / "runs.db")
    async with (
        DurableWorkflowExecutor(db_path=link) as one,
        DurableWorkflowExecutor(db_path=real / "runs.db") as other,
    ):
        await asyncio.gather(
            *(executor.run(counting, run_id=f"r{number}", steps=50, acks=None)
              for number, executor in enumerate((one, other, one, other)))
        )  # fmt: skip
        await one.run(large, run_id="large")
        assert (await other.run(large, run_id="large")).output == "x" * 9 + "y"
        assert len(await one.list()) == len(await other.list()) == 5
        assert (real / "runs.db-wal").exists()
        assert (real / "runs.db.blobs").exists()
        assert names(tmp_path) == ["data", "link.db"]
    assert integrity(real / "runs.db") == "ok"


@step
async def blob() -> bytes:
    return os.urandom(20_000)


@workflow
async def large(ctx: Context) -> str:
    return "x" * (len(await ctx.step(blob)) // 2_200) + "y"


# ---- Other programs in the way ----


@contextmanager
def locked(db: Path, seconds: float) -> Iterator[None]:
    """Another program has the file locked for writing, from now on and for so long."""
    connection = sqlite3.connect(db, isolation_level=None, check_same_thread=False)
    connection.execute("BEGIN IMMEDIATE")
    timer = threading.Timer(seconds, connection.close)
    timer.start()
    try:
        yield
    finally:
        timer.join()


class Meanwhile:
    """What a test lets happen at chosen points of the workflow below."""

    def __init__(self) -> None:
        self.bodies: list[str] = []
        self.at: str | None = None
        self.locks: list[threading.Timer] = []
        self.db = Path()
        self.seconds = 0.0

    def point(self, name: str) -> None:
        if name == self.at:
            connection = sqlite3.connect(self.db, isolation_level=None, check_same_thread=False)
            connection.execute("BEGIN IMMEDIATE")
            timer = threading.Timer(self.seconds, connection.close)
            timer.start()
            self.locks.append(timer)


meanwhile = Meanwhile()


@step
async def noting(name: str) -> str:
    meanwhile.bodies.append(name)
    meanwhile.point(f"in {name}")
    return name


@workflow
async def noted_steps(ctx: Context) -> list[str]:
    found = []
    for name in "abc":
        found.append(await ctx.step(noting, name))
        meanwhile.point(f"after {name}")
    return found


@pytest.fixture
def at(tmp_path: Path) -> Iterator[Meanwhile]:
    meanwhile.__init__()  # type: ignore[misc]  # as new
    meanwhile.db = tmp_path / "runs.db"
    yield meanwhile
    for timer in meanwhile.locks:
        timer.join()


@pytest.mark.parametrize(
    "when",
    [
        pytest.param("in b", id="the_outcome_of_a_step"),
        pytest.param("after b", id="the_start_of_a_step"),
        pytest.param("after c", id="the_end_of_the_run"),
    ],
)
async def test_a_lock_of_another_program_is_waited_for(when: str, at: Meanwhile, tmp_path: Path) -> None:
    at.at, at.seconds = when, 0.3
    async with DurableWorkflowExecutor(db_path=at.db) as executor:
        result = await executor.run(noted_steps, run_id="r1")
        assert at.locks
        assert (result.status, result.output) == ("COMPLETED", ["a", "b", "c"])
        assert at.bodies == ["a", "b", "c"]
        assert [view.record.attempt for view in await executor.steps("r1")] == [1, 1, 1]


async def test_looks_and_new_runs_wait_for_a_lock_too(at: Meanwhile) -> None:
    async with DurableWorkflowExecutor(db_path=at.db) as executor:
        await executor.run(noted_steps, run_id="r1")
        with locked(at.db, LOCKED_S):
            assert [view.run_id for view in await executor.list()] == ["r1"]
            assert len(await executor.steps("r1")) == 3
            assert (await executor.run(noted_steps, run_id="r1")).output == ["a", "b", "c"]
            assert (await executor.run(noted_steps, run_id="r2")).output == ["a", "b", "c"]


def test_a_file_that_another_program_keeps_to_itself_is_waited_for_when_it_is_opened(at: Meanwhile) -> None:
    with closing(DurableWorkflowExecutorSync(at.db)) as first:
        first.run("r1")
    alone = sqlite3.connect(at.db, isolation_level=None, check_same_thread=False)
    alone.execute("PRAGMA locking_mode=EXCLUSIVE")
    alone.execute("BEGIN IMMEDIATE")
    alone.execute("CREATE TABLE of_another_program (x)")
    alone.execute("COMMIT")
    timer = threading.Timer(0.4, alone.close)
    timer.start()
    with closing(DurableWorkflowExecutorSync(at.db)) as second:
        assert second.run("r1") == ["a", "b", "c"]
        assert not timer.is_alive()
        timer.join()
        assert second.run("r2") == ["a", "b", "c"]


class DurableWorkflowExecutorSync:
    def __init__(self, db: Path) -> None:
        self.executor = DurableWorkflowExecutor(db_path=db)

    def run(self, run_id: str) -> list[str]:
        return self.executor.run_sync(noted_steps, run_id=run_id).output

    def close(self) -> None:
        asyncio.run(self.executor.close())


async def test_a_file_locked_beyond_the_limit_leaves_a_run_that_can_be_resumed(at: Meanwhile) -> None:
    at.at, at.seconds = "in b", 1.5
    opened = open_store(f"sqlite:///{at.db}")
    store = Store(opened.url, SqliteJournal(at.db, busy_limit_s=1.05), opened.blobs)
    async with DurableWorkflowExecutor(store, lease_s=0.5) as executor:
        with pytest.raises(JournalUnavailable, match=r"has kept .* locked for 1\.05 s") as caught:
            await executor.run(noted_steps, run_id="r1")
        assert caught.value.retryable
        for timer in at.locks:
            timer.join()
        at.at = None
        assert (await executor.run(noted_steps, run_id="r1", wait=True)).output == ["a", "b", "c"]
        assert at.bodies == ["a", "b", "b", "c"]


# ---- The file ----


def test_every_connection_is_set_up_alike(tmp_path: Path) -> None:
    db = tmp_path / "runs.db"
    _sqlite_file.prepare(db)
    with closing(_sqlite_file.connect(db)) as connection:
        found = {
            name: connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("journal_mode", "synchronous", "journal_size_limit", "busy_timeout")
        }
    assert found == {
        "journal_mode": "wal",
        "synchronous": 2,
        "journal_size_limit": LOG_MAX_BYTES,
        "busy_timeout": 0,
    }


@pytest.mark.parametrize("kind", ["nfs4", "nfs", "cifs", "9p"])
async def test_a_file_on_a_network_file_system_is_refused(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_sqlite_file, "file_system", lambda _: kind)
    executor = DurableWorkflowExecutor(db_path=tmp_path / "runs.db")
    with pytest.raises(StoreMisconfigured, match=f"network file system .{kind}.*postgresql://"):
        await executor.run(noted_steps, run_id="r1")
    assert names(tmp_path) == []


def test_a_log_that_cannot_be_switched_on_is_noticed(tmp_path: Path) -> None:
    class Stubborn(sqlite3.Connection):
        def execute(self, sql: str, *values: object) -> sqlite3.Cursor:
            return super().execute(sql.replace("journal_mode=WAL", "journal_mode"), *values)  # type: ignore[arg-type]

    with (
        closing(sqlite3.connect(tmp_path / "runs.db", factory=Stubborn)) as connection,
        pytest.raises(StoreMisconfigured, match="write-ahead log"),
    ):
        _sqlite_file._use_wal(connection, tmp_path / "runs.db")


async def test_a_listing_that_is_not_read_to_its_end_holds_nothing_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paging, "PAGE_ROWS", 5)
    db = tmp_path / "runs.db"
    async with DurableWorkflowExecutor(db_path=db) as executor:
        await executor.run(counting, run_id="r1", steps=20, acks=None)
        pages = executor.store.journal.steps("r1")
        assert len(await anext(pages)) == 5
        with closing(sqlite3.connect(db)) as other:
            busy, _, _ = other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        assert busy == 0
        assert size_of(tmp_path / "runs.db-wal") == 0
        assert [len(page) async for page in pages] == [5, 5, 5]


async def test_a_log_that_a_reader_made_grow_is_used_again_when_the_reader_is_gone(tmp_path: Path) -> None:
    db, log = tmp_path / "runs.db", tmp_path / "runs.db-wal"
    async with DurableWorkflowExecutor(db_path=db) as executor:
        await executor.run(counting, run_id="r0", steps=1, acks=None)
        with closing(sqlite3.connect(db, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM checkpoints").fetchone()
            await executor.run(counting, run_id="r1", steps=STEPS * 2, acks=None)
            grown = size_of(log)
            assert grown > 2 * 500 * 4096  # beyond what a checkpoint would have emptied
        await executor.run(counting, run_id="r2", steps=STEPS * 2, acks=None)
        assert size_of(log) <= grown + 500 * 4096
    assert len(statuses(db, "r2")) == STEPS * 2


async def test_a_log_beyond_its_limit_shrinks_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = _sqlite_file.connect

    def smaller(path: Path) -> sqlite3.Connection:
        connection = plain(path)
        (limit,) = connection.execute("PRAGMA journal_size_limit").fetchone()
        connection.execute(f"PRAGMA journal_size_limit={limit // 32}")
        return connection

    monkeypatch.setattr("durable_core.journal._sqlite_writer.connect", smaller)
    db, log = tmp_path / "runs.db", tmp_path / "runs.db-wal"
    async with DurableWorkflowExecutor(db_path=db) as executor:
        await executor.run(counting, run_id="r0", steps=1, acks=None)
        with closing(sqlite3.connect(db, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM checkpoints").fetchone()
            await executor.run(counting, run_id="r1", steps=STEPS, acks=None)
            assert size_of(log) > LOG_MAX_BYTES // 32
        await executor.run(counting, run_id="r2", steps=10, acks=None)
        assert size_of(log) <= LOG_MAX_BYTES // 32
