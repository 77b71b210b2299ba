"""A deployment for tests: a table, a bucket, queues and a bus in the moto server, and the functions."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from functools import cached_property
from typing import Any

from durable_core.aws.drive import drive_handler
from durable_core.aws.inspect import inspect_handler
from durable_core.aws.sandbox import Handler
from durable_core.aws.signal import signal_handler
from durable_core.aws.start import start_handler
from durable_core.aws.sweep import sweep_handler
from durable_core.aws.work import work_handler
from tests.cloud import REGION, Cloud

TIME_OUT_MS = 900_000
JOBS = "tests.functions.jobs"
DONE: dict[str, list[Any]] = {"batchItemFailures": []}


class Context:
    """What Lambda gives a handler beside the event.

    Args:
        left_ms: What it says that is left.
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
    """A store, queues and a bus, and the functions that were told of them.

    Attributes:
        environment: What the functions are told.
    """

    def __init__(self, cloud: Cloud) -> None:
        self.cloud = cloud
        self._plain = cloud.transport("boto3")
        name = uuid.uuid4().hex[:12]
        self.table = cloud.new_table(self._plain)
        self.prefix = f"{self.table}/"
        self.drive_queue = self.new_queue(f"drive-{name}")
        self.work_queue = self.new_queue(f"work-{name}")
        self.told_queue = self.new_queue(f"told-{name}")
        self.bus = f"bus-{name}"
        self._make_bus()
        self.environment = {
            "DURABLE_STORE": cloud.url(self.table, cloud.shared_bucket, prefix=self.prefix),
            "DURABLE_DRIVE_QUEUE_URL": self.drive_queue,
            "DURABLE_WORK_QUEUE_URL": self.work_queue,
            "DURABLE_EVENT_BUS": self.bus,
            "DURABLE_RETENTION_DAYS": "30",
            "DURABLE_STAGE": "test",
            "DURABLE_LOG_LEVEL": "debug",
        }
        self._handlers: list[Handler[Any]] = []

    def close(self) -> None:
        for handler in self._handlers:
            handler.close()
        self._plain.close_now()

    def ask(self, service: Any, operation: str, request: dict[str, Any]) -> dict[str, Any]:
        """One request of the test's own."""
        return self._plain.call_now(service, operation, request)

    # ---- Functions ----

    def handler(self, made: Callable[[], Handler[Any]]) -> Handler[Any]:
        """A function of the test's own, closed with the others."""
        handler = made()
        self._handlers.append(handler)
        return handler

    def new_drive(self) -> Handler[Any]:
        """Another sandbox of `drive_run`."""
        return self.handler(lambda: drive_handler(workflows=JOBS))

    @cached_property
    def start(self) -> Handler[Any]:
        return self.handler(lambda: start_handler(workflows=JOBS))

    @cached_property
    def drive(self) -> Handler[Any]:
        return self.new_drive()

    @cached_property
    def work(self) -> Handler[Any]:
        return self.handler(lambda: work_handler(workflows=JOBS))

    @cached_property
    def signal(self) -> Handler[Any]:
        return self.handler(signal_handler)

    @cached_property
    def inspect(self) -> Handler[Any]:
        return self.handler(inspect_handler)

    @cached_property
    def sweep(self) -> Handler[Any]:
        return self.handler(sweep_handler)

    def started(self, run_id: str, workflow: str, **inputs: Any) -> str:
        """Starts a run, whose message is left in the queue."""
        self.start({"workflow": workflow, "inputs": inputs, "run_id": run_id}, Context())
        return run_id

    def driven(self, left_ms: Any = TIME_OUT_MS) -> list[dict[str, str]]:
        """Has `drive_run` triggered with what is in its queue; gives what has to come again."""
        sent = self.sent()
        assert sent, "nothing was sent"
        failures: list[dict[str, str]] = self.drive(batch(*sent), Context(left_ms))["batchItemFailures"]
        return failures

    def status(self, run_id: str) -> str:
        return str(self.inspect({"run_id": run_id, "steps": 0}, Context())["status"])

    # ---- Queues ----

    def received(self, url: str, *, most: int = 10) -> list[dict[str, Any]]:
        """What is in a queue now, taken out of it."""
        found: list[dict[str, Any]] = []
        while len(found) < most:
            request = {"QueueUrl": url, "MaxNumberOfMessages": min(10, most - len(found))}
            messages = self.ask("sqs", "receive_message", request).get("Messages", [])
            if not messages:
                return found
            for message in messages:
                taken = {"QueueUrl": url, "ReceiptHandle": message["ReceiptHandle"]}
                self.ask("sqs", "delete_message", taken)
            found += messages
        return found

    def sent(self) -> list[dict[str, Any]]:
        """The messages for `drive_run` that are there now, taken out of its queue."""
        return [json.loads(one["Body"]) for one in self.received(self.drive_queue)]

    def told(self) -> list[dict[str, Any]]:
        """What EventBridge was told, taken out of the queue that its rule leads to."""
        return [json.loads(one["Body"])["detail"] for one in self.received(self.told_queue)]

    def delayed(self) -> int:
        """How many messages for `drive_run` are held back."""
        return self.count(self.drive_queue, "ApproximateNumberOfMessagesDelayed")

    def count(self, url: str, what: str = "ApproximateNumberOfMessages") -> int:
        request = {"QueueUrl": url, "AttributeNames": [what]}
        return int(self.ask("sqs", "get_queue_attributes", request)["Attributes"][what])

    def empty(self) -> None:
        """Takes everything out of the queues, also what is held back."""
        for url in (self.drive_queue, self.work_queue, self.told_queue):
            self.ask("sqs", "delete_queue", {"QueueUrl": url})
            assert self.new_queue(url.rpartition("/")[2]) == url

    def new_queue(self, name: str, **attributes: str) -> str:
        request = {"QueueName": name, "Attributes": attributes}
        return str(self.ask("sqs", "create_queue", request)["QueueUrl"])

    def _make_bus(self) -> None:
        """A bus, and a rule that takes what is told to a queue."""
        self.ask("events", "create_event_bus", {"Name": self.bus})
        rule = {"Name": "told", "EventBusName": self.bus}
        pattern = json.dumps({"source": ["durable-core"]})
        self.ask("events", "put_rule", {**rule, "EventPattern": pattern})
        target = {"Id": "queue", "Arn": arn_of(self.told_queue)}
        self.ask("events", "put_targets", {"Rule": "told", "EventBusName": self.bus, "Targets": [target]})


def arn_of(url: str) -> str:
    """Of a queue in the moto server."""
    return f"arn:aws:sqs:{REGION}:123456789012:{url.rpartition('/')[2]}"


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
