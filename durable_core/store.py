"""What an executor needs of a store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from durable_core.blobs.base import BlobStore
    from durable_core.journal.base import Journal


@dataclass(frozen=True, slots=True)
class Store:
    """A journal with the blob store beside it.

    Attributes:
        url: How people name it; without credentials.
    """

    url: str
    journal: Journal
    blobs: BlobStore
