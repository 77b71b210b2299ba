"""The verbs of the DynamoDB journal on segments, events and tombstones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from durable_core.errors import JournalUnavailable
from durable_core.journal import _conditions as conditions
from durable_core.journal import _dynamodb_listing as listing
from durable_core.journal._dynamodb_carrying import DynamoCarrying
from durable_core.journal._dynamodb_keys import (
    EVENTS,
    HEADER,
    Item,
    log_key,
    partition,
    segment_key,
    step_key,
)
from durable_core.journal._dynamodb_requests import Request, begins, between, equals, query
from durable_core.journal._dynamodb_table import Table, together
from durable_core.journal._items import CHILD_ATTRIBUTES, child_of, event_of, header_of, segment_of, step_of
from durable_core.journal.chunks import SegmentReader
from durable_core.records import TOMBSTONE, Child, Event, Reply, RunHeader, Segment, StepRecord

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from durable_core.clock import Clock
    from durable_core.journal.base import Lease

_DELETED_AT_ONCE: Final = 16
_MOST_TRIES: Final = 20


class DynamoBelow(DynamoCarrying):
    """What the journal does with all that lies under a header besides steps.

    Attributes:
        table, clock: As `DynamoJournal` makes them.
    """

    table: Table
    clock: Clock

    # ---- Segments ----

    async def append(self, segment: Segment) -> Reply[Segment]:
        """One PutItem."""
        write = conditions.append(self.table.name, segment)
        return await self.table.write(write, segment_of, segment.step_id)

    async def segments(self, run_id: str, step_id: str, chunk: int = 0) -> AsyncIterator[list[Segment]]:
        """One Query a page."""
        async for page in self.table.pages(self._log(run_id, step_id, chunk), run_id):
            yield list(map(segment_of, page))

    async def last_segment(self, run_id: str, step_id: str, chunk: int = 0) -> Segment | None:
        """One Query for one item, from the end."""
        request = self._log(run_id, step_id, chunk) | {"ScanIndexForward": False}
        start: Item | None = None
        while True:
            items, start = await self.table.page(request, start, limit=1, run_id=run_id)
            if items or start is None:
                return segment_of(items[0]) if items else None

    def open_reader(self) -> SegmentReader:
        """Over blocking requests."""
        return _DynamoReader(self.table)

    # ---- Events ----

    async def send(self, event: Event, seen: RunHeader | None) -> Reply[Event]:
        """A transaction of PutItem and the header's UpdateItem, or a check of it."""
        table = self.table
        for _ in range(_MOST_TRIES):
            refused = await table.write_all(*conditions.send(table.name, event, seen, self.clock.now_ms()))
            if refused is None:
                return Reply(True, event)
            letter, header = refused
            if letter is not None:
                return Reply(False, event_of(letter) if letter else None)
            now = header_of(header) if header else None
            if _life(now) != _life(seen):
                return Reply(False)
            seen = now
        raise JournalUnavailable(
            "the run changes its status all the time", run_id=event.run_id, remedy="Send the event again"
        )

    async def take(self, event: Event, outcome: StepRecord) -> Reply[StepRecord]:
        """A transaction of the event's UpdateItem and the step's PutItem."""
        refused = await self.table.write_all(
            *conditions.take(self.table.name, event, outcome), step_id=outcome.step_id
        )
        return Reply(True) if refused is None else Reply(False, await self.step_in(refused[1], outcome))

    async def step_in(self, refused: Item | None, record: StepRecord) -> StepRecord | None:
        """The step's record after a refused transaction.

        Args:
            refused: What a transaction tells of the step; None if only another item refused it.
            record: Which step.
        """
        if refused is None:
            return await self.table.read(record.run_id, step_key(record.step_id), step_of)
        return step_of(refused) if refused else None

    async def events(self, run_id: str, name: str | None = None) -> AsyncIterator[list[Event]]:
        """One Query a page."""
        first = EVENTS if name is None else f"{EVENTS}{name}!"
        async for page in self.table.pages(self.of_run(run_id, first), run_id):
            yield list(map(event_of, page))

    # ---- Pruning ----

    async def children(self, run_id: str) -> AsyncIterator[list[Child]]:
        """One Query a page, over everything that has the run's key."""
        request = query(self.table.name, equals("pk", partition(run_id)), only=CHILD_ATTRIBUTES)
        async for page in self.table.pages(request, run_id):
            found = [child_of(item) for item in page if item["sk"] != {"S": HEADER}]
            if found:
                yield found

    async def delete(self, run_id: str, children: Sequence[Child], fence: int) -> None:
        """One DeleteItem each, a few at a time: a batch takes no conditions."""
        todo = iter(children)

        async def one_by_one() -> None:
            for child in todo:
                write = conditions.erase(self.table.name, run_id, child, fence)
                await self.table.write(write, child_of, child.name if child.kind != "event" else None)

        await together(one_by_one() for _ in range(min(_DELETED_AT_ONCE, len(children))))

    async def bury(self, lease: Lease, at: str) -> Reply[RunHeader]:
        """One UpdateItem."""
        return await self.table.write(conditions.bury(self.table.name, lease, at), header_of)

    async def tombstones(self, before: str, *, limit: int = 100) -> list[RunHeader]:
        """One Query a shard, and the headers from the table."""
        return await listing.tombstones(self.table, before, limit)

    async def expire(self, seen: RunHeader, expires_at_s: int) -> Reply[RunHeader]:
        """One UpdateItem."""
        return await self.table.write(conditions.expire(self.table.name, seen, expires_at_s), header_of)

    async def purge(self) -> int:
        """Nothing to do: DynamoDB removes tombstones by itself, within days of their end."""
        return 0

    def of_run(self, run_id: str, prefix: str) -> Request:
        """The query for the items of a run whose keys begin so."""
        return query(self.table.name, equals("pk", partition(run_id)) & begins("sk", prefix))

    def _log(self, run_id: str, step_id: str, chunk: int) -> Request:
        return self.of_run(run_id, log_key(step_id, chunk))


class _DynamoReader(SegmentReader):
    def __init__(self, table: Table) -> None:
        self._table = table

    def read(self, run_id: str, step_id: str, chunk: int, first: int, last: int) -> list[Segment]:
        if first > last:  # DynamoDB refuses such a range
            return []
        places = between("sk", segment_key(step_id, chunk, first), segment_key(step_id, chunk, last))
        request = query(self._table.name, equals("pk", partition(run_id)) & places)
        return list(map(segment_of, self._table.items_now(request, run_id)))

    def close(self) -> None:
        pass  # the connections are the journal's


def _life(header: RunHeader | None) -> tuple[int, bool] | None:
    """Which life of an id: none yet, the one to come after a tombstone, or this one."""
    return (header.base_fence, header.status == TOMBSTONE) if header is not None else None
