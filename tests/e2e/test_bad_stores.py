"""Damaged data, files of others, no rights, no room: a typed error that names the cause, and nothing lost.

Each of these mends the cause afterwards and resumes: what was committed isn't run again.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from durable_core import DurableError, DurableWorkflowExecutor
from durable_core.errors import (
    CorruptRecord,
    MissingBlob,
    RunFailed,
    SchemaTooNew,
    StoreMisconfigured,
    UnknownType,
)
from tests.e2e.faulty import fails, flow, raising, sql, stops_after_two, world
from tests.e2e.programs.limited import NOBODY, pages
from tests.e2e.programs.nursery import Nursery, open_nursery
from tests.e2e.programs.witness import bodies, committed, integrity, outcome

LARGE_BYTES = 20_000


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    yield from open_nursery()


@pytest.fixture(autouse=True)
def _new_world() -> None:
    world.__init__()  # type: ignore[misc]  # as new


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


@pytest.fixture
async def executor(db: Path) -> AsyncIterator[DurableWorkflowExecutor]:
    async with DurableWorkflowExecutor(db_path=db) as opened:
        yield opened


# ---- Stored data that was damaged ----


def changed(db: Path, column: str, value: object) -> Callable[[], None]:
    """Writes over a column of step two; gives what puts it back."""
    where = "WHERE step_id = 'two'"
    ((old,),) = sql(db, f"SELECT {column} FROM checkpoints {where}")  # noqa: S608
    sql(db, f"UPDATE checkpoints SET {column} = ? {where}", value)  # noqa: S608
    return lambda: sql(db, f"UPDATE checkpoints SET {column} = ? {where}", old)  # type: ignore[return-value]  # noqa: S608


def flipped(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


ROW_DAMAGE: dict[str, tuple[str, Callable[[bytes], object]]] = {
    "a_flipped_bit": ("output_data", flipped),
    "cut_short": ("output_data", lambda data: data[:-1]),
    "grown": ("output_data", lambda data: data + b" "),
    "emptied": ("output_data", lambda data: b""),
    "gone": ("output_data", lambda data: None),
    "text": ("output_data", lambda data: "not bytes"),
    "a_wrong_hash": ("output_hash", lambda data: hashlib.sha256(b"other").hexdigest()),
    "no_hash": ("output_hash", lambda data: None),
    "an_unknown_codec": ("codec", lambda data: "pickle"),
    "no_codec": ("codec", lambda data: None),
    "another_codec": ("codec", lambda data: "json+gzip"),
    "a_wrong_size": ("output_size", lambda data: 1),
    "an_absurd_size": ("output_size", lambda data: 2**62),
    "an_unknown_status": ("status", lambda data: "HALF"),
}


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "packed"])
@pytest.mark.parametrize("damage", ROW_DAMAGE)
async def test_a_damaged_row_is_told_and_never_run_or_used(
    damage: str, packed: bool, db: Path, executor: DurableWorkflowExecutor
) -> None:
    world.gives["two"] = lambda: "two" * (2000 if packed else 1)
    await stops_after_two(executor)
    ((data,),) = sql(db, "SELECT output_data FROM checkpoints WHERE step_id = 'two'")
    column, worsen = ROW_DAMAGE[damage]
    mend = changed(db, column, worsen(data))
    with pytest.raises(RunFailed) as caught:
        await executor.resume("r1", flow)
    cause = caught.value.__cause__
    assert isinstance(cause, CorruptRecord)
    assert (cause.run_id, cause.step_id) == ("r1", "two")
    assert world.ran == []
    mend()
    assert (await executor.resume("r1", flow)).status == "COMPLETED"
    assert world.ran == ["three"]


def blob_of(db: Path) -> Path:
    ((ref,),) = sql(db, "SELECT output_ref FROM checkpoints WHERE step_id = 'two'")
    return Path(f"{db}.blobs") / ref


BLOB_DAMAGE: dict[str, tuple[Callable[[Path, bytes], object], type[CorruptRecord]]] = {
    "missing": (lambda path, _: path.unlink(), MissingBlob),
    "a_flipped_bit": (lambda path, data: path.write_bytes(flipped(data)), CorruptRecord),
    "cut_short": (lambda path, data: path.write_bytes(data[:-1]), CorruptRecord),
    "emptied": (lambda path, data: path.write_bytes(b""), CorruptRecord),
    "grown": (lambda path, data: path.write_bytes(data + b"x"), CorruptRecord),
}


@pytest.mark.parametrize("damage", BLOB_DAMAGE)
async def test_a_damaged_or_missing_blob_is_told_and_its_step_not_run_again(
    damage: str, db: Path, executor: DurableWorkflowExecutor
) -> None:
    world.gives["two"] = lambda: os.urandom(LARGE_BYTES)
    await stops_after_two(executor)
    path = blob_of(db)
    data = path.read_bytes()
    worsen, kind = BLOB_DAMAGE[damage]
    worsen(path, data)
    with pytest.raises(RunFailed) as caught:
        await executor.resume("r1", flow)
    assert type(caught.value.__cause__) is kind
    assert getattr(caught.value.__cause__, "step_id", None) == "two"
    assert world.ran == []
    path.write_bytes(data)
    assert (await executor.resume("r1", flow)).status == "COMPLETED"
    assert world.ran == ["three"]


async def test_damaged_inputs_are_told_before_any_body(db: Path, executor: DurableWorkflowExecutor) -> None:
    await stops_after_two(executor, given="hello")
    ((data,),) = sql(db, "SELECT input_data FROM runs")
    sql(db, "UPDATE runs SET input_data = ?", flipped(data))
    with pytest.raises(CorruptRecord, match="r1"):
        await executor.resume("r1", flow)
    assert world.ran == []
    sql(db, "UPDATE runs SET input_data = ?", data)
    assert (await executor.resume("r1", flow)).status == "COMPLETED"
    assert world.ran == ["three"]


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("status", "HALF"), ("fence", "one"), ("base_fence", b"x"), ("lease_until_ms", "soon"),
        ("crashes", 1.5),
        ("error", '{"cut'), ("error", '{"steps": 5}'), ("input_codec", "pickle"), ("input_data", None),
        ("input_data_hash", "0" * 64), ("input_size", "big"),
    ],
)  # fmt: skip
async def test_a_damaged_header_is_told_before_any_body(
    column: str, value: object, db: Path, executor: DurableWorkflowExecutor
) -> None:
    await stops_after_two(executor, given="hello")
    ((old,),) = sql(db, f"SELECT {column} FROM runs")  # noqa: S608
    sql(db, f"UPDATE runs SET {column} = ?", value)  # noqa: S608
    with pytest.raises(CorruptRecord) as caught:
        await executor.resume("r1", flow)
    assert caught.value.run_id == "r1"
    assert world.ran == []
    sql(db, f"UPDATE runs SET {column} = ?", old)  # noqa: S608
    assert (await executor.resume("r1", flow)).output == ["one", "two", "three"]
    assert world.ran == ["three"]


@pytest.mark.parametrize(
    ("column", "value"), [("fence", "one"), ("crashes", 1.5), ("counts", "{"), ("error", "{")]
)
async def test_one_damaged_run_does_not_hide_the_others(
    column: str, value: object, db: Path, executor: DurableWorkflowExecutor
) -> None:
    for run_id in ("r1", "r2", "r3"):
        await executor.run(flow, run_id=run_id)
    sql(db, f"UPDATE runs SET {column} = ? WHERE run_id = 'r2'", value)  # noqa: S608
    assert [view.run_id for view in await executor.list()] == ["r3", "r2", "r1"]


@pytest.mark.parametrize("column", ["output_data", "output_hash", "output_codec"])
async def test_a_damaged_output_of_a_run_is_told_each_time_it_is_asked_for(
    column: str, db: Path, executor: DurableWorkflowExecutor
) -> None:
    await executor.run(flow, run_id="r1")
    ((old,),) = sql(db, f"SELECT {column} FROM runs")  # noqa: S608
    sql(db, f"UPDATE runs SET {column} = ?", "00")  # noqa: S608
    for _ in range(2):
        with pytest.raises(CorruptRecord, match="r1"):
            await executor.run(flow, run_id="r1")
    sql(db, f"UPDATE runs SET {column} = ?", old)  # noqa: S608
    assert (await executor.run(flow, run_id="r1")).output == ["one", "two", "three"]
    assert world.ran == ["one", "two", "three"]


@pytest.mark.parametrize("column", ["detail", "attempts", "error"])
async def test_damaged_json_of_a_step_is_told(
    column: str, db: Path, executor: DurableWorkflowExecutor
) -> None:
    world.gives["two"] = raising(ValueError("as planned"))
    await fails(executor)
    world.ran.clear()
    mend = changed(db, column, '{"cut')
    with pytest.raises(DurableError) as caught:
        await executor.resume("r1", flow)
    found = caught.value.__cause__ if isinstance(caught.value, RunFailed) else caught.value
    assert isinstance(found, CorruptRecord)
    assert world.ran == []
    mend()
    world.gives.clear()
    assert (await executor.resume("r1", flow)).status == "COMPLETED"
    assert world.ran == ["two", "three"]


@dataclass
class Moved:
    """A class that a later version of the code has no more."""

    amount: int


async def test_a_value_of_a_class_that_is_gone_is_an_error_and_no_bare_dict(
    executor: DurableWorkflowExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.gives["two"] = lambda: Moved(5)
    await stops_after_two(executor)
    with monkeypatch.context() as gone:
        gone.delattr(f"{__name__}.Moved")
        with pytest.raises(RunFailed) as caught:
            await executor.resume("r1", flow)
    cause = caught.value.__cause__
    assert isinstance(cause, UnknownType)
    assert (cause.run_id, cause.step_id) == ("r1", "two")
    assert "Moved" in str(cause)
    assert world.ran == []
    assert (await executor.resume("r1", flow)).output == ["one", Moved(5), "three"]
    assert world.ran == ["three"]


# ---- Files that aren't ours ----


def content(path: Path) -> bytes:
    return path.read_bytes()


def made_by(*statements: str) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            for statement in statements:
                connection.execute(statement)

    return make


STRANGERS: dict[str, tuple[Callable[[Path], object], type[DurableError]]] = {
    "text": (lambda path: path.write_text("id,name\n1,x\n" * 500), CorruptRecord),
    "zeros": (lambda path: path.write_bytes(bytes(8192)), CorruptRecord),
    "runs": (made_by("CREATE TABLE runs (id)"), StoreMisconfigured),
    "checkpoints": (made_by("CREATE TABLE checkpoints (id)", "CREATE TABLE more (x)"), StoreMisconfigured),
    "view": (made_by("CREATE VIEW runs AS SELECT 1"), StoreMisconfigured),
    "other_version_table": (made_by("CREATE TABLE schema_version (v INTEGER)"), StoreMisconfigured),
    "empty_version_table": (made_by("CREATE TABLE schema_version (version INTEGER)"), StoreMisconfigured),
    "version_table_of_text": (
        made_by("CREATE TABLE schema_version (version TEXT)", "INSERT INTO schema_version VALUES ('1.0.3')"),
        StoreMisconfigured,
    ),
    "same_version_number": (
        made_by("CREATE TABLE schema_version (version INTEGER)", "INSERT INTO schema_version VALUES (1)"),
        StoreMisconfigured,
    ),
}


@pytest.mark.parametrize("stranger", STRANGERS)
async def test_a_file_of_another_program_is_refused_and_left_as_it_was(stranger: str, db: Path) -> None:
    make, kind = STRANGERS[stranger]
    make(db)
    before = content(db)
    with pytest.raises(DurableError) as caught:
        await DurableWorkflowExecutor(db_path=db).run(flow, run_id="r1")
    assert type(caught.value) is kind
    assert not caught.value.retryable
    assert str(db) in str(caught.value)
    assert world.ran == []
    assert content(db) == before


async def test_a_file_of_a_newer_version_is_refused_and_goes_on_after_the_upgrade(db: Path) -> None:
    async with DurableWorkflowExecutor(db_path=db) as executor:
        await stops_after_two(executor)
    sql(db, "INSERT INTO schema_version VALUES (999, 'later')")
    with pytest.raises(SchemaTooNew, match=r"999.*pip install -U durable-core"):
        await DurableWorkflowExecutor(db_path=db).resume("r1", flow)
    sql(db, "DELETE FROM schema_version WHERE version = 999")
    async with DurableWorkflowExecutor(db_path=db) as executor:
        assert (await executor.resume("r1", flow)).status == "COMPLETED"
    assert world.ran == ["three"]


@pytest.mark.parametrize("place", ["missing/runs.db", ".", "file/runs.db"])
async def test_a_place_where_no_file_can_be_is_named(place: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreMisconfigured, match=str(tmp_path)):
        await DurableWorkflowExecutor(db_path=tmp_path / place).run(flow, run_id="r1")


# ---- Rights and room ----


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that other users reach too, unlike those of pytest."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def owned_by_nobody(*paths: Path) -> None:
    if os.geteuid() == 0:
        for path in paths:
            os.chown(path, NOBODY, NOBODY)


@pytest.mark.slow
@pytest.mark.parametrize("readonly", ["folder", "file", "new file"])
def test_a_place_that_may_only_be_read_is_refused_and_goes_on_when_it_may_be_written(
    readonly: str, nursery: Nursery, shared: Path
) -> None:
    folder, notes, db = shared / "data", shared / "notes", shared / "data" / "runs.db"
    folder.mkdir()
    notes.mkdir()
    owned_by_nobody(folder, notes)
    run = ("limited", db, "r1", notes, 3, 10, "nobody")
    if readonly != "new file":
        assert nursery.run("limited", db, "r0", notes, 1, 10, "nobody") == 0
    closed = db if readonly == "file" else folder
    closed.chmod(0o444 if closed is db else 0o555)
    before = len(bodies(notes / "bodies"))
    assert nursery.run(*run) == 1
    assert outcome(notes)["error"] == "STORE_MISCONFIGURED"
    assert str(db) in str(outcome(notes)["message"])
    assert len(bodies(notes / "bodies")) == before
    closed.chmod(0o755)
    assert nursery.run(*run) == 0
    assert outcome(notes) == {"output": 30}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "what"), [(4_000, "runs.db"), (200_000, "blob folder")], ids=["log", "blob"]
)
async def test_a_full_disk_loses_nothing_and_the_run_goes_on_when_there_is_room(
    size: int, what: str, nursery: Nursery, tmp_path: Path
) -> None:
    """A limit on the size of files stands in for the full disk: each write beyond it fails."""
    db, log = tmp_path / "runs.db", tmp_path / "bodies"
    room = 400_000 if what == "runs.db" else 150_000
    assert nursery.run("limited", db, "r1", tmp_path, 60, size, "room", room) == 1
    assert outcome(tmp_path)["error"] == "JOURNAL_UNAVAILABLE"
    assert what in str(outcome(tmp_path)["message"])
    assert integrity(db) == "ok"
    done, before = committed(db, "r1"), bodies(log)
    assert {line.step_id for line in before} - done == {before[-1].step_id}  # one was in doubt
    async with DurableWorkflowExecutor(db_path=db) as executor:
        result = await executor.resume("r1", pages)
    assert result.output == 60 * size
    after = bodies(log)[len(before) :]
    assert not done & {line.step_id for line in after}
    assert after[0].key == before[-1].key
    assert integrity(db) == "ok"
