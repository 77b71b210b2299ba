"""A sandbox: one process that runs one function, one invocation at a time, as Lambda has it."""

from __future__ import annotations

import os
import sys
from abc import ABC, abstractmethod
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_PASSED_ON: Final = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "SYSTEMROOT", "TEMP")


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of an invocation.

    Attributes:
        failure: None; or why there is no result: `error` of the handler, `timeout`, `crash` of the process.
        payload: The handler's result, or what is told of the failure.
    """

    failure: Literal["error", "timeout", "crash"] | None
    payload: Any


@dataclass(frozen=True, slots=True)
class Code:
    """Where a function's code is, and how it is run.

    Attributes:
        name: Of the function.
        handler: Module and name.
        folder: The working folder.
        path: For `PYTHONPATH`, without what the runtime itself needs.
        isolated: Whether this machine's packages are hidden, so that what a zip lacks is missed.
        timeout_s: Its time-out.
        memory_mb: Its memory.
        environment: Its variables.
    """

    name: str
    handler: str
    folder: Path
    path: tuple[str, ...]
    isolated: bool
    timeout_s: int
    memory_mb: int
    environment: Mapping[str, str]


class Sandbox(ABC):
    """One process at a time that runs a function.

    Args:
        code: Of the function.
        key_id: The access key id that it is known by.
        log: What the function writes goes there; None: to standard error.
    """

    def __init__(self, code: Code, key_id: str, log: Path | None) -> None:
        self.code = code
        self.key_id = key_id
        self.log = log

    @abstractmethod
    def invoke(self, event: bytes) -> Answer:
        """Runs the handler; starts a process if there is none.

        Args:
            event: JSON.
        """

    @abstractmethod
    def pids(self) -> list[int]:
        """The processes that run now: the sandbox's own first, then the runtime's."""

    @abstractmethod
    def close(self) -> None:
        """Ends the process."""

    def environment(self, *, runtime: str = "") -> dict[str, str]:
        """The variables of the process: the function's, Lambda's, and the few that any program needs."""
        path = [runtime, *self.code.path] if runtime else list(self.code.path)
        name = self.code.environment.get("AWS_LAMBDA_FUNCTION_NAME", self.code.name)
        return {
            **{name: os.environ[name] for name in _PASSED_ON if name in os.environ},
            "PYTHONPATH": os.pathsep.join(path),
            "LAMBDA_TASK_ROOT": str(self.code.folder),
            "_HANDLER": self.code.handler,
            "AWS_LAMBDA_FUNCTION_NAME": name,
            "AWS_LAMBDA_FUNCTION_TIMEOUT": str(self.code.timeout_s),
            "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": str(self.code.memory_mb),
            "AWS_LAMBDA_FUNCTION_VERSION": "$LATEST",
            "AWS_ACCESS_KEY_ID": self.key_id,
            "AWS_SECRET_ACCESS_KEY": "local",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            **self.code.environment,
        }

    @contextmanager
    def output(self) -> Iterator[int]:
        """A descriptor for what the process writes."""
        if self.log is None:
            yield 2
            return
        with self.log.open("ab") as log:
            yield log.fileno()

    def python(self) -> list[str]:
        """The interpreter, with or without this machine's packages."""
        return [sys.executable, *(["-S"] if self.code.isolated else [])]
