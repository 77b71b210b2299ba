"""How a peer answers: one request a line on standard input, one answer a line on standard output.

No imports but the standard library: this runs in the environments of the peers, too. Whatever a peer prints
itself goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

Verbs = dict[str, Callable[..., dict[str, Any]]]


def answer(package: str, durability: str, verbs: Verbs) -> None:
    """Answers requests until there are no more.

    Args:
        package: Whose version is told first.
        durability: With which settings it writes.
        verbs: What can be asked: by name, given the request's other members.
    """
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    told: dict[str, Any] = {"package": package, "version": version(package), "durability": durability}
    out.write(json.dumps(told) + "\n")
    out.flush()
    for line in sys.stdin:
        request = json.loads(line)
        out.write(json.dumps(verbs[request.pop("verb")](**request)) + "\n")
        out.flush()
    os._exit(0)  # whatever threads a peer keeps


def note(log: str, what: object) -> None:
    """What a body leaves: a line in one write; then it takes a moment, so that two of them can meet."""
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, f"{what}\n".encode())
    finally:
        os.close(file)
    time.sleep(0.02)
