"""Runs in the local cloud, from built functions: hand-overs, duplicates, time-outs, signals, logs."""

from __future__ import annotations

import json
import random
import time
import urllib.error
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from durable_core import DurableWorkflowExecutor
from tests.alarms import exceeds, metric_lines, readings
from tests.artefacts import ROOT
from tests.cloud import ENVIRONMENT
from tests.deployed import MANIFESTS, TIMEOUT_S, Deployed, deployed
from tests.e2e.programs.cloud_probes import MARKER, stroll
from tests.policies import unused
from tests.waiting import full, until

LAPS = 40
GIVEN = "marker-in-an-input-7719"
SENT = "marker-in-an-event-3320"
ALL = ("relay", "once", "stroll", "by-http", "by-bus", "large", "early", "cancelled", "hopeless", "blocking")
LONG_AGO = "2020-01-01T00:00:00.000Z"
AT_ONCE = 20 if full() else 6  # sandboxes; each takes a while to start


@pytest.mark.slow
def test_runs_in_the_cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One cloud for all of them: what takes long goes on while the rest is looked at."""
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    with deployed(tmp_path) as cloud:
        listen(cloud)
        cloud.start("hopeless", "hopeless", s=2 * TIMEOUT_S)
        cloud.start("hopeless", "blocking", s=2 * TIMEOUT_S, blocks=True)
        a_run_of_many_hand_overs_completes(cloud, tmp_path / "laps")
        one_id_started_many_times_is_one_run(cloud, tmp_path / "once")
        a_message_delivered_five_times_has_one_driver_at_a_time(cloud, tmp_path / "stroll")
        runs_are_started_and_signalled_over_http_and_the_bus(cloud)
        refusals_are_told(cloud)
        a_step_that_takes_longer_than_a_function_may_ends_failed(cloud)
        what_is_over_is_told_to_the_bus(cloud)
        what_is_due_is_sent_for_and_what_is_old_goes(cloud, tmp_path / "lost")
        no_payload_is_in_the_logs(cloud)
        a_map_is_shared_by_workers(cloud, tmp_path / "crowd")
        a_manifest_in_a_bucket_of_ones_own_is_read(cloud)
        assert unused(cloud.template, cloud.names, cloud.cloud.aws.calls()) == []


if full():  # at CI scale tests/infra/test_local_cloud.py sees a chain stopped, of functions that are smaller

    def test_a_run_of_hand_overs_is_stopped_where_the_template_does_not_allow_the_loop(
        tmp_path: Path,
    ) -> None:
        template = (ROOT / "template.yaml").read_text("utf-8")
        lines = [line for line in template.splitlines() if "RecursiveLoop" not in line]
        assert len(lines) < len(template.splitlines())
        with deployed(tmp_path, template="\n".join(lines), concurrency=2, every_s=3600) as cloud:
            cloud.start("relay", "relay", laps=LAPS, file=str(tmp_path / "laps"))
            poller = cloud.cloud.pollers["DriveRun"]
            until(lambda: poller.stopped_loops == 1, "the chain to be stopped", limit_s=180)
            assert len((tmp_path / "laps").read_text().splitlines()) == 16
            assert [json.loads(one)["run_id"] for one in cloud.letters()] == ["relay"]
            assert cloud.inspect("relay")["status"] == "PENDING"


def a_run_of_many_hand_overs_completes(cloud: Deployed, file: Path) -> None:
    cloud.start("relay", "relay", laps=LAPS, file=str(file))
    ended = cloud.ended("relay")
    assert (ended["status"], ended["counts"]) == ("COMPLETED", {"COMMITTED": LAPS})
    assert ended["fence"] >= LAPS
    assert ended["crashes"] == 0  # a hand-over is none
    lines = [line.split() for line in file.read_text().splitlines()]
    assert [int(number) for number, _, _ in lines] == list(range(LAPS))
    assert len({key for _, key, _ in lines}) == LAPS


def one_id_started_many_times_is_one_run(cloud: Deployed, file: Path) -> None:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = list(
            pool.map(lambda _: cloud.start("stroll", "once", steps=2, s=0.1, file=str(file)), range(20))
        )
    assert {one["run_id"] for one in answers} == {"once"}
    assert cloud.ended("once")["status"] == "COMPLETED"
    assert sorted(line.split()[0] for line in file.read_text().splitlines()) == ["0", "1"]


def a_message_delivered_five_times_has_one_driver_at_a_time(cloud: Deployed, file: Path) -> None:
    cloud.start("stroll", "stroll", steps=6, s=0.3, file=str(file))
    cloud.send_drive("stroll", times=5)
    assert cloud.ended("stroll")["status"] == "COMPLETED"
    cloud.send_drive("stroll", times=2)  # late ones find that it is over
    counted = Counter(line.split()[0] for line in file.read_text().splitlines())
    assert counted == Counter(map(str, range(6)))


def a_map_is_shared_by_workers(cloud: Deployed, file: Path) -> None:
    cloud.start("crowd", "crowd", items=40, file=str(file))
    assert cloud.ended("crowd", limit_s=180)["status"] == "COMPLETED"
    lines = [line.split() for line in file.read_text().splitlines()]
    assert sorted(int(number) for number, _ in lines) == list(range(40))


def a_manifest_in_a_bucket_of_ones_own_is_read(cloud: Deployed) -> None:
    s3 = cloud.cloud.aws.client("s3")
    s3.create_bucket(Bucket=MANIFESTS)
    s3.put_object(Bucket=MANIFESTS, Key="in/words.jsonl", Body=b'"a"\n"bb"\n"ccc"\n')
    cloud.start("listed", "listed", manifest=f"s3://{MANIFESTS}/in/words.jsonl")
    ended = cloud.ended("listed")
    assert (ended["status"], ended["counts"]) == ("COMPLETED", {"COMMITTED": 1})


def runs_are_started_and_signalled_over_http_and_the_bus(cloud: Deployed) -> None:
    start = {"workflow": "discreet", "inputs": {"secret": GIVEN}}
    assert post(cloud, "/runs", {**start, "run_id": "by-http"})[0] == 202
    put_on_bus(cloud, "durable.start", {**start, "run_id": "by-bus"})
    # Too large for the table: they go to the bucket.
    cloud.start("discreet", "large", secret=GIVEN + noise())
    cloud.start("discreet", "cancelled", secret=GIVEN)
    early = {"run_id": "early", "event": "answer", "payload": SENT, "early": True}
    cloud.call("SignalRun", early)
    cloud.start("discreet", "early", secret=GIVEN)
    for run_id in ("by-http", "by-bus", "large", "cancelled"):
        until(lambda run_id=run_id: status(cloud, run_id) == "SUSPENDED", f"{run_id} to wait", limit_s=60)
    answer = {"event": "answer", "payload": SENT}
    assert post(cloud, "/runs/by-http/signals", answer)[0] == 202
    put_on_bus(cloud, "durable.signal", {**answer, "run_id": "by-bus"})
    cloud.call("SignalRun", {**answer, "run_id": "large", "payload": SENT + noise()})
    assert cloud.call("SignalRun", {"run_id": "cancelled", "cancel": True})["status"] == "CANCELLED"
    for run_id in ("by-http", "by-bus", "large", "early"):
        assert cloud.ended(run_id)["status"] == "COMPLETED"


def refusals_are_told(cloud: Deployed) -> None:
    assert post(cloud, "/runs", {"workflow": "nobody", "inputs": {}})[0] == 404
    assert (
        post(cloud, "/runs", {"workflow": "discreet", "inputs": {"secret": 7 * GIVEN}, "more": GIVEN})[0]
        == 400
    )
    changed = {"workflow": "discreet", "run_id": "by-http", "inputs": {"secret": "another"}}
    assert post(cloud, "/runs", changed)[0] == 409
    # One message that can't be read takes no other with it; it ends in the dead letters.
    client = cloud.cloud.aws.client("sqs")
    client.send_message(QueueUrl=cloud.cloud.outputs["DriveQueueRef"], MessageBody=f"no JSON: {GIVEN}")


def a_step_that_takes_longer_than_a_function_may_ends_failed(cloud: Deployed) -> None:
    for run_id in ("hopeless", "blocking"):
        ended = cloud.ended(run_id)
        assert ended["status"] == "FAILED"
        assert ended["error"]["code"] == "CRASH_LIMIT_REACHED"
        (step,) = ended["steps"]
        assert (step["status"], step["crashes"]) == ("FAILED", 2)
    # `blocking` holds up its whole process; the other one is handed over in time, unless the machine is busy.
    assert cloud.cloud.functions["DriveRun"].outcomes["timeout"] >= 2


def what_is_over_is_told_to_the_bus(cloud: Deployed) -> None:
    told = Counter((one["run_id"], one["status"]) for one in heard(cloud))
    for run_id in ("relay", "once", "stroll", "by-http", "by-bus", "large"):
        assert told[run_id, "COMPLETED"] == 1
    assert told["hopeless", "FAILED"] == told["blocking", "FAILED"] == told["cancelled", "CANCELLED"] == 1
    assert told["by-http", "SUSPENDED"] >= 1


def what_is_due_is_sent_for_and_what_is_old_goes(cloud: Deployed, file: Path) -> None:
    """Ages are what only a test may write: nobody waits for ninety days."""
    for run_id in ALL:
        assert status(cloud, run_id) in ("COMPLETED", "FAILED", "CANCELLED")
    age(cloud, "large", ended_at=LONG_AGO, created_at=LONG_AGO)
    lose_message(cloud, "lost", file)
    cloud.call("SweepRuns", {"do": ["due", "prune", "sweep"]})
    # This sweep or the schedule's has seen it.
    alarm = cloud.template["Resources"]["StalledRunsAlarm"]["Properties"]
    stage = cloud.template["Parameters"]["Stage"]["Default"]
    lines = metric_lines(cloud.logs(["SweepRuns"]))
    assert exceeds(alarm, readings(alarm, lines, {"Stage": stage}))
    assert cloud.ended("lost")["status"] == "COMPLETED"
    gone = cloud.cloud.functions["InspectRun"].invoke({"run_id": "large"})
    assert gone.payload["errorType"] == "RunNotFound"
    age(cloud, "large", updated_at=LONG_AGO, due_at_ms=1)
    assert cloud.call("SweepRuns", {"do": ["sweep"]}).get("LateRecords", 0) == 0


def no_payload_is_in_the_logs(cloud: Deployed) -> None:
    logs = cloud.logs()
    assert '"run_id": "by-http"' in logs or '"run_id":"by-http"' in logs
    for marker in (GIVEN, SENT, MARKER):
        assert marker not in logs


# ---- What they are made of ----


def noise() -> str:
    """Text that can't be made smaller."""
    return random.Random(7).randbytes(150_000).hex()


