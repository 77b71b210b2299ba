"""Work that travels through SQS: what is sent, and reading what comes, one bad message at a time."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from durable_core.aws.requests import parsed_json, told_by
from durable_core.errors import InvalidEvent, InvalidId, JournalUnavailable, UsageError
from durable_core.identity import check_id

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from durable_core.aws.transport import Transport

MOST_DELAY_S: Final = 900
"""The longest that SQS holds a message back; a run that sleeps for longer is found by the sweep."""

ANNOUNCED_AFTER_S: Final = 60
"""When something is put on the bus that could not be."""

_AT_ONCE: Final = 10
_TRY_AGAIN_AFTER_S: Final = (0.1, 0.5, None)


class Message(BaseModel):
    """What a queue carries: ids.

    Attributes:
        run_id: The run that it is about.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    run_id: str

    def ids(self) -> dict[str, Any]:
        """What it is about, for log lines."""
        return {"run_id": self.run_id}


M = TypeVar("M", bound=Message)


class DriveMessage(Message):
    """Drive this run, if it is due.

    Attributes:
        announce: Put this on the bus instead: it could not be put when the run was left.
    """

    kind: Literal["drive"] = "drive"
    announce: dict[str, Any] | None = None


class ChunkMessage(Message):
    """Do this chunk of a distributed map, or what is left of it."""

    kind: Literal["chunk"] = "chunk"
    step_id: str
    chunk: int

    def ids(self) -> dict[str, Any]:
        """What it is about, for log lines."""
        return {"run_id": self.run_id, "step_id": self.step_id, "chunk": self.chunk}


class SqsDispatch:
    """Sends work on its way.

    Args:
        transport: Sends the requests.
        drive_queue_url: What `drive_run` is triggered by; None where no run is sent for.
        work_queue_url: What `work_chunk` is triggered by; None where no map is distributed.
    """

    def __init__(self, transport: Transport, drive_queue_url: str | None, work_queue_url: str | None) -> None:
        self._transport = transport
        self._drive_queue_url = drive_queue_url
        self._work_queue_url = work_queue_url

    async def drive(self, run_id: str, *, delay_s: float = 0) -> None:
        """A run may be driven on. What is further off than SQS can hold back is left to the sweep.

        Raises:
            JournalUnavailable: It could not be sent.
        """
        if delay_s <= MOST_DELAY_S:
            await self._send(self._drive_queue_url, [DriveMessage(run_id=run_id)], delay_s)

    async def drive_all(self, run_ids: Iterable[str]) -> None:
        """Many runs may be driven on.

        Raises:
            JournalUnavailable: Some could not be sent; the others were.
        """
        await self._send(self._drive_queue_url, [DriveMessage(run_id=run_id) for run_id in run_ids], 0)

    async def announce(self, run_id: str, detail: dict[str, Any]) -> None:
        """What could not be put on the bus is to be put there later.

        Raises:
            JournalUnavailable: It could not be sent.
        """
        message = DriveMessage(run_id=run_id, announce=detail)
        await self._send(self._drive_queue_url, [message], ANNOUNCED_AFTER_S)

    async def chunks(self, run_id: str, step_id: str, chunks: Sequence[int]) -> None:
        """Chunks of a map may be worked on.

        Raises:
            UsageError: This function knows no queue for that.
            JournalUnavailable: Some could not be sent; the others were.
        """
        messages = [ChunkMessage(run_id=run_id, step_id=step_id, chunk=chunk) for chunk in chunks]
        await self._send(self._work_queue_url, messages, 0)

    async def _send(
        self, url: str | None, messages: Sequence[DriveMessage | ChunkMessage], delay_s: float
    ) -> None:
        if url is None:
            raise UsageError(
                "this function knows no queue for what it has to send",
                remedy="Set DURABLE_DRIVE_QUEUE_URL and, where maps are distributed, DURABLE_WORK_QUEUE_URL",
            )
        delay = min(max(math.ceil(delay_s), 0), MOST_DELAY_S)
        bodies = [message.model_dump_json(exclude_none=True) for message in messages]
        for start in range(0, len(bodies), _AT_ONCE):
            await self._send_some(url, bodies[start : start + _AT_ONCE], delay)

    async def _send_some(self, url: str, bodies: Sequence[str], delay: int) -> None:
        """Up to ten. SQS answers 200 also if it has taken only some of them."""
        left = {str(n): body for n, body in enumerate(bodies)}
        for pause_s in _TRY_AGAIN_AFTER_S:
            entries = [{"Id": n, "MessageBody": body, "DelaySeconds": delay} for n, body in left.items()]
            reply = await self._transport.call(
                "sqs", "send_message_batch", {"QueueUrl": url, "Entries": entries}
            )
            failed = {one["Id"]: str(one.get("Code")) for one in reply.get("Failed", ())}
            left = {n: left[n] for n in failed if n in left}
            if not left:
                return
            if pause_s is None:
                raise JournalUnavailable(
                    f"the queue took {len(bodies) - len(left)} of {len(bodies)} messages"
                    f" ({', '.join(sorted(set(failed.values())))})",
                    remedy="The runs are recorded; the next sweep sends for them again",
                )
            await asyncio.sleep(pause_s)


