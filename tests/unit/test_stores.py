"""From arguments, URLs and the environment to a store; what contradicts itself is refused."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from durable_core import Context, DurableWorkflowExecutor, step, workflow
from durable_core.blobs.filesystem import FilesystemBlobs
from durable_core.blobs.memory import MemoryBlobs
from durable_core.blobs.sql import SqlBlobs
from durable_core.errors import UsageError
from durable_core.journal.memory import MemoryJournal
from durable_core.journal.postgres import PostgresJournal
from durable_core.journal.sqlite import SqliteJournal
from durable_core.store import Store
from durable_core.store_urls import store_url
from durable_core.stores import open_store


@pytest.mark.parametrize(
    ("args", "url"),
    [
        ((None, None, None), "sqlite:///durable.db"),
        ((None, None, "sqlite"), "sqlite:///durable.db"),
        ((None, None, "memory"), "memory://"),
        (("memory://", None, None), "memory://"),
        (("memory://", None, "memory"), "memory://"),
        (("sqlite:///a.db", None, "sqlite"), "sqlite:///a.db"),
        ((None, "a.db", None), "sqlite:///a.db"),
        ((None, "a.db", "sqlite"), "sqlite:///a.db"),
        ((None, Path("/x/a.db"), None), "sqlite:////x/a.db"),
        ((None, "a b%#?é.db", None), "sqlite:///a%20b%25%23%3F%C3%A9.db"),
        (("dynamodb://t?bucket=b", None, "s3"), "dynamodb://t?bucket=b"),
        (("postgresql://h/d", None, "postgres"), "postgresql://h/d"),
    ],
    ids=repr,
)
def test_arguments_name_one_store(args: tuple[Any, Any, Any], url: str) -> None:
    assert store_url(*args) == url


def test_the_environment_names_the_store_when_nothing_else_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DURABLE_STORE", "memory://")
    assert store_url(None, None, None) == "memory://"
    assert store_url(None, "a.db", None) == "sqlite:///a.db"
    assert store_url("sqlite:///b.db", None, None) == "sqlite:///b.db"
    with pytest.raises(UsageError, match="sqlite"):
        store_url(None, None, "sqlite")
    monkeypatch.setenv("DURABLE_STORE", "")
    assert store_url(None, None, None) == "sqlite:///durable.db"


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (("memory://", "a.db", None), "db_path"),
        ((None, "a.db", "memory"), "backend='memory'"),
        ((None, "a.db", "postgres"), "DURABLE_STORE"),
        ((None, "a.db", "dynamodb"), "DURABLE_STORE"),
        ((None, "a.db", "s3"), "DURABLE_STORE"),
        ((None, "", None), "empty"),
        ((None, None, "postgres"), "DURABLE_STORE"),
        ((None, None, "s3"), "DURABLE_STORE"),
        ((None, None, "oracle"), "oracle"),
        ((None, None, ""), "backend"),
        (("memory://", None, "sqlite"), "memory"),
        (("sqlite:///a.db", None, "postgres"), "sqlite"),
        (("mysql://h/d", None, None), "mysql"),
        (("runs.db", None, None), "runs.db"),
        (("", None, None), "store URL"),
        ((5, None, None), "store= is a int"),
        ((None, 5, None), "db_path= is a int"),
    ],
    ids=repr,
)
def test_what_contradicts_itself_or_names_no_store_is_refused_by_name(
    args: tuple[Any, Any, Any], told: str
) -> None:
    with pytest.raises(UsageError, match=told):
        store_url(*args)


@pytest.mark.parametrize(
    "url",
    [
        "sqlite://", "sqlite:///", "sqlite://host/a.db", "sqlite:///a.db?mode=ro", "sqlite:///a.db?lease=3",
        "memory://?x=1", "file:///a.db", "dynamodb://t", "//a.db", "sqlite:a.db", "mysql://u:hunter2@h/d",
        "postgresql://u:hunter2@h/d?lease=3", "postgresql://u:hunter2@h/d?schema=a-b",
        "postgresql://u:hunter2@h/d?schema=pg_x", "postgresql://u:hunter2@h/d?connections=0",
        "postgresql://u:hunter2@h/d?connections=many", "postgresql://u:hunter2@[h/d",
        "postgresql://u:%hunter2@h/d", "postgresql://u:x/hunter2@h/d", "postgresql://u:x?hunter2=y@h/d",
        "postgresql://u:x#hunter2@h/d", "postgresql://u:hunter2\ud800@h/d", "postgresql://u:hunter2\0@h/d",
    ],
)  # fmt: skip
def test_a_url_of_no_store_or_with_unknown_options_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        open_store(url)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://ann:hunter2@db.example:5433/jobs", "postgresql://db.example:5433/jobs?schema=durable"),
        ("postgresql:///jobs?host=/run/pg&schema=mine", "postgresql://%2Frun%2Fpg/jobs?schema=mine"),
        ("postgresql://h1:1,h2:2/d?password=hunter2", "postgresql://h1:1,h2:2/d?schema=durable"),
    ],
)
def test_a_postgresql_store_is_shown_without_user_and_password(url: str, shown: str) -> None:
    store = open_store(url)
    assert store.url == shown
    assert isinstance(store.journal, PostgresJournal)
    assert isinstance(store.blobs, SqlBlobs)
    assert "hunter2" not in repr(store) + repr(vars(store.journal)) + repr(vars(store.journal.pool))


@pytest.mark.parametrize(
    "name", ["a\0b.db", "\ud800.db", "a" * 300, "a" * 250, "x/" * 3000 + "a.db"], ids=lambda name: name[:8]
)
def test_a_name_that_no_file_can_have_is_refused_in_few_words(name: str, tmp_path: Path) -> None:
    for options in ({"db_path": tmp_path / name}, {"db_path": f"{tmp_path}/{name}"}):
        with pytest.raises(UsageError, match="can't be the name of a SQLite file") as caught:
            DurableWorkflowExecutor(**options)
        assert len(str(caught.value)) < 300
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("url", ["sqlite:///a%00b.db", "sqlite:///a\0b.db"])
def test_a_null_byte_in_a_url_is_refused(url: str) -> None:
    with pytest.raises(UsageError):
        open_store(url)


def test_a_name_that_leads_in_a_circle_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.db").symlink_to(tmp_path / "b.db")
    (tmp_path / "b.db").symlink_to(tmp_path / "a.db")
    with pytest.raises(UsageError, match="can't be the name"):
        DurableWorkflowExecutor(db_path=tmp_path / "a.db")


async def test_the_longest_name_that_leaves_room_for_the_files_beside_it_can_be_used(tmp_path: Path) -> None:
    longest = os.pathconf(tmp_path, "PC_NAME_MAX") - len("-journal")
    async with DurableWorkflowExecutor(db_path=tmp_path / ("a" * longest)) as executor:
        assert (await executor.run(kept, run_id="r1", number=1)).output == 9000
    with pytest.raises(UsageError):
        DurableWorkflowExecutor(db_path=tmp_path / ("a" * (longest + 1)))


def test_a_url_opens_its_kinds_of_store_and_connects_to_nothing(tmp_path: Path) -> None:
    memory = open_store("memory://")
    assert (type(memory.journal), type(memory.blobs)) == (MemoryJournal, MemoryBlobs)
    sqlite = open_store(f"sqlite:///{tmp_path}/runs.db")
    assert (type(sqlite.journal), type(sqlite.blobs)) == (SqliteJournal, FilesystemBlobs)
    assert list(tmp_path.iterdir()) == []


def test_a_file_whose_name_could_be_read_as_something_else_is_not_taken_for_another(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        open_store(f"sqlite:///{tmp_path}/runs#1.db")


def test_a_relative_and_an_absolute_path_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    relative, absolute = open_store("sqlite:///runs.db"), open_store(f"sqlite:///{tmp_path}/runs.db")
    assert isinstance(relative.journal, SqliteJournal)
    assert isinstance(absolute.journal, SqliteJournal)
    assert Path(relative.journal.path).resolve() == Path(absolute.journal.path).resolve()


@step
async def large(number: int) -> str:
    return "".join(chr(0x4E00 + (number * 7919 + index * 104729) % 20000) for index in range(9000))


@workflow
async def kept(ctx: Context, number: int) -> int:
    return len(await ctx.step(large, number))


@pytest.mark.parametrize(
    "name", ["runs.db", "a b.db", "50%.db", "what?.db", "no#1.db", "é.db", "%20.db", "\udcff.db"]
)
async def test_a_file_of_any_name_keeps_its_runs_and_its_blobs_beside_it(name: str, tmp_path: Path) -> None:
    async with DurableWorkflowExecutor(db_path=tmp_path / name) as executor:
        assert (await executor.run(kept, run_id="r1", number=1)).output == 9000
    assert {path.name for path in tmp_path.iterdir()} == {name, f"{name}.blobs"}  # noqa: ASYNC240
    async with DurableWorkflowExecutor(db_path=str(tmp_path / name)) as executor:
        assert (await executor.get("r1")).status == "COMPLETED"


async def test_without_any_argument_the_store_is_a_file_in_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with DurableWorkflowExecutor() as executor:
        await executor.run(kept, run_id="r1", number=1)
        assert executor.store.url == "sqlite:///durable.db"
    assert (tmp_path / "durable.db").exists()


async def test_two_executors_of_memory_share_nothing_unless_they_share_a_store() -> None:
    one, other = DurableWorkflowExecutor("memory://"), DurableWorkflowExecutor("memory://")
    await one.run(kept, run_id="r1", number=1)
    assert await other.list() == []
    assert [view.run_id for view in await DurableWorkflowExecutor(one.store).list()] == ["r1"]


@pytest.mark.parametrize(
    "options",
    [
        *({"lease_s": value} for value in (0, -1, float("nan"), float("inf"), "30", None, 10**400)),
        *({"run_crash_limit": value} for value in (0, -1, 1.5, None, -(10**400))),
        *({"grace_s": value} for value in (-1, float("nan"), "x", 10**400, -(10**400))),
        *({"output_cap_bytes": value} for value in (0, -1, 1.5, "1", None)),
    ],
    ids=lambda options: next(iter(options)),
)
def test_an_option_of_the_executor_that_cannot_be_meant_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(options))) as caught:
        DurableWorkflowExecutor("memory://", **options)
    assert len(str(caught.value)) < 300


def test_an_unknown_option_of_the_executor_is_refused() -> None:
    with pytest.raises(TypeError):
        DurableWorkflowExecutor("memory://", table_prefix="x")  # type: ignore[call-arg]


@pytest.mark.parametrize(("inline_max_bytes", "blobs"), [(0, 1), (100_000, 0)])
async def test_how_much_stays_in_a_record_is_the_stores_to_say(inline_max_bytes: int, blobs: int) -> None:
    held = MemoryBlobs()
    store = Store("memory://", MemoryJournal(), held, inline_max_bytes=inline_max_bytes)
    async with DurableWorkflowExecutor(store) as executor:
        assert (await executor.run(kept, run_id="r1", number=1)).output == 9000
    assert len([ref for ref in held.held if len(held.held[ref][0]) > 1000]) == blobs
