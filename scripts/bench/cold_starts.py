"""How long each built function takes to import, beside clients and a peer that a handler could import.

    scripts/build.sh host
    python scripts/bench/cold_starts.py [--runs 7] [--powertools FOLDER]

Each import is in a process of its own that sees the function's zip and the standard library only. FOLDER is
made by `pip install --target FOLDER aws-lambda-powertools boto3`. Times are of one machine: compare them with
each other.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Final

BUILT: Final = Path(__file__).resolve().parents[2] / ".aws-sam" / "host"
_TIMED: Final = """
import sys, time
sys.path.insert(0, sys.argv[1])
began = time.perf_counter()
exec(sys.argv[2])
print(time.perf_counter() - began)
"""
_ENVIRONMENT: Final = {
    "DURABLE_STORE": "dynamodb://table?bucket=bucket&region=us-east-1",
    "DURABLE_DRIVE_QUEUE_URL": "https://example.invalid/drive",
    "DURABLE_WORK_QUEUE_URL": "https://example.invalid/work",
    "DURABLE_EVENT_BUS": "runs",
    "DURABLE_RETENTION_DAYS": "90",
    "AWS_REGION": "us-east-1",
}


def seconds(folder: Path, code: str) -> float:
    """How long some code takes in a fresh process with a folder's packages only."""
    done = subprocess.run(
        [sys.executable, "-S", "-c", _TIMED, str(folder), code],
        env=_ENVIRONMENT,
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout.splitlines()[-1])


def main() -> None:
    """Prints a line for each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--powertools", type=Path)
    given = parser.parse_args()
    if not BUILT.is_dir():
        sys.exit("Build the functions first:  scripts/build.sh host")
    subjects = [(path.parent.name, path.parent, "import app") for path in sorted(BUILT.glob("*/app.py"))]
    subjects += [(name, BUILT / "DriveRun", f"import {name}") for name in ("boto3", "aioboto3")]
    if given.powertools:
        peer = "from aws_lambda_powertools.utilities.idempotency import idempotent, DynamoDBPersistenceLayer"
        subjects.append(("Powertools' idempotency", given.powertools, peer))
    times: dict[str, list[float]] = {name: [] for name, _, _ in subjects}
    for _ in range(given.runs + 1):  # interleaved; the first round warms the file system
        for name, folder, code in subjects:
            times[name].append(seconds(folder, code))
    for name, found in times.items():
        rest = sorted(found[1:])
        low, middle, high = (1000 * one for one in (rest[0], statistics.median(rest), rest[-1]))
        print(f"{name:24} {middle:6.0f} ms   ({low:.0f}-{high:.0f})")


if __name__ == "__main__":
    main()
