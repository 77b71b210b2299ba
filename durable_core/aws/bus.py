"""Telling others, through EventBridge, that a run has ended or sleeps."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, Final

from durable_core.errors import DurableError, JournalUnavailable
from durable_core.log import get_logger

if TYPE_CHECKING:
    from durable_core.aws.queue import SqsDispatch
    from durable_core.aws.transport import Transport
    from durable_core.engine.results import RunView

SOURCE: Final = "durable-core"
DETAIL_TYPE: Final = "durable.status"
_TRY_AGAIN_AFTER_S: Final = (0.1, 0.5, None)


class Bus:
    """One event bus.

    Args:
        transport: Sends the requests.
        name: Of the bus.
    """

    def __init__(self, transport: Transport, name: str) -> None:
        self._transport = transport
        self._name = name

    async def tell(self, view: RunView, dispatch: SqsDispatch) -> None:
        """Tells how a run was left; what the bus doesn't take goes through the queue, and is put later.

        Raises:
            JournalUnavailable: The queue doesn't take it either.
        """
        detail = status_detail(view)
        try:
            await self.put(detail)
        except DurableError as error:
            get_logger("durable_core").warning(
                "event_put_later", run_id=view.run_id, code=error.code, reason=error.message
            )
            await dispatch.announce(view.run_id, detail)

    async def put(self, detail: dict[str, Any]) -> None:
        """Puts one event. EventBridge answers 200 also if it has not taken it.

        Raises:
            JournalUnavailable: It could not be put.
        """
        entry = {
            "EventBusName": self._name,
            "Source": SOURCE,
            "DetailType": DETAIL_TYPE,
            "Detail": json.dumps(detail, separators=(",", ":")),
        }
        for pause_s in _TRY_AGAIN_AFTER_S:
            reply = await self._transport.call("events", "put_events", {"Entries": [entry]})
            if not reply.get("FailedEntryCount"):
                return
            if pause_s is None:
                codes = sorted({str(one.get("ErrorCode")) for one in reply.get("Entries", ())})
                raise JournalUnavailable(f"the bus {self._name} took no event ({', '.join(codes)})")
            await asyncio.sleep(pause_s)


def status_detail(view: RunView) -> dict[str, Any]:
    """What is told of a run: ids, status and counts, never a payload."""
    detail = {
        "run_id": view.run_id,
        "workflow": view.workflow,
        "session_id": view.session_id,
        "status": view.status,
        "fence": view.fence,
        "counts": dict(view.counts),
        "at": view.updated_at,
    }
    return {name: value for name, value in detail.items() if value is not None}
