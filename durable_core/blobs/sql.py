"""Blobs in two tables of a SQL database: what PostgreSQL uses.

A blob is stored in parts, in one transaction: it is seen whole or not at all, and neither side ever has more
of it in memory than the value itself and a part.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, Final, Protocol

from durable_core.blobs.base import (
    MAX_BLOB_BYTES,
    RUNS,
    BlobStore,
    check_bytes,
    check_ref,
    check_run_id,
    missing,
    too_large,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Generator, Sequence
    from contextlib import AbstractAsyncContextManager

    from durable_core.blobs.base import Owners

PART_BYTES: Final = 1024 * 1024
_PARTS_AT_ONCE: Final = 4
_REFS_AT_ONCE: Final = 1000

# Of two that put one blob, the second waits for the first, and then compares.
#
#   A   row ── parts ── commit ─▶ stored
#   B       row ─▶ waits ─────▶ there is one: the same bytes, or corrupt
_CLAIM: Final = "INSERT INTO durable.blobs (ref, size) VALUES (%s, %s) ON CONFLICT DO NOTHING"
_PART: Final = "INSERT INTO durable.blob_parts (ref, part, data) VALUES (%s, %s, %s)"
_SIZE: Final = "SELECT size FROM durable.blobs WHERE ref = %s"
_PARTS: Final = (
    "SELECT data FROM durable.blob_parts WHERE ref = %s AND part >= %s AND part < %s ORDER BY part"
)
_DELETE: Final = "DELETE FROM durable.blobs WHERE ref = %s"  # its parts go with it
_REFS: Final = (
    "SELECT ref FROM durable.blobs WHERE ref > %s AND ref < %s"
    " AND stored_at <= clock_timestamp() - make_interval(secs => %s) ORDER BY ref LIMIT %s"
)
# From one run's refs to the next one's, without reading those in between.
_RUNS: Final = (
    "WITH RECURSIVE run (id) AS ("
    "(SELECT split_part(ref, '/', 2) FROM durable.blobs"
    " WHERE ref > %s AND ref < 'runs0' ORDER BY ref LIMIT 1)"
    " UNION ALL SELECT (SELECT split_part(ref, '/', 2) FROM durable.blobs"
    " WHERE ref > 'runs/' || run.id || '0' AND ref < 'runs0' ORDER BY ref LIMIT 1)"
    " FROM run WHERE run.id IS NOT NULL)"
    " SELECT id FROM run WHERE id IS NOT NULL LIMIT %s"
)


class Answer(Protocol):
    """What a statement came to."""

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        """What it gave."""
        ...

    @property
    def changed(self) -> int:
        """How many rows it wrote."""
        ...


class Session(Protocol):
    """Where statements are made."""

    async def run(self, query: str, values: Sequence[object] | None = None) -> Answer:
        """Makes one; its values are marked by %s, and `durable.` in it stands for the schema."""
        ...


class Database(Session, Protocol):
    """Where the tables are; each statement outside a transaction is one of its own."""

    @property
    def place(self) -> str:
        """As people may see it."""
        ...

    def run_blocking(self, query: str, values: Sequence[object] | None = None) -> Answer:
        """The same as `run`, for plain code in any thread."""
        ...

    def transaction(self) -> AbstractAsyncContextManager[Session]:
        """Several statements that are applied together or not at all."""
        ...

    def close(self) -> None:
        """Closes the connections."""
        ...


class SqlBlobs(BlobStore):
    """Blobs beside the journal.

    Args:
        database: The journal's connections, whose `open` makes the tables.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def put(self, ref: str, data: bytes) -> None:
        """Store a blob, in one transaction."""
        check_ref(ref)
        check_bytes(ref, data)
        async with self._database.transaction() as session:
            if (await session.run(_CLAIM, (ref, len(data)))).changed == 1:
                view = memoryview(data)
                for part, start in enumerate(range(0, len(data), PART_BYTES)):
                    await session.run(_PART, (ref, part, view[start : start + PART_BYTES]))
                return
        await self.get(ref)  # raises if it isn't what its name says

    async def get(self, ref: str) -> bytes:
        """The bytes of a blob."""
        reading = self._reading(ref)
        try:
            asked = next(reading)
            while True:
                asked = reading.send(await self._database.run(*asked))
        except StopIteration as done:
            return bytes(done.value)

    def read(self, ref: str) -> bytes:
        """The bytes of a blob, for plain code."""
        reading = self._reading(ref)
        try:
            asked = next(reading)
            while True:
                asked = reading.send(self._database.run_blocking(*asked))
        except StopIteration as done:
            return bytes(done.value)

    def _reading(self, ref: str) -> Generator[tuple[str, tuple[object, ...]], Answer, bytes]:
        """Yields the statements to be made, one after the other."""
        check_ref(ref)
        found = (yield _SIZE, (ref,)).rows
        if not found:
            raise missing(ref, self._database.place)
        ((size,),) = found
        if size > MAX_BLOB_BYTES:
            raise too_large(ref, size)
        data = io.BytesIO()
        for first in range(0, -(-size // PART_BYTES), _PARTS_AT_ONCE):
            for (part,) in (yield _PARTS, (ref, first, first + _PARTS_AT_ONCE)).rows:
                data.write(part)
        if data.tell() != size and not (yield _SIZE, (ref,)).rows:
            raise missing(ref, self._database.place)  # deleted meanwhile
        whole = data.getvalue()
        check_bytes(ref, whole)
        return whole

    async def delete(self, ref: str) -> None:
        """Remove a blob."""
        check_ref(ref)
        await self._database.run(_DELETE, (ref,))

    async def refs(self, run_id: str, *, older_than_s: float = 0, of: Owners = RUNS) -> AsyncIterator[str]:
        """The refs of a run's blobs, by their name."""
        check_run_id(run_id)
        after, end = f"{of}/{run_id}/", f"{of}/{run_id}0"  # 0 comes after /
        while True:
            values = (after, end, older_than_s, _REFS_AT_ONCE)
            page = (await self._database.run(_REFS, values)).rows
            for (ref,) in page:
                yield ref
            if len(page) < _REFS_AT_ONCE:
                return
            after = page[-1][0]

    async def runs(self) -> AsyncIterator[str]:
        """The ids of the runs that have blobs, by their name."""
        after = "runs/"
        while True:
            page = (await self._database.run(_RUNS, (after, _REFS_AT_ONCE))).rows
            for (run_id,) in page:
                yield run_id
            if len(page) < _REFS_AT_ONCE:
                return
            after = f"runs/{page[-1][0]}0"

    async def close(self) -> None:
        """Closes the connections."""
        self._database.close()
