"""One database, many users: forks, threads, event loops; large outputs; poolers between."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from durable_core import Context, DurableWorkflowExecutor, step, workflow
from durable_core.errors import JournalUnavailable
from durable_core.journal._postgres_pool import Pool
from durable_core.journal._postgres_server import server_of
from durable_core.journal.postgres import PostgresJournal
from durable_core.records import RunHeader
from durable_core.stores import open_store
from durable_core.testing.samples import RUN, driven, renewed
from tests.e2e.programs.nursery import Nursery, is_over, open_nursery
from tests.e2e.programs.sharing import counting
from tests.e2e.programs.witness import count, noted
from tests.postgres import PostgresServer
from tests.proxy import Pooler, Proxy
from tests.waiting import full, until

STEPS = 1000 if full() else 100
OURS = "FROM pg_stat_activity WHERE application_name = 'durable-core'"


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    yield from open_nursery()


def committed(postgres: PostgresServer, url: str, run_id: str) -> int:
    schema = url.rpartition("=")[2]
    query = "SELECT count(*) FROM checkpoints WHERE run_id = %s AND status = 'COMMITTED'"
    ((found,),) = postgres.query(query, run_id, schema=schema)
    assert isinstance(found, int)
    return found


# ---- Forks ----


@pytest.mark.slow
def test_forked_children_use_the_executor_that_they_inherited(
    nursery: Nursery, postgres: PostgresServer, postgres_url: str, tmp_path: Path
) -> None:
    """Two of four are killed; the others, and the parent, lose nothing."""
    parent = nursery.start("forking", postgres_url, tmp_path, 4, STEPS)
    (pids,) = until(lambda: noted(tmp_path / "pids"), "the children")
    assert isinstance(pids, list)
    for number in (0, 1):
        until(lambda number=number: count(tmp_path / f"child-{number}.acks") > 0, f"child {number}")
        os.kill(pids[number], signal.SIGKILL)
    nursery.wait(parent, limit_s=60)
    for run in ("parent", *(f"child-{number}" for number in range(4))):
        assert committed(postgres, postgres_url, run) >= count(tmp_path / f"{run}.acks")
    for run in ("parent", "child-2", "child-3"):
        assert committed(postgres, postgres_url, run) == STEPS


@pytest.mark.slow
@pytest.mark.parametrize("whose", ["inherited", "new"])
@pytest.mark.parametrize("when", ["after", "inside"])
def test_a_forked_child_and_its_parent_leave_each_others_connections_alone(
    when: str, whose: str, nursery: Nursery, postgres: PostgresServer, postgres_url: str, tmp_path: Path
) -> None:
    parent = nursery.start("parting", postgres_url, tmp_path, when, whose)
    (child,) = until(lambda: noted(tmp_path / "pids"), "the child")
    assert isinstance(child, int)
    until(lambda: (tmp_path / "done").exists() or is_over(child), "the child's commits")
    assert committed(postgres, postgres_url, "orphan") == count(tmp_path / "acks") == 50
    os.kill(child, signal.SIGKILL)
    assert nursery.wait(parent) == 0


INHERITED = """
import os, sys
from durable_core.journal._postgres_blocking import BlockingConnection
from durable_core.journal._postgres_server import server_of

connection = BlockingConnection(server_of(sys.argv[1]))
ours = connection.run("SELECT pg_backend_pid()")
child = os.fork()
if child == 0:
    theirs = connection.run("SELECT pg_backend_pid()")
    os._exit(theirs == ours)
