"""Whether the checkpoints of a run's session are what was saved: format, size, hash, blobs, columns."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from durable_core.checkpoints.checkpoint import damage_of, opened, raw_of
from durable_core.checkpoints.spilled import SpilledStates
from durable_core.errors import CorruptRecord, MissingBlob, StoreMisconfigured

if TYPE_CHECKING:
    from durable_core.blobs.base import BlobStore
    from durable_core.checkpoints.base import CheckpointRecord, CheckpointStore
    from durable_core.engine.findings import Findings

_PAGE: Final = 50  # states come with them


async def check_session(kept: CheckpointStore, blobs: BlobStore, session_id: str, findings: Findings) -> int:
    """Looks at all checkpoints of a session; other runs of it have the same.

    What a state means isn't asked: the classes in it need not be there.

    Args:
        kept: Where they are.
        blobs: Where those are that are too large for a record.
        session_id: The session.
        findings: Where damage goes.

    Returns:
        How many were looked at.

    Raises:
        JournalUnavailable: The store can't be reached.
    """
    try:
        return await asyncio.to_thread(_check_all, kept, SpilledStates(blobs), session_id, findings)
    except StoreMisconfigured as error:  # of a file that may only be read: the run itself can be verified
        findings.notice("checkpoints-unread", None, error.message)
        return 0


def _check_all(kept: CheckpointStore, states: SpilledStates, session_id: str, findings: Findings) -> int:
    count, before = 0, None
    while page := kept.page(session_id, before=before, limit=_PAGE, with_state=True):
        for record in page:
            found = _damage(record, states)
            if found is None or kept.at(session_id, record.seq) is None:  # it was pruned meanwhile
                continue
            kind, message = found
            findings.damage(kind, str(record.step_id), message)
        count, before = count + len(page), page[-1].seq
    return count


def _damage(record: CheckpointRecord, states: SpilledStates) -> tuple[str, str] | None:
    try:
        whole = states.fetched(record)
        raw_of(whole)
    except MissingBlob as error:
        return "checkpoint-blob-missing", error.message
    except CorruptRecord as error:
        return "checkpoint-damaged", error.message
    fault = damage_of(opened(whole))
    return ("checkpoint-damaged", fault.message) if fault is not None else None
