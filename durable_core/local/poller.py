"""Gives a queue's messages to a function as Lambda does.

What counts is what Lambda makes of the answer: a message is deleted if it was dealt with; all others become
visible again when their visibility time-out ends, and after too many receives the queue itself moves them to
its dead letters.
"""

from __future__ import annotations

import contextlib
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

from durable_core.local.aws_endpoint import REGION
from durable_core.local.lineage import ATTRIBUTE, MOST_HOPS, lineage_of
from durable_core.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from durable_core.local.function import LocalFunction
    from durable_core.local.sandbox import Answer

_WAIT_S: Final = 1  # of a long poll: it is also how long an end may take
_LOOK_S: Final = 0.2


class Poller:
    """Polls one queue for one function, in threads of its own.

    Args:
        function: Is invoked.
        client: Of SQS.
        queue_url: Of the queue.
        queue_arn: For the records.
        batch_size: Most messages of one invocation.
        concurrency: Most invocations at once.
        reports_failures: Whether the answer says which messages failed.
        as_event: Whether the message is the event itself: it came over a bus.

    Attributes:
        stopped_loops: How many messages were not delivered because their chain was too long.
    """

    def __init__(
        self,
        function: LocalFunction,
        client: Any,
        *,
        queue_url: str,
        queue_arn: str,
        batch_size: int = 1,
        concurrency: int = 1,
        reports_failures: bool = False,
        as_event: bool = False,
    ) -> None:
        self._function = function
        self._client = client
        self._queue_url = queue_url
        self._queue_arn = queue_arn
        self._batch_size = batch_size
        self._reports_failures = reports_failures
        self._as_event = as_event
        self._slots = threading.Semaphore(concurrency)
        self._pool = ThreadPoolExecutor(concurrency, thread_name_prefix=f"poll-{function.spec.name}")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._poll, name=f"poll-{function.spec.name}", daemon=True)
        self._log = get_logger("durable_core.local").bind(function=function.spec.name)
        self.stopped_loops = 0

    def start(self) -> None:
        """Begins to poll."""
        self._thread.start()

    def stop(self) -> None:
        """Receives nothing more; what is being delivered goes on."""
        self._stop.set()

    def join(self) -> None:
        """Waits for the end of all deliveries."""
        if self._thread.ident is not None:
            self._thread.join()
        self._pool.shutdown()

    def _poll(self) -> None:
        """Receives only when a sandbox may be used: a message that waits here would lose its visibility."""
        while not self._stop.is_set():
            if not self._slots.acquire(timeout=_LOOK_S):
                continue
            messages: Sequence[dict[str, Any]] = ()
            try:
                messages = self._received()
            finally:
                if not messages:
                    self._slots.release()
            if messages:
                self._pool.submit(self._deliver_safely, messages)

    def _received(self) -> Sequence[dict[str, Any]]:
        try:
            found: Sequence[dict[str, Any]] = self._client.receive_message(
                QueueUrl=self._queue_url,
                MaxNumberOfMessages=min(self._batch_size, 10),
                WaitTimeSeconds=_WAIT_S,
                MessageSystemAttributeNames=["All"],
                MessageAttributeNames=["All"],
            ).get("Messages", ())
        except Exception as error:  # a poller never gives up: the next try tells whether it was a hiccup
            self._log.warning("queue_unreachable", queue=self._queue_arn, reason=str(error))
            self._stop.wait(_WAIT_S)
            return ()
        return found

    def _deliver_safely(self, messages: Sequence[dict[str, Any]]) -> None:
        try:
            self._deliver(messages)
        except Exception as error:  # the messages become visible again
            self._log.warning("delivery_failed", reason=repr(error))
        finally:
            self._slots.release()

    def _deliver(self, messages: Sequence[dict[str, Any]]) -> None:
        hops: dict[str, int] = {}
        for message in messages:
            for name, count in lineage_of(message.get("Attributes", {}).get(ATTRIBUTE)).items():
                hops[name] = max(hops.get(name, 0), count)
        if hops.get(self._function.spec.name, 0) >= MOST_HOPS and not self._function.spec.loops:
            self._stop_loop(messages)
            return
        if self._as_event:
            event = json.loads(messages[0]["Body"])
        else:
            event = {"Records": [self._record(one) for one in messages]}
        answer = self._function.invoke(event, hops)
        failed = failed_ids(answer, [one["MessageId"] for one in messages], reports=self._reports_failures)
        if answer.failure:
            told = answer.payload if isinstance(answer.payload, str) else answer.payload.get("errorType")
            self._log.info("invocation_failed", failure=answer.failure, told=told)
        for message in messages:
            if message["MessageId"] not in failed:
                self._delete(message)

    def _record(self, message: dict[str, Any]) -> dict[str, Any]:
        """As Lambda shapes it: other names than SQS's own."""
        return {
            "messageId": message["MessageId"],
            "receiptHandle": message["ReceiptHandle"],
            "body": message["Body"],
            "attributes": message.get("Attributes", {}),
            "messageAttributes": {
                name: {
                    "stringValue": one.get("StringValue"),
                    "dataType": one["DataType"],
                    "stringListValues": [],
                    "binaryListValues": [],
                }
                for name, one in message.get("MessageAttributes", {}).items()
            },
            "md5OfBody": message.get("MD5OfBody"),
            "eventSource": "aws:sqs",
            "eventSourceARN": self._queue_arn,
            "awsRegion": REGION,
        }

    def _delete(self, message: dict[str, Any]) -> None:
        # Its receipt may have run out: then it comes again, as it may at any time.
        with contextlib.suppress(self._client.exceptions.ReceiptHandleIsInvalid):
            self._client.delete_message(QueueUrl=self._queue_url, ReceiptHandle=message["ReceiptHandle"])

    def _stop_loop(self, messages: Sequence[dict[str, Any]]) -> None:
        """As Lambda's recursive loop detection: the messages go to the dead letters, if there are any."""
        self._log.warning("recursive_loop_stopped", hops=MOST_HOPS, messages=len(messages))
        attributes = self._client.get_queue_attributes(
            QueueUrl=self._queue_url, AttributeNames=["RedrivePolicy"]
        ).get("Attributes", {})
        target = json.loads(attributes.get("RedrivePolicy", "{}")).get("deadLetterTargetArn")
        for message in messages:
            if target:
                url = self._client.get_queue_url(QueueName=target.rpartition(":")[2])["QueueUrl"]
                self._client.send_message(QueueUrl=url, MessageBody=message["Body"])
            self._delete(message)
        self.stopped_loops += len(messages)


def failed_ids(answer: Answer, ids: Sequence[str], *, reports: bool) -> set[str]:
    """The messages of a batch that Lambda will not delete.

    A failed invocation, or a report that can't be right, fails the whole batch; no report means success.

    Args:
        answer: Of the function.
        ids: Of the batch.
        reports: Whether the trigger has `ReportBatchItemFailures`.
    """
    if answer.failure:
        return set(ids)
    if not reports or not answer.payload:
        return set()
    if not isinstance(answer.payload, dict):
        return set(ids)
    failures = answer.payload.get("batchItemFailures") or []
    if not isinstance(failures, list) or not all(isinstance(one, dict) for one in failures):
        return set(ids)
    named = [one.get("itemIdentifier") for one in failures]
    return {str(one) for one in named} if set(named) <= set(ids) else set(ids)
