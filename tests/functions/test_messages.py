"""What comes through SQS and what is sent there: bad messages, doubled ones, batches that go half-way."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from durable_core.aws.queue import SqsDispatch
from durable_core.aws.transport import Service
from durable_core.errors import InvalidEvent, JournalUnavailable, UsageError
from tests.cloud import Lent
from tests.lambda_place import DONE, TIME_OUT_MS, Context, Deployment, arn_of, batch

NOTIFICATION = {"Type": "Notification", "MessageId": "n1", "TopicArn": "arn:aws:sns:x:1:t"}
EVENT = {"version": "0", "id": "e1", "detail-type": "drive this", "source": "us"}

POISON: dict[str, Any] = {
    "empty": "",
    "blank": "  ",
    "no JSON": "{run_id: 1",
    "a number": "7",
    "a list": '["run_id"]',
    "null": "null",
    "nested too deeply": "[" * 100_000,
    "no run id": {"kind": "drive"},
    "a run id of another type": {"run_id": 7},
    "a run id that is a path": {"run_id": "../r1"},
    "an empty run id": {"run_id": ""},
    "another kind": {"kind": "launch", "run_id": "r1"},
    "a notification without JSON": {**NOTIFICATION, "Message": "hello"},
    "a notification with a number": {**NOTIFICATION, "Message": 7},
    "an event without an object": {**EVENT, "detail": []},
}


def failed(*ids: str) -> dict[str, list[dict[str, str]]]:
    return {"batchItemFailures": [{"itemIdentifier": one} for one in ids]}


@pytest.mark.parametrize("body", POISON.values(), ids=POISON.keys())
def test_a_message_that_cant_be_read_fails_alone(deployment: Deployment, body: Any) -> None:
    first = deployment.started("beside-poison-1", "doubled", numbers=[1])
    last = deployment.started("beside-poison-2", "doubled", numbers=[1])
    event = batch({"run_id": first}, body, {"run_id": last})
    assert deployment.drive(event, Context()) == failed("m1")
    assert (deployment.status(first), deployment.status(last)) == ("COMPLETED", "COMPLETED")


@pytest.mark.parametrize(
    "wrapped",
    [
        lambda sent: json.dumps(sent),
        lambda sent: sent,  # some emulators parse it
        lambda sent: json.dumps({**NOTIFICATION, "Message": json.dumps(sent)}),
        lambda sent: json.dumps({**EVENT, "detail": sent}),
        lambda sent: json.dumps({**sent, "of a later version": True}),
    ],
    ids=["as sent", "parsed", "by SNS", "by EventBridge", "with more in it"],
)
def test_a_message_is_read_however_it_is_wrapped(
    deployment: Deployment, wrapped: Callable[[dict[str, Any]], Any], request: pytest.FixtureRequest
) -> None:
    run_id = deployment.started(
        f"wrapped-{request.node.callspec.id.replace(' ', '-')}", "doubled", numbers=[3]
    )
    (sent,) = deployment.sent()
    event = batch("x")
    event["Records"][0]["body"] = wrapped(sent)
    assert deployment.drive(event, Context()) == DONE
    assert deployment.status(run_id) == "COMPLETED"


def test_a_batch_is_answered_alike_by_a_cold_and_a_warm_sandbox(deployment: Deployment) -> None:
    """Nothing of one batch is left for the next."""
    drive = deployment.new_drive()
    all_fail = batch("", "{}", "7")
    one_fails = batch({"run_id": deployment.started("alike", "doubled", numbers=[])}, "", {"run_id": "none"})
    for event, answer in (
        (all_fail, failed("m0", "m1", "m2")),
        (one_fails, failed("m1")),
        (batch({"run_id": "alike"}), DONE),
        (one_fails, failed("m1")),
        (all_fail, failed("m0", "m1", "m2")),
    ):
        assert drive(event, Context()) == answer


def test_in_a_batch_of_ten_one_bad_message_brings_none_of_the_others_back(deployment: Deployment) -> None:
    runs = [deployment.started(f"ten-{n}", "doubled", numbers=[n]) for n in range(9)]
    bodies: list[Any] = [{"run_id": run_id} for run_id in runs]
    bodies.insert(4, "poison")
    assert deployment.drive(batch(*bodies), Context()) == failed("m4")
    fences = [deployment.inspect({"run_id": run_id}, Context())["fence"] for run_id in runs]
    assert fences == [1] * 9
    assert deployment.drive(batch(*bodies), Context()) == failed("m4")  # all come again: nothing runs twice
    assert [deployment.inspect({"run_id": run_id}, Context())["fence"] for run_id in runs] == fences


def test_ids_of_a_batch_are_named_once_and_a_nameless_failure_fails_all(deployment: Deployment) -> None:
    event = batch("", "", "")
    event["Records"][1]["messageId"] = "m0"
    assert deployment.drive(event, Context()) == failed("m0", "m2")
    for missing in (None, "", 7):
        event["Records"][1]["messageId"] = missing
        with pytest.raises(InvalidEvent, match="1 messages could not be handled, and have no id"):
            deployment.drive(event, Context())
    event = batch({"run_id": deployment.started("nameless", "doubled", numbers=[])})
    del event["Records"][0]["messageId"]
    assert deployment.drive(event, Context()) == DONE  # it was dealt with: nobody has to name it


@pytest.mark.parametrize(
    "event", [None, [], "text", {}, {"Records": None}, {"Records": ["x"]}, {"run_id": "r"}]
)
def test_what_is_no_batch_is_refused(deployment: Deployment, event: Any) -> None:
    with pytest.raises(InvalidEvent, match="no batch of SQS messages"):
        deployment.drive(event, Context())


def test_an_empty_batch_is_answered(deployment: Deployment) -> None:
    assert deployment.drive({"Records": []}, Context()) == DONE


def test_a_poison_message_ends_in_the_dead_letters_and_nothing_else_does(deployment: Deployment) -> None:
    """A queue with its redrive policy, polled as Lambda polls it: what isn't named as failed is deleted."""
    dead = deployment.new_queue("dead-letters")
    policy = json.dumps({"deadLetterTargetArn": arn_of(dead), "maxReceiveCount": "2"})
    queue = deployment.new_queue("with-dead-letters", RedrivePolicy=policy, VisibilityTimeout="0")
    run_id = deployment.started("among-letters", "doubled", numbers=[1])
    for body in ("poison", json.dumps({"run_id": run_id})):
        deployment.ask("sqs", "send_message", {"QueueUrl": queue, "MessageBody": body})
    polled = 0
    while deployment.count(queue):
        polled += 1
        request = {"QueueUrl": queue, "MaxNumberOfMessages": 10}
        messages = deployment.ask("sqs", "receive_message", request).get("Messages", [])
        records = [{"messageId": one["MessageId"], "body": one["Body"]} for one in messages]
        answer = deployment.drive({"Records": records}, Context())
        kept = {one["itemIdentifier"] for one in answer["batchItemFailures"]}
        for one in messages:
            if one["MessageId"] not in kept:
                taken = {"QueueUrl": queue, "ReceiptHandle": one["ReceiptHandle"]}
                deployment.ask("sqs", "delete_message", taken)
        assert polled < 10
    assert [one["Body"] for one in deployment.received(dead)] == ["poison"]
    assert deployment.status(run_id) == "COMPLETED"


