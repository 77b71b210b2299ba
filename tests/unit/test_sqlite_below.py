"""What only the SQLite journal promises of segments, events and tombstones: plans, migration, readers."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import fields
from pathlib import Path

import pytest

from durable_core.errors import CorruptRecord, JournalUnavailable
from durable_core.journal import _sqlite_below, _sqlite_file, _sqlite_verbs, paging
from durable_core.journal.chunks import SegmentReader
from durable_core.journal.sqlite import SqliteJournal
from durable_core.records import RunHeader
from durable_core.testing.fake_clock import FakeClock
from durable_core.testing.samples import (
    AT,
    RUN,
    attempt,
    committed,
    driven,
    event,
    gathered,
    owned,
    pruning,
    seen_now,
    segment,
)
from tests.e2e.programs.witness import names


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


# ---- Plans ----

_RUN = "runs_by_"
_KEY = "sqlite_autoindex_"
PLANS = {
    "due": (_sqlite_verbs.DUE, f"USING INDEX {_RUN}due (due_at_ms<?)"),
    "tombstones": (_sqlite_below.TOMBSTONES, f"USING INDEX {_RUN}burial (updated_at<?)"),
    "purge": (_sqlite_below.PURGE, f"USING INDEX {_RUN}end (expires_at_s<?)"),
    "steps": (_sqlite_verbs.STEP_PAGE, f"USING INDEX {_KEY}checkpoints_1 (run_id=? AND step_id>?)"),
    "replay": (
        _sqlite_verbs.REPLAY_PAGE,
        f"USING INDEX {_KEY}checkpoints_1 (run_id=? AND step_id>? AND step_id<?)",
    ),
    "segments": (
        _sqlite_below.SEGMENT_PAGE,
        f"USING INDEX {_KEY}segments_1 (run_id=? AND step_id=? AND chunk=? AND seq>?)",
    ),
    "the last segment": (
        _sqlite_below.LAST_SEGMENT,
        f"USING INDEX {_KEY}segments_1 (run_id=? AND step_id=? AND chunk=?)",
    ),
    "a range of segments": (
        _sqlite_below.SEGMENT_RANGE,
        f"USING INDEX {_KEY}segments_1 (run_id=? AND step_id=? AND chunk=? AND seq>? AND seq<?)",
    ),
    "events": (_sqlite_below.EVENT_PAGE, f"USING INDEX {_KEY}events_1 (run_id=? AND (name,seq)>(?,?))"),
    "events of a name": (
        _sqlite_below.EVENTS_OF_NAME,
        f"USING INDEX {_KEY}events_1 (run_id=? AND name=? AND seq>?)",
    ),
    "child steps": (
        _sqlite_below.child_query("step"),
        f"USING INDEX {_KEY}checkpoints_1 (run_id=? AND step_id>?)",
    ),
    "child segments": (
        _sqlite_below.child_query("segment"),
        f"USING INDEX {_KEY}segments_1 (run_id=? AND (step_id,chunk,seq)>(?,?,?))",
    ),
    "child events": (
        _sqlite_below.child_query("event"),
        f"USING INDEX {_KEY}events_1 (run_id=? AND (name,seq)>(?,?))",
    ),
    "delete a step": (
        _sqlite_below.DELETE["step"],
        f"USING INDEX {_KEY}checkpoints_1 (run_id=? AND step_id=?)",
    ),
    "delete a segment": (
        _sqlite_below.DELETE["segment"],
        f"USING INDEX {_KEY}segments_1 (run_id=? AND step_id=? AND chunk=? AND seq=?)",
    ),
    "delete an event": (
        _sqlite_below.DELETE["event"],
        f"USING INDEX {_KEY}events_1 (run_id=? AND name=? AND seq=?)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("which", PLANS)
def test_what_is_asked_of_many_rows_goes_along_an_index_and_sorts_nothing(which: str, db: Path) -> None:
    query, wanted = PLANS[which]
    _sqlite_file.prepare(db)
    with closing(_sqlite_file.connect(db)) as connection:
        values = ("",) * query.count("?")
        plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {query}", values)]
    assert any(wanted in line for line in plan), plan
    assert not [line for line in plan if "SCAN" in line or "TEMP B-TREE" in line]


# ---- Migration ----


def test_a_file_of_the_first_version_keeps_its_data(db: Path, clock: FakeClock) -> None:
    run = owned(error='{"code":"E"}', output_data=b"\x00", due_at_ms=7, lease_until_ms=8, wake_count=9)
    step = committed(attempt())
    with closing(sqlite3.connect(db)) as old:
        old.executescript(
            Path(_sqlite_file.__file__).with_name("schema").joinpath("sqlite_001.sql").read_text()
        )
        old.execute(
            "CREATE TABLE schema_version (version INTEGER NOT NULL PRIMARY KEY, applied_at TEXT NOT NULL)"
        )
        old.execute("INSERT INTO schema_version VALUES (1, ?)", (AT,))
        later = ("expires_at_s", "idle_drives")
        columns = [field.name for field in fields(RunHeader) if field.name not in later]
        _insert(old, "runs", {name: getattr(run, name) for name in columns})
        _insert(old, "checkpoints", step._asdict())
        old.commit()

    async def used() -> None:
        journal = SqliteJournal(db, clock)
        await journal.open()
        assert await seen_now(journal) == run
        assert await gathered(journal.steps(RUN)) == [step]
        assert await journal.due() == [run]
        assert (await journal.append(segment())).ok
        assert (await journal.send(event(), run)).ok
        assert (await journal.cancel(await seen_now(journal), AT)).ok
        me = await pruning(journal)
        await journal.delete(RUN, await gathered(journal.children(RUN)), me.fence)
        assert (await journal.bury(me, AT)).ok
        assert [one.run_id for one in await journal.tombstones("9999")] == [RUN]
        await journal.close()

    asyncio.run(used())
    with closing(sqlite3.connect(db)) as now:
        applied = [row[0] for row in now.execute("SELECT version FROM schema_version")]
        assert applied == list(range(1, _sqlite_file.SCHEMA_VERSION + 1))
        assert now.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def _insert(old: sqlite3.Connection, table: str, row: dict[str, object]) -> None:
    marks = ", ".join("?" * len(row))
    query = f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})"  # noqa: S608  # the test's own names
    old.execute(query, [*row.values()])


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


# ---- Readers ----


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture
def journal(runner: asyncio.Runner, db: Path) -> Iterator[SqliteJournal]:
    made = SqliteJournal(db)
    runner.run(made.open())
    yield made
    runner.run(made.close())


@pytest.fixture
def reader(runner: asyncio.Runner, journal: SqliteJournal) -> Iterator[SegmentReader]:
    """Of a log of one segment, and used once."""
    runner.run(journal.append(segment()))
    opened = journal.open_reader()
    assert read(opened) == [segment()]
    yield opened
    opened.close()


def read(reader: SegmentReader) -> list[object]:
    return [*reader.read(RUN, "m", 0, 0, 9)]


def test_a_closed_reader_says_so(reader: SegmentReader) -> None:
    reader.close()
    with pytest.raises(JournalUnavailable, match=r"reader of .*runs\.db is closed"):
        read(reader)


def test_a_reader_outlives_the_journal_that_opened_it(
    reader: SegmentReader, journal: SqliteJournal, runner: asyncio.Runner
) -> None:
    runner.run(journal.close())
    assert read(reader) == [segment()]


@pytest.mark.parametrize("how", ["removed", "replaced"])
@pytest.mark.parametrize("used", [True, False])
def test_a_reader_notices_that_its_file_is_another(
    how: str, used: bool, reader: SegmentReader, journal: SqliteJournal, db: Path
) -> None:
    """And makes none in its place."""
    other = reader if used else journal.open_reader()
    db.rename(db.with_name("elsewhere.db"))
    if how == "replaced":
        db.write_bytes(b"")
    with pytest.raises(JournalUnavailable, match="was removed or replaced"):
        read(other)
    other.close()
    assert db.exists() is (how == "replaced")
    assert not db.exists() or db.read_bytes() == b""


def test_an_event_for_a_file_that_is_gone_is_refused(
    journal: SqliteJournal, runner: asyncio.Runner, db: Path
) -> None:
    """SQLite would go on writing to what nobody will ever read."""
    me = runner.run(driven(journal))
    seen = runner.run(seen_now(journal))
    db.rename(db.with_name("elsewhere.db"))
    for write in (journal.send(event(), seen), journal.bury(me, AT), journal.expire(seen, 1)):
        with pytest.raises(JournalUnavailable, match="was removed or replaced"):
            runner.run(write)
    assert "runs.db" not in names(db.parent)


def test_a_forked_child_reads_with_the_reader_that_it_inherited(
    reader: SegmentReader, journal: SqliteJournal, runner: asyncio.Runner, db: Path
) -> None:
    """Over a connection of its own; what it writes after its parent has closed the file is kept."""
    child = os.fork()
    if child == 0:
        code = 70
        try:
            assert read(reader) == [segment()]
            fresh = SqliteJournal(db)
            with asyncio.Runner() as own:
                own.run(fresh.append(segment(1, "child")))
            assert read(reader) == [segment(), segment(1, "child")]
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert read(reader) == [segment(), segment(1, "child")]


def test_a_list_of_blobs_that_cannot_be_read_is_corrupt(
    journal: SqliteJournal, runner: asyncio.Runner
) -> None:
    runner.run(journal.append(segment(refs='{"not":"a list"}')))
    with pytest.raises(CorruptRecord) as caught:
        runner.run(gathered(journal.children(RUN)))
    assert (caught.value.run_id, caught.value.step_id) == (RUN, "m")


# ---- Pruning ----


def test_a_large_pruning_is_many_small_transactions(
    journal: SqliteJournal, runner: asyncio.Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between them others have the file."""
    monkeypatch.setitem(paging.CHANGED_AT_ONCE, "step", 10)
    portions: list[tuple[str, int]] = []
    write = journal.write

    def counted(verb, args, **options):  # type: ignore[no-untyped-def]
        if verb is _sqlite_below.delete:
            portions.append((args[1], len(args[2])))
        return write(verb, args, **options)

    async def pruned() -> None:
        me = await driven(journal)
        for n in range(35):
            await journal.begin(attempt(f"s{n}", f"a{n}"), None, me)
            await journal.append(segment(n, f"g{n}"))
        monkeypatch.setattr(journal, "write", counted)
        await journal.delete(RUN, await gathered(journal.children(RUN)), 1)
        assert await gathered(journal.children(RUN)) == []

    runner.run(pruned())
    steps, segments = [10, 10, 10, 5], [16, 16, 3]  # a segment may be as large as many steps
    assert portions == [*(("step", rows) for rows in steps), *(("segment", rows) for rows in segments)]
