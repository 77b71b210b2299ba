"""PostgreSQL in trouble: the right result, or a typed error with the journal intact; no body runs twice."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import pytest

from durable_core import Context, DurableWorkflowExecutor, Retry, step, workflow
from durable_core.blobs.sql import SqlBlobs
from durable_core.errors import JournalUnavailable, StepFailed
from durable_core.journal._postgres_pool import Pool
from durable_core.journal._postgres_server import server_of
from durable_core.journal.postgres import PostgresJournal
from durable_core.stores import Store
from tests.postgres import PostgresServer
from tests.proxy import Proxy

ran: Counter[str] = Counter()
happens: dict[str, Callable[[], None]] = {}
"""What happens in a body, once."""


@pytest.fixture(autouse=True)
def _fresh() -> None:
    ran.clear()
    happens.clear()


def body(name: str) -> str:
    ran[name] += 1
    happens.pop(name, lambda: None)()
    return name


@step
async def first() -> str:
    return body("first")


@step(semantics="at_most_once")
async def once() -> str:
    return body("once")


@step(pure=True)
async def pure() -> str:
    return body("pure")


@step(retry=Retry(max_attempts=2, initial_delay_s=0))
async def shaky() -> str:
    if body("shaky") and ran["shaky"] == 1:
        raise ValueError("the first time")
    return "shaky"


@step
async def fails() -> str:
    raise ValueError(body("fails"))


@step
async def large() -> bytes:
    body("large")
    return os.urandom(20_000)


@step
def last() -> str:
    return body("last")


@workflow
async def all_kinds(ctx: Context) -> list[object]:
    done: list[object] = [await ctx.step(one) for one in (first, once, pure, shaky)]
    try:
        await ctx.step(fails)
    except StepFailed:
        done.append("caught")
    return [*done, len(await ctx.step(large)), await ctx.step(last)]


RIGHT = ["first", "once", "pure", "shaky", "caught", 20_000, "last"]
EACH_ONCE = {"first": 1, "once": 1, "pure": 1, "shaky": 2, "fails": 1, "large": 1, "last": 1}


@asynccontextmanager
async def used(url: str, wait_limit_s: float = 30, **options: Any) -> AsyncIterator[DurableWorkflowExecutor]:
    """An executor whose store gives up waiting when it is told to."""
    pool = Pool(server_of(url), wait_limit_s=wait_limit_s)
    store = Store(pool.place, PostgresJournal(pool), SqlBlobs(pool))
    async with DurableWorkflowExecutor(store, **options) as executor:
        yield executor


async def run_to_its_end(executor: DurableWorkflowExecutor, run_id: str) -> object:
    """Resumes it as often as the store is out of reach."""
    for _ in range(3):
        try:
            return (await executor.run(all_kinds, run_id=run_id, wait=True)).output
        except JournalUnavailable:
            await asyncio.sleep(0.05)
    return (await executor.run(all_kinds, run_id=run_id, wait=True)).output


# ---- The network ----


@pytest.fixture
def proxy(postgres: PostgresServer) -> Iterator[Proxy]:
    with Proxy(postgres.port) as found:
        yield found


@pytest.fixture
def through(postgres: PostgresServer, postgres_url: str, proxy: Proxy) -> str:
    """The store's URL by way of the proxy."""
    return postgres_url.replace(f":{postgres.port}/", f":{proxy.port}/")


def nth(number: int) -> Callable[[bytes], bool]:
    """True for the request of that number from now on."""
    left = iter(range(number, 0, -1))
    return lambda _: next(left, 0) == 1


@pytest.mark.parametrize("what", ["reply", "request"])
async def test_whatever_statement_is_lost_the_run_comes_to_the_same_end_and_each_body_runs_once(
    what: str, proxy: Proxy, through: str
) -> None:
    async with used(through) as executor:
        await executor.list()
        before = proxy.requests
        assert (await executor.run(all_kinds, run_id="r0")).output == RIGHT
        total = proxy.requests - before
        assert total > 15
        for number in range(1, total + 1):
            ran.clear()
            if what == "reply":
                proxy.loses = nth(number)
            else:
                proxy.drops = nth(number)
            assert await run_to_its_end(executor, f"r{number}") == RIGHT
            assert ran == EACH_ONCE, f"request {number} of {total}"


async def test_a_connection_that_was_closed_while_a_step_ran_is_replaced_unnoticed(
    postgres: PostgresServer, postgres_url: str
) -> None:
    def terminate() -> None:
        cut = postgres.query(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'durable-core'"
        )
        assert cut

    async with used(postgres_url) as executor:
        happens.update(first=terminate, once=terminate, large=terminate)
        assert (await executor.run(all_kinds, run_id="r1")).output == RIGHT
    assert ran == EACH_ONCE
    assert not happens


async def test_a_server_that_has_gone_silent_is_given_up_after_the_limit(proxy: Proxy, through: str) -> None:
    def silence() -> None:
        proxy.silent = True

    async with used(through, wait_limit_s=0.6, lease_s=60) as executor:
        happens["once"] = silence
        with pytest.raises(JournalUnavailable, match=r"hasn't answered for 0\.6 s"):
            await asyncio.wait_for(executor.run(all_kinds, run_id="r1"), 4)
        proxy.silent = False
        assert (await executor.steps("r1"))[0].status == "COMMITTED"


