"""Runs in the order of an index. An index says which; what they are like is read from the table.

Each index is spread over partitions ("shards"), since one of them takes 1,000 writes a second. They are read
side by side and merged, as far as somebody wants to know.
"""

from __future__ import annotations

from collections import deque
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from durable_core.aws.table import BY_DUE, BY_STATUS, SHARDS
from durable_core.clock import epoch_ms
from durable_core.journal._dynamodb_keys import LAST, Item, partition, run_of
from durable_core.journal._dynamodb_requests import (
    Condition,
    Request,
    at_most,
    begins,
    between,
    equals,
    query,
)
from durable_core.journal._dynamodb_table import MOST_GOT_AT_ONCE, Table, together
from durable_core.journal._items import header_of, listed
from durable_core.records import ACTIVE, CORRUPT, LISTED, TOMBSTONE, RunHeader

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from durable_core.journal.base import RunFilter

T = TypeVar("T")


async def runs(table: Table, wanted: RunFilter) -> list[RunHeader]:
    """One page of headers, newest first: from every shard only as many as come into it."""
    statuses = [wanted.status] if wanted.status is not None else LISTED
    partitions = [f"{status}#{n}" for status in statuses if status in LISTED for n in range(SHARDS)]
    matching: Condition | None = None
    for condition in (
        begins("pk", partition(wanted.prefix)) if wanted.prefix else None,
        equals("workflow", wanted.workflow) if wanted.workflow is not None else None,
    ):
        if condition is not None:
            matching = condition if matching is None else matching & condition
    if wanted.since is not None and wanted.since > _latest(wanted):
        return []
    created = _created(wanted)
    requests = []
    for name in partitions:
        keys = equals("status_shard", name)
        if created is not None:
            keys &= created
        requests.append(query(table.name, keys, index=BY_STATUS, matching=matching, backwards=True))
    # With a filter a page is as many as were read, not as many as match: then each is as large as can be.
    limit = wanted.limit if matching is None else None
    shards = [_Shard(table, one, "created_at", limit, backwards=True) for one in requests]

    def fits(header: RunHeader) -> bool:
        asked = replace(wanted, status=None) if header.status == CORRUPT else wanted
        return asked.fits(header)

    return await _first(table, shards, wanted.limit, listed, fits)


def _latest(wanted: RunFilter) -> str:
    """No run that is asked for was created later."""
    return min(wanted.until or LAST, wanted.before[0] if wanted.before is not None else LAST)


def _created(wanted: RunFilter) -> Condition | None:
    """The one condition that a query takes on the index's sort key; `fits` sees to the ends."""
    latest = _latest(wanted)
    if wanted.since is not None:
        return between("created_at", wanted.since, latest)
    return at_most("created_at", latest) if latest != LAST else None


async def due(table: Table, now_ms: int, limit: int) -> list[RunHeader]:
    """Active runs that are due and under no lease, earliest first."""

    def fits(header: RunHeader) -> bool:
        if header.status == CORRUPT:
            return True
        return header.status in ACTIVE and header.due_at_ms <= now_ms and header.lease_until_ms < now_ms

    return await _first(table, _until(table, range(SHARDS), now_ms, limit), limit, listed, fits)


async def tombstones(table: Table, before: str, limit: int) -> list[RunHeader]:
    """Those that nobody has looked at since they were buried, before a time, oldest first."""

    def fits(header: RunHeader) -> bool:
        return header.status == TOMBSTONE and header.expires_at_s is None and header.updated_at < before

    graves = _until(table, range(SHARDS, 2 * SHARDS), epoch_ms(before), limit)
    return await _first(table, graves, limit, header_of, fits)


def _until(table: Table, numbers: Sequence[int], last_ms: int, limit: int) -> list[_Shard]:
    asked = [equals("due_shard", number) & at_most("due_at_ms", last_ms) for number in numbers]
    return [
        _Shard(table, query(table.name, keys, index=BY_DUE), "due_at_ms", limit, backwards=False)
        for keys in asked
    ]


async def _first(
    table: Table,
    shards: Sequence[_Shard],
    limit: int,
    read: Callable[[Item], RunHeader],
    fits: Callable[[RunHeader], bool],
) -> list[RunHeader]:
    """The first runs of some shards whose headers, as they are now, fit."""
    found: dict[str, RunHeader] = {}  # a run may be twice in an index that is behind
    async with aclosing(_merged(shards)) as walk:
        while len(found) < limit:
            some = await _next(walk, min(limit - len(found), MOST_GOT_AT_ONCE))
            if not some:
                break
            items = await table.headers(list(dict.fromkeys(some)))
            headers = (read(items[run_id]) for run_id in some if run_id in items)
            found |= {header.run_id: header for header in headers if fits(header)}
    return list(found.values())


async def _next(walk: AsyncGenerator[T, None], most: int) -> list[T]:
    found: list[T] = []
    while len(found) < most:
        try:
            found.append(await anext(walk))
        except StopAsyncIteration:
            break
    return found


async def _merged(shards: Sequence[_Shard]) -> AsyncGenerator[str, None]:
    """The runs of all shards in their common order."""
    heads = await together(shard.head() for shard in shards)
    while True:
        left = {n: head for n, head in enumerate(heads) if head is not None}
        if not left:
            return
        first = (max if shards[0].backwards else min)(left, key=left.__getitem__)
        yield left[first][1]
        shards[first].step()
        heads[first] = await shards[first].head()


class _Shard:
    """A partition of an index, run by run.

    Runs at one place of an index come in no order: they are ordered by their ids, once all have been read.

    Args:
        table: Of the index.
        request: The query.
        place: The index's sort key.
        limit: Most items of a page.
        backwards: Whether from the end.
    """

    def __init__(
        self, table: Table, request: Request, place: str, limit: int | None, *, backwards: bool
    ) -> None:
        self.backwards = backwards
        self._table, self._request, self._place, self._limit = table, request, place, limit
        self._ready: deque[tuple[int | str, str]] = deque()
        self._last: list[tuple[int | str, str]] = []  # at the place that the next page may begin with
        self._start: Item | None = None
        self._over = False

    async def head(self) -> tuple[int | str, str] | None:
        """The place and the id of the next run; None at the end."""
        while not self._ready and not self._over:
            items, self._start = await self._table.page(self._request, self._start, limit=self._limit)
            self._over = self._start is None
            read = self._last + [(self._place_of(item), run_of(item)) for item in items]
            known = [one for one in read if self._over or one[0] != read[-1][0]]
            self._last = read[len(known) :]
            self._ready.extend(sorted(known, reverse=self.backwards))
        return self._ready[0] if self._ready else None

    def step(self) -> None:
        """Past it."""
        self._ready.popleft()

    def _place_of(self, item: Item) -> int | str:
        ((kind, value),) = item[self._place].items()
        return int(value) if kind == "N" else str(value)
