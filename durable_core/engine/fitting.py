"""What a waiting run has said that an event must be: a payload that doesn't fit is refused before it is sent.

The wait's record names the class. It is looked for among what this process has imported, never imported for
it; where it isn't there, or has no name (`list[Decision]`), the wait itself refuses the payload in the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from durable_core.codec import adapter_for, decode
from durable_core.codec_classes import find
from durable_core.errors import CorruptRecord, UnresolvedAnnotation, UsageError
from durable_core.records import EVENT_KIND, STARTED
from durable_core.workflow import registered

if TYPE_CHECKING:
    from durable_core.engine.drive import Tools
    from durable_core.records import RunHeader, StepRecord


async def check_fits(tools: Tools, header: RunHeader, name: str, raw: bytes) -> None:
    """Refuses a payload that no wait of that name can take, as far as this process can tell.

    It reads the run's records once, as whoever is woken by the event will; a process that doesn't know the
    run's workflow reads nothing.

    Raises:
        UsageError: It doesn't fit.
    """
    if not registered(header.workflow):
        return
    refusals: list[tuple[StepRecord, CorruptRecord]] = []
    async for page in tools.journal.replay(header.run_id):
        for record in page:
            if record.kind != EVENT_KIND or record.status != STARTED or record.fence <= header.base_fence:
                continue
            detail = record.details()
            if detail.get("event") == name:
                refusal = _refusal(detail.get("type"), raw)
                if refusal is None:
                    return
                refusals.append((record, refusal))
    if refusals:
        record, refusal = refusals[0]
        raise UsageError(
            f"the payload of event {name!r} isn't what the run waits for: {refusal.message}",
            run_id=header.run_id,
            step_id=record.step_id,
            remedy="Send one that fits; nothing was sent",
        ) from refusal


def _refusal(type_name: object, raw: bytes) -> CorruptRecord | None:
    """Why a payload can't be a value of that class; None if it can, or nobody knows."""
    cls = find(type_name) if isinstance(type_name, str) else None
    if cls is None:
        return None
    try:
        decode(raw, adapter_for(cls))
    except UnresolvedAnnotation:
        return None
    except CorruptRecord as error:
        return error
    return None
