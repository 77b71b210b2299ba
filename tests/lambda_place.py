"""A deployment for one test: a table, a bucket, queues and a bus in the moto server, and its functions."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from durable_core.aws.sandbox import Handler
from tests.cloud import REGION, Cloud

TIME_OUT_MS = 900_000


class Context:
    """What Lambda gives a handler beside the event.

    Args:
        left_ms: What it says that is left; left out when None.
        request_id: Of the invocation.
        function: That is invoked; by default another for each time that is left, which then is its time-out.
    """

    def __init__(
        self, left_ms: Any = TIME_OUT_MS, request_id: str | None = None, function: str | None = None
    ) -> None:
        self.left_ms = left_ms
        self.function_name = function or f"function-{left_ms}"
        self.aws_request_id = request_id or str(uuid.uuid4())

    def get_remaining_time_in_millis(self) -> Any:
        return self.left_ms


class Deployment:
    """A store, queues and a bus of its own, and what its functions are told about them."""

    def __init__(self, cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cloud = cloud
        self.plain = cloud.transport("boto3")
        name = uuid.uuid4().hex[:12]
        self.table = cloud.new_table(self.plain)
        self.url = cloud.url(self.table, cloud.shared_bucket, prefix=f"{self.table}/")
        self.drive_queue = self._queue(f"drive-{name}")
        self.work_queue = self._queue(f"work-{name}")
        self.told_queue = self._queue(f"told-{name}")
        self.bus = f"bus-{name}"
        self._make_bus()
        for variable, value in {
            "DURABLE_STORE": self.url,
            "DURABLE_DRIVE_QUEUE_URL": self.drive_queue,
            "DURABLE_WORK_QUEUE_URL": self.work_queue,
            "DURABLE_EVENT_BUS": self.bus,
            "DURABLE_RETENTION_DAYS": "30",
            "DURABLE_STAGE": "test",
            "DURABLE_LOG_LEVEL": "debug",
        }.items():
            monkeypatch.setenv(variable, value)
        self._handlers: list[Handler[Any]] = []

    def handler(self, made: Callable[[], Handler[Any]]) -> Handler[Any]:
        """A handler that is closed with this."""
        handler = made()
        self._handlers.append(handler)
        return handler

    def close(self) -> None:
        for handler in self._handlers:
            handler.close()
        self.plain.close_now()

    def ask(self, service: Any, operation: str, request: dict[str, Any]) -> dict[str, Any]:
        return self.plain.call_now(service, operation, request)

    # ---- Queues ----

    def received(self, url: str, *, most: int = 10, wait_s: int = 0) -> list[dict[str, Any]]:
        """What is in a queue, taken out of it."""
        found: list[dict[str, Any]] = []
        while len(found) < most:
            request = {"QueueUrl": url, "MaxNumberOfMessages": min(10, most - len(found))}
            reply = self.ask("sqs", "receive_message", {**request, "WaitTimeSeconds": wait_s})
            messages = reply.get("Messages", [])
            if not messages:
                return found
            for message in messages:
                self.ask(
                    "sqs", "delete_message", {"QueueUrl": url, "ReceiptHandle": message["ReceiptHandle"]}
                )
            found += messages
        return found

    def sent(self) -> list[dict[str, Any]]:
        """The messages for `drive_run` that are there now, taken out of its queue."""
        return [json.loads(one["Body"]) for one in self.received(self.drive_queue)]

    def told(self) -> list[dict[str, Any]]:
        """What EventBridge was told, in any order."""
        return [json.loads(one["Body"])["detail"] for one in self.received(self.told_queue)]

    def delayed(self) -> int:
        """How many messages for `drive_run` are held back."""
        name = "ApproximateNumberOfMessagesDelayed"
        reply = self.ask(
            "sqs", "get_queue_attributes", {"QueueUrl": self.drive_queue, "AttributeNames": [name]}
        )
        return int(reply["Attributes"][name])

    def _queue(self, name: str) -> str:
        return str(self.ask("sqs", "create_queue", {"QueueName": name})["QueueUrl"])

    def _make_bus(self) -> None:
        """A bus, and a rule that takes what is told to a queue."""
        self.ask("events", "create_event_bus", {"Name": self.bus})
        rule = {"Name": "told", "EventBusName": self.bus}
        self.ask("events", "put_rule", {**rule, "EventPattern": json.dumps({"source": ["durable-core"]})})
        arn = f"arn:aws:sqs:{REGION}:123456789012:{self.told_queue.rpartition('/')[2]}"
        self.ask(
            "events",
            "put_targets",
            {"Rule": "told", "EventBusName": self.bus, "Targets": [{"Id": "queue", "Arn": arn}]},
        )


def batch(*bodies: Any) -> dict[str, Any]:
    """An SQS event with these bodies; text as it is, else as JSON."""
    return {
        "Records": [
            {
                "messageId": f"m{n}",
                "body": body if isinstance(body, str) else json.dumps(body),
                "eventSource": "aws:sqs",
                "attributes": {"ApproximateReceiveCount": "1"},
            }
            for n, body in enumerate(bodies)
        ]
    }
