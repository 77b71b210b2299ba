"""`sweep_runs`: what it sends for, what it lets go, and that a pass ends in its time."""

from __future__ import annotations

import asyncio
import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from durable_core import DurableWorkflowExecutor
from durable_core.aws import sweep as sweep_module
from durable_core.aws.deadline import LambdaDeadline
from durable_core.aws.metrics import Metrics
from durable_core.aws.sandbox import Handler
from durable_core.aws.sweep import GRACE_S, MOST_DUE, STALLED_AFTER_S, sweep_handler
from durable_core.clock import SystemClock
from durable_core.errors import InvalidEvent
from durable_core.local.template import read_template
from tests.alarms import exceeds, metric_lines, readings
from tests.artefacts import ROOT
from tests.functions import jobs
from tests.lambda_place import DONE, Context, Deployment, batch

DAY_S = 24 * 3600
SCHEDULED = {"version": "0", "detail-type": "Scheduled Event", "source": "aws.events", "detail": {}}


class Ahead(SystemClock):
    """The machine's clock, so many seconds ahead."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def now_ms(self) -> int:
        return super().now_ms() + round(self.seconds * 1000)


@pytest.fixture
def later(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A sweep as it will be done so many seconds from now."""

    def made(seconds: float) -> Handler[dict[str, int]]:
        sandbox = sweep_module.Sandbox
        with monkeypatch.context() as patched:
            patched.setattr(
                sweep_module, "Sandbox", lambda name, env: sandbox(name, env, clock=Ahead(seconds))
            )
            return deployment.handler(sweep_handler)

    return made


def test_a_run_whose_message_was_lost_is_sent_for_once_it_had_time_to_arrive(
    deployment: Deployment, later: Any
) -> None:
    run_id = deployment.started("lost-message", "doubled", numbers=[1])
    deployment.empty()
    assert deployment.sweep(SCHEDULED, Context())["RunsResent"] == 0
    counts = later(GRACE_S + 1)(SCHEDULED, Context())
    assert (counts["RunsResent"], counts["RunsStalled"]) == (1, 0)
    assert deployment.driven() == []
    assert deployment.status(run_id) == "COMPLETED"
    assert later(GRACE_S + 1)(SCHEDULED, Context())["RunsResent"] == 0


def test_a_long_sleep_is_ended_by_the_sweep_at_its_time(deployment: Deployment, later: Any) -> None:
    run_id = deployment.started("long-sleep", "sleepy", seconds=3600)
    deployment.driven()
    assert (deployment.sent(), deployment.delayed()) == ([], 0)
    assert later(3590)({"do": ["due"]}, Context())["RunsResent"] == 0
    assert later(3601)({"do": ["due"]}, Context())["RunsResent"] == 1
    assert deployment.sent() == [{"kind": "drive", "run_id": run_id}]
    deployment.signal({"run_id": run_id, "cancel": True}, Context())


def test_a_run_whose_driver_died_is_sent_for_when_its_lease_is_over(
    deployment: Deployment, later: Any
) -> None:
    async def dies() -> None:
        executor = DurableWorkflowExecutor(deployment.environment["DURABLE_STORE"])
        begun, journal = asyncio.Event(), executor.store.journal
        begin = journal.begin

        async def noted(*args: Any, **options: Any) -> Any:
            begun.set()
            return await begin(*args, **options)

        async def gone(*_: object, **__: object) -> Any:
            raise RuntimeError("the process is gone")

        journal.begin = noted  # type: ignore[method-assign]
        task = asyncio.create_task(executor.run(jobs.one_slow, run_id="died", seconds=60))
        await begun.wait()
        journal.leave = gone  # type: ignore[method-assign]
        task.cancel()
        await asyncio.wait((task,))
        await executor.close()

    asyncio.run(dies())
    assert deployment.status("died") == "RUNNING"
    assert deployment.sweep({"do": ["due"]}, Context())["RunsResent"] == 0
    assert later(30 + GRACE_S + 5)({"do": ["due"]}, Context())["RunsResent"] == 1
    deployment.signal({"run_id": "died", "cancel": True}, Context())


@pytest.fixture
def alarm() -> dict[str, Any]:
    """The one on stalled runs."""
    properties = read_template(ROOT / "template.yaml")["Resources"]["StalledRunsAlarm"]["Properties"]
    assert isinstance(properties, dict)
    return properties


