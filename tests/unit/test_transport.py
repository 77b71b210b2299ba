"""Requests to AWS: the same by either transport, in any loop, thread and process, and on bad days."""

from __future__ import annotations

import asyncio
import importlib.util
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.retries import standard

from durable_core.aws import transport as transports
from durable_core.aws import transport_async, transport_threads
from durable_core.aws.failures import ConditionRefused, NotThere
from durable_core.aws.transport import Transport, open_transport
from durable_core.errors import DurableError, JournalUnavailable, StoreMisconfigured, UsageError
from tests.cloud import REGION, TRANSPORTS, Cloud, open_clients
from tests.scripted_aws import CUT, DROP, HANG, ScriptedAws, dynamodb_error, reply, s3_error, scripted_aws

GET = {"TableName": "runs", "Key": {"pk": {"S": "RUN#r1"}, "sk": {"S": "STEP#s1"}}}
OBJECT = {"Bucket": "outputs", "Key": "runs/r1/x"}
LEASE_S = 30

Ask = Callable[..., dict[str, Any]]


@pytest.fixture
def aws(cloud: Cloud) -> Iterator[ScriptedAws]:
    with scripted_aws() as aws:
        yield aws


@pytest.fixture(params=TRANSPORTS)
def ask(request: pytest.FixtureRequest, aws: ScriptedAws, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ask]:
    """One request to the scripted server, by each transport."""
    transport = Cloud(aws.endpoint).transport(request.param)
    monkeypatch.setattr(standard.ExponentialBackoff, "delay_amount", lambda *_: 0.001)

    def ask(operation: str = "get_item", asked: Any = GET, service: Any = "dynamodb") -> dict[str, Any]:
        return asyncio.run(transport.call(service, operation, asked))

    yield ask
    asyncio.run(transport.close())


async def kept_and_read(transport: Transport, bucket: str, key: str = "k") -> bytes:
    await transport.call("s3", "put_object", {"Bucket": bucket, "Key": key, "Body": b"data"})
    got = await transport.call("s3", "get_object", {"Bucket": bucket, "Key": key})
    return bytes(got["Body"])


# ---- Loops, threads, processes ----


@pytest.mark.parametrize("kind", TRANSPORTS)
def test_a_transport_outlives_event_loops_and_leaves_nothing_open_in_them(cloud: Cloud, kind: str) -> None:
    transport, bucket = cloud.transport(kind), cloud.new_bucket()
    for _ in range(3):
        assert asyncio.run(kept_and_read(transport, bucket)) == b"data"
    with asyncio.Runner() as runner:
        for _ in range(3):
            assert runner.run(kept_and_read(transport, bucket)) == b"data"
        assert open_clients() != []
    assert transport.call_now("s3", "get_object", {"Bucket": bucket, "Key": "k"})["Body"] == b"data"
    asyncio.run(transport.close())
    assert open_clients() == []


