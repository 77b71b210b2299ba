"""`work_chunk`: chunks of a map that come through a queue, are handed back, doubled, or can't be read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.lambda_place import DONE, Context, Deployment, batch


def chunks(deployment: Deployment) -> list[dict[str, Any]]:
    """The messages for `work_chunk`, taken out of its queue."""
    return [json.loads(one["Body"]) for one in deployment.received(deployment.work_queue, most=100)]


def test_a_distributed_map_goes_through_both_queues_and_each_item_is_done_once(
    deployment: Deployment, capfd: pytest.CaptureFixture[str]
) -> None:
    run_id = deployment.started("shared", "shared", count=12)
    assert deployment.driven() == []
    sent = chunks(deployment)
    assert sorted(one["chunk"] for one in sent) == [0, 1, 2]
    assert deployment.status(run_id) == "SUSPENDED"
    for one in sent:
        assert deployment.work(batch(one, one), Context()) == DONE  # each comes twice
    assert deployment.driven() == []
    assert deployment.status(run_id) == "COMPLETED"
    lines = [json.loads(line) for line in capfd.readouterr().out.splitlines() if '"work_chunk"' in line]
    assert sum(line.get("ItemsDone", 0) for line in lines) == 12
    for one in sent:  # and once more, after the end
        assert deployment.work(batch(one), Context()) == DONE
    assert [told["status"] for told in deployment.told()] == ["SUSPENDED", "COMPLETED"]


def test_a_chunk_that_is_longer_than_an_invocation_is_handed_back(deployment: Deployment) -> None:
    run_id = deployment.started("long-chunks", "shared", count=5, seconds=0.5)
    deployment.driven()
    (sent,) = chunks(deployment)
    assert deployment.work(batch(sent), Context(0)) == {"batchItemFailures": [{"itemIdentifier": "m0"}]}
    hops = 0
    while sent:
        hops += 1
        assert deployment.work(batch(sent), Context(1500, function="long-chunks")) == DONE
        sent = next(iter(chunks(deployment)), {})
        assert hops < 10
    assert hops > 2
    assert deployment.driven() == []
    assert deployment.status(run_id) == "COMPLETED"


def test_a_chunk_message_that_cant_be_read_fails_alone(deployment: Deployment) -> None:
    bad: tuple[Any, ...] = ("", {"run_id": "r"}, {"run_id": "r", "step_id": "s", "chunk": "first"})
    gone = {"run_id": "none", "step_id": "s", "chunk": 0}
    answer = deployment.work(batch(*bad, gone), Context())
    assert [one["itemIdentifier"] for one in answer["batchItemFailures"]] == ["m0", "m1", "m2"]
