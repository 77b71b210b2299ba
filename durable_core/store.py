"""What an executor needs of a store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from durable_core.blobs.base import BlobStore
    from durable_core.journal.base import Journal

DEFAULT_INLINE_MAX_BYTES: Final = 8 * 1024


@dataclass(frozen=True, slots=True)
class Store:
    """A journal with the blob store beside it.

    Attributes:
        url: How people name it; without credentials.
        inline_max_bytes: The most stored bytes of a value that stay in its record.
    """

    url: str
    journal: Journal
    blobs: BlobStore
    inline_max_bytes: int = DEFAULT_INLINE_MAX_BYTES