@pytest.mark.parametrize("kind", TRANSPORTS)
async def test_one_client_serves_all_requests_of_a_loop_at_once(
    cloud: Cloud, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    real = transports.client_options

    def counted(service: str, endpoint: str | None) -> dict[str, Any]:
        made.append(service)
        return real(service, endpoint)

    for module in (transport_async, transport_threads):
        monkeypatch.setattr(module, "client_options", counted)
    transport, bucket = cloud.transport(kind), await asyncio.to_thread(cloud.new_bucket)
    made.clear()
    asked = [kept_and_read(transport, bucket, f"k{number}") for number in range(20)]
    assert await asyncio.gather(*asked) == [b"data"] * 20
    assert made == ["s3"]
    await transport.close()
    await transport.close()
    assert await kept_and_read(transport, bucket) == b"data"
    assert made == ["s3", "s3"]
    await transport.close()


@pytest.mark.parametrize("kind", TRANSPORTS)
def test_loops_in_several_threads_share_a_transport(cloud: Cloud, kind: str) -> None:
    transport, bucket = cloud.transport(kind), cloud.new_bucket()
    got: list[bytes] = []

    def use(number: int) -> None:
        got.append(asyncio.run(kept_and_read(transport, bucket, f"k{number}")))
        got.append(transport.call_now("s3", "get_object", {"Bucket": bucket, "Key": f"k{number}"})["Body"])

    threads = [threading.Thread(target=use, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == [b"data"] * 8
    asyncio.run(transport.close())


FORKING = """
import asyncio, os, sys
from durable_core.aws.transport import open_transport
from tests.cloud import open_clients

async def use(transport, name):
    await transport.call("s3", "put_object", {"Bucket": sys.argv[1], "Key": name, "Body": b"x"})
    return (await transport.call("s3", "get_object", {"Bucket": sys.argv[1], "Key": name}))["Body"]

async def forked(transport):
    await asyncio.gather(*(use(transport, f"before{n}") for n in range(5)))
    pid = os.fork()
    if pid == 0:
        asyncio.events._set_running_loop(None)
        if open_clients():
            os._exit(2)
        answers = [transport.call_now("s3", "get_object", {"Bucket": sys.argv[1], "Key": "before1"})["Body"]]
        answers += [asyncio.run(use(transport, f"child{n}")) for n in range(3)]
        os._exit(0 if answers == [b"x"] * 4 else 1)
    answers = await asyncio.gather(*(use(transport, f"after{n}") for n in range(5)))
    transport.call_now("s3", "get_object", {"Bucket": sys.argv[1], "Key": "before1"})
    code = await asyncio.to_thread(lambda: os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    answers += await asyncio.gather(*(use(transport, f"later{n}") for n in range(5)))
    await transport.close()
    return code, set(answers)

transport = open_transport(region=sys.argv[2], endpoint=sys.argv[3], use_async=sys.argv[4] == "aioboto3")
transport.call_now("s3", "put_object", {"Bucket": sys.argv[1], "Key": "k", "Body": b"x"})
assert asyncio.run(forked(transport)) == (0, {b"x"})
"""


@pytest.mark.parametrize("kind", TRANSPORTS)
def test_a_forked_child_has_connections_of_its_own(cloud: Cloud, kind: str) -> None:
    program = [sys.executable, "-W", "error::ResourceWarning", "-c", FORKING]
    done = subprocess.run(
        [*program, cloud.new_bucket(), REGION, cloud.endpoint, kind],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=Path(__file__).parents[2],
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("kind", TRANSPORTS)
def test_a_body_over_the_limit_is_not_read(cloud: Cloud, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    transport, bucket = cloud.transport(kind), cloud.new_bucket()
    for module in (transport_async, transport_threads):
        monkeypatch.setattr(module, "MAX_BODY_BYTES", 9)

    async def read(size: int) -> dict[str, Any]:
        await transport.call("s3", "put_object", {"Bucket": bucket, "Key": "k", "Body": b"x" * size})
        return await transport.call("s3", "get_object", {"Bucket": bucket, "Key": "k"})

    with asyncio.Runner() as runner:
        assert runner.run(read(9))["Body"] == b"x" * 9
        assert runner.run(read(0))["Body"] == b""
        large = runner.run(read(10))
        assert (large["Body"], large["ContentLength"]) == (None, 10)
        assert runner.run(read(9))["Body"] == b"x" * 9
        runner.run(transport.close())


# ---- Bad days ----


def test_busy_is_tried_again(ask: Ask, aws: ScriptedAws) -> None:
    aws.script = [
        dynamodb_error("ThrottlingException"),
        dynamodb_error("InternalServerError", 500),
        reply({}),
    ]
    assert "Item" not in ask()
    assert aws.asked == 3


@pytest.mark.parametrize(
    "answer",
    [
        dynamodb_error("ProvisionedThroughputExceededException"),
        dynamodb_error("SomethingNew", 503),
        DROP,
        CUT,
    ],
    ids=repr,
)
def test_what_does_not_end_is_unavailable_after_three_tries(ask: Ask, aws: ScriptedAws, answer: Any) -> None:
    aws.script = [answer]
    with pytest.raises(JournalUnavailable, match="the table runs") as caught:
        ask()
    assert "RUN#r1 STEP#s1" in str(caught.value)
    assert caught.value.retryable
    assert aws.asked == 3
    assert 0 < caught.value.waited_s < 10


def test_no_answer_is_unavailable_and_tells_how_long_it_was_waited_for(
    ask: Ask, aws: ScriptedAws, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(transports._READ_S, "dynamodb", 0.2)
    aws.script = [HANG]
    began = time.monotonic()
    with pytest.raises(JournalUnavailable) as caught:
        ask()
    assert aws.asked == 3
    assert 0.6 <= caught.value.waited_s <= time.monotonic() - began


def test_a_call_to_dynamodb_ends_well_before_a_lease_does() -> None:
    options = transports.client_options("dynamodb", None)
    tries = options["retries"]["total_max_attempts"]
    pauses_s = sum(2**one for one in range(tries - 1))  # the longest that botocore makes
    assert tries * (options["connect_timeout"] + options["read_timeout"]) + pauses_s < LEASE_S * 2 / 3


def test_nobody_there_is_unavailable(cloud: Cloud) -> None:
    for kind in TRANSPORTS:
        transport = Cloud("http://127.0.0.1:9").transport(kind)
        with pytest.raises(JournalUnavailable, match="can't be reached"):
            asyncio.run(transport.call("dynamodb", "get_item", GET))
        asyncio.run(transport.close())


CANCELLED = "TransactionCanceledException"


def cancelled(*reasons: dict[str, Any]) -> Any:
    return dynamodb_error(CANCELLED, CancellationReasons=list(reasons))


def test_a_conflict_with_another_transaction_is_tried_again(ask: Ask, aws: ScriptedAws) -> None:
    conflict = cancelled({"Code": "None"}, {"Code": "TransactionConflict"})
    aws.script = [conflict, dynamodb_error("TransactionConflictException"), conflict, reply({})]
    ask("transact_write_items", {"TransactItems": [{"Put": {"TableName": "runs", "Item": GET["Key"]}}]})
    assert aws.asked == 4


def test_a_conflict_that_does_not_end_is_unavailable(
    ask: Ask, aws: ScriptedAws, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (transport_async, transport_threads):
        monkeypatch.setattr(module, "CONFLICT_PAUSES_S", (0.001, 0.001))
    aws.script = [cancelled({"Code": "None"}, {"Code": "TransactionConflict"})]
    with pytest.raises(JournalUnavailable, match="the table runs"):
        ask("transact_write_items", {"TransactItems": [{"Put": {"TableName": "runs", "Item": GET["Key"]}}]})
    assert aws.asked == 3


def test_a_refused_condition_gives_what_stood_in_the_way_item_by_item(ask: Ask, aws: ScriptedAws) -> None:
    held = {"pk": {"S": "RUN#r1"}}
    aws.script = [
        cancelled(
            {"Code": "None"},
            {"Code": "ConditionalCheckFailed", "Item": held},
            {"Code": "ConditionalCheckFailed"},
            {"Code": "TransactionConflict"},
        )
    ]
    with pytest.raises(ConditionRefused) as caught:
        ask("transact_write_items", {"TransactItems": [{"Put": {"TableName": "runs", "Item": GET["Key"]}}]})
    assert caught.value.items == [None, held, None, None]
    assert caught.value.reasons == [
        None,
        "ConditionalCheckFailed",
        "ConditionalCheckFailed",
        "TransactionConflict",
    ]
    assert aws.asked == 1
    put = {"TableName": "runs", "Item": GET["Key"]}
    for item in (held, None):
        aws.script = [dynamodb_error("ConditionalCheckFailedException", **({"Item": item} if item else {}))]
        with pytest.raises(ConditionRefused) as caught:
            ask("put_item", put)
        assert caught.value.item == item


@pytest.mark.parametrize("status", [404, 403, 412])
def test_an_answer_of_s3_without_a_body_is_told_by_its_status(
    ask: Ask, aws: ScriptedAws, status: int
) -> None:
    aws.script = [s3_error("", status)._replace(body=b"")]
    wanted = {404: NotThere, 403: StoreMisconfigured, 412: ConditionRefused}[status]
    with pytest.raises(wanted):
        ask("get_object", OBJECT, "s3")


def test_an_object_that_breaks_off_is_unavailable(ask: Ask, aws: ScriptedAws) -> None:
    aws.script = [CUT]
    with pytest.raises(JournalUnavailable, match="the bucket outputs"):
        ask("get_object", OBJECT, "s3")


# ---- Credentials ----


def test_without_credentials_a_call_says_so(aws: ScriptedAws, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    for kind in TRANSPORTS:
        transport = Cloud(aws.endpoint).transport(kind)
        with pytest.raises(StoreMisconfigured, match="credentials") as caught:
            asyncio.run(transport.call("dynamodb", "get_item", GET))
        assert not caught.value.retryable
        asyncio.run(transport.close())


SECRETS = ("AKIAEXAMPLEEXAMPLE00", "example-secret", "example-token")


@pytest.mark.parametrize(
    "code", ["ExpiredTokenException", "UnrecognizedClientException", "InvalidSignatureException"]
)
def test_credentials_that_aws_does_not_take_are_never_shown(
    ask: Ask, aws: ScriptedAws, code: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "example-token")
    quoted = f"The Canonical String should have been 'x-amz-security-token:example-token' for {SECRETS[0]}"
    aws.script = [dynamodb_error(code, 400, quoted)]
    with pytest.raises(StoreMisconfigured, match=code) as caught:
        ask()
    assert aws.asked == 1
    told = "".join(traceback.format_exception(caught.value))
    assert [secret for secret in SECRETS if secret in told or secret in caplog.text] == []


def test_without_a_region_a_call_says_so(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name)
    for use_async in (True, False):
        transport = open_transport(use_async=use_async)
        with pytest.raises(StoreMisconfigured, match="region"):
            asyncio.run(transport.call("dynamodb", "get_item", GET))
        asyncio.run(transport.close())


# ---- What is installed ----


def test_what_is_not_installed_is_named_with_the_extra_that_brings_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    missing = {"aioboto3"}
    real = importlib.util.find_spec
    monkeypatch.setattr(transports, "find_spec", lambda name: None if name in missing else real(name))
    assert not isinstance(open_transport(), transport_async.AsyncTransport)
    with pytest.raises(UsageError, match=r"durable-core\[aws-async\]"):
        open_transport(use_async=True)
    missing.add("boto3")
    with pytest.raises(UsageError, match=r"durable-core\[aws\]"):
        open_transport()


def test_opening_a_transport_imports_no_client() -> None:
    program = (
        "import sys; from durable_core.aws.transport import open_transport\n"
        "open_transport(region='eu-central-1', endpoint=None)\n"
        "sys.exit(any(name in sys.modules for name in ('boto3', 'botocore', 'aioboto3', 'aiohttp')))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


async def test_an_error_that_is_not_of_aws_is_raised_as_it_is(cloud: Cloud) -> None:
    for kind in TRANSPORTS:
        transport = cloud.transport(kind)
        with pytest.raises(AttributeError):
            await transport.call("dynamodb", "no_such_operation", GET)
        with pytest.raises(DurableError, match="Unknown parameter"):
            await transport.call("dynamodb", "get_item", {**GET, "Odd": 1})
        await transport.close()
