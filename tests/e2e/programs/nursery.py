"""A process that has imported everything and forks children on request: in milliseconds instead of a second.

It reaps a child only when it is told to, so a killed one stays a zombie until then. Each request is a line of
JSON on its input, each answer a number on its output; when its input ends it kills what children are left.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.waiting import LIMIT_S, until

ROOT = Path(__file__).parents[3]
PROGRAMS = (
    "batching", "budgets", "chain", "deadly", "forgetting", "forking", "held", "inheriting", "limited",
    "looking", "orderless", "parting", "pooling", "pruning", "racing", "resuming", "saving", "sharing",
    "snapshots", "stopped", "working",
)  # fmt: skip


class Nursery:
    """The test's side of it."""

    def __init__(self) -> None:
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.e2e.programs.nursery"],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "DURABLE_LOG_LEVEL": "error"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._live: set[int] = set()

    def start(self, program: str, *args: object) -> int:
        """Forks a child that calls `main(*args)` of a program; gives its pid."""
        pid = self._ask("start", program, [str(arg) if isinstance(arg, Path) else arg for arg in args])
        self._live.add(pid)
        return pid

    def wait(self, pid: int, limit_s: float = LIMIT_S) -> int:
        """Waits for the end of a child and reaps it; gives its exit code, negative for a signal."""
        until(lambda: is_over(pid), f"the end of child {pid}", limit_s=limit_s)
        self._live.discard(pid)
        return os.waitstatus_to_exitcode(self._ask("reap", pid))

    def run(self, program: str, *args: object, limit_s: float = LIMIT_S) -> int:
        """Starts a child and waits for its end."""
        return self.wait(self.start(program, *args), limit_s)

    def kill(self, pid: int) -> int:
        """Kills a child and reaps it; gives its exit code."""
        self.leave_zombie(pid)
        return self.wait(pid)

    def leave_zombie(self, pid: int) -> None:
        """Kills a child, and leaves it unreaped until somebody waits for it."""
        os.kill(pid, signal.SIGKILL)
        until(lambda: is_over(pid), f"the death of child {pid}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        for pid in self._live:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.close()
        self._server.wait(LIMIT_S)
        self._server.stdout.close()

    def _ask(self, *request: object) -> int:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps(request).encode() + b"\n")
        self._server.stdin.flush()
        return int(json.loads(self._server.stdout.readline()))


def open_nursery() -> Iterator[Nursery]:
    """What a fixture yields."""
    with Nursery() as nursery:
        yield nursery


def is_over(pid: int) -> bool:
    """Whether a process has ended, also when nobody has reaped it."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        threads = list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return True
    return stat[stat.rindex(")") + 2] in "ZX" and len(threads) <= 1


def _serve() -> None:
    programs: dict[str, Any] = {
        name: importlib.import_module(f"tests.e2e.programs.{name}") for name in PROGRAMS
    }
    gc.freeze()
    children: set[int] = set()
    # Unbuffered, so that no child inherits half of the next request.
    requests = os.fdopen(0, "rb", buffering=0)
    for line in iter(requests.readline, b""):
        verb, *rest = json.loads(line)
        if verb == "start":
            pid = os.fork()
            if pid == 0:
                _live(programs[rest[0]].main, rest[1])
            children.add(pid)
            answer = pid
        else:
            children.discard(rest[0])
            answer = os.waitpid(rest[0], 0)[1]
        os.write(1, f"{answer}\n".encode())
    for pid in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _live(main: Any, args: list[Any]) -> None:
    """A child's whole life."""
    code = 70
    try:
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 0)
        os.dup2(nothing, 1)  # the answers' pipe must not stay open in a child
        code = main(*args) or 0
    except BaseException:  # nothing may go back to the server's loop
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    _serve()
