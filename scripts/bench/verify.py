"""How long verifying a healthy run takes on SQLite, beside a bare read of the same rows.

    python scripts/bench/verify.py               100,000 steps: a minute or two
    python scripts/bench/verify.py --steps 1000 --json

The records are those that the engine leaves, made without running them. The bare read takes all columns and
hashes the outputs; verifying reckons keys, compares and decodes besides. They are measured in turn.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
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

from durable_core import DurableWorkflowExecutor
from scripts.bench import floor, steps

TIMES: Final = 5


def read_bare(path: Path) -> int:
    """Reads and hashes all steps; gives how many."""
    count = 0
    with closing(sqlite3.connect(path)) as connection:
        for row in connection.execute("SELECT * FROM checkpoints ORDER BY run_id, step_id"):
            hashlib.sha256(row[6]).digest()
            count += 1
    return count


async def verify(path: Path) -> int:
    """Verifies the run; gives how many steps were looked at.

    Raises:
        AssertionError: It is told to be damaged, which it isn't.
    """
    async with DurableWorkflowExecutor(db_path=path) as executor:
        report = await executor.verify()
    if report.findings:
        raise AssertionError(f"a healthy run is told to be damaged: {report.findings[:3]}")
    return sum(run.steps for run in report.runs)


async def run(count: int) -> dict[str, Any]:
    """Makes a run, and measures both over it in turn."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "runs.db"
        steps._outputs[:] = floor.outputs(count)
        await steps.make_run(path, count)
        bare, ours, looked_at = list[float](), list[float](), 0
        for _ in range(TIMES):
            began = time.perf_counter()
            read = read_bare(path)
            bare.append(time.perf_counter() - began)
            began = time.perf_counter()
            looked_at = await verify(path)
            ours.append(time.perf_counter() - began)
            if looked_at != read:
                raise AssertionError(f"{looked_at} steps were looked at, and {read} are there")
    return {
        "steps": looked_at,
        "verify_s": statistics.median(ours),
        "verify_worst_s": max(ours),
        "bare_read_s": statistics.median(bare),
        "ratio": statistics.median(one / other for one, other in zip(ours, bare, strict=True)),
    }


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=100_000, help="how many the run has")
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args()
    found = asyncio.run(run(given.steps))
    if given.json:
        print(json.dumps(found, indent=2))
        return
    print(f"{found['steps']:,} healthy steps, median of {TIMES}")
    print(f"durable verify  {found['verify_s']:>8.2f} s  (worst {found['verify_worst_s']:.2f})")
    print(f"bare read       {found['bare_read_s']:>8.2f} s")
    print(f"verify / bare   {found['ratio']:>8.1f}")


if __name__ == "__main__":
    main()
