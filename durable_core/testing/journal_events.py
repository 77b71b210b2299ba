"""The contract of a journal's events: sent to one life of a run, taken once. Part of `JournalContract`."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import pytest

from durable_core.journal.base import as_seen
from durable_core.records import (
    ACTIVE,
    COMMITTED,
    ENDED,
    FAILED,
    PENDING,
    PRUNING,
    SUSPENDED,
    TOMBSTONE,
    Event,
    RunHeader,
)
from durable_core.testing.samples import (
    MANY,
    OVER_MS,
    RUN,
    attempt,
    committed,
    driven,
    event,
    gathered,
    header,
    owned,
    seen_now,
    taken_over,
    time_of,
)

if TYPE_CHECKING:
    from durable_core.journal.base import Journal, Lease
    from durable_core.records import StepRecord

STATUSES = (*ACTIVE, *ENDED, PRUNING, TOMBSTONE)
EVERY_COLUMN = Event(
    RUN, "approval", 12_345, "e1", 4, b"\x00\xff", "runs/run-1/a-b", "json+zstd", 2**40, "8" * 64,
    "2026-01-02T03:04:05.678Z", "a0",
)  # fmt: skip
NAMES = ("+", "-a", "=", "A", "Approval", "a", "a+b", "a-b", "a.b", "a:b", "a@b", "aB", "a_b", "ab", "b")


class EventContract:
    """What every journal holds to when events are sent, taken and read.

    Attributes:
        many: How many records are more than a page of the store.
    """

    many: ClassVar[int] = MANY

    # ---- send ----

    @pytest.mark.parametrize(
        "made",
        [
            pytest.param(EVERY_COLUMN, id="each column told apart from each other"),
            pytest.param(Event(RUN, "approval", 0, "e1", 1), id="all but empty"),
            pytest.param(event(data=b"", size=0), id="nothing is not None"),
            pytest.param(event(data=bytes(range(256)), event_id="'é😀\"%_\\;--"), id="any bytes, any id"),
        ],
    )
    def test_an_event_comes_back_as_it_was_sent(
        self, runner: asyncio.Runner, journal: Journal, made: Event
    ) -> None:
        """Among all of the run's, and among those of its name."""

        async def sent() -> None:
            assert (await journal.send(made, None)).ok
            assert await gathered(journal.events(RUN)) == [made]
            assert await gathered(journal.events(RUN, "approval")) == [made]
            assert await gathered(journal.events(RUN, "other")) == []

        runner.run(sent())

    @pytest.mark.parametrize("status", STATUSES)
    def test_an_event_wakes_an_active_run(
        self, runner: asyncio.Runner, journal: Journal, status: str
    ) -> None:
        """A sleeping one is due now; nothing else changes, and nothing at all of one that isn't active."""

        async def sent() -> None:
            old = header(status=status, fence=3, base_fence=2, wake_count=4, due_at_ms=2**45, crashes=1)
            await journal.create(old)
            before_ms = await time_of(journal, "before")
            assert (await journal.send(event(fence=3), old)).ok
            after_ms = await time_of(journal, "after")
            now = await seen_now(journal)
            if status == SUSPENDED:
                assert before_ms <= now.due_at_ms <= after_ms
                assert now == replace(old, status=PENDING, wake_count=5, due_at_ms=now.due_at_ms)
            elif status in ACTIVE:
                assert now == replace(old, wake_count=5)
            else:
                assert now == old
            assert await gathered(journal.events(RUN)) == [event(fence=3)]

        runner.run(sent())

    def test_an_event_wakes_whoever_drives_the_run(self, runner: asyncio.Runner, journal: Journal) -> None:
        """Which keeps its lease, and is told at its next renewal or departure."""

        async def sent() -> None:
            await driven(journal)
            before = await seen_now(journal)
            assert (await journal.send(event(), before)).ok
            assert await seen_now(journal) == replace(before, wake_count=1)

        runner.run(sent())

    def test_an_event_may_come_before_its_run(self, runner: asyncio.Runner, journal: Journal) -> None:
        """It waits for the run, whose header isn't touched by it."""

        async def sent() -> None:
            assert (await journal.send(event(), None)).ok
            assert await journal.header(RUN) is None
            assert (await journal.create(header())).row == header()
            assert await seen_now(journal) == header()
            assert await gathered(journal.events(RUN)) == [event()]

        runner.run(sent())

    def test_an_event_may_be_sent_early_to_the_next_life_of_a_pruned_run(
        self, runner: asyncio.Runner, journal: Journal
    ) -> None:
        """Under the fence after the tombstone's; the tombstone stays as it is."""

        async def sent() -> None:
            tombstone = header(status=TOMBSTONE, fence=3, base_fence=3)
            await journal.create(tombstone)
            assert (await journal.send(event(fence=4), tombstone)).ok
            assert await seen_now(journal) == tombstone
            new = header(base_fence=3, fence=3)
            assert (await journal.create(new)).ok
            assert await gathered(journal.events(RUN)) == [event(fence=4)]
            reply = await journal.send(event(1, "e2", fence=4), tombstone)  # by now it lives
            assert (reply.ok, reply.row) == (False, None)
            assert (await journal.send(event(1, "e2", fence=4), new)).ok

        runner.run(sent())

    def test_an_event_is_sent_once_to_a_place(self, runner: asyncio.Runner, journal: Journal) -> None:
        """The refusal shows the one in the way, by whose id a sender knows its own; nobody is woken again."""

        async def sent() -> None:
            await journal.create(header(status=SUSPENDED))
            seen = await seen_now(journal)
            assert (await journal.send(event(), seen)).ok
            woken = await seen_now(journal)
            for late in (event(), event(event_id="e2"), event(data=b"other"), event(fence=9)):
                reply = await journal.send(late, seen)
                assert (reply.ok, reply.row) == (False, event())
            assert await seen_now(journal) == woken
            assert await gathered(journal.events(RUN)) == [event()]
            for other in (event(1), event(0, name="Approval"), event(0, name="approval-2")):
                assert (await journal.send(other, seen)).ok
            assert (await seen_now(journal)).wake_count == woken.wake_count + 3

        runner.run(sent())

    def test_a_sender_whose_reply_was_lost_finds_its_event_also_when_the_run_began_meanwhile(
        self, runner: asyncio.Runner, journal: Journal
    ) -> None:
        """What is in the way is shown first, then the header; also after somebody took it."""

        async def sent() -> None:
            assert (await journal.send(event(), None)).ok
            me = await driven(journal)
            reply = await journal.send(event(), None)
            assert (reply.ok, reply.row) == (False, event())
            await journal.begin(attempt(), None, me)
            await journal.take(event(), committed(attempt()))
            reply = await journal.send(event(), await seen_now(journal))
            assert (reply.ok, reply.row) == (False, event(taken_by="a1"))

        runner.run(sent())

    @pytest.mark.parametrize(
        ("now", "seen"),
        [
            pytest.param(header(), None, id="created since"),
            pytest.param(None, header(), id="gone"),
            pytest.param(header(base_fence=3, fence=4), header(fence=4), id="a later life"),
            pytest.param(header(fence=4), header(base_fence=3, fence=4), id="an earlier life"),
            pytest.param(header(status=TOMBSTONE, fence=3, base_fence=3), None, id="a tombstone for nothing"),
            pytest.param(header(status=TOMBSTONE, fence=3, base_fence=3), header(fence=3), id="pruned since"),
            pytest.param(
                header(fence=3, base_fence=3),
                header(status=TOMBSTONE, fence=3, base_fence=3),
                id="begun anew since",
            ),
            pytest.param(
                header(status=TOMBSTONE, fence=5, base_fence=5),
                header(status=TOMBSTONE, fence=3, base_fence=3),
                id="pruned again since",
            ),
            pytest.param(None, header(status=TOMBSTONE, fence=3, base_fence=3), id="the tombstone is gone"),
        ],
    )
    def test_an_event_is_for_the_life_that_its_sender_saw(
        self, runner: asyncio.Runner, journal: Journal, now: RunHeader | None, seen: RunHeader | None
    ) -> None:
        """Another life isn't woken and gets nothing; no event is shown: the header was the reason."""

        async def sent() -> None:
            if now is not None:
                await journal.create(now)
            reply = await journal.send(event(), seen)
            assert (reply.ok, reply.row) == (False, None)
            assert await journal.header(RUN) == now
            assert await gathered(journal.events(RUN)) == []

        runner.run(sent())

    def test_whatever_else_befell_the_run_since_its_sender_looked_an_event_reaches_it(
        self, runner: asyncio.Runner, journal: Journal
    ) -> None:
        """Taken over, woken, suspended, ended: it is the same life."""

        async def sent() -> None:
            seen = owned()
            await journal.create(seen, OVER_MS)
            await taken_over(journal)
            assert (await journal.send(event(0), seen)).ok
            assert (await journal.send(event(1, "e2"), seen)).ok
            now = await seen_now(journal)
            assert (now.wake_count, now.fence) == (2, 2)
            await journal.cancel(now, "2026-01-03T00:00:00.000Z")
            assert (await journal.send(event(2, "e3"), seen)).ok
            assert [one.event_id for one in await gathered(journal.events(RUN))] == ["e1", "e2", "e3"]

        runner.run(sent())

    # ---- take ----

    @pytest.mark.parametrize("status", [COMMITTED, FAILED])
    def test_a_waiting_step_takes_an_event_with_its_outcome(
        self, runner: asyncio.Runner, journal: Journal, status: str
    ) -> None:
        """Each is written whole; neither the header nor another event changes. Also by who lost the run."""

        async def taken() -> None:
            me = await driven(journal, lease_ms=OVER_MS)
            await journal.send(event(0), await seen_now(journal))
            await journal.send(event(1, "e2"), await seen_now(journal))
            await journal.begin(attempt(), None, me)
            await taken_over(journal)
            before = await seen_now(journal)
            outcome = committed(attempt(), status=status, error='{"code":"E"}', detail="{}", attempts="[]")
            assert (await journal.take(event(0), outcome)).ok
            assert await journal.step(RUN, "s") == outcome
            assert await gathered(journal.events(RUN)) == [event(0, taken_by="a1"), event(1, "e2")]
            assert await seen_now(journal) == before

        runner.run(taken())

    def test_an_event_that_somebody_has_taken_is_taken_by_nobody_else(
        self, runner: asyncio.Runner, journal: Journal
    ) -> None:
        """Nor one that isn't there: the refusal shows the attempt as it was, so the event was the reason."""

        async def taken() -> None:
            await _waiting(journal, "s", "t")
            await journal.take(event(), _outcome("s"))
            for missing in (event(), event(1), event(name="other"), event(run_id="run-10")):
                reply = await journal.take(missing, _outcome("t"))
                assert (reply.ok, reply.row) == (False, attempt("t", "t"))
                assert await journal.step(RUN, "t") == attempt("t", "t")
            assert await gathered(journal.events(RUN)) == [event(taken_by="s"), event(1, "e2", "next")]

        runner.run(taken())

    def test_whoever_lost_the_reply_to_a_take_finds_its_outcome(
        self, runner: asyncio.Runner, journal: Journal
    ) -> None:
        """The refusal shows it."""

        async def taken() -> None:
            await _waiting(journal, "s")
            assert (await journal.take(event(), _outcome("s"))).ok
            reply = await journal.take(event(), _outcome("s"))
            assert (reply.ok, reply.row) == (False, _outcome("s"))
            assert (await gathered(journal.events(RUN, "approval")))[0].taken_by == "s"

        runner.run(taken())

    @pytest.mark.parametrize(
        "why", ["another attempt", "another key", "committed", "failed", "begun anew", "nothing there"]
    )
    def test_a_step_that_waits_no_more_takes_no_event(
        self, runner: asyncio.Runner, journal: Journal, why: str
    ) -> None:
        """What `commit` would refuse; the event stays for the next, and the refusal shows the record."""

        async def taken() -> None:
            me = await _waiting(journal, "s")
            outcome, there = _outcome("s"), attempt("s", "s")
            if why == "another attempt":
                outcome = outcome._replace(attempt_id="old")
            elif why == "another key":
                outcome = outcome._replace(idempotency_key="x" * 64)
            elif why in ("committed", "failed"):
                there = _outcome("s")._replace(status=why.upper(), output_data=b"timed out")
                await journal.commit(there)
            elif why == "begun anew":
                there = attempt("s", "anew")
                await journal.begin(there, as_seen(attempt("s", "s")), me)
            else:
                outcome = outcome._replace(step_id="none")
            reply = await journal.take(event(), outcome)
            assert (reply.ok, reply.row) == (False, None if why == "nothing there" else there)
            assert await journal.step(RUN, "s") == there
            assert await gathered(journal.events(RUN, "approval")) == [event()]

        runner.run(taken())

    # ---- reads ----

    def test_events_come_by_name_and_in_the_order_they_were_sent(
        self, runner: asyncio.Runner, journal: Journal
    ) -> None:
        """Names by their characters' codes, places as numbers; taken ones too."""

        async def read() -> None:
            made = [event(seq, f"{name}{seq}", name) for name in NAMES for seq in (0, 2, 10)]
            for one in reversed(made):
                await journal.send(one, None)
            assert await gathered(journal.events(RUN)) == made
            for name in NAMES:
                found = await gathered(journal.events(RUN, name))
                assert [(one.name, one.seq) for one in found] == [(name, 0), (name, 2), (name, 10)]

        runner.run(read())

    def test_events_are_of_their_own_run_only(self, runner: asyncio.Runner, journal: Journal) -> None:
        """Runs whose ids begin alike, or differ in a wildcard or in case, share nothing; lives of one do."""

        async def read() -> None:
            ids = ("run-1", "run-10", "run_1", "Run-1", "run-1.1")
            for run_id in ids:
                assert (await journal.send(event(run_id=run_id, event_id=run_id), None)).ok
            await journal.send(event(1, "later", fence=5), None)
            assert [one.event_id for one in await gathered(journal.events(RUN))] == ["run-1", "later"]
            for run_id in ids[1:]:
                assert [one.event_id for one in await gathered(journal.events(run_id))] == [run_id]
            assert await gathered(journal.events("none")) == []

        runner.run(read())

    def test_thousands_of_events_are_read_to_the_end(self, runner: asyncio.Runner, journal: Journal) -> None:
        """None twice, none left out, of one name or of all; others may be sent between the pages."""

        async def read() -> None:
            made = [event(seq, f"e{seq}", "many", data=b"x" * 600) for seq in range(self.many)]
            made.append(event(0, "z", "z"))
            journal.live = 2
            for start in range(0, len(made), 100):
                await asyncio.gather(*(journal.send(one, None) for one in made[start : start + 100]))
            journal.live = 0
            assert await gathered(journal.events(RUN)) == made
            found: list[Event] = []
            async for page in journal.events(RUN, "many"):
                found += page
                assert (await journal.send(event(0, "new", f"new-{len(found)}"), None)).ok
            assert found == made[:-1]

        runner.run(read())


async def _waiting(journal: Journal, *step_ids: str) -> Lease:
    """Steps that wait, each under an attempt of its own name, and two events."""
    me = await driven(journal)
    for step_id in step_ids:
        await journal.begin(attempt(step_id, step_id), None, me)
    await journal.send(event(), await seen_now(journal))
    await journal.send(event(1, "e2", "next"), await seen_now(journal))
    return me


def _outcome(step_id: str) -> StepRecord:
    return committed(attempt(step_id, step_id))
