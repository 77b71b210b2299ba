"""Rows of the SQLite journal as they are, whatever is in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Sequence


def tolerantly(connection: sqlite3.Connection, query: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Rows with whatever text they hold, as a person reads it: one that isn't UTF-8 hides no other."""
    return _decoded(connection, query, values, "backslashreplace")


def escaped(connection: sqlite3.Connection, query: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
    """The same with texts that are no UTF-8 such that `as_bound` finds them again."""
    return _decoded(connection, query, values, "surrogateescape")


def as_bound(values: Iterable[object]) -> tuple[list[str], list[Any]]:
    """Placeholders and values that compare as the columns do, whatever is in them."""
    marks, bound = list[str](), list[Any]()
    for value in values:
        marks.append("CAST(? AS TEXT)" if isinstance(value, str) else "?")
        bound.append(value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value)
    return marks, bound


def _decoded(
    connection: sqlite3.Connection, query: str, values: Sequence[Any], errors: str
) -> list[tuple[Any, ...]]:
    connection.text_factory = lambda text: text.decode("utf-8", errors)
    try:
        return connection.execute(query, values).fetchall()
    finally:
        connection.text_factory = str
