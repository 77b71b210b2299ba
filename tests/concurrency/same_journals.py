"""Asks several journals the same: any series of verbs, but those on chunks."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import ClassVar, Final, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from durable_core.journal.base import Departure, Journal, Lease, RunFilter, as_seen
from durable_core.journal.memory import MemoryJournal
from durable_core.journal.sqlite import SqliteJournal
from durable_core.records import (
    ACTIVE,
    COMMITTED,
    COMPLETED,
    ENDED,
    FAILED,
    PENDING,
    PRUNING,
    SKIPPED,
    STARTED,
    SUSPENDED,
    TOMBSTONE,
    Reply,
    RunHeader,
    StepRecord,
)
from durable_core.stores import open_store
from durable_core.testing.fake_clock import FakeClock
from durable_core.testing.samples import (
    AT,
    attempt,
    claim,
    committed,
    event,
    gathered,
    header,
    owned,
    renewed,
    segment,
)  # fmt: skip
from tests.postgres import PostgresServer

T = TypeVar("T")

# A store that goes by a clock which it is given joins here; there is a folder and a database for it, too.
STORES: Final[dict[str, Callable[[Path, str, FakeClock], Journal]]] = {
    "memory": lambda _, __, clock: MemoryJournal(clock),
    "sqlite": lambda folder, _, clock: SqliteJournal(folder / "runs.db", clock),
    "postgres": lambda _, url, clock: open_store(url, clock).journal,
}
RUNS = ("r", "R")
STEPS = ("s", "s/a", "m", "m[0]/s", "m[0]/m[1]/s", "m#2[k-0f]/s")
SCOPES = ("", "s", "s/", "m[0]/", "m[0]/m[1]/", "m#2[")

runs, steps = st.sampled_from(RUNS), st.sampled_from(STEPS)
names, owners, attempts = (
    st.sampled_from(["a", "B"]),
    st.sampled_from(["x", "y"]),
    st.sampled_from(["a1", "a2"]),
)
known = st.none() | attempts
small, ago = st.integers(0, 2), st.sampled_from([0, 0, 0, 1, 2])
rarely = st.sampled_from([False, False, False, True])
leases_ms = st.sampled_from([-1, 0, 10])
outcomes = st.sampled_from([COMMITTED, FAILED, STARTED, SKIPPED])


class SameJournals(RuleBasedStateMachine):
    """Asks each store the same, in the same order, with what any owner of a run may have seen by then."""

    server: ClassVar[PostgresServer]

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.left = ExitStack()
        folder = Path(self.left.enter_context(tempfile.TemporaryDirectory()))
        self.runner = self.left.enter_context(asyncio.Runner())
        self.journals = self.made(folder)
        for journal in self.journals.values():
            self.runner.run(_opened(journal))
        self.headers: dict[str, list[RunHeader]] = {run: [] for run in RUNS}
        self.written = 0
        self.drive("r", "x")

    def made(self, folder: Path) -> dict[str, Journal]:
        """The journals that are compared, empty."""
        schema = self.server.take_schema()
        self.left.callback(self.server.give_back, schema)
        url = self.server.store(schema)
        return {name: make(folder, url, self.clock) for name, make in STORES.items()}

    def teardown(self) -> None:
        try:
            self.all_rows_are_the_same()
        finally:
            for journal in self.journals.values():
                self.runner.run(journal.close())
            self.left.close()

    # ---- Headers ----

    @rule(run=runs, owner=st.none() | owners, lease_ms=leases_ms, suspended=st.booleans(), past=ago)
    def create(self, run: str, owner: str | None, lease_ms: int, suspended: bool, past: int) -> None:
        old = self.seen(run, past)
        base = old.fence if old is not None and old.status == TOMBSTONE else 0
        if owner is not None:
            new = owned(run, owner, base_fence=base, fence=base + 1)
        else:
            new = header(run, base_fence=base, fence=base, status=SUSPENDED if suspended else PENDING)
        self.ask(run, lambda journal: journal.create(new, lease_ms))

    @rule(run=runs, past=ago, owner=owners, lease_ms=leases_ms, dead=st.none() | owners, how=small)
    def acquire(self, run: str, past: int, owner: str, lease_ms: int, dead: str | None, how: int) -> None:
        seen = self.seen(run, past) or header(run)
        statuses = (ACTIVE, (*ENDED, PRUNING), (FAILED, *ACTIVE))[how]
        wanted = claim(owner, lease_ms, status=PRUNING if how == 1 else "RUNNING", crashes=how)
        self.ask(run, lambda journal: journal.acquire(seen, wanted, statuses=statuses, dead_owner=dead))

    @rule(run=runs, owner=owners)
    def drive(self, run: str, owner: str) -> None:
        """By what it takes: drawn at random few owners would get so far."""
        seen = self.seen(run, 0)
        if seen is None or seen.status == TOMBSTONE:
            self.create(run, owner, 10, False, 0)
        else:
            self.acquire(run, 0, owner, 10, seen.owner, 2)

    @rule(run=runs, past=ago, lease_ms=leases_ms)
    def renew(self, run: str, past: int, lease_ms: int) -> None:
        lease = self.lease(run, past)
        self.ask(run, lambda journal: renewed(journal, lease, lease_ms))

    @rule(
        run=runs,
        past=ago,
        status=st.sampled_from([PENDING, SUSPENDED, COMPLETED, FAILED]),
        counted=st.none() | small,
        keeps=rarely,
        due_ms=st.sampled_from([-10, 0, 10]),
    )
    def leave(self, run: str, past: int, status: str, counted: int | None, keeps: bool, due_ms: int) -> None:
        left = Departure(
            status=status, due_at_ms=self.clock.now_ms() + due_ms, error='{"code":"E"}', keep_lease=keeps,
            keep_error=keeps, output_data=b"x", counts="{}",
        )  # fmt: skip
        lease = self.lease(run, past)
        self.ask(run, lambda journal: journal.leave(lease, left, wake_count=counted))

    @rule(run=runs, past=ago)
    def cancel(self, run: str, past: int) -> None:
        seen = self.seen(run, past) or header(run)
        self.ask(run, lambda journal: journal.cancel(seen, AT, "{}"))

    @rule(run=runs, past=ago)
    def wake(self, run: str, past: int) -> None:
        seen = self.seen(run, past) or header(run)
        self.ask(run, lambda journal: journal.wake(seen))

    @rule(ms=st.sampled_from([1, 20, 5_000]))
    def time_passes(self, ms: int) -> None:
        self.clock.advance(ms=ms)

    # ---- Steps ----

    @rule(
        run=runs, past=ago, step=steps, attempt_id=attempts, status=outcomes, how=small, blind=st.booleans()
    )
    def begin(
        self, run: str, past: int, step: str, attempt_id: str, status: str, how: int, blind: bool
    ) -> None:
        lease = self.lease(run, past)
        old = None if blind else self.now(run, step)
        new = attempt(step, attempt_id, run, fence=lease.fence, step_index=self.count(), detail="{}")
        if how == 2:
            new = committed(new, status=status, output_ref="ref")
            self.ask(run, lambda journal: journal.put(new, as_seen(old), lease))
        else:
            self.ask(run, lambda journal: journal.begin(new, as_seen(old), lease, guarded=how == 1))

    @rule(run=runs, step=steps, attempt_id=known, status=outcomes)
    def commit(self, run: str, step: str, attempt_id: str | None, status: str) -> None:
        if attempt_id is None:
            self.begin(run, 0, step, "anew", STARTED, 0, False)
        outcome = self.outcome(run, step, attempt_id)._replace(status=status)
        self.ask(run, lambda journal: journal.commit(outcome))

    # ---- Segments and events ----

    @rule(run=runs, step=steps, chunk=small, seq=small, items=small, fence=small, refs=st.booleans())
    def append(self, run: str, step: str, chunk: int, seq: int, items: int, fence: int, refs: bool) -> None:
        new = segment(
            seq, f"g{self.count()}", step, run_id=run, chunk=chunk, items=items, fence=fence,
            refs='["a","b"]' if refs else None,
        )  # fmt: skip
        self.ask(run, lambda journal: journal.append(new))

    @rule(run=runs, past=ago, name=names, seq=small, early=rarely)
    def send(self, run: str, past: int, name: str, seq: int, early: bool) -> None:
        seen = None if early else self.seen(run, past)
        fence = seen.base_fence + 1 if seen is not None else 1
        new = event(seq, f"e{self.count()}", name, run_id=run, fence=fence, ref="ref" if seq else None)
        self.ask(run, lambda journal: journal.send(new, seen))

    @rule(run=runs, name=names, seq=small, step=steps, attempt_id=known)
    def take(self, run: str, name: str, seq: int, step: str, attempt_id: str | None) -> None:
        wanted, outcome = event(seq, "any", name, run_id=run), self.outcome(run, step, attempt_id)
        self.ask(run, lambda journal: journal.take(wanted, outcome))

    @rule(run=runs, name=names, seq=small, step=steps)
    def send_and_take(self, run: str, name: str, seq: int, step: str) -> None:
        self.begin(run, 0, step, "waits", STARTED, 0, False)
        self.send(run, 0, name, seq, False)
        self.take(run, name, seq, step, None)

    # ---- Pruning ----

    @rule(run=runs, fence=small, every=st.integers(1, 3))
    def delete(self, run: str, fence: int, every: int) -> None:
        listed = sorted(self.same(lambda journal: _sorted(gathered(journal.children(run)))))[::every]
        self.same(lambda journal: journal.delete(run, listed, fence))

    @rule(run=runs, past=ago)
    def bury(self, run: str, past: int) -> None:
        lease = self.lease(run, past)
        self.ask(run, lambda journal: journal.bury(lease, AT))

    @rule(run=runs, owner=owners)
    def prune(self, run: str, owner: str) -> None:
        """From end to end: drawn verb by verb it hardly ever comes so far."""
        self.cancel(run, 0)
        self.acquire(run, 0, owner, -1, None, 1)
        self.bury(run, 0)

    @rule(run=runs, past=ago, end_s=st.sampled_from([-1, 2]))
    def expire(self, run: str, past: int, end_s: int) -> None:
        if past == 0:
            self.prune(run, "x")
        seen = self.seen(run, past) or header(run)
        expires_at_s = self.clock.now_ms() // 1000 + end_s
        self.ask(run, lambda journal: journal.expire(seen, expires_at_s))

    @rule()
    def purge(self) -> None:
        self.same(lambda journal: journal.purge())

    # ---- What is the same ----

    def ask(self, run: str, write: Callable[[Journal], Awaitable[Reply[T]]]) -> None:
        """A conditional write: the same reply from each, then the same header, and the same runs due."""
        replies = {name: self.runner.run(_told(write(journal))) for name, journal in self.journals.items()}
        (first, *others) = replies.values()
        for reply in others:
            assert reply.ok == first.ok, replies
            # What was applied may be told or not.
            assert reply.row == first.row or (reply.ok and None in (reply.row, first.row)), replies
        self.same(lambda journal: journal.due())
        now = self.same(lambda journal: journal.header(run))
        if now is not None and now not in self.headers[run]:
            self.headers[run].append(now)

    def same(self, read: Callable[[Journal], Awaitable[T]]) -> T:
        """What each of them answers."""
        answers = {name: self.runner.run(_told(read(journal))) for name, journal in self.journals.items()}
        (first, *others) = answers.values()
        assert all(answer == first for answer in others), answers
        return first

    def all_rows_are_the_same(self) -> None:
        self.same(lambda journal: journal.due())
        self.same(lambda journal: journal.runs(RunFilter()))
        self.same(lambda journal: journal.tombstones("9999-12-31T00:00:00.000Z"))
        for run in RUNS:
            self.same(lambda journal, run=run: _sorted(gathered(journal.steps(run))))
            self.same(lambda journal, run=run: gathered(journal.events(run)))
            self.same(lambda journal, run=run: gathered(journal.events(run, "a")))
            self.same(lambda journal, run=run: _sorted(gathered(journal.children(run))))
            for fence in range(3):
                self.same(lambda journal, run=run, fence=fence: journal.progressed(run, fence))
            for scope in SCOPES:
                self.same(lambda journal, run=run, scope=scope: _replayed(journal, run, scope))
            for step in STEPS:
                for chunk in range(3):
                    where = (run, step, chunk)
                    self.same(lambda journal, where=where: gathered(journal.segments(*where)))
                    self.same(lambda journal, where=where: journal.last_segment(*where))

    # ---- What somebody may know ----

    def seen(self, run: str, past: int) -> RunHeader | None:
        """The header, or one that it was some time ago."""
        known = self.headers[run]
        return known[max(0, len(known) - 1 - past)] if known else None

    def lease(self, run: str, past: int) -> Lease:
        """Of the last owner, or of one before."""
        held = [one for one in self.headers[run] if one.owner is not None]
        if not held:
            return Lease(run, "nobody", 1)
        of = held[max(0, len(held) - 1 - past)]
        return Lease(run, str(of.owner), of.fence, of.base_fence)

    def now(self, run: str, step: str) -> StepRecord | None:
        """A step's record."""
        return self.same(lambda journal: journal.step(run, step))

    def outcome(self, run: str, step: str, attempt_id: str | None) -> StepRecord:
        """Of the attempt that is there, or of another."""
        now = self.now(run, step)
        known = attempt_id or (now.attempt_id if now is not None else "none")
        return committed(now or attempt(step, run_id=run), b"%d" % self.count(), attempt_id=known)

    def count(self) -> int:
        """So that no two writes are alike."""
        self.written += 1
        return self.written


async def _opened(journal: Journal) -> None:
    await journal.open()


async def _told(answer: Awaitable[T]) -> T:
    return await answer


async def _sorted(rows: Awaitable[list[T]]) -> list[T]:
    """Rows that may come in any order."""
    return sorted(await rows, key=repr)


async def _replayed(journal: Journal, run: str, scope: str) -> list[StepRecord]:
    """Without what a COMMITTED record may come without."""
    left_out = StepRecord(run, "", 0, COMMITTED, *[None] * 7, "", 0, 0, "", 0)
    optional = ("step_index", "started_at", "idempotency_key", "attempt", "crashes", "attempt_id")
    optional += ("error", "detail", "attempts")
    without = {name: getattr(left_out, name) for name in optional}
    found = await _sorted(gathered(journal.replay(run, scope)))
    return [one._replace(**without) if one.status == COMMITTED else one for one in found]
