"""The functions together: what one sends, the next is given."""

from __future__ import annotations

import json

import pytest

from durable_core.aws.drive import drive_handler
from durable_core.aws.inspect import inspect_handler
from durable_core.aws.signal import signal_handler
from durable_core.aws.start import start_handler
from durable_core.aws.sweep import sweep_handler
from tests.lambda_place import Context, Deployment, batch

JOBS = "tests.functions.jobs"
DONE = {"batchItemFailures": []}


def test_a_run_is_started_driven_told_of_and_looked_at(deployment: Deployment) -> None:
    start = deployment.handler(lambda: start_handler(workflows=JOBS))
    drive = deployment.handler(lambda: drive_handler(workflows=JOBS))
    inspect = deployment.handler(inspect_handler)
    asked = {"workflow": "doubled", "inputs": {"numbers": [1, 2]}, "run_id": "r1"}
    assert start(asked, Context()) == {"run_id": "r1", "workflow": "doubled", "status": "PENDING"}
    sent = deployment.sent()
    assert sent == [{"kind": "drive", "run_id": "r1"}]
    assert drive(batch(*sent), Context()) == DONE
    (told,) = deployment.told()
    assert (
        told.items()
        >= {"run_id": "r1", "status": "COMPLETED", "fence": 1, "counts": {"COMMITTED": 2}}.items()
    )
    assert deployment.sent() == []
    seen = inspect({"run_id": "r1"}, Context())
    assert seen["status"] == "COMPLETED"
    assert [one["step_id"] for one in seen["steps"]] == ["double", "double#2"]


def test_a_run_that_waits_is_suspended_and_woken_by_a_signal(deployment: Deployment) -> None:
    start = deployment.handler(lambda: start_handler(workflows=JOBS))
    drive = deployment.handler(lambda: drive_handler(workflows=JOBS))
    signal = deployment.handler(signal_handler)
    start({"workflow": "approved", "run_id": "r1"}, Context())
    assert drive(batch(*deployment.sent()), Context()) == DONE
    assert [told["status"] for told in deployment.told()] == ["SUSPENDED"]
    assert (deployment.sent(), deployment.delayed()) == ([], 0)
    answer = signal({"run_id": "r1", "event": "approval", "payload": {"ok": True}}, Context(request_id="e1"))
    assert answer == {"run_id": "r1", "event": "approval", "event_id": "e1"}
    assert drive(batch(*deployment.sent()), Context()) == DONE
    assert [told["status"] for told in deployment.told()] == ["COMPLETED"]


def test_a_run_longer_than_an_invocation_is_handed_over_and_no_crash_is_counted(
    deployment: Deployment, capfd: pytest.CaptureFixture[str]
) -> None:
    start = deployment.handler(lambda: start_handler(workflows=JOBS))
    drive = deployment.handler(lambda: drive_handler(workflows=JOBS))
    inspect = deployment.handler(inspect_handler)
    start({"workflow": "many_slow", "inputs": {"count": 6, "seconds": 0.4}, "run_id": "r1"}, Context())
    hops = 0
    while sent := deployment.sent():
        assert drive(batch(*sent), Context(1500)) == DONE
        hops += 1
    assert hops > 1
    seen = inspect({"run_id": "r1"}, Context())
    assert (seen["status"], seen["crashes"], seen["fence"]) == ("COMPLETED", 0, hops)
    assert {one["crashes"] for one in seen["steps"]} == {0}
    metrics = [json.loads(line) for line in capfd.readouterr().out.splitlines() if "_aws" in line]
    assert sum(line.get("HandOvers", 0) for line in metrics) == hops - 1
    assert sum(line.get("StepsCommitted", 0) for line in metrics) == 6


def test_a_sweep_sends_for_a_run_whose_message_was_lost(deployment: Deployment) -> None:
    start = deployment.handler(lambda: start_handler(workflows=JOBS))
    drive = deployment.handler(lambda: drive_handler(workflows=JOBS))
    sweep = deployment.handler(sweep_handler)
    start({"workflow": "sleepy", "inputs": {"seconds": 7}, "run_id": "r1"}, Context())
    assert drive(batch(*deployment.sent()), Context()) == DONE
    assert deployment.delayed() == 1
    assert sweep({"do": ["due"]}, Context())["RunsResent"] == 0
