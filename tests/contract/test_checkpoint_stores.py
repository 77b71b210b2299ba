"""Checkpoint stores hold to their contract; what only one of them can get wrong is tested beside it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from durable_core.aws.transport import Transport
from durable_core.checkpoints.base import CheckpointStore
from durable_core.checkpoints.dynamodb import DynamoCheckpoints
from durable_core.checkpoints.memory import MemoryCheckpoints
from durable_core.checkpoints.sqlite import SqliteCheckpoints
from durable_core.errors import JournalUnavailable, StoreNotFound
from durable_core.journal._sqlite_file import SCHEMA_VERSION
from durable_core.store import Store
from durable_core.stores import open_store
from durable_core.testing.checkpoint_contract import SESSION, CheckpointContract, appended, seqs
from durable_core.testing.checkpoint_of_run import CheckpointOfRunContract
from tests.cloud import Cloud


class TestMemoryCheckpoints(CheckpointContract):
    @pytest.fixture
    def checkpoints(self) -> CheckpointStore:
        return MemoryCheckpoints()


class TestSqliteCheckpoints(CheckpointContract):
    @pytest.fixture
    def checkpoints(self, tmp_path: Path) -> Iterator[CheckpointStore]:
        store = SqliteCheckpoints(tmp_path / "runs.db")
        yield store
        store.close()


class TestPostgresCheckpoints(CheckpointContract):
    @pytest.fixture
    def checkpoints(self, postgres_url: str) -> Iterator[CheckpointStore]:
        store = open_store(postgres_url)
        assert store.checkpoints is not None
        yield store.checkpoints
        store.checkpoints.close()


class TestDynamoCheckpoints(CheckpointContract):
    @pytest.fixture
    def checkpoints(self, moto_server: Cloud, lent_transport: Transport) -> CheckpointStore:
        return DynamoCheckpoints(lent_transport, moto_server.new_table(lent_transport))

    # moto's conditional puts aren't atomic under threads: races are proved on the SQL stores.
    @pytest.mark.parametrize("writers", [1])
    def test_of_writers_at_once_each_gets_a_place_of_its_own(
        self, checkpoints: CheckpointStore, writers: int
    ) -> None:
        super().test_of_writers_at_once_each_gets_a_place_of_its_own(checkpoints, writers)


class TestCheckpointsOfMemoryRuns(CheckpointOfRunContract):
    @pytest.fixture
    def store(self) -> Store:
        return open_store("memory://")


class TestCheckpointsOfSqliteRuns(CheckpointOfRunContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        yield from opened(f"sqlite:///{tmp_path}/runs.db")


class TestCheckpointsOfPostgresRuns(CheckpointOfRunContract):
    @pytest.fixture
    def store(self, postgres_url: str) -> Iterator[Store]:
        yield from opened(postgres_url)


class TestCheckpointsOfDynamoRuns(CheckpointOfRunContract):
    writers = 1  # as above

    @pytest.fixture
    def store(self, moto_server: Cloud, lent_transport: Transport) -> Store:
        url = moto_server.url(moto_server.new_table(lent_transport), moto_server.shared_bucket)
        return open_store(url, transport=lent_transport)


def opened(url: str) -> Iterator[Store]:
    store = open_store(url)
    yield store
    assert store.checkpoints is not None
    store.checkpoints.close()


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[SqliteCheckpoints]:
    store = SqliteCheckpoints(tmp_path / "runs.db", busy_limit_s=0.3)
    yield store
    store.close()


def test_looking_into_a_file_that_is_not_there_does_not_make_it(sqlite: SqliteCheckpoints) -> None:
    with pytest.raises(StoreNotFound):
        sqlite.open(create=False)
    assert not sqlite.path.exists()


def test_a_file_of_an_earlier_version_gets_its_table_and_keeps_its_runs(sqlite: SqliteCheckpoints) -> None:
    appended(sqlite, "1")
    sqlite.close()
    with closing(sqlite3.connect(sqlite.path)) as older:
        older.execute(
            "INSERT INTO events (run_id, name, seq, event_id, fence, sent_at)"
            " VALUES ('r', 'n', 0, 'e', 1, 't')"
        )
        older.execute("DROP TABLE agent_checkpoints")
        older.execute("DROP TABLE chunks")
        older.execute("DROP INDEX checkpoints_by_open_map")
        older.execute("ALTER TABLE runs DROP COLUMN idle_drives")
        older.execute("DELETE FROM schema_version WHERE version > 2")
        older.commit()
    assert appended(sqlite, "1", "2") == [1, 2]
    with closing(sqlite3.connect(sqlite.path)) as now:
        assert now.execute("SELECT count(*) FROM events").fetchone() == (1,)
        assert now.execute("SELECT max(version) FROM schema_version").fetchone() == (SCHEMA_VERSION,)


def test_a_file_that_stays_locked_is_told_of_and_waited_for(sqlite: SqliteCheckpoints) -> None:
    appended(sqlite, "1")
    with closing(sqlite3.connect(sqlite.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(JournalUnavailable, match="locked"):
            appended(sqlite, "2")
        assert seqs(sqlite) == [1]  # readers don't wait
        other.execute("ROLLBACK")
    assert appended(sqlite, "2") == [2]


def test_a_file_that_was_replaced_is_not_written_on_as_if_nothing_had_happened(
    sqlite: SqliteCheckpoints,
) -> None:
    appended(sqlite, "1")
    sqlite.path.unlink()
    with pytest.raises(JournalUnavailable, match="removed or replaced"):
        appended(sqlite, "2")


@pytest.mark.parametrize("column", ["session_id", "agent_id", "step_id"])
def test_the_latest_of_a_session_an_agent_and_a_step_is_found_along_an_index(
    sqlite: SqliteCheckpoints, column: str
) -> None:
    sqlite.open()
    where = "session_id = 's'" if column == "session_id" else f"session_id = 's' AND {column} = 'x'"
    query = f"SELECT id FROM agent_checkpoints WHERE {where} ORDER BY seq DESC LIMIT 1"  # noqa: S608 - constants
    with closing(sqlite3.connect(sqlite.path)) as file:
        plan = " ".join(row[3] for row in file.execute(f"EXPLAIN QUERY PLAN {query}"))
    assert "USING INDEX" in plan
    assert "TEMP B-TREE" not in plan


def test_a_state_is_json_or_base64_in_the_file(sqlite: SqliteCheckpoints) -> None:
    from durable_core import CheckpointingConfig, get_checkpointer

    with get_checkpointer(CheckpointingConfig(enabled=True), f"sqlite:///{sqlite.path}") as checkpointer:
        checkpointer.save(SESSION, "a", "small", {"n": 1}, {"who": "me"})
        checkpointer.save(SESSION, "a", "large", ["x" * 5000])
    with closing(sqlite3.connect(sqlite.path)) as file:
        query = "SELECT format, state_blob, metadata, seq FROM agent_checkpoints ORDER BY seq"
        small, large = file.execute(query).fetchall()
    assert small == ("json", '{"n":1}', '{"who":"me"}', 1)
    assert large[0] == "json+gzip"
    assert large[1].startswith("H4sIAAAAAAA")  # base64 of a gzip header whose time is 0
