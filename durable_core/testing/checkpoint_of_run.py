"""The contract, as tests, of a store that keeps runs and checkpoints: who drives a run saves by it.

    class TestCheckpointsOfMyRuns(CheckpointOfRunContract):
        @pytest.fixture
        def store(self) -> Iterator[Store]:
            store = Store("mine://", MyJournal(...), MyBlobs(...), checkpoints=MyCheckpoints(...))
            yield store

Its journal and its checkpoints hold to contracts of their own. Needs pytest and no plugin.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

import pytest

from durable_core.errors import Fenced
from durable_core.journal.base import Departure
from durable_core.journal.chunks import ChunkDeparture
from durable_core.records import COMPLETED, FAILED, PENDING, SUSPENDED, Chunk
from durable_core.testing.checkpoint_contract import SESSION, appended, record, seqs
from durable_core.testing.samples import (
    AT,
    LEASE_MS,
    OVER_MS,
    RUN,
    chunk,
    chunk_lease,
    driven,
    gathered,
    owned,
    pruning,
    seen_now,
    taken_over,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from durable_core.checkpoints.base import CheckpointStore
    from durable_core.journal.base import Holding, Journal, Lease
    from durable_core.journal.chunks import ChunkLease
    from durable_core.store import Store

Happens = Callable[["Journal", "Lease"], Coroutine[Any, Any, object]]


def left(status: str) -> Happens:
    """Its driver has left the run."""
    return lambda journal, me: journal.leave(me, Departure(status=status))


async def cancelled(journal: Journal, _: Lease) -> None:
    """Somebody has ended the run."""
    await journal.cancel(await seen_now(journal), AT)


async def pruned(journal: Journal, me: Lease) -> None:
    """The run has ended, and only its tombstone is left."""
    await left(COMPLETED)(journal, me)
    pruner = await pruning(journal)
    await journal.delete(RUN, [one async for page in journal.children(RUN) for one in page], pruner.fence)
    await journal.bury(pruner, AT)


async def begun_anew(journal: Journal, me: Lease) -> None:
    """The id has another life."""
    await pruned(journal, me)
    tomb = await seen_now(journal)
    await journal.create(owned(owner="rival", fence=tomb.fence + 1, base_fence=tomb.fence), LEASE_MS)


RUN_IS_GONE: Final[dict[str, Happens]] = {
    "taken over": lambda journal, _: taken_over(journal),
    "released": left(PENDING),
    "suspended": left(SUSPENDED),
    "completed": left(COMPLETED),
    "failed": left(FAILED),
    "cancelled": cancelled,
    "pruned": pruned,
    "begun anew": begun_anew,
}


async def claimed_by_another(journal: Journal, _: ChunkLease) -> None:
    """The lease was over."""
    seen = await journal.chunk(RUN, "m", 0)
    await journal.claim(chunk(owner="rival", chunk_fence=2), seen, LEASE_MS)


def handed_back(status: str) -> Callable[[Journal, ChunkLease], Coroutine[Any, Any, object]]:
    """Its owner has left the chunk."""
    return lambda journal, mine: journal.leave_chunk(
        mine, ChunkDeparture(status=status, succeeded=1, failed=0, updated_at=AT)
    )


async def pruned_with_its_run(journal: Journal, _: ChunkLease) -> None:
    """There is no chunk any more, but a tombstone."""
    await pruned(journal, await taken_over(journal))
    assert await gathered(journal.chunks(RUN, "m")) == []


CHUNK_IS_GONE: Final[dict[str, Callable[[Journal, ChunkLease], Coroutine[Any, Any, object]]]] = {
    "claimed by another": claimed_by_another,
    "handed back": handed_back(PENDING),
    "completed": handed_back(COMPLETED),
    "pruned with its run": pruned_with_its_run,
}


class CheckpointOfRunContract:
    """What checkpoints hold to when they are saved by who drives a run.

    Attributes:
        writers: How many threads save at once.
    """

    writers: int = 8

    @pytest.fixture
    def store(self) -> Iterator[Store]:
        """The store under test, empty: for subclasses to give."""
        raise NotImplementedError("give a store")

    @pytest.fixture
    def runner(self) -> Iterator[asyncio.Runner]:
        """The event loop of one test."""
        with asyncio.Runner() as runner:
            yield runner

    @pytest.fixture
    def journal(self, runner: asyncio.Runner, store: Store) -> Iterator[Journal]:
        """Of the store."""
        runner.run(store.journal.open())
        yield store.journal
        runner.run(store.journal.close())

    @pytest.fixture
    def checkpoints(self, store: Store) -> CheckpointStore:
        """Of the store."""
        assert store.checkpoints is not None
        return store.checkpoints

    @pytest.fixture
    def me(self, runner: asyncio.Runner, journal: Journal) -> Lease:
        """Who drives the run; its lease is over, which says nothing by itself."""
        return runner.run(driven(journal, lease_ms=OVER_MS))

    @pytest.fixture
    def mine(self, runner: asyncio.Runner, journal: Journal, me: Lease) -> ChunkLease:
        """Who works on a chunk of that run, not as its driver; the lease is over, too."""
        claimed: Chunk | None = runner.run(journal.claim(chunk(), None, OVER_MS)).row
        assert claimed is not None
        return chunk_lease(claimed)

    # ---- The run ----

    def test_who_drives_a_run_saves_by_it_until_somebody_else_does(
        self, runner: asyncio.Runner, journal: Journal, checkpoints: CheckpointStore, me: Lease
    ) -> None:
        """However long the lease has been over."""
        assert [checkpoints.append(record(step), me) for step in ("x", "y")] == [1, 2]
        rival = runner.run(taken_over(journal))
        assert checkpoints.append(record("y"), rival) == 3
        with pytest.raises(Fenced):
            checkpoints.append(record("z"), me)
        assert checkpoints.append(record("z"), rival) == 4
        assert [one.step_id for one in checkpoints.page(SESSION)] == ["z", "y", "y", "x"]

    @pytest.mark.parametrize("happened", RUN_IS_GONE.values(), ids=RUN_IS_GONE)
    def test_who_does_not_drive_a_run_any_more_saves_nothing(
        self,
        runner: asyncio.Runner,
        journal: Journal,
        checkpoints: CheckpointStore,
        me: Lease,
        happened: Happens,
    ) -> None:
        """Whatever ended that; the error names run and step, and no place is taken."""
        runner.run(happened(journal, me))
        with pytest.raises(Fenced) as refused:
            checkpoints.append(record("x"), me)
        assert (refused.value.run_id, refused.value.step_id) == (RUN, "x")
        assert seqs(checkpoints) == []
        assert list(checkpoints.sessions()) == []
        assert appended(checkpoints, "y") == [1]

    @pytest.mark.parametrize("column", [{"owner": "rival"}, {"fence": 2}, {"fence": 0}], ids=str)
    def test_owner_and_fence_both_have_to_be_those_of_the_header(
        self, checkpoints: CheckpointStore, me: Lease, column: dict[str, Any]
    ) -> None:
        """One of them alone is somebody else."""
        with pytest.raises(Fenced):
            checkpoints.append(record("x"), me._replace(**column))

    def test_a_run_whose_journal_is_in_another_place_is_not_asked_for(
        self, runner: asyncio.Runner, journal: Journal, checkpoints: CheckpointStore, me: Lease
    ) -> None:
        """There is no header then; nor where it is a chunk's worker who saves."""
        elsewhere = me._replace(run_id="run-10")
        assert [checkpoints.append(record(step), elsewhere) for step in ("x", "y")] == [1, 2]
        of_chunk = chunk_lease(chunk())._replace(run_id="run-10")
        assert checkpoints.append(record("z"), of_chunk) == 3

    def test_who_saves_beside_any_run_is_not_asked(
        self, runner: asyncio.Runner, journal: Journal, checkpoints: CheckpointStore, me: Lease
    ) -> None:
        """Also into the session of a run that others drive."""
        assert checkpoints.append(record("x"), me) == 1
        runner.run(taken_over(journal))
        assert appended(checkpoints, "y") == [2]

    def test_a_save_whose_reply_was_lost_is_known_after_a_takeover_too(
        self, runner: asyncio.Runner, journal: Journal, checkpoints: CheckpointStore, me: Lease
    ) -> None:
        """It was made before: nothing is to be refused any more."""
        saved = record("x")
        assert checkpoints.append(saved, me) == 1
        runner.run(taken_over(journal))
        assert checkpoints.append(saved, me) == 1
        assert seqs(checkpoints) == [1]

    def test_of_those_who_save_by_one_run_at_once_each_gets_a_place_of_its_own(
        self, checkpoints: CheckpointStore, me: Lease
    ) -> None:
        """That a place is taken is no refusal of theirs."""
        each = 10

        def write(number: int) -> list[int]:
            return [checkpoints.append(record(str(n), f"agent-{number}"), me) for n in range(each)]

        with ThreadPoolExecutor(self.writers) as pool:
            given = [seq for found in pool.map(write, range(self.writers)) for seq in found]
        assert sorted(given) == list(range(1, self.writers * each + 1))

    # ---- A chunk ----

    def test_who_works_on_a_chunk_saves_by_it_whoever_drives_the_run(
        self, runner: asyncio.Runner, journal: Journal, checkpoints: CheckpointStore, mine: ChunkLease
    ) -> None:
        """A worker isn't the run's owner."""
        assert checkpoints.append(record("x"), mine) == 1
        runner.run(taken_over(journal))
        assert checkpoints.append(record("y"), mine) == 2

    @pytest.mark.parametrize("happened", CHUNK_IS_GONE.values(), ids=CHUNK_IS_GONE)
    def test_who_does_not_work_on_a_chunk_any_more_saves_nothing(
        self,
        runner: asyncio.Runner,
        journal: Journal,
        checkpoints: CheckpointStore,
        mine: ChunkLease,
        happened: Callable[[Journal, Holding], Coroutine[Any, Any, object]],
    ) -> None:
        """Whatever ended that."""
        runner.run(happened(journal, mine))
        with pytest.raises(Fenced):
            checkpoints.append(record("x"), mine)
        assert seqs(checkpoints) == []

    @pytest.mark.parametrize("column", [{"owner": "rival"}, {"chunk_fence": 2}, {"chunk": 1}], ids=str)
    def test_owner_and_chunk_fence_both_have_to_be_those_of_the_chunk(
        self, checkpoints: CheckpointStore, mine: ChunkLease, column: dict[str, Any]
    ) -> None:
        """And it has to be this one: nobody has claimed another."""
        with pytest.raises(Fenced):
            checkpoints.append(record("x"), mine._replace(**column))
