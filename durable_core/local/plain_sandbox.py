"""A sandbox for systems that the emulator doesn't run on: a Python process, killed at its time-out."""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import threading
import uuid
from typing import TYPE_CHECKING, Final

from durable_core.local import plain_runtime
from durable_core.local.sandbox import Answer, Code, Sandbox

if TYPE_CHECKING:
    from pathlib import Path
    from typing import IO

    from durable_core.local.aws_endpoint import AwsEndpoint

_START_S: Final = 60


class PlainSandbox(Sandbox):
    """One Python process that reads events and writes answers, line by line.

    Args:
        code: Of the function.
        key_id: The access key id that it is known by.
        log: What the function writes goes there; None: to standard error.
        aws: Ends the process if this one dies.
    """

    def __init__(self, code: Code, key_id: str, log: Path | None, *, aws: AwsEndpoint) -> None:
        super().__init__(code, key_id, log)
        self._aws = aws
        self._process: subprocess.Popen[bytes] | None = None
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def invoke(self, event: bytes) -> Answer:
        """Runs the handler; the clock starts when its module is there, as on Lambda."""
        if self._process is None or self._process.poll() is not None:
            self._start()
            if not self._next_line(_START_S):
                self.close()
                return Answer("crash", "the function's module could not be imported; see its log")
        try:
            self._send(event)
        except OSError as error:
            self.close()
            return Answer("crash", f"the sandbox is gone: {error}")
        line = self._next_line(self.code.timeout_s)
        if line is None:
            self.close()
            return Answer("timeout", f"Task timed out after {self.code.timeout_s:.2f} seconds")
        if not line:
            self.close()
            return Answer("crash", "the process has ended")
        told = json.loads(line)
        return Answer("error" if "error" in told else None, told.get("error", told.get("result")))

    def pids(self) -> list[int]:
        """The process's."""
        process = self._process  # the thread that invokes may let go of it meanwhile
        return [process.pid] if process is not None and process.poll() is None else []

    def close(self) -> None:
        """Kills it, as Lambda does with a sandbox that it no longer needs."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        self._aws.forget(process.pid)
        if process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()

    def _send(self, event: bytes) -> None:
        if self._process is None or self._process.stdin is None:
            raise BrokenPipeError("no process")
        call = {"request_id": str(uuid.uuid4()), "event": json.loads(event)}
        self._process.stdin.write(json.dumps(call).encode() + b"\n")
        self._process.stdin.flush()

    def _start(self) -> None:
        self.close()
        with self.output() as log:
            self._process = subprocess.Popen(  # noqa: S603 - this package's own module and functions
                [*self.python(), plain_runtime.__file__],
                cwd=self.code.folder,
                env=self.environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        self._aws.watch(self._process.pid)
        self._lines = queue.SimpleQueue()
        threading.Thread(target=_forward, args=(self._process.stdout, self._lines), daemon=True).start()

    def _next_line(self, wait_s: float) -> bytes | None:
        """The next line; empty if the process has ended, None if there was none in time."""
        try:
            return self._lines.get(timeout=wait_s)
        except queue.Empty:
            return None


def _forward(stream: IO[bytes], lines: queue.SimpleQueue[bytes]) -> None:
    with stream:
        for line in stream:
            lines.put(line)
        lines.put(b"")
