"""Pruning: what goes, what stays, who may still use it, and what a pruner that dies leaves."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any

import pytest

from durable_core import Context, DurableWorkflowExecutor, RunPruned, step, workflow
from durable_core.blobs.base import BlobStore
from durable_core.engine import pruning, sweeping
from durable_core.engine.retention import PruneReport
from durable_core.errors import (
    DurableError,
    Fenced,
    InvalidId,
    JournalUnavailable,
    RunBusy,
    RunFailed,
    RunNotFound,
    UsageError,
)
from durable_core.journal.base import Departure, Lease
from durable_core.records import (
    CANCELLED,
    COMMITTED,
    COMPLETED,
    FAILED,
    PENDING,
    PRUNING,
    RUNNING,
    TOMBSTONE,
    RunHeader,
    Segment,
    StepRecord,
)
from durable_core.store import Store
from tests.leftovers import AMPLE_BLOBS, AMPLE_RECORDS, ample, left_of, noise, put_blob, run_ample
from tests.stores import Mortal, Place, Processes
from tests.waiting import full, until

DAY_S = 24 * 3600


@workflow
async def quick(ctx: Context, word: str = "a") -> str:
    return await ctx.step(say, word)


@step
async def say(word: str) -> str:
    return word


class Sickly:
    """A workflow whose only step fails for as long as it is ill."""

    def __init__(self) -> None:
        self.ill = True
        self.ran = 0

    @property
    def workflow(self) -> Any:
        @step
        async def part() -> str:
            self.ran += 1
            if self.ill:
                raise ValueError("ill")
            return "well"

        @workflow
        async def sickly(ctx: Context) -> str:
            return await ctx.step(part)

        return sickly


class MortalBlobs(BlobStore):
    """Blobs of an owner that can die: see `Mortal`, whose life it shares."""

    def __init__(self, inner: BlobStore, journal: Mortal) -> None:
        self.inner, self.journal = inner, journal

    async def put(self, ref: str, data: bytes) -> None:
        await self.inner.put(ref, data)

    async def get(self, ref: str) -> bytes:
        return await self.inner.get(ref)

    def read(self, ref: str) -> bytes:
        return self.inner.read(ref)

    async def delete(self, ref: str) -> None:
        self.journal._check("delete blob", ref)
        await self.inner.delete(ref)
        self.journal._check("after delete blob", ref)

    async def refs(self, run_id: str, *, older_than_s: float = 0) -> AsyncIterator[str]:
        async for ref in self.inner.refs(run_id, older_than_s=older_than_s):
            yield ref

    async def runs(self) -> AsyncIterator[str]:
        async for run_id in self.inner.runs():
            yield run_id


def mortal(place: Place, **options: Any) -> tuple[DurableWorkflowExecutor, Mortal]:
    """A process that can die, also between two blobs."""
    inner = place.store()
    journal = Mortal(inner.journal)
    store = Store(inner.url, journal, MortalBlobs(inner.blobs, journal))
    return place.executor(store=store, **options), journal


async def failed(executor: DurableWorkflowExecutor, run_id: str, flow: Sickly | None = None) -> None:
    with pytest.raises(RunFailed):
        await executor.run((flow or Sickly()).workflow, run_id=run_id)


async def pruned(executor: DurableWorkflowExecutor, *run_ids: str) -> PruneReport:
    report = await executor.prune(run_ids=run_ids)
    assert (report.run_ids, report.left) == (run_ids, ())
    return report


# ---- What goes ----


@pytest.mark.over_dynamodb
async def test_a_pruned_run_leaves_nothing_but_its_tombstone(place: Place) -> None:
    executor = place.executor()
    await run_ample(executor, "r1")
    before = await left_of(executor, "r1")
    assert (len(before.children), len(before.blobs)) == (AMPLE_RECORDS, AMPLE_BLOBS)
    report = await pruned(executor, "r1")
    assert (report.records, report.blobs, report.dry_run) == (AMPLE_RECORDS, AMPLE_BLOBS, False)
    assert before.header is not None
    own = (before.header.input_size or 0) + (before.header.output_size or 0)
    assert report.size_bytes == own + sum(child.size_bytes for child in before.children) > own
    (run,) = report.runs
    assert (run.workflow, run.status, run.fence) == ("ample", COMPLETED, 1)
    header, children, blobs = await left_of(executor, "r1")
    assert (children, blobs) == ([], set())
    assert header is not None
    assert (header.status, header.fence, header.base_fence, header.owner) == (TOMBSTONE, 2, 2, None)
    assert (header.input_data, header.input_ref, header.output_ref, header.error) == (None, None, None, None)
    assert await executor.list() == []
    for verb in (executor.get, executor.steps, executor.resume, executor.cancel):
        with pytest.raises(RunNotFound):
            await verb("r1")


@pytest.mark.over_dynamodb
async def test_what_a_map_wrote_goes_too_and_what_is_still_held_of_it_says_so(place: Place) -> None:
    executor = place.executor()

    @step
    async def item(number: int) -> bytes:
        return noise(10_000 if number % 5 == 0 else 10, number)

    @workflow
    async def mapping(ctx: Context) -> Any:
        return await ctx.map(item, list(range(40)))

    held = (await executor.run(mapping, run_id="r1")).output
    assert len(held.outputs[5]) == 10_000
    before = await left_of(executor, "r1")
    assert {child.kind for child in before.children} == {"step", "segment"}
    assert len(before.blobs) == 8
    await pruned(executor, "r1")
    assert (await left_of(executor, "r1"))[1:] == ([], set())
    with pytest.raises(DurableError):
        list(held.outputs)
    assert len((await executor.run(mapping, run_id="r1")).output.outputs) == 40


async def test_other_runs_keep_their_blobs_also_those_whose_ids_begin_alike(place: Place) -> None:
    executor = place.executor()
    for run_id in ("r1", "r10", "r1.1"):
        await run_ample(executor, run_id)
    before = [await left_of(executor, run_id) for run_id in ("r10", "r1.1")]
    await pruned(executor, "r1")
    assert [await left_of(executor, run_id) for run_id in ("r10", "r1.1")] == before


async def test_a_record_that_names_the_blob_of_another_run_does_not_take_it_along(place: Place) -> None:
    executor = place.executor()
    await run_ample(executor, "mine")
    await run_ample(executor, "theirs")
    theirs = sorted((await left_of(executor, "theirs")).blobs)
    named = f'["{theirs[0]}","../x","runs/mine/../theirs/{theirs[1][-60:]}"]'
    assert (await executor.store.journal.append(Segment("mine", "map", 1, 0, "a", 1, refs=named))).ok
    await pruned(executor, "mine")
    assert sorted((await left_of(executor, "theirs")).blobs) == theirs


async def test_a_forked_run_goes_on_when_its_origin_is_pruned(place: Place) -> None:
    executor = place.executor()
    await run_ample(executor, "old")
    plan = await executor.fork("old", new_run_id="new")
    assert len(plan.kept) == 6
    await pruned(executor, "old")
    result = await executor.resume("new", ample)
    assert result.output[:10_000] == noise(10_000, 0)
    assert [one.attempts for one in await executor.steps("new")] == [[]] * 6


async def test_a_dry_run_changes_nothing_and_tells_what_the_prune_then_does(place: Place) -> None:
    executor = place.executor()
    for run_id in ("r1", "r2"):
        await run_ample(executor, run_id)
    before = [await left_of(executor, run_id) for run_id in ("r1", "r2")]
    plan = await executor.prune(keep=0, dry_run=True)
    assert plan.dry_run
    assert [await left_of(executor, run_id) for run_id in ("r1", "r2")] == before
    report = await executor.prune(keep=0)
    assert set(report.runs) == set(plan.runs)
    assert (report.records, report.blobs) == (2 * AMPLE_RECORDS, 2 * AMPLE_BLOBS)


async def test_a_prune_as_planned_leaves_what_went_on_since(place: Place) -> None:
    executor, flow = place.executor(), Sickly()
    for run_id in ("r1", "r2", "r3"):
        await failed(executor, run_id, flow)
    plan = await executor.prune(status=FAILED, dry_run=True)
    flow.ill = False
    await executor.resume("r2", flow.workflow)
    await failed(executor, "r4")
    await pruned(executor, "r3")
    report = await executor.prune(planned=plan)
    assert report.run_ids == ("r1",)
    assert [(one.run_id, one.status, one.why) for one in report.left] == [
        ("r2", COMPLETED, "it went on since it was shown")
    ]
    assert {view.run_id for view in await executor.list()} == {"r2", "r4"}


@pytest.mark.parametrize("kind", ["pending", "driven", "released"])
async def test_a_run_that_is_not_over_is_left_alone_until_it_is_cancelled(place: Place, kind: str) -> None:
    executor, inside, go = place.executor(), asyncio.Event(), asyncio.Event()

    @step
    async def waits() -> int:
        inside.set()
        await go.wait()
        return 1

    @workflow
    async def waiting(ctx: Context) -> int:
        return await ctx.step(waits)

    driving = None
    if kind == "pending":
        await executor.start(waiting, run_id="r1")
    else:
        driving = asyncio.ensure_future(executor.run(waiting, run_id="r1"))
        await inside.wait()
        if kind == "released":
            driving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await driving
    before = await left_of(executor, "r1")
    for dry_run in (True, False):
        report = await executor.prune(run_ids="r1", dry_run=dry_run)
        assert report.run_ids == ()
        assert [(one.run_id, one.why) for one in report.left] == [("r1", "it isn't over; cancel it first")]
    assert (await executor.prune(keep=0)).runs == ()
    assert await left_of(executor, "r1") == before
    await executor.cancel("r1")
    assert (await pruned(executor, "r1")).runs[0].status == CANCELLED
    if driving is not None:
        go.set()
        with pytest.raises((Fenced, asyncio.CancelledError)):
            await driving
    assert (await left_of(executor, "r1")).children == []


# ---- Which go ----


async def test_age_counts_from_the_end_of_a_run(place: Place) -> None:
    clock = place.turn_clock()
    executor, flow = place.executor(), Sickly()
    await failed(executor, "slow", flow)
    await executor.run(quick, run_id="old")
    clock.turn(10 * DAY_S)
    flow.ill = False
    await executor.resume("slow", flow.workflow)
    await executor.run(quick, run_id="young")
    clock.turn(DAY_S)
    report = await executor.prune(older_than=timedelta(days=7))
    assert report.run_ids == ("old",)
    assert (await executor.prune(older_than=timedelta(days=1, milliseconds=1))).run_ids == ()
    assert set((await executor.prune(older_than=timedelta(days=1))).run_ids) == {"slow", "young"}


async def test_the_newest_runs_of_each_workflow_are_kept_whatever_their_age(place: Place) -> None:
    clock = place.turn_clock()
    executor = place.executor()
    for number in range(5):
        await executor.run(quick, run_id=f"quick{number}")
        clock.turn(DAY_S)
    await executor.run(ample, run_id="rare", ballast=b"")
    await failed(executor, "quick-not")
    clock.turn(365 * DAY_S)
    await executor.start(quick, run_id="waiting")
    plan = await executor.prune(keep=2, older_than=timedelta(days=30), dry_run=True)
    assert set(plan.run_ids) == {"quick0", "quick1", "quick2"}
    assert set((await executor.prune(keep=2)).run_ids) == {"quick0", "quick1", "quick2"}
    assert (await executor.prune(keep=2)).run_ids == ()
    assert (await executor.prune(keep=1, older_than=timedelta(days=3650))).run_ids == ()
    assert set((await executor.prune(keep=0)).run_ids) == {"quick3", "quick4", "rare", "quick-not"}
    assert [(view.run_id, view.status) for view in await executor.list()] == [("waiting", PENDING)]


async def test_runs_can_be_chosen_by_status_and_workflow(place: Place) -> None:
    executor = place.executor()
    for run_id in ("q1", "q2"):
        await executor.run(quick, run_id=run_id)
    await failed(executor, "f1")
    await executor.start(quick, run_id="c1")
    await executor.cancel("c1")
    assert (await executor.prune(status=(FAILED, CANCELLED), workflow="quick", dry_run=True)).run_ids == (
        "c1",
    )
    assert set((await executor.prune(status=[FAILED, CANCELLED])).run_ids) == {"f1", "c1"}
    assert (await executor.prune(workflow="sickly")).run_ids == ()
    assert set((await executor.prune(workflow="quick")).run_ids) == {"q1", "q2"}


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        ({}, "nothing says which runs are to go"),
        ({"dry_run": True}, "nothing says which runs are to go"),
        ({"keep": -1}, "keep=-1"),
        ({"keep": 1.5}, "keep=1.5"),
        ({"keep": True}, "keep=True"),
        ({"older_than": timedelta(seconds=-1)}, "older_than="),
        ({"older_than": 7}, "older_than=7"),
        ({"older_than": timedelta(days=999_999_999)}, "older_than="),
        ({"status": "RUNNING"}, "a run that isn't over is never pruned"),
        ({"status": ("FAILED", "PENDING")}, "a run that isn't over is never pruned"),
        ({"status": "TOMBSTONE"}, "no status of a run that is over"),
        ({"status": "failed"}, "no status of a run that is over"),
        ({"status": ()}, "status names none"),
        ({"workflow": "../x"}, "workflow name"),
        ({"run_ids": "r1", "keep": 1}, "no other condition"),
        ({"run_ids": "r1", "planned": PruneReport(dry_run=True)}, "no other condition"),
        ({"planned": PruneReport(dry_run=True), "status": "FAILED"}, "no other condition"),
    ],
)
async def test_what_can_not_be_meant_is_refused(place: Place, wanted: dict[str, Any], told: str) -> None:
    executor = place.executor()
    await executor.run(quick, run_id="r1")
    with pytest.raises(UsageError) as caught:
        await executor.prune(**wanted)
    assert told in str(caught.value)
    assert len(await executor.list()) == 1


async def test_an_unknown_id_is_told_before_anything_goes(place: Place) -> None:
    executor = place.executor()
    await executor.run(quick, run_id="r1")
    await executor.run(quick, run_id="gone")
    await pruned(executor, "gone")
    for unknown in ("nope", "gone"):
        with pytest.raises(RunNotFound):
            await executor.prune(run_ids=["r1", unknown])
    with pytest.raises(InvalidId):
        await executor.prune(run_ids=["r1", "../r2"])
    assert (await executor.get("r1")).status == COMPLETED
    assert (await executor.prune(run_ids=[])).runs == ()
    assert (await executor.prune(run_ids=["r1", "r1"])).run_ids == ("r1",)


def test_pruning_in_plain_code(place: Place) -> None:
    executor = place.executor().blocking
    executor.run(quick, run_id="r1")
    assert executor.prune(keep=0).run_ids == ("r1",)
    assert executor.sweep().records == 0
    executor.close()


# ---- The id afterwards ----


async def test_a_pruned_id_starts_afresh(place: Place) -> None:
    executor = place.executor()
    await executor.run(quick, run_id="r1", word="old")
    await pruned(executor, "r1")
    result = await executor.run(quick, run_id="r1", word="new")
    assert result.output == "new"
    header, children, _ = await left_of(executor, "r1")
    assert header is not None
    assert (header.status, header.base_fence, header.fence) == (COMPLETED, 2, 3)
    assert [child.fence for child in children] == [3]
    await pruned(executor, "r1")
    assert (await executor.start(quick, run_id="r1")).status == PENDING


@pytest.mark.parametrize("lives", [True, False])
async def test_a_half_pruned_run_is_refused_to_everybody_but_the_next_prune(
    place: Place, processes: Processes, lives: bool
) -> None:
    executor, flow = place.executor(), Sickly()
    dying, journal = place.mortal()
    await failed(executor, "r1", flow)
    if not lives:
        processes.next_is_doomed()
    journal.dies_at = lambda verb, *_: verb == "bury"
    with pytest.raises(JournalUnavailable):
        await dying.prune(run_ids="r1")
    processes.next_lives()
    assert (await executor.get("r1")).status == PRUNING
    assert await executor.steps("r1") == []
    for refused in (
        lambda: executor.run(flow.workflow, run_id="r1"),
        lambda: executor.run(flow.workflow, run_id="r1", wait=True),
        lambda: executor.start(flow.workflow, run_id="r1"),
        lambda: executor.resume("r1", flow.workflow),
        lambda: asyncio.wait_for(executor.resume("r1", flow.workflow, wait=True), 5),
        lambda: executor.skip("r1", "part"),
        lambda: executor.fork("r1", wf=flow.workflow),
    ):
        with pytest.raises(RunPruned) as caught:
            await refused()
        assert (caught.value.run_id, caught.value.retryable) == ("r1", True)
    assert (await executor.cancel("r1")).status == PRUNING
    report = await executor.prune(keep=3)
    if lives:  # this process, which could still be at it
        assert [(one.status, "pruning it" in one.why) for one in report.left] == [(PRUNING, True)]
        return
    assert [(one.run_id, one.status) for one in report.runs] == [("r1", PRUNING)]
    flow.ill = False
    assert (await executor.run(flow.workflow, run_id="r1")).output == "well"


# ---- Death on the way ----


def at_write(number: int, *, after: bool) -> Callable[..., bool]:
    """Dies at that write of a prune, before it or just after it."""
    writes = ("acquire", "delete", "delete blob", "bury")
    seen = 0

    def dies(verb: str, *_: object) -> bool:
        nonlocal seen
        if verb in [f"after {write}" if after else write for write in writes]:
            seen += 1
        return seen > number

    return dies


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_a_prune_that_was_killed_at_any_write_is_finished_by_the_next(
    place: Place, processes: Processes, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    monkeypatch.setattr(pruning, "_PORTION", 1)
    monkeypatch.setattr(pruning, "_BLOBS_AT_ONCE", 1)
    monkeypatch.setattr(sweeping, "SECOND_PASS_S", -1)
    executor = place.executor()
    deaths = 0
    for number in range(100):
        run_id = f"r{number}"
        await run_ample(executor, run_id)
        processes.next_is_doomed()
        dying, journal = mortal(place)
        journal.dies_at = at_write(number, after=after)
        try:
            await dying.prune(run_ids=run_id)
        except JournalUnavailable:
            deaths += 1
        processes.next_lives()
        if not journal.dead:
            break
        header, children, blobs = await left_of(executor, run_id)
        named = {ref for child in children for ref in child.refs}
        assert named <= blobs  # no pointer ever dangles
        if header is not None and header.status != TOMBSTONE:
            assert {header.input_ref, header.output_ref} <= blobs
            await pruned(executor, run_id)
        header, children, blobs = await left_of(executor, run_id)
        assert header is not None
        assert (header.status, children) == (TOMBSTONE, [])
        assert len(blobs) <= 2
        with monkeypatch.context() as patches:
            patches.setattr(pruning, "ORPHAN_AGE_S", 0)
            assert (await executor.sweep(run_ids=run_id)).orphans == len(blobs)
        assert (await left_of(executor, run_id)).blobs == set()
    assert deaths == number == 1 + AMPLE_RECORDS + AMPLE_BLOBS + 1


async def test_lost_replies_are_recognised(place: Place) -> None:
    executor = place.executor()
    await run_ample(executor, "r1")
    dying, journal = mortal(place)
    lost: set[str] = set()

    def loses(verb: str, *_: object) -> bool:
        if verb in ("after acquire", "after bury", "after delete", "after delete blob") and verb not in lost:
            lost.add(verb)
            raise JournalUnavailable("the reply is lost")
        return False

    journal.dies_at = loses
    report = await dying.prune(run_ids="r1")
    assert (len(lost), report.run_ids, report.records) == (4, ("r1",), AMPLE_RECORDS)
    header, children, blobs = await left_of(executor, "r1")
    assert header is not None
    assert (header.fence, children, blobs) == (2, [], set())


@pytest.mark.parametrize("how", ["cancelled", "SIGTERM"])
async def test_an_interrupted_prune_lets_the_next_one_go_on_at_once(place: Place, how: str) -> None:
    executor = place.executor()
    await run_ample(executor, "r1")
    before = await executor.store.journal.header("r1")
    other, journal = mortal(place)
    stopped = asyncio.Event()

    def stop(verb: str, *_: object) -> bool:
        if verb == "delete" and not stopped.is_set():
            stopped.set()
            if how == "cancelled":
                pruning_now.cancel()
            else:
                os.kill(os.getpid(), signal.SIGTERM)
        return False

    async def prune() -> int | str | None:
        try:
            await other.prune(run_ids="r1")
        except SystemExit as left:
            return left.code
        return None

    journal.dies_at = stop
    pruning_now = asyncio.ensure_future(prune())
    if how == "cancelled":
        with pytest.raises(asyncio.CancelledError):
            await pruning_now
    else:
        assert await pruning_now == 128 + signal.SIGTERM
    header = await executor.store.journal.header("r1")
    assert header is not None
    assert before is not None
    assert (header.status, header.owner, header.lease_until_ms) == (PRUNING, None, 0)
    assert (header.input_ref, header.output_ref) == (before.input_ref, before.output_ref)
    await pruned(executor, "r1")


async def test_a_store_that_refuses_a_blob_stops_the_prune_and_the_next_finishes_it(place: Place) -> None:
    executor = place.executor()
    await run_ample(executor, "r1")
    other, journal = mortal(place)
    failing = True

    def refuse(verb: str, *_: object) -> bool:
        if verb == "delete blob" and failing:
            raise JournalUnavailable("no blobs today", waited_s=60)
        return False

    journal.dies_at = refuse
    with pytest.raises(JournalUnavailable, match="no blobs today"):
        await other.prune(run_ids="r1")
    assert (await executor.get("r1")).status == PRUNING
    failing = False
    await pruned(executor, "r1")


# ---- Others at the same run ----


async def test_two_pruners_at_once_prune_each_run_once(place: Place) -> None:
    first, second = place.executor(), place.executor()
    runs = [f"r{number}" for number in range(12)]
    for run_id in runs:
        await first.run(quick, run_id=run_id)
    reports = await asyncio.gather(*(one.prune(keep=0) for one in (first, second)))
    assert sorted(run_id for report in reports for run_id in report.run_ids) == sorted(runs)
    for run_id in runs:
        header, children, _ = await left_of(first, run_id)
        assert header is not None
        assert (header.status, header.fence, children) == (TOMBSTONE, 2, [])


async def test_a_pruner_and_somebody_who_resumes_the_run_never_both_get_it(place: Place) -> None:
    pruner, driver, flow = place.executor(), place.executor(), Sickly()
    outcomes = set()
    for number in range(20):
        run_id, flow.ill = f"r{number}", True
        await failed(driver, run_id, flow)
        flow.ill = False
        acts: list[Any] = [pruner.prune(run_ids=run_id), driver.resume(run_id, flow.workflow)]
        order = 1 if number % 2 == 0 else -1
        report, result = (await asyncio.gather(*acts[::order], return_exceptions=True))[::order]
        header, children, _ = await left_of(driver, run_id)
        assert header is not None
        if isinstance(result, BaseException):
            assert isinstance(result, RunPruned | RunNotFound | RunBusy), result
            assert (report.run_ids, header.status, children) == ((run_id,), TOMBSTONE, [])
            outcomes.add("pruned")
        else:
            assert result.output == "well"
            if report.run_ids:  # it came after the end
                assert header.status == TOMBSTONE
            else:
                assert (header.status, len(children)) == (COMPLETED, 1)
                assert [one.run_id for one in report.left] == [run_id]
            outcomes.add("resumed")
    assert outcomes == {"pruned", "resumed"}


async def test_who_resumes_a_run_is_told_when_a_pruner_was_faster(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    pruner, (driver, journal), flow = place.executor(), place.mortal(), Sickly()
    await failed(pruner, "r1", flow)
    acquire = journal.acquire

    async def slowly(*args: Any, **options: Any) -> Any:
        await pruned(pruner, "r1")
        return await acquire(*args, **options)

    monkeypatch.setattr(journal, "acquire", slowly)
    with pytest.raises(RunPruned):
        await driver.resume("r1", flow.workflow)


async def test_a_long_prune_keeps_its_lease(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pruning, "_PORTION", 1)
    clock = place.turn_clock()
    slow, journal = place.mortal(lease_s=30)
    other = place.executor()
    await run_ample(other, "r1")
    delete, refused = journal.inner.delete, []

    async def slowly(*args: Any) -> None:
        await delete(*args)
        clock.turn(12)
        renewals = slow._tools.renewals
        with renewals._changed:  # its thread looks at the clock by itself, but only once a second
            renewals._changed.notify_all()
        held = renewals._held[0]
        await asyncio.to_thread(until, lambda: held.renew_at_ms > clock.now, "a renewal")
        refused.append((await other.prune(run_ids="r1")).left[0].why)

    monkeypatch.setattr(journal.inner, "delete", slowly)
    report = await slow.prune(run_ids="r1")
    assert report.run_ids == ("r1",)
    assert len(refused) == AMPLE_RECORDS
    assert all("is pruning it" in why for why in refused)


async def test_a_pruner_renews_a_lease_that_may_be_over_before_it_deletes_more(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pruning, "_PORTION", 1)
    clock = place.turn_clock()
    paused, journal = place.mortal(lease_s=30)
    await run_ample(paused, "r1")
    delete = journal.inner.delete

    async def late(*args: Any) -> None:
        header = await journal.inner.header("r1")
        assert header is not None
        assert header.lease_until_ms > clock.now
        await delete(*args)
        paused._tools.renewals.restart()
        clock.turn(31)

    monkeypatch.setattr(journal.inner, "delete", late)
    await pruned(paused, "r1")


async def test_a_pruner_that_was_paused_past_its_lease_gives_way(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pruning, "_PORTION", 1)
    clock = place.turn_clock()
    paused, journal = place.mortal(lease_s=30)
    other = place.executor()
    await run_ample(other, "r1")
    pausing, go = asyncio.Event(), asyncio.Event()
    delete = journal.inner.delete

    async def pause(*args: Any) -> None:
        pausing.set()
        await go.wait()
        await delete(*args)

    monkeypatch.setattr(journal.inner, "delete", pause)
    first = asyncio.ensure_future(paused.prune(run_ids="r1"))
    await pausing.wait()
    paused._tools.renewals.restart()  # its thread is paused, too
    clock.turn(31)
    monkeypatch.setattr(journal.inner, "delete", delete)
    await pruned(other, "r1")
    result = await other.run(ample, run_id="r1", ballast=b"x")
    before = await left_of(other, "r1")
    go.set()
    report = await first
    assert (report.run_ids, [one.run_id for one in report.left]) == ((), ["r1"])
    assert await left_of(other, "r1") == before
    assert (await other.run(ample, run_id="r1", ballast=b"x")).output == result.output


async def test_a_zombie_writes_nothing_that_the_next_life_of_the_id_sees(place: Place) -> None:
    """Its owner was paused in a step, past its lease; it was taken over from, and the run pruned."""
    clock = place.turn_clock()
    zombie, executor = place.executor(lease_s=30), place.executor()
    inside, go, lives = asyncio.Event(), asyncio.Event(), 0

    @step
    async def slow() -> bytes:
        nonlocal lives
        lives += 1
        if lives == 1:
            inside.set()
            await go.wait()
        return noise(10_000, lives)

    @workflow
    async def slowly(ctx: Context) -> int:
        first = await ctx.step(slow)
        return len(first) + await ctx.step(count)

    @step(pure=True)
    async def count() -> int:
        return 1

    undead = asyncio.ensure_future(zombie.run(slowly, run_id="r1"))
    await inside.wait()
    zombie._tools.renewals.restart()
    clock.turn(31)
    assert (await executor.run(slowly, run_id="r1")).output == 10_001
    await pruned(executor, "r1")
    tombstone = await executor.store.journal.header("r1")
    go.set()
    with pytest.raises(Fenced):
        await undead
    header, children, blobs = await left_of(executor, "r1")
    assert (header, children) == (tombstone, [])
    assert len(blobs) == 1  # put before its commit was refused
    # What a store without a look at the header would have let through:
    ref = await put_blob(executor, "r1", "undead")
    late = Segment("r1", "map", 0, 0, "undead", 1, items=1, refs=f'["{ref}"]')
    assert (await executor.store.journal.append(late)).ok
    assert (await executor.run(slowly, run_id="r1")).output == 10_001
    assert {view.step_id for view in await executor.steps("r1")} == {"slow", "count"}
    assert lives == 3
    await pruned(executor, "r1")  # and takes the zombie's segment along, with its blob
    assert (await left_of(executor, "r1")).children == []
    assert ref not in (await left_of(executor, "r1")).blobs


async def test_runs_can_be_listed_while_they_are_pruned(place: Place) -> None:
    executor, looker = place.executor(), place.executor()
    runs = {f"r{number}" for number in range(30)}
    for run_id in runs:
        await executor.run(quick, run_id=run_id)
    pruning_all = asyncio.ensure_future(executor.prune(keep=0))
    seen: list[int] = []
    while not pruning_all.done():
        found = []
        page = await looker.list(limit=7)
        while page:
            found += page
            page = await looker.list(limit=7, before=page[-1])
        assert {view.run_id for view in found} <= runs
        assert len({view.run_id for view in found}) == len(found)
        assert {view.status for view in found} <= {COMPLETED, PRUNING}
        seen.append(len(found))
        await asyncio.sleep(0)
    assert set((await pruning_all).run_ids) == runs
    assert await looker.list() == []
    assert seen == sorted(seen, reverse=True)


async def test_a_large_run_is_pruned_page_by_page(place: Place) -> None:
    """Its records are put straight into the journal: ten thousand of them at full scale."""
    executor, steps = place.executor(), 10_000 if full() else 1_200
    journal, me = executor.store.journal, Lease("r1", "me", 1)
    await journal.open()
    header = RunHeader(
        "r1", "ample", status=RUNNING, owner="me", fence=1, created_at="2026-01-01T00:00:00.000Z"
    )
    assert (await journal.create(header, 60_000)).ok
    refs = [await put_blob(executor, "r1", f"a{number}") for number in range(steps // 20)]
    for number in range(steps):
        ref = refs[number // 20] if number % 20 == 0 else None
        record = StepRecord(
            "r1", f"large#{number}", number, COMMITTED, "", "", None, ref, "json", None, None, "key", 1, 0,
            f"a{number}", 1,
        )  # fmt: skip
        assert (await journal.put(record, None, me)).ok
    assert (await journal.leave(me, Departure(status=COMPLETED))).ok
    report = await pruned(executor, "r1")
    assert (report.records, report.blobs) == (steps, len(refs))
    found = await left_of(executor, "r1")
    assert found.header is not None
    assert (found.header.status, found.children, found.blobs) == (TOMBSTONE, [], set())
