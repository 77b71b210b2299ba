"""How long the first page of a listing takes when a SQLite file has many runs, by what is asked for.

    python scripts/bench/listing.py              100,000 runs: a quarter of a minute
    python scripts/bench/listing.py --runs 1000 --json

The file is made at once, by the store's own statement; what is timed is a query over a fresh connection.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sqlite3
import statistics
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any, Final

if __package__ in (None, ""):  # started as a file: the checkout isn't on the path yet
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from durable_core.clock import rfc3339
from durable_core.journal.base import RunFilter
from durable_core.journal.sqlite import SqliteJournal

TIMES: Final = 7
PAGE: Final = 100
_STATUSES: Final = ("COMPLETED",) * 97 + ("FAILED", "SUSPENDED", "PENDING")
_BEGAN_MS: Final = 1_760_000_000_000


def fill(path: Path, runs: int) -> None:
    """Puts headers into a store that is there."""
    error = json.dumps({"code": "ERROR", "type": "ValueError", "message": "no title", "traceback": "x" * 800})
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executemany(
            "INSERT INTO runs (run_id, workflow, input_hash, input_data, status, fence, base_fence, error,"
            " counts, created_at, updated_at) VALUES (?, ?, ?, ?, ?, 1, 0, ?, ?, ?, ?)",
            (
                (
                    f"run-{n:07d}", f"flow-{n % 20}", "0" * 64, b"{}" * 100, _STATUSES[n % 100],
                    error if n % 100 == 97 else None, '{"COMMITTED": 12}', rfc3339(_BEGAN_MS + n * 1000),
                    rfc3339(_BEGAN_MS + n * 1000),
                )
                for n in range(runs)
            ),
        )  # fmt: skip


def asked(runs: int) -> dict[str, RunFilter]:
    """What is listed."""
    middle = rfc3339(_BEGAN_MS + runs * 500)
    return {
        "the first page": RunFilter(limit=PAGE),
        "a page in the middle": RunFilter(limit=PAGE, before=(middle, "")),
        "failed ones": RunFilter(limit=PAGE, status="FAILED"),
        "of one workflow": RunFilter(limit=PAGE, workflow="flow-7"),
        "created before the middle": RunFilter(limit=PAGE, until=middle),
        "with a text that many have": RunFilter(limit=PAGE, text="no title"),
        "with a text that none has": RunFilter(limit=PAGE, text="no such text"),
        "one by its beginning": RunFilter(limit=11, prefix=f"run-{runs // 2:07d}"),
    }


async def measure(path: Path, runs: int) -> list[dict[str, Any]]:
    """The median and the worst of some times, each over a fresh connection."""
    rows = []
    for name, wanted in asked(runs).items():
        took = []
        found = 0
        for _ in range(TIMES):
            journal = SqliteJournal(path)
            await journal.open(create=False)
            began = time.perf_counter()
            found = len(await journal.runs(wanted))
            took.append((time.perf_counter() - began) * 1000)
            await journal.close()
        rows.append(
            {"asked": name, "found": found, "median_ms": statistics.median(took), "worst_ms": max(took)}
        )
    return rows


async def run(runs: int) -> list[dict[str, Any]]:
    """Makes the file and asks it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "runs.db"
        journal = SqliteJournal(path)
        await journal.open()
        await journal.close()
        fill(path, runs)
        return await measure(path, runs)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=100_000, help="how many the file has")
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args()
    rows = asyncio.run(run(given.runs))
    if given.json:
        print(json.dumps({"runs": given.runs, "page": PAGE, "listings": rows}, indent=2))
        return
    print(f"{given.runs:,} runs, pages of {PAGE}")
    for row in rows:
        print(
            f"{row['asked']:<28}{row['found']:>5}  {row['median_ms']:>8.1f} ms  (worst {row['worst_ms']:.1f})"
        )


if __name__ == "__main__":
    main()
