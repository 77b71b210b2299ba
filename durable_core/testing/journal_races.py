"""The contract of a journal in races: of many that saw the same, one wins. Part of `JournalContract`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

import pytest

from durable_core.journal.base import as_seen
from durable_core.records import COMPLETED, PRUNING, TOMBSTONE
from durable_core.testing.samples import (
    AT,
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
    seen_now,
    segment,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from durable_core.journal.base import Journal
    from durable_core.records import Event, Reply, RunHeader, Segment, StepRecord

Row = TypeVar("Row")
RACERS = 8


class RaceContract:
    """What every journal holds to when eight writers want the same, half of them as another process."""

    @pytest.mark.parametrize("verb", ["create", "acquire", "cancel"])
    def test_of_many_that_saw_the_same_header_one_wins(
        self, runner: asyncio.Runner, journal: Journal, rival: Journal, verb: str
    ) -> None:
        """And the others are shown what stood in their way."""

        async def race() -> None:
            if verb != "create":
                await journal.create(header())
            verbs: dict[str, Callable[[Journal, int], Awaitable[Reply[RunHeader]]]] = {
                "create": lambda store, n: store.create(header(created_by=f"c{n}")),
                "acquire": lambda store, n: store.acquire(header(), claim(f"o{n}")),
                "cancel": lambda store, n: store.cancel(header(), AT, f'{{"by":{n}}}'),
            }
            calls = [verbs[verb]((journal, rival)[n % 2], n) for n in range(RACERS)]
            _one_wins(await asyncio.gather(*calls), await journal.header(RUN))

        runner.run(race())

    @pytest.mark.parametrize("live", [0, 8])
    @pytest.mark.parametrize("verb", ["begin", "begin anew", "guarded", "commit", "put"])
    def test_of_many_that_saw_the_same_record_one_wins(
        self, runner: asyncio.Runner, journal: Journal, rival: Journal, verb: str, live: int
    ) -> None:
        """Whether the journal groups its writes or not."""

        async def race() -> None:
            me, old = await driven(journal), attempt(attempt_id="old")
            if verb in ("begin anew", "commit"):
                await journal.begin(old, None, me)
            fresh = [attempt(attempt_id=f"a{n}") for n in range(RACERS)]
            verbs: dict[str, Callable[[Journal, int], Awaitable[Reply[StepRecord]]]] = {
                "begin": lambda store, n: store.begin(fresh[n], None, me),
                "begin anew": lambda store, n: store.begin(fresh[n], as_seen(old), me),
                "guarded": lambda store, n: store.begin(fresh[n], None, me, guarded=True),
                "commit": lambda store, n: store.commit(committed(old, b"%d" % n)),
                "put": lambda store, n: store.put(committed(fresh[n]), None, me),
            }
            journal.live = rival.live = live
            calls = [verbs[verb]((journal, rival)[n % 2], n) for n in range(RACERS)]
            _one_wins(await asyncio.gather(*calls), await journal.step(RUN, "s"))

        runner.run(race())

    @pytest.mark.parametrize("live", [0, 8])
    def test_of_many_segments_for_one_place_one_is_put(
        self, runner: asyncio.Runner, journal: Journal, rival: Journal, live: int
    ) -> None:
        """And the others are shown it."""

        async def race() -> None:
            journal.live = rival.live = live
            calls = [
                (journal, rival)[n % 2].append(segment(3, f"g{n}", fence=n, items=n % 3))
                for n in range(RACERS)
            ]
            replies: Sequence[Reply[Segment]] = await asyncio.gather(*calls)
            (now,) = await gathered(journal.segments(RUN, "m"))
            _one_wins(replies, now)

        runner.run(race())

    @pytest.mark.parametrize("early", [False, True])
    def test_of_many_events_for_one_place_one_is_put(
        self, runner: asyncio.Runner, journal: Journal, rival: Journal, early: bool
    ) -> None:
        """And the run is woken once."""

        async def race() -> None:
            seen = None if early else header()
            if seen is not None:
                await journal.create(seen)
            calls = [(journal, rival)[n % 2].send(event(0, f"e{n}"), seen) for n in range(RACERS)]
            replies: Sequence[Reply[Event]] = await asyncio.gather(*calls)
            (now,) = await gathered(journal.events(RUN))
            _one_wins(replies, now)
            assert await journal.header(RUN) == (None if early else header(wake_count=1))

        runner.run(race())

    def test_of_many_steps_that_want_an_event_one_takes_it(
        self, runner: asyncio.Runner, journal: Journal, rival: Journal
    ) -> None:
        """The others are as they were, each shown its own record."""

        async def race() -> None:
            me = await driven(journal)
            waiting = [attempt(f"s{n}", f"a{n}") for n in range(RACERS)]
            for one in waiting:
                await journal.begin(one, None, me)
            await journal.send(event(), await seen_now(journal))
            calls = [(journal, rival)[n % 2].take(event(), committed(waiting[n])) for n in range(RACERS)]
            replies = await asyncio.gather(*calls)
            (winner,) = [n for n, reply in enumerate(replies) if reply.ok]
            assert await gathered(journal.events(RUN)) == [event(taken_by=f"a{winner}")]
            for n, one in enumerate(waiting):
                now = await journal.step(RUN, one.step_id)
                assert now == (committed(one) if n == winner else one)
                assert n == winner or replies[n].row == one

        runner.run(race())

    def test_of_many_events_that_a_step_could_take_it_takes_one(
        self, runner: asyncio.Runner, journal: Journal, rival: Journal
    ) -> None:
        """The others stay for the next."""

        async def race() -> None:
            me = await driven(journal)
            await journal.begin(attempt(), None, me)
            for n in range(RACERS):
                await journal.send(event(n, f"e{n}"), await seen_now(journal))
            calls = [
                (journal, rival)[n % 2].take(event(n, f"e{n}"), committed(attempt(), b"%d" % n))
                for n in range(RACERS)
            ]
            replies = await asyncio.gather(*calls)
            now = await journal.step(RUN, "s")
            _one_wins(replies, now)
            (winner,) = [n for n, reply in enumerate(replies) if reply.ok]
            assert now == committed(attempt(), b"%d" % winner)
            assert [one.seq for one in await gathered(journal.events(RUN)) if one.taken_by] == [winner]

        runner.run(race())

    def test_a_step_that_times_out_takes_no_event(
        self, runner: asyncio.Runner, journal: Journal, rival: Journal
    ) -> None:
        """Its time-out and its taking race like any two outcomes."""

        async def race() -> None:
            me = await driven(journal)
            for n in range(RACERS):
                one = attempt(f"s{n}", f"a{n}")
                await journal.begin(one, None, me)
                await journal.send(event(n, f"e{n}"), await seen_now(journal))
                takes = rival.take(event(n, f"e{n}"), committed(one))
                times_out = journal.commit(committed(one, b"timed out"))
                if n % 2:
                    taken, timed_out = await asyncio.gather(takes, times_out)
                else:
                    timed_out, taken = await asyncio.gather(times_out, takes)
                assert taken.ok is not timed_out.ok
                now = (await gathered(journal.events(RUN)))[n]
                assert (now.taken_by is not None) is taken.ok

        runner.run(race())

    @pytest.mark.parametrize("verb", ["acquire", "bury", "expire", "create"])
    def test_of_many_that_prune_a_run_or_begin_it_anew_one_wins(
        self, runner: asyncio.Runner, journal: Journal, rival: Journal, verb: str
    ) -> None:
        """At each step of it."""

        async def race() -> None:
            ended, tombstone = header(status=COMPLETED), header(status=TOMBSTONE, fence=1, base_fence=1)
            pruned = owned(owner="me", status=PRUNING)
            before = {"acquire": ended, "bury": pruned, "expire": tombstone, "create": tombstone}
            await journal.create(before[verb])
            claims = [claim(f"p{n}", status=PRUNING) for n in range(RACERS)]
            verbs: dict[str, Callable[[Journal, int], Awaitable[Reply[RunHeader]]]] = {
                "acquire": lambda store, n: store.acquire(ended, claims[n], statuses=(COMPLETED,)),
                "bury": lambda store, n: store.bury(lease_of(pruned), f"2026-02-03T04:05:06.00{n}Z"),
                "expire": lambda store, n: store.expire(tombstone, 2**33 + n),
                "create": lambda store, n: store.create(header(created_by=f"c{n}", fence=1, base_fence=1)),
            }
            calls = [verbs[verb]((journal, rival)[n % 2], n) for n in range(RACERS)]
            _one_wins(await asyncio.gather(*calls), await journal.header(RUN))

        runner.run(race())


def _one_wins(replies: Sequence[Reply[Row]], now: Row | None) -> None:
    assert now is not None
    assert [reply.ok for reply in replies].count(True) == 1
    assert all(reply.row == now for reply in replies if not reply.ok)
