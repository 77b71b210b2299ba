"""A SQLite file that this user may only read: every way of looking works, every write is refused by name."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from durable_core import DurableWorkflowExecutor
from durable_core.journal.base import Departure
from durable_core.testing.samples import driven, segment
from tests.e2e.programs.limited import NOBODY
from tests.e2e.programs.looking import book
from tests.e2e.programs.nursery import Nursery, open_nursery
from tests.waiting import until

LARGE = 20_000  # into a blob


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    yield from open_nursery()


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that other users reach too, unlike those of pytest; `notes` in it may be written by all."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "data").mkdir()
        (folder / "notes").mkdir()
        if os.geteuid() == 0:
            os.chown(folder / "notes", NOBODY, NOBODY)
        yield folder
        (folder / "data").chmod(0o755)


async def stored(shared: Path) -> Path:
    """A store with a run that has ended, and one that waits to be driven."""
    db = shared / "data" / "runs.db"
    async with DurableWorkflowExecutor(db_path=db) as executor:
        await executor.run(book, run_id="r1", size=LARGE)
        await executor.start(book, run_id="waits", size=1)
        journal = executor.store.journal
        lease = await driven(journal, "segments")
        assert (await journal.append(segment(run_id="segments"))).ok
        await journal.leave(lease, Departure(status="COMPLETED"))
    return db


def only_read(db: Path) -> None:
    for path in (*db.parent.rglob("*"), db.parent):
        path.chmod(0o555 if path.is_dir() else 0o444)


def seen(shared: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((shared / "notes" / "seen").read_text())
    return found


ENDING = [["waits", "PENDING"], ["r1", "COMPLETED"], ["segments", "COMPLETED"]]
OF_R1 = {"status": "COMPLETED", "steps": {"page": LARGE, "page#2": LARGE, "page#3": LARGE}}


def is_refused(found: dict[str, Any], db: Path) -> None:
    for told in found["refused"]:
        assert told.startswith("STORE_MISCONFIGURED")
        assert f"{db} can be read by this user, but not written" in told
    assert found["segments"] == 1
    assert found["codes"] == [0, 0, 0, 3]


@pytest.mark.slow
async def test_a_closed_file_is_looked_at_and_left_as_it_was(nursery: Nursery, shared: Path) -> None:
    db = await stored(shared)
    only_read(db)
    before = {path: path.stat().st_mtime_ns for path in db.parent.rglob("*")}
    assert nursery.run("looking", db, shared / "notes") == 0
    found = seen(shared)
    assert found["first"] == {"runs": ENDING, **OF_R1}
    is_refused(found, db)
    assert {path: path.stat().st_mtime_ns for path in db.parent.rglob("*")} == before


@pytest.mark.slow
async def test_a_file_that_another_user_writes_is_seen_as_it_is_at_each_look(
    nursery: Nursery, shared: Path
) -> None:
    db = await stored(shared)
    inside, notes = shared / "notes" / "inside", shared / "notes"
    driver = nursery.start("held", db, "live", notes, "driven")
    until(inside.exists, "the body")
    only_read(db)
    reader = nursery.start("looking", db, notes, "again")
    until((notes / "looked").exists, "the first look")
    (notes / "go").write_text("on")
    assert nursery.wait(driver) == 0
    async with DurableWorkflowExecutor(db_path=db) as executor:
        if os.geteuid() == 0:  # whose rights don't depend on the file's
            await executor.run(book, run_id="later", size=1)
    (notes / "again").touch()
    assert nursery.wait(reader) == 0
    found = seen(shared)
    assert found["first"] == {
        "runs": [["live", "RUNNING"], *ENDING], **OF_R1,
    }  # fmt: skip
    assert ["live", "COMPLETED"] in found["second"]["runs"]
    assert os.geteuid() != 0 or ["later", "COMPLETED"] in found["second"]["runs"]
    is_refused(found, db)


@pytest.mark.slow
async def test_what_a_dead_writer_left_in_the_log_is_seen_too(nursery: Nursery, shared: Path) -> None:
    db = await stored(shared)
    driver = nursery.start("held", db, "dies", shared / "notes", "driven")
    until((shared / "notes" / "inside").exists, "the body")
    nursery.kill(driver)
    only_read(db)
    assert nursery.run("looking", db, shared / "notes") == 0
    found = seen(shared)
    assert found["first"]["runs"][0] == ["dies", "RUNNING"]
    is_refused(found, db)


@pytest.mark.slow
async def test_once_the_file_may_be_written_the_same_executor_writes_it(
    nursery: Nursery, shared: Path
) -> None:
    db = await stored(shared)
    only_read(db)
    if os.geteuid() == 0:
        for path in (db.parent, *db.parent.rglob("*")):
            os.chown(path, NOBODY, NOBODY)
    assert nursery.run("looking", db, shared / "notes", "mend") == 0
    assert seen(shared)["mended"] == 3
