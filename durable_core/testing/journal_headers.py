"""The contract of a journal's headers: who may drive a run. Part of `JournalContract`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from durable_core.journal.base import Departure
from durable_core.records import (
    ACTIVE,
    CANCELLED,
    COMPLETED,
    ENDED,
    FAILED,
    PENDING,
    PRUNING,
    RUNNING,
    SUSPENDED,
    TOMBSTONE,
    RunHeader,
)
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
    taken_over,
)

if TYPE_CHECKING:
    import asyncio

    from durable_core.journal.base import Journal

STATUSES = (*ACTIVE, *ENDED, PRUNING, TOMBSTONE)
LEFT = Departure(
    status=COMPLETED,
    due_at_ms=1_800_000_000_000,
    output_hash="5" * 64,
    output_data=bytes(range(256)),
    output_ref=None,
    output_codec="json+zstd",
    output_size=1000,
    error=None,
    counts='{"COMMITTED":3}',
)


class HeaderContract:
    """What every journal holds to when a run is created, acquired, renewed, left or cancelled."""

    # ---- create ----

    def test_a_header_comes_back_as_it_was_created(self, runner: asyncio.Runner, journal: Journal) -> None:
        """Each column, told apart from each other."""
        columns: dict[str, Any] = {
            "due_at_ms": 2**45, "wake_count": 7, "crashes": 2, "fence": 4, "session_id": "s1",
            "idle_drives": 3, "forked_from": "run-0", "output_hash": "6" * 64, "output_data": b"\x00\xff",
            "output_ref": "runs/x", "output_codec": "json", "output_size": 2**40, "error": '{"code":"X"}',
            "counts": "{}", "input_ref": "runs/y", "ended_at": "2026-01-02T03:04:06.000Z",
        }  # fmt: skip
        made = header(**columns)
        assert runner.run(journal.header(RUN)) is None
        reply = runner.run(journal.create(made))
        assert (reply.ok, reply.row) == (True, made)
        assert runner.run(journal.header(RUN)) == made

    def test_a_header_may_be_all_but_empty(self, runner: asyncio.Runner, journal: Journal) -> None:
        """None and nothing are different things."""
        made = RunHeader(run_id=RUN, workflow="w", input_data=b"", created_at=AT, updated_at=AT)
        runner.run(journal.create(made))
        assert runner.run(journal.header(RUN)) == made

    @pytest.mark.parametrize("status", STATUSES)
    def test_no_header_is_created_over_another(
        self, runner: asyncio.Runner, journal: Journal, status: str
    ) -> None:
        """Whatever became of that run; a tombstone only yields to who has seen its fence."""
        old = header(status=status, fence=3, base_fence=1)
        runner.run(journal.create(old))
        seen = {0, 1, 2, 3, 4} - ({3} if status == TOMBSTONE else set())
        for base_fence in sorted(seen):
            new = owned(owner="late", base_fence=base_fence, fence=base_fence + 1)
            reply = runner.run(journal.create(new, LEASE_MS))
            assert (reply.ok, reply.row) == (False, old)
        assert runner.run(journal.header(RUN)) == old

    def test_a_pruned_id_goes_on_from_its_fence(self, runner: asyncio.Runner, journal: Journal) -> None:
        """Nothing of the earlier life is left in the header."""
        old = header(status=TOMBSTONE, fence=3, base_fence=3, error="{}", session_id="old", ended_at=AT)
        new = header(base_fence=3, fence=3, created_by="anew")
        runner.run(journal.create(old))
        assert runner.run(journal.create(new)).ok
        assert runner.run(journal.header(RUN)) == new

    def test_whoever_lost_the_reply_to_a_create_finds_itself(
        self, runner: asyncio.Runner, journal: Journal
    ) -> None:
        """By `created_by`, also on a pruned id."""
        for base_fence in (0, 3):
            made = owned(base_fence=base_fence, fence=base_fence + 1)
            if base_fence:
                runner.run(journal.create(header("again", status=TOMBSTONE, fence=3, base_fence=3)))
                made = replace(made, run_id="again")
            runner.run(journal.create(made, LEASE_MS))
            reply = runner.run(journal.create(made, LEASE_MS))
            assert not reply.ok
            assert reply.row is not None
            assert (reply.row.created_by, reply.row.fence) == ("me", base_fence + 1)

    def test_a_run_created_by_its_driver_is_leased_and_one_for_others_is_free(
        self, runner: asyncio.Runner, journal: Journal
    ) -> None:
        """Create and acquire are one write."""
        runner.run(journal.create(owned("mine"), LEASE_MS))
        runner.run(journal.create(header("anyones"), LEASE_MS))
        mine, anyones = runner.run(journal.header("mine")), runner.run(journal.header("anyones"))
        assert mine is not None
        assert anyones is not None
        assert mine.lease_until_ms > 0
        assert anyones.lease_until_ms == 0
        assert not runner.run(journal.acquire(mine, claim("rival"))).ok
        assert runner.run(journal.acquire(anyones, claim("rival"))).ok

    # ---- acquire ----

    def test_an_acquirer_becomes_the_owner_under_the_next_fence(
        self, runner: asyncio.Runner, journal: Journal
    ) -> None:
        """And what else the run is stays as it is."""
        old = header(error='{"steps":["s"]}', ended_at=AT, status=FAILED, fence=4, wake_count=2, crashes=9)
        runner.run(journal.create(old))
        mine = claim("me", owner_process='{"pid":1}', crashes=1)
        reply = runner.run(journal.acquire(old, mine, statuses=(FAILED,)))
        now = runner.run(journal.header(RUN))
        assert reply.ok
        assert now is not None
        assert reply.row == now
        assert now == replace(
            old, status=RUNNING, owner="me", owner_process='{"pid":1}', fence=5, crashes=1, ended_at=None,
            lease_until_ms=now.lease_until_ms, due_at_ms=now.lease_until_ms, updated_at=now.updated_at,
        )  # fmt: skip

    @pytest.mark.parametrize(("given", "kept"), [(None, "f" * 64), ("e" * 64, "e" * 64)])
    def test_the_fingerprint_is_of_the_last_acquirer_that_had_one(
        self, runner: asyncio.Runner, journal: Journal, given: str | None, kept: str
    ) -> None:
        """Who repairs a run has none."""
        runner.run(journal.create(header()))
        reply = runner.run(journal.acquire(header(), claim("me", fingerprint=given, status=PRUNING)))
        assert reply.row is not None
        assert (reply.row.fingerprint, reply.row.status) == (kept, PRUNING)

    @pytest.mark.parametrize("status", STATUSES)
    def test_a_run_is_only_acquired_in_a_status_that_was_asked_for(
        self, runner: asyncio.Runner, journal: Journal, status: str
    ) -> None:
        """By default an active one."""
        old = header(status=status)
        runner.run(journal.create(old))
        others = tuple(other for other in STATUSES if other != status)
        assert not runner.run(journal.acquire(old, claim("other"), statuses=others)).ok
        assert runner.run(journal.header(RUN)) == old
        assert runner.run(journal.acquire(old, claim("default"))).ok is (status in ACTIVE)
        now = runner.run(journal.header(RUN))
        assert now is not None
        if status not in ACTIVE:
            assert runner.run(journal.acquire(now, claim("me"), statuses=(status,))).ok

    @pytest.mark.parametrize("seen_fence", [0, 2, 4, 5])
    def test_a_run_that_moved_on_is_not_acquired(
        self, runner: asyncio.Runner, journal: Journal, seen_fence: int
    ) -> None:
        """The fence has to be as seen: not lower, not higher."""
        old = header(fence=3)
        runner.run(journal.create(old))
        reply = runner.run(journal.acquire(replace(old, fence=seen_fence), claim("me")))
        assert (reply.ok, reply.row) == (False, old)
        assert runner.run(journal.header(RUN)) == old

    def test_a_run_that_is_gone_is_not_acquired(self, runner: asyncio.Runner, journal: Journal) -> None:
        """The refusal shows that nothing is there."""
        reply = runner.run(journal.acquire(header(), claim("me")))
        assert (reply.ok, reply.row) == (False, None)
        assert runner.run(journal.header(RUN)) is None

    def test_a_leased_run_is_acquired_only_from_the_owner_that_is_dead(
        self, runner: asyncio.Runner, journal: Journal
    ) -> None:
        """Not from another, also if its lease is over by then."""

        async def acquired() -> None:
            await driven(journal, owner="dead")
            seen = await journal.header(RUN)
            assert seen is not None
            assert not (await journal.acquire(seen, claim("me"))).ok
            assert not (await journal.acquire(seen, claim("me"), dead_owner="someone")).ok
            assert (await journal.acquire(seen, claim("me", OVER_MS), dead_owner="dead")).ok
            now = await journal.header(RUN)
            assert now is not None
            assert (now.owner, now.fence) == ("me", 2)
            assert not (await journal.acquire(now, claim("next"), dead_owner="dead")).ok
            assert (await journal.acquire(now, claim("next"))).ok

        runner.run(acquired())

    def test_whoever_lost_the_reply_to_an_acquire_finds_itself(
        self, runner: asyncio.Runner, journal: Journal
    ) -> None:
        """By its owner name."""
        runner.run(journal.create(header()))
        runner.run(journal.acquire(header(), claim("me")))
        reply = runner.run(journal.acquire(header(), claim("me")))
        assert not reply.ok
        assert reply.row is not None
        assert (reply.row.owner, reply.row.fence) == ("me", 1)

    # ---- renew ----

    def test_a_renewal_lengthens_the_lease_and_tells_of_wake_ups(
        self, runner: asyncio.Runner, journal: Journal
    ) -> None:
        """From now on, not from its old end."""

        async def renewing() -> None:
            reply = await journal.create(owned(wake_count=3), OVER_MS)
            before = await journal.header(RUN)
            assert before is not None
            reply = await renewed(journal, lease_of(reply.row))
            now = await journal.header(RUN)
            assert now is not None
            assert reply.ok
            assert reply.row == now
            assert now == replace(before, lease_until_ms=now.lease_until_ms, due_at_ms=now.lease_until_ms)
            assert LEASE_MS <= now.lease_until_ms - before.lease_until_ms - LEASE_MS <= 2 * LEASE_MS
            assert not (await journal.acquire(now, claim("rival"))).ok

        runner.run(renewing())

    def test_only_the_owner_renews(self, runner: asyncio.Runner, journal: Journal) -> None:
        """Under its own fence; the refusal shows the header, or that it is gone."""

        async def renewing() -> None:
            me = await driven(journal, lease_ms=OVER_MS)
            for other in (me._replace(owner="other"), me._replace(fence=2), me._replace(fence=0)):
                assert not (await renewed(journal, other)).ok
            await taken_over(journal)
            now = await journal.header(RUN)
            reply = await renewed(journal, me)
            assert (reply.ok, reply.row) == (False, now)
            assert await journal.header(RUN) == now
            reply = await renewed(journal, me._replace(run_id="gone"))
            assert (reply.ok, reply.row) == (False, None)

        runner.run(renewing())

    # ---- leave ----

    @pytest.mark.parametrize("status", [PENDING, SUSPENDED, COMPLETED, FAILED, TOMBSTONE])
    def test_the_owner_leaves_a_run_free(self, runner: asyncio.Runner, journal: Journal, status: str) -> None:
        """With the outcome it gives; the fence stays."""

        async def leaving() -> None:
            me = await driven(journal)
            before = await journal.header(RUN)
            assert before is not None
            reply = await journal.leave(me, replace(LEFT, status=status, error='{"code":"E"}'))
            now = await journal.header(RUN)
            assert now is not None
            assert reply.ok
            assert reply.row == now
            assert (now.ended_at is not None) is (status in ENDED)
            assert now == replace(
                before, status=status, owner=None, owner_process=None, lease_until_ms=0,
                due_at_ms=LEFT.due_at_ms, output_hash=LEFT.output_hash, output_data=LEFT.output_data,
                output_codec=LEFT.output_codec, output_size=LEFT.output_size, error='{"code":"E"}',
                counts=LEFT.counts, updated_at=now.updated_at, ended_at=now.ended_at,
            )  # fmt: skip

        runner.run(leaving())

    def test_leaving_can_keep_the_recorded_error(self, runner: asyncio.Runner, journal: Journal) -> None:
        """Of the run's earlier end."""
        runner.run(journal.create(owned(error='{"code":"OLD"}')))
        me = lease_of(owned())
        reply = runner.run(journal.leave(me, Departure(status=PENDING, keep_error=True)))
        assert reply.row is not None
        assert reply.row.error == '{"code":"OLD"}'

    def test_leaving_sets_the_count_of_idle_drives(self, runner: asyncio.Runner, journal: Journal) -> None:
        """To what it is from then on."""
        runner.run(journal.create(owned(idle_drives=2)))
        reply = runner.run(journal.leave(lease_of(owned()), Departure(status=PENDING, idle_drives=3)))
        assert reply.row is not None
        assert reply.row.idle_drives == 3
        reply = runner.run(journal.acquire(reply.row, claim("me")))
        assert reply.row is not None
        assert reply.row.idle_drives == 3
        reply = runner.run(journal.leave(lease_of(reply.row), Departure(status=PENDING)))
        assert reply.row is not None
        assert reply.row.idle_drives == 0

    def test_only_the_owner_leaves(self, runner: asyncio.Runner, journal: Journal) -> None:
        """Under its own fence, and once; whoever lost the reply finds the run left under its fence."""

        async def leaving() -> None:
            me = await driven(journal)
            before = await journal.header(RUN)
            for other in (me._replace(owner="other"), me._replace(fence=2), me._replace(fence=0)):
                reply = await journal.leave(other, LEFT)
                assert (reply.ok, reply.row) == (False, before)
            assert (await journal.leave(me._replace(run_id="gone"), LEFT)).row is None
            await journal.leave(me, LEFT)
            reply = await journal.leave(me, replace(LEFT, status=FAILED))
            assert not reply.ok
            assert reply.row is not None
            assert (reply.row.status, reply.row.owner, reply.row.fence) == (COMPLETED, None, me.fence)

        runner.run(leaving())

    def test_leaving_can_depend_on_the_wake_count(self, runner: asyncio.Runner, journal: Journal) -> None:
        """Something came since the last look: look again."""
        runner.run(journal.create(owned(wake_count=2)))
        me = lease_of(owned())
        for count in (0, 1, 3):
            reply = runner.run(journal.leave(me, Departure(status=SUSPENDED), wake_count=count))
            assert not reply.ok
            assert reply.row is not None
            assert (reply.row.wake_count, reply.row.owner) == (2, "me")
        assert runner.run(journal.leave(me, Departure(status=SUSPENDED), wake_count=2)).ok

    def test_the_last_owner_leaves_nothing_of_its_successor(
        self, runner: asyncio.Runner, journal: Journal
    ) -> None:
        """A zombie's end of the run is refused."""

        async def leaving() -> None:
            me = await driven(journal, lease_ms=OVER_MS)
            await taken_over(journal)
            now = await journal.header(RUN)
            reply = await journal.leave(me, LEFT)
            assert (reply.ok, reply.row) == (False, now)
            assert await journal.header(RUN) == now

        runner.run(leaving())

    # ---- cancel ----

    @pytest.mark.parametrize("status", STATUSES)
    def test_an_active_run_can_be_cancelled(
        self, runner: asyncio.Runner, journal: Journal, status: str
    ) -> None:
        """Its fence goes up, so that whoever drives it is fenced; an ended one stays as it is."""
        old = owned(status=status, output_data=b"x", fence=3)
        runner.run(journal.create(old, LEASE_MS))
        before = runner.run(seen_now(journal))
        reply = runner.run(journal.cancel(old, AT, '{"code":"BY_HAND"}'))
        now = runner.run(journal.header(RUN))
        assert reply.ok is (status in ACTIVE)
        assert reply.row == now
        assert now is not None
        if status not in ACTIVE:
            assert now == before
            return
        assert now == replace(
            old, status=CANCELLED, owner=None, owner_process=None, lease_until_ms=0, fence=4, ended_at=AT,
            updated_at=AT, due_at_ms=before.due_at_ms, error='{"code":"BY_HAND"}',
        )  # fmt: skip
        assert not runner.run(journal.leave(lease_of(old), LEFT)).ok
        again = runner.run(journal.cancel(old, AT))
        assert (again.ok, again.row) == (False, now)

    def test_a_run_that_moved_on_is_not_cancelled(self, runner: asyncio.Runner, journal: Journal) -> None:
        """The fence has to be as seen; the refusal shows the header, or that it is gone."""
        old = header(fence=3)
        runner.run(journal.create(old))
        for fence in (2, 4):
            reply = runner.run(journal.cancel(replace(old, fence=fence), AT))
            assert (reply.ok, reply.row) == (False, old)
        reply = runner.run(journal.cancel(header("gone"), AT))
        assert (reply.ok, reply.row) == (False, None)
