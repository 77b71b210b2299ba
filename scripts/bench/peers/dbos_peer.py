"""DBOS Transact on SQLite: steps one after the other, a run that is resumed, two drivers of one run."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from answering import answer, note
from dbos import DBOS, DBOSConfig, SetWorkflowID

_output = "x" * 198
_bodies: list[int] = []
_log = ""


@DBOS.step()
def draw(index: int) -> str:
    """A body that gives a text of 198 characters."""
    _bodies.append(index)
    if _log:
        note(_log, index)
    return _output


@DBOS.workflow()
def sequential(steps: int) -> int:
    """Steps one after the other."""
    return sum(len(draw(index)) for index in range(steps))


def _launch(path: str) -> None:
    DBOS.destroy()
    config: DBOSConfig = {
        "name": "bench",
        "system_database_url": f"sqlite:///{path}",
        "log_level": "ERROR",
        "run_admin_server": False,
    }
    DBOS(config=config)
    DBOS.launch()


def write(path: str, steps: int) -> dict[str, Any]:
    """Runs new steps in a file of their own."""
    _launch(path)
    _bodies.clear()
    began = time.perf_counter()
    with SetWorkflowID("bench"):
        total = sequential(steps)
    took_s = time.perf_counter() - began
    if total != steps * len(_output) or len(_bodies) != steps:
        raise RuntimeError("the peer has not done what it should")
    DBOS.destroy()
    return {"took_s": took_s, "file_bytes": sum(one.stat().st_size for one in Path(path).parent.glob("*"))}


def drive(path: str, steps: int, log: str) -> dict[str, Any]:
    """Drives a run that another process may be driving, too; each body leaves a line."""
    global _log
    _log = log
    _launch(path)
    error = ""
    try:
        with SetWorkflowID("probe"):
            sequential(steps)
    except Exception as raised:  # whatever it is, it is told
        error = type(raised).__name__
    DBOS.destroy()
    return {"error": error}


if __name__ == "__main__":
    os.environ.setdefault("DBOS__CLOUD", "")
    answer("dbos", "its defaults on SQLite", {"write": write, "drive": drive})
