"""The columns of the PostgreSQL journal: as statements name them, and back to records."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any, Final

from durable_core.errors import CorruptRecord
from durable_core.journal.damaged import mending
from durable_core.records import (
    CORRUPT,
    RUN_STATUSES,
    Chunk,
    Event,
    RunHeader,
    Segment,
    StepRecord,
)

RUN_COLUMNS: Final = tuple(field.name for field in fields(RunHeader))
_BYTES: Final = frozenset({"input_data", "output_data", "data"})
_NUMBERS: Final = frozenset(
    {
        *(field.name for field in fields(RunHeader) if field.type in ("int", "int | None")),
        *("step_index", "attempt", "crashes", "fence", "output_size"),
        *("chunk", "seq", "chunk_fence", "items", "succeeded", "failed", "size"),
    }
)


def columns(names: tuple[str, ...]) -> str:
    """As a list of names."""
    return ", ".join(names)


def marks(names: tuple[str, ...]) -> str:
    """A placeholder for each, by place; with its type, which a NULL doesn't tell."""
    return ", ".join(f"%s::{type_of(name)}" for name in names)


def named_marks(names: tuple[str, ...]) -> str:
    """The same by name."""
    return ", ".join(f"%({name})s::{type_of(name)}" for name in names)


def type_of(column: str) -> str:
    """Its type in the schema."""
    return "bytea" if column in _BYTES else "bigint" if column in _NUMBERS else "text"


RUN: Final = columns(RUN_COLUMNS)
STEP: Final = columns(StepRecord._fields)
SEGMENT: Final = columns(Segment._fields)
EVENT: Final = columns(Event._fields)
CHUNK: Final = columns(Chunk._fields)


def header_of(row: tuple[Any, ...]) -> RunHeader:
    """A header from its columns.

    Raises:
        CorruptRecord: Its status is none; somebody else wrote the row.
    """
    header = RunHeader(*row)
    if header.status not in RUN_STATUSES:
        raise CorruptRecord(
            f"the run's header can't be read: its status is {header.status!r}",
            run_id=header.run_id,
            remedy=mending(header.run_id),
        )
    return header


def listed(row: tuple[Any, ...]) -> RunHeader:
    """A header for a listing: one that can't be read tells why, and doesn't hide the others."""
    try:
        return header_of(row)
    except CorruptRecord as error:
        known = RunHeader(*row)
        told = {"code": error.code, "type": CorruptRecord.__name__, "message": error.message}
        return RunHeader(
            run_id=known.run_id,
            workflow=known.workflow,
            status=CORRUPT,
            error=json.dumps(told),
            created_at=known.created_at,
            updated_at=known.updated_at,
        )
