"""The contract of what lies around the chunks of a shared map: their lists, and the steps inside their items.

Part of `JournalContract`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, ClassVar

import pytest

from durable_core.journal.base import Departure, as_seen
from durable_core.records import COMPLETED, MAP_KIND, SUSPENDED, Child
from durable_core.testing.samples import (
    AT,
    LEASE_MS,
    MANY,
    OVER_MS,
    RUN,
    attempt,
    chunk,
    chunk_lease,
    committed,
    driven,
    gathered,
    header,
    pruning,
    seen_now,
    taken_over,
)

if TYPE_CHECKING:
    from durable_core.journal.base import Journal

SHARED = '{"chunk_size": 100, "total": 250}'


class ChunkListContract:
    """What every journal holds to when chunks are listed, pruned, and worked on.

    Attributes:
        many: How many records are more than a page of the store.
        checks_header: Whether every begin looks at who holds the chunk, or only a guarded one.
    """

    many: ClassVar[int] = MANY
    checks_header: ClassVar[bool] = True

    # ---- begin ----

    @pytest.mark.parametrize("guarded", [False, True])
    def test_steps_inside_an_item_are_begun_by_who_works_on_its_chunk(
        self, runner: asyncio.Runner, journal: Journal, guarded: bool
    ) -> None:
        """Whoever drives the run; once the chunk is another's, no more, where that is looked at."""

        async def begun() -> None:
            await driven(journal, lease_ms=OVER_MS)
            await taken_over(journal)
            first = (await journal.claim(chunk(), None, OVER_MS)).row
            assert first is not None
            inner = attempt("m[3]/s")
            assert (await journal.begin(inner, None, chunk_lease(first), guarded=guarded)).ok
            assert (await journal.claim(chunk(owner="rival", chunk_fence=2), first, LEASE_MS)).ok
            again = attempt("m[3]/s", "a2")
            reply = await journal.begin(again, as_seen(inner), chunk_lease(first), guarded=guarded)
            assert reply.ok is not (guarded or self.checks_header)
            new = await journal.begin(attempt("m[4]/s"), None, chunk_lease(first), guarded=guarded)
            assert new.ok is not (guarded or self.checks_header)

        runner.run(begun())

    # ---- reading ----

    def test_the_chunks_of_a_map_come_in_order_and_without_those_of_others(
        self, runner: asyncio.Runner, journal: Journal
    ) -> None:
        """A map's name may begin like another's."""

        async def listed() -> None:
            for number in (10, 2, 0, 100, 9):
                assert (await journal.claim(chunk(number), None, LEASE_MS)).ok
            for step_id in ("m#2", "m/m", "n", "l"):
                assert (await journal.claim(chunk(5, step_id=step_id), None, LEASE_MS)).ok
            found = await gathered(journal.chunks(RUN, "m"))
            assert [one.chunk for one in found] == [0, 2, 9, 10, 100]
            assert [one.chunk for one in await gathered(journal.chunks(RUN, "m#2"))] == [5]
            assert await gathered(journal.chunks("another", "m")) == []

        runner.run(listed())

    def test_more_chunks_than_a_page_are_all_given(self, runner: asyncio.Runner, journal: Journal) -> None:
        """Each once."""

        async def listed() -> None:
            for start in range(0, self.many, 100):
                numbers = range(start, min(start + 100, self.many))
                await asyncio.gather(*(journal.claim(chunk(n), None, LEASE_MS) for n in numbers))
            found = await gathered(journal.chunks(RUN, "m"))
            assert [one.chunk for one in found] == list(range(self.many))

        runner.run(listed())

    def test_maps_that_are_shared_are_found_while_they_are_open_and_their_run_is_active(
        self, runner: asyncio.Runner, journal: Journal
    ) -> None:
        """Not those that one process runs, nor steps, nor what has an outcome."""

        async def looked() -> None:
            me = await driven(journal)
            shared = attempt("m", kind=MAP_KIND, detail=SHARED)
            alone = attempt("alone", "a2", kind=MAP_KIND, detail='{"total": 250}')
            bare = attempt("bare", "a3", kind=MAP_KIND)
            plain = attempt("s", "a4", detail=SHARED)
            for record in (shared, alone, bare, plain):
                assert (await journal.begin(record, None, me)).ok
            assert await journal.open_maps() == [shared]
            other = await driven(journal, "run-2")
            theirs = attempt("m", "a5", "run-2", kind=MAP_KIND, detail=SHARED)
            assert (await journal.begin(theirs, None, other)).ok
            assert sorted(await journal.open_maps()) == sorted([shared, theirs])
            assert len(await journal.open_maps(limit=1)) == 1
            assert (await journal.commit(committed(shared, detail=SHARED))).ok
            assert await journal.open_maps() == [theirs]
            assert (await journal.leave(other, Departure(status=SUSPENDED))).ok
            assert await journal.open_maps() == [theirs]
            assert (await journal.cancel(await seen_now(journal, "run-2"), AT)).ok
            assert await journal.open_maps() == []

        runner.run(looked())

    # ---- pruning ----

    def test_chunks_are_pruned_with_their_run_up_to_a_fence(
        self, runner: asyncio.Runner, journal: Journal
    ) -> None:
        """The fence is that of the run, not of the chunk."""

        async def pruned() -> None:
            await journal.create(header(status=COMPLETED, fence=3))
            old = (await journal.claim(chunk(1, fence=3, chunk_fence=9), None, LEASE_MS)).row
            new = (await journal.claim(chunk(2, fence=8), None, LEASE_MS)).row
            pruner = await pruning(journal)
            children = await gathered(journal.children(RUN))
            assert sorted(children) == [Child("chunk", "m", 1, 0, 3), Child("chunk", "m", 2, 0, 8)]
            await journal.delete(RUN, children, pruner.fence)
            assert old is not None
            assert await gathered(journal.chunks(RUN, "m")) == [new]

        runner.run(pruned())
