"""`drive_run`: the time it has, runs that others drive, and what it says about each change."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from durable_core.aws import inbox as inbox_module
from durable_core.aws.bus import Bus
from durable_core.aws.deadline import MOST_MS, UNKNOWN_MS, LambdaDeadline, lambda_deadline
from durable_core.aws.drive import drive_handler
from durable_core.aws.transport import Service
from durable_core.clock import SystemClock
from durable_core.engine.invocation import LEASE_MARGIN_MS
from durable_core.errors import JournalUnavailable
from durable_core.testing.fake_clock import FakeClock
from tests.cloud import Lent
from tests.functions import jobs
from tests.lambda_place import DONE, Context, Deployment, batch

# ---- Time ----


class Silent:
    """A context that says nothing of the time, as some stand-ins' do."""

    function_name = "silent"


class Raising(Context):
    def get_remaining_time_in_millis(self) -> Any:
        raise RuntimeError("no time here")


TIMES: dict[str, tuple[object, int]] = {
    "zero": (Context(0), 0),
    "one": (Context(1), 1),
    "negative": (Context(-7), 0),
    "huge": (Context(10**15), MOST_MS),
    "infinite": (Context(math.inf), MOST_MS),
    "a float": (Context(1234.5), 1234),
    "none": (Context(None), UNKNOWN_MS),
    "no number": (Context(math.nan), UNKNOWN_MS),
    "text": (Context("900000"), UNKNOWN_MS),
    "true": (Context(True), UNKNOWN_MS),
    "no such method": (Silent(), UNKNOWN_MS),
    "no context": (None, UNKNOWN_MS),
}


@pytest.mark.parametrize(("context", "left_ms"), TIMES.values(), ids=TIMES.keys())
def test_whatever_the_context_says_the_deadline_and_the_lease_are_finite(
    context: object, left_ms: int
) -> None:
    clock = FakeClock()
    deadline = LambdaDeadline(context, clock)
    assert 0 <= deadline.left_s() <= left_ms / 1000
    assert deadline.left_s() >= left_ms / 1000 * 0.9 - 0.001
    assert deadline.invocation.lease_ms(clock) == left_ms + LEASE_MARGIN_MS
    assert deadline.invocation.ends_at_ms == clock.now_ms() + left_ms
    clock.advance(3600)
    assert deadline.invocation.lease_ms(clock) == LEASE_MARGIN_MS
    assert not deadline.has_time(None, is_first=True)
    assert lambda_deadline(context).left_s() <= left_ms / 1000


@pytest.mark.parametrize("left_ms", [0, -1])
def test_with_no_time_left_nothing_is_begun_and_the_message_comes_again(
    deployment: Deployment, left_ms: int
) -> None:
    run_id = deployment.started(f"no-time-{left_ms}", "doubled", numbers=[1])
    assert deployment.driven(left_ms) == [{"itemIdentifier": "m0"}]
    seen = deployment.inspect({"run_id": run_id}, Context())
    assert (seen["status"], seen["fence"], seen["steps"]) == ("PENDING", 0, [])


@pytest.mark.parametrize("context", [None, Silent(), Context(None), Context(10**15)])
def test_a_run_is_driven_whatever_else_the_context_says(deployment: Deployment, context: object) -> None:
    run_id = deployment.started(f"odd-context-{id(context)}", "doubled", numbers=[1])
    assert deployment.drive(batch(*deployment.sent()), context) == DONE
    assert deployment.status(run_id) == "COMPLETED"


def test_a_step_longer_than_the_time_out_uses_up_its_crashes_and_fails(deployment: Deployment) -> None:
    run_id = deployment.started("too-long", "one_slow", seconds=60)
    for _ in range(3):
        assert deployment.driven(1200) == []
        assert deployment.status(run_id) == "PENDING"
    assert deployment.driven(1200) == []
    seen = deployment.inspect({"run_id": run_id}, Context())
    assert (seen["status"], seen["steps"][0]["crashes"]) == ("FAILED", 3)
    assert seen["steps"][0]["error"]["type"] == "CrashLimitReached"
    assert [told["status"] for told in deployment.told()] == ["FAILED"]
    assert deployment.sent() == []


def test_a_body_that_cant_be_stopped_delays_the_next_drive_until_its_lease_is_over(
    deployment: Deployment,
) -> None:
    run_id = deployment.started("stray", "one_blocking", seconds=3)
    assert deployment.driven(600) == []
    seen = deployment.inspect({"run_id": run_id}, Context())
    assert seen["status"] == "PENDING"
    assert seen["lease_until_ms"] > 0
    assert (deployment.sent(), deployment.delayed()) == ([], 1)
    jobs.unblock.set()


