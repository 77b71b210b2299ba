"""The contract of a checkpoint store: a log of states per session, pruned from its old end.

A checkpoint has a place in its session, `seq`, from 1 on and without gaps. The store gives it by a
conditional write, so that "latest" never depends on clocks. Nothing that is appended is ever changed.

    A   latest is 7 ── append at 8 ─▶ applied
    B   latest is 7 ─────── append at 8 ─▶ refused: taken by A ── append at 9 ─▶ applied

Pruning is two verbs, and safe without a lock: a checkpoint that may go, because there are enough newer ones
in its session and a newer one of its agent, may go for ever after.

    A   prunable: 1, 2 ──────────── remove 1, 2 ─▶ both are gone already: nothing
    B             prunable: 1, 2 ── remove 1, 2 ─▶ removed
    C                    append 53 ─▶ whatever A and B saw stays prunable

Whoever drives a run saves under what it holds of it: one that was overtaken would put an old state behind
those of the new owner, as the latest. Who saves beside any run gives no lease, and nothing is asked.

    A   commit s1 ── (paused past its lease) ─────────────────── append s1 [fence 1] ─▶ Fenced
    B                  acquire 2 ── append s1 ── append s2 ── end

All verbs block, since checkpoints are saved in plain code, and inside event loops too: whoever must not wait
calls them in a thread. They may be called from several threads at once.

A store that can't be reached or can't take a write raises `JournalUnavailable`, one that doesn't permit it
`StoreMisconfigured`. A read error is never an empty answer.
"""

from __future__ import annotations

import base64
import binascii
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final, NamedTuple

from durable_core.errors import Fenced

if TYPE_CHECKING:
    from collections.abc import Sequence

    from durable_core.journal.base import Holding

JSON: Final = "json"
JSON_GZIP: Final = "json+gzip"
FORMATS: Final = (JSON, JSON_GZIP)


class CheckpointRecord(NamedTuple):
    """One checkpoint: a row of `agent_checkpoints`.

    Attributes:
        id: Random; a writer whose reply was lost knows its own record by it.
        step_id: As the user, or the engine, calls the step.
        seq: Place in the session, from 1; 0 until the store has given it.
        format: `json` or `json+gzip`.
        size_bytes: Of the JSON.
        state_hash: Hex SHA-256 of the JSON.
        metadata: JSON of an object.
        created_at_ms: Milliseconds since the epoch, for people to read: nothing is ordered by it.
        state: The stored bytes; None when they are in a blob, or weren't asked for.
        state_ref: The blob's name, when they are there.
    """

    id: str
    session_id: str
    agent_id: str
    step_id: str
    seq: int
    format: str
    size_bytes: int
    state_hash: str
    metadata: str | None
    created_at_ms: int
    state: bytes | None = None
    state_ref: str | None = None


class Place(NamedTuple):
    """What removing a checkpoint takes."""

    session_id: str
    seq: int
    id: str
    state_ref: str | None
    size_bytes: int


class SessionStats(NamedTuple):
    """What is kept of a session.

    Attributes:
        size_bytes: Of all states as JSON, before compression.
        latest_seq: 0 when nothing is kept.
        first_at_ms, last_at_ms: When the earliest and the latest were saved, by their clocks.
    """

    session_id: str
    checkpoints: int
    agents: int
    size_bytes: int
    latest_seq: int
    first_at_ms: int | None
    last_at_ms: int | None