# ---- The server ----


@pytest.fixture(scope="module")
def doomed() -> Iterator[PostgresServer]:
    """A server that may be killed."""
    server = PostgresServer()
    try:
        server.start()
        yield server
    finally:
        server.remove()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["killed", "stopped"])
async def test_a_server_that_restarts_in_the_middle_of_a_run_is_waited_for(
    how: str, doomed: PostgresServer
) -> None:
    restarts: list[threading.Timer] = []

    def end() -> None:
        (doomed.kill if how == "killed" else doomed.stop)()
        restarts.append(threading.Timer(0.5, doomed.start))
        restarts[-1].start()

    async with used(doomed.store(how)) as executor:
        happens.update(once=end, last=end)
        result = await executor.run(all_kinds, run_id="r1")
        assert (result.output, ran) == (RIGHT, EACH_ONCE)
        assert result.counts == {"COMMITTED": 6, "FAILED": 1}
    for restart in restarts:
        restart.join()


@pytest.mark.slow
async def test_a_server_that_stays_away_leaves_a_run_that_can_be_resumed(doomed: PostgresServer) -> None:
    async with used(doomed.store("away"), wait_limit_s=0.3, lease_s=0.5) as executor:
        happens["large"] = doomed.kill
        with pytest.raises(JournalUnavailable, match="can't be reached") as caught:
            await executor.run(all_kinds, run_id="r1")
        assert caught.value.retryable
        doomed.start()
        assert (await executor.run(all_kinds, run_id="r1", wait=True)).output == RIGHT
        assert ran == EACH_ONCE | {"large": 2}


async def test_a_server_that_is_not_there_at_the_start_is_told_at_once() -> None:
    async with asyncio.timeout(5):
        with pytest.raises(JournalUnavailable, match=r"127\.0\.0\.1:1/d.*can't be reached"):
            async with used("postgresql://127.0.0.1:1/d") as executor:
                await executor.list()


@pytest.mark.parametrize("lock", ["runs", "checkpoints"])
async def test_a_statement_that_the_server_times_out_leaves_a_run_that_can_be_resumed(
    lock: str, postgres: PostgresServer, postgres_url: str
) -> None:
    limited = f"{postgres_url}&options={quote('-cstatement_timeout=100')}"
    async with used(postgres_url) as other, used(limited, lease_s=0.5) as executor:
        await other.list()
        pool = other.store.journal.pool  # type: ignore[attr-defined]  # PostgreSQL's own
        async with pool.transaction() as session:
            await session.run(f"LOCK TABLE durable.{lock}")
            with pytest.raises(JournalUnavailable, match=r"cancelled a statement.*statement timeout"):
                await executor.run(all_kinds, run_id="r1")
        assert await run_to_its_end(executor, "r1") == RIGHT
    assert ran == EACH_ONCE


async def test_a_server_that_only_reads_can_be_looked_at_and_refuses_runs_with_a_reason(
    postgres_url: str,
) -> None:
    reading = f"{postgres_url}&options={quote('-cdefault_transaction_read_only=on')}"
    async with used(postgres_url) as executor, used(reading) as standby:
        await executor.run(all_kinds, run_id="r1")
        assert (await standby.get("r1")).status == "COMPLETED"
        assert len(await standby.steps("r1")) == 7
        with pytest.raises(JournalUnavailable, match=r"takes no writes.*target_session_attrs"):
            await standby.run(all_kinds, run_id="r2")
        assert [view.run_id for view in await executor.list()] == ["r1"]


# ---- The pool ----


@step
async def one(number: int) -> int:
    return number


async def branch(ctx: Context, number: int) -> int:
    return await ctx.step(one, number) + await ctx.step(one, number)


@workflow
async def wide(ctx: Context) -> int:
    return sum(await ctx.parallel(*(ctx.branch(branch, number) for number in range(20))))


async def test_one_connection_serves_any_number_of_branches_in_turn(
    postgres: PostgresServer, postgres_url: str
) -> None:
    async with used(f"{postgres_url}&connections=1") as executor:
        assert (await executor.run(wide, run_id="r1")).output == 2 * sum(range(20))


async def test_no_more_connections_are_opened_than_are_allowed(
    postgres: PostgresServer, postgres_url: str
) -> None:
    async with used(f"{postgres_url}&connections=3") as executor:
        await asyncio.gather(*(executor.run(wide, run_id=f"r{number}") for number in range(3)))
        ((count,),) = postgres.query(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'durable-core'"
        )
        assert isinstance(count, int)
        assert 1 <= count <= 4  # and one that renews


async def test_connections_that_stay_in_use_are_named_with_what_to_do(postgres_url: str) -> None:
    async with used(f"{postgres_url}&connections=1", wait_limit_s=0.2) as executor:
        await executor.list()
        pool = executor.store.journal.pool  # type: ignore[attr-defined]  # PostgreSQL's own
        async with pool.transaction():
            with pytest.raises(JournalUnavailable, match=r"all 1 connections .* in use.*connections="):
                await executor.run(wide, run_id="r1")
        assert (await executor.run(wide, run_id="r1")).output == 2 * sum(range(20))
