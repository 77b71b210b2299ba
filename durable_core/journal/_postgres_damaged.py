"""Headers that can't be read in the PostgreSQL journal, and what takes their place.

The schema sees to the types of the columns, the server to its texts: a status that is none is what is left.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from durable_core.journal._postgres_headers import HEADER
from durable_core.journal._postgres_rows import RUN, RUN_COLUMNS, named_marks, type_of
from durable_core.journal.base import Journal
from durable_core.journal.damaged import DamagedHeader, damaged, why_unreadable
from durable_core.records import Reply, RunHeader

if TYPE_CHECKING:
    from durable_core.journal._postgres_pool import Pool

# A readable header over a damaged one, if all of that is as it was seen.
#
#   P   damaged ── replace ─▶ applied: PRUNING
#   Q   damaged ───────────── replace ─▶ waits for P's, then refused: it isn't as it was seen
#   X   (mends it) ── P: replace ─▶ refused
_SAME: Final = " AND ".join(
    f"{name} IS NOT DISTINCT FROM %(seen_{name})s::{type_of(name)}" for name in RUN_COLUMNS
)
_REPLACE: Final = f"UPDATE durable.runs SET ({RUN}) = ROW ({named_marks(RUN_COLUMNS)}) WHERE {_SAME}"


class PostgresDamage(Journal):
    """The verbs on headers that can't be read.

    Attributes:
        pool: As given to `PostgresJournal`.
    """

    pool: Pool

    async def damaged_header(self, run_id: str) -> DamagedHeader | None:
        """One SELECT."""
        found = await self._found(run_id)
        return found if isinstance(found, DamagedHeader) else None

    async def replace_damaged(self, seen: DamagedHeader, header: RunHeader) -> Reply[RunHeader]:
        """One UPDATE."""
        values: dict[str, Any] = asdict(header)
        values |= {f"seen_{name}": value for name, value in seen.row.items()}
        if (await self.pool.run(_REPLACE, values)).changed == 1:
            return Reply(True, header)
        found = await self._found(seen.run_id)
        return Reply(False, found if isinstance(found, RunHeader) else None)

    async def _found(self, run_id: str) -> RunHeader | DamagedHeader | None:
        rows = (await self.pool.run(HEADER, {"run_id": run_id})).rows
        if not rows:
            return None
        row = dict(zip(RUN_COLUMNS, rows[0], strict=True))
        why = why_unreadable(row)
        return damaged(run_id, why, row) if why is not None else RunHeader(**row)
