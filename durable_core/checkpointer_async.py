"""The checkpointer for event loops."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from durable_core.checkpointer_blocking import Checkpointer
from durable_core.checkpoints.checkpoint import Checkpoint, Inputs, checked_ids, drafted, encoded_inputs

if TYPE_CHECKING:
    import builtins
    from collections.abc import Callable, Mapping

    from durable_core.checkpointer_blocking import Pruned
    from durable_core.checkpoints.base import SessionStats
    from durable_core.checkpoints.replaying import Replay
    from durable_core.clock import Clock
    from durable_core.settings import CheckpointingConfig
    from durable_core.store import Store


class AsyncCheckpointer:
    """A `Checkpointer` for event loops: the same methods, awaited; its work is done in threads.

    A state is encoded before the first wait, so that what other tasks change meanwhile has no say.
    """

    def __init__(
        self, config: CheckpointingConfig, store: str | Store | None = None, *, clock: Clock | None = None
    ) -> None:
        self.blocking = Checkpointer(config, store, clock=clock)

    async def save(
        self,
        session_id: str,
        agent_id: str,
        step_id: str,
        state: object,
        metadata: Mapping[str, object] | None = None,
        *,
        inputs: Inputs | None = None,
    ) -> Checkpoint | None:
        """As `Checkpointer.save`."""
        if not self.blocking.config.enabled:
            return None
        ids = checked_ids(session_id, agent_id, step_id)
        recorded = None if inputs is None else encoded_inputs(inputs)
        draft = drafted(*ids, state, metadata, recorded)
        return await asyncio.to_thread(self.blocking.write, draft)

    async def load_latest(self, session_id: str, agent_id: str | None = None) -> Checkpoint | None:
        """As `Checkpointer.load_latest`."""
        return await asyncio.to_thread(self.blocking.load_latest, session_id, agent_id)

    async def load_by_step(self, session_id: str, step_id: str) -> Checkpoint | None:
        """As `Checkpointer.load_by_step`."""
        return await asyncio.to_thread(self.blocking.load_by_step, session_id, step_id)

    async def list(
        self, session_id: str, *, agent_id: str | None = None, before: int | None = None, limit: int = 100
    ) -> builtins.list[Checkpoint]:
        """As `Checkpointer.list`."""
        return await asyncio.to_thread(
            self.blocking.list, session_id, agent_id=agent_id, before=before, limit=limit
        )

    async def stats(self, session_id: str) -> SessionStats:
        """As `Checkpointer.stats`."""
        return await asyncio.to_thread(self.blocking.stats, session_id)

    async def prune(self, session_id: str, keep: int | None = None, *, dry_run: bool = False) -> Pruned:
        """As `Checkpointer.prune`."""
        return await asyncio.to_thread(self.blocking.prune, session_id, keep, dry_run=dry_run)

    async def delete_session(self, session_id: str) -> int:
        """As `Checkpointer.delete_session`."""
        return await asyncio.to_thread(self.blocking.delete_session, session_id)

    async def resume_from(self, session_id: str, step_id: str) -> Checkpoint:
        """As `Checkpointer.resume_from`."""
        return await asyncio.to_thread(self.blocking.resume_from, session_id, step_id)

    async def undo_resume_from(self, session_id: str) -> Checkpoint:
        """As `Checkpointer.undo_resume_from`."""
        return await asyncio.to_thread(self.blocking.undo_resume_from, session_id)

    async def replay(self, session_id: str, step_id: str, fn: Callable[..., Any]) -> Replay:
        """As `Checkpointer.replay`; a `def` function is called in a thread."""
        return await asyncio.to_thread(self.blocking.replay, session_id, step_id, fn)

    async def close(self) -> None:
        """As `Checkpointer.close`."""
        await asyncio.to_thread(self.blocking.close)

    async def __aenter__(self) -> AsyncCheckpointer:
        """Itself."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Closes it."""
        await self.close()
