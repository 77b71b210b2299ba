"""The contract of a blob store as tests: a store's own tests subclass `BlobContract` and give it `blobs`.

    class TestMyBlobs(BlobContract):
        @pytest.fixture
        def blobs(self, runner: asyncio.Runner) -> Iterator[BlobStore]:
            store = MyBlobs(...)
            yield store
            runner.run(store.close())

Each test runs in one event loop, the runner's. Needs pytest and no plugin.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import pytest

from durable_core.blobs.base import SESSIONS, BlobStore, blob_ref
from durable_core.errors import CorruptRecord, InvalidId, MissingBlob

if TYPE_CHECKING:
    from collections.abc import Iterator

RUN = "run-1"
BAD_REFS = (
    "",
    "runs",
    "/etc/passwd",
    "../" * 6 + "etc/passwd",
    f"runs/../{'a' * 64}",
    f"runs/../../other/a-{'0' * 64}",
    f"runs/../a-{'0' * 64}",
    f"runs/./a-{'0' * 64}",
    f"runs/run-1/../run-2/a-{'0' * 64}",
    f"runs//a-{'0' * 64}",
    f"runs/ /a-{'0' * 64}",
    f"runs/run\\..\\x/a-{'0' * 64}",
    f"runs/run-1/a-{'0' * 63}",
    f"runs/run-1/a-{'G' * 64}",
    f"runs/run-1/a-{'0' * 64}\n",
    f"runs/run-1/.a-{'0' * 64}",
    f"runs/run-1\0/a-{'0' * 64}",
    f"/runs/run-1/a-{'0' * 64}",
    f"others/run-1/a-{'0' * 64}",
    f"sessions/../a-{'0' * 64}",
    f"tenant-b/runs/run-1/a-{'0' * 64}",
)


class BlobContract:
    """What every blob store holds to."""

    @pytest.fixture
    def runner(self) -> Iterator[asyncio.Runner]:
        """The event loop of one test."""
        with asyncio.Runner() as runner:
            yield runner

    @pytest.fixture
    def blobs(self, runner: asyncio.Runner) -> Iterator[BlobStore]:
        """The store under test, empty: for subclasses to give."""
        raise NotImplementedError("give a store")

    @pytest.mark.parametrize("size", [0, 1, 8193, 3_000_000])
    def test_a_blob_comes_back_as_it_was_put(
        self, runner: asyncio.Runner, blobs: BlobStore, size: int
    ) -> None:
        """Of any size, with any bytes."""
        data = random.Random(size).randbytes(size)
        ref = _put(runner, blobs, data)
        assert runner.run(blobs.get(ref)) == data
        assert blobs.read(ref) == data

    def test_the_same_blob_may_be_put_again(self, runner: asyncio.Runner, blobs: BlobStore) -> None:
        """The reply to the first put may have been lost."""
        ref = _put(runner, blobs, b"once")
        runner.run(blobs.put(ref, b"once"))
        assert runner.run(blobs.get(ref)) == b"once"
        assert _refs(runner, blobs) == {ref}

    def test_other_bytes_never_get_in_under_a_ref(self, runner: asyncio.Runner, blobs: BlobStore) -> None:
        """Neither over a blob that is there nor in its place."""
        ref = _put(runner, blobs, b"first")
        with pytest.raises(CorruptRecord):
            runner.run(blobs.put(ref, b"other"))
        assert runner.run(blobs.get(ref)) == b"first"
        free = blob_ref(RUN, "free", b"first")
        with pytest.raises(CorruptRecord):
            runner.run(blobs.put(free, b"other"))
        with pytest.raises(MissingBlob):
            runner.run(blobs.get(free))

    def test_a_blob_that_is_not_there_is_missing(self, runner: asyncio.Runner, blobs: BlobStore) -> None:
        """Never None, never empty; also beside other blobs of its run."""
        ref = blob_ref(RUN, "attempt", b"never put")
        with pytest.raises(MissingBlob, match="attempt"):
            runner.run(blobs.get(ref))
        _put(runner, blobs, b"another")
        with pytest.raises(MissingBlob) as caught:
            runner.run(blobs.get(ref))
        assert ref in str(caught.value)

    def test_a_deleted_blob_is_missing_and_may_be_deleted_again(
        self, runner: asyncio.Runner, blobs: BlobStore
    ) -> None:
        """Others stay, and it can be put anew."""
        gone, kept = _put(runner, blobs, b"gone"), _put(runner, blobs, b"kept")
        runner.run(blobs.delete(gone))
        runner.run(blobs.delete(gone))
        with pytest.raises(MissingBlob):
            runner.run(blobs.get(gone))
        assert runner.run(blobs.get(kept)) == b"kept"
        assert _refs(runner, blobs) == {kept}
        runner.run(blobs.delete(kept))
        assert _refs(runner, blobs) == set()
        assert runner.run(blobs.get(_put(runner, blobs, b"gone"))) == b"gone"

    def test_listing_a_run_gives_its_own_blobs_only(self, runner: asyncio.Runner, blobs: BlobStore) -> None:
        """Not those of runs whose ids begin alike, or differ in a wildcard."""
        for run_id in ("run-10", "run-1.1", "run_1", "Run-1", "run-1@x"):
            _put(runner, blobs, b"theirs", run_id=run_id)
        ours = {
            _put(runner, blobs, b"one"),
            _put(runner, blobs, b"two"),
            _put(runner, blobs, b"one", attempt="b"),
        }
        assert _refs(runner, blobs) == ours
        assert len(_refs(runner, blobs, "run_1")) == 1
        assert _refs(runner, blobs, "run-2") == set()

    def test_listing_can_leave_out_young_blobs(self, runner: asyncio.Runner, blobs: BlobStore) -> None:
        """A sweep takes only orphans that no commit can be about to point to."""
        ref = _put(runner, blobs, b"just now")
        assert _refs(runner, blobs, older_than_s=24 * 3600) == set()
        assert _refs(runner, blobs) == {ref}

    def test_a_run_with_many_blobs_is_listed_to_the_end(
        self, runner: asyncio.Runner, blobs: BlobStore
    ) -> None:
        """Listings come in pages elsewhere."""
        put = {_put(runner, blobs, b"%d" % number) for number in range(120)}
        assert _refs(runner, blobs) == put

    def test_puts_and_deletes_at_once_lose_nothing(self, runner: asyncio.Runner, blobs: BlobStore) -> None:
        """Two attempts spill while a third one's blob is swept, over and over."""
        refs = [blob_ref(RUN, f"a{number}", b"same bytes") for number in range(30)]

        async def race() -> None:
            for ref in refs:
                swept = blob_ref(RUN, "swept", b"old")
                await blobs.put(swept, b"old")
                await asyncio.gather(
                    blobs.delete(swept),
                    blobs.put(ref, b"same bytes"),
                    blobs.put(ref, b"same bytes"),
                    blobs.delete(swept),
                )
                assert await blobs.get(ref) == b"same bytes"
                await blobs.delete(ref)

        runner.run(race())
        assert _refs(runner, blobs) == set()

    def test_plain_code_in_any_thread_reads_blobs_too(self, runner: asyncio.Runner, blobs: BlobStore) -> None:
        """Also while the event loop is at work, and with the same errors."""
        refs = [_put(runner, blobs, b"%d" % number) for number in range(8)]
        absent = blob_ref(RUN, "attempt", b"never put")

        async def read() -> None:
            found = await asyncio.gather(*(asyncio.to_thread(blobs.read, ref) for ref in refs))
            assert found == [b"%d" % number for number in range(8)]
            with pytest.raises(MissingBlob, match="attempt"):
                await asyncio.to_thread(blobs.read, absent)

        runner.run(read())
        assert blobs.read(refs[3]) == b"3"

    def test_the_runs_that_have_blobs_are_listed_once_each(
        self, runner: asyncio.Runner, blobs: BlobStore
    ) -> None:
        """However many blobs they have, and only as long as they have any."""

        async def listed() -> list[str]:
            return sorted([run_id async for run_id in blobs.runs()])

        assert runner.run(listed()) == []
        ids = ["run-1", "run-10", "Run-1", "run_1", "run-1@x", *(f"many-{number}" for number in range(20))]
        put = {run_id: [_put(runner, blobs, b"%d" % n, run_id=run_id) for n in range(2)] for run_id in ids}
        assert runner.run(listed()) == sorted(ids)
        for ref in put["run-1"]:
            runner.run(blobs.delete(ref))
        runner.run(blobs.delete(put["run-10"][0]))
        assert runner.run(listed()) == sorted(set(ids) - {"run-1"})

    def test_blobs_of_a_session_are_not_those_of_a_run_of_that_name(
        self, runner: asyncio.Runner, blobs: BlobStore
    ) -> None:
        """Who sweeps after runs never meets them."""
        of_session = blob_ref(RUN, "attempt", b"state", SESSIONS)
        runner.run(blobs.put(of_session, b"state"))

        async def listed() -> tuple[list[str], list[str]]:
            sessions = [ref async for ref in blobs.refs(RUN, of=SESSIONS)]
            return sessions, [run_id async for run_id in blobs.runs()]

        assert runner.run(listed()) == ([of_session], [])
        assert _refs(runner, blobs) == set()
        of_run = _put(runner, blobs, b"output")
        assert _refs(runner, blobs) == {of_run}
        assert runner.run(listed()) == ([of_session], [RUN])
        assert blobs.read(of_session) == b"state"
        runner.run(blobs.delete(of_session))
        assert runner.run(listed()) == ([], [RUN])

    @pytest.mark.parametrize("ref", BAD_REFS)
    def test_a_name_that_is_no_ref_is_refused_by_every_verb(
        self, runner: asyncio.Runner, blobs: BlobStore, ref: str
    ) -> None:
        """Whatever it would lead to."""
        for verb in (blobs.put(ref, b"x"), blobs.get(ref), blobs.delete(ref)):
            with pytest.raises(InvalidId):
                runner.run(verb)
        with pytest.raises(InvalidId):
            blobs.read(ref)

    @pytest.mark.parametrize("run_id", ["", " ", "..", ".hidden", "a/b", "a" * 129, "%", "*", "a\n", "é"])
    def test_a_bad_run_id_is_refused_in_listings(
        self, runner: asyncio.Runner, blobs: BlobStore, run_id: str
    ) -> None:
        """An empty one would list everything."""
        with pytest.raises(InvalidId):
            _refs(runner, blobs, run_id)

    def test_closing_twice_is_fine(self, runner: asyncio.Runner, blobs: BlobStore) -> None:
        """Whoever owns it may close it again."""
        runner.run(blobs.close())
        runner.run(blobs.close())


def _put(
    runner: asyncio.Runner, blobs: BlobStore, data: bytes, *, run_id: str = RUN, attempt: str = "attempt"
) -> str:
    ref = blob_ref(run_id, attempt, data)
    runner.run(blobs.put(ref, data))
    return ref


def _refs(
    runner: asyncio.Runner, blobs: BlobStore, run_id: str = RUN, *, older_than_s: float = 0
) -> set[str]:
    async def listed() -> list[str]:
        return [ref async for ref in blobs.refs(run_id, older_than_s=older_than_s)]

    found = runner.run(listed())
    assert len(found) == len(set(found))
    return set(found)
