"""Blobs in the memory of this process: for tests and for runs that needn't survive it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from durable_core.blobs.base import (
    MAX_BLOB_BYTES,
    RUNS,
    BlobStore,
    check_bytes,
    check_ref,
    check_run_id,
    missing,
    too_large,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from durable_core.blobs.base import Owners


class MemoryBlobs(BlobStore):
    """Blobs in a dict.

    Args:
        now_s: Tells the time in seconds.
    """

    def __init__(self, *, now_s: Callable[[], float] = time.time) -> None:
        self.held: dict[str, tuple[bytes, float]] = {}
        self._now_s = now_s

    async def put(self, ref: str, data: bytes) -> None:
        """Store a blob."""
        check_ref(ref)
        check_bytes(ref, data)
        held, _ = self.held.setdefault(ref, (bytes(data), self._now_s()))
        check_bytes(ref, held)

    async def get(self, ref: str) -> bytes:
        """The bytes of a blob."""
        return self.read(ref)

    def read(self, ref: str) -> bytes:
        """The bytes of a blob, for plain code."""
        check_ref(ref)
        if ref not in self.held:
            raise missing(ref, "memory")
        data, _ = self.held[ref]
        if len(data) > MAX_BLOB_BYTES:
            raise too_large(ref, len(data))
        check_bytes(ref, data)
        return data

    async def delete(self, ref: str) -> None:
        """Remove a blob."""
        check_ref(ref)
        self.held.pop(ref, None)

    async def refs(self, run_id: str, *, older_than_s: float = 0, of: Owners = RUNS) -> AsyncIterator[str]:
        """The refs of a run's blobs."""
        check_run_id(run_id)
        latest_s = self._now_s() - older_than_s
        for ref, (_, stored_s) in list(self.held.items()):
            if ref.startswith(f"{of}/{run_id}/") and stored_s <= latest_s:
                yield ref

    async def runs(self) -> AsyncIterator[str]:
        """The ids of the runs that have blobs."""
        for run_id in {ref.split("/")[1] for ref in self.held if ref.startswith(f"{RUNS}/")}:
            yield run_id
