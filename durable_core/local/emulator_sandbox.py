"""A sandbox under the Lambda runtime interface emulator: the real runtime client, the real time-out kill.

The emulator is a program of AWS that comes inside the wheel of `aws-sam-cli`. It answers one call at a time,
kills the runtime at the function's time-out, and starts it anew for the next call.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from durable_core.local.sandbox import Answer, Code, Sandbox

if TYPE_CHECKING:
    from durable_core.local.aws_endpoint import AwsEndpoint

_INVOKE: Final = "/2015-03-31/functions/function/invocations"
_START_S: Final = 30
_END_S: Final = 5
_SLACK_S: Final = 60  # above the function's time-out: a machine may be busy


class EmulatorSandbox(Sandbox):
    """One emulator and its runtime.

    Args:
        code: Of the function.
        key_id: The access key id that it is known by.
        log: What the function writes goes there; None: to standard error.
        emulator: The program.
        runtime: A folder with `awslambdaric` and what that needs, nothing else.
        aws: Ends the process if this one dies.
    """

    def __init__(
        self, code: Code, key_id: str, log: Path | None, *, emulator: Path, runtime: Path, aws: AwsEndpoint
    ) -> None:
        super().__init__(code, key_id, log)
        self._emulator = emulator
        self._runtime = runtime
        self._aws = aws
        self._process: subprocess.Popen[bytes] | None = None
        self._port = 0

    def invoke(self, event: bytes) -> Answer:
        """Runs the handler; a process that has died meanwhile is replaced."""
        if self._process is None or self._process.poll() is not None:
            self._start()
        connection = http.client.HTTPConnection(
            "127.0.0.1", self._port, timeout=self.code.timeout_s + _SLACK_S
        )
        try:
            connection.request("POST", _INVOKE, event, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return _answer(answer.status, answer.read())
        except (OSError, http.client.HTTPException) as error:
            # The emulator itself is gone; its runtime may live on, which is what its end would be like on a
            # host that was cut off.
            self._drop()
            return Answer("crash", f"the sandbox is gone: {error}")
        finally:
            connection.close()

    def pids(self) -> list[int]:
        """The emulator's, then its runtime's."""
        process = self._process  # the thread that invokes may let go of it meanwhile
        if process is None or process.poll() is not None:
            return []
        return [process.pid, *_children(process.pid)]

    def close(self) -> None:
        """Ends both: the emulator takes its runtime along when it is asked to end."""
        if self._process is None:
            return
        children = _children(self._process.pid)
        self._process.terminate()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for pid in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._drop()

    def _start(self) -> None:
        self._drop()
        self._port, api = _free_ports()
        with self.output() as log:
            self._process = subprocess.Popen(  # noqa: S603 - the emulator, on this package's own functions
                [
                    str(self._emulator),
                    "--runtime-interface-emulator-address",
                    f"127.0.0.1:{self._port}",
                    "--runtime-api-address",
                    f"127.0.0.1:{api}",
                    *self.python(),
                    "-m",
                    "awslambdaric",
                    self.code.handler,
                ],
                cwd=self.code.folder,
                env=self.environment(runtime=str(self._runtime)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the local cloud, which ends its sandboxes in order
            )
        self._aws.watch(self._process.pid)
        self._await_port()

    def _await_port(self) -> None:
        end = time.monotonic() + _START_S
        while time.monotonic() < end and self._process is not None and self._process.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._port), 1):
                return
            time.sleep(0.02)

    def _drop(self) -> None:
        """Lets go of the emulator. One that hung up may live on, or nobody has waited for it yet."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._aws.forget(self._process.pid)
            self._process = None


def _answer(status: int, body: bytes) -> Answer:
    """What the emulator means: it answers 200 to errors and time-outs, too."""
    text = body.decode("utf-8", "replace")
    if status != 200:
        return Answer("crash", text)
    if text.startswith("Task timed out after"):
        return Answer("timeout", text)
    try:
        payload = json.loads(text)
    except ValueError:
        return Answer("crash", text)
    failed = isinstance(payload, dict) and "errorType" in payload and "errorMessage" in payload
    return Answer("error" if failed else None, payload)


def _children(pid: int) -> list[int]:
    """The processes that a process has started; the kernel tells by thread."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += map(int, task.read_text().split())
    return found


def _free_ports() -> tuple[int, int]:
    """Two at once, so that they differ. Another program may take them before the emulator does; seldom."""
    with socket.socket() as first, socket.socket() as second:
        first.bind(("127.0.0.1", 0))
        second.bind(("127.0.0.1", 0))
        return first.getsockname()[1], second.getsockname()[1]
