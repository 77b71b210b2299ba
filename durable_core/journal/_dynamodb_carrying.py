"""A run's records as they are, and back again, in the DynamoDB journal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from durable_core.errors import CorruptRecord
from durable_core.journal import _conditions as conditions
from durable_core.journal._dynamodb_damaged import DynamoDamage
from durable_core.journal._dynamodb_keys import (
    CHUNKS,
    EVENTS,
    HEADER,
    LAST,
    SEGMENTS,
    STEPS,
    Item,
    partition,
    text_of,
)
from durable_core.journal._dynamodb_requests import between, equals, query
from durable_core.journal._dynamodb_table import together
from durable_core.journal._items import chunk_of, event_of, header_of, segment_of, step_of
from durable_core.journal.carrying import Kind, Record, kind_of
from durable_core.records import Reply, RunHeader, Unreadable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from durable_core.journal.base import Lease

RESTORED_AT_ONCE: Final = 16
_READERS: Final[dict[Kind, Callable[[Item], Record]]] = {
    "step": step_of,
    "segment": segment_of,
    "event": event_of,
    "chunk": chunk_of,
}
_PREFIXES: Final[dict[Kind, str]] = {
    "step": STEPS, "segment": SEGMENTS, "event": EVENTS, "chunk": CHUNKS,
}  # fmt: skip
# Everything under a run has its place in one of these, so that keys that nobody could have made are met, too.
_BEFORE: Final = '"'  # the character before #
_RANGES: Final[dict[Kind, tuple[str, str]]] = {
    "chunk": ("\x01", f"{EVENTS[:-1]}{_BEFORE}{LAST}"),
    "event": (EVENTS, f"{SEGMENTS[:-1]}{_BEFORE}{LAST}"),
    "segment": (SEGMENTS, f"{STEPS[:-1]}{_BEFORE}{LAST}"),
    "step": (STEPS, LAST),
}


class DynamoCarrying(DynamoDamage):
    """The verbs on whole runs."""

    async def as_stored(self, run_id: str, kind: Kind) -> AsyncIterator[list[Record | Unreadable]]:
        """One Query a page."""
        request = query(self.table.name, equals("pk", partition(run_id)) & between("sk", *_RANGES[kind]))
        async for page in self.table.pages(request, run_id):
            found = [_read(kind, item) for item in page if text_of(item, "sk") != HEADER]
            if found:
                yield found

    async def restore(self, records: Sequence[Record], lease: Lease) -> Reply[Record]:
        """One PutItem each, a few at a time: a batch takes no conditions."""
        todo, refused = iter(records), list[Reply[Record]]()

        async def one_by_one() -> None:
            for record in todo:
                write = conditions.restore(self.table.name, record, lease.base_fence)
                reader: Any = _READERS[kind_of(record)]
                reply: Reply[Record] = await self.table.write(write, reader)
                if not reply.ok and reply.row != record:
                    refused.append(reply)
                if refused:
                    return

        await together(one_by_one() for _ in range(min(RESTORED_AT_ONCE, len(records))))
        return refused[0] if refused else Reply(True)

    async def restore_header(self, header: RunHeader, lease: Lease) -> Reply[RunHeader]:
        """One PutItem."""
        reply = await self.table.write(conditions.restore_header(self.table.name, header, lease), header_of)
        return Reply(True, header) if reply.ok else reply


def _read(kind: Kind, item: Item) -> Record | Unreadable:
    key = text_of(item, "sk")
    name, _, place = key.removeprefix(_PREFIXES[kind]).partition("!")
    if not key.startswith(_PREFIXES[kind]):
        return Unreadable(kind, name, "", f"no record has the key {key!r:.100}")
    try:
        return _READERS[kind](item)
    except CorruptRecord as error:
        return Unreadable(kind, name, place, error.message)
