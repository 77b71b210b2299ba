"""States that are too large for a record: in the blob store, put first and deleted last."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Final, TypeVar

from durable_core.blobs.base import SESSIONS, blob_ref, is_ref
from durable_core.checkpoints.checkpoint import corrupt
from durable_core.errors import CorruptRecord, DurableError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from durable_core.blobs.base import BlobStore
    from durable_core.checkpoints.base import CheckpointRecord, Place

T = TypeVar("T")

ORPHAN_AGE_S: Final = 24 * 3600.0


class SpilledStates:
    """The blobs of checkpoints; blocking.

    Args:
        blobs: Of the store.
    """

    def __init__(self, blobs: BlobStore) -> None:
        self.blobs = blobs

    def put(self, record: CheckpointRecord) -> CheckpointRecord:
        """Moves a state into a blob: before its record is written, so that none points to nothing."""
        data = record.state or b""
        ref = blob_ref(record.session_id, record.id, data, SESSIONS)
        wait_for(self.blobs.put(ref, data))
        return record._replace(state=None, state_ref=ref)

    def fetched(self, record: CheckpointRecord) -> CheckpointRecord:
        """The record with its state, wherever that is.

        Raises:
            MissingBlob, CorruptRecord: The blob isn't what was put.
        """
        if record.state is not None or not isinstance(record.state_ref, str):
            return record
        if not is_ref(record.state_ref):
            raise corrupt(record, f"{record.state_ref!r:.80} is no name of a blob")
        try:
            return record._replace(state=self.blobs.read(record.state_ref))
        except CorruptRecord as error:
            error.message += f" (checkpoint {record.seq} of session {record.session_id!r})"
            error.step_id = record.step_id
            raise

    def delete(self, ref: str) -> None:
        """Removes a blob, after its record is gone; a damaged record's name of one leads nowhere."""
        if is_ref(ref):
            wait_for(self.blobs.delete(ref))

    def take_back(self, record: CheckpointRecord) -> None:
        """Removes the blob of a record that was refused; if it can't be, it is swept later."""
        if record.state_ref is not None:
            with suppress(DurableError):
                self.delete(record.state_ref)

    def sweep(self, session_id: str, places: Callable[[str], Sequence[Place]]) -> None:
        """Removes old blobs to which nothing points: a save or a removal was killed between its writes."""

        async def old() -> list[str]:
            found = self.blobs.refs(session_id, older_than_s=ORPHAN_AGE_S, of=SESSIONS)
            return [ref async for ref in found]

        orphans = set(wait_for(old()))
        if orphans:
            orphans.difference_update(str(place.state_ref) for place in places(session_id))
        for ref in orphans:
            self.delete(ref)

    def close(self) -> None:
        """Gives back what the blob store holds open."""
        wait_for(self.blobs.close())


def wait_for(call: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine, for blocking code: in a thread when an event loop runs in this one."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(call)
    with ThreadPoolExecutor(1, "durable-checkpoints") as pool:
        return pool.submit(copy_context().run, asyncio.run, call).result()