def age(cloud: Deployed, run_id: str, **values: str | int) -> None:
    """Writes what a header says of times."""
    names = {f"#{number}": name for number, name in enumerate(values)}
    cloud.cloud.aws.client("dynamodb").update_item(
        TableName=cloud.cloud.outputs["RunsTableRef"],
        Key={"pk": {"S": f"RUN#{run_id}"}, "sk": {"S": "RUN"}},
        UpdateExpression="SET " + ", ".join(f"{name} = :{name[1:]}" for name in names),
        ExpressionAttributeNames=names,
        ExpressionAttributeValues={
            f":{number}": {"N" if isinstance(value, int) else "S": str(value)}
            for number, value in enumerate(values.values())
        },
    )


def lose_message(cloud: Deployed, run_id: str, file: Path) -> None:
    """A run that is due for long, and that no message is on its way for: it was started from elsewhere."""
    executor = DurableWorkflowExecutor(store=cloud.cloud.store_url)
    executor.blocking.start(stroll, run_id=run_id, steps=1, s=0.1, file=str(file))
    executor.blocking.close()
    age(cloud, run_id, due_at_ms=1)


def status(cloud: Deployed, run_id: str) -> str | None:
    answer = cloud.cloud.functions["InspectRun"].invoke({"run_id": run_id})
    found: str | None = answer.payload.get("status")
    return found


