"""The contract of carrying runs: read as they are stored, and put back. Part of `JournalContract`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import pytest

from durable_core.journal.carrying import KINDS, Kind, Record
from durable_core.records import COMPLETED, PRUNING, Chunk, Event, RunHeader
from durable_core.testing import journal_chunks, journal_segments
from durable_core.testing.samples import (
    AT,
    LEASE_MS,
    MANY,
    OVER_MS,
    RUN,
    attempt,
    committed,
    driven,
    event,
    gathered,
    lease_of,
    owned,
    pruning,
    seen_now,
    segment,
)

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from durable_core.journal.base import Journal, Lease

ROWS: dict[Kind, Record] = {
    "step": committed(attempt()),
    "segment": segment(),
    "event": event(),
    "chunk": journal_chunks.EVERY_COLUMN,
}
OTHERS: dict[Kind, Record] = {
    "step": committed(attempt(), b'"other"'),
    "segment": segment(data=b"other"),
    "event": event(data=b'"other"'),
    "chunk": journal_chunks.EVERY_COLUMN._replace(owner="other"),
}
KIND_NAMES = tuple(KINDS)
WHOLE = RunHeader(
    RUN, "report", "f" * 64, "1" * 64, "2" * 64, b"\x00\xff", None, "json", 2, COMPLETED, "creator", None,
    None, 7, 2, 0, 0, 3, 1, '{"2":true}', "3" * 64, b"\xff", None, "json", 2**40, None, '{"COMMITTED":1}',
    "crew", "run-0", AT, "2026-01-03T00:00:00.000Z", "2026-01-03T00:00:00.001Z",
)  # fmt: skip


class CarryingContract:
    """What every journal holds to when runs are read as they are, and restored.

    Attributes:
        checks_header: Whether a restored record requires the importer's header.
        many: How many records are more than a page of the store.
    """

    checks_header: ClassVar[bool] = True
    many: ClassVar[int] = MANY

    # ---- as_stored ----

    def test_all_of_a_run_is_read_in_the_order_of_its_keys(
        self, runner: asyncio.Runner, journal: Journal
    ) -> None:
        """Texts by their bytes, numbers by their size; of a run whose header isn't there, too."""

        async def read() -> None:
            ids = ["a", "a#2", "a.b", "a/x", "a[0]/x", "A", "z", "_"]
            steps = [attempt(step_id) for step_id in ids]
            logs = [
                segment(seq, f"g{seq}", step_id, chunk=chunk)
                for step_id in ("a", "a#2", "a/x")
                for chunk in (0, 10, 2)
                for seq in (1, 0, 11, 2)
            ]
            events = [event(seq, f"{name}-{seq}", name) for name in ("go", "Go", "a") for seq in (10, 0, 9)]
            lease = await importing(journal)
            for records in (steps, logs, events):
                assert (await journal.restore(records, lease)).ok
            await journal.restore([attempt("a", run_id="run-10")], await importing(journal, "run-10"))
            await journal.restore([attempt("s", run_id="Run-1")], await importing(journal, "Run-1"))
            assert await stored(journal, "step") == sorted(steps, key=lambda one: one.step_id)
            assert await stored(journal, "segment") == sorted(logs, key=lambda one: one[1:4])
            assert await stored(journal, "event") == sorted(events, key=lambda one: one[1:3])
            await journal.append(segment(run_id="nobody"))
            assert await stored(journal, "segment", "nobody") == [segment(run_id="nobody")]
            assert await stored(journal, "step", "nobody") == []

        runner.run(read())

    def test_more_than_a_page_is_read_to_its_end(self, runner: asyncio.Runner, journal: Journal) -> None:
        """Each record once."""

        async def read() -> None:
            steps = [attempt(f"s{n:05d}", f"a{n}") for n in range(self.many)]
            logs = [segment(n, f"g{n}", data=None, items=0) for n in range(40)]
            lease = await importing(journal)
            assert (await journal.restore(steps, lease)).ok
            assert (await journal.restore(logs, lease)).ok
            assert await stored(journal, "step") == steps
            assert await stored(journal, "segment") == logs

        runner.run(read())

    # ---- restore ----

    @pytest.mark.parametrize("of", KIND_NAMES)
    def test_a_record_is_put_where_there_is_none(
        self, runner: asyncio.Runner, journal: Journal, rival: Journal, of: Kind
    ) -> None:
        """Each column as it was, and again without harm; another one in its place is refused."""

        async def restored() -> None:
            lease = await importing(journal)
            full = journal_segments.EVERY_COLUMN if of == "segment" else ROWS[of]
            for _ in range(2):
                reply = await journal.restore([full], lease)
                assert (reply.ok, reply.row) == (True, None)
            assert await stored(rival, of) == [full]
            other = OTHERS[of] if isinstance(full, Event | Chunk) else full._replace(attempt_id="x")
            reply = await journal.restore([other], lease)
            assert (reply.ok, reply.row) == (False, full)
            assert await stored(rival, of) == [full]

        runner.run(restored())

    @pytest.mark.parametrize("of", KIND_NAMES)
    @pytest.mark.parametrize(("fence", "gives_way"), [(1, True), (3, True), (4, False)])
    def test_what_an_earlier_life_left_gives_way(
        self, runner: asyncio.Runner, journal: Journal, of: Kind, fence: int, gives_way: bool
    ) -> None:
        """Nothing of this life does."""

        async def restored() -> None:
            lease = await importing(journal, fence=6, base_fence=3)
            old, new = OTHERS[of]._replace(fence=fence), ROWS[of]._replace(fence=5)
            assert (await journal.restore([old], lease)).ok
            reply = await journal.restore([new], lease)
            assert (reply.ok, reply.row) == (gives_way, None if gives_way else old)
            assert await stored(journal, of) == [new if gives_way else old]

        runner.run(restored())

    @pytest.mark.parametrize("of", KIND_NAMES)
    def test_nothing_is_restored_once_the_import_is_somebody_elses(
        self, runner: asyncio.Runner, journal: Journal, of: Kind
    ) -> None:
        """Where only the place is looked at, it lies under the pruner's fence, and counts as absent."""

        async def restored() -> None:
            lease = await importing(journal, lease_ms=OVER_MS)
            assert (await pruning(journal)).fence > lease.fence
            reply = await journal.restore([ROWS[of]], lease)
            assert reply.ok is not self.checks_header
            assert reply.row is None
            assert await stored(journal, of) == ([] if self.checks_header else [ROWS[of]])

        runner.run(restored())

    # ---- restore_header ----

    def test_the_header_of_an_import_is_put_in_its_place_whole(
        self, runner: asyncio.Runner, journal: Journal, rival: Journal
    ) -> None:
        """As it was exported, with all its columns; listed under its own status from then on."""

        async def restored() -> None:
            lease = await importing(journal, fence=7, base_fence=3)
            reply = await journal.restore_header(WHOLE, lease)
            assert (reply.ok, reply.row) == (True, WHOLE)
            assert await rival.header(RUN) == WHOLE
            again = await journal.restore_header(WHOLE, lease)
            assert (again.ok, again.row) == (False, WHOLE)

        runner.run(restored())

    def test_a_header_is_restored_only_by_who_holds_the_import(
        self, runner: asyncio.Runner, journal: Journal
    ) -> None:
        """A pruner that took it over has it for itself."""

        async def restored() -> None:
            lease = await importing(journal, lease_ms=OVER_MS)
            pruner = await pruning(journal)
            reply = await journal.restore_header(WHOLE, lease)
            assert (reply.ok, reply.row) == (False, await seen_now(journal))
            assert (await seen_now(journal)).owner == pruner.owner
            for wrong in (pruner._replace(fence=1), pruner._replace(owner="else")):
                assert not (await journal.restore_header(WHOLE, wrong)).ok
            assert (await journal.restore_header(replace(WHOLE, fence=pruner.fence), pruner)).ok

        runner.run(restored())


async def importing(
    journal: Journal,
    run_id: str = RUN,
    *,
    fence: int = 1,
    base_fence: int = 0,
    lease_ms: int = LEASE_MS,
) -> Lease:
    """The lease of who imports a run; over a tombstone, if there is to be an earlier life."""
    if base_fence:
        await driven(journal, run_id, lease_ms=OVER_MS)
        ended = await journal.cancel(await seen_now(journal, run_id), AT)
        assert ended.ok
        pruner = await pruning(journal, run_id=run_id)
        while pruner.fence < base_fence:
            pruner = await pruning(journal, run_id=run_id)
        assert (await journal.bury(pruner, AT)).ok
        base_fence = pruner.fence
    made = owned(run_id, "importer", status=PRUNING, fence=max(fence, base_fence), base_fence=base_fence)
    return lease_of((await journal.create(made, lease_ms)).row)


async def stored(journal: Journal, kind: Kind, run_id: str = RUN) -> Sequence[object]:
    """All that a run has of a kind."""
    return await gathered(journal.as_stored(run_id, kind))
