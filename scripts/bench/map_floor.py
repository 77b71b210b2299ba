"""The floor of a map: what bare sqlite3 takes for the same segments. Frozen, as floor.py is.

Why it is honest:

- The table of segments and its INSERT are the engine's, with all 16 columns. They are copied here, not
  imported, so that a change of the engine can't move what it is measured by.
- It loses as little: every segment is committed with `synchronous=FULL`, in groups as large as the engine
  made in the round beside it, so there are as many fsyncs.
- All values exist before the clock starts: no item is hashed, no outcome encoded, packed or compressed. The
  bodies are coroutines that give a value, awaited one after the other: nothing runs beside anything. The
  run's header and the map's own record, four writes in all, are left out.
"""

from __future__ import annotations

import hashlib
import json
import time
from contextlib import closing
from typing import TYPE_CHECKING, Final, NamedTuple

import zstandard

from scripts.bench import floor

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

MAP_ID: Final = "noop"
COMPRESSED_FROM: Final = 2048  # bytes

SCHEMA: Final = """
CREATE TABLE segments (
  run_id TEXT NOT NULL, step_id TEXT NOT NULL, chunk INTEGER NOT NULL, seq INTEGER NOT NULL,
  attempt_id TEXT NOT NULL, fence INTEGER NOT NULL, chunk_fence INTEGER NOT NULL,
  items INTEGER NOT NULL,
  succeeded INTEGER NOT NULL, failed INTEGER NOT NULL,
  codec TEXT, size INTEGER, output_hash TEXT,
  refs TEXT,
  written_at TEXT NOT NULL,
  data BLOB,
  PRIMARY KEY (run_id, step_id, chunk, seq));
"""
APPEND: Final = (
    "INSERT INTO segments (run_id, step_id, chunk, seq, attempt_id, fence, chunk_fence, items, succeeded,"
    " failed, data, codec, size, output_hash, refs, written_at)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
)


class Group(NamedTuple):
    """One segment: what its items' bodies give, and the values of its INSERT."""

    outputs: list[int]
    row: tuple[object, ...]


def prebuilt(sizes: Sequence[int]) -> list[Group]:
    """Segments of so many items each, whose outputs are their positions; as long as the engine's."""
    groups, done = list[Group](), 0
    for seq, size in enumerate(sizes):
        outputs = list(range(done, done + size))
        done += size
        lines = [f'[{n},"{_sha256(str(n).encode())[:16]}",1,0,null,{json.dumps(n)}]' for n in outputs]
        raw = "\n".join(lines).encode()
        data, codec = raw, "json"
        if len(raw) >= COMPRESSED_FROM:
            data, codec = zstandard.ZstdCompressor(level=3).compress(raw), "json+zstd"
        row = (
            floor.RUN_ID, MAP_ID, 0, seq, _sha256(f"attempt {seq}".encode())[:20], floor.FENCE, 0, size, done,
            0, data, codec, len(raw), _sha256(raw), None, "2026-01-01T00:00:00.000Z",
        )  # fmt: skip
        groups.append(Group(outputs, row))
    return groups


async def write(path: Path, sizes: Sequence[int]) -> float:
    """Runs all items and writes what came of them, a group at a time; gives the seconds that took."""
    groups = prebuilt(sizes)
    with closing(floor.make(path)) as connection:
        connection.executescript(SCHEMA)
        cursor = connection.cursor()
        began = time.perf_counter()
        for group in groups:
            for output in group.outputs:
                await _body(output)
            if cursor.execute(APPEND, group.row).rowcount != 1:
                raise RuntimeError("a segment was refused")
        return time.perf_counter() - began


async def _body(output: int) -> int:
    return output


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
