"""A function of the local cloud: as many sandboxes as are needed at once, reused when they are free."""

from __future__ import annotations

import json
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from durable_core.local.aws_endpoint import AwsEndpoint
    from durable_core.local.sandbox import Answer, Sandbox
    from durable_core.local.template import FunctionSpec


class LocalFunction:
    """One function.

    Args:
        spec: What the template says of it.
        aws: Knows its sandboxes by their keys.
        open_sandbox: Makes one, given its access key id; no process is started yet.

    Attributes:
        spec: What the template says of it.
        outcomes: How many invocations ended how: `ok`, `error`, `timeout`, `crash`.
    """

    def __init__(self, spec: FunctionSpec, aws: AwsEndpoint, open_sandbox: Callable[[str], Sandbox]) -> None:
        self.spec = spec
        self.outcomes: Counter[str] = Counter()
        self._aws = aws
        self._open_sandbox = open_sandbox
        self._changing = threading.Lock()
        self._all: list[Sandbox] = []
        self._free: list[Sandbox] = []

    def invoke(self, event: Any, hops: Mapping[str, int] | None = None) -> Answer:
        """Runs the handler in a sandbox that is free, or in a new one.

        Args:
            event: As JSON has it.
            hops: The lineage of the message that it is invoked for.
        """
        sandbox = self._take()
        try:
            lineage = dict(hops or {})
            lineage[self.spec.name] = lineage.get(self.spec.name, 0) + 1
            self._aws.set_lineage(sandbox.key_id, lineage)
            answer = sandbox.invoke(json.dumps(event).encode())
        finally:
            with self._changing:
                self._free.append(sandbox)
        with self._changing:
            self.outcomes[answer.failure or "ok"] += 1
        return answer

    def processes(self, *, at_work: bool = False) -> list[list[int]]:
        """The pids of each sandbox, or of each that has an invocation: its own first, then its runtime's."""
        with self._changing:
            sandboxes = [one for one in self._all if not at_work or one not in self._free]
        return [pids for pids in (one.pids() for one in sandboxes) if pids]

    def close(self) -> None:
        """Ends all sandboxes."""
        with self._changing:
            sandboxes = list(self._all)
        for sandbox in sandboxes:
            sandbox.close()

    def _take(self) -> Sandbox:
        """The one that was used last is the warmest."""
        with self._changing:
            if self._free:
                return self._free.pop()
            made = self._open_sandbox(f"{key_prefix(self.spec.name)}{len(self._all)}")
            self._all.append(made)
            return made


def key_prefix(function: str) -> str:
    """What the access key ids of a function's sandboxes begin with."""
    return f"LOCAL-{function}-"
