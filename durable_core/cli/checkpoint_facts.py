"""Checkpoints as documents and as text for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from durable_core.checkpoints.checkpoint import damage_of, opened, raw_of
from durable_core.cli.jsonable import jsonable, stored_as_json
from durable_core.cli.output import clean
from durable_core.cli.render import moment, size, value_text
from durable_core.cli.tables import Column, facts_text, table
from durable_core.clock import rfc3339
from durable_core.errors import CorruptRecord, DurableError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from durable_core.checkpointer import Pruned
    from durable_core.checkpoints.base import CheckpointRecord, SessionStats
    from durable_core.cli.facts import Document

_CHECKPOINTS: Final = (
    Column("seq", right=True),
    Column("agent", folds=True),
    Column("step", folds=True),
    Column("created"),
    Column("format", from_width=90),
    Column("size", right=True),
)
_SESSIONS: Final = (
    Column("session", folds=True),
    Column("checkpoints", right=True),
    Column("agents", right=True),
    Column("latest"),
    Column("size", right=True),
)


def checkpoint_facts(record: CheckpointRecord, fault: DurableError | None = None) -> Document:
    """What is known of a checkpoint; under `state` and `inputs` plain data, whatever classes are there.

    Args:
        record: With its state.
        fault: Why that could not be read.
    """
    checkpoint = opened(record, fault)
    fault = damage_of(checkpoint)
    found: Document = {
        "session_id": checkpoint.session_id,
        "seq": checkpoint.seq,
        "agent_id": checkpoint.agent_id,
        "step_id": checkpoint.step_id,
        "created_at": rfc3339(round(checkpoint.created_at.timestamp() * 1000)),
        "format": checkpoint.format,
        "size_bytes": checkpoint.size_bytes,
        "metadata": jsonable(checkpoint.metadata),
        "state": None,
        "inputs": None,
        "corrupt": None,
    }
    try:
        if fault is not None:
            raise fault
        found["state"], found["inputs"] = _contents(record)
    except (CorruptRecord, ValueError, TypeError) as error:
        found["corrupt"] = getattr(error, "message", None) or str(error)
    return found


def _contents(record: CheckpointRecord) -> tuple[Any, Any]:
    state, _, inputs = raw_of(record).partition(b"\n")
    if not inputs:
        return stored_as_json(state), None
    args, kwargs, seed = stored_as_json(inputs)
    return stored_as_json(state), {"args": args, "kwargs": kwargs, "seed": seed}


def session_facts(stats: SessionStats) -> Document:
    """What is known of a session."""
    return {
        "session_id": stats.session_id,
        "checkpoints": stats.checkpoints,
        "agents": stats.agents,
        "size_bytes": stats.size_bytes,
        "first_at": rfc3339(stats.first_at_ms) if isinstance(stats.first_at_ms, int) else None,
        "last_at": rfc3339(stats.last_at_ms) if isinstance(stats.last_at_ms, int) else None,
    }


def pruned_facts(session_id: str, found: Pruned, *, dry_run: bool) -> Document:
    """What pruning came to."""
    return {"session_id": session_id, **found._asdict(), "dry_run": dry_run}


def sessions_table(sessions: Sequence[Document], *, more: bool) -> str:
    """The listing of sessions."""
    rows = [
        (
            one["session_id"],
            one["checkpoints"],
            one["agents"],
            moment(one["last_at"]),
            size(one["size_bytes"]),
        )
        for one in sessions
    ]
    return _listed(_SESSIONS, rows, "session", more=more)


def checkpoints_table(checkpoints: Sequence[Document], *, more: bool) -> str:
    """The listing of a session's checkpoints, newest first, with the damaged ones named below."""
    rows = [
        (
            one["seq"], one["agent_id"], one["step_id"], moment(one["created_at"]),
            "CORRUPT" if one["corrupt"] else one["format"], size(one["size_bytes"]),
        )
        for one in checkpoints
    ]  # fmt: skip
    damaged = [f"Corrupt: checkpoint {one['seq']}: {one['corrupt']}" for one in checkpoints if one["corrupt"]]
    told = "".join(f"{clean(line)}\n" for line in damaged)
    return _listed(_CHECKPOINTS, rows, "checkpoint", more=more) + told


def checkpoint_text(found: Document) -> str:
    """One checkpoint with all that is kept of it."""
    facts = [
        ("session", found["session_id"]),
        ("seq", found["seq"]),
        ("agent", found["agent_id"]),
        ("step", found["step_id"]),
        ("created at", found["created_at"]),
        ("format", f"{found['format']}, {size(found['size_bytes'])} as JSON"),
        *((name, value_text(value)) for name, value in found["metadata"].items()),
        ("corrupt", found["corrupt"]),
    ]
    parts = [facts_text(facts)]
    if not found["corrupt"]:
        parts.append(f"\nState:\n{value_text(found['state'])}\n")
    if found["inputs"] is not None:
        parts.append(f"\nInputs:\n{value_text(found['inputs'])}\n")
    return "".join(parts)


def resume_text(found: Document, then: Sequence[str], *, with_state: bool) -> str:
    """Where a session goes on from, and what to run next."""
    lines = [
        f"session: {found['session_id']}",
        f"agent: {found['agent_id']}",
        f"step: {found['step_id']}",
        f"created at: {found['created_at']}",
        f"format: {found['format']}",
        *then,
    ]
    state = f"state:\n{value_text(found['state'])}\n" if with_state else ""
    return "".join(f"{clean(line)}\n" for line in lines) + state


def _listed(columns: Sequence[Column], rows: Sequence[Sequence[object]], what: str, *, more: bool) -> str:
    footer = f"{len(rows)} {what}{'s' * (len(rows) != 1)}{', and there are more: --limit' if more else ''}"
    return (table(columns, rows) if rows else "") + f"{footer}\n"
