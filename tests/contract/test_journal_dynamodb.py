"""The DynamoDB journal holds to the contract, over both transports."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from durable_core.aws.transport import Transport
from durable_core.journal.base import Journal
from durable_core.journal.dynamodb import DynamoJournal
from durable_core.testing.fake_clock import FakeClock
from durable_core.testing.journal_contract import JournalContract, LeaseEdges
from tests.cloud import ENVIRONMENT, TRANSPORTS, Cloud, Lent, aws_threads, open_clients, patient
from tests.waiting import until


@pytest.fixture(scope="module", params=TRANSPORTS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def loop_of_all() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def transport(moto_server: Cloud, kind: str, loop_of_all: asyncio.Runner) -> Iterator[Transport]:
    """One for all tests, since making a client takes longer than most of them; nothing of it may be left."""
    made = moto_server.transport(kind)
    with patient():
        yield Lent(made)
    loop_of_all.run(made.close())
    until(lambda: not aws_threads(), "the threads of transports to end")
    assert open_clients() == []


class OverMoto:
    """A journal in a table of its own; over boto3 with small pages."""

    @pytest.fixture
    def runner(self, loop_of_all: asyncio.Runner) -> asyncio.Runner:
        return loop_of_all

    @pytest.fixture
    def clock(self) -> FakeClock:
        return FakeClock()

    @pytest.fixture
    def journal(
        self,
        transport: Transport,
        kind: str,
        moto_server: Cloud,
        clock: FakeClock,
        monkeypatch: pytest.MonkeyPatch,
    ) -> Iterator[Journal]:
        for name, value in ENVIRONMENT.items():
            monkeypatch.setenv(name, value)
        table = moto_server.new_table(transport)
        yield DynamoJournal(transport, table, clock=clock, page_items=7 if kind == "boto3" else None)
        transport.call_now("dynamodb", "delete_table", {"TableName": table})  # or moto gets large and slow


class TestDynamoJournal(OverMoto, JournalContract, LeaseEdges):
    """Only a guarded begin looks at the header."""

    checks_header = False
    purges = False
    many = 60
