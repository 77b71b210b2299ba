"""The contract of a map's log: one segment at one place. Part of `JournalContract`."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, ClassVar

import pytest

from durable_core.records import Segment
from durable_core.testing.samples import MANY, OVER_MS, RUN, driven, gathered, header, segment, taken_over

if TYPE_CHECKING:
    from durable_core.journal.base import Journal

EVERY_COLUMN = Segment(
    RUN, "a/m#2", 3, 12_345, "g1", 4, 5, 2**20, 2**21, 7, b"\x00\xff", "json+zstd", 2**40, "7" * 64,
    '["runs/run-1/a-b","runs/run-1/c-d"]', "2026-01-02T03:04:05.678Z",
)  # fmt: skip
CLAIM = Segment(RUN, "m", 0, 0, "g1", 1)
LARGEST = 350_000  # bytes
SEQS = (0, 1, 2, 9, 10, 11, 99, 100, 12_345)


class SegmentContract:
    """What every journal holds to when segments are appended and read.

    Attributes:
        many: How many records are more than a page of the store.
    """

    many: ClassVar[int] = MANY

    # ---- append ----

    @pytest.mark.parametrize(
        "made",
        [
            pytest.param(EVERY_COLUMN, id="each column told apart from each other"),
            pytest.param(CLAIM, id="all but empty"),
            pytest.param(CLAIM._replace(data=b"", codec="json", size=0), id="nothing is not None"),
            pytest.param(CLAIM._replace(data=bytes(range(256)), refs="[]", items=1), id="any bytes"),
        ],
    )
    def test_a_segment_comes_back_as_it_was_appended(
        self, runner: asyncio.Runner, journal: Journal, made: Segment
    ) -> None:
        """In pages, as the newest, and to a reader."""

        async def appended() -> None:
            assert (await journal.append(made)).ok
            assert await _log(journal, made.step_id, made.chunk) == [made]
            assert await journal.last_segment(RUN, made.step_id, made.chunk) == made
            found = await _read(journal, made.step_id, made.chunk, made.seq, made.seq)
            assert found == [made]
            assert made.data is None or type(found[0].data) is bytes

        runner.run(appended())

    def test_a_place_is_taken_once(self, runner: asyncio.Runner, journal: Journal) -> None:
        """Whatever is appended there later; a writer whose reply was lost finds its own attempt there."""

        async def appended() -> None:
            first = segment()
            assert (await journal.append(first)).ok
            for late in (
                first,
                segment(attempt_id="g2", fence=2, data=b"late"),
                segment(attempt_id="g2", fence=0, items=0, data=None),
                segment(attempt_id="g1", fence=9, chunk_fence=9),
            ):
                reply = await journal.append(late)
                assert (reply.ok, reply.row) == (False, first)
            assert await _log(journal) == [first]

        runner.run(appended())

    def test_a_claim_refuses_the_late_segment_of_the_owner_before(
        self, runner: asyncio.Runner, journal: Journal
    ) -> None:
        """Who claims a chunk behind what is there has read everything that will ever be there before it."""

        async def claimed() -> None:
            await driven(journal, lease_ms=OVER_MS)
            await journal.append(segment(0, "old-0"))
            rival = await taken_over(journal)
            mine = segment(0, "new", fence=rival.fence, items=0, data=None)
            assert (await journal.append(mine)).row == segment(0, "old-0")
            mine = mine._replace(seq=1)
            assert (await journal.append(mine)).ok
            reply = await journal.append(segment(1, "old-1"))
            assert (reply.ok, reply.row) == (False, mine)
            assert await _log(journal) == [segment(0, "old-0"), mine]

        runner.run(claimed())

    def test_a_free_place_is_anyones(self, runner: asyncio.Runner, journal: Journal) -> None:
        """Only claims keep others out: neither the header nor the fence nor a gap is looked at."""

        async def appended() -> None:
            high = segment(5, "g5", fence=7)
            assert (await journal.append(high)).ok  # no run is there at all
            await driven(journal, lease_ms=OVER_MS)
            await taken_over(journal)
            assert (await journal.append(segment(2, "g2", fence=1))).ok
            assert await _log(journal) == [segment(2, "g2", fence=1), high]
            assert [segment.fence for segment in await _log(journal)] == [1, 7]  # also of an earlier life

        runner.run(appended())

    def test_the_log_of_a_chunk_is_its_own(self, runner: asyncio.Runner, journal: Journal) -> None:
        """Runs, maps and chunks whose names begin alike, or differ in case or a wildcard, share nothing."""

        async def appended() -> None:
            places = [
                ("run-1", "m", 0), ("run-1", "m", 1), ("run-1", "m", 10), ("run-1", "m", 100),
                ("run-1", "m#2", 0), ("run-1", "m/n", 0), ("run-1", "m[0]/n", 0), ("run-1", "m!n", 0),
                ("run-1", "M", 0), ("run-1", "m_", 0), ("run-1", "m%", 0), ("run-1", "mm", 0),
                ("run-10", "m", 0), ("run_1", "m", 0), ("Run-1", "m", 0), ("run-1.1", "m", 0),
            ]  # fmt: skip
            made = {
                place: segment(0, f"g{n}", place[1], run_id=place[0], chunk=place[2])
                for n, place in enumerate(places)
            }
            for one in made.values():
                assert (await journal.append(one)).ok
            for (run_id, step_id, chunk), one in made.items():
                assert await gathered(journal.segments(run_id, step_id, chunk)) == [one]
                assert await _read(journal, step_id, chunk, 0, 9, run_id) == [one]
                assert await journal.last_segment(run_id, step_id, chunk) == one
            assert await journal.last_segment(RUN, "none") is None
            assert await journal.last_segment(RUN, "m", 2) is None
            assert await _log(journal, "m", 2) == []
            assert await _log(journal, "none") == []

        runner.run(appended())

    # ---- reads ----

    def test_segments_come_in_the_order_of_their_places(
        self, runner: asyncio.Runner, journal: Journal
    ) -> None:
        """As numbers, whenever they were appended; and the newest is the last of them."""

        async def appended() -> None:
            highest = -1
            for seq in random.Random(7).sample(SEQS, len(SEQS)):
                await journal.append(segment(seq, f"g{seq}"))
                highest = max(highest, seq)
                assert await journal.last_segment(RUN, "m") == segment(highest, f"g{highest}")
            assert [one.seq for one in await _log(journal)] == list(SEQS)
            assert [one.seq for one in await _read(journal, "m", 0, 2, 99)] == [2, 9, 10, 11, 99]

        runner.run(appended())

    def test_a_log_of_the_largest_segments_is_read_to_the_end(
        self, runner: asyncio.Runner, journal: Journal
    ) -> None:
        """More than fit in one page of any store."""

        async def read() -> None:
            data = random.Random(7).randbytes(LARGEST)
            for seq in range(40):
                assert (await journal.append(segment(seq, f"g{seq}", data=_nth(data, seq)))).ok
            seq = 0
            async for page in journal.segments(RUN, "m"):
                for one in page:
                    assert (one.seq, one.data) == (seq, _nth(data, seq))
                    seq += 1
            assert seq == 40
            found = await _read(journal, "m", 0, 5, 34)
            assert [(one.seq, one.data) for one in found] == [(n, _nth(data, n)) for n in range(5, 35)]

        runner.run(read())

    def test_a_log_of_many_small_segments_is_read_to_the_end(
        self, runner: asyncio.Runner, journal: Journal
    ) -> None:
        """None twice, none left out."""

        async def read() -> None:
            made = [segment(seq, f"g{seq}") for seq in range(self.many)]
            await _append_all(journal, made)
            assert await _log(journal) == made
            assert await _read(journal, "m", 0, 0, 5000) == made

        runner.run(read())

    def test_segments_can_be_appended_while_others_are_read(
        self, runner: asyncio.Runner, journal: Journal
    ) -> None:
        """No lock is held between pages; whatever was there before is read, once."""

        async def read() -> None:
            for seq in range(3):
                await journal.append(segment(seq, f"g{seq}"))
            found: list[int] = []
            async for page in journal.segments(RUN, "m"):
                found += [one.seq for one in page]
                if len(found) < 10:  # else a journal with small pages would never come to the end
                    assert (await journal.append(segment(len(found) + 3, f"h{len(found)}"))).ok
            assert found[:3] == [0, 1, 2]
            assert len(set(found)) == len(found)

        runner.run(read())

    def test_a_reader_gives_what_is_there_of_a_range(self, runner: asyncio.Runner, journal: Journal) -> None:
        """Both ends belong to it; what isn't there is left out, and what came later isn't missed."""

        async def read() -> None:
            for seq in (0, 1, 2, 4):
                await journal.append(segment(seq, f"g{seq}"))
            reader = journal.open_reader()

            def seqs(first: int, last: int, chunk: int = 0) -> list[int]:
                return [one.seq for one in reader.read(RUN, "m", chunk, first, last)]

            try:
                assert await asyncio.to_thread(seqs, 1, 2) == [1, 2]
                assert await asyncio.to_thread(seqs, 2, 9) == [2, 4]
                assert await asyncio.to_thread(seqs, 4, 4) == [4]
                assert await asyncio.to_thread(seqs, 3, 3) == []
                assert await asyncio.to_thread(seqs, 2, 1) == []
                assert await asyncio.to_thread(seqs, 0, 9, 1) == []
                await journal.append(segment(3, "g3"))
                assert await asyncio.to_thread(seqs, 0, 9) == [0, 1, 2, 3, 4]
                found = await asyncio.gather(*(asyncio.to_thread(seqs, n % 5, 4) for n in range(20)))
                assert found == [[*range(n % 5, 5)] for n in range(20)]  # in several threads at a time
            finally:
                reader.close()
                reader.close()

        runner.run(read())

    # ---- progress ----

    def test_a_filled_segment_is_progress_and_a_claim_is_none(
        self, runner: asyncio.Runner, journal: Journal
    ) -> None:
        """Under its own fence and in its own run."""

        async def progressed() -> None:
            await journal.create(header())
            await journal.append(segment(0, "g0", fence=3, items=0, data=None))
            await journal.append(segment(1, "g1", fence=2, items=1))
            await journal.append(segment(1, "g1", fence=3, items=1, run_id="run-10"))
            assert not await journal.progressed(RUN, 3)
            assert await journal.progressed(RUN, 2)
            await journal.append(segment(2, "g2", "n", fence=3, items=1, chunk=4))
            assert await journal.progressed(RUN, 3)

        runner.run(progressed())


def _nth(data: bytes, seq: int) -> bytes:
    return data[seq:] + data[:seq]


async def _log(journal: Journal, step_id: str = "m", chunk: int = 0) -> list[Segment]:
    return await gathered(journal.segments(RUN, step_id, chunk))


async def _append_all(journal: Journal, made: list[Segment]) -> None:
    journal.live = 2
    for start in range(0, len(made), 300):
        replies = await asyncio.gather(*(journal.append(one) for one in made[start : start + 300]))
        assert all(reply.ok for reply in replies)
    journal.live = 0


async def _read(
    journal: Journal, step_id: str, chunk: int, first: int, last: int, run_id: str = RUN
) -> list[Segment]:
    """As plain code does it, in a thread."""

    def read() -> list[Segment]:
        reader = journal.open_reader()
        try:
            return reader.read(run_id, step_id, chunk, first, last)
        finally:
            reader.close()

    return await asyncio.to_thread(read)
