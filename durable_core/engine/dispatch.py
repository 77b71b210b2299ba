"""Telling others that there is work for them: where nobody looks at the journal, somebody has to say so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from durable_core.engine.owners import lease_now_ms
from durable_core.records import ACTIVE, PENDING, SUSPENDED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from durable_core.engine.drive import Tools
    from durable_core.records import RunHeader

_NEVER_MS: Final = 100 * 365 * 86_400_000  # somebody has to wake it


class Dispatch(Protocol):
    """Is told after each durable write that made work available to others; without one, workers look.

    It may be told twice of the same work, and of work that is done by the time somebody comes to it: whoever
    comes is told so by the journal. What it raises reaches the caller of the operation, whose write stands;
    all operations that tell may be made again.
    """

    async def drive(self, run_id: str, *, delay_s: float = 0) -> None:
        """A run may be driven on.

        Args:
            run_id: The run.
            delay_s: Not before so many seconds have gone by. May be days: whoever can't keep it that long may
                leave it to those who look for runs that are due.
        """
        ...

    async def chunks(self, run_id: str, step_id: str, chunks: Sequence[int]) -> None:
        """Chunks of a map may be worked on.

        Args:
            run_id: The run.
            step_id: Of the map.
            chunks: Their numbers, from 0. May be thousands.
        """
        ...


async def tell_drive(tools: Tools, header: RunHeader) -> None:
    """Tells of a run as it was left: released or woken, or asleep until a time.

    Args:
        tools: The executor's.
        header: As it is now.
    """
    if tools.dispatch is None or header.status not in (PENDING, SUSPENDED):
        return
    wait_ms = max(header.due_at_ms, header.lease_until_ms) - lease_now_ms(tools)
    if header.status == PENDING or wait_ms < _NEVER_MS:
        await tools.dispatch.drive(header.run_id, delay_s=max(0, wait_ms) / 1000)


async def tell_woken(tools: Tools, header: RunHeader | None) -> None:
    """Tells of a run that something has come to.

    Args:
        tools: The executor's.
        header: As it was before that; None if there was none.
    """
    if tools.dispatch is not None and header is not None and header.status in ACTIVE:
        await tools.dispatch.drive(header.run_id)
