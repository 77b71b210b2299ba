"""A process that saves checkpoints, forks, and lets its children use the checkpointer that they inherited."""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path

from durable_core import Checkpointer, CheckpointingConfig, get_checkpointer
from tests.e2e.programs.snapshots import SESSION, state_of
from tests.e2e.programs.witness import note


def main(store: str, folder: str, children: int, saves: int) -> int:
    """Saves, forks, and goes on beside its children; all note what they were told."""
    config = CheckpointingConfig(enabled=True, retention_per_session=0)
    with get_checkpointer(config, store) as checkpointer:
        _save(checkpointer, folder, "before", 5)
        pids = []
        for number in range(children):
            pid = os.fork()
            if pid == 0:
                _child(checkpointer, folder, number, saves)
            pids.append(pid)
        note(Path(folder, "pids"), pids)
        _save(checkpointer, folder, "parent", saves)
    return max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids)


def _child(checkpointer: Checkpointer, folder: str, number: int, saves: int) -> None:
    code = 70
    try:
        _save(checkpointer, folder, f"child-{number}", saves)
        code = 0
    except BaseException:  # nothing may go on as if this were the parent
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _save(checkpointer: Checkpointer, folder: str, agent_id: str, saves: int) -> None:
    for number in range(saves):
        saved = checkpointer.save(SESSION, agent_id, f"step-{number}", state_of(agent_id, number))
        if saved is not None:
            note(f"{folder}/{agent_id}.acks", [saved.seq, number])
