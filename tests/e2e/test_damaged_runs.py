"""A run whose header can't be read is pruned by its id, and only if that is asked for, on every store."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from typing_extensions import override

from durable_core import Context, DurableWorkflowExecutor, step, workflow
from durable_core.engine import damaged, pruning
from durable_core.errors import CorruptRecord, Fenced, JournalUnavailable, UsageError
from durable_core.journal.damaged import DamagedHeader
from durable_core.records import COMPLETED, CORRUPT, PRUNING, TOMBSTONE, Reply, RunHeader
from durable_core.store import Store
from durable_core.testing.forwarding_journal import ForwardingJournal
from tests.leftovers import AMPLE_BLOBS, AMPLE_RECORDS, ample, left_of, noise, run_ample
from tests.raw_store import RawStore, raw
from tests.stores import Place


def spoil(place: Place, run_id: str, **columns: Any) -> RawStore:
    """Damages a header behind the journal's back."""
    under = raw(place)
    under.put("header", under.row("header", run_id=run_id) | (columns or {"status": "BROKEN"}))
    return under


@pytest.mark.over_dynamodb
async def test_it_is_shown_and_goes_with_all_that_belongs_to_it(place: Place) -> None:
    executor = place.executor()
    for run_id in ("r1", "r2"):
        await run_ample(executor, run_id)
    before = await left_of(executor, "r2")
    spoil(place, "r1")
    with pytest.raises(UsageError):
        await executor.prune(keep=0, damaged=True)
    plan = await executor.prune(run_ids=["r1", "r2"], damaged=True, dry_run=True)
    assert [(run.run_id, run.status, run.records) for run in plan.runs] == [
        ("r1", CORRUPT, AMPLE_RECORDS), ("r2", COMPLETED, AMPLE_RECORDS),
    ]  # fmt: skip
    assert "BROKEN" in (plan.runs[0].damage or "")
    assert "whether it is over can't be told" in (plan.runs[0].damage or "")
    assert plan.runs[1].damage is None
    report = await executor.prune(run_ids="r1", damaged=True)
    assert report.runs == plan.runs[:1]
    assert (report.records, report.blobs, report.left) == (AMPLE_RECORDS, AMPLE_BLOBS, ())
    header, children, blobs = await left_of(executor, "r1")
    assert header is not None
    assert (header.status, header.fence, header.base_fence, children, blobs) == (TOMBSTONE, 3, 3, [], set())
    assert await left_of(executor, "r2") == before
    assert (await executor.run(ample, run_id="r1", ballast=noise(10))).status == COMPLETED
    assert [one.kind for one in (await executor.verify("r1")).findings] == []


async def test_a_prune_as_planned_takes_it_only_as_it_was_shown(place: Place) -> None:
    executor = place.executor()
    for run_id in ("r1", "r2", "r3"):
        await run_ample(executor, run_id)
        under = spoil(place, run_id)
    plan = await executor.prune(run_ids=["r1", "r2", "r3"], damaged=True, dry_run=True)
    under = spoil(place, "r2", status=COMPLETED)
    under.put("header", under.row("header", run_id="r3") | {"fence": 7})
    report = await executor.prune(planned=plan)
    assert report.run_ids == ("r1",)
    assert [(one.run_id, one.why) for one in report.left] == [
        ("r2", "it went on since it was shown"), ("r3", "it went on since it was shown"),
    ]  # fmt: skip


async def test_who_may_still_drive_it_is_waited_for_and_fenced_once_the_lease_is_over(place: Place) -> None:
    clock = place.turn_clock()
    driver, executor = place.executor(lease_s=30), place.executor()
    inside, go = asyncio.Event(), asyncio.Event()

    @step
    async def waits() -> int:
        inside.set()
        await go.wait()
        return 1

    @workflow(name="driven")
    async def driven(ctx: Context) -> int:
        return await ctx.step(waits)

    driving = asyncio.ensure_future(driver.run(driven, run_id="r1"))
    await inside.wait()
    driver._tools.renewals.restart()  # its thread is paused, too
    spoil(place, "r1")
    for dry_run in (True, False):
        report = await executor.prune(run_ids="r1", damaged=True, dry_run=dry_run)
        assert (report.runs, [one.status for one in report.left]) == ((), [CORRUPT])
        assert "may be driving it until 2025-06-15T15:07:10.000Z" in report.left[0].why
    clock.turn(31)
    assert (await executor.prune(run_ids="r1", damaged=True)).run_ids == ("r1",)
    go.set()
    with pytest.raises(Fenced):
        await driving
    assert (await left_of(executor, "r1")).children == []


