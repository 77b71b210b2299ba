"""Holding a lease: renewed every third of it, by a clock that counts suspend, until it is lost or let go."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from durable_core.engine.lease import HeldLease, Renewals
from durable_core.errors import DurableError, Fenced, JournalUnavailable
from durable_core.journal.base import Lease, Renewer
from durable_core.journal.chunks import ChunkLease
from durable_core.journal.memory import MemoryJournal
from durable_core.records import CANCELLED, RUNNING, Chunk, Reply, RunHeader
from tests.stores import TurnedClock
from tests.waiting import until

LEASE_MS = 30_000
LEASE = Lease("r1", "me", 1)
HEADER = RunHeader(
    run_id="r1", workflow="w", status=RUNNING, owner="me", fence=1, lease_until_ms=1, created_at="2026"
)


class Renewing(Renewer):
    """A renewer that answers as a test wants."""

    def __init__(self, journal: Watched) -> None:
        self.journal = journal

    def renew(self, lease: Lease, lease_ms: int) -> Reply[RunHeader]:
        self.journal.renewed.append((lease.run_id, threading.current_thread().name))
        if self.journal.answers:
            answer = self.journal.answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer
        return Reply(True, HEADER)

    def renew_chunk(self, lease: ChunkLease, lease_ms: int) -> Reply[Chunk]:
        raise NotImplementedError("no chunks here")

    def close(self) -> None:
        self.journal.closed += 1


class Watched(MemoryJournal):
    def __init__(self, clock: TurnedClock) -> None:
        super().__init__(clock)
        self.answers: list[Any] = []
        self.renewed: list[tuple[str, str]] = []
        self.opened = self.closed = 0

    def open_renewer(self) -> Renewer:
        self.opened += 1
        return Renewing(self)


@pytest.fixture
def clock() -> TurnedClock:
    return TurnedClock()


@pytest.fixture
def journal(clock: TurnedClock) -> Watched:
    return Watched(clock)


@pytest.fixture
def renewals(journal: Watched, clock: TurnedClock) -> Iterator[Renewals]:
    found = Renewals(journal, clock)
    yield found
    for held in list(found._held):
        found.drop(held)
    until(lambda: found._thread is None and journal.opened == journal.closed, "the end of the thread")


def held_by(clock: TurnedClock, lost: list[DurableError] | None = None, lease: Lease = LEASE) -> HeldLease:
    reasons = lost if lost is not None else []
    return HeldLease(lease, LEASE_MS, clock, reasons.append)


def nudge(renewals: Renewals) -> None:
    """Lets the thread look at the clock now."""
    with renewals._changed:
        renewals._changed.notify_all()


# ---- What its holder knows ----


def test_a_lease_may_be_over_from_its_last_millisecond_on(clock: TurnedClock) -> None:
    held = held_by(clock)
    clock.now += LEASE_MS - 1
    assert held.is_over() is False
    clock.now += 1
    assert held.is_over() is True
    clock.now += 10**9
    assert held.is_over() is True


def test_a_renewal_counts_from_when_it_was_asked_for_and_not_from_its_answer(clock: TurnedClock) -> None:
    held = held_by(clock)
    asked = clock.now
    clock.now += 20_000
    held.lengthened(asked)
    clock.now = asked + LEASE_MS
    assert held.is_over() is True


def test_a_renewal_is_due_after_a_third_of_the_lease(clock: TurnedClock) -> None:
    held = held_by(clock)
    assert held.renew_at_ms == clock.now + LEASE_MS // 3


def test_a_renewal_tells_how_often_the_run_was_woken(clock: TurnedClock) -> None:
    held = held_by(clock)
    held.told(Reply(True, replace(HEADER, wake_count=7)))
    assert held.wake_count == 7
    assert held.lost is None


@pytest.mark.parametrize(
    ("header", "why"),
    [
        (None, "gone"),
        (replace(HEADER, status=CANCELLED, fence=2, owner=None), "cancelled"),
        (replace(HEADER, fence=5, owner="other"), "fence 5, ours is 1"),
    ],
)
def test_a_refused_renewal_says_who_has_the_run_and_is_told_once(
    header: RunHeader | None, why: str, clock: TurnedClock
) -> None:
    lost: list[DurableError] = []
    held = held_by(clock, lost)
    held.told(Reply(False, header))
    held.told(Reply(False, None))
    assert len(lost) == 1
    assert isinstance(lost[0], Fenced)
    assert why in str(lost[0])
    assert held.lost is lost[0]


# ---- The thread ----


def test_a_lease_is_renewed_when_a_third_has_passed_and_not_before(
    renewals: Renewals, journal: Watched, clock: TurnedClock
) -> None:
    held = held_by(clock)
    renewals.keep(held)
    clock.now += LEASE_MS // 3 - 1
    nudge(renewals)
    assert journal.renewed == []
    clock.now += 1
    nudge(renewals)
    until(lambda: len(journal.renewed) == 1, "the renewal")
    assert journal.renewed[0][1] != threading.current_thread().name
    until(lambda: held.until_ms == clock.now + LEASE_MS, "the longer lease")


def test_after_suspend_a_lease_is_renewed_at_once(
    renewals: Renewals, journal: Watched, clock: TurnedClock
) -> None:
    held = held_by(clock)
    renewals.keep(held)
    clock.now += 10**8
    until(lambda: journal.renewed, "the renewal")
    assert until(lambda: not held.is_over(), "the longer lease")


def test_a_store_that_is_out_of_reach_is_asked_again_until_it_answers(
    renewals: Renewals, journal: Watched, clock: TurnedClock, capsys: pytest.CaptureFixture[str]
) -> None:
    journal.answers = [JournalUnavailable("down"), JournalUnavailable("down")]
    lost: list[DurableError] = []
    held = held_by(clock, lost)
    renewals.keep(held)
    for expected in (1, 2, 3):
        clock.now += LEASE_MS // 3
        nudge(renewals)
        until(lambda expected=expected: len(journal.renewed) == expected, "the next try")
    assert until(lambda: not held.is_over(), "the longer lease")
    assert lost == []


def test_a_lost_lease_is_told_and_renewed_no_more(
    renewals: Renewals, journal: Watched, clock: TurnedClock
) -> None:
    journal.answers = [Reply(False, replace(HEADER, fence=2, owner="other"))]
    lost: list[DurableError] = []
    renewals.keep(held_by(clock, lost))
    clock.now += LEASE_MS
    nudge(renewals)
    until(lambda: lost, "the news")
    clock.now += LEASE_MS
    nudge(renewals)
    until(lambda: renewals._thread is None, "the end of the thread")
    assert len(journal.renewed) == 1


def test_many_leases_are_renewed_by_one_thread_and_one_let_go_is_not(
    renewals: Renewals, journal: Watched, clock: TurnedClock
) -> None:
    held = [held_by(clock, lease=Lease(f"r{number}", "me", 1)) for number in range(5)]
    for one in held:
        renewals.keep(one)
    renewals.drop(held[2])
    renewals.drop(held[2])
    clock.now += LEASE_MS // 3
    nudge(renewals)
    until(lambda: len(journal.renewed) == 4, "four renewals")
    assert {run_id for run_id, _ in journal.renewed} == {"r0", "r1", "r3", "r4"}
    assert len({thread for _, thread in journal.renewed}) == 1
    assert journal.opened == 1


def test_the_thread_ends_with_the_last_lease_and_begins_again_with_the_next(
    renewals: Renewals, journal: Watched, clock: TurnedClock
) -> None:
    for number in range(3):
        held = held_by(clock)
        renewals.keep(held)
        clock.now += LEASE_MS // 3
        nudge(renewals)
        until(lambda number=number: len(journal.renewed) == number + 1, "the renewal")
        renewals.drop(held)
        until(lambda: renewals._thread is None, "the end of the thread")
    until(lambda: journal.opened == journal.closed == 3, "three connections given back")


def test_a_lease_that_may_be_over_is_renewed_before_anything_more_is_started(
    renewals: Renewals, journal: Watched, clock: TurnedClock
) -> None:
    held = held_by(clock)
    clock.now += LEASE_MS
    renewals.renew_now(held)
    assert held.is_over() is False
    assert (journal.opened, journal.closed) == (1, 1)
    journal.answers = [Reply(False, None)]
    with pytest.raises(Fenced):
        renewals.renew_now(held)
    journal.answers = [JournalUnavailable("down")]
    with pytest.raises(JournalUnavailable):
        renewals.renew_now(held_by(clock))
    assert journal.opened == journal.closed
