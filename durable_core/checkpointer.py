"""Checkpoints of agents: snapshots of their state per session, in the same stores as runs.

    config = CheckpointingConfig(enabled=True)
    checkpointer = get_checkpointer(config, store="sqlite:///agents.db")
    checkpointer.save("crew-7", "analyst", "analyse", state)
    latest = checkpointer.load_latest("crew-7")

Saving from inside an agent never fails it: `save_checkpoint_if_enabled` and `@checkpointed` log and count
what could not be saved. Everything else raises.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from durable_core.checkpointer_agents import checkpointed
from durable_core.checkpointer_async import AsyncCheckpointer
from durable_core.checkpointer_blocking import Checkpointer, Pruned
from durable_core.checkpointer_quiet import failed_saves, save_checkpoint_if_enabled
from durable_core.checkpoints.checkpoint import Checkpoint, Inputs
from durable_core.checkpoints.replaying import Difference, Replay

if TYPE_CHECKING:
    from durable_core.settings import CheckpointingConfig
    from durable_core.store import Store

__all__ = [
    "AsyncCheckpointer",
    "Checkpoint",
    "Checkpointer",
    "Difference",
    "Inputs",
    "Pruned",
    "Replay",
    "checkpointed",
    "failed_saves",
    "get_checkpointer",
    "save_checkpoint_if_enabled",
]


def get_checkpointer(config: CheckpointingConfig, store: str | Store | None = None) -> Checkpointer:
    """A checkpointer; arguments as of `Checkpointer`.

    Example:
        checkpointer = get_checkpointer(config, store=executor.store)
    """
    return Checkpointer(config, store)
