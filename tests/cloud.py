"""AWS for tests: one moto server for all of them, with names of its own for each."""

from __future__ import annotations

import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import pytest

from durable_core import forking
from durable_core.aws.table import table_request
from durable_core.aws.transport import _READ_S, Service, Transport, open_transport
from durable_core.aws.transport_async import AsyncTransport
from durable_core.aws.transport_threads import ThreadTransport

REGION = "us-east-1"
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "AKIAEXAMPLEEXAMPLE00",
    "AWS_SECRET_ACCESS_KEY": "example-secret",
    "AWS_REGION": REGION,
    "AWS_DEFAULT_REGION": REGION,
    "AWS_EC2_METADATA_DISABLED": "true",
    # A developer's own profiles must not decide what a test sees.
    "AWS_CONFIG_FILE": "/dev/null",
    "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
}
TRANSPORTS = ("aioboto3", "boto3")


class Cloud:
    """A moto server.

    Attributes:
        endpoint: Its URL.
    """

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint

    def transport(self, kind: str = "aioboto3") -> ThreadTransport:
        """A transport to it, by aioboto3 or boto3."""
        made = open_transport(region=REGION, endpoint=self.endpoint, use_async=kind == "aioboto3")
        assert isinstance(made, ThreadTransport)
        return made

    @cached_property
    def shared_bucket(self) -> str:
        """A bucket for tests that keep to a prefix of their own."""
        return self.new_bucket()

    def new_bucket(self) -> str:
        """An empty bucket that no other test has."""
        name = f"bucket-{uuid.uuid4().hex[:16]}"
        self.ask("s3", "create_bucket", {"Bucket": name})
        return name

    def new_table(self, transport: Transport | None = None) -> str:
        """An empty table that no other test has, of the right shape; made by a transport that is there."""
        name = new_table_name()
        ask = transport.call_now if transport is not None else self.ask
        ask("dynamodb", "create_table", table_request(name))
        return name

    def ask(self, service: Service, operation: str, request: dict[str, Any]) -> dict[str, Any]:
        """Sends one request, in plain code."""
        transport = self.transport("boto3")
        try:
            return transport.call_now(service, operation, request)
        finally:
            transport.close_now()

    def url(self, table: str, bucket: str, **options: object) -> str:
        """The store URL of a table and a bucket in it."""
        named = {"bucket": bucket, "region": REGION, "endpoint": self.endpoint, **options}
        return f"dynamodb://{table}?" + "&".join(f"{name}={value}" for name, value in named.items())


class Lent(Transport):
    """A transport that its user doesn't close."""

    def __init__(self, inner: Transport) -> None:
        self.inner = inner

    async def call(self, service: Service, operation: str, request: Mapping[str, Any]) -> dict[str, Any]:
        return await self.inner.call(service, operation, request)

    def call_now(self, service: Service, operation: str, request: Mapping[str, Any]) -> dict[str, Any]:
        return self.inner.call_now(service, operation, request)

    async def close(self) -> None:
        pass

    def close_now(self) -> None:
        pass


@contextmanager
def patient() -> Iterator[None]:
    """Clients that are made meanwhile wait longer for an answer: moto on a busy machine isn't DynamoDB."""
    with pytest.MonkeyPatch.context() as patched:
        for service in ("dynamodb", "s3"):
            patched.setitem(_READ_S, service, 60)
        yield


@contextmanager
def running_cloud() -> Iterator[Cloud]:
    """Starts a server, and ends it."""
    with subprocess.Popen(
        [sys.executable, "-m", "durable_core.local.aws_process"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        assert port, "the moto server did not start"
        yield Cloud(f"http://127.0.0.1:{port}")
        process.stdin.close()
        process.wait(10)


def new_table_name() -> str:
    """A name that no other test has."""
    return f"runs-{uuid.uuid4().hex[:16]}"


def open_clients() -> list[str]:
    """What transports hold open now: connections of threads and of event loops, and threads."""
    found = []
    for one in forking._live:
        if isinstance(one, ThreadTransport) and one._clients:
            found.append(f"blocking clients {sorted(one._clients)}")
        if isinstance(one, AsyncTransport):
            found += [f"clients of {loop}" for loop in one._loops if not loop.is_closed()]
    return found


def aws_threads() -> list[str]:
    """The threads that transports have started and that are alive."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("durable-aws")]
