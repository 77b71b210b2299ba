"""The functions together: what one sends, the next is given."""

from __future__ import annotations

import json

import pytest

from tests.lambda_place import DONE, Context, Deployment, batch


def test_a_run_is_started_driven_told_of_and_looked_at(deployment: Deployment) -> None:
    asked = {"workflow": "doubled", "inputs": {"numbers": [1, 2]}, "run_id": "first"}
    assert deployment.start(asked, Context()) == {
        "run_id": "first",
        "workflow": "doubled",
        "status": "PENDING",
    }
    sent = deployment.sent()
    assert sent == [{"kind": "drive", "run_id": "first"}]
    assert deployment.drive(batch(*sent), Context()) == DONE
    (told,) = deployment.told()
    assert set(told) == {"run_id", "workflow", "status", "fence", "counts", "at"}
    assert (told["run_id"], told["status"], told["counts"]) == ("first", "COMPLETED", {"COMMITTED": 2})
    assert deployment.sent() == []
    seen = deployment.inspect({"run_id": "first"}, Context())
    assert seen["status"] == "COMPLETED"
    assert [one["step_id"] for one in seen["steps"]] == ["double", "double#2"]


def test_a_run_that_waits_is_suspended_and_woken_by_a_signal(deployment: Deployment) -> None:
    deployment.started("waits", "approved")
    assert deployment.driven() == []
    assert [told["status"] for told in deployment.told()] == ["SUSPENDED"]
    assert (deployment.sent(), deployment.delayed()) == ([], 0)  # an hour is the sweep's business
    asked = {"run_id": "waits", "event": "approval", "payload": {"ok": True}}
    answer = deployment.signal(asked, Context(request_id="e1"))
    assert answer == {"run_id": "waits", "event": "approval", "event_id": "e1"}
    assert deployment.driven() == []
    assert [told["status"] for told in deployment.told()] == ["COMPLETED"]


def test_a_run_longer_than_an_invocation_is_handed_over_and_no_crash_is_counted(
    deployment: Deployment, capfd: pytest.CaptureFixture[str]
) -> None:
    deployment.started("long", "many_slow", count=6, seconds=0.3)
    hops = 0
    while deployment.status("long") != "COMPLETED":
        assert deployment.driven(1200) == []
        hops += 1
    assert hops > 1
    seen = deployment.inspect({"run_id": "long"}, Context())
    assert (seen["crashes"], seen["fence"]) == (0, hops)
    assert {one["crashes"] for one in seen["steps"]} == {0}
    assert [told["status"] for told in deployment.told()] == ["COMPLETED"]
    metrics = [json.loads(line) for line in capfd.readouterr().out.splitlines() if "_aws" in line]
    assert sum(line.get("HandOvers", 0) for line in metrics) == hops - 1
    assert sum(line.get("StepsCommitted", 0) for line in metrics) == 6


def test_a_short_sleep_is_a_delayed_message_and_a_message_before_its_time_is_sent_again(
    deployment: Deployment,
) -> None:
    deployment.started("short", "sleepy", seconds=6)
    assert deployment.driven() == []
    assert (deployment.sent(), deployment.delayed()) == ([], 1)
    fence = deployment.inspect({"run_id": "short"}, Context())["fence"]
    assert deployment.drive(batch({"run_id": "short"}), Context()) == DONE
    seen = deployment.inspect({"run_id": "short"}, Context())
    assert (seen["status"], seen["fence"], deployment.delayed()) == ("SUSPENDED", fence, 2)


def test_each_change_is_told_of_once_however_often_a_message_comes(deployment: Deployment) -> None:
    deployment.started("changes", "naps_and_fails")
    for _ in range(3):  # each message twice: as at-least-once delivery may have it
        sent = deployment.sent() or [{"run_id": "changes"}]
        assert deployment.drive(batch(*sent, *sent), Context()) == DONE
        if deployment.status("changes") == "SUSPENDED":
            asked = {"run_id": "changes", "event": "go", "payload": None}
            deployment.signal(asked, Context())
    assert [told["status"] for told in deployment.told()] == ["SUSPENDED", "FAILED"]
