"""An agent that saves its state as fast as it goes, for processes that share a session or are killed."""

from __future__ import annotations

from pathlib import Path

from durable_core import CheckpointingConfig, get_checkpointer
from tests.e2e.programs.witness import note
from tests.waiting import until

SESSION = "shared"


def state_of(agent_id: str, number: int) -> dict[str, object]:
    """What an agent has come to: large enough to be compressed, and known from its number."""
    return {"agent": agent_id, "number": number, "notes": [f"{agent_id}-{number}-{n}" for n in range(200)]}


def main(
    store: str, agent_id: str, saves: int, retention: int, folder: str, inline_max_bytes: int | None = None
) -> int:
    """Saves as soon as `folder/go` is there, and notes each place that it was given in `{agent_id}.acks`."""
    config = CheckpointingConfig(enabled=True, retention_per_session=retention)
    with get_checkpointer(config, store) as checkpointer:
        if inline_max_bytes is not None:
            checkpointer.kept.inline_max_bytes = inline_max_bytes
        until(Path(folder, "go").exists, "the start signal")
        for number in range(saves):
            saved = checkpointer.save(SESSION, agent_id, f"step-{number}", state_of(agent_id, number))
            if saved is None:
                return 1
            note(f"{folder}/{agent_id}.acks", [saved.seq, number])
    return 0
