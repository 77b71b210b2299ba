"""A process that prunes a session to its newest checkpoint."""

from __future__ import annotations

from pathlib import Path

from durable_core import CheckpointingConfig, get_checkpointer
from tests.e2e.programs.snapshots import SESSION
from tests.e2e.programs.witness import leave
from tests.waiting import until


def main(store: str, folder: str) -> int:
    """Prunes as soon as `folder/go` is there; says in `folder/pruning` that it begins."""
    with get_checkpointer(CheckpointingConfig(enabled=True), store) as checkpointer:
        checkpointer.stats(SESSION)
        until(Path(folder, "go").exists, "the start signal")
        leave(Path(folder, "pruning"))
        checkpointer.prune(SESSION, 1)
    return 0
