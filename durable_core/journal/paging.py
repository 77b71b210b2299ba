"""How the SQL journals read, put and delete many records: along the primary key, so many at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from durable_core.journal.carrying import KEYS, KINDS, Kind, Record, kind_of, read_row

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence

    from durable_core.records import Child, Unreadable

    Row = tuple[Any, ...]
    Select = Callable[[tuple[object, ...]], Awaitable[list[Row]]]
    SelectAfter = Callable[[tuple[object, ...] | None], Awaitable[list[Row]]]

PAGE_ROWS: Final = 2000
SEGMENT_ROWS: Final = 16  # up to 350 KB each
# In one statement or transaction: other writers get their turn in between, and so does the event loop.
PURGED_AT_ONCE: Final = 200
TABLES: Final[dict[Kind, str]] = {
    "step": "checkpoints", "segment": "segments", "event": "events", "chunk": "chunks",
}  # fmt: skip
STORED_ROWS: Final[dict[Kind, int]] = {
    "step": PAGE_ROWS, "segment": SEGMENT_ROWS, "event": PAGE_ROWS, "chunk": PAGE_ROWS,
}  # fmt: skip
CHANGED_AT_ONCE: Final[dict[str, int]] = {"step": 200, "event": 200, "chunk": 200, "segment": SEGMENT_ROWS}


async def pages(
    select: Select,
    fixed: tuple[object, ...],
    after: tuple[object, ...],
    key: Callable[[Row], tuple[object, ...]],
    rows: int | None = None,
) -> AsyncIterator[list[Row]]:
    """The rows of a query, page by page.

    Args:
        select: Takes `fixed`, the key of the last row before, and a limit.
        fixed: What doesn't change.
        after: The key before all others.
        key: Of a row.
        rows: Most rows of a page; None: as many as are read of small ones.
    """
    rows = rows or PAGE_ROWS
    while True:
        page = await select((*fixed, *after, rows))
        if page:
            yield page
        if len(page) < rows:
            return
        after = key(page[-1])


async def stored_pages(kind: Kind, select: SelectAfter) -> AsyncIterator[list[Record | Unreadable]]:
    """All records of a kind under a header, whatever may be wrong with them.

    Args:
        kind: Of the records.
        select: Takes the key of the last row before; gives up to `STORED_ROWS` rows, in the order of keys.
    """
    key_at = [KINDS[kind]._fields.index(name) for name in KEYS[kind]]
    last: tuple[object, ...] | None = None
    while True:
        rows = await select(last)
        if rows:
            yield [read_row(kind, row) for row in rows]
        if len(rows) < STORED_ROWS[kind]:
            return
        last = tuple(rows[-1][at] for at in key_at)


def restored_at_once(records: Sequence[Record]) -> Iterator[Sequence[Record]]:
    """Records of one kind, so many as are put in one transaction."""
    at_once = CHANGED_AT_ONCE[kind_of(records[0])] if records else 1
    for start in range(0, len(records), at_once):
        yield records[start : start + at_once]


def key_in(record: Record) -> tuple[object, ...]:
    """The values of its primary key."""
    return (record.run_id, *(getattr(record, name) for name in KEYS[kind_of(record)]))


def portions(children: Sequence[Child]) -> Iterator[tuple[str, Sequence[Child]]]:
    """Records to delete, by kind, and of each kind so many as are deleted at once."""
    for kind, at_once in CHANGED_AT_ONCE.items():
        of_kind = [child for child in children if child.kind == kind]
        for start in range(0, len(of_kind), at_once):
            yield kind, of_kind[start : start + at_once]
