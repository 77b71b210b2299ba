"""The peer of checkpoints.py: LangGraph's SqliteSaver, in an environment that has it.

One request a line on standard input (`{"path": …, "size_bytes": …, "saves": …}`), one answer a line on
standard output (`{"took_s": …, "file_bytes": …}`).
"""

from __future__ import annotations

import json
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from scripts.bench.states import state


def save(path: str, size_bytes: int, saves: int) -> dict[str, Any]:
    """Puts as many checkpoints into a new file; each is the state with another turn."""
    from langgraph.checkpoint.base import empty_checkpoint
    from langgraph.checkpoint.sqlite import SqliteSaver

    made = state(size_bytes)
    with SqliteSaver.from_conn_string(path) as saver:
        saver.setup()
        took_s = 0.0
        for turn in range(saves):
            made["turn"] = turn
            checkpoint = {
                **empty_checkpoint(),
                "channel_values": {"state": made},
                "channel_versions": {"state": turn},
            }
            config = {"configurable": {"thread_id": "bench", "checkpoint_ns": ""}}
            began = time.perf_counter()
            saver.put(config, checkpoint, {"source": "loop", "step": turn}, {"state": turn})
            took_s += time.perf_counter() - began
        found = saver.get_tuple({"configurable": {"thread_id": "bench", "checkpoint_ns": ""}})
    if found is None or found.checkpoint["channel_values"]["state"]["turn"] != saves - 1:
        raise RuntimeError("the peer has not saved what it should")
    return {"took_s": took_s, "file_bytes": Path(path).stat().st_size}


def main() -> None:
    """Answers requests until there are no more."""
    print(json.dumps({"version": version("langgraph-checkpoint-sqlite")}), flush=True)
    for line in sys.stdin:
        print(json.dumps(save(**json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
