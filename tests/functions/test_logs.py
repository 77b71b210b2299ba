"""What functions log and what X-Ray is told: ids on every line, payloads and secrets on none."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest

from durable_core.aws.drive import drive_handler
from durable_core.aws.signal import signal_handler
from durable_core.aws.start import start_handler
from durable_core.aws.tracing import annotate, trace_id
from durable_core.errors import UsageError
from tests.cloud import ENVIRONMENT
from tests.functions.test_requests import http
from tests.lambda_place import DONE, JOBS, Context, Deployment, batch

MARKER = "MARKER-c0ffee"
TRACE = "Root=1-67891233-abcdef012345678912345678;Parent=463ac35c9f6413ad;Sampled=1;Lineage=1:fc3b4ff1:0"


def lines_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_every_line_is_json_with_the_ids_of_its_run_and_no_payload(
    deployment: Deployment, capfd: pytest.CaptureFixture[str]
) -> None:
    start = deployment.handler(lambda: start_handler(workflows=JOBS))
    drive = deployment.handler(lambda: drive_handler(workflows=JOBS))
    signal = deployment.handler(signal_handler)
    start({"workflow": "secret", "inputs": {"text": MARKER}, "run_id": "logged"}, Context(request_id="q1"))
    assert drive(batch(*deployment.sent()), Context(request_id="q2")) == DONE
    signal({"run_id": "logged", "event": "word", "payload": {"said": MARKER}}, Context(request_id="q3"))
    assert drive(batch(*deployment.sent()), Context(request_id="q4")) == DONE
    bad = (MARKER, {"run_id": f"/{MARKER}"}, {"kind": MARKER, "run_id": "x"}, {"run_id": {"a": MARKER}})
    assert len(drive(batch(*bad), Context())["batchItemFailures"]) == len(bad)
    for body in (MARKER, {"workflow": MARKER}, {"workflow": "secret", "inputs": {"other": MARKER}}):
        assert start(http(body), Context())["statusCode"] >= 400
    with pytest.raises(UsageError):
        signal({"run_id": "logged", "event": f"/{MARKER}"}, Context())
    assert deployment.status("logged") == "COMPLETED"

    told = capfd.readouterr()
    assert MARKER not in told.out + told.err
    for secret in (ENVIRONMENT["AWS_SECRET_ACCESS_KEY"], ENVIRONMENT["AWS_ACCESS_KEY_ID"]):
        assert secret not in told.out + told.err
    lines = lines_of(told.err)
    assert {"run_id", "step_id", "attempt", "fence", "level", "timestamp", "event"} <= set.intersection(
        *map(set, lines)
    )
    by_event = {line["event"]: line for line in lines}
    told_by_step = by_event["told by the step"]
    assert (told_by_step["run_id"], told_by_step["step_id"]) == ("logged", "keeps_secret#2[2]")
    assert (told_by_step["attempt"], told_by_step["fence"], told_by_step["request_id"]) == (1, 2, "q4")
    assert by_event["told by the workflow"]["step_id"] is None
    commits = [line for line in lines if line["event"] == "step_committed"]
    assert {line["step_id"] for line in commits} == {"keeps_secret", "event.word", "keeps_secret#2"}
    assert all(line["fence"] and line["attempt"] for line in commits)
    assert {line["request_id"] for line in lines if line["event"] == "event_sent"} == {"q3"}
    for line in lines_of(told.out):
        assert "_aws" in line


def test_a_log_level_is_the_functions_own(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DURABLE_LOG_LEVEL", "error")
    drive = deployment.new_drive()
    deployment.started("quiet", "doubled", numbers=[1])
    capfd.readouterr()
    assert drive(batch(*deployment.sent()), Context()) == DONE
    assert capfd.readouterr().err == ""


# ---- X-Ray ----


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Lambda's X-Ray daemon."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listening:
        listening.bind(("127.0.0.1", 0))
        listening.settimeout(5)
        monkeypatch.setenv("AWS_XRAY_DAEMON_ADDRESS", f"127.0.0.1:{listening.getsockname()[1]}")
        monkeypatch.setenv("_X_AMZN_TRACE_ID", TRACE)
        yield listening


def test_a_drive_puts_the_ids_of_its_run_into_the_trace(
    deployment: Deployment, daemon: socket.socket, capfd: pytest.CaptureFixture[str]
) -> None:
    deployment.started("traced", "doubled", numbers=[1])
    assert deployment.driven() == []
    head, _, body = daemon.recv(65536).partition(b"\n")
    assert json.loads(head) == {"format": "json", "version": 1}
    segment = json.loads(body)
    assert (segment["type"], segment["name"]) == ("subsegment", "drive")
    assert (segment["trace_id"], segment["parent_id"]) == (
        "1-67891233-abcdef012345678912345678",
        "463ac35c9f6413ad",
    )
    assert segment["annotations"] == {"run_id": "traced", "workflow": "doubled", "status": "COMPLETED"}
    assert 0 < segment["end_time"] - segment["start_time"] < 60
    assert trace_id() == segment["trace_id"]


@pytest.mark.parametrize(
    ("trace", "address"),
    [
        (TRACE.replace("Sampled=1", "Sampled=0"), None),
        ("", None),
        ("Root=nonsense", None),
        (TRACE, ""),
        (TRACE, "nowhere"),
        (TRACE, "127.0.0.1:port"),
        (TRACE, "no.such.host.invalid:2000"),
    ],
)
def test_without_a_sampled_trace_or_a_daemon_nothing_is_sent_and_nothing_fails(
    daemon: socket.socket, monkeypatch: pytest.MonkeyPatch, trace: str, address: str | None
) -> None:
    monkeypatch.setenv("_X_AMZN_TRACE_ID", trace)
    if address is not None:
        monkeypatch.setenv("AWS_XRAY_DAEMON_ADDRESS", address)
    annotate("drive", 0.0, run_id="r")
    daemon.setblocking(False)
    with pytest.raises(BlockingIOError):
        daemon.recv(1)
