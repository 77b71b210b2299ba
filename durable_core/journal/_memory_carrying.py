"""A run's records as they are, and back again, in the memory journal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from durable_core.journal._memory_damaged import MemoryDamage
from durable_core.journal._memory_rows import is_mine, pages
from durable_core.journal.carrying import KEYS, Kind, Record, kind_of, read_row
from durable_core.records import Reply, RunHeader, Unreadable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from durable_core.journal.base import Lease


class MemoryCarrying(MemoryDamage):
    """The verbs on whole runs.

    Attributes:
        checks_header: As given to `MemoryJournal`.
    """

    checks_header: bool

    async def as_stored(self, run_id: str, kind: Kind) -> AsyncIterator[list[Record | Unreadable]]:
        """All of a kind, by key."""
        found = [(key, row) for key, row in list(self._table(kind).items()) if key[0] == run_id]
        for page in pages([row for _, row in sorted(found, key=lambda pair: pair[0])]):
            yield [read_row(kind, row) for row in page]

    async def restore(self, records: Sequence[Record], lease: Lease) -> Reply[Record]:
        """The header mine, and nothing there but what an earlier life left."""
        with self.lock:
            for record in records:
                kind = kind_of(record)
                table, key = self._table(kind), (record.run_id, *(getattr(record, of) for of in KEYS[kind]))
                old: Record | None = table.get(key)
                if old == record:
                    continue
                if self.checks_header and not is_mine(self.headers.get(record.run_id), lease):
                    return Reply(False, old)
                if old is not None and old.fence > lease.base_fence:
                    return Reply(False, old)
                table[key] = record
            return Reply(True)

    async def restore_header(self, header: RunHeader, lease: Lease) -> Reply[RunHeader]:
        """My owner and fence."""
        with self.lock:
            old = self.headers.get(header.run_id)
            return self.put_header(header) if is_mine(old, lease) else Reply(False, old)

    def _table(self, kind: Kind) -> dict[Any, Any]:
        tables: dict[Kind, dict[Any, Any]] = {
            "step": self.records,
            "segment": self.logs,
            "event": self.letters,
            "chunk": self.claims,
        }
        return tables[kind]
