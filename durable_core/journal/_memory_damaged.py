"""Headers that can't be read in the memory journal, and what takes their place."""

from __future__ import annotations

from durable_core.journal._memory_rows import MemoryRows
from durable_core.journal.base import Journal
from durable_core.journal.damaged import HEADER_TYPES, DamagedHeader, damaged, why_unreadable
from durable_core.records import Reply, RunHeader


class MemoryDamage(MemoryRows, Journal):
    """The verbs on headers that can't be read."""

    async def damaged_header(self, run_id: str) -> DamagedHeader | None:
        """The header, if a store that wrote it down couldn't give it back."""
        with self.lock:
            found = self.headers.get(run_id)
            return _damaged(found) if found is not None else None

    async def replace_damaged(self, seen: DamagedHeader, header: RunHeader) -> Reply[RunHeader]:
        """All of it as it was seen."""
        with self.lock:
            found = self.headers.get(seen.run_id)
            if found is not None and _row(found) == seen.row:
                return self.put_header(header)
            return Reply(False, found if found is not None and _damaged(found) is None else None)


def _damaged(header: RunHeader) -> DamagedHeader | None:
    row = _row(header)
    why = why_unreadable(row)
    return damaged(header.run_id, why, row) if why is not None else None


def _row(header: RunHeader) -> dict[str, object]:
    return {name: getattr(header, name) for name in HEADER_TYPES}
