"""What only PostgreSQL can get wrong: locks of transactions, the server's time, its schema and its roles."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import pytest

from durable_core import Context, DurableWorkflowExecutor, step, workflow
from durable_core.clock import SystemClock
from durable_core.errors import (
    DurableError,
    Fenced,
    JournalUnavailable,
    RunBusy,
    SchemaTooNew,
    StoreMisconfigured,
    StoreNotFound,
    UsageError,
)
from durable_core.journal._postgres_below import FREE_PLACE, HOLD_PLACE
from durable_core.journal._postgres_headers import CREATE, creation
from durable_core.journal._postgres_pool import Session
from durable_core.journal.base import as_seen
from durable_core.journal.postgres import PostgresJournal
from durable_core.records import SUSPENDED, Event, Reply, RunHeader
from durable_core.stores import Store, open_store
from durable_core.testing.checkpoint_contract import SESSION, record
from durable_core.testing.samples import (
    AT,
    LEASE_MS,
    RUN,
    attempt,
    claim,
    committed,
    driven,
    header,
    lease_of,
    owned,
    renewed,
)
from tests.postgres import PostgresServer
from tests.waiting import full

LONG_ENOUGH_S = 0.1  # for a statement that waits for nothing


@pytest.fixture
async def store(postgres_url: str) -> AsyncIterator[Store]:
    found = open_store(postgres_url)
    await found.journal.open()
    yield found
    await found.journal.close()


@pytest.fixture
def journal(store: Store) -> PostgresJournal:
    assert isinstance(store.journal, PostgresJournal)
    return store.journal


@asynccontextmanager
async def waits(asked: Any) -> AsyncIterator[asyncio.Task[Reply[Any]]]:
    """Inside, a verb waits for another transaction; afterwards it has its reply."""
    task = asyncio.ensure_future(asked)
    await asyncio.wait((task,), timeout=LONG_ENOUGH_S)
    assert not task.done()
    yield task
    await asyncio.wait_for(task, 5)


# ---- Transactions that aren't over yet ----

TAKE_OVER = "UPDATE durable.runs SET owner = 'rival', fence = fence + 1 WHERE run_id = %s"


async def undo(session: Session) -> None:
    await session.run("ROLLBACK")
    await session.run("BEGIN")


@pytest.mark.parametrize("ends", ["committed", "undone"])
@pytest.mark.parametrize("verb", ["begin", "begin anew", "put"])
async def test_a_takeover_that_is_not_committed_yet_is_not_missed(
    journal: PostgresJournal, verb: str, ends: str
) -> None:
    me, old = await driven(journal), attempt(attempt_id="old")
    if verb == "begin anew":
        await journal.begin(old, None, me)
    verbs = {
        "begin": lambda: journal.begin(attempt(), None, me),
        "begin anew": lambda: journal.begin(attempt(), as_seen(old), me),
        "put": lambda: journal.put(committed(attempt()), None, me),
    }
    async with journal.pool.transaction() as session:
        await session.run(TAKE_OVER, (RUN,))
        async with waits(verbs[verb]()) as asked:
            await (undo(session) if ends == "undone" else session.run("COMMIT"))
        assert asked.result().ok is (ends == "undone")
        if ends == "committed":
            assert asked.result().row == (old if verb == "begin anew" else None)


async def test_a_takeover_waits_for_a_begin_in_flight_and_then_finds_its_record(
    journal: PostgresJournal,
) -> None:
    me = await driven(journal, lease_ms=-LEASE_MS)
    seen = await journal.header(RUN)
    assert seen is not None
    async with journal.pool.transaction() as session:
        lock = "SELECT 1 FROM durable.runs WHERE run_id = %s AND owner = %s FOR SHARE"
        assert (await session.run(lock, (RUN, me.owner))).rows
        async with waits(journal.acquire(seen, claim("rival"))) as asked:
            await session.run("COMMIT")
        await session.run("BEGIN")
    assert asked.result().ok


@pytest.mark.parametrize("ends", ["committed", "undone"])
async def test_a_checkpoint_waits_for_a_takeover_that_is_not_committed_yet(
    store: Store, journal: PostgresJournal, ends: str
) -> None:
    me = await driven(journal)
    assert store.checkpoints is not None
    async with journal.pool.transaction() as session:
        await session.run(TAKE_OVER, (RUN,))
        saving = asyncio.ensure_future(asyncio.to_thread(store.checkpoints.append, record("s"), me))
        await asyncio.wait((saving,), timeout=LONG_ENOUGH_S)
        assert not saving.done()
        await (undo(session) if ends == "undone" else session.run("COMMIT"))
        await asyncio.wait((saving,), timeout=5)
    if ends == "undone":
        assert saving.result() == 1
    else:
        assert isinstance(saving.exception(), Fenced)
        assert list(store.checkpoints.places(SESSION)) == []


async def test_begins_of_one_run_do_not_wait_for_each_other(journal: PostgresJournal) -> None:
    me = await driven(journal)
    async with journal.pool.transaction() as session:
        await session.run("SELECT 1 FROM durable.runs WHERE run_id = %s FOR SHARE", (RUN,))
        async with asyncio.timeout(5):
            assert (await journal.begin(attempt(), None, me)).ok
            assert (await journal.commit(committed(attempt()))).ok


def event(event_id: str = "e1", seq: int = 0, **columns: Any) -> Event:
    return Event(RUN, "approval", seq, event_id, 1, sent_at=AT)._replace(**columns)


async def test_who_creates_a_run_waits_for_an_event_that_is_sent_to_it_before_it_exists(
    journal: PostgresJournal,
) -> None:
    mark = {"run_id": RUN, "mark": "m"}
    async with journal.pool.transaction() as session:
        assert (await session.run(HOLD_PLACE, mark)).changed == 1
        async with waits(journal.create(owned(), LEASE_MS)) as asked:
            await session.run(FREE_PLACE, mark)
            await session.run("COMMIT")
        await session.run("BEGIN")
    assert asked.result().ok
    assert await journal.header(RUN) == asked.result().row


@pytest.mark.parametrize("ends", ["committed", "undone"])
async def test_an_event_to_a_run_that_is_just_being_created_is_sent_to_that_run(
    journal: PostgresJournal, ends: str
) -> None:
    async with journal.pool.transaction() as session:
        await session.run(CREATE, creation(owned(), LEASE_MS, None))
        async with waits(journal.send(event(), None)) as asked:
            await (undo(session) if ends == "undone" else session.run("COMMIT"))
    assert asked.result() == (Reply(True, event()) if ends == "undone" else Reply(False))
    now = await journal.header(RUN)
    assert (now is None) is (ends == "undone")
    if now is not None:
        assert (await journal.send(event(), now)).ok


async def test_an_early_event_leaves_no_trace_of_the_place_that_it_held(journal: PostgresJournal) -> None:
    assert (await journal.send(event(), None)).ok
    assert await journal.header(RUN) is None
    assert await journal.send(event("e2"), None) == Reply(False, event())


async def test_many_senders_at_once_all_count_and_none_is_refused_for_the_others(
    journal: PostgresJournal,
) -> None:
    seen = (await journal.create(header(status=SUSPENDED))).row
    replies = await asyncio.gather(*(journal.send(event(f"e{n}", n), seen) for n in range(20)))
    assert all(reply.ok for reply in replies)
    now = await journal.header(RUN)
    assert now is not None
    assert (now.wake_count, now.status) == (20, "PENDING")


# ---- A stricter isolation ----


@pytest.mark.parametrize("level", ["read committed", "repeatable read", "serializable"])
async def test_whatever_isolation_the_server_is_set_to_one_of_many_wins_and_the_others_are_refused(
    postgres_url: str, level: str
) -> None:
    setting = quote(f"-cdefault_transaction_isolation={level}".replace(" ", "\\ "), safe="")
    strict = open_store(f"{postgres_url}&options={setting}")
    journal = strict.journal
    await journal.open()
    try:
        await journal.create(header())
        claimed = await asyncio.gather(*(journal.acquire(header(), claim(f"o{n}")) for n in range(10)))
        assert [reply.ok for reply in claimed].count(True) == 1
        now = await journal.header(RUN)
        assert {reply.row for reply in claimed} == {now}
        me = lease_of(now)
        begun = await asyncio.gather(
            *(journal.begin(attempt(attempt_id=f"a{n}"), None, me) for n in range(10))
        )
        assert [reply.ok for reply in begun].count(True) == 1
        assert len({reply.row for reply in begun if not reply.ok}) == 1
    finally:
        await journal.close()


async def test_under_a_stricter_isolation_a_takeover_in_the_way_is_no_failure(
    journal: PostgresJournal, postgres_url: str
) -> None:
    me = await driven(journal)
    setting = quote("-cdefault_transaction_isolation=repeatable\\ read", safe="")
    strict = open_store(f"{postgres_url}&options={setting}").journal
    try:
        async with journal.pool.transaction() as session:
            await session.run(TAKE_OVER, (RUN,))
            async with waits(strict.begin(attempt(), None, me)) as asked:
                await session.run("COMMIT")
        assert asked.result() == Reply(False)
    finally:
        await strict.close()


# ---- The server's time ----


class Fast(SystemClock):
    """The clock of a machine that is an hour ahead."""

    def now_ms(self) -> int:
        return super().now_ms() + 3_600_000


async def test_leases_go_by_the_servers_time_whatever_the_time_is_here(
    journal: PostgresJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "_here", Fast())
    me = await driven(journal)
    now_ms = SystemClock().now_ms()
    seen = await journal.header(RUN)
    assert seen is not None
    assert abs(seen.lease_until_ms - now_ms - LEASE_MS) < 5000
    assert abs(journal.skew_ms + 3_600_000) < 5000
    assert not (await journal.acquire(seen, claim("rival"))).ok
    reply = await renewed(journal, me)
    assert reply.row is not None
    assert abs(reply.row.lease_until_ms - now_ms - LEASE_MS) < 5000


@step
async def one() -> int:
    return 1


@workflow
async def short(ctx: Context) -> int:
    return await ctx.step(one)


@pytest.mark.parametrize("ahead_ms", [-3_600_000, 3_600_000])
async def test_a_process_whose_clock_is_wrong_neither_waits_for_a_free_run_nor_hammers_a_busy_one(
    store: Store, monkeypatch: pytest.MonkeyPatch, ahead_ms: int
) -> None:
    journal = store.journal
    assert isinstance(journal, PostgresJournal)
    executor = DurableWorkflowExecutor(store)
    view = await executor.start(short, run_id=RUN)
    seen = await journal.header(view.run_id)
    assert seen is not None
    elsewhere = json.dumps({"host": "elsewhere"})
    held = replace(claim("owner", 700), owner_process=elsewhere)
    assert (await journal.acquire(seen, held)).ok
    real = SystemClock.now_ms
    monkeypatch.setattr(SystemClock, "now_ms", lambda clock: real(clock) + ahead_ms)
    with pytest.raises(RunBusy) as caught:
        await executor.resume(RUN, short)
    assert 0 < caught.value.lease_left_s <= 0.7
    result = await asyncio.wait_for(executor.run(short, run_id=RUN, wait=True), 5)
    assert result.output == 1


# ---- The schema ----


@pytest.fixture
def schema(postgres: PostgresServer) -> Iterator[str]:
    """A schema that no other test gets."""
    name = f"alone_{SystemClock().now_ms()}"
    yield name
    postgres.query(f'DROP SCHEMA IF EXISTS "{name}" CASCADE')


async def opened(url: str, *, create: bool = True) -> None:
    found = open_store(url)
    try:
        await found.journal.open(create=create)
    finally:
        await found.journal.close()


async def test_many_that_start_at_once_make_one_schema_and_all_can_save(
    postgres: PostgresServer, schema: str
) -> None:
    for number in range(20 if full() else 3):
        stores = [open_store(postgres.store(f"{schema}_{number}")) for _ in range(20)]
        try:
            await asyncio.gather(*(found.journal.open() for found in stores))
            made = await asyncio.gather(
                *(found.journal.create(header(f"r{n}")) for n, found in enumerate(stores))
            )
            assert all(reply.ok for reply in made)
        finally:
            for found in stores:
                await found.journal.close()
            postgres.query(f'DROP SCHEMA "{schema}_{number}" CASCADE')


async def test_a_start_that_is_killed_at_any_statement_leaves_nothing_and_the_next_one_makes_all(
    postgres: PostgresServer, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, plain, made, doomed = postgres.store(schema), Session.run, 0, 0

    async def run(session: Session, query: str, values: Any = None) -> Any:
        nonlocal made
        made += 1
        if made == doomed:
            raise JournalUnavailable("killed")
        return await plain(session, query, values)

    monkeypatch.setattr(Session, "run", run)
    while True:
        made, doomed = 0, doomed + 1
        try:
            await opened(url)
            break
        except JournalUnavailable:
            assert postgres.query("SELECT 1 FROM pg_namespace WHERE nspname = %s", schema) == []
    assert doomed > 20
    doomed = 0
    await opened(url, create=False)


async def test_a_store_that_is_not_there_is_not_made_unless_it_is_wanted(
    postgres: PostgresServer, schema: str
) -> None:
    with pytest.raises(StoreNotFound, match=schema):
        await opened(postgres.store(schema), create=False)
    assert postgres.query("SELECT 1 FROM pg_namespace WHERE nspname = %s", schema) == []
    with pytest.raises(StoreNotFound, match="createdb"):
        await opened(f"postgresql://postgres@127.0.0.1:{postgres.port}/nosuch")


async def test_a_schema_of_another_program_is_refused_and_left_as_it_was(
    postgres: PostgresServer, schema: str
) -> None:
    postgres.query(f'CREATE SCHEMA "{schema}"')
    for definition in ("TABLE runs (x int)", "VIEW events AS SELECT 1 AS x"):
        kind, _, rest = definition.partition(" ")
        postgres.query(f'CREATE {kind} "{schema}".{rest}')
        with pytest.raises(StoreMisconfigured, match="another program"):
            await opened(postgres.store(schema))
    postgres.query(f'CREATE TABLE "{schema}".schema_version (version int, applied_at text, x int)')
    with pytest.raises(StoreMisconfigured, match=r"another program.*schema_version"):
        await opened(postgres.store(schema))
    found = postgres.query("SELECT count(*) FROM pg_class WHERE relnamespace = %s::regnamespace", schema)
    assert found == [(3,)]


async def test_tables_of_other_programs_beside_ours_do_no_harm(postgres: PostgresServer, schema: str) -> None:
    postgres.query(f'CREATE SCHEMA "{schema}"')
    postgres.query(f'CREATE TABLE "{schema}".orders (x int)')
    await opened(postgres.store(schema))


async def test_a_newer_schema_and_a_missing_table_are_named(postgres: PostgresServer, schema: str) -> None:
    url = postgres.store(schema)
    await opened(url)
    postgres.query("INSERT INTO schema_version VALUES (99, '')", schema=schema)
    with pytest.raises(SchemaTooNew, match="99"):
        await opened(url)
    postgres.query("DELETE FROM schema_version WHERE version = 99", schema=schema)
    found = open_store(url)
    await found.journal.open()
    postgres.query(f'DROP TABLE "{schema}".events')
    try:
        with pytest.raises(StoreMisconfigured, match="tables that it should"):
            [page async for page in found.journal.events(RUN)]
    finally:
        await found.journal.close()
    with pytest.raises(StoreMisconfigured, match="lacks the tables events"):
        await opened(url)


async def test_a_schema_that_no_reserved_word_or_capital_can_break_is_quoted_or_refused(
    postgres: PostgresServer,
) -> None:
    await opened(postgres.store("user"))
    postgres.query('DROP SCHEMA "user" CASCADE')
    for name in ("Upper", 'a"b', "a.b", "a%20b", "", "1a", "pg_toast"):
        with pytest.raises(UsageError, match="schema="):
            open_store(postgres.store(name))


# ---- Roles ----


@pytest.fixture
def role(postgres: PostgresServer, schema: str) -> Iterator[str]:
    postgres.query(f'CREATE ROLE "{schema}" LOGIN')
    yield schema
    postgres.query(f'DROP OWNED BY "{schema}"')
    postgres.query(f'DROP ROLE "{schema}"')


async def test_a_role_that_may_not_is_told_what_it_lacks(
    postgres: PostgresServer, schema: str, role: str
) -> None:
    theirs = f"postgresql://{role}@127.0.0.1:{postgres.port}/postgres?schema={schema}"
    with pytest.raises(StoreMisconfigured, match=r"permission denied for database.*Grant"):
        await opened(theirs)
    await opened(postgres.store(schema))
    with pytest.raises(StoreMisconfigured, match=r"permission denied.*Grant"):
        await opened(theirs)
    postgres.query(f'GRANT USAGE ON SCHEMA "{schema}" TO "{role}"')
    postgres.query(f'GRANT SELECT ON ALL TABLES IN SCHEMA "{schema}" TO "{role}"')
    reader = open_store(theirs)
    try:
        await reader.journal.open()
        assert await reader.journal.header(RUN) is None
        with pytest.raises(StoreMisconfigured, match=r"permission denied for table runs.*INSERT"):
            await reader.journal.create(header())
    finally:
        await reader.journal.close()


async def test_a_role_with_a_schema_made_for_it_needs_no_right_on_the_database(
    postgres: PostgresServer, schema: str, role: str
) -> None:
    postgres.query(f'CREATE SCHEMA "{schema}" AUTHORIZATION "{role}"')
    await opened(f"postgresql://{role}@127.0.0.1:{postgres.port}/postgres?schema={schema}")


async def test_neither_a_wrong_password_nor_a_right_one_is_ever_told(
    postgres: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    postgres.query("CREATE ROLE with_password LOGIN PASSWORD 'right-hunter2'")
    caplog.set_level(0)
    said = []
    try:
        for password, ends in (("wrong-hunter2", StoreMisconfigured), ("right-hunter2", StoreNotFound)):
            url = f"postgresql://with_password:{password}@127.0.0.1:{postgres.port}/postgres?schema=nosuch"
            with pytest.raises(ends) as caught:
                await opened(url, create=False)
            error: BaseException | None = caught.value
            while error is not None:
                said.append(f"{error} {error!r} {error.args}")
                error = error.__cause__ or error.__context__
    finally:
        postgres.query("DROP ROLE with_password")
    assert "hunter2" not in "\n".join(said) + caplog.text


# ---- What texts hold ----


@pytest.mark.parametrize("text", ["nul\0", "lone \ud800"], ids=["nul", "surrogate"])
async def test_a_text_that_postgresql_cannot_hold_is_a_typed_error_and_nothing_is_written(
    journal: PostgresJournal, text: str
) -> None:
    me = await driven(journal)
    with pytest.raises(UsageError, match="NUL or a lone surrogate"):
        await journal.begin(attempt(kind=text), None, me)
    assert await journal.step(RUN, "s") is None
    assert (await journal.begin(attempt(), None, me)).ok


async def test_a_header_that_somebody_broke_hides_no_other(
    journal: PostgresJournal, postgres: PostgresServer
) -> None:
    async def listed() -> dict[str, str]:
        async with DurableWorkflowExecutor(Store("", journal, open_store("memory://").blobs)) as executor:
            return {view.run_id: view.status for view in await executor.list()}

    await journal.create(header("broken"))
    await journal.create(header("whole"))
    schema = journal.pool.server.schema
    postgres.query("UPDATE runs SET status = 'DONE' WHERE run_id = 'broken'", schema=schema)
    assert await listed() == {"broken": "CORRUPT", "whole": "PENDING"}
    with pytest.raises(DurableError, match="status is 'DONE'"):
        await journal.header("broken")


def test_no_statement_names_a_table_outside_the_schema(postgres: PostgresServer) -> None:
    """Another program's `runs` in the search path must never be meant."""
    from durable_core.journal import _postgres_below, _postgres_headers, _postgres_steps

    texts = [
        text
        for module in (_postgres_below, _postgres_headers, _postgres_steps)
        for value in vars(module).values()
        for text in (value.values() if isinstance(value, dict) else [value])
        if isinstance(text, str)
    ]
    names = ("runs", "checkpoints", "segments", "events")
    for text in texts:
        for verb in ("FROM", "INTO", "UPDATE"):
            assert not any(f"{verb} {name}" in text for name in names), text
    assert len(texts) > 20


