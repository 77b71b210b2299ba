"""A process that saves steps until it is told to stop, and waits two seconds for any of them at the most."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from durable_core.journal.sqlite import SqliteJournal
from durable_core.testing.samples import attempt, committed, driven
from tests.e2e.programs.witness import leave, left


def main(db: str, run_id: str, folder: str) -> int:
    """Leaves `{run_id}.ready` after its first step, and then `{run_id}.saved` and `{run_id}.slowest`."""

    async def save() -> int:
        journal = SqliteJournal(Path(db), busy_limit_s=2)
        await journal.open()
        me, slowest, saved = await driven(journal, run_id), 0.0, 0
        while left(f"{folder}/stop") is None:
            record, began = attempt(f"s{saved}", run_id=run_id), time.perf_counter()
            assert (await journal.begin(record, None, me)).ok
            begun = time.perf_counter()
            assert (await journal.commit(committed(record))).ok
            slowest, saved = max(slowest, begun - began, time.perf_counter() - begun), saved + 1
            leave(f"{folder}/{run_id}.ready")
        leave(f"{folder}/{run_id}.slowest", str(slowest))
        leave(f"{folder}/{run_id}.saved", str(saved))
        await journal.close()
        return 0

    return asyncio.run(save())
