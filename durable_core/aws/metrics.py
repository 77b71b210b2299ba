"""Metrics in CloudWatch's embedded format: lines on standard output that Lambda's log turns into metrics."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any, Final

from durable_core.aws.transport import Transport

if TYPE_CHECKING:
    from collections.abc import Mapping

    from durable_core.aws.transport import Service
    from durable_core.clock import Clock

NAMESPACE: Final = "DurableCore"
_DIMENSION: Final = "Stage"
_UNITS: Final = {"OutputBytes": "Bytes"}
_WRITES: Final = frozenset({"put_item", "update_item", "delete_item", "transact_write_items"})


class Metrics:
    """Writes metrics of one function.

    Args:
        stage: Their dimension.
        function: Beside them, to be filtered by.
        clock: The source of time.
    """

    def __init__(self, stage: str, function: str, clock: Clock) -> None:
        self._stage = stage
        self._function = function
        self._clock = clock

    def put(self, values: Mapping[str, int | float], **beside: object) -> None:
        """Writes those that aren't 0, in one line.

        Args:
            values: By name.
            beside: Ids that stand in the line, and are no dimensions: there may be millions.
        """
        found = {name: value for name, value in values.items() if value}
        if not found:
            return
        named = [{"Name": name, "Unit": _UNITS.get(name, "Count")} for name in found]
        line: dict[str, Any] = {
            "_aws": {
                "Timestamp": self._clock.now_ms(),
                "CloudWatchMetrics": [
                    {"Namespace": NAMESPACE, "Dimensions": [[_DIMENSION]], "Metrics": named}
                ],
            },
            _DIMENSION: self._stage,
            "function": self._function,
            **beside,
            **found,
        }
        # Not by print: a workflow's own output may be in the middle of a line.
        sys.stdout.write(f"{json.dumps(line, separators=(',', ':'))}\n")
        sys.stdout.flush()


class Metered(Transport):
    """A transport that counts what its writes to DynamoDB are charged.

    Args:
        inner: Sends the requests.

    Attributes:
        write_units: So far. What is refused is charged, too, but nobody tells how much.
    """

    def __init__(self, inner: Transport) -> None:
        self._inner = inner
        self.write_units = 0.0

    async def call(self, service: Service, operation: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """Sends one request."""
        return self._counted(await self._inner.call(service, operation, _asking(service, operation, request)))

    def call_now(self, service: Service, operation: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """The same, blocking."""
        return self._counted(self._inner.call_now(service, operation, _asking(service, operation, request)))

    async def close(self) -> None:
        """Closes the connections of this event loop."""
        await self._inner.close()

    def close_now(self) -> None:
        """Closes those of blocking calls."""
        self._inner.close_now()

    def _counted(self, reply: dict[str, Any]) -> dict[str, Any]:
        consumed = reply.get("ConsumedCapacity") or ()
        for one in [consumed] if isinstance(consumed, dict) else consumed:
            self.write_units += one.get("WriteCapacityUnits") or one.get("CapacityUnits") or 0
        return reply


def _asking(service: Service, operation: str, request: Mapping[str, Any]) -> Mapping[str, Any]:
    if service != "dynamodb" or operation not in _WRITES:
        return request
    return {**request, "ReturnConsumedCapacity": "TOTAL"}
