"""What executors and checkpointers need of a store."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from durable_core.blobs.base import BlobStore
    from durable_core.checkpoints.base import CheckpointStore
    from durable_core.journal.base import Journal

DEFAULT_INLINE_MAX_BYTES: Final = 8 * 1024


@dataclass(frozen=True, slots=True)
class Store:
    """A journal with the blob store beside it, and checkpoints of agents in the same place.

    Attributes:
        url: How people name it; without credentials.
        inline_max_bytes: The most stored bytes of a value that stay in its record.
        checkpoints: Connects when it is first used; None where the store keeps none.
    """

    url: str
    journal: Journal
    blobs: BlobStore
    inline_max_bytes: int = DEFAULT_INLINE_MAX_BYTES
    checkpoints: CheckpointStore | None = None

    async def close(self) -> None:
        """Gives connections back; the store can be used again."""
        await self.journal.close()
        if self.checkpoints is not None:
            await asyncio.to_thread(self.checkpoints.close)
        await self.blobs.close()
