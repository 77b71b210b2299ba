"""The query for a page of runs in the SQLite journal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from durable_core.journal._sqlite_verbs import RUN_COLUMNS, columns
from durable_core.records import TOMBSTONE

if TYPE_CHECKING:
    from durable_core.journal.base import RunFilter
_NAMED = ("run_id", "workflow", "session_id", "forked_from")


def list_runs(wanted: RunFilter) -> tuple[str, tuple[object, ...]]:
    """The query for one page of headers, newest first, and its values."""
    conditions, values = [f"status <> '{TOMBSTONE}'"], list[object]()
    for condition, value in (
        ("status = ?", wanted.status),
        ("workflow = ?", wanted.workflow),
        ("created_at >= ?", wanted.since),
        ("created_at < ?", wanted.until),
    ):
        if value is not None:
            conditions.append(condition)
            values.append(value)
    if wanted.prefix:
        conditions.append("substr(run_id, 1, ?) = ?")
        values += (len(wanted.prefix), wanted.prefix)
    if wanted.text is not None:
        named = " OR ".join(f"instr(lower({name}), ?)" for name in _NAMED)
        conditions.append(f"({named} OR instr(lower(error), ?))")
        plain, quoted = wanted.needles()
        values += (*[plain] * len(_NAMED), quoted)
    if wanted.before:
        conditions.append("(created_at, run_id) < (?, ?)")
        values += wanted.before
    query = (
        f"SELECT {columns(RUN_COLUMNS)} FROM runs WHERE {' AND '.join(conditions)}"
        " ORDER BY created_at DESC, run_id DESC LIMIT ?"
    )
    return query, (*values, wanted.limit)
