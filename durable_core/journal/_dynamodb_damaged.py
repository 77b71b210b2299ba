"""Headers that can't be read in the DynamoDB journal, and what takes their place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from durable_core.errors import CorruptRecord
from durable_core.journal import _conditions as conditions
from durable_core.journal._dynamodb_keys import HEADER
from durable_core.journal._items import header_of, known_of
from durable_core.journal.base import Journal
from durable_core.journal.damaged import DamagedHeader, damaged
from durable_core.records import Reply, RunHeader

if TYPE_CHECKING:
    from durable_core.journal._dynamodb_keys import Item
    from durable_core.journal._dynamodb_table import Table


class DynamoDamage(Journal):
    """The verbs on headers that can't be read.

    Attributes:
        table: As `DynamoJournal` makes it.
    """

    table: Table

    async def damaged_header(self, run_id: str) -> DamagedHeader | None:
        """One GetItem."""
        found = await self.table.read(run_id, HEADER, lambda item: _found(run_id, item))
        return found if isinstance(found, DamagedHeader) else None

    async def replace_damaged(self, seen: DamagedHeader, header: RunHeader) -> Reply[RunHeader]:
        """One PutItem."""
        write = conditions.replace_damaged(self.table.name, seen, header)
        reply = await self.table.write(write, lambda item: _found(seen.run_id, item))
        if reply.ok:
            return Reply(True, header)
        return Reply(False, reply.row if isinstance(reply.row, RunHeader) else None)


def _found(run_id: str, item: Item) -> RunHeader | DamagedHeader:
    try:
        return header_of(item)
    except CorruptRecord as error:
        seen = damaged(run_id, error.message, known_of(item))
        return seen._replace(row=item)
