"""The contract of a journal as tests: a store's own tests subclass `JournalContract` and give it `journal`.

    class TestMyJournal(JournalContract):
        checks_header = False                       # only a guarded begin looks at the header: as on DynamoDB
        purges = False                              # the store removes what has expired by itself

        @pytest.fixture
        def journal(self, runner: asyncio.Runner) -> Iterator[Journal]:
            journal = MyJournal(...)
            runner.run(journal.open())
            yield journal
            runner.run(journal.close())

A journal that judges leases by a clock it is given holds to `LeaseEdges` as well. Each test runs in one event
loop, the runner's. Needs pytest and no plugin.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, ClassVar

import pytest

from durable_core.testing.journal_carrying import CarryingContract
from durable_core.testing.journal_chunk_lists import ChunkListContract
from durable_core.testing.journal_chunks import ChunkContract
from durable_core.testing.journal_damaged import DamageContract
from durable_core.testing.journal_events import EventContract
from durable_core.testing.journal_headers import HeaderContract
from durable_core.testing.journal_listing import ListingContract
from durable_core.testing.journal_pruning import PruningContract
from durable_core.testing.journal_races import RaceContract
from durable_core.testing.journal_replay import ReplayContract
from durable_core.testing.journal_segments import SegmentContract
from durable_core.testing.journal_steps import StepContract
from durable_core.testing.journal_tombstones import TombstoneContract
from durable_core.testing.journal_waking import WakingContract
from durable_core.testing.samples import (
    LEASE_MS,
    MANY,
    RUN,
    attempt,
    claim,
    committed,
    driven,
    lease_of,
    renewed,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from durable_core.journal.base import Journal
    from durable_core.testing.fake_clock import FakeClock


class JournalContract(
    HeaderContract,
    WakingContract,
    ListingContract,
    StepContract,
    ReplayContract,
    SegmentContract,
    ChunkContract,
    ChunkListContract,
    EventContract,
    PruningContract,
    TombstoneContract,
    CarryingContract,
    DamageContract,
    RaceContract,
):
    """What every journal holds to.

    Attributes:
        checks_header: Whether every `begin` and `put` requires the caller's header, or only a guarded begin.
        purges: Whether `purge` removes tombstones whose end has come, or the store itself, in its own time.
        many: How many records are more than a page of the store.
    """

    checks_header: ClassVar[bool] = True
    purges: ClassVar[bool] = True
    many: ClassVar[int] = MANY

    @pytest.fixture
    def runner(self) -> Iterator[asyncio.Runner]:
        """The event loop of one test."""
        with asyncio.Runner() as runner:
            yield runner

    @pytest.fixture
    def journal(self, runner: asyncio.Runner) -> Iterator[Journal]:
        """The store under test, empty and open: for subclasses to give."""
        raise NotImplementedError("give a journal")

    @pytest.fixture
    def rival(self, journal: Journal) -> Journal:
        """The same store as another process sees it: the same object, unless a subclass has a better one."""
        return journal

    def test_what_was_written_is_there_for_others_and_after_reopening(
        self, runner: asyncio.Runner, journal: Journal, rival: Journal
    ) -> None:
        """At once, without a further write."""

        async def written() -> None:
            me = await driven(journal)
            await journal.begin(attempt(), None, me)
            await journal.commit(committed(attempt()))
            assert await rival.step(RUN, "s") == committed(attempt())
            await journal.close()
            await journal.open()
            await journal.open()
            assert await journal.step(RUN, "s") == committed(attempt())
            assert lease_of(await journal.header(RUN)) == me

        runner.run(written())

    def test_closing_twice_is_fine(self, runner: asyncio.Runner, journal: Journal) -> None:
        """Whoever owns it may close it again."""
        runner.run(journal.close())
        runner.run(journal.close())


class LeaseEdges:
    """To the millisecond, for journals that judge leases by a clock they are given.

    A subclass gives the fixtures `runner`, `clock` and `journal`, and the journal goes by the clock.
    """

    @pytest.mark.parametrize(("past_ms", "is_free"), [(-1, False), (0, False), (1, True)])
    @pytest.mark.parametrize("by", ["create", "acquire", "renewal"])
    def test_a_lease_is_over_a_millisecond_after_its_end(
        self,
        runner: asyncio.Runner,
        journal: Journal,
        clock: FakeClock,
        by: str,
        past_ms: int,
        is_free: bool,
    ) -> None:
        """Not before, and not at its end, whichever verb it came from."""

        async def outlived() -> None:
            me = await driven(journal)
            if by == "acquire":
                clock.advance(ms=LEASE_MS + 1)
                seen = await journal.header(RUN)
                assert seen is not None
                me = lease_of((await journal.acquire(seen, claim("second"))).row)
            elif by == "renewal":
                clock.advance(ms=LEASE_MS - 1)
                assert (await renewed(journal, me)).ok
            clock.advance(ms=LEASE_MS + past_ms)
            seen = await journal.header(RUN)
            assert seen is not None
            assert seen.lease_until_ms == clock.now_ms() - past_ms
            reply = await journal.acquire(seen, claim("rival"))
            assert reply.ok is is_free
            assert reply.row is not None
            assert reply.row.owner == ("rival" if is_free else me.owner)
            assert reply.row.fence == me.fence + is_free

        runner.run(outlived())

    def test_the_owner_may_renew_a_lease_that_is_over(
        self, runner: asyncio.Runner, journal: Journal, clock: FakeClock
    ) -> None:
        """As long as nobody has taken the run over."""

        async def late() -> None:
            me = await driven(journal)
            clock.advance(ms=3 * LEASE_MS)
            reply = await renewed(journal, me)
            assert reply.ok
            seen = await journal.header(RUN)
            assert seen is not None
            assert seen.lease_until_ms == clock.now_ms() + LEASE_MS
            assert not (await journal.acquire(seen, claim("rival"))).ok

        runner.run(late())
