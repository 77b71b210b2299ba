"""Headers that can't be read in the SQLite journal, and what takes their place."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from durable_core.journal._sqlite_rows import as_bound, escaped
from durable_core.journal._sqlite_verbs import HEADER, RUN_COLUMNS
from durable_core.journal.base import Journal
from durable_core.journal.damaged import DamagedHeader, damaged, why_unreadable
from durable_core.records import Reply, RunHeader

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable

T = TypeVar("T")

_REPLACE: Final = f"UPDATE runs SET {', '.join(f'{name} = ?' for name in RUN_COLUMNS)} WHERE "


class SqliteDamage(Journal):
    """The verbs on headers that can't be read."""

    async def write_checked(
        self, verb: Callable[..., Reply[T]], *args: Any, alone: bool | None = None
    ) -> Reply[T]:
        """Makes a synced write, after a look whether the file still is the one that was opened.

        Raises:
            JournalUnavailable: It isn't.
        """
        raise NotImplementedError

    async def read(self, query: Callable[[sqlite3.Connection], T]) -> T:
        """Asks the reading connection."""
        raise NotImplementedError

    async def damaged_header(self, run_id: str) -> DamagedHeader | None:
        """One SELECT."""
        found = await self.read(partial(_found, run_id=run_id))
        return found if isinstance(found, DamagedHeader) else None

    async def replace_damaged(self, seen: DamagedHeader, header: RunHeader) -> Reply[RunHeader]:
        """One UPDATE, synced."""
        return await self.write_checked(replace_damaged, seen, header)


def replace_damaged(cursor: sqlite3.Cursor, seen: DamagedHeader, header: RunHeader) -> Reply[RunHeader]:
    """A readable header over a damaged one, if all of that is as it was seen.

    P   damaged ── replace ─▶ applied: PRUNING
    Q   damaged ───────────── replace ─▶ refused: it isn't as it was seen
    X   (mends it) ── P: replace ─▶ refused
    """
    marks, values = as_bound(seen.row.values())
    same = " AND ".join(f"{name} IS {mark}" for name, mark in zip(RUN_COLUMNS, marks, strict=True))
    row = tuple(getattr(header, name) for name in RUN_COLUMNS)
    if cursor.execute(f"{_REPLACE}{same}", (*row, *values)).rowcount == 1:
        return Reply(True, header)
    found = _found(cursor.connection, seen.run_id)
    return Reply(False, found if isinstance(found, RunHeader) else None)


def _found(connection: sqlite3.Connection, run_id: str) -> RunHeader | DamagedHeader | None:
    rows = escaped(connection, HEADER, (run_id,))
    if not rows:
        return None
    row = dict(zip(RUN_COLUMNS, rows[0], strict=True))
    why = why_unreadable(row)
    return damaged(run_id, why, row) if why is not None else RunHeader(**row)
