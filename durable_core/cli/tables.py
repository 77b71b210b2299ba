"""Layout: tables and lists of facts, fitted to a terminal, or one line a row in a pipe."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final, NamedTuple

from durable_core.cli.output import clean

if TYPE_CHECKING:
    from collections.abc import Sequence

_STYLED_ROWS: Final = 1000  # more are aligned without rich, which takes its time over each cell
_COLOURS: Final = {
    "COMPLETED": "green", "COMMITTED": "green", "FAILED": "red", "CORRUPT": "red", "CANCELLED": "yellow",
    "STARTED": "yellow", "RUNNING": "cyan",
}  # fmt: skip


class Column(NamedTuple):
    """A column of a table.

    Attributes:
        title: Its head.
        right: Numbers are aligned to the right.
        from_width: Left out on a terminal with fewer columns than this.
        folds: May take several lines when there is no room.
    """

    title: str
    right: bool = False
    from_width: int = 0
    folds: bool = False


def facts_text(facts: Sequence[tuple[str, object]]) -> str:
    """Names and values, one a line; without those that are empty."""
    known = [(name, clean(value)) for name, value in facts if value not in (None, "")]
    width = max(len(name) for name, _ in known)
    return "".join(f"{name:<{width}}  {value}\n" for name, value in known)


def table(columns: Sequence[Column], rows: Sequence[Sequence[object]]) -> str:
    """Rows under their heads: coloured and fitted on a terminal, else one line a row, whole."""
    cells = [[clean("" if cell is None else cell) for cell in row] for row in rows]
    if sys.stdout.isatty() and len(rows) <= _STYLED_ROWS:
        return _fitted(columns, cells)
    heads = [column.title.upper() for column in columns]
    widths = [max(len(head), *(len(row[n]) for row in cells)) for n, head in enumerate(heads)]
    lines = []
    for row in (heads, *cells):
        aligned = [
            cell.rjust(width) if column.right else cell.ljust(width)
            for cell, width, column in zip(row, widths, columns, strict=True)
        ]
        lines.append("  ".join(aligned).rstrip())
    return "".join(f"{line}\n" for line in lines)


def _fitted(columns: Sequence[Column], cells: Sequence[Sequence[str]]) -> str:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(file=sys.stdout, markup=False, highlight=False, emoji=False)  # heeds NO_COLOR
    chosen = [n for n, column in enumerate(columns) if console.width >= column.from_width]
    laid = Table(box=None, pad_edge=False, header_style="bold", expand=False)
    for n in chosen:
        column = columns[n]
        laid.add_column(
            Text(column.title.upper()),
            justify="right" if column.right else "left",
            no_wrap=not column.folds,
            overflow="fold",
            min_width=8 if column.folds else None,
        )
    for row in cells:
        laid.add_row(*(Text(row[n], style=_COLOURS.get(row[n].split(" ")[0], "")) for n in chosen))
    with console.capture() as captured:
        console.print(laid)
    return captured.get()
