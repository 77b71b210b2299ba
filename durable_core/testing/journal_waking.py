"""The contract of waking and of what is due: no run sleeps on, or is forgotten. Part of `JournalContract`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from durable_core.journal.base import Departure
from durable_core.records import ACTIVE, ENDED, PENDING, PRUNING, RUNNING, SUSPENDED, TOMBSTONE
from durable_core.testing.samples import (
    AT,
    LEASE_MS,
    OVER_MS,
    RUN,
    claim,
    driven,
    header,
    lease_of,
    owned,
    renewed,
    seen_now,
    time_of,
)

if TYPE_CHECKING:
    import asyncio

    from durable_core.journal.base import Journal

STATUSES = (*ACTIVE, *ENDED, PRUNING, TOMBSTONE)
LATER_MS = 2**45


class WakingContract:
    """What every journal holds to when runs are woken, and when those that are due are looked for."""

    # ---- wake ----

    @pytest.mark.parametrize("status", STATUSES)
    def test_an_active_run_is_woken(self, runner: asyncio.Runner, journal: Journal, status: str) -> None:
        """A sleeping one is PENDING and due now; of one that isn't active nothing changes."""

        async def woken() -> None:
            old = header(status=status, fence=3, wake_count=4, due_at_ms=LATER_MS, crashes=1, ended_at=AT)
            await journal.create(old)
            before_ms = await time_of(journal, "before")
            reply = await journal.wake(old)
            after_ms = await time_of(journal, "after")
            now = await seen_now(journal)
            assert reply.ok is (status in ACTIVE)
            assert reply.row == now
            if status == SUSPENDED:
                assert before_ms <= now.due_at_ms <= after_ms
                assert now == replace(old, status=PENDING, wake_count=5, due_at_ms=now.due_at_ms)
                assert RUN in [one.run_id for one in await journal.due()]
            else:
                assert now == (replace(old, wake_count=5) if status in ACTIVE else old)

        runner.run(woken())

    @pytest.mark.parametrize("status", ACTIVE)
    def test_a_run_is_woken_in_the_status_that_was_seen(
        self, runner: asyncio.Runner, journal: Journal, status: str
    ) -> None:
        """Or who wakes it looks again; the fence may have moved on. A run that is gone isn't woken."""

        async def woken() -> None:
            old = header(status=status, fence=3)
            await journal.create(old)
            for other in STATUSES:
                if other != status:
                    reply = await journal.wake(replace(old, status=other))
                    assert (reply.ok, reply.row) == (False, old)
            assert (await journal.wake(replace(old, fence=1, wake_count=9))).ok
            assert (await seen_now(journal)).wake_count == 1
            reply = await journal.wake(header("gone", status=status))
            assert (reply.ok, reply.row) == (False, None)
            assert await journal.header("gone") is None

        runner.run(woken())

    def test_a_wake_up_is_never_lost_on_a_driver_that_goes_to_sleep(
        self, runner: asyncio.Runner, journal: Journal
    ) -> None:
        """Before it suspends: refused, it looks again. After: the run is due at once."""

        async def woken() -> None:
            me = await driven(journal)
            knew = (await seen_now(journal)).wake_count
            assert (await journal.wake(await seen_now(journal))).ok
            sleep = Departure(status=SUSPENDED, due_at_ms=LATER_MS)
            reply = await journal.leave(me, sleep, wake_count=knew)
            assert not reply.ok
            assert reply.row is not None
            assert (reply.row.status, reply.row.wake_count) == (RUNNING, knew + 1)
            assert (await journal.leave(me, sleep, wake_count=knew + 1)).ok
            assert await journal.due() == []
            assert (await journal.wake(await seen_now(journal))).ok
            assert [one.run_id for one in await journal.due()] == [RUN]
            reply = await journal.wake(await seen_now(journal))  # twice is as good as once
            assert reply.row is not None
            assert (reply.row.status, reply.row.wake_count) == (PENDING, knew + 3)

        runner.run(woken())

    # ---- due ----

    def test_runs_that_are_due_come_earliest_first(self, runner: asyncio.Runner, journal: Journal) -> None:
        """Whatever active status they have; a few at a time."""

        async def found() -> None:
            made = [
                header(f"r{n:02}", status=ACTIVE[n % 3], due_at_ms=1_000 + 10 * (n * 7 % 20))
                for n in range(20)
            ]
            made += [header("same-b", due_at_ms=1_100), header("same-a", due_at_ms=1_100), header("zero")]
            for one in made:
                await journal.create(one)
            made.sort(key=lambda one: (one.due_at_ms, one.run_id))
            assert await journal.due() == made
            assert await journal.due(limit=5) == made[:5]
            assert await journal.due(limit=23) == made

        runner.run(found())

    def test_only_active_runs_whose_time_has_come_are_due(
        self, runner: asyncio.Runner, journal: Journal
    ) -> None:
        """Not those that ended, sleep on, or are somebody's."""

        async def found() -> None:
            now_ms = await time_of(journal, "clock")
            await journal.cancel(await seen_now(journal, "clock"), AT)
            for status in (*ENDED, PRUNING, TOMBSTONE):
                await journal.create(header(status, status=status))
            for n, later_ms in enumerate((60_000, LATER_MS)):
                await journal.create(header(f"later-{n}", status=SUSPENDED, due_at_ms=now_ms + later_ms))
            await journal.create(header("past", due_at_ms=now_ms - 1))
            await journal.create(owned("held"), LEASE_MS)
            await journal.create(owned("left-to-die"), OVER_MS)
            assert [one.run_id for one in await journal.due()] == ["left-to-die", "past"]

        runner.run(found())

    def test_a_run_is_due_when_its_lease_is_over(self, runner: asyncio.Runner, journal: Journal) -> None:
        """However it came to its lease; a renewal, a new owner or an end puts it off."""

        async def found() -> None:
            async def is_due() -> bool:
                now = await seen_now(journal)
                assert now.owner is None or now.due_at_ms == now.lease_until_ms
                return [one.run_id for one in await journal.due()] == [RUN]

            me = await driven(journal, lease_ms=OVER_MS)
            assert await is_due()
            assert (await renewed(journal, me)).ok
            assert not await is_due()
            assert (await renewed(journal, me, OVER_MS)).ok
            assert await is_due()
            assert (await journal.acquire(await seen_now(journal), claim("next"))).ok
            assert not await is_due()
            next_one = lease_of(await seen_now(journal))
            assert (await journal.leave(next_one, Departure(status=PENDING))).ok
            assert await is_due()
            assert (await journal.acquire(await seen_now(journal), claim("last", OVER_MS))).ok
            assert await is_due()
            assert (await journal.cancel(await seen_now(journal), AT)).ok
            assert not await is_due()

        runner.run(found())

    def test_a_run_whose_owner_left_it_under_its_lease_is_not_due_before_that_is_over(
        self, runner: asyncio.Runner, journal: Journal
    ) -> None:
        """Something that it could not stop is still at work."""

        async def found() -> None:
            for run_id, lease_ms in (("over", OVER_MS), ("held", LEASE_MS)):
                me = await driven(journal, run_id, lease_ms=lease_ms)
                assert (await journal.leave(me, Departure(status=PENDING, keep_lease=True))).ok
            assert [one.run_id for one in await journal.due()] == ["over"]

        runner.run(found())
