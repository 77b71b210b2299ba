"""A header that can't be read: what is still known of it, and how another takes its place.

Nobody can drive such a run, and nobody can end it: whether it is over, and whose it is, stands in its header
and nowhere else. To prune it all the same, a readable header is put over the damaged one, PRUNING and under a
fence that is higher than any there was; from then on it is a run that a prune left half-way.

    A   acquire 2 ── (somebody damages the header) ──────────────────────────── commit s1: under fence 2 ≤ 3
    P                          damaged: fence 2 ── replace ─▶ PRUNING, fence 3 ── acquire 4 ── … ── bury
    Q                          damaged: fence 2 ──────────── replace ─▶ refused: it isn't as it was seen
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import fields
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, get_type_hints

from durable_core.records import RUN_STATUSES, RunHeader

if TYPE_CHECKING:
    from collections.abc import Mapping

    from durable_core.records import Reply

COLUMN_TYPES: Final[dict[Any, tuple[type, ...]]] = {
    str: (str,),
    int: (int,),
    str | None: (str, NoneType),
    int | None: (int, NoneType),
    bytes | None: (bytes, NoneType),
}
_HINTS: Final = get_type_hints(RunHeader)
HEADER_TYPES: Final = {field.name: COLUMN_TYPES[_HINTS[field.name]] for field in fields(RunHeader)}
"""What each column of a header may hold, in their order."""


class DamagedHeader(NamedTuple):
    """A header that can't be read, as it was seen.

    Attributes:
        why: What is wrong with it, for a person.
        known: Those of its columns that hold what they may, by name.
        row: All that is stored of it, in its store's own form: what `replace_damaged` compares.
    """

    run_id: str
    why: str
    known: Mapping[str, Any]
    row: Mapping[str, Any]


class DamageVerbs(ABC):
    """The verbs of a journal on headers that can't be read."""

    @abstractmethod
    async def damaged_header(self, run_id: str) -> DamagedHeader | None:
        """A header as it lies in the store; None if it can be read, or if there is none."""

    @abstractmethod
    async def replace_damaged(self, seen: DamagedHeader, header: RunHeader) -> Reply[RunHeader]:
        """Puts a header, as it is, in the place of one that can't be read.

        Requires that all of it is as it was seen: whoever has written to it since, be it its owner or
        somebody who mends it, wins. Refused: the header as it is now, own if it has my `created_by`; or None
        if that can't be read either, or is gone.
        """


def why_unreadable(row: Mapping[str, object]) -> str | None:
    """What is wrong with the columns of a header; None if it can be read."""
    for name, allowed in HEADER_TYPES.items():
        if type(row[name]) not in allowed:
            return f"its {name} is of type {type(row[name]).__name__}"
        if not _holds(name, row[name]):
            return f"its {name} isn't UTF-8"
    return None if row["status"] in RUN_STATUSES else f"its status is {row['status']!r:.40}"


def damaged(run_id: str, why: str, row: Mapping[str, Any]) -> DamagedHeader:
    """A header as it was seen, by its columns."""
    known = {name: row[name] for name in HEADER_TYPES if name in row and _holds(name, row[name])}
    if known.get("status") not in RUN_STATUSES:
        known.pop("status", None)
    return DamagedHeader(run_id, why, known, row)


def mending(run_id: str) -> str:
    """What can be done about such a header, for messages."""
    return (
        "Restore the store from a backup, mend the header by hand, or give the run up with"
        f" `durable prune {run_id} --damaged`"
    )


def is_text(value: str) -> bool:
    """Whether a text was one, and not bytes that were read for one."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _holds(name: str, value: object) -> bool:
    return type(value) in HEADER_TYPES[name] and (not isinstance(value, str) or is_text(value))
