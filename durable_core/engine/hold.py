"""Holding a run that nobody drives while it is pruned or imported."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from durable_core.engine.lease import HeldLease
from durable_core.journal.base import Lease

if TYPE_CHECKING:
    from durable_core.engine.drive import Tools
    from durable_core.errors import DurableError
    from durable_core.records import RunHeader


class Hold:
    """The lease of who prunes or imports a run, which is renewed for as long as that takes.

    Args:
        tools: The executor's.
        header: Of the run, as acquired.
    """

    def __init__(self, tools: Tools, header: RunHeader) -> None:
        self._tools = tools
        self.lease = Lease(header.run_id, header.owner or "", header.fence, header.base_fence)
        is_abandoned = asyncio.get_running_loop().is_closed
        self.held = HeldLease(
            self.lease, tools.lease_ms, tools.clock, _noted, header.wake_count, is_abandoned
        )
        tools.renewals.keep(self.held)

    async def check(self) -> None:
        """Before each write.

        Raises:
            Fenced: Somebody else has taken over.
            JournalUnavailable: Nobody can tell.
        """
        if self.held.lost is not None:
            raise self.held.lost
        if self.held.is_over():
            await asyncio.to_thread(self._tools.renewals.renew_now, self.held)


def _noted(_: DurableError) -> None:
    """The next check raises it."""
