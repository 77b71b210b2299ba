"""`durable doctor`: a store that is fit is told to be, what is wrong is named, and nothing is left."""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest

from durable_core import DurableWorkflowExecutor
from durable_core.cli.app import execute
from durable_core.clock import SystemClock
from durable_core.health import FAIL, OK, WARN, Check
from durable_core.journal import _sqlite_file, _sqlite_health
from durable_core.stores import examine_store, init_store
from tests.cloud import Cloud
from tests.damages import run_everything
from tests.postgres import PostgresServer

Usage = namedtuple("Usage", "total used free")


def checks(url: str) -> dict[str, Check]:
    return {check.name: check for check in examine_store(url)}


def bad(url: str) -> dict[str, str]:
    """What isn't ok, but the version of the SQLite that this Python happens to have."""
    return {
        name: check.state for name, check in checks(url).items() if check.state != OK and name != "sqlite"
    }


def make(url: str) -> None:
    async def made() -> None:
        async with DurableWorkflowExecutor(url) as executor:
            await run_everything(executor)

    asyncio.run(made())


# ---- SQLite ----


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with a run in it."""
    make(f"sqlite:///{tmp_path / 'runs.db'}")
    return tmp_path / "runs.db"


def url_of(path: Path) -> str:
    return f"sqlite:///{path}"


def contents(folder: Path) -> dict[str, bytes]:
    return {str(one): one.read_bytes() for one in sorted(folder.rglob("*")) if one.is_file()}


def test_a_file_that_is_fit_is_ok_and_stays_as_it_is(path: Path) -> None:
    before = contents(path.parent)
    assert bad(url_of(path)) == {}
    assert contents(path.parent) == before


def test_a_store_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    assert bad(url_of(tmp_path / "runs.db")) == {"store": FAIL}
    assert bad(url_of(tmp_path / "no" / "runs.db")) == {"place": FAIL, "room": FAIL, "store": FAIL}
    assert contents(tmp_path) == {}


@pytest.mark.parametrize(("version", "state"), [((3, 51, 2), WARN), ((3, 51, 3), OK), ((3, 52, 0), OK)])
def test_the_wal_reset_bug_is_known_by_version(
    path: Path, monkeypatch: pytest.MonkeyPatch, version: tuple[int, ...], state: str
) -> None:
    monkeypatch.setattr(_sqlite_health.sqlite3, "sqlite_version_info", version)
    assert checks(url_of(path))["sqlite"].state == state


@pytest.mark.parametrize(("free", "state"), [(2**40, OK), (2**29, WARN), (2**20, FAIL)])
def test_a_disk_that_is_nearly_full_is_told(
    path: Path, monkeypatch: pytest.MonkeyPatch, free: int, state: str
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(2**41, 0, free))
    assert checks(url_of(path))["room"].state == state


def test_a_network_file_system_is_told(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_sqlite_file, "file_system", lambda _: "nfs4")
    assert bad(url_of(path)) == {"place": FAIL}


def change(path: Path, statement: str) -> None:
    with sqlite3.connect(path) as file:
        file.execute(statement)
    file.close()


@pytest.mark.parametrize(
    ("statement", "wrong"),
    [
        ("INSERT INTO schema_version VALUES (99, '')", {"store": FAIL}),
        ("DROP TABLE schema_version", {"store": FAIL}),
        ("ALTER TABLE runs RENAME COLUMN workflow TO flow", {"write": FAIL}),
        ("PRAGMA journal_mode=DELETE", {"wal": WARN}),
        ("UPDATE runs SET updated_at = '2999-01-01T00:00:00.000Z'", {"clock": WARN}),
        ("UPDATE runs SET updated_at = 'yesterday'", {}),
    ],
)
def test_what_is_wrong_with_a_file_is_named(path: Path, statement: str, wrong: dict[str, str]) -> None:
    change(path, statement)
    assert bad(url_of(path)) == wrong


def test_a_file_of_something_else_and_a_damaged_one_are_told(path: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no database " * 100)
    assert bad(url_of(tmp_path / "text")) == {"store": FAIL}
    data = bytearray(path.read_bytes())
    data[5 * 4096 : 6 * 4096] = bytes(4096)
    path.write_bytes(data)
    assert set(bad(url_of(path))) & {"pages", "store", "write", "clock"}


def test_a_file_that_somebody_keeps_locked_is_told_soon(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_sqlite_health, "_BUSY_LIMIT_S", 0.05)
    other = sqlite3.connect(path)
    other.execute("BEGIN IMMEDIATE")
    try:
        assert bad(url_of(path)) == {"write": FAIL}
    finally:
        other.close()


# ---- PostgreSQL ----


def test_a_database_that_is_fit_is_ok_and_stays_as_it_is(postgres_url: str) -> None:
    url = f"{postgres_url}_fresh"  # schemas are used again, emptied
    assert bad(url) == {"schema": FAIL}
    make(url)
    assert bad(url) == {}


def test_what_is_wrong_with_a_database_is_named(
    postgres_url: str, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = postgres_url.rpartition("schema=")[2]
    make(postgres_url)
    assert bad(f"{postgres_url}&options=-c%20synchronous_commit%3Doff") == {"synchronous_commit": WARN}
    read_only = bad(f"{postgres_url}&options=-c%20default_transaction_read_only%3Don")
    assert read_only == {"writes": FAIL, "write": FAIL}
    assert bad(f"{postgres_url}&connections=1000") == {"connections": WARN}
    postgres.query("DO $$ BEGIN CREATE ROLE reader LOGIN; EXCEPTION WHEN duplicate_object THEN END $$")
    postgres.query(f'GRANT USAGE ON SCHEMA "{schema}" TO reader')
    postgres.query(f'GRANT SELECT ON ALL TABLES IN SCHEMA "{schema}" TO reader')
    told = checks(postgres_url.replace("postgres@", "reader@"))["permissions"]
    assert told.state == FAIL
    assert "INSERT on runs" in told.message
    monkeypatch.setattr(SystemClock, "now_ms", lambda _: 1_000_000_000_000)
    assert bad(postgres_url) == {"clock": WARN}


def test_a_server_out_of_reach_is_told() -> None:
    assert bad("postgresql://127.0.0.1:1/nowhere") == {"store": FAIL}


# ---- DynamoDB and S3 ----


def test_a_table_that_is_fit_is_ok_and_nothing_is_left(cloud: Cloud) -> None:
    table, bucket = "doctor-table", "doctor-bucket"
    url = f"dynamodb://{table}?bucket={bucket}&region=us-east-1&endpoint={cloud.endpoint}"
    assert bad(url) == {"store": FAIL}
    asyncio.run(init_store(url))
    assert bad(url) == {}
    assert cloud.ask("dynamodb", "scan", {"TableName": table})["Items"] == []
    assert cloud.ask("s3", "list_objects_v2", {"Bucket": bucket}).get("Contents", []) == []
    cloud.ask("s3", "put_bucket_versioning", _unversioned(bucket))
    assert bad(url) == {"bucket": WARN}
    cloud.ask("dynamodb", "delete_table", {"TableName": table})
    other = {"AttributeName": "id", "AttributeType": "S"}
    made = {"AttributeDefinitions": [other], "KeySchema": [{"AttributeName": "id", "KeyType": "HASH"}]}
    cloud.ask("dynamodb", "create_table", {"TableName": table, "BillingMode": "PAY_PER_REQUEST", **made})
    assert "store" in bad(url)
    cloud.ask("dynamodb", "delete_table", {"TableName": table})


def _unversioned(bucket: str) -> dict[str, Any]:
    return {"Bucket": bucket, "VersioningConfiguration": {"Status": "Suspended"}}


# ---- The command ----


def test_the_command_tells_each_check_and_ends_with_7_if_one_fails(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(["doctor", "--store", url_of(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if not line.startswith(" ")].count("fail") == 0
    assert any(line.startswith("ok    schema") for line in lines)
    assert execute(["doctor", "--json", "--store", url_of(path.with_name("none.db"))]) == 7
    document = json.loads(capsys.readouterr().out)
    assert document["failed"] == 1
    (told,) = [check for check in document["checks"] if check["state"] == "fail"]
    assert told["name"] == "store"
    assert told["remedy"]
    assert execute(["doctor", "--store", "nonsense"]) == 2