class CheckpointStore(ABC):
    """Where checkpoints are. Every store passes `durable_core.testing.checkpoint_contract`.

    Attributes:
        inline_max_bytes: The most stored bytes of a state that an append takes; larger ones are put into a
            blob first, and the record points to it.
    """

    inline_max_bytes: int = 4 * 1024 * 1024

    @abstractmethod
    def append(self, record: CheckpointRecord, lease: Holding | None = None) -> int:
        """Puts a record at the next free place of its session; once this returns, it survives a power cut.

        Only where that place is still free: refused, the next one is tried. A record with this id that is
        there already is an earlier try whose reply was lost: its place is given, whoever drives the run now.

        Args:
            record: What is put.
            lease: What its writer holds of the run, or the chunk of a map, that it is saved by. In one write
                with the record it is required that this is still so; not where the store has no header of
                the run, because its journal is in another place.

        Returns:
            Its seq.

        Raises:
            Fenced: The run, or the chunk, is somebody else's by now, or nobody's.
            InvalidId: Its session can't be named so.
        """

    @abstractmethod
    def latest(self, session_id: str, agent_id: str | None = None) -> CheckpointRecord | None:
        """The record with the highest seq: of the session, or of one of its agents."""

    @abstractmethod
    def of_step(self, session_id: str, step_id: str) -> CheckpointRecord | None:
        """The record with the highest seq of a step."""

    @abstractmethod
    def at(self, session_id: str, seq: int) -> CheckpointRecord | None:
        """The record at a place."""

    @abstractmethod
    def page(
        self,
        session_id: str,
        *,
        agent_id: str | None = None,
        before: int | None = None,
        limit: int = 100,
        with_state: bool = False,
    ) -> list[CheckpointRecord]:
        """One page of records, the newest first; no transaction or lock is held after it.

        Args:
            session_id: The session.
            agent_id: Only those of this agent.
            before: Only those with a lower seq; for the next page.
            limit: The most that are given.
            with_state: Whether they come with their inline states.
        """

    @abstractmethod
    def prunable(self, session_id: str, keep: int, *, limit: int | None = None) -> Sequence[Place]:
        """What may go, oldest first: not among the newest `keep` of the session, nor the newest of an agent.

        Args:
            session_id: The session.
            keep: At least 1.
            limit: The most that are given.
        """

    @abstractmethod
    def places(self, session_id: str, *, limit: int | None = None) -> Sequence[Place]:
        """All that is kept of a session, oldest first."""

    @abstractmethod
    def remove(self, places: Sequence[Place]) -> int:
        """Removes records, by their ids; those that are gone are fine.

        Returns:
            How many were removed by this call.
        """

    @abstractmethod
    def stats(self, session_id: str) -> SessionStats:
        """What is kept of a session; zeros when there is none."""

    @abstractmethod
    def sessions(self, *, after: str = "", limit: int = 100) -> Sequence[str]:
        """One page of the sessions of which something is kept, by name.

        Args:
            after: Only names that come after this one; for the next page.
            limit: The most that are given.
        """

    @abstractmethod
    def open(self, *, create: bool = True) -> None:
        """Connects, makes or migrates the schema; may be called again. Every other verb does so if need be.

        Args:
            create: Whether a store is made where there is none.

        Raises:
            StoreNotFound: There is none, and none is to be made.
        """

    @abstractmethod
    def close(self) -> None:
        """Gives connections back; the store can be used again."""


def overtaken(record: CheckpointRecord, lease: Holding) -> Fenced:
    """The error for a record whose writer doesn't hold any more what it is saved by."""
    return Fenced(
        f"the checkpoint wasn't saved: the run isn't under fence {lease.fence} of its saver any more",
        run_id=lease.run_id,
        step_id=record.step_id,
        remedy="Whoever drives the run now saves what it comes to",
    )


def as_text(record: CheckpointRecord) -> str | None:
    """The stored bytes as SQL stores keep them: JSON as it is, compressed as base64."""
    if record.state is None:
        return None
    data = base64.b64encode(record.state) if record.format == JSON_GZIP else record.state
    return data.decode("ascii")


def from_text(stored_format: object, text: object) -> bytes | None:
    """The inverse; None for what no `as_text` wrote."""
    if not isinstance(text, str):
        return None
    try:
        raw = text.encode("ascii")
        return base64.b64decode(raw, validate=True) if stored_format == JSON_GZIP else raw
    except (UnicodeEncodeError, binascii.Error):
        return None
