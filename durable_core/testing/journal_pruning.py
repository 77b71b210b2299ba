"""The contract of pruning: what lies under a header goes, up to a fence. Part of `JournalContract`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, ClassVar

from durable_core.journal.base import Departure
from durable_core.records import COMPLETED, PRUNING, STARTED, Child, Event, Seen, Segment, StepRecord
from durable_core.testing.samples import (
    AT,
    MANY,
    RUN,
    attempt,
    committed,
    driven,
    event,
    gathered,
    pruning,
    seen_now,
    segment,
)

if TYPE_CHECKING:
    from durable_core.journal.base import Journal

BURIED_AT = "2026-02-03T04:05:06.789Z"


class PruningContract:
    """What every journal holds to when an ended run is pruned.

    Attributes:
        many: How many records are more than a page of the store.
    """

    many: ClassVar[int] = MANY

    # ---- acquire and leave ----

    def test_a_pruning_that_is_cut_short_leaves_the_run_with_the_end_that_it_had(
        self, runner: asyncio.Runner, journal: Journal
    ) -> None:
        """Also when it is taken up again."""

        async def pruned_twice() -> None:
            me = await driven(journal)
            assert (await journal.leave(me, Departure(status=COMPLETED))).ok
            ended_at = (await seen_now(journal)).ended_at
            assert ended_at is not None
            for pruner in ("p1", "p2"):
                them = await pruning(journal, pruner)
                assert (await seen_now(journal)).ended_at == ended_at
                assert (await journal.leave(them, Departure(status=PRUNING))).ok
                now = await seen_now(journal)
                assert (now.status, now.ended_at) == (PRUNING, ended_at)

        runner.run(pruned_twice())

    # ---- children ----

    def test_everything_under_a_header_is_listed(self, runner: asyncio.Runner, journal: Journal) -> None:
        """With its kind, key, fence, blobs and size; the header itself isn't, and nothing of another run."""

        async def listed() -> None:
            me = await driven(journal)
            assert await gathered(journal.children(RUN)) == []
            for record in (
                committed(
                    attempt("s#2", fence=3), output_data=None, output_ref="runs/run-1/s", output_size=31
                ),
                attempt("a/m[0]/s!", "a2"),
                committed(attempt("plain", "a3"), output_size=7),
            ):
                assert (await journal.put(record, None, me)).ok
            await journal.append(segment(0, "g0", fence=2, items=0, data=None, size=None))
            await journal.append(
                segment(7, "g7", "m#2", chunk=12, size=77, refs='["runs/run-1/x","runs/run-1/y"]')
            )
            await journal.append(segment(8, "g8", size=78, refs="[]"))
            await journal.send(event(0, fence=4, size=2), await seen_now(journal))
            await journal.send(
                event(9, "e9", "m", ref="runs/run-1/z", data=None, size=5), await seen_now(journal)
            )
            for other in ("run-10", "run_1", "Run-1"):
                them = await driven(journal, other)
                await journal.begin(attempt(run_id=other), None, them)
                await journal.append(segment(run_id=other))
                await journal.send(event(run_id=other), await seen_now(journal, other))
            assert sorted(await gathered(journal.children(RUN))) == sorted(
                [
                    Child("step", "s#2", 0, 0, 3, ("runs/run-1/s",), 31),
                    Child("step", "a/m[0]/s!", 0, 0, 1),
                    Child("step", "plain", 0, 0, 1, (), 7),
                    Child("segment", "m", 0, 0, 2),
                    Child("segment", "m#2", 12, 7, 1, ("runs/run-1/x", "runs/run-1/y"), 77),
                    Child("segment", "m", 0, 8, 1, (), 78),
                    Child("event", "approval", 0, 0, 4, (), 2),
                    Child("event", "m", 0, 9, 1, ("runs/run-1/z",), 5),
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
            steps = [committed(attempt(f"s#{n}", f"a{n}"), b"x" * 600) for n in range(self.many)]
            segments = [segment(n, f"g{n}") for n in range(self.many // 2)]
            events = [event(n, f"e{n}") for n in range(self.many // 2)]
            everything = len(steps) + len(segments) + len(events)
            await _write_all(journal, steps, segments, events)
            first, seen = await pruning(journal), set[Child]()
            async for page in journal.children(RUN):
                assert not seen & {*page}
                seen |= {*page}
                await journal.delete(RUN, page, first.fence)
                if len(seen) > self.many // 2:
                    break  # and it dies
            assert await _count(rival) == everything - len(seen)
            second = await pruning(rival, "second")
            assert second.fence == first.fence + 1
            async for page in rival.children(RUN):
                assert not seen & {*page}
                seen |= {*page}
                await rival.delete(RUN, page, second.fence)
            assert len(seen) == everything
            assert await _count(journal) == 0
            assert not (await journal.bury(first, BURIED_AT)).ok
            assert (await rival.bury(second, BURIED_AT)).ok

        runner.run(pruned())


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
    for start in range(0, len(events), 100):
        await asyncio.gather(*map(journal.append, segments[start : start + 100]))
        await asyncio.gather(*(journal.send(one, seen) for one in events[start : start + 100]))
    journal.live = 0
    await journal.cancel(await seen_now(journal), AT)


async def _count(journal: Journal) -> int:
    return len(await gathered(journal.children(RUN)))