async def test_a_fence_that_cannot_be_read_is_leapt_over(place: Place) -> None:
    """A zombie of the run may have any: what it writes late lies under the tombstone all the same."""
    executor = place.executor()
    await run_ample(executor, "r1")
    spoils = {"status": "BROKEN"} if place.kind == "postgres" else {"fence": "two"}
    spoil(place, "r1", **spoils)
    await executor.prune(run_ids="r1", damaged=True)
    header, children, _ = await left_of(executor, "r1")
    assert header is not None
    assert (header.status, children) == (TOMBSTONE, [])
    # Its columns have their types there, and the fence can be read:
    assert header.fence == (3 if place.kind == "postgres" else 2 + damaged.FENCE_LEAP)
    assert (await executor.run(ample, run_id="r1", ballast=noise(10))).status == COMPLETED


@pytest.mark.parametrize(
    ("verb", "after"),
    [("replace_damaged", False), ("replace_damaged", True), ("delete", True)],
    ids=["before", "replaced", "half-way"],
)
async def test_a_prune_that_dies_is_finished_by_the_next(
    place: Place, monkeypatch: pytest.MonkeyPatch, verb: str, after: bool
) -> None:
    clock = place.turn_clock()
    executor, pruner = place.executor(), place.mortal()
    await run_ample(executor, "r1")
    spoil(place, "r1")
    dying, journal = pruner
    if after:
        journal.dies_after = lambda called, *_: called == verb
    else:
        journal.dies_at = lambda called, *_: called == verb
    with pytest.raises(JournalUnavailable):
        await dying.prune(run_ids="r1", damaged=True)
    touched = after or verb != "replace_damaged"
    if touched:
        found = await executor.store.journal.header("r1")
        assert found is not None
        assert found.status in (PRUNING, TOMBSTONE)
    clock.turn(3600)
    await finish(executor, "r1", damaged=not touched)
    monkeypatch.setattr(pruning, "ORPHAN_AGE_S", 0)
    await executor.sweep()
    header, children, blobs = await left_of(executor, "r1")
    assert header is not None
    assert (header.status, children, blobs) == (TOMBSTONE, [], set())


async def finish(executor: DurableWorkflowExecutor, run_id: str, *, damaged: bool) -> None:
    """Prunes what another has left half-way, if it isn't done."""
    header = None if damaged else await executor.store.journal.header(run_id)
    if damaged or (header is not None and header.status == PRUNING):
        report = await executor.prune(run_ids=run_id, damaged=damaged)
        assert report.run_ids == (run_id,)


async def test_a_lost_reply_is_recognised(place: Place) -> None:
    executor = place.executor()
    await run_ample(executor, "r1")
    spoil(place, "r1")
    inner = place.store()
    forgetful = Forgetful(inner.journal)
    pruner = place.executor(store=Store(inner.url, forgetful, inner.blobs))
    assert (await pruner.prune(run_ids="r1", damaged=True)).run_ids == ("r1",)
    assert forgetful.lost == 1


class Forgetful(ForwardingJournal):
    """Loses the reply to the first write over a damaged header."""

    lost = 0

    @override
    async def replace_damaged(self, seen: DamagedHeader, header: RunHeader) -> Reply[RunHeader]:
        reply = await super().replace_damaged(seen, header)
        if not self.lost:
            self.lost += 1
            raise JournalUnavailable("the reply is lost")
        return reply


async def test_without_being_asked_for_it_stays(place: Place) -> None:
    executor = place.executor()
    await run_ample(executor, "r1")
    spoil(place, "r1")
    before = await left_of_damaged(executor, "r1")
    if place.kind == "memory":  # keeps what it is given, and reads no columns
        report = await executor.prune(run_ids="r1")
        assert "unknown status" in report.left[0].why
    else:
        with pytest.raises(CorruptRecord, match="durable prune r1 --damaged"):
            await executor.prune(run_ids="r1")
    assert (await executor.prune(keep=0)).runs == ()
    assert await left_of_damaged(executor, "r1") == before


async def left_of_damaged(executor: DurableWorkflowExecutor, run_id: str) -> tuple[object, ...]:
    journal = executor.store.journal
    children = [child async for page in journal.children(run_id) for child in page]
    return await journal.damaged_header(run_id), children