def post(cloud: Deployed, path: str, body: Any) -> tuple[int, Any]:
    request = urllib.request.Request(f"{cloud.cloud.gateway.url}{path}", json.dumps(body).encode())
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def put_on_bus(cloud: Deployed, kind: str, detail: dict[str, Any]) -> None:
    entry = {"Source": "test", "DetailType": kind, "Detail": json.dumps(detail)}
    bus = cloud.cloud.outputs["EventBusRef"]
    reply = cloud.cloud.aws.client("events").put_events(Entries=[{**entry, "EventBusName": bus}])
    assert reply["FailedEntryCount"] == 0


def listen(cloud: Deployed) -> None:
    """Has a queue of the test's own told of everything that runs come to."""
    sqs, events = cloud.cloud.aws.client("sqs"), cloud.cloud.aws.client("events")
    sqs.create_queue(QueueName="heard")
    bus = cloud.cloud.outputs["EventBusRef"]
    pattern = json.dumps({"detail-type": ["durable.status"]})
    events.put_rule(Name="hear", EventBusName=bus, EventPattern=pattern)
    target = {"Id": "heard", "Arn": "arn:aws:sqs:us-east-1:123456789012:heard"}
    events.put_targets(Rule="hear", EventBusName=bus, Targets=[target])


def heard(cloud: Deployed) -> list[dict[str, Any]]:
    sqs, found = cloud.cloud.aws.client("sqs"), []
    url = sqs.get_queue_url(QueueName="heard")["QueueUrl"]
    end = time.monotonic() + 60
    while time.monotonic() < end:
        messages = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages", ())
        if not messages:
            break
        for message in messages:
            found.append(json.loads(message["Body"])["detail"])
            sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    return found
