"""What bodies leave behind: lines in a file that several processes append to, each line in one write."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Awaitable
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from durable_core import DurableError, current_step


class Line(NamedTuple):
    """One start of a body."""

    step_id: str
    key: str
    attempt: int
    pid: int
    run_id: str


def note(path: str | Path, what: object) -> None:
    """Appends a line of JSON; a kill leaves all of it or nothing."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        os.write(file, json.dumps(what).encode() + b"\n")
    finally:
        os.close(file)


def body_starts(path: str | Path) -> None:
    """Called at the start of a body."""
    info = current_step()
    note(path, (info.step_id, info.idempotency_key, info.attempt, os.getpid(), info.run_id))


def noted(path: str | Path) -> list[object]:
    """All lines."""
    try:
        return [json.loads(line) for line in Path(path).read_bytes().splitlines()]
    except FileNotFoundError:
        return []


def bodies(path: str | Path) -> list[Line]:
    """All starts of bodies, in order."""
    return [Line(*line) for line in noted(path)]  # type: ignore[misc]


def count(path: str | Path) -> int:
    """How many lines there are, without reading them."""
    try:
        return Path(path).read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


def size_of(path: str | Path) -> int:
    """Bytes in a file."""
    return Path(path).stat().st_size


def names(folder: Path) -> list[str]:
    """What is in a folder, sorted."""
    return sorted(path.name for path in folder.iterdir())


def leave(path: str | Path, text: str = "") -> None:
    """Leaves a file for another process to find."""
    Path(path).write_text(text)


def left(path: str | Path) -> str | None:
    """What another process left there, if it has."""
    return Path(path).read_text() if Path(path).exists() else None


def statuses(db: str | Path, run_id: str) -> dict[str, str]:
    """The steps of a run and their status, by a connection of its own; none before there is a schema."""
    if not Path(db).exists():
        return {}
    with closing(sqlite3.connect(db)) as connection:
        if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'checkpoints'").fetchone():
            return {}
        return dict(connection.execute("SELECT step_id, status FROM checkpoints WHERE run_id = ?", (run_id,)))


def committed(db: str | Path, run_id: str) -> set[str]:
    """The committed steps of a run."""
    return {step_id for step_id, status in statuses(db, run_id).items() if status == "COMMITTED"}


def integrity(db: str | Path) -> str:
    """`ok`, also where there is no file yet, or what is wrong with it."""
    if not Path(db).exists():
        return "ok"
    with closing(sqlite3.connect(db)) as connection:
        return str(connection.execute("PRAGMA integrity_check").fetchone()[0])


async def reported(folder: str, running: Awaitable[object], name: str = "outcome") -> int:
    """Leaves what came of a run in a file: its output, or the codes of its error and of what caused it."""
    try:
        output = await running
    except DurableError as error:
        cause = error.__cause__
        told: dict[str, object] = {
            "error": error.code,
            "cause": cause.code if isinstance(cause, DurableError) else type(cause).__name__,
            "message": str(error),
        }
    else:
        told = {"output": output}
    leave(Path(folder, name), json.dumps(told))
    return 0 if "output" in told else 1


def outcome(folder: str | Path, name: str = "outcome") -> dict[str, object]:
    """What `reported` left."""
    found: dict[str, object] = json.loads(left(Path(folder, name)) or "{}")
    return found
