"""Asking the store until a reply comes."""

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
    """Makes one call of a journal or blob store, again and as it was while no reply comes: a write whose
    reply was lost knows itself.

    Raises:
        JournalUnavailable: No reply came.
        DurableError: The journal's other errors.
    """
    try:
        return await verb(*args, **options)
    except JournalUnavailable as error:
        return await ask_again(error, verb, *args, **options)


async def ask_again(
    error: JournalUnavailable, verb: Callable[..., Awaitable[R]], *args: Any, **options: Any
) -> R:
    """The same, after a first call to which no reply came."""
    for pause_s in _ASK_AGAIN_AFTER_S:
        if error.waited_s > _ASK_AGAIN_AFTER_S[-1]:
            break
        await asyncio.sleep(pause_s)
        try:
            return await verb(*args, **options)
        except JournalUnavailable as again:
            error = again
    raise error
