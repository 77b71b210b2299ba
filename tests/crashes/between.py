"""What lies between the Lambda functions: queues and a bus, in memory or in the stand-in for AWS."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from typing import Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary

from typing_extensions import override

from durable_core.aws.transport import Service, Transport, open_transport
from durable_core.clock import Clock
from durable_core.journal.base import Journal
from durable_core.store import Store
from durable_core.store_urls import DynamoUrl, parse_store_url
from durable_core.testing.durable_writes import Watch, WatchedJournal

DRIVE, WORK = "drive", "work"
_SENDS = {"send_message_batch": "send message", "put_events": "put event"}


class Message(NamedTuple):
    """One that is in a queue.

    Attributes:
        queue: DRIVE or WORK.
        handle: By which it is taken out.
    """

    queue: str
    handle: str
    body: str


class Between(Protocol):
    """Queues and a bus. A message stays, and is seen by all, until it is taken out."""

    transport: Transport

    def queue_url(self, queue: str) -> str:
        """What a function is told."""
        ...

    def messages(self) -> list[Message]:
        """What is in the queues now."""
        ...

    def take_out(self, message: Message) -> None:
        """It was dealt with."""
        ...


def between_of(store: Store, clock: Clock) -> Between:
    """What belongs to a watched store: the same for all processes that meet there."""
    assert isinstance(store.journal, WatchedJournal)
    named = parse_store_url(store.url)
    if isinstance(named, DynamoUrl):
        return InAws(named)
    return _of_journals.setdefault(store.journal.inner, InMemory(clock))


class Sends(Transport):
    """Sends requests to queues and a bus, and tells a watch of each."""

    def __init__(self, inner: Transport, watch: Watch) -> None:
        self._inner = inner
        self._watch = watch

    @override
    async def call(self, service: Service, operation: str, request: Mapping[str, Any]) -> dict[str, Any]:
        queue = str(request.get("QueueUrl", "")).rpartition("-")[2]
        write = self._watch.told(_SENDS[operation], queue)
        return await self._watch.made(write, lambda: self._inner.call(service, operation, request))

    @override
    def call_now(self, service: Service, operation: str, request: Mapping[str, Any]) -> dict[str, Any]:
        raise NotImplementedError

    @override
    async def close(self) -> None:
        await self._inner.close()

    @override
    def close_now(self) -> None:
        self._inner.close_now()


class InMemory(Transport):
    """Between simulated functions. What is put on the bus is read by nobody."""

    def __init__(self, clock: Clock) -> None:
        self.transport = self
        self._clock = clock
        self._numbers = count()
        self._kept: dict[str, tuple[Message, int]] = {}  # each with the time until which it is held back

    def queue_url(self, queue: str) -> str:
        return f"memory-{queue}"

    def messages(self) -> list[Message]:
        return [message for message, from_ms in self._kept.values() if from_ms <= self._clock.boot_ms()]

    def take_out(self, message: Message) -> None:
        self._kept.pop(message.handle, None)

    @override
    async def call(self, service: Service, operation: str, request: Mapping[str, Any]) -> dict[str, Any]:
        if operation == "put_events":
            return {"FailedEntryCount": 0}
        queue = request["QueueUrl"].rpartition("-")[2]
        for entry in request["Entries"]:
            handle = str(next(self._numbers))
            from_ms = self._clock.boot_ms() + entry["DelaySeconds"] * 1000
            self._kept[handle] = Message(queue, handle, entry["MessageBody"]), from_ms
        return {}

    @override
    def call_now(self, service: Service, operation: str, request: Mapping[str, Any]) -> dict[str, Any]:
        raise NotImplementedError

    @override
    async def close(self) -> None:
        pass

    @override
    def close_now(self) -> None:
        pass


class InAws:
    """Between functions whose store is in the stand-in for AWS."""

    def __init__(self, named: DynamoUrl) -> None:
        self.transport = open_transport(region=named.region, endpoint=named.endpoint, use_async=False)
        self._urls = {
            queue: self._ask("create_queue", {"QueueName": f"{named.table}-{queue}"})["QueueUrl"]
            for queue in (DRIVE, WORK)
        }

    def queue_url(self, queue: str) -> str:
        return str(self._urls[queue])

    def messages(self) -> list[Message]:
        found = []
        for queue, url in self._urls.items():
            asked = {"QueueUrl": url, "MaxNumberOfMessages": 10, "VisibilityTimeout": 0}
            received = self._ask("receive_message", asked).get("Messages", ())
            found += [Message(queue, one["ReceiptHandle"], one["Body"]) for one in received]
        return found

    def take_out(self, message: Message) -> None:
        self._ask("delete_message", {"QueueUrl": self._urls[message.queue], "ReceiptHandle": message.handle})

    def _ask(self, operation: str, request: dict[str, Any]) -> dict[str, Any]:
        return self.transport.call_now("sqs", operation, request)


_of_journals: WeakKeyDictionary[Journal, InMemory] = WeakKeyDictionary()