def test_runs_that_nobody_drives_for_long_are_counted_as_stalled_and_raise_the_alarm(
    deployment: Deployment, later: Any, alarm: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    parameters = {"Stage": deployment.environment["DURABLE_STAGE"]}
    deployment.started("stalled", "doubled", numbers=[1])
    later(STALLED_AFTER_S - 5)({"do": ["due"]}, Context())
    assert readings(alarm, metric_lines(capfd.readouterr().out), parameters) == []
    assert later(STALLED_AFTER_S + 5)({"do": ["due"]}, Context())["RunsStalled"] == 1
    values = readings(alarm, metric_lines(capfd.readouterr().out), parameters)
    assert values == [1]
    assert exceeds(alarm, values)
    deployment.signal({"run_id": "stalled", "cancel": True}, Context())


@pytest.mark.parametrize(
    "changed",
    [
        {"Namespace": "Durable"},
        {"MetricName": "RunsStale"},
        {"Dimensions": []},
        {"Dimensions": [{"Name": "Stage", "Value": {"Ref": "Other"}}]},
    ],
    ids=["namespace", "name", "without-dimensions", "another-stage"],
)
def test_an_alarm_on_something_else_would_read_nothing(
    alarm: dict[str, Any], changed: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    Metrics("test", "sweep_runs", SystemClock()).put({"RunsStalled": 2})
    lines = metric_lines(capfd.readouterr().out)
    parameters = {"Stage": "test", "Other": "prod"}
    assert readings(alarm, lines, parameters) == [2]
    assert readings(alarm | changed, lines, parameters) == []


def test_many_due_runs_are_sent_for_in_batches_and_so_many_in_a_pass(
    deployment: Deployment, later: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = {deployment.started(f"many-{n}", "doubled", numbers=[]) for n in range(23)}
    deployment.empty()
    assert later(GRACE_S + 1)({"do": ["due"]}, Context())["RunsResent"] == 23
    sent = deployment.received(deployment.drive_queue, most=100)
    assert len(sent) == 23
    monkeypatch.setattr(sweep_module, "MOST_DUE", 7)
    assert later(GRACE_S + 1)({"do": ["due"]}, Context())["RunsResent"] == 7
    assert MOST_DUE >= 1000
    assert deployment.drive(batch(*({"run_id": one} for one in runs)), Context()) == DONE


def test_runs_past_their_retention_go_and_their_ids_are_free(deployment: Deployment, later: Any) -> None:
    deployment.started("old", "doubled", numbers=[1])
    deployment.driven()
    assert deployment.sweep({"do": ["prune"]}, Context())["RunsPruned"] == 0
    assert later(29 * DAY_S)({"do": ["prune"]}, Context())["RunsPruned"] == 0
    assert later(31 * DAY_S)({"do": ["prune"]}, Context())["RunsPruned"] >= 1
    deployment.started("old", "doubled", numbers=[2])
    assert deployment.driven() == []
    assert deployment.status("old") == "COMPLETED"


def test_retention_of_no_days_keeps_all(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DURABLE_RETENTION_DAYS", "0")
    sweep = deployment.handler(sweep_handler)
    assert "RunsPruned" not in sweep({"do": ["prune"]}, Context())


def test_old_orphans_go_and_blobs_of_runs_and_young_ones_stay(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment.started("with-blob", "measured", text=random.Random(7).randbytes(30_000).hex())
    bucket, sent = deployment.cloud.shared_bucket, deployment.sent()
    orphan = f"{deployment.prefix}runs/with-blob/0123456789abcdef-{'0' * 64}"
    deployment.ask("s3", "put_object", {"Bucket": bucket, "Key": orphan, "Body": b"left behind"})
    assert deployment.sweep({"do": ["sweep"]}, Context())["OrphanBlobs"] == 0  # it is young
    monkeypatch.setattr("durable_core.engine.pruning.ORPHAN_AGE_S", 0)
    assert deployment.sweep({"do": ["sweep"]}, Context())["OrphanBlobs"] == 1
    assert deployment.drive(batch(*sent), Context()) == DONE
    assert deployment.status("with-blob") == "COMPLETED"


def test_housekeeping_is_done_once_an_hour_each_time_for_another_share(deployment: Deployment) -> None:
    at = datetime(2026, 1, 2, 3, 0, tzinfo=UTC)
    assert set(deployment.sweep({**SCHEDULED, "time": at.isoformat()}, Context())) == {
        "RunsResent",
        "RunsStalled",
        "RunsPruned",
        "LateRecords",
        "OrphanBlobs",
    }
    later_time = (at + timedelta(minutes=1)).isoformat()
    assert set(deployment.sweep({**SCHEDULED, "time": later_time}, Context())) == {
        "RunsResent",
        "RunsStalled",
    }
    looked: list[str] = []
    for hour in range(24):
        sweep = sweep_module._Sweep(
            deployment.sweep.sandbox,
            LambdaDeadline(Context()),
            sweep_module.SweepRequest(time=at.replace(hour=hour)),
        )
        looked += [run_id for run_id in map(str, range(500)) if sweep._is_mine(run_id)]
    assert sorted(looked) == sorted(map(str, range(500)))  # each in just one hour of the day


def test_a_pass_ends_in_its_time_and_tells_what_it_came_to(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    async def endless(*_: object, **__: object) -> Any:
        await asyncio.Event().wait()

    monkeypatch.setattr(deployment.sweep.sandbox.executor, "prune", endless)
    counts = deployment.sweep({"do": ["due", "prune", "sweep"]}, Context(1000))
    assert set(counts) == {"RunsResent", "RunsStalled"}
    assert "sweep_cut_short" in capfd.readouterr().err
    assert deployment.sweep({"do": ["due"]}, Context(0)) == {}


@pytest.mark.parametrize("event", [{"do": ["all"]}, {"do": "due"}, {"time": "noon"}, [], "due"])
def test_a_sweep_that_cant_be_meant_is_refused(deployment: Deployment, event: Any) -> None:
    with pytest.raises(InvalidEvent):
        deployment.sweep(event, Context())
