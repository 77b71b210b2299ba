"""Journals with many committed steps, made without running them: to measure reading alone."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Final

from durable_core.clock import SystemClock, rfc3339
from durable_core.codec import encode
from durable_core.envelope import seal
from durable_core.identity import KeyMaker, input_hash, new_attempt_id, place
from durable_core.records import COMMITTED, PENDING, StepRecord

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

_COLUMNS: Final = StepRecord._fields
_INSERT: Final = f"INSERT INTO checkpoints ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"  # noqa: S608
_REOPEN: Final = (
    "UPDATE runs SET status = ?, owner = NULL, owner_process = NULL, lease_until_ms = 0, output_hash = NULL,"
    " output_data = NULL, output_ref = NULL, output_codec = NULL, output_size = NULL, error = NULL,"
    " counts = NULL, ended_at = NULL WHERE run_id = ?"
)


def committed(run_id: str, step_name: str, outputs: Sequence[str]) -> Iterator[StepRecord]:
    """The records that the engine leaves of `await ctx.step(step, index)` for each index, under fence 1."""
    keys, at = KeyMaker(run_id), rfc3339(SystemClock().now_ms())
    for index, output in enumerate(outputs):
        step_id = step_name if index == 0 else f"{step_name}#{index + 1}"
        hashed = input_hash(step_id, (index,), {})
        sealed = seal(encode(output))
        yield StepRecord(
            run_id, step_id, index, COMMITTED, hashed, sealed.output_hash, sealed.data, None, sealed.codec,
            at, at, keys.key(index, hashed), 1, 0, new_attempt_id(place(1, index + 1)), 1,
            output_size=sealed.size,
        )  # fmt: skip


def fill(path: Path, run_id: str, step_name: str, outputs: Sequence[str]) -> None:
    """Puts committed steps into a run that has none."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executemany(_INSERT, committed(run_id, step_name, outputs))


def reopen(path: Path, run_id: str) -> None:
    """Takes a run's end back, as if its process had been asked to stop after the last step."""
    with closing(sqlite3.connect(path)) as connection, connection:
        if connection.execute(_REOPEN, (PENDING, run_id)).rowcount != 1:
            raise RuntimeError(f"{path} has no run {run_id}")