# ---- Sending ----


class HalfTaken(Lent):
    """Of each batch some entries aren't taken, as often as is said; the answer is 200 all the same."""

    def __init__(self, inner: Any, refusals: int) -> None:
        super().__init__(inner)
        self.refusals = refusals
        self.asked: list[int] = []
        self.taken: list[str] = []

    async def call(self, service: Service, operation: str, request: Mapping[str, Any]) -> dict[str, Any]:
        assert (service, operation) == ("sqs", "send_message_batch")
        entries = request["Entries"]
        self.asked.append(len(entries))
        refused = entries[1::2] if self.refusals > 0 else []
        self.refusals -= 1
        taken = [one for one in entries if one not in refused]
        self.taken += [one["MessageBody"] for one in taken]
        return {
            "Successful": [{"Id": one["Id"]} for one in taken],
            "Failed": [{"Id": one["Id"], "Code": "InternalError", "SenderFault": False} for one in refused],
        }


async def test_of_a_batch_that_is_half_taken_the_rest_alone_is_sent_again(deployment: Deployment) -> None:
    queue = HalfTaken(None, refusals=2)
    await SqsDispatch(queue, "q", "w").chunks("r", "s", range(8))
    assert queue.asked == [8, 4, 2]
    assert sorted(json.loads(body)["chunk"] for body in queue.taken) == list(range(8))
    assert len(set(queue.taken)) == 8


async def test_messages_that_are_never_taken_are_an_error_that_counts_them(deployment: Deployment) -> None:
    queue = HalfTaken(None, refusals=9)
    with pytest.raises(JournalUnavailable, match=r"took 7 of 8 messages \(InternalError\)") as caught:
        await SqsDispatch(queue, "q", "w").drive_all([f"r{n}" for n in range(8)])
    assert caught.value.retryable
    assert len(queue.taken) == 7


async def test_many_messages_go_ten_at_a_time_and_each_is_small(deployment: Deployment) -> None:
    queue = HalfTaken(None, refusals=0)
    await SqsDispatch(queue, "q", "w").chunks("r" * 128, "s" * 128, range(1001))
    assert queue.asked == [10] * 100 + [1]
    assert max(map(len, queue.taken)) < 400


async def test_a_function_without_a_queue_says_which_variable_it_lacks(deployment: Deployment) -> None:
    with pytest.raises(UsageError, match="DURABLE_WORK_QUEUE_URL"):
        await SqsDispatch(HalfTaken(None, refusals=0), "q", None).chunks("r", "s", [0])


@pytest.mark.parametrize(
    ("delay_s", "sent"), [(0, 0), (0.2, 1), (899.5, 900), (900, 900), (900.1, None), (1e12, None), (-3, 0)]
)
async def test_a_message_is_held_back_for_whole_seconds_up_to_what_sqs_can(
    delay_s: float, sent: int | None
) -> None:
    class Noted(HalfTaken):
        async def call(self, service: Service, operation: str, request: Mapping[str, Any]) -> dict[str, Any]:
            delays.append(request["Entries"][0]["DelaySeconds"])
            return await super().call(service, operation, request)

    delays: list[int] = []
    await SqsDispatch(Noted(None, refusals=0), "q", None).drive("r1", delay_s=delay_s)
    assert delays == ([] if sent is None else [sent])


def test_a_queue_that_is_gone_fails_the_message_and_the_run_stays_due(deployment: Deployment) -> None:
    run_id = deployment.started("no-queue", "many_slow", count=5, seconds=0.3)
    (sent,) = deployment.sent()
    drive = deployment.new_drive()
    deployment.ask("sqs", "delete_queue", {"QueueUrl": deployment.drive_queue})
    try:
        assert drive(batch(sent), Context(1000)) == DONE  # nothing that this message could change
    finally:
        deployment.new_queue(deployment.drive_queue.rpartition("/")[2])
    assert deployment.status(run_id) == "PENDING"
    assert drive(batch(sent), Context(TIME_OUT_MS)) == DONE
    assert deployment.status(run_id) == "COMPLETED"
