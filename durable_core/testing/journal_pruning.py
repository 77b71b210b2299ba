"""The contract of pruning: what lies under a header goes, its fence stays. Part of `JournalContract`."""

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
    STARTED,
    TOMBSTONE,
    Child,
    Event,
    RunHeader,
    Seen,
    Segment,
    StepRecord,
)
from durable_core.testing.samples import (
    AT,
    LEASE_MS,
    RUN,
    attempt,
    claim,
    committed,
    driven,
    event,
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

BURIED_AT = "2026-02-03T04:05:06.789Z"
FULL = RunHeader(
    RUN, "report", "f" * 64, "1" * 64, "2" * 64, b"{}", "runs/a", "json", 2, COMPLETED, "creator", None, None,
    6, 2, 0, 2**45, 7, 3, "{}", "5" * 64, b"done", "runs/b", "json", 4, '{"code":"E"}', "{}", "s1", "run-0",
    AT, AT, "2026-01-02T03:04:06.000Z",
)  # fmt: skip
TOMB = header(status=TOMBSTONE, fence=3, base_fence=3)
MANY = 2101  # more than a page of any store


class PruningContract:
    """What every journal holds to when an ended run is pruned.

    Attributes:
        purges: Whether `purge` removes tombstones whose end has come, or the store itself, in its own time.
    """

    purges: ClassVar[bool] = True

    # ---- children ----

    def test_everything_under_a_header_is_listed(self, runner: asyncio.Runner, journal: Journal) -> None:
        """With its kind, key, fence and blobs; the header itself isn't, and nothing of another run."""

        async def listed() -> None:
            me = await driven(journal)
            assert await gathered(journal.children(RUN)) == []
            for record in (
                committed(attempt("s#2", fence=3), output_data=None, output_ref="runs/run-1/s"),
                attempt("a/m[0]/s!", "a2"),
                committed(attempt("plain", "a3")),
            ):
                assert (await journal.put(record, None, me)).ok
            await journal.append(segment(0, "g0", fence=2, items=0, data=None))
            await journal.append(segment(7, "g7", "m#2", chunk=12, refs='["runs/run-1/x","runs/run-1/y"]'))
            await journal.append(segment(8, "g8", refs="[]"))
            await journal.send(event(0, fence=4), await seen_now(journal))
            await journal.send(event(9, "e9", "m", ref="runs/run-1/z", data=None), await seen_now(journal))
            for other in ("run-10", "run_1", "Run-1"):
                them = await driven(journal, other)
                await journal.begin(attempt(run_id=other), None, them)
                await journal.append(segment(run_id=other))
                await journal.send(event(run_id=other), await seen_now(journal, other))
            assert sorted(await gathered(journal.children(RUN))) == sorted(
                [
                    Child("step", "s#2", 0, 0, 3, ("runs/run-1/s",)),
                    Child("step", "a/m[0]/s!", 0, 0, 1),
                    Child("step", "plain", 0, 0, 1),
                    Child("segment", "m", 0, 0, 2),
                    Child("segment", "m#2", 12, 7, 1, ("runs/run-1/x", "runs/run-1/y")),
                    Child("segment", "m", 0, 8, 1),
                    Child("event", "approval", 0, 0, 4),
                    Child("event", "m", 0, 9, 1, ("runs/run-1/z",)),
                ]
            )
            assert await gathered(journal.children("none")) == []

        runner.run(listed())

    # ---- delete ----

    def test_what_was_listed_is_deleted_and_nothing_else(
        self, runner: asyncio.Runner, journal: Journal
    ) -> None:
        """Twice is as good as once, and what is gone is fine; the header stays."""

        async def deleted() -> None:
            await _filled(journal, RUN)
            await _filled(journal, "run-10")
            before = await seen_now(journal)
            listed = await gathered(journal.children(RUN))
            await journal.delete(RUN, [], 9)
            keys = {("step", "s", 0, 0), ("segment", "m", 0, 0), ("event", "approval", 0, 0)}
            gone = [child for child in listed if child[:4] in keys]
            absent = [Child("step", "n", 0, 0, 1), Child("segment", "m", 0, 9, 1)]
            absent.append(Child("event", "x", 0, 0, 1))
            for _ in range(2):
                await journal.delete(RUN, [*absent, *gone], 9)
                rest = await gathered(journal.children(RUN))
                assert sorted(rest) == sorted(child for child in listed if child not in gone)
            assert await journal.step(RUN, "s") is None
            assert [one.seq for one in await gathered(journal.segments(RUN, "m"))] == [1]
            assert await gathered(journal.events(RUN, "approval")) == []
            assert await seen_now(journal) == before
            assert len(await gathered(journal.children("run-10"))) == len(listed)
            assert (await journal.append(segment(0, "anew", fence=9))).ok  # the places are free again

        runner.run(deleted())

    def test_records_above_the_pruners_fence_stay(self, runner: asyncio.Runner, journal: Journal) -> None:
        """At it or below they go; what counts is the record as it is now, not as it was listed."""

        async def deleted() -> None:
            me = await driven(journal)
            for fence in (1, 2, 3, 4):
                await journal.begin(attempt(f"s{fence}", f"a{fence}", fence=fence), None, me)
                await journal.append(segment(fence, f"g{fence}", fence=fence))
                await journal.send(event(fence, f"e{fence}", fence=fence), await seen_now(journal))
            listed = await gathered(journal.children(RUN))
            assert (await journal.begin(attempt("s1", "anew", fence=4), Seen(STARTED, "a1"), me)).ok
            await journal.delete(RUN, listed, 2)
            left = await gathered(journal.children(RUN))
            assert sorted((child.kind, child.name, child.fence) for child in left) == [
                ("event", "approval", 3), ("event", "approval", 4),
                ("segment", "m", 3), ("segment", "m", 4),
                ("step", "s1", 4), ("step", "s3", 3), ("step", "s4", 4),
            ]  # fmt: skip

        runner.run(deleted())

    def test_a_pruning_of_thousands_that_was_interrupted_is_continued(
        self, runner: asyncio.Runner, journal: Journal, rival: Journal
    ) -> None:
        """Page by page, with deletes between them; who goes on finds what is left, and not less."""

        async def pruned() -> None:
            steps = [committed(attempt(f"s#{n}", f"a{n}"), b"x" * 600) for n in range(MANY)]
            segments = [segment(n, f"g{n}") for n in range(MANY // 2)]
            events = [event(n, f"e{n}") for n in range(MANY // 2)]
            await _write_all(journal, steps, segments, events)
            first, seen = await pruning(journal), set[Child]()
            async for page in journal.children(RUN):
                assert not seen & {*page}
                seen |= {*page}
                await journal.delete(RUN, page, first.fence)
                if len(seen) > MANY // 2:
                    break  # and it dies
            assert await _count(rival) == MANY + 2 * (MANY // 2) - len(seen)
            second = await pruning(rival, "second")
            assert second.fence == first.fence + 1
            async for page in rival.children(RUN):
                assert not seen & {*page}
                seen |= {*page}
                await rival.delete(RUN, page, second.fence)
            assert len(seen) == MANY + 2 * (MANY // 2)
            assert await _count(journal) == 0
            assert not (await journal.bury(first, BURIED_AT)).ok
            assert (await rival.bury(second, BURIED_AT)).ok

        runner.run(pruned())

    # ---- bury ----

    def test_a_tombstone_keeps_the_ids_the_fence_and_the_times_of_a_run(
        self, runner: asyncio.Runner, journal: Journal
    ) -> None:
        """And nothing else of it: neither inputs nor outputs nor anybody's name."""

        async def buried() -> None:
            assert (await journal.create(FULL)).ok
            me = await pruning(journal)
            ended_at = (await seen_now(journal)).ended_at
            reply = await journal.bury(me, BURIED_AT)
            tombstone = RunHeader(
                run_id=RUN, workflow="report", status=TOMBSTONE, fence=7, base_fence=7, created_at=AT,
                updated_at=BURIED_AT, ended_at=ended_at,
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
            assert await _ids(journal, "9999") == ["r1", "r2", "r0", "r3", "r4", "r5", "r6"]
            assert await _ids(journal, at[1]) == []
            assert await _ids(journal, "9999", 3) == ["r1", "r2", "r0"]
            by_id = {one.run_id: one for one in made}
            assert [by_id[one.run_id] for one in await journal.tombstones("9999")] == (
                await journal.tombstones("9999")
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
            assert await journal.tombstones("9999") == []
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


async def _filled(journal: Journal, run_id: str) -> None:
    me = await driven(journal, run_id)
    for step_id in ("s", "s#2", "S"):
        await journal.begin(attempt(step_id, run_id=run_id), None, me)
    for step_id, chunk, seq in (("m", 0, 0), ("m", 0, 1), ("m", 1, 0), ("m#2", 0, 0)):
        await journal.append(segment(seq, "g", step_id, chunk=chunk, run_id=run_id))
    for name, seq in (("approval", 0), ("Approval", 0), ("x", 1)):
        await journal.send(event(seq, f"{name}{seq}", name, run_id=run_id), await seen_now(journal, run_id))


async def _write_all(
    journal: Journal, steps: list[StepRecord], segments: list[Segment], events: list[Event]
) -> None:
    """An ended run with all of these under it."""
    me = await driven(journal)
    seen = await seen_now(journal)
    journal.live = 2
    for start in range(0, len(steps), 300):
        batch = steps[start : start + 300]
        await asyncio.gather(*(journal.put(one, None, me) for one in batch))
    for start in range(0, MANY // 2, 100):
        await asyncio.gather(*map(journal.append, segments[start : start + 100]))
        await asyncio.gather(*(journal.send(one, seen) for one in events[start : start + 100]))
    journal.live = 0
    await journal.cancel(await seen_now(journal), AT)


async def _count(journal: Journal) -> int:
    return len(await gathered(journal.children(RUN)))


async def _ids(journal: Journal, before: str, limit: int = 100) -> list[str]:
    return [one.run_id for one in await journal.tombstones(before, limit=limit)]


def _end(of: RunHeader | None) -> int:
    assert of is not None
    return of.due_at_ms
