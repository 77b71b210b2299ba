"""The contract of the chunks of a shared map: one owner at a time. Part of `JournalContract`."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from durable_core.journal.base import Departure
from durable_core.journal.chunks import ChunkDeparture, ChunkLease
from durable_core.records import (
    ACTIVE,
    COMPLETED,
    FAILED,
    PENDING,
    RUNNING,
    SUSPENDED,
    Chunk,
)
from durable_core.testing.samples import (
    AT,
    LEASE_MS,
    OVER_MS,
    RUN,
    chunk,
    chunk_lease,
    driven,
    gathered,
    lease_of,
    seen_now,
)

if TYPE_CHECKING:
    from durable_core.journal.base import Journal
    from durable_core.records import Reply

EVERY_COLUMN = Chunk(
    RUN, "a/m#2", 12_345, 4, 5, RUNNING, "me", '{"pid":1}', 0, 2**40, 7, '{"4":true}', '{"code":"X"}', AT
)
LEFT = ChunkDeparture(status=COMPLETED, succeeded=90, failed=10, updated_at=AT)


async def renewed(journal: Journal, lease: ChunkLease, lease_ms: int = LEASE_MS) -> Reply[Chunk]:
    """What a renewal comes to, in a thread."""

    def renew() -> Reply[Chunk]:
        renewer = journal.open_renewer()
        try:
            return renewer.renew_chunk(lease, lease_ms)
        finally:
            renewer.close()

    return await asyncio.to_thread(renew)


class ChunkContract:
    """What every journal holds to when chunks are claimed and left."""

    # ---- claim ----

    def test_a_chunk_comes_back_as_it_was_claimed(self, runner: asyncio.Runner, journal: Journal) -> None:
        """Each column told apart from the others; only the end of the lease is the store's."""

        async def claimed() -> None:
            reply = await journal.claim(EVERY_COLUMN, None, LEASE_MS)
            assert reply.ok
            there = await journal.chunk(RUN, "a/m#2", 12_345)
            assert there is not None
            assert there._replace(lease_until_ms=0) == EVERY_COLUMN
            assert there.lease_until_ms > 0
            assert reply.row == there
            assert await gathered(journal.chunks(RUN, "a/m#2")) == [there]

        runner.run(claimed())

    def test_a_chunk_that_nobody_has_claimed_is_not_there(
        self, runner: asyncio.Runner, journal: Journal
    ) -> None:
        """Neither by itself nor among the others of its map."""

        async def looked() -> None:
            assert await journal.chunk(RUN, "m", 0) is None
            assert await gathered(journal.chunks(RUN, "m")) == []

        runner.run(looked())

    def test_of_two_that_claim_a_new_chunk_one_gets_it(
        self, runner: asyncio.Runner, journal: Journal, rival: Journal
    ) -> None:
        """The other finds it there; whoever lost the reply finds its own owner."""

        async def raced() -> None:
            replies = await asyncio.gather(
                journal.claim(chunk(owner="a"), None, LEASE_MS), rival.claim(chunk(owner="b"), None, LEASE_MS)
            )
            assert sorted(reply.ok for reply in replies) == [False, True]
            there = await journal.chunk(RUN, "m", 0)
            assert there is not None
            again = await journal.claim(chunk(owner=there.owner or ""), None, LEASE_MS)
            assert not again.ok
            assert all(
                reply.row is not None and reply.row.owner == there.owner for reply in (*replies, again)
            )

        runner.run(raced())

    def test_a_chunk_is_taken_over_once_its_lease_is_over_and_no_sooner(
        self, runner: asyncio.Runner, journal: Journal
    ) -> None:
        """Under the next chunk fence."""

        async def taken() -> None:
            first = (await journal.claim(chunk(), None, LEASE_MS)).row
            assert first is not None
            rival = chunk(owner="rival", chunk_fence=2)
            assert not (await journal.claim(rival, first, LEASE_MS)).ok
            assert (await renewed(journal, chunk_lease(first), OVER_MS)).ok
            reply = await journal.claim(rival, first, LEASE_MS)
            assert reply.ok
            there = await journal.chunk(RUN, "m", 0)
            assert there is not None
            assert (there.owner, there.chunk_fence, there.status) == ("rival", 2, RUNNING)

        runner.run(taken())

    def test_a_dead_owner_is_taken_over_from_whatever_its_lease_says(
        self, runner: asyncio.Runner, journal: Journal
    ) -> None:
        """Only from the one who is dead."""

        async def taken() -> None:
            first = (await journal.claim(chunk(), None, LEASE_MS)).row
            rival = chunk(owner="rival", chunk_fence=2)
            assert not (await journal.claim(rival, first, LEASE_MS, dead_owner="another")).ok
            assert (await journal.claim(rival, first, LEASE_MS, dead_owner="me")).ok

        runner.run(taken())

    @pytest.mark.parametrize("differs", ["fence", "chunk_fence", "status"])
    def test_who_saw_another_state_of_a_chunk_is_refused(
        self, runner: asyncio.Runner, journal: Journal, differs: str
    ) -> None:
        """Whatever has changed since."""

        async def claimed() -> None:
            first = (await journal.claim(chunk(), None, OVER_MS)).row
            assert first is not None
            other: dict[str, object] = {"fence": 7, "chunk_fence": 7, "status": PENDING}
            seen = first._replace(**{differs: other[differs]})  # type: ignore[arg-type]  # as above
            reply = await journal.claim(chunk(owner="rival", chunk_fence=2), seen, LEASE_MS)
            assert (reply.ok, reply.row) == (False, first)
            assert (await journal.claim(chunk(owner="rival", chunk_fence=2), first, LEASE_MS)).ok

        runner.run(claimed())

    def test_a_claim_over_one_that_is_gone_is_refused(self, runner: asyncio.Runner, journal: Journal) -> None:
        """There is nothing in the way, and nothing is made."""

        async def claimed() -> None:
            reply = await journal.claim(chunk(chunk_fence=2), chunk(), LEASE_MS)
            assert (reply.ok, reply.row) == (False, None)
            assert await journal.chunk(RUN, "m", 0) is None

        runner.run(claimed())

    def test_an_owner_that_was_taken_over_from_renews_and_leaves_nothing(
        self, runner: asyncio.Runner, journal: Journal
    ) -> None:
        """It is told who has the chunk now."""

        async def late() -> None:
            await driven(journal)
            first = (await journal.claim(chunk(), None, OVER_MS)).row
            assert first is not None
            second = (await journal.claim(chunk(owner="rival", chunk_fence=2), first, LEASE_MS)).row
            for reply in (
                await renewed(journal, chunk_lease(first)),
                await journal.leave_chunk(chunk_lease(first), LEFT, wakes=True),
            ):
                assert (reply.ok, reply.row) == (False, second)
            assert (await seen_now(journal)).wake_count == 0

        runner.run(late())

    # ---- leave ----

    def test_a_chunk_that_is_left_has_no_owner_and_says_what_came_of_it(
        self, runner: asyncio.Runner, journal: Journal
    ) -> None:
        """A lost reply is known by that; the next owner needs no patience."""

        async def left() -> None:
            mine = (await journal.claim(chunk(), None, LEASE_MS)).row
            assert mine is not None
            told = replace(LEFT, status=FAILED, error='{"code":"X"}', gone='{"1":false}')
            assert (await journal.leave_chunk(chunk_lease(mine), told)).ok
            there = await journal.chunk(RUN, "m", 0)
            assert there == mine._replace(
                status=FAILED, owner=None, owner_process=None, lease_until_ms=0, succeeded=90, failed=10,
                error='{"code":"X"}', gone='{"1":false}', updated_at=AT,
            )  # fmt: skip
            again = await journal.leave_chunk(chunk_lease(mine), told)
            assert (again.ok, again.row) == (False, there)
            assert (await journal.claim(chunk(owner="next", chunk_fence=2), there, LEASE_MS)).ok

        runner.run(left())

    def test_a_chunk_may_be_left_with_its_lease(self, runner: asyncio.Runner, journal: Journal) -> None:
        """Nobody takes it over before the lease is over."""

        async def left() -> None:
            mine = (await journal.claim(chunk(), None, LEASE_MS)).row
            assert mine is not None
            told = replace(LEFT, status=PENDING, keep_lease=True)
            assert (await journal.leave_chunk(chunk_lease(mine), told)).ok
            there = await journal.chunk(RUN, "m", 0)
            assert there is not None
            assert (there.status, there.owner, there.lease_until_ms) == (PENDING, "me", mine.lease_until_ms)
            assert not (await journal.claim(chunk(owner="next", chunk_fence=2), there, LEASE_MS)).ok

        runner.run(left())

    @pytest.mark.parametrize("wakes", [False, True])
    @pytest.mark.parametrize("status", [*ACTIVE, COMPLETED])
    def test_the_end_of_a_chunk_wakes_the_run_with_it(
        self, runner: asyncio.Runner, journal: Journal, status: str, wakes: bool
    ) -> None:
        """One more in the wake count; a sleeping run is due. One that is over stays as it is."""

        async def left() -> None:
            me = await driven(journal)
            if status != RUNNING:
                far_ms = 253_402_300_799_000
                assert (await journal.leave(me, Departure(status=status, due_at_ms=far_ms))).ok
            before = await seen_now(journal)
            mine = (await journal.claim(chunk(), None, LEASE_MS)).row
            assert mine is not None
            assert (await journal.leave_chunk(chunk_lease(mine), LEFT, wakes=wakes)).ok
            now = await seen_now(journal)
            woken = wakes and status in ACTIVE
            assert now.wake_count == before.wake_count + woken
            sleeps = status == SUSPENDED
            assert now.status == (PENDING if woken and sleeps else status)
            due = [one.run_id for one in await journal.due()]
            assert due == ([RUN] if woken and sleeps else [])

        runner.run(left())

    def test_a_chunk_of_no_run_is_left_without_a_fuss(self, runner: asyncio.Runner, journal: Journal) -> None:
        """There is nobody to wake."""

        async def left() -> None:
            mine = (await journal.claim(chunk(), None, LEASE_MS)).row
            assert mine is not None
            assert (await journal.leave_chunk(chunk_lease(mine), LEFT, wakes=True)).ok
            assert await journal.header(RUN) is None

        runner.run(left())

    def test_whoever_looks_at_the_chunks_after_the_count_is_refused_or_sees_the_end(
        self, runner: asyncio.Runner, journal: Journal, rival: Journal
    ) -> None:
        """No wake-up is lost, whichever comes first: the driver's suspension, or the end of the chunk."""

        async def suspended() -> str:
            me = lease_of(await seen_now(journal))
            while True:
                count = (await seen_now(journal)).wake_count
                there = await journal.chunk(RUN, "m", 0)
                if there is not None and there.status == COMPLETED:
                    return "saw it"
                if (await journal.leave(me, Departure(status=SUSPENDED), wake_count=count)).ok:
                    return "suspended"

        async def raced() -> None:
            await driven(journal)
            mine = (await journal.claim(chunk(), None, LEASE_MS)).row
            assert mine is not None
            came, _ = await asyncio.gather(
                suspended(), rival.leave_chunk(chunk_lease(mine), LEFT, wakes=True)
            )
            now = await seen_now(journal)
            assert now.status == (RUNNING if came == "saw it" else PENDING)

        runner.run(raced())
