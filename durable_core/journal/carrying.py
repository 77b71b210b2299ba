"""What verifying, exporting and importing ask of a journal: a run's records as they are, and back again.

**Reading** gives everything that lies under a header, of every life of the id, and tells of what it can't
read instead of raising: one damaged row hides no other.

**Restoring** puts the records of an imported run under a header that its importer holds as PRUNING, so that
nobody drives it, and who prunes it finds all of it should the import die. Each record is put where there is
none, or over what an earlier life of the id left there. The header that the run really has comes last.

    I   create: PRUNING, fence 3 ── restore s1 ─▶ applied ── (dies)
    P                                  acquire 4, PRUNING ── deletes s1 ── bury
    I   (thaws) restore s2 ─▶ refused where the header is looked at; else it lies under the tombstone,
                              where it counts as absent
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final, Literal, get_type_hints

from durable_core.journal.damaged import COLUMN_TYPES, is_text
from durable_core.records import Chunk, Event, Segment, StepRecord, Unreadable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from durable_core.journal.base import Lease
    from durable_core.records import Reply, RunHeader

Kind = Literal["step", "segment", "event", "chunk"]
Record = StepRecord | Segment | Event | Chunk

KINDS: Final[dict[Kind, type[Record]]] = {
    "step": StepRecord,
    "segment": Segment,
    "event": Event,
    "chunk": Chunk,
}
KEYS: Final[dict[Kind, tuple[str, ...]]] = {
    "step": ("step_id",),
    "segment": ("step_id", "chunk", "seq"),
    "event": ("name", "seq"),
    "chunk": ("step_id", "chunk"),
}
"""By what the records of a run are told apart, and ordered: texts by their UTF-8 bytes."""


class Carrying(ABC):
    """The verbs of a journal on whole runs."""

    @abstractmethod
    def as_stored(self, run_id: str, kind: Kind) -> AsyncIterator[list[Record | Unreadable]]:
        """All records of a kind under a run's header, in the order of their keys, in pages.

        Whatever may be wrong with a row, it is given as `Unreadable`, and those behind it follow. Of a header
        that isn't there, too. No transaction or lock is held between pages.
        """

    @abstractmethod
    async def restore(self, records: Sequence[Record], lease: Lease) -> Reply[Record]:
        """Puts records of one kind and run, each where there is none, or one with a fence up to `base_fence`.

        SQL stores also require that the header has my owner and fence. Made again it does no harm: a record
        that is there already, as it is to be, is fine. Not all need be durable before `restore_header` is.
        Refused: the first record in the way, or None where the header was the reason; others may have been
        put.
        """

    @abstractmethod
    async def restore_header(self, header: RunHeader, lease: Lease) -> Reply[RunHeader]:
        """Puts a header, as it is, in the place of that of an import.

        Requires my owner and fence. Refused: the header in the way; own if it is this header.
        """


def read_row(kind: Kind, row: Sequence[Any]) -> Record | Unreadable:
    """A record from its columns; or what is wrong with them, if they can't be ones that we wrote."""
    made = KINDS[kind]._make(row)
    for (name, allowed), value in zip(_COLUMNS[kind], made, strict=True):
        if type(value) not in allowed:
            return unreadable(kind, made, f"its {name} is {_shown(value)}")
        if type(value) is str and not value.isascii() and not is_text(value):
            return unreadable(kind, made, f"its {name} isn't UTF-8")
    return made


def kind_of(record: Record) -> Kind:
    """What kind of record it is."""
    return next(kind for kind, made in KINDS.items() if isinstance(record, made))


def unreadable(kind: Kind, record: Record, why: str) -> Unreadable:
    """What tells of a record that can't be one of ours."""
    return Unreadable(kind, str(getattr(record, KEYS[kind][0])), place_of(record), why)


def place_of(record: Record) -> str:
    """Where a record is among those of its step or event; empty for steps."""
    if isinstance(record, Segment):
        return f"segment {record.seq} of chunk {record.chunk}"
    if isinstance(record, Chunk):
        return f"chunk {record.chunk}"
    return f"number {record.seq}" if isinstance(record, Event) else ""


def _columns_of(kind: Kind) -> list[tuple[str, tuple[type, ...]]]:
    hints = get_type_hints(KINDS[kind])
    return [(name, COLUMN_TYPES[hints[name]]) for name in KINDS[kind]._fields]


def _shown(value: object) -> str:
    return "missing" if value is None else f"of type {type(value).__name__}"


_COLUMNS: Final = {kind: _columns_of(kind) for kind in KINDS}
