"""Asking the journal until a reply comes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, TypeVar

from durable_core.errors import JournalUnavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

R = TypeVar("R")

# Seconds. A store that has waited by itself for longer than the last is not asked again.
_ASK_AGAIN_AFTER_S: Final = (0.05, 0.5)


async def ask(verb: Callable[..., Awaitable[R]], *args: Any, **options: Any) -> R:
    """Makes one journal call, again and as it was while no reply comes: a write whose reply was lost knows
    itself.

    Raises:
        JournalUnavailable: No reply came.
        DurableError: The journal's other errors.
    """
    for pause_s in _ASK_AGAIN_AFTER_S:
        try:
            return await verb(*args, **options)
        except JournalUnavailable as error:
            if error.waited_s > _ASK_AGAIN_AFTER_S[-1]:
                raise
            await asyncio.sleep(pause_s)
    return await verb(*args, **options)
