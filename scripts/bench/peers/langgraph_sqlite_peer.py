"""LangGraph with SqliteSaver: a node that is run again and again, and two drivers of one thread."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any, TypedDict

sys.path.insert(0, str(Path(__file__).resolve().parent))

from answering import answer, note
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph

_output = "x" * 198
_bodies: list[int] = []
_log = ""


class State(TypedDict):
    """What the graph carries."""

    number: int
    steps: int
    last: str


def draw(state: State) -> dict[str, Any]:
    """A body that gives a text of 198 characters."""
    _bodies.append(state["number"])
    if _log:
        note(_log, state["number"])
    return {"number": state["number"] + 1, "last": _output}


def _graph(saver: SqliteSaver) -> Any:
    made = StateGraph(State)
    made.add_node("draw", draw)
    made.add_edge(START, "draw")
    made.add_conditional_edges("draw", lambda state: "draw" if state["number"] < state["steps"] else END)
    return made.compile(checkpointer=saver)


def _config(steps: int) -> dict[str, Any]:
    return {"configurable": {"thread_id": "bench"}, "recursion_limit": steps + 10}


def write(path: str, steps: int) -> dict[str, Any]:
    """Runs new steps in a file of their own."""
    _bodies.clear()
    with SqliteSaver.from_conn_string(path) as saver:
        saver.setup()
        graph = _graph(saver)
        began = time.perf_counter()
        graph.invoke({"number": 0, "steps": steps, "last": ""}, _config(steps), durability="sync")
        took_s = time.perf_counter() - began
    if len(_bodies) != steps:
        raise RuntimeError("the peer has not done what it should")
    return {"took_s": took_s, "file_bytes": sum(one.stat().st_size for one in Path(path).parent.glob("*"))}


def drive(path: str, steps: int, log: str) -> dict[str, Any]:
    """Drives a thread that another process may be driving, too; each body leaves a line."""
    global _log
    _log = log
    error = ""
    with SqliteSaver.from_conn_string(path) as saver:
        saver.setup()
        try:
            _graph(saver).invoke({"number": 0, "steps": steps, "last": ""}, _config(steps), durability="sync")
        except Exception as raised:  # whatever it is, it is told
            error = type(raised).__name__
    return {"error": error}


if __name__ == "__main__":
    told = "WAL, synchronous FULL (as it opens the file), durability=sync"
    answer("langgraph-checkpoint-sqlite", told, {"write": write, "drive": drive})
