"""Checkpoints in a dict: the contract in its shortest form, for reading and for tests."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from typing import TYPE_CHECKING

from durable_core.checkpoints.base import CheckpointRecord, CheckpointStore, Place, SessionStats, overtaken
from durable_core.identity import check_id

if TYPE_CHECKING:
    from collections.abc import Sequence

    from durable_core.journal._memory_rows import MemoryRows
    from durable_core.journal.base import Holding


class MemoryCheckpoints(CheckpointStore):
    """Keeps checkpoints for as long as the object lives.

    Args:
        journal: Where the runs are that checkpoints are saved by; None: in another place.
    """

    def __init__(self, journal: MemoryRows | None = None) -> None:
        self._journal = journal
        self._lock = threading.RLock()
        self._sessions: dict[str, dict[int, CheckpointRecord]] = {}  # by seq, in its order

    def append(self, record: CheckpointRecord, lease: Holding | None = None) -> int:
        """Under both locks, so that the next place is free, and nobody takes the run over meanwhile."""
        check_id(record.session_id, "session id")
        with self._journal.lock if self._journal is not None else nullcontext(), self._lock:
            for one in self._sessions.get(record.session_id, {}).values():
                if one.id == record.id:
                    return one.seq
            if lease is not None and not self._may_save(lease):
                raise overtaken(record, lease)
            kept = self._sessions.setdefault(record.session_id, {})
            seq = max(kept, default=0) + 1
            kept[seq] = record._replace(seq=seq)
            return seq

    def latest(self, session_id: str, agent_id: str | None = None) -> CheckpointRecord | None:
        """The last one that fits."""
        return next(iter(self._found(session_id, agent_id=agent_id)), None)

    def of_step(self, session_id: str, step_id: str) -> CheckpointRecord | None:
        """The last one that fits."""
        return next((one for one in self._found(session_id) if one.step_id == step_id), None)

    def at(self, session_id: str, seq: int) -> CheckpointRecord | None:
        """By its key."""
        return self._sessions.get(session_id, {}).get(seq)

    def page(
        self,
        session_id: str,
        *,
        agent_id: str | None = None,
        before: int | None = None,
        limit: int = 100,
        with_state: bool = False,
    ) -> list[CheckpointRecord]:
        """The last ones that fit."""
        found = [one for one in self._found(session_id, agent_id) if before is None or one.seq < before]
        return [one if with_state else one._replace(state=None) for one in found[:limit]]

    def prunable(self, session_id: str, keep: int, *, limit: int | None = None) -> Sequence[Place]:
        """Neither among the newest nor the newest of its agent."""
        found = self._found(session_id)
        newest: dict[str, int] = {}
        for one in found:
            newest.setdefault(one.agent_id, one.seq)
        old = [_place(one) for one in found[keep:] if one.seq != newest[one.agent_id]]
        return old[::-1][:limit]

    def places(self, session_id: str, *, limit: int | None = None) -> Sequence[Place]:
        """All of a session."""
        return [_place(one) for one in self._found(session_id)[::-1][:limit]]

    def remove(self, places: Sequence[Place]) -> int:
        """Those that still have the id."""
        removed = 0
        with self._lock:
            for place in places:
                kept = self._sessions.get(place.session_id, {})
                if place.seq in kept and kept[place.seq].id == place.id:
                    del kept[place.seq]
                    removed += 1
                if not kept:
                    self._sessions.pop(place.session_id, None)
        return removed

    def stats(self, session_id: str) -> SessionStats:
        """Counted."""
        found = self._found(session_id)
        times = [one.created_at_ms for one in found]
        return SessionStats(
            session_id=session_id,
            checkpoints=len(found),
            agents=len({one.agent_id for one in found}),
            size_bytes=sum(one.size_bytes for one in found),
            latest_seq=found[0].seq if found else 0,
            first_at_ms=min(times, default=None),
            last_at_ms=max(times, default=None),
        )

    def sessions(self, *, after: str = "", limit: int = 100) -> Sequence[str]:
        """By name."""
        with self._lock:
            return sorted(name for name in self._sessions if name > after)[:limit]

    def open(self, *, create: bool = True) -> None:
        """Nothing to connect to."""

    def close(self) -> None:
        """Nothing to give back: what was saved stays."""

    def _may_save(self, lease: Holding) -> bool:
        journal = self._journal
        return journal is None or lease.run_id not in journal.headers or journal.holds(lease)

    def _found(self, session_id: str, agent_id: str | None = None) -> Sequence[CheckpointRecord]:
        """Newest first."""
        with self._lock:
            kept = list(self._sessions.get(session_id, {}).values())
        return [one for one in reversed(kept) if agent_id in (None, one.agent_id)]


def _place(record: CheckpointRecord) -> Place:
    return Place(record.session_id, record.seq, record.id, record.state_ref, record.size_bytes)
