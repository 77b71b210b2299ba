"""What all tests share: nothing of the machine or of an earlier run leaks into them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from types import ModuleType

import pytest
import structlog

from durable_core import log
from durable_core.aws.transport import Transport
from durable_core.workflow import _registered
from tests.cloud import ENVIRONMENT, Cloud, Lent, aws_threads, open_clients, patient, running_cloud
from tests.payloads import Listener
from tests.postgres import PostgresServer
from tests.system import IS_LINUX, MODULES_THAT_KILL
from tests.waiting import until

collect_ignore = [] if IS_LINUX else list(MODULES_THAT_KILL)

# A shell that starts the tests in the background has Ctrl-C ignored, and children inherit that:
# they are to be stopped by it all the same.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A developer's own settings must not decide what a test sees."""
    for name in list(os.environ):
        if name.startswith(("DURABLE_", "AWS_", "PG")):
            monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def _others_names_are_free(request: pytest.FixtureRequest) -> Iterator[None]:
    """Workflows of other tests are out of the way where they have the name of one of this test's own.

    Its own are those of its module, and of the modules that it takes something from.
    """
    near = {request.module.__name__, *(["tests.functions.jobs"] * ("functions" in request.path.parts))}
    for value in vars(request.module).values():
        name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
        if isinstance(name, str):
            near.add(name)
    hidden = []
    for found in _registered.values():
        others = [one for one in found if one.fn.__module__ not in near]
        if others and len(others) < len(found):
            found[:] = [one for one in found if one.fn.__module__ in near]
            hidden.append((found, others))
    yield
    for found, others in hidden:
        found[:0] = others


@pytest.fixture(autouse=True)
def _no_logging_is_configured() -> Iterator[None]:
    """A level that one test chose must not hide the lines that another looks for."""
    log._chosen.clear()
    log._added.clear()
    structlog.reset_defaults()
    yield
    log._chosen.clear()
    log._added.clear()
    structlog.reset_defaults()


@pytest.fixture(autouse=True)
def _no_payload_is_logged(_no_logging_is_configured: None) -> Iterator[None]:
    """Inputs, outputs, events and secrets reach no line of ours, whatever a test does."""
    heard = Listener()
    with pytest.MonkeyPatch.context() as patched:
        heard.listen(patched)
        yield
    assert heard.leaks() == []


@pytest.fixture(scope="session")
def moto_server() -> Iterator[Cloud]:
    """AWS on this machine, started when the first test needs it."""
    with running_cloud() as cloud:
        yield cloud


@pytest.fixture(scope="module")
def lent_transport(moto_server: Cloud) -> Iterator[Transport]:
    """One for the tests of a module, since making its clients takes longer than most of them."""
    made = moto_server.transport("boto3")
    with pytest.MonkeyPatch.context() as patched, patient():
        for name, value in ENVIRONMENT.items():
            patched.setenv(name, value)
        made.call_now("dynamodb", "list_tables", {})
        made.call_now("s3", "head_bucket", {"Bucket": moto_server.shared_bucket})
    yield Lent(made)
    made.close_now()
    until(lambda: not aws_threads(), "the threads of transports to end")
    assert open_clients() == []


@pytest.fixture
def cloud(moto_server: Cloud, monkeypatch: pytest.MonkeyPatch, _clean_environment: None) -> Iterator[Cloud]:
    """AWS on this machine, with credentials; whoever uses it must leave no connection open."""
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    yield moto_server
    until(lambda: not aws_threads(), "the threads of transports to end")
    assert open_clients() == []


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One server for all tests, started when the first one asks for it."""
    server = PostgresServer()
    try:
        server.start()
        yield server
    finally:
        server.remove()


@pytest.fixture
def postgres_url(postgres: PostgresServer) -> Iterator[str]:
    """A store of its own on that server; whoever uses it leaves no connection behind."""
    schema = postgres.take_schema()
    yield postgres.store(schema)
    assert postgres.connections() == 0
    postgres.give_back(schema)