# ---- Several messages, several drivers ----


def test_a_message_delivered_five_times_at_once_is_driven_by_one_at_a_time(deployment: Deployment) -> None:
    run_id = deployment.started("five", "witnessed", count=4, seconds=0.15)
    (sent,) = deployment.sent()
    jobs.witnesses.clear()
    drives = [deployment.new_drive() for _ in range(5)]
    gate = threading.Barrier(5)

    def drive(n: int) -> Any:
        gate.wait()
        return drives[n](batch(sent), Context())

    with ThreadPoolExecutor(5) as threads:
        assert list(threads.map(drive, range(5))) == [DONE] * 5
    seen = deployment.inspect({"run_id": run_id}, Context())
    assert (seen["status"], seen["fence"], seen["crashes"]) == ("COMPLETED", 1, 0)
    assert jobs.witnesses == ["begin", "end"] * 4  # never two bodies at once, and none twice
    assert [told["status"] for told in deployment.told()] == ["COMPLETED"]
    for late in drives[:2]:
        assert late(batch(sent, sent), Context()) == DONE
    assert len(jobs.witnesses) == 8


def test_three_hundred_deliveries_also_long_after_the_end_do_nothing_more(deployment: Deployment) -> None:
    run_id = deployment.started("fanned", "witnessed", count=3, seconds=0.05)
    jobs.witnesses.clear()
    event = batch(*([{"run_id": run_id}] * 10))
    drives = [deployment.new_drive() for _ in range(3)]
    with ThreadPoolExecutor(3) as threads:
        answers = list(threads.map(lambda n: drives[n % 3](event, Context()), range(30)))
    assert answers == [DONE] * 30
    assert jobs.witnesses == ["begin", "end"] * 3
    seen = deployment.inspect({"run_id": run_id}, Context())
    assert (seen["status"], seen["fence"]) == ("COMPLETED", 1)
    assert [told["status"] for told in deployment.told()] == ["COMPLETED"]


