"""The DynamoDB journal is the same as the one in memory that looks at headers as little."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from durable_core.aws.transport import Transport
from durable_core.journal.base import Journal
from durable_core.journal.dynamodb import DynamoJournal
from durable_core.journal.memory import MemoryJournal
from tests.cloud import ENVIRONMENT, Cloud, Lent, aws_threads, open_clients, patient
from tests.concurrency.same_chunks import SameChunks
from tests.waiting import full, until


@pytest.fixture
def lent(moto_server: Cloud, monkeypatch: pytest.MonkeyPatch) -> Iterator[Transport]:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    made = moto_server.transport("boto3")
    with patient():
        yield Lent(made)
    made.close_now()
    until(lambda: not aws_threads(), "the threads of transports to end")
    assert open_clients() == []


@pytest.mark.parametrize("page_items", [None, 2])
def test_dynamodb_answers_as_memory_does(lent: Transport, moto_server: Cloud, page_items: int | None) -> None:
    """Whatever is asked in whatever order; in pages of whatever size."""

    class SameAsInMemory(SameChunks):
        def __init__(self) -> None:
            self.table = moto_server.new_table(lent)
            super().__init__()

        def made(self, folder: Path) -> dict[str, Journal]:
            return {
                "memory": MemoryJournal(self.clock, checks_header=False),
                "dynamodb": DynamoJournal(lent, self.table, clock=self.clock, page_items=page_items),
            }

        def purge(self) -> None:
            """DynamoDB does so itself, in its own time."""

        def teardown(self) -> None:
            super().teardown()
            lent.call_now("dynamodb", "delete_table", {"TableName": self.table})

    run_state_machine_as_test(
        SameAsInMemory,
        settings=settings(
            max_examples=100 if full() else 2,
            stateful_step_count=50 if full() else 20,
            deadline=None,
            derandomize=not full(),
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