assert os.waitpid(child, 0)[1] == 0
assert connection.run("SELECT pg_backend_pid()") == ours
connection.close()
"""


def test_a_connection_for_plain_code_that_a_child_inherits_stays_its_parents(postgres_url: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", INHERITED, postgres_url],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


# ---- Event loops and threads ----


def test_one_event_loop_after_the_other_finds_the_connections_of_the_one_before(
    postgres: PostgresServer, postgres_url: str
) -> None:
    executor = DurableWorkflowExecutor(postgres_url)
    try:
        pids = set()
        for number in range(3):
            assert executor.run_sync(counting, run_id=f"r{number}", steps=5, acks=None).output == 5
            (found,) = asyncio.run(_pids(executor))
            pids.add(found)
        assert len(pids) == 1
    finally:
        asyncio.run(executor.close())


async def _pids(executor: DurableWorkflowExecutor) -> list[object]:
    journal = executor.store.journal
    assert isinstance(journal, PostgresJournal)
    return [row[0] for row in (await journal.pool.run("SELECT pg_backend_pid()")).rows]


async def test_loops_in_several_threads_share_one_pool_and_wait_for_each_others_connections(
    postgres_url: str,
) -> None:
    async with DurableWorkflowExecutor(f"{postgres_url}&connections=2") as executor:
        await executor.list()

        def run(number: int) -> int:
            return executor.run_sync(counting, run_id=f"r{number}", steps=20, acks=None).output

        outputs = await asyncio.gather(
            *(asyncio.to_thread(run, number) for number in range(4)),
            *(_counted(executor, number) for number in range(4, 8)),
        )
    assert outputs == [20] * 8


async def _counted(executor: DurableWorkflowExecutor, number: int) -> int:
    return (await executor.run(counting, run_id=f"r{number}", steps=20, acks=None)).output


def test_who_waits_in_a_loop_that_has_ended_keeps_no_connection_from_others(postgres_url: str) -> None:
    pool = Pool(server_of(f"{postgres_url}&connections=1"), wait_limit_s=5)
    held = asyncio.new_event_loop()

    async def hold() -> None:
        async with pool.transaction():
            waiting = asyncio.create_task(pool.run("SELECT 1"))
            waiting_too = asyncio.create_task(pool.run("SELECT 2"))
            await asyncio.sleep(0.01)
            waiting.cancel()
            assert not waiting_too.done()
            held.call_soon(held.stop)
            await asyncio.sleep(0)

    with pytest.raises(RuntimeError, match="stopped"):
        held.run_until_complete(hold())
    for task in asyncio.all_tasks(held):
        task.cancel()
    held.run_until_complete(asyncio.gather(*asyncio.all_tasks(held), return_exceptions=True))
    held.close()
    assert asyncio.run(pool.run("SELECT 3")).rows == [(3,)]
    pool.close()


async def test_connections_that_were_closed_while_idle_are_replaced_unnoticed(
    postgres: PostgresServer, postgres_url: str
) -> None:
    pool = Pool(server_of(postgres_url))
    await asyncio.gather(*(pool.run("SELECT pg_sleep(0.05)") for _ in range(3)))
    assert postgres.query(f"SELECT pg_terminate_backend(pid, 5000) {OURS}") == [(True,)] * 3
    assert (await pool.run("SELECT 1")).rows == [(1,)]
    pool.close()


async def test_after_a_silence_no_connection_of_before_it_is_used_again(
    postgres: PostgresServer, postgres_url: str
) -> None:
    with Proxy(postgres.port) as proxy:
        through = postgres_url.replace(f":{postgres.port}/", f":{proxy.port}/")
        pool = Pool(server_of(through), wait_limit_s=0.3)
        await asyncio.gather(*(pool.run("SELECT pg_sleep(0.05)") for _ in range(3)))
        before = {pid for (pid,) in postgres.query(f"SELECT pid {OURS}")}
        assert len(before) == 3
        proxy.silent = True
        with pytest.raises(JournalUnavailable, match="hasn't answered"):
            await pool.run("SELECT 1")
        proxy.silent = False
        ((pid,),) = (await pool.run("SELECT pg_backend_pid()")).rows
        assert pid not in before
        pool.close()


async def test_a_cancelled_caller_leaves_when_its_write_is_made(postgres_url: str) -> None:
    store = open_store(postgres_url)
    journal = store.journal
    assert isinstance(journal, PostgresJournal)
    await journal.open()
    try:
        me = await driven(journal)
        async with journal.pool.transaction() as session:
            await session.run("SELECT 1 FROM durable.runs WHERE run_id = %s FOR UPDATE", (RUN,))
            leaving = asyncio.create_task(journal.cancel(await _seen(journal), "now"))
            await asyncio.sleep(0.05)
            leaving.cancel()
            await asyncio.sleep(0.05)
            assert not leaving.done()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        assert (await _seen(journal)).status == "CANCELLED"
        assert not (await renewed(journal, me)).ok
    finally:
        await journal.close()


async def test_a_cancelled_caller_does_not_wait_for_what_stays_busy(postgres_url: str) -> None:
    store = open_store(postgres_url)
    journal = store.journal
    assert isinstance(journal, PostgresJournal)
    await journal.open()
    try:
        await driven(journal)
        seen = await _seen(journal)
        async with journal.pool.transaction() as session:
            await session.run("SELECT 1 FROM durable.runs WHERE run_id = %s FOR UPDATE", (RUN,))
            leaving = asyncio.create_task(journal.cancel(seen, "now"))
            await asyncio.sleep(0.05)
            leaving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(leaving, 5)
        assert await journal.header(RUN) == seen
    finally:
        await journal.close()


async def _seen(journal: PostgresJournal) -> RunHeader:
    found = await journal.header(RUN)
    assert found is not None
    return found


# ---- Poolers ----


async def test_a_pooler_may_send_each_transaction_over_another_connection(
    postgres: PostgresServer, postgres_url: str
) -> None:
    with Pooler(postgres.port) as pooler:
        through = postgres_url.replace(f":{postgres.port}/", f":{pooler.port}/")
        async with DurableWorkflowExecutor(through, lease_s=0.1) as executor:
            runs = [executor.run(large_and_small, run_id=f"r{number}") for number in range(8)]
            assert [result.output for result in await asyncio.gather(*runs)] == [20_030] * 8
        assert pooler.moves > 50


@step
async def small() -> int:
    return 1


@step
async def spilled() -> bytes:
    return os.urandom(20_000)


@workflow
async def large_and_small(ctx: Context) -> int:
    return len(await ctx.step(spilled)) + sum([await ctx.step(small) for _ in range(30)])
