"""The local cloud does with functions and messages what Lambda does: under the emulator, and without it."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from durable_core.errors import UsageError
from durable_core.local.cloud import LocalCloud, LocalSettings
from durable_core.local.sandbox import Answer
from tests.artefacts import ROOT, sam_python
from tests.infra.small_project import TEMPLATE, make_project
from tests.waiting import until

# Importing boto3 on a busy machine counts against the emulator's time-out, so those of queues have enough.
TIMEOUT_S = 5
VISIBLE_S = 2


@pytest.fixture(scope="module", params=["emulator", "plain"])
def cloud(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCloud]:
    folder = make_project(tmp_path_factory.mktemp("project"))
    if request.param == "emulator":
        (folder / ".venv-sam").symlink_to(sam_python().parents[1])
    settings = LocalSettings(
        project=folder,
        from_source=True,
        plain=request.param == "plain",
        parameters={"Greeting": "Ada"},
        timeouts_s={"Batch": 30, "Loop": 30, "Allowed": 30},
        visibility_s={"BatchQueue": VISIBLE_S},
        every_s=0.5,
        logs=folder / "logs",
    )
    with LocalCloud(settings) as cloud:
        yield cloud


def logged(cloud: LocalCloud, function: str, pattern: str) -> list[str]:
    """What a pattern finds in what a function has printed."""
    assert cloud._settings.logs is not None
    texts = [path.read_text() for path in cloud._settings.logs.glob(f"LOCAL-{function}-*.log")]
    return [found for text in texts for found in re.findall(pattern, text)]


def send(cloud: LocalCloud, queue: str, *bodies: dict[str, Any]) -> None:
    client = cloud.aws.client("sqs")
    for body in bodies:
        client.send_message(QueueUrl=cloud.outputs[f"{queue}Ref"], MessageBody=json.dumps(body))


def letters(cloud: LocalCloud) -> list[dict[str, Any]]:
    """Takes what is in the dead letters."""
    client, found = cloud.aws.client("sqs"), []
    while True:
        reply = client.receive_message(QueueUrl=cloud.outputs["LettersRef"], MaxNumberOfMessages=10)
        for message in reply.get("Messages", ()):
            found.append(json.loads(message["Body"]))
            client.delete_message(
                QueueUrl=cloud.outputs["LettersRef"], ReceiptHandle=message["ReceiptHandle"]
            )
        if not reply.get("Messages"):
            return found


def post(url: str, body: bytes, **headers: str) -> tuple[int, Any, Any]:
    request = urllib.request.Request(url, body, {"Content-Type": "application/json", **headers})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            text = answer.read()
            return answer.status, json.loads(text) if text else None, answer.headers
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read()), error.headers


@pytest.mark.slow
def test_a_function_gets_the_event_a_context_and_the_variables_of_the_template(cloud: LocalCloud) -> None:
    answer = cloud.functions["Echo"].invoke({"text": "ä", "n": [1.5, None]})
    assert answer.failure is None
    assert answer.payload["event"] == {"text": "ä", "n": [1.5, None]}
    assert answer.payload["greeting"] == "Ada"
    assert answer.payload["name"] == "Echo"
    assert 0 < answer.payload["left_ms"] <= TIMEOUT_S * 1000
    assert answer.payload["request_id"]


@pytest.mark.slow
def test_a_sandbox_is_reused_after_an_error_and_replaced_after_its_end(cloud: LocalCloud) -> None:
    echo = cloud.functions["Echo"]
    first = echo.invoke({})
    raised = echo.invoke({"do": "raise"})
    assert (raised.failure, raised.payload["errorType"]) == ("error", "ValueError")
    assert echo.invoke({}).payload["pid"] == first.payload["pid"]
    assert echo.invoke({"do": "exit"}).failure == "crash"
    assert echo.invoke({}).payload["pid"] != first.payload["pid"]


@pytest.mark.slow
def test_a_function_is_killed_at_its_time_out(cloud: LocalCloud) -> None:
    echo = cloud.functions["Echo"]
    before = echo.invoke({}).payload["pid"]
    answer = echo.invoke({"do": "sleep", "s": 60})
    assert answer == Answer("timeout", f"Task timed out after {TIMEOUT_S}.00 seconds")
    after = echo.invoke({}).payload["pid"]
    assert after != before
    until(lambda: not _runs(before), "the process to be gone")


@pytest.mark.slow
def test_only_failed_messages_come_again_and_end_in_the_dead_letters(cloud: LocalCloud) -> None:
    letters(cloud)
    send(cloud, "BatchQueue", *({"n": n, "fails": n == 3} for n in range(6)))
    until(lambda: letters(cloud) == [{"n": 3, "fails": True}], "the dead letter", limit_s=60)
    seen = logged(cloud, "Batch", r"record (\d) (\d)")
    assert sorted(set(seen)) == [
        ("0", "1"),
        ("1", "1"),
        ("2", "1"),
        ("3", "1"),
        ("3", "2"),
        ("4", "1"),
        ("5", "1"),
    ]


@pytest.mark.slow
def test_no_more_sandboxes_run_at_once_than_the_template_allows(cloud: LocalCloud) -> None:
    send(cloud, "BatchQueue", *({"n": n, "s": 0.2} for n in range(20, 40)))
    until(lambda: len(set(logged(cloud, "Batch", r"record ([23]\d) "))) == 20, "all messages", limit_s=60)
    assert 1 <= len(cloud.functions["Batch"].processes()) <= 2


@pytest.mark.slow
def test_a_chain_of_calls_is_stopped_after_16_unless_the_template_allows_it(cloud: LocalCloud) -> None:
    letters(cloud)
    send(cloud, "LoopQueue", {"queue": "LOOP", "left": 40})
    send(cloud, "AllowedQueue", {"queue": "ALLOWED", "left": 40})
    until(lambda: letters(cloud) == [{"queue": "LOOP", "left": 24}], "the dead letter", limit_s=60)
    assert len(logged(cloud, "Loop", r"round \d+")) == 16
    assert cloud.pollers["Loop"].stopped_loops == 1
    until(lambda: "round 0" in logged(cloud, "Allowed", r"round \d+"), "the last round", limit_s=60)
    assert cloud.pollers["Allowed"].stopped_loops == 0


@pytest.mark.slow
def test_events_on_the_bus_and_the_schedule_reach_their_functions(cloud: LocalCloud) -> None:
    entry = {"EventBusName": cloud.outputs["BusRef"], "Source": "here", "Detail": '{"n": 7}'}
    entries = [{**entry, "DetailType": "echo"}, {**entry, "DetailType": "other"}]
    cloud.aws.client("events").put_events(Entries=entries)
    until(lambda: logged(cloud, "Echo", r'"detail-type": "(\w+)"') == ["echo"], "the event", limit_s=60)
    until(lambda: len(logged(cloud, "Tick", "Scheduled Event")) >= 2, "two ticks", limit_s=60)


@pytest.mark.slow
def test_functions_are_called_over_http_as_by_an_api(cloud: LocalCloud) -> None:
    status, answer, _ = post(f"{cloud.gateway.url}/echo/A%20B?x=1", b'{"n": 1}')
    assert status == 200
    event = answer["event"]
    assert event["routeKey"] == "POST /echo/{name}"
    assert event["pathParameters"] == {"name": "A B"}
    assert event["queryStringParameters"] == {"x": "1"}
    assert event["body"] == '{"n": 1}'
    assert event["requestContext"]["http"]["method"] == "POST"
    status, answer, _ = post(f"{cloud.gateway.url}/echo/x", b"\xff\xfe")
    assert (answer["event"]["body"], answer["event"]["isBase64Encoded"]) == ("//4=", True)
    assert post(f"{cloud.gateway.url}/nothing", b"{}")[0] == 404


@pytest.mark.slow
def test_functions_are_called_as_by_lambda_itself(cloud: LocalCloud) -> None:
    import boto3

    client = boto3.client(
        "lambda",
        endpoint_url=cloud.gateway.url,
        region_name="us-east-1",
        aws_access_key_id="me",
        aws_secret_access_key="x",
    )
    try:
        answer = client.invoke(FunctionName="Echo", Payload=b'{"n": 1}')
        assert json.load(answer["Payload"])["event"] == {"n": 1}
        assert "FunctionError" not in answer
        answer = client.invoke(FunctionName="Echo", Payload=b'{"do": "raise"}')
        assert answer["FunctionError"] == "Unhandled"
        assert client.invoke(FunctionName="Echo", Payload=b"{}", InvocationType="Event")["StatusCode"] == 202
        with pytest.raises(client.exceptions.ResourceNotFoundException):
            client.invoke(FunctionName="Nobody", Payload=b"{}")
    finally:
        client.close()
    assert post(f"{cloud.gateway.url}/2015-03-31/functions/echo/invocations", b"{}")[0] == 200
    assert post(f"{cloud.gateway.url}/2015-03-31/functions/echo/invocations", b"{")[0] == 400


@pytest.mark.slow
def test_what_each_sandbox_asks_for_is_counted(cloud: LocalCloud) -> None:
    assert cloud.functions["Echo"].invoke({"do": "put"}).failure is None
    found = {(one.key_id.rpartition("-")[0], one.action) for one in cloud.aws.calls()}
    assert ("LOCAL-Echo", "s3:PutObject") in found
    resources = {one.resource for one in cloud.aws.calls() if one.key_id.startswith("LOCAL-Echo-")}
    assert resources == {f"{cloud.outputs['BucketRef']}/*"}


# ---- Starting and ending ----


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"from_source": False}, "scripts/build.sh host"),
        ({"parameters": {"Nobody": "1"}}, "no parameter Nobody"),
        ({"timeouts_s": {"Nobody": 1}}, "no function Nobody"),
        ({"visibility_s": {"Nobody": 1}}, "no queue Nobody"),
        ({"template": Path("nowhere.yaml")}, "can't be read"),
    ],
)
def test_what_cannot_be_started_is_named(tmp_path: Path, change: dict[str, Any], told: str) -> None:
    settings = {"project": make_project(tmp_path), "from_source": True, "plain": True, **change}
    with pytest.raises(UsageError) as caught:
        LocalCloud(LocalSettings(**settings))
    assert told in str(caught.value)


def test_an_emulator_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match=r"aws-lambda-rie.*scripts/sam\.sh"):
        LocalCloud(LocalSettings(project=make_project(tmp_path), from_source=True))
    monkeypatch.setenv("DURABLE_LAMBDA_EMULATOR", str(tmp_path / "none"))
    with pytest.raises(UsageError, match="DURABLE_LAMBDA_EMULATOR names"):
        LocalCloud(LocalSettings(project=tmp_path, from_source=True))


@pytest.mark.parametrize("which", ["port", "aws_port"])
def test_a_port_that_is_taken_is_named(tmp_path: Path, which: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        settings = {"project": make_project(tmp_path), "from_source": True, "plain": True, which: port}
        with pytest.raises(UsageError, match=f"the port {port} "):
            LocalCloud(LocalSettings(**settings))


def test_a_trigger_that_is_not_known_is_named(tmp_path: Path) -> None:
    project = make_project(tmp_path, TEMPLATE.replace("Type: Schedule,", "Type: Kinesis,"))
    with pytest.raises(UsageError, match="Often of Tick is of type Kinesis"):
        LocalCloud(LocalSettings(project=project, from_source=True, plain=True))


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda how: how.name)
def test_nothing_is_left_when_it_ends(how: signal.Signals, tmp_path: Path) -> None:
    project = make_project(tmp_path)
    (project / ".venv-sam").symlink_to(sam_python().parents[1])
    command = [sys.executable, "-m", "durable_core.cli", "local-cloud", "--from-source", "--json"]
    command += ["--project", str(project), "--port", "0", "--aws-port", "0", "--every", "0.2"]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        facts = json.loads(_document(process.stdout))
        invoke = f"{facts['url']}/2015-03-31/functions/Echo/invocations"
        status, answer, _ = post(invoke, b"{}")
        assert status == 200
        started = _started_with(str(project))
        assert len(started) >= 2
        process.send_signal(how)
        code = process.wait(60)
    assert code == (0 if how != signal.SIGKILL else -signal.SIGKILL)
    until(lambda: not _runs(answer["pid"]) and not _started_with(str(project)), "all to end", limit_s=30)
    until(lambda: not _answers(facts["aws"]), "the stand-in for AWS to end")
    if how != signal.SIGKILL:
        assert list(tmp_path.glob("durable-local-*")) == []


def _document(stream: Any) -> str:
    """The one JSON document on a stream that isn't at its end."""
    text = ""
    for line in stream:
        text += line
        try:
            json.loads(text)
        except ValueError:
            continue
        return text
    raise AssertionError(f"no document: {text}")


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except OSError:  # refused, or cut off while it ends
        return False


def _runs(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def _started_with(text: str) -> list[int]:
    """The sandboxes whose environment has a text."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            environment = path.read_bytes()
        except OSError:
            continue
        if text.encode() in environment and b"LAMBDA_TASK_ROOT" in environment:
            found.append(int(path.parent.name))
    return [pid for pid in found if _runs(pid)]
