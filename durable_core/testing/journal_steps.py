"""The contract of a journal's step records: whose outcome counts. Part of `JournalContract`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, ClassVar

import pytest

from durable_core.journal.base import Departure, as_seen
from durable_core.records import COMMITTED, FAILED, PENDING, SKIPPED, STARTED, Seen, StepRecord
from durable_core.testing.samples import MANY, OVER_MS, RUN, attempt, committed, driven, header, taken_over

if TYPE_CHECKING:
    from durable_core.journal.base import Journal, Lease

ODD_STEP_IDS = (
    "s#2", "a/b/c", "m[0]", "m[k-0f]", "o'brien", 'say "x"', "a%b", "a_b", "a\\b", "S", "STEP#s", "s!1",
    "é😀", "x" * 500,
)  # fmt: skip
ODD_OUTPUTS = (b"", b"\x00", bytes(range(256)), b"'; DROP TABLE checkpoints; --", b"\xff\xfe", b"x" * 8192)
EVERY_COLUMN = StepRecord(
    RUN, "s", 7, STARTED, "3" * 64, "4" * 64, b"\x00\xff", "runs/run-1/a-b", "json+zstd",
    "2026-01-01T00:00:00.001Z", "2026-01-01T00:00:00.002Z", "k" * 64, 3, 2, "a1", 1, "event", 2**40,
    '{"message":"\\ud800 \\u0000"}', '{"errors":1}', '[{"attempt":1}]',
)  # fmt: skip


class StepContract:
    """What every journal holds to when steps are begun, committed, put and read.

    Attributes:
        many: How many records are more than a page of the store.
    """

    checks_header: ClassVar[bool] = True
    many: ClassVar[int] = MANY

    # ---- begin ----

    def test_a_record_comes_back_as_it_was_written(self, runner: asyncio.Runner, journal: Journal) -> None:
        """Each column, told apart from each other; begun, begun anew, and committed."""

        async def written() -> None:
            me = await driven(journal)
            for record, seen in (
                (EVERY_COLUMN, None),
                (EVERY_COLUMN._replace(attempt_id="a2", attempt=4, detail=None, crashes=0), EVERY_COLUMN),
                (attempt(attempt_id="a3"), EVERY_COLUMN._replace(attempt_id="a2")),
            ):
                assert (await journal.begin(record, as_seen(seen), me)).ok
                assert await journal.step(RUN, "s") == record
            outcome = committed(
                attempt(attempt_id="a3"), error="{}", detail="{}", attempts="[]", output_ref="r"
            )
            assert (await journal.commit(outcome)).ok
            assert await journal.step(RUN, "s") == outcome

        runner.run(written())

    def test_a_step_is_begun_as_new_only_where_nothing_is(
        self, runner: asyncio.Runner, journal: Journal
    ) -> None:
        """The refusal shows what is there; one's own earlier try among it."""

        async def begun() -> None:
            me = await driven(journal)
            first = attempt()
            assert (await journal.begin(first, None, me)).ok
            reply = await journal.begin(attempt(attempt_id="a2"), None, me)
            assert (reply.ok, reply.row) == (False, first)
            reply = await journal.begin(first, None, me)
            assert (reply.ok, reply.row) == (False, first)
            assert await journal.step(RUN, "s") == first

        runner.run(begun())

    @pytest.mark.parametrize("status", [STARTED, COMMITTED, SKIPPED, FAILED])
    @pytest.mark.parametrize("guarded", [False, True])
    def test_a_step_is_begun_anew_over_exactly_what_was_seen(
        self, runner: asyncio.Runner, journal: Journal, status: str, guarded: bool
    ) -> None:
        """The same status and the same attempt."""

        async def begun() -> None:
            me = await driven(journal)
            old = attempt(attempt_id="a1", status=status)
            await journal.begin(old, None, me)
            new = attempt(attempt_id="a2")
            others = [other for other in (STARTED, COMMITTED, SKIPPED, FAILED) if other != status]
            wrong = [None, Seen(status, "a2"), Seen(status, ""), *(Seen(other, "a1") for other in others)]
            for seen in wrong:
                reply = await journal.begin(new, seen, me, guarded=guarded)
                assert (reply.ok, reply.row) == (False, old)
            assert await journal.step(RUN, "s") == old
            assert (await journal.begin(new, Seen(status, "a1"), me, guarded=guarded)).ok
            assert await journal.step(RUN, "s") == new

        runner.run(begun())

    def test_a_record_that_is_gone_is_not_begun_anew(self, runner: asyncio.Runner, journal: Journal) -> None:
        """The refusal shows that nothing is there."""

        async def begun() -> None:
            me = await driven(journal)
            reply = await journal.begin(attempt(), Seen(STARTED, "a0"), me)
            assert (reply.ok, reply.row) == (False, None)
            assert await journal.step(RUN, "s") is None

        runner.run(begun())

    @pytest.mark.parametrize("why", ["taken over", "cancelled", "left", "another's lease", "gone"])
    @pytest.mark.parametrize("verb", ["begin", "guarded", "skip", "put"])
    @pytest.mark.parametrize("over", [False, True])
    def test_who_has_lost_the_run_begins_nothing_where_the_header_is_checked(
        self, runner: asyncio.Runner, journal: Journal, why: str, verb: str, over: bool
    ) -> None:
        """The refusal then shows the record as it was seen, so that the writer knows the reason."""

        async def begun() -> None:
            me = await driven(journal, lease_ms=OVER_MS)
            old = attempt(attempt_id="a0") if over else None
            if old is not None:
                await journal.begin(old, None, me)
            me = await _lost(journal, me, why)
            if why == "gone":
                old = None
            new = attempt(run_id=me.run_id)
            if verb == "put":
                reply = await journal.put(committed(new), as_seen(old), me)
            elif verb == "skip":
                reply = await journal.begin(new._replace(status=SKIPPED), as_seen(old), me)
            else:
                reply = await journal.begin(new, as_seen(old), me, guarded=verb == "guarded")
            now = await journal.step(me.run_id, "s")
            if self.checks_header or verb == "guarded":
                assert (reply.ok, reply.row, now) == (False, old, old)
            else:
                assert reply.ok
                assert now is not None
                assert now.attempt_id == "a1"

        runner.run(begun())

    # ---- commit ----

    @pytest.mark.parametrize("status", [COMMITTED, FAILED, STARTED])
    def test_the_outcome_of_a_started_attempt_is_written_also_by_who_lost_the_run(
        self, runner: asyncio.Runner, journal: Journal, status: str
    ) -> None:
        """As long as nobody has begun the step anew, its work counts."""

        async def ended() -> None:
            me = await driven(journal, lease_ms=OVER_MS)
            await journal.begin(attempt(), None, me)
            await taken_over(journal)
            outcome = committed(attempt(), status=status, error='{"code":"E"}')
            assert (await journal.commit(outcome)).ok
            assert await journal.step(RUN, "s") == outcome

        runner.run(ended())

    def test_an_outcome_takes_the_place_of_all_that_the_attempt_said_before(
        self, runner: asyncio.Runner, journal: Journal
    ) -> None:
        """Also where it has nothing to say; what identifies the step stays."""

        async def ended() -> None:
            me = await driven(journal)
            await journal.begin(EVERY_COLUMN, None, me)
            outcome = EVERY_COLUMN._replace(
                status=FAILED, output_hash=None, output_data=None, output_ref=None, codec=None,
                committed_at=None, output_size=None, error=None, detail=None, attempts=None,
            )  # fmt: skip
            assert (await journal.commit(outcome)).ok
            assert await journal.step(RUN, "s") == outcome

        runner.run(ended())

    @pytest.mark.parametrize(
        "wrong",
        [{"attempt_id": "a0"}, {"attempt_id": "a2"}, {"idempotency_key": "x" * 64}, {"attempt_id": ""}],
    )
    def test_an_outcome_counts_for_its_own_attempt_and_key_only(
        self, runner: asyncio.Runner, journal: Journal, wrong: dict[str, str]
    ) -> None:
        """A zombie's outcome is refused once the step was begun anew."""

        async def ended() -> None:
            me = await driven(journal)
            await journal.begin(attempt(), None, me)
            reply = await journal.commit(committed(attempt(**wrong)))
            assert (reply.ok, reply.row) == (False, attempt())
            assert await journal.step(RUN, "s") == attempt()

        runner.run(ended())

    @pytest.mark.parametrize("status", [COMMITTED, SKIPPED, FAILED])
    def test_an_outcome_is_never_written_over(
        self, runner: asyncio.Runner, journal: Journal, status: str
    ) -> None:
        """Nor by its own attempt, which finds it there when it lost the reply."""

        async def ended() -> None:
            me = await driven(journal)
            first = committed(attempt(), b'"first"', status=status)
            await journal.begin(first, None, me)
            for late in (committed(attempt(), b'"late"'), attempt(status=FAILED), attempt(), first):
                reply = await journal.commit(late)
                assert (reply.ok, reply.row) == (False, first)
            assert await journal.step(RUN, "s") == first

        runner.run(ended())

    def test_an_outcome_without_a_start_is_refused(self, runner: asyncio.Runner, journal: Journal) -> None:
        """The refusal shows that nothing is there."""

        async def ended() -> None:
            await driven(journal)
            reply = await journal.commit(committed(attempt()))
            assert (reply.ok, reply.row) == (False, None)
            assert await journal.step(RUN, "s") is None

        runner.run(ended())

    # ---- put ----

    def test_a_committed_record_is_put_in_one_write(self, runner: asyncio.Runner, journal: Journal) -> None:
        """Where nothing is, or over exactly what was seen; whoever lost the reply finds itself."""

        async def put() -> None:
            me = await driven(journal)
            first, second = committed(attempt()), committed(attempt(attempt_id="a2"), b'"second"')
            assert (await journal.put(first, None, me)).ok
            for seen in (None, Seen(COMMITTED, "a2"), Seen(STARTED, "a1")):
                reply = await journal.put(second, seen, me)
                assert (reply.ok, reply.row) == (False, first)
            reply = await journal.put(first, None, me)
            assert (reply.ok, reply.row) == (False, first)
            assert (await journal.put(second, Seen(COMMITTED, "a1"), me)).ok
            assert await journal.step(RUN, "s") == second

        runner.run(put())

    # ---- reads ----

    def test_a_step_is_of_its_own_run_only(self, runner: asyncio.Runner, journal: Journal) -> None:
        """Runs whose ids begin alike, or differ in a wildcard or in case, share nothing."""

        async def kept_apart() -> None:
            for run_id in ("run-1", "run-10", "run_1", "Run-1", "run-1.1"):
                me = await driven(journal, run_id)
                await journal.begin(attempt(run_id=run_id, attempt_id=run_id), None, me)
            for run_id in ("run-1", "run_1", "Run-1"):
                found = await _all(journal, run_id)
                assert [record.attempt_id for record in found] == [run_id]
            assert await _all(journal, "run-2") == []
            assert await journal.step("run-2", "s") is None

        runner.run(kept_apart())

    def test_all_records_of_a_run_are_read_to_the_end(self, runner: asyncio.Runner, journal: Journal) -> None:
        """They come in pages, whatever their number and size."""

        async def read() -> None:
            me = await driven(journal)
            journal.live = 2
            made = [attempt(f"s#{n}", f"a{n}", step_index=n, error="x" * 1000) for n in range(self.many)]
            for start in range(0, len(made), 500):
                batch = made[start : start + 500]
                await asyncio.gather(*(journal.begin(record, None, me) for record in batch))
            journal.live = 0
            found = await _all(journal)
            assert sorted(found) == sorted(made)

        runner.run(read())

    def test_records_can_be_written_while_others_are_read(
        self, runner: asyncio.Runner, journal: Journal
    ) -> None:
        """No lock is held between pages; whatever was there before is read, once."""

        async def read() -> None:
            me = await driven(journal)
            await journal.put(committed(attempt("s", "a")), None, me)
            seen = []
            async for page in journal.steps(RUN):
                seen += page
                if len(seen) < 10:  # else a journal with small pages would never come to the end
                    assert (await journal.begin(attempt(f"t{len(seen)}"), None, me)).ok
            assert [record.step_id for record in seen].count("s") == 1

        runner.run(read())

    def test_progress_is_any_outcome_under_a_fence(self, runner: asyncio.Runner, journal: Journal) -> None:
        """Not a start, nor an outcome under another fence or of another run."""

        async def progressed() -> None:
            me = await driven(journal)
            other = await driven(journal, "run-10")
            await journal.begin(attempt("s1", fence=2), None, me)
            await journal.put(committed(attempt("s2", fence=1)), None, me)
            await journal.put(committed(attempt("s2", run_id="run-10", fence=2)), None, other)
            assert not await journal.progressed(RUN, 2)
            assert await journal.progressed(RUN, 1)
            assert not await journal.progressed("gone", 1)
            for fence, status in ((3, SKIPPED), (4, FAILED), (5, COMMITTED)):
                await journal.begin(attempt(f"s{fence}", fence=fence, status=status), None, me)
                assert await journal.progressed(RUN, fence)

        runner.run(progressed())

    # ---- odd values ----

    @pytest.mark.parametrize("step_id", ODD_STEP_IDS)
    def test_any_step_id_is_a_plain_name(
        self, runner: asyncio.Runner, journal: Journal, step_id: str
    ) -> None:
        """Quotes, wildcards and separators of the store mean nothing in it."""

        async def named() -> None:
            me = await driven(journal)
            neighbour = attempt("s")
            await journal.begin(neighbour, None, me)
            mine = attempt(step_id, "mine")
            assert (await journal.begin(mine, None, me)).ok
            assert (await journal.commit(committed(mine))).ok
            assert await journal.step(RUN, step_id) == committed(mine)
            assert sorted(await _all(journal)) == sorted([neighbour, committed(mine)])

        runner.run(named())

    @pytest.mark.parametrize("output", ODD_OUTPUTS)
    def test_any_bytes_come_back(self, runner: asyncio.Runner, journal: Journal, output: bytes) -> None:
        """Nothing of them is text; none is not the same as no output."""

        async def kept() -> None:
            me = await driven(journal)
            await journal.begin(attempt(), None, me)
            await journal.commit(committed(attempt(), output))
            record = await journal.step(RUN, "s")
            assert record is not None
            assert (record.output_data, type(record.output_data)) == (output, bytes)

        runner.run(kept())


async def _lost(journal: Journal, me: Lease, why: str) -> Lease:
    """How a run is lost to its owner; gives the lease that it goes on with."""
    if why == "taken over":
        await taken_over(journal)
    elif why == "cancelled":
        await journal.cancel(header(fence=me.fence), "2026-01-01T00:00:00.000Z")
    elif why == "left":
        await journal.leave(me, Departure(status=PENDING))
    elif why == "another's lease":
        return me._replace(owner="other")
    else:
        return me._replace(run_id="gone")
    return me


async def _all(journal: Journal, run_id: str = RUN) -> list[StepRecord]:
    found: list[StepRecord] = []
    async for page in journal.steps(run_id):
        found += page
        assert len(found) < 10_000, "the pages have no end"
    return found
