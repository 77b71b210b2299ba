"""Waiting for a busy SQLite file ends with whoever waits; what had been begun to be written is written."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from durable_core.errors import JournalUnavailable
from durable_core.journal._sqlite_file import connect, in_thread, prepare, until_free
from durable_core.journal._sqlite_writer import Writer

PROMPT_S = 5.0


@pytest.fixture
def db(tmp_path: Path) -> Path:
    prepare(tmp_path / "runs.db")
    return tmp_path / "runs.db"


@pytest.fixture
def other(db: Path) -> Iterator[sqlite3.Connection]:
    """Another program, which has the file locked."""
    with closing(connect(db)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield connection


@pytest.fixture
def writer(db: Path) -> Iterator[Writer]:
    made = Writer(db, 30)
    yield made
    made.connection.close()


def put(cursor: sqlite3.Cursor, at: str) -> str:
    cursor.execute("INSERT INTO schema_version VALUES (99, ?)", (at,))
    return at


def written(db: Path) -> list[str]:
    with closing(connect(db)) as connection:
        return [
            at for (at,) in connection.execute("SELECT applied_at FROM schema_version WHERE version = 99")
        ]


async def in_the_wait(call: Any) -> asyncio.Task[Any]:
    task: asyncio.Task[Any] = asyncio.ensure_future(call)
    await asyncio.sleep(0.05)
    assert not task.done()
    return task


async def is_cancelled(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        async with asyncio.timeout(PROMPT_S):
            await task


async def test_a_wait_in_a_thread_ends_with_its_caller(db: Path, other: sqlite3.Connection) -> None:
    ended = threading.Event()
    told: list[Exception] = []

    def wait() -> None:
        with closing(connect(db)) as connection:
            try:
                until_free(lambda: connection.execute("BEGIN IMMEDIATE"), db)
            except JournalUnavailable as error:
                told.append(error)
        ended.set()

    await is_cancelled(await in_the_wait(in_thread(wait)))
    assert await asyncio.to_thread(ended.wait, PROMPT_S)
    assert "nobody waits" in str(told[0])


async def test_one_callers_end_is_not_anothers(db: Path, other: sqlite3.Connection) -> None:
    def wait() -> str:
        with closing(connect(db)) as connection:
            until_free(lambda: connection.execute("BEGIN IMMEDIATE"), db)
        return "got it"

    goes, stays = await in_the_wait(in_thread(wait)), await in_the_wait(in_thread(wait))
    await is_cancelled(goes)
    await asyncio.sleep(0.02)
    assert not stays.done()
    other.execute("ROLLBACK")
    assert await stays == "got it"


async def test_a_recallable_write_that_waits_is_never_made_once_its_caller_is_cancelled(
    db: Path, other: sqlite3.Connection, writer: Writer
) -> None:
    await is_cancelled(
        await in_the_wait(writer.write(put, ("recalled",), full=True, alone=True, recallable=True))
    )
    other.execute("ROLLBACK")
    assert await writer.write(put, ("next",), full=True, alone=False) == "next"
    assert written(db) == ["next"]


async def test_a_recallable_write_that_is_being_made_is_there_when_its_caller_is_told(
    db: Path, other: sqlite3.Connection, writer: Writer
) -> None:
    inside = threading.Event()

    def slowly(cursor: sqlite3.Cursor) -> None:
        inside.set()
        time.sleep(0.1)
        put(cursor, "made")

    task = await in_the_wait(writer.write(slowly, (), full=True, alone=False, recallable=True))
    other.execute("ROLLBACK")
    assert await asyncio.to_thread(inside.wait, PROMPT_S)
    await is_cancelled(task)
    assert written(db) == ["made"]


async def test_other_writes_are_made_although_their_caller_is_cancelled(
    db: Path, other: sqlite3.Connection, writer: Writer
) -> None:
    await is_cancelled(await in_the_wait(writer.write(put, ("made",), full=True, alone=True)))
    other.execute("ROLLBACK")
    async with asyncio.timeout(PROMPT_S):
        while not written(db):  # noqa: ASYNC110 - what is waited for comes from another thread
            await asyncio.sleep(0.005)
    assert written(db) == ["made"]


async def test_a_recalled_write_takes_none_of_its_group_along(
    db: Path, other: sqlite3.Connection, writer: Writer
) -> None:
    recalled = asyncio.ensure_future(
        writer.write(put, ("recalled",), full=True, alone=False, recallable=True)
    )
    stays = await in_the_wait(writer.write(put, ("stays",), full=True, alone=False))
    await is_cancelled(recalled)
    other.execute("ROLLBACK")
    assert await stays == "stays"
    assert written(db) == ["stays"]
