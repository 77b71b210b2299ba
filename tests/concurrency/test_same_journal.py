"""Journals are the same: any series of verbs gets the same replies from each, and leaves the same rows."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.concurrency.same_chunks import SameChunks
from tests.postgres import PostgresServer
from tests.waiting import full


def test_journals_that_are_asked_the_same_answer_the_same_and_keep_the_same(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SameChunks, "server", postgres, raising=False)
    run_state_machine_as_test(
        SameChunks,
        settings=settings(
            max_examples=3000 if full() else 50,
            stateful_step_count=60 if full() else 40,
            deadline=None,
            derandomize=not full(),  # CI repeats itself; the full scale looks further
            database=None,
            suppress_health_check=[*HealthCheck],
        ),
    )