def test_a_message_that_comes_before_the_lease_of_a_dead_driver_is_over_is_done_with(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run stays due at the end of that lease, and whoever comes then takes it over, once."""
    run_id = deployment.started("died-driving", "one_slow", seconds=0.01)
    (sent,) = deployment.sent()
    dying = deployment.new_drive()
    journal = dying.sandbox.executor.store.journal

    async def gone(*_: object, **__: object) -> Any:
        raise JournalUnavailable("the sandbox is gone", waited_s=60)

    with monkeypatch.context() as patched:
        patched.setattr(journal, "commit", gone)
        patched.setattr(journal, "leave", gone)
        assert dying(batch(sent), Context(60_000)) == {"batchItemFailures": [{"itemIdentifier": "m0"}]}
    seen = deployment.inspect({"run_id": run_id}, Context())
    assert (seen["status"], seen["fence"]) == ("RUNNING", 1)
    assert deployment.drive(batch(sent), Context()) == DONE
    assert deployment.inspect({"run_id": run_id}, Context())["fence"] == 1

    class Ahead(SystemClock):
        def now_ms(self) -> int:
            return super().now_ms() + 66_000

    sandbox = inbox_module.Sandbox
    with monkeypatch.context() as patched:
        patched.setattr(inbox_module, "Sandbox", lambda *a, **k: sandbox(*a, **k, clock=Ahead()))
        later = deployment.new_drive()
    assert later(batch(sent, sent), Context()) == DONE
    seen = deployment.inspect({"run_id": run_id}, Context())
    assert (seen["status"], seen["fence"]) == ("COMPLETED", 2)
    assert [one["crashes"] for one in seen["steps"]] == [1]


def test_a_thousand_items_are_told_of_in_few_bytes(deployment: Deployment) -> None:
    """What functions answer and tell doesn't grow with what a run has made."""
    run_id = deployment.started("thousand", "mapped", count=1000)
    answer = deployment.drive(batch(*deployment.sent()), Context())
    assert answer == DONE
    assert len(json.dumps(deployment.told())) < 400
    seen = deployment.inspect({"run_id": run_id}, Context())
    assert (seen["status"], len(seen["steps"])) == ("COMPLETED", 1)
    assert len(json.dumps(seen)) < 2000


def test_a_message_for_a_run_that_is_not_there_or_over_is_done_with(deployment: Deployment) -> None:
    run_id = deployment.started("over-already", "fails")
    assert deployment.driven() == []
    deployment.told()
    assert deployment.drive(batch({"run_id": "never-was"}, {"run_id": run_id}), Context()) == DONE
    assert (deployment.told(), deployment.status(run_id)) == ([], "FAILED")


def test_a_run_that_cant_be_driven_here_stays_due_for_a_deployment_that_can(deployment: Deployment) -> None:
    """Its message is done with: the sweep sends another, and the dead letters stay for what can't be read."""
    run_id = deployment.started("of-tomorrow", "doubled", numbers=[1])
    (sent,) = deployment.sent()
    older = deployment.handler(lambda: drive_handler(workflows="tests.functions.older_jobs"))
    registered = jobs.forget("doubled")
    try:
        assert older(batch(sent), Context()) == DONE
    finally:
        jobs.remember("doubled", registered)
    assert deployment.status(run_id) == "PENDING"
    assert deployment.drive(batch(sent), Context()) == DONE
    assert deployment.status(run_id) == "COMPLETED"


# ---- What is told ----


class Deaf(Lent):
    """EventBridge answers 200 and has taken nothing, as often as is said."""

    def __init__(self, inner: Any, refusals: int) -> None:
        super().__init__(inner)
        self.refusals = refusals

    async def call(self, service: Service, operation: str, request: Mapping[str, Any]) -> dict[str, Any]:
        if service != "events" or self.refusals == 0:
            return await super().call(service, operation, request)
        self.refusals -= 1
        return {"FailedEntryCount": 1, "Entries": [{"ErrorCode": "ThrottlingException"}]}


@pytest.mark.parametrize("refusals", [1, 2, 3])
def test_an_event_that_the_bus_doesnt_take_is_put_later_and_the_run_has_ended(
    deployment: Deployment, refusals: int
) -> None:
    run_id = deployment.started(f"deaf-{refusals}", "doubled", numbers=[])
    drive = deployment.new_drive()
    transport = drive.sandbox.transport
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(transport, "_inner", Deaf(transport._inner, refusals))
        assert drive(batch(*deployment.sent()), Context()) == DONE
    assert deployment.status(run_id) == "COMPLETED"
    told = deployment.told()
    assert [one["status"] for one in told] == (["COMPLETED"] if refusals < 3 else [])
    assert deployment.delayed() == (refusals == 3)


def test_what_was_to_be_told_later_is_told_by_its_message(deployment: Deployment) -> None:
    detail = {"run_id": "r", "status": "COMPLETED", "fence": 1, "counts": {}}
    assert deployment.drive(batch({"run_id": "r", "announce": detail}), Context()) == DONE
    assert deployment.told() == [detail]


async def test_a_bus_that_takes_nothing_is_an_error_with_its_code() -> None:
    with pytest.raises(JournalUnavailable, match=r"took no event \(ThrottlingException\)"):
        await Bus(Deaf(None, 9), "bus").put({})


def test_a_run_is_released_before_anybody_is_sent_for_it(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    drive = deployment.new_drive()
    sandbox = drive.sandbox

    async def look(run_id: str, *, delay_s: float = 0) -> None:
        header = await sandbox.executor.store.journal.header(run_id)
        assert header is not None
        seen.append(f"{header.status} {header.owner}")

    monkeypatch.setattr(sandbox.dispatch, "drive", look)
    deployment.started("released-first", "many_slow", count=9, seconds=0.2)
    assert drive(batch(*deployment.sent()), Context(900)) == DONE
    assert seen == ["PENDING None"]


def test_metrics_say_what_a_drive_came_to(deployment: Deployment, capfd: pytest.CaptureFixture[str]) -> None:
    deployment.started("measured-run", "measured", text="x" * 50)
    assert deployment.driven() == []
    lines = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    (line,) = [one for one in lines if one.get("run_id") == "measured-run"]
    told = line["_aws"]["CloudWatchMetrics"]
    assert told[0]["Namespace"] == "DurableCore"
    assert told[0]["Dimensions"] == [["Stage"]]
    names = {one["Name"]: one["Unit"] for one in told[0]["Metrics"]}
    assert names == {
        "RunsStarted": "Count",
        "RunsCompleted": "Count",
        "StepsCommitted": "Count",
        "OutputBytes": "Bytes",
        "WriteUnits": "Count",
    }
    assert all(line[name] > 0 for name in names)
    assert (line["Stage"], line["function"], line["workflow"]) == ("test", "drive_run", "measured")
    assert isinstance(line["_aws"]["Timestamp"], int)
