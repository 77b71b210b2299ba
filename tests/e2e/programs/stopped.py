"""A run that is asked to stop at a call of its journal, on its way to the first step."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from durable_core import Context, DurableWorkflowExecutor, step, workflow
from durable_core.blobs.filesystem import FilesystemBlobs
from durable_core.journal.base import Claim, Lease
from durable_core.journal.sqlite import SqliteJournal
from durable_core.records import ACTIVE, Reply, RunHeader, Seen, StepRecord
from durable_core.store import Store
from tests.e2e.programs.witness import leave, note

T = TypeVar("T")
LOCKED_S = 0.3


@step
async def opening(folder: str) -> int:
    note(f"{folder}/bodies", 1)
    await asyncio.sleep(0.02)
    return 1


@workflow
async def stopped(ctx: Context, folder: str) -> int:
    return await ctx.step(opening, folder)


class Stopping(SqliteJournal):
    """Sends its own process a signal before or after the first call of a verb.

    Args:
        path: The file.
        folder: Where it leaves word that it did.
        at: Such as `before create`; empty for never.
        number: Of the signal.
        locks: Whether another program locks the file at that moment, and lets it go a little later.
    """

    def __init__(self, path: Path, folder: str, at: str, number: int, locks: bool) -> None:
        super().__init__(path)
        self._folder, self._at, self._number, self._locks = folder, at, number, locks

    async def open(self, *, create: bool = True) -> None:
        await self._do("open", super().open(create=create))

    async def header(self, run_id: str) -> RunHeader | None:
        return await self._do("header", super().header(run_id))

    async def create(self, header: RunHeader, lease_ms: int = 0) -> Reply[RunHeader]:
        return await self._do("create", super().create(header, lease_ms))

    async def acquire(
        self,
        seen: RunHeader,
        claim: Claim,
        *,
        statuses: Sequence[str] = ACTIVE,
        dead_owner: str | None = None,
    ) -> Reply[RunHeader]:
        acquired = super().acquire(seen, claim, statuses=statuses, dead_owner=dead_owner)
        return await self._do("acquire", acquired)

    async def progressed(self, run_id: str, fence: int) -> bool:
        return await self._do("progressed", super().progressed(run_id, fence))

    async def replay(self, run_id: str) -> AsyncIterator[list[StepRecord]]:
        self._come("before replay")
        async for page in super().replay(run_id):
            yield page
        self._come("after replay")

    async def _begin(self, begun: Awaitable[Reply[StepRecord]]) -> Reply[StepRecord]:
        return await self._do("begin", begun)

    def begin(self, record: StepRecord, seen: Seen | None, lease: Lease, *, guarded: bool = False) -> Any:
        return self._begin(super().begin(record, seen, lease, guarded=guarded))

    async def _do(self, verb: str, call: Awaitable[T]) -> T:
        self._come(f"before {verb}")
        reply = await call
        self._come(f"after {verb}")
        return reply

    def _come(self, moment: str) -> None:
        if moment != self._at:
            return
        self._at = ""
        leave(f"{self._folder}/came")
        if self._locks:
            locked = threading.Event()
            threading.Thread(target=self._keep_locked, args=(locked,), daemon=True).start()
            locked.wait()
        os.kill(os.getpid(), self._number)

    def _keep_locked(self, locked: threading.Event) -> None:
        other = sqlite3.connect(self.path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        locked.set()
        time.sleep(LOCKED_S)
        other.close()


def main(
    db: str, folder: str, way: str, at: str = "", number: int = signal.SIGTERM, locks: bool = False
) -> int:
    """Runs or resumes, not opened before; gives 143 and 130 for what the signals end a process with."""
    store = Store(
        f"sqlite:///{db}", Stopping(Path(db), folder, at, number, locks), FilesystemBlobs(Path(f"{db}.blobs"))
    )
    executor = DurableWorkflowExecutor(store)

    async def go() -> None:
        leave(f"{folder}/called")
        if way == "run":
            await executor.run(stopped, run_id="r1", folder=folder)
        else:
            await executor.resume("r1", stopped)

    try:
        asyncio.run(go())
    except SystemExit as left:
        return int(left.code or 0)
    except KeyboardInterrupt:
        return 130
    finally:
        asyncio.run(executor.close())
    return 0
