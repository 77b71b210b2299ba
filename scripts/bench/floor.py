"""The floor: what bare sqlite3 takes for the same records. Frozen, or figures can't be compared any more.

Why it is honest:

- The table of steps, its index and the two statements of a step are the engine's, with all 21 columns: the
  floor writes hashes, keys and fences too, and looks for the run's header as the engine does. They are copied
  here, not imported, so that a change of the engine can't move what it is measured by.
- It loses as little: STARTED is committed with `synchronous=NORMAL`, the outcome with FULL, one fsync a step;
  the pragma is set before each, a statement is a transaction, the log has the same checkpoint interval.
- All values exist before the clock starts: nothing is hashed, encoded or stamped. The bodies are coroutines
  that give a value, awaited one after the other. Whatever the engine does beyond that is its overhead.
- Reading back is one SELECT of hash and output, SHA-256 and `json.loads`: the least that gives checked
  values.

    python scripts/bench/floor.py --steps 2000
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import random
import sqlite3
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

RUN_ID: Final = "bench-run"
STEP_NAME: Final = "draw"
OUTPUT_BYTES: Final = 200
OWNER: Final = "0123456789abcdef0123"
FENCE: Final = 1

SCHEMA: Final = """
CREATE TABLE runs (
  run_id TEXT NOT NULL PRIMARY KEY,
  workflow TEXT NOT NULL,
  fingerprint TEXT,
  input_hash TEXT NOT NULL,
  input_data_hash TEXT, input_data BLOB, input_ref TEXT, input_codec TEXT, input_size INTEGER,
  status TEXT NOT NULL,
  owner TEXT, owner_process TEXT,
  fence INTEGER NOT NULL, base_fence INTEGER NOT NULL,
  lease_until_ms INTEGER NOT NULL DEFAULT 0,
  due_at_ms INTEGER NOT NULL DEFAULT 0,
  wake_count INTEGER NOT NULL DEFAULT 0,
  crashes INTEGER NOT NULL DEFAULT 0,
  output_hash TEXT, output_data BLOB, output_ref TEXT, output_codec TEXT, output_size INTEGER,
  error TEXT, counts TEXT,
  session_id TEXT, forked_from TEXT,
  created_at TEXT NOT NULL, updated_at TEXT NOT NULL, ended_at TEXT);
CREATE INDEX runs_by_creation ON runs (created_at, run_id);
CREATE INDEX runs_by_status ON runs (status, created_at, run_id);
CREATE TABLE checkpoints (
  run_id TEXT NOT NULL, step_id TEXT NOT NULL, step_index INTEGER NOT NULL,
  status TEXT NOT NULL,
  input_hash TEXT, output_hash TEXT, output_data BLOB, output_ref TEXT, codec TEXT,
  started_at TEXT, committed_at TEXT,
  idempotency_key TEXT NOT NULL,
  attempt INTEGER NOT NULL, crashes INTEGER NOT NULL, attempt_id TEXT NOT NULL, fence INTEGER NOT NULL,
  kind TEXT NOT NULL DEFAULT 'step',
  output_size INTEGER, error TEXT,
  detail TEXT, attempts TEXT,
  PRIMARY KEY (run_id, step_id));
