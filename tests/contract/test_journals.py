"""Journals hold to their contract."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from durable_core.journal.base import Journal
from durable_core.journal.memory import MemoryJournal
from durable_core.journal.sqlite import SqliteJournal
from durable_core.stores import open_store
from durable_core.testing.fake_clock import FakeClock
from durable_core.testing.journal_contract import JournalContract, LeaseEdges


class ByFakeClock(LeaseEdges):
    @pytest.fixture
    def clock(self) -> FakeClock:
        return FakeClock()


class TestMemoryJournal(JournalContract, ByFakeClock):
    @pytest.fixture
    def journal(self, clock: FakeClock) -> Journal:
        return MemoryJournal(clock)


class TestMemoryJournalWithoutHeaderChecks(JournalContract, ByFakeClock):
    """As DynamoDB has it: only a guarded begin looks at the header."""

    checks_header = False

    @pytest.fixture
    def journal(self, clock: FakeClock) -> Journal:
        return MemoryJournal(clock, checks_header=False)


class TestSqliteJournal(JournalContract, ByFakeClock):
    @pytest.fixture
    def journal(self, runner: asyncio.Runner, tmp_path: Path, clock: FakeClock) -> Iterator[Journal]:
        yield from _open(runner, SqliteJournal(tmp_path / "runs.db", clock))

    @pytest.fixture
    def rival(
        self, runner: asyncio.Runner, journal: Journal, tmp_path: Path, clock: FakeClock
    ) -> Iterator[Journal]:
        """Over connections of its own."""
        yield from _open(runner, SqliteJournal(tmp_path / "runs.db", clock))


class TestPostgresJournal(JournalContract, ByFakeClock):
    @pytest.fixture
    def journal(self, runner: asyncio.Runner, postgres_url: str, clock: FakeClock) -> Iterator[Journal]:
        yield from _open(runner, open_store(postgres_url, clock).journal)

    @pytest.fixture
    def rival(
        self, runner: asyncio.Runner, journal: Journal, postgres_url: str, clock: FakeClock
    ) -> Iterator[Journal]:
        """Over connections of its own."""
        yield from _open(runner, open_store(postgres_url, clock).journal)


def _open(runner: asyncio.Runner, journal: Journal) -> Iterator[Journal]:
    runner.run(journal.open())
    yield journal
    runner.run(journal.close())
