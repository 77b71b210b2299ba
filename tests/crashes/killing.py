"""Kills real processes at every durable write of what `acts` does, and says what was broken.

    python -m tests.crashes.killing --store sqlite                     every crash point of every act
    python -m tests.crashes.killing --store postgres --act steps       of one
    python -m tests.crashes.killing --store dynamodb --every 20        each twentieth of them

PostgreSQL and the stand-in for AWS are started here, unless `--at` says where they are. It ends with 1 if a
promise was broken.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path

from durable_core import configure_logging
from durable_core.testing.crash_processes import ProcessTrials
from durable_core.testing.durable_writes import Write
from durable_core.testing.simulated_process import Mode
from tests.cloud import ENVIRONMENT, Cloud, patient, running_cloud
from tests.crashes.acts import ACTS
from tests.crashes.functions import FUNCTION_ACTS
from tests.postgres import PostgresServer, emptied

ALL = ACTS | FUNCTION_ACTS


def acts_on(store: str) -> list[str]:
    """What is done on a store: functions are on AWS."""
    return list(ALL if store == "dynamodb" else ACTS)


@contextmanager
def stores(kind: str, at: str | None) -> Iterator[Callable[[], str]]:
    """Gives URLs of empty stores."""
    numbers = count(1)
    with ExitStack() as opened:
        if kind == "sqlite":
            folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="durable-crashes-")))
            yield lambda: f"sqlite:///{folder}/{next(numbers)}.db"
        elif kind == "postgres":
            if at is None:
                server = PostgresServer()
                opened.callback(server.remove)
                server.start()
                at = server.url
            schema = f"crashes_{os.getpid()}"

            def fresh() -> str:
                emptied(at, schema)
                return f"{at}?schema={schema}"

            yield fresh
        else:
            os.environ.update(ENVIRONMENT)
            opened.enter_context(patient())
            cloud = Cloud(at) if at is not None else opened.enter_context(running_cloud())
            transport = cloud.transport("boto3")
            bucket = cloud.shared_bucket
            yield lambda: cloud.url(table := cloud.new_table(transport), bucket, prefix=f"{table}/")


def broken(trials: ProcessTrials, write: Write, mode: Mode) -> list[str]:
    """The promises that a crash point breaks; a process that hangs breaks one, too."""
    try:
        return trials.broken(write.number, mode)
    except RuntimeError as error:
        return [str(error)]


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description="Kills processes at their durable writes.")
    parser.add_argument("--store", choices=("sqlite", "postgres", "dynamodb"), default="sqlite")
    parser.add_argument("--at", help="where PostgreSQL or the stand-in for AWS is")
    parser.add_argument("--act", action="append", choices=ALL, help="only this one; may be repeated")
    parser.add_argument("--every", type=int, default=1, help="only each so many-th crash point")
    options = parser.parse_args()
    configure_logging(level="critical")
    bad = tried = 0
    began = time.monotonic()
    with stores(options.store, options.at) as fresh:
        for name in options.act or acts_on(options.store):
            trials = ProcessTrials(ALL[name], fresh)
            points = trials.points()
            for write, mode in points[len(name) % options.every :: options.every]:
                tried += 1
                for what in broken(trials, write, mode):
                    bad += 1
                    say(f"{name}, write {write.number} ({write}), {mode.value}: {what}")
    took_s = time.monotonic() - began
    say(f"{tried} crash points on {options.store} in {took_s:.0f} s, {bad} promises broken")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
