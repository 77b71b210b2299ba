"""The contract of what pruning leaves: a tombstone that keeps the fence. Part of `JournalContract`."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import pytest

from durable_core.journal.base import RunFilter
from durable_core.records import (
    ACTIVE,
    COMPLETED,
    ENDED,
    PRUNING,
    TOMBSTONE,
    RunHeader,
)
from durable_core.testing.samples import (
    AT,
    LEASE_MS,
    RUN,
    attempt,
    claim,
    driven,
    gathered,
    header,
    lease_of,
    owned,
    pruning,
    seen_now,
    segment,
)

if TYPE_CHECKING:
    from durable_core.journal.base import Journal

LATER = "9999-12-31T00:00:00.000Z"
BURIED_AT = "2026-02-03T04:05:06.789Z"
FULL = RunHeader(
    RUN, "report", "f" * 64, "1" * 64, "2" * 64, b"{}", "runs/a", "json", 2, COMPLETED, "creator", None, None,
    6, 2, 0, 2**45, 7, 3, "{}", "5" * 64, b"done", "runs/b", "json", 4, '{"code":"E"}', "{}", "s1", "run-0",
    AT, AT, "2026-01-02T03:04:06.000Z",
)  # fmt: skip
TOMB = header(status=TOMBSTONE, fence=3, base_fence=3)


class TombstoneContract:
    """What every journal holds to when a run is buried, and when its tombstone goes.

    Attributes:
        purges: Whether `purge` removes tombstones whose end has come, or the store itself, in its own time.
    """

    purges: ClassVar[bool] = True

    # ---- bury ----

    def test_a_tombstone_keeps_the_ids_the_fence_and_the_times_of_a_run(
        self, runner: asyncio.Runner, journal: Journal
    ) -> None:
        """And nothing else of it: neither inputs nor outputs nor anybody's name."""

        async def buried() -> None:
            assert (await journal.create(FULL)).ok
            me = await pruning(journal)
            reply = await journal.bury(me, BURIED_AT)
            tombstone = RunHeader(
                run_id=RUN, workflow="report", status=TOMBSTONE, fence=7, base_fence=7, created_at=AT,
                updated_at=BURIED_AT, ended_at=FULL.ended_at,
            )  # fmt: skip
            assert (reply.ok, reply.row) == (True, tombstone)
            assert await seen_now(journal) == tombstone

        runner.run(buried())

    def test_only_the_pruner_that_holds_the_run_buries_it(
        self, runner: asyncio.Runner, journal: Journal
    ) -> None:
        """Once; whoever lost the reply finds a tombstone with its fence."""

        async def buried() -> None:
            await journal.create(header(status=COMPLETED, fence=2))
            late = await pruning(journal, "late")
            me = await pruning(journal, "me")
            now = await seen_now(journal)
            assert (now.status, now.owner, now.fence) == (PRUNING, "me", 4)
            for other in (late, me._replace(owner="late"), me._replace(fence=3), me._replace(fence=5)):
                reply = await journal.bury(other, AT)
                assert (reply.ok, reply.row) == (False, now)
            reply = await journal.bury(me._replace(run_id="gone"), AT)
            assert (reply.ok, reply.row) == (False, None)
            assert (await journal.bury(me, BURIED_AT)).ok
            tombstone = await seen_now(journal)
            reply = await journal.bury(me, AT)
            assert (reply.ok, reply.row) == (False, tombstone)
            assert (tombstone.status, tombstone.fence) == (TOMBSTONE, me.fence)
            assert tombstone.updated_at == BURIED_AT

        runner.run(buried())

    def test_a_buried_run_does_nothing_more(self, runner: asyncio.Runner, journal: Journal) -> None:
        """It isn't listed, due, woken or acquired; whoever drove it begins and ends nothing."""

        async def buried() -> None:
            await journal.create(header(status=COMPLETED))
            me = await pruning(journal)
            await journal.bury(me, BURIED_AT)
            tombstone = await seen_now(journal)
            assert await journal.runs(RunFilter()) == []
            assert await journal.due() == []
            assert (await journal.wake(tombstone)).row == tombstone
            assert (await journal.cancel(tombstone, AT)).row == tombstone
            assert not (await journal.acquire(tombstone, claim("x"), statuses=(*ACTIVE, *ENDED, PRUNING))).ok
            assert not (await journal.begin(attempt(), None, me, guarded=True)).ok
            assert await seen_now(journal) == tombstone

        runner.run(buried())

    def test_a_buried_id_goes_on_above_all_that_an_earlier_life_writes_late(
        self, runner: asyncio.Runner, journal: Journal
    ) -> None:
        """A zombie's segment lies at or below the new life's base fence, and it begins nothing."""

        async def goes_on() -> None:
            old = await driven(journal, owner="zombie")
            await journal.cancel(await seen_now(journal), AT)
            await journal.bury(await pruning(journal), BURIED_AT)
            tombstone = await seen_now(journal)
            new = owned(base_fence=tombstone.fence, fence=tombstone.fence + 1)
            reply = await journal.create(new, LEASE_MS)
            assert reply.ok
            me = lease_of(reply.row)
            assert await seen_now(journal) == replace(
                new, lease_until_ms=(await seen_now(journal)).lease_until_ms, due_at_ms=_end(reply.row)
            )
            await journal.append(segment(0, "zombie", fence=old.fence))
            (late,) = await gathered(journal.segments(RUN, "m"))
            assert late.fence <= me.base_fence < me.fence
            assert not (await journal.begin(attempt("s", "zombie"), None, old, guarded=True)).ok
            assert not (await journal.bury(old, BURIED_AT)).ok

        runner.run(goes_on())

    # ---- tombstones ----

    def test_tombstones_without_an_end_are_found_oldest_first(
        self, runner: asyncio.Runner, journal: Journal
    ) -> None:
        """Those buried before a time, and no other runs; a few at a time."""

        async def found() -> None:
            at = [f"2026-02-0{day}T00:00:00.000Z" for day in range(1, 8)]
            made = [replace(TOMB, run_id=f"r{n}", updated_at=at[n]) for n in (4, 1, 5, 3, 2, 6)]
            made.append(replace(TOMB, run_id="r0", updated_at=at[3]))
            for one in made:
                await journal.create(one)
            await journal.create(replace(TOMB, run_id="ends", updated_at=at[1], expires_at_s=2**33))
            for status in (*ACTIVE, *ENDED, PRUNING):
                await journal.create(header(status, status=status, updated_at=at[0]))
            assert await _ids(journal, at[4]) == ["r1", "r2", "r0", "r3"]
            assert await _ids(journal, LATER) == ["r1", "r2", "r0", "r3", "r4", "r5", "r6"]
            assert await _ids(journal, at[1]) == []
            assert await _ids(journal, LATER, 3) == ["r1", "r2", "r0"]
            by_id = {one.run_id: one for one in made}
            assert [by_id[one.run_id] for one in await journal.tombstones(LATER)] == (
                await journal.tombstones(LATER)
            )

        runner.run(found())

    # ---- expire ----

    def test_a_tombstone_as_seen_is_given_an_end(self, runner: asyncio.Runner, journal: Journal) -> None:
        """Once, so that an end which was given isn't put off; nothing else of it changes."""

        async def ended() -> None:
            await journal.create(TOMB)
            reply = await journal.expire(TOMB, 2**33)
            ends = replace(TOMB, expires_at_s=2**33)
            assert (reply.ok, reply.row) == (True, ends)
            assert await seen_now(journal) == ends
            assert await journal.tombstones(LATER) == []
            for seen in (TOMB, ends):
                reply = await journal.expire(
                    seen, 2**34
                )  # a lost reply is recognised by that there is an end
                assert (reply.ok, reply.row) == (False, ends)
            assert await seen_now(journal) == ends

        runner.run(ended())

    @pytest.mark.parametrize("status", [*ACTIVE, *ENDED, PRUNING, TOMBSTONE, None])
    def test_nothing_but_a_tombstone_as_seen_is_given_an_end(
        self, runner: asyncio.Runner, journal: Journal, status: str | None
    ) -> None:
        """Not an id that lives again, nor one that was pruned again; the refusal shows the header."""

        async def refused() -> None:
            now = header(status=status, fence=3, base_fence=3) if status else None
            if now is not None:
                await journal.create(now)
            for fence in (2, 4) if status == TOMBSTONE else (3,):
                reply = await journal.expire(replace(TOMB, fence=fence, base_fence=fence), 1)
                assert (reply.ok, reply.row) == (False, now)
            assert await journal.header(RUN) == now

        runner.run(refused())

    def test_an_id_that_lives_again_has_no_end(self, runner: asyncio.Runner, journal: Journal) -> None:
        """Begun over a tombstone that had one."""

        async def lives() -> None:
            await journal.create(replace(TOMB, expires_at_s=2**33))
            new = header(fence=3, base_fence=3)
            assert (await journal.create(new)).ok
            assert await seen_now(journal) == new

        runner.run(lives())

    # ---- purge ----

    def test_tombstones_vanish_after_their_end_and_not_before(
        self, runner: asyncio.Runner, journal: Journal
    ) -> None:
        """However many; an id is then as new."""

        async def vanished() -> None:
            others = [
                replace(TOMB, run_id="no-end"),
                replace(TOMB, run_id="later", expires_at_s=2**33),
                header("lives", expires_at_s=1),  # as no journal writes it
            ]
            for one in others:
                await journal.create(one)
            ended = [replace(TOMB, run_id=f"r{n}", expires_at_s=1) for n in range(451)]
            await asyncio.gather(*(journal.create(one) for one in ended))
            assert await journal.purge() == (451 if self.purges else 0)
            for one in others:
                assert await journal.header(one.run_id) == one
            if self.purges:
                assert [await journal.header(f"r{n}") for n in (0, 200, 450)] == [None, None, None]
                assert (await journal.create(header("r0"))).ok
            assert await journal.purge() == 0

        runner.run(vanished())


async def _ids(journal: Journal, before: str, limit: int = 100) -> list[str]:
    return [one.run_id for one in await journal.tombstones(before, limit=limit)]


def _end(of: RunHeader | None) -> int:
    assert of is not None
    return of.due_at_ms