class Received(NamedTuple):
    """One message of a batch.

    Attributes:
        message_id: SQS's; None if it came without.
        body: As it came.
    """

    message_id: str | None
    body: object


def batch_of(event: object) -> list[Received]:
    """The messages of an SQS event.

    Raises:
        InvalidEvent: It is no such event.
    """
    records = event.get("Records") if isinstance(event, dict) else None
    if not isinstance(records, list) or not all(isinstance(one, dict) for one in records):
        raise InvalidEvent("this is no batch of SQS messages", remedy="Let the queue trigger the function")
    return [Received(_id_of(record), record.get("body")) for record in records]


def message_of(received: Received, model: type[M]) -> M:
    """Reads a message: as it was sent, or as SNS or EventBridge wraps it.

    Raises:
        InvalidEvent: It is no such message.
    """
    found = _unwrapped(received.body)
    try:
        message = model.model_validate(found)
    except ValidationError as error:
        raise InvalidEvent(f"the message can't be read: {told_by(error)}") from None
    try:
        check_id(message.run_id, "run id")
    except InvalidId:  # it tells the id, which may be anything
        raise InvalidEvent("the message's run_id can't be one") from None
    return message


async def answered(
    batch: Sequence[Received], handle: Callable[[Received], Awaitable[bool]]
) -> dict[str, list[dict[str, str]]]:
    """Handles the messages one after the other, and names those that have to come again.

    Args:
        batch: The messages.
        handle: Says whether one was dealt with; raises nothing that is about that message.

    Raises:
        InvalidEvent: One that has to come again has no id: only the failure of all brings it back.
    """
    failed: dict[str, None] = {}
    nameless = 0
    for received in batch:
        if await handle(received):
            continue
        if received.message_id is None:
            nameless += 1
        else:
            failed[received.message_id] = None
    if nameless:
        raise InvalidEvent(f"{nameless} messages could not be handled, and have no id to be named by")
    return {"batchItemFailures": [{"itemIdentifier": message_id} for message_id in failed]}


def _id_of(record: Mapping[str, Any]) -> str | None:
    found = record.get("messageId")
    return found if isinstance(found, str) and found else None


def _unwrapped(body: object) -> object:
    """What was sent, from what SNS or EventBridge made of it."""
    found = parsed_json(body) if isinstance(body, str | bytes) else body
    if not isinstance(found, dict):
        raise InvalidEvent("the message is no JSON object")
    if found.get("Type") == "Notification" and "Message" in found:
        return parsed_json(found["Message"])
    if "detail-type" in found and "detail" in found:
        return found["detail"]
    return found
