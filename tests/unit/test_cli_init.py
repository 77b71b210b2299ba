"""`durable init`: a store is made once, a dry run makes none, and what is in the way is told."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from durable_core.blobs.base import blob_ref
from durable_core.cli.app import execute
from durable_core.journal.sqlite import SqliteJournal
from durable_core.stores import open_store
from tests.cloud import Cloud, new_table_name


class Done(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)


Init = Callable[..., Done]


@pytest.fixture
def init(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Init:
    monkeypatch.chdir(tmp_path)

    def run(*args: str) -> Done:
        capsys.readouterr()
        return Done(execute(["init", *args]), *capsys.readouterr())

    return run


def test_a_sqlite_file_is_made_with_its_schema_and_only_once(init: Init) -> None:
    dry = init("--dry-run")
    assert (dry.code, dry.err) == (0, "")
    assert "durable.db" in dry.out
    assert "dry run" in dry.out
    assert os.listdir() == []  # noqa: PTH208 - the test's own empty folder
    assert init("--json").document == {
        "store": "sqlite:///durable.db",
        "dry_run": False,
        "changes": ["make sqlite:///durable.db"],
    }
    asyncio.run(SqliteJournal(Path("durable.db")).open(create=False))
    assert "everything is there" in init().out
    assert init("--dry-run", "--json").document["changes"] == []


def test_a_file_of_another_program_is_refused(init: Init) -> None:
    Path("durable.db").write_text("dear diary")
    done = init()
    assert done.code == 6
    assert Path("durable.db").read_text() == "dear diary"


def test_a_table_and_a_bucket_are_made_only_once(init: Init, cloud: Cloud) -> None:
    table = new_table_name()
    url = cloud.url(table, f"bucket-of-{table}", prefix="tenant-a")
    dry = init("--store", url, "--dry-run", "--json").document
    made = init("--store", url, "--json").document
    assert made["changes"] == dry["changes"] != []
    assert made["store"].startswith(f"dynamodb://{table}?bucket=bucket-of-{table}&region=")
    assert cloud.ask("dynamodb", "describe_table", {"TableName": table})["Table"]["TableStatus"] == "ACTIVE"
    assert init("--store", url).out == f"{made['store']}: everything is there.\n"


@pytest.mark.parametrize("variable", [None, "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
def test_a_store_that_was_made_at_an_endpoint_without_tls_can_be_used_there(
    init: Init, cloud: Cloud, monkeypatch: pytest.MonkeyPatch, variable: str | None
) -> None:
    """A rule that refuses requests without TLS would refuse all of its own."""
    table = new_table_name()
    url = cloud.url(table, f"bucket-of-{table}")
    if variable is not None:
        for name in {variable, "AWS_ENDPOINT_URL_DYNAMODB"}:
            monkeypatch.setenv(name, cloud.endpoint)
        url = f"dynamodb://{table}?bucket=bucket-of-{table}"
    assert not any("TLS" in change for change in init("--store", url, "--json").document["changes"])

    async def put_and_read() -> bytes:
        store = open_store(url)
        ref = blob_ref("r1", "0001", b"large")
        try:
            await store.blobs.put(ref, b"large")
            return await store.blobs.get(ref)
        finally:
            await store.journal.close()

    assert asyncio.run(put_and_read()) == b"large"


def test_a_bucket_refuses_plain_http_where_its_endpoint_speaks_tls(
    init: Init, cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("durable_core.aws.transport.open_transport", lambda **_: cloud.transport("boto3"))
    for options in ("", "&endpoint=https://cloud.example"):
        table = new_table_name()
        made = init("--store", f"dynamodb://{table}?bucket=bucket-of-{table}{options}", "--json").document
        assert f"refuse requests to bucket-of-{table} without TLS" in made["changes"]


def test_a_table_of_another_shape_is_left_as_it_is(init: Init, cloud: Cloud) -> None:
    table = new_table_name()
    other = {
        "TableName": table,
        "BillingMode": "PAY_PER_REQUEST",
        "AttributeDefinitions": [{"AttributeName": "id", "AttributeType": "S"}],
        "KeySchema": [{"AttributeName": "id", "KeyType": "HASH"}],
    }
    cloud.ask("dynamodb", "create_table", other)
    done = init("--store", cloud.url(table, f"bucket-of-{table}"))
    assert (done.code, done.out) == (7, "")
    assert "another shape" in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    ("url", "code", "told"),
    [
        ("dynamodb://runs", 2, "bucket"),
        ("dynamodb://key:hunter2@runs?bucket=big", 2, "credentials"),
        ("dynamodb://runs?bucket=big&region=us-east-1&endpoint=http://127.0.0.1:9", 7, "can't be reached"),
        ("mysql://u:hunter2@h/d", 2, "no store URL"),
    ],
)
def test_a_store_that_cannot_be_made_is_told_in_words(
    init: Init, cloud: Cloud, url: str, code: int, told: str
) -> None:
    done = init("--store", url)
    assert (done.code, done.out) == (code, "")
    assert told in done.err
    assert "hunter2" not in done.err
    assert "Traceback" not in done.err


def test_without_credentials_the_remedy_is_named(
    init: Init, cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    done = init("--store", cloud.url("runs", "big-outputs"), "--json")
    assert done.code == 7
    assert done.document["error"]["code"] == "STORE_MISCONFIGURED"
    assert "credentials" in done.document["error"]["message"]
