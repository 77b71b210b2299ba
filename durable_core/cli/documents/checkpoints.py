"""`checkpoint` and `workflow resume`."""

from __future__ import annotations

from typing import Any

from typing_extensions import TypedDict


class Checkpoint(TypedDict):
    """A checkpoint without its contents."""

    session_id: str
    seq: int
    agent_id: str
    step_id: str
    created_at: str
    format: str
    size_bytes: int
    metadata: Any
    corrupt: str | None


class CheckpointWithContents(Checkpoint):
    """The same with its state, and what its agent was called with."""

    state: Any
    inputs: Any


class Session(TypedDict):
    """A session of agents."""

    session_id: str
    checkpoints: int
    agents: int
    size_bytes: int
    first_at: str | None
    last_at: str | None


class SessionsDocument(TypedDict):
    """`durable checkpoint list`."""

    sessions: list[Session]
    count: int
    more: bool


class CheckpointsDocument(TypedDict):
    """`durable checkpoint list SESSION`."""

    session_id: str
    checkpoints: list[Checkpoint]
    count: int
    more: bool


class CheckpointDocument(TypedDict):
    """`durable checkpoint show`."""

    checkpoint: CheckpointWithContents


class CheckpointPruneDocument(TypedDict):
    """`durable checkpoint prune`."""

    session_id: str
    removed: int
    size_bytes: int
    kept: int
    dry_run: bool


class ResumePointDocument(Checkpoint):
    """`durable checkpoint resume`: where a session goes on from, and the command that does."""

    next: str
    dry_run: bool


class ResumePointWithContents(ResumePointDocument):
    """The same with `--dry-run`, which prints the state."""

    state: Any
    inputs: Any