def test_the_oldest_server_that_will_do_is_checked(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("durable_core.journal._postgres_schema.OLDEST_VERSION", 990000)
    with pytest.raises(StoreMisconfigured, match=r"is PostgreSQL \d+"):
        asyncio.run(opened(postgres_url))


def test_a_record_goes_through_every_column(postgres_url: str) -> None:
    """A column that a statement forgets would come back as its default."""
    store = open_store(postgres_url)

    async def there_and_back() -> None:
        await store.journal.open()
        full_header = RunHeader(
            **{
                name: {"int": 7, "str": f"<{name}>", "int | None": 8, "str | None": f"<{name}>"}.get(
                    str(field.type), b"\x00\xff"
                )
                for name, field in RunHeader.__dataclass_fields__.items()
            }
        )
        wanted = replace(full_header, status="PENDING", owner=None)
        reply = await store.journal.create(wanted)
        assert reply == Reply(True, replace(wanted, lease_until_ms=0))
        assert await store.journal.header(wanted.run_id) == reply.row
        await store.journal.close()

    asyncio.run(there_and_back())


def test_psycopg_that_cannot_be_imported_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "durable_core.journal._postgres_pool", None)
    with pytest.raises(UsageError, match=r"durable-core\[postgres\]"):
        open_store("postgresql://h/d")