"""

BEGIN: Final = (
    "INSERT INTO checkpoints (run_id, step_id, step_index, status, input_hash, output_hash, output_data,"
    " output_ref, codec, started_at, committed_at, idempotency_key, attempt, crashes, attempt_id, fence,"
    " kind, output_size, error, detail, attempts)"
    " SELECT ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?"
    " WHERE EXISTS (SELECT 1 FROM runs WHERE run_id = ? AND owner = ? AND fence = ?) ON CONFLICT DO NOTHING"
)
COMMIT: Final = (
    "UPDATE checkpoints SET status = ?, output_hash = ?, output_data = ?, output_ref = ?, codec = ?,"
    " committed_at = ?, output_size = ?, error = ?, detail = ?, attempts = ?"
    " WHERE run_id = ? AND step_id = ? AND status = 'STARTED' AND attempt_id = ? AND idempotency_key = ?"
)
READ: Final = "SELECT output_hash, output_data FROM checkpoints WHERE run_id = ?"


class Prebuilt(NamedTuple):
    """One step: what its body gives, and the values of both statements."""

    output: str
    begin: tuple[object, ...]
    commit: tuple[object, ...]


def outputs(steps: int, seed: int = 7) -> list[str]:
    """Random hex texts whose JSON has 200 bytes: nothing that compression or interning could gain from."""
    drawn = random.Random(seed)  # the same in every round
    return [f"{drawn.getrandbits(4 * (OUTPUT_BYTES - 2)):0{OUTPUT_BYTES - 2}x}" for _ in range(steps)]


def prebuilt(steps: int) -> list[Prebuilt]:
    """The values of so many steps, of the same lengths as the engine's."""
    at = "2026-01-01T00:00:00.000Z"
    found = []
    for index, output in enumerate(outputs(steps)):
        step_id = STEP_NAME if index == 0 else f"{STEP_NAME}#{index + 1}"
        data = json.dumps(output).encode()
        input_hash, key, output_hash = (
            _sha256(step_id.encode()),
            _sha256(f"key {index}".encode()),
            _sha256(data),
        )
        attempt_id = key[:20]
        begin = (
            RUN_ID, step_id, index, "STARTED", input_hash, None, None, None, None, at, None, key, 1, 0,
            attempt_id, FENCE, "step", None, None, None, None, RUN_ID, OWNER, FENCE,
        )  # fmt: skip
        commit = (
            "COMMITTED", output_hash, data, None, "json", at, len(data), None, None, None,
            RUN_ID, step_id, attempt_id, key,
        )  # fmt: skip
        found.append(Prebuilt(output, begin, commit))
    return found


def make(path: Path) -> sqlite3.Connection:
    """A file with the tables and one run's header, open for writing."""
    connection = sqlite3.connect(path, timeout=0, isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA wal_autocheckpoint=500")
    connection.execute("PRAGMA journal_size_limit=67108864")
    connection.execute("PRAGMA synchronous=FULL")
    connection.executescript(SCHEMA)
    connection.execute(
        "INSERT INTO runs (run_id, workflow, input_hash, status, owner, fence, base_fence, created_at,"
        " updated_at) VALUES (?, 'bench', ?, 'RUNNING', ?, ?, 0, ?, ?)",
        (RUN_ID, _sha256(b""), OWNER, FENCE, "2026-01-01T00:00:00.000Z", "2026-01-01T00:00:00.000Z"),
    )
    return connection


async def write(path: Path, steps: int) -> float:
    """Runs steps one after the other; gives the seconds that took."""
    values = prebuilt(steps)
    with closing(make(path)) as connection:
        cursor = connection.cursor()
        began = time.perf_counter()
        for step in values:
            cursor.execute("PRAGMA synchronous=NORMAL")
            if cursor.execute(BEGIN, step.begin).rowcount != 1:
                raise RuntimeError(f"the begin of {step.begin[1]} was refused")
            await _body(step.output)
            cursor.execute("PRAGMA synchronous=FULL")
            if cursor.execute(COMMIT, step.commit).rowcount != 1:
                raise RuntimeError(f"the commit of {step.begin[1]} was refused")
        return time.perf_counter() - began


def read(path: Path, run_id: str = RUN_ID) -> tuple[int, float]:
    """Reads a run's outputs back and checks them; gives how many there were, and the seconds that took."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        began = time.perf_counter()
        count = 0
        for output_hash, data in connection.execute(READ, (run_id,)):
            if hashlib.sha256(data).hexdigest() != output_hash:
                raise RuntimeError("a stored output does not have its hash")
            json.loads(data)
            count += 1
        return count, time.perf_counter() - began


def size_bytes(path: Path) -> int:
    """The size of a file with everything in its log moved into it."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        (busy, _, _) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if busy:
            raise RuntimeError(f"{path} is still in use")
    return path.stat().st_size


async def _body(output: str) -> str:
    return output


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def main(arguments: list[str] | None = None) -> None:
    """Prints the floor alone."""
    parser = argparse.ArgumentParser(description="Bare sqlite3 with the engine's records.")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--folder", type=Path, help="where to put the file; a temporary folder if not given")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="durable-floor-", dir=options.folder) as folder:
        path = Path(folder) / "floor.db"
        took_s = asyncio.run(write(path, options.steps))
        count, read_s = read(path)
        print(f"steps          {count}")
        print(f"steps per s    {count / took_s:.0f}")
        print(f"bytes per step {size_bytes(path) / count:.0f}")
        print(f"read back ms   {read_s * 1000:.2f}")


if __name__ == "__main__":
    main()
