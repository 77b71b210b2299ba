"""How the SQL journals read and delete many records: along the primary key, so many at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence

    from durable_core.records import Child

    Row = tuple[Any, ...]
    Select = Callable[[tuple[object, ...]], Awaitable[list[Row]]]

PAGE_ROWS: Final = 2000
SEGMENT_ROWS: Final = 16  # up to 350 KB each
# In one statement or transaction: other writers get their turn in between, and so does the event loop.
PURGED_AT_ONCE: Final = 200
DELETED_AT_ONCE: Final = {"step": 200, "event": 200, "chunk": 200, "segment": SEGMENT_ROWS}


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


def portions(children: Sequence[Child]) -> Iterator[tuple[str, Sequence[Child]]]:
    """Records to delete, by kind, and of each kind so many as are deleted at once."""
    for kind, at_once in DELETED_AT_ONCE.items():
        of_kind = [child for child in children if child.kind == kind]
        for start in range(0, len(of_kind), at_once):
            yield kind, of_kind[start : start + at_once]
