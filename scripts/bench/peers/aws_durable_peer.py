"""The AWS durable execution SDK on its local test runner: steps, and items of a map."""

from __future__ import annotations

import logging
import sys
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from answering import answer
from aws_durable_execution_sdk_python.config import MapConfig
from aws_durable_execution_sdk_python.context import DurableContext  # noqa: TC002 - as its examples have it
from aws_durable_execution_sdk_python.execution import durable_execution
from aws_durable_execution_sdk_python_testing.runner import DurableFunctionTestRunner

_output = "x" * 198
_bodies: list[int] = []
_lock = threading.Lock()


def _ran(index: int) -> str:
    with _lock:
        _bodies.append(index)
    return _output


@durable_execution
def sequential(event: dict[str, Any], context: DurableContext) -> int:
    """Steps one after the other."""
    return sum(
        len(context.step(lambda _, index=index: _ran(index), name=f"draw-{index}"))
        for index in range(event["steps"])
    )


@durable_execution
def mapped(event: dict[str, Any], context: DurableContext) -> int:
    """No-op items."""
    items = list(range(event["items"]))
    found = context.map(items, lambda _, item, index, all_: item, config=MapConfig(max_concurrency=32))
    return len(found.get_results())


def _run(handler: Any, event: str) -> float:
    with DurableFunctionTestRunner(handler=handler, poll_interval=0.01, execution_timeout=600) as runner:
        began = time.perf_counter()
        result = runner.run(input=event)
        took_s = time.perf_counter() - began
    if str(result.status).rpartition(".")[2] != "SUCCEEDED":
        raise RuntimeError(f"the peer has not done what it should: {result.status} {result.error}")
    return took_s


def write(path: str, steps: int) -> dict[str, Any]:
    """Runs new steps; the local runner keeps them in memory."""
    _bodies.clear()
    took_s = _run(sequential, f'{{"steps": {steps}}}')
    if len(_bodies) != steps:
        raise RuntimeError("the peer has not done what it should")
    return {"took_s": took_s, "file_bytes": 0}


def map_items(path: str, items: int) -> dict[str, Any]:
    """Runs a map of no-op items."""
    return {"took_s": _run(mapped, f'{{"items": {items}}}')}


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    told = "in memory: the local runner"
    answer("aws-durable-execution-sdk-python-testing", told, {"write": write, "map": map_items})
