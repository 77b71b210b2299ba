"""Sweeping: what zombies and the dead leave is taken a day later, and nothing that anybody may still need."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from durable_core import Context, DurableWorkflowExecutor, step, workflow
from durable_core.engine import pruning, sweeping
from durable_core.errors import CorruptRecord, InvalidId, RunFailed, RunNotFound
from durable_core.records import COMMITTED, STARTED, TOMBSTONE, Event, Segment, StepRecord
from tests.leftovers import ample, left_of, noise, put_blob, run_ample
from tests.stores import Place, Processes, crash, verb_of

DAY_S = 24 * 3600


@pytest.fixture
def _all_are_old(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blobs count as old from the start, to the millisecond: stores tell their age by clocks of their own."""
    monkeypatch.setattr(pruning, "ORPHAN_AGE_S", -1)


old_blobs = pytest.mark.usefixtures("_all_are_old")


async def tombstone(executor: DurableWorkflowExecutor, run_id: str) -> Any:
    header = (await left_of(executor, run_id)).header
    assert header is not None
    assert header.status == TOMBSTONE
    return header


# ---- Tombstones ----


@pytest.mark.over_dynamodb
async def test_a_tombstone_gets_its_end_a_day_later_and_goes_a_month_after_that(place: Place) -> None:
    clock = place.turn_clock()
    executor = place.executor()
    await run_ample(executor, "r1")
    await executor.prune(run_ids="r1")
    clock.turn(DAY_S - 1)
    assert (await executor.sweep()).expired == 0
    assert (await tombstone(executor, "r1")).expires_at_s is None
    clock.turn(2)
    assert (await executor.sweep()).expired == 1
    ends_at_s = (await tombstone(executor, "r1")).expires_at_s
    assert ends_at_s - clock.now / 1000 > 30 * DAY_S
    assert (await executor.sweep()).expired == 0
    clock.turn(30 * DAY_S)
    assert (await executor.sweep()).purged == 0
    clock.turn(2 * DAY_S)
    purges = place.kind != "dynamodb"  # it removes what has expired by itself, in its own time
    assert (await executor.sweep()).purged == int(purges)
    assert ((await left_of(executor, "r1")).header is None) is purges


@pytest.mark.over_dynamodb
async def test_a_tombstone_whose_end_has_passed_counts_for_what_it_is_while_it_is_there(place: Place) -> None:
    """DynamoDB removes what has expired in its own time, which may be days."""
    place.turn_clock()
    executor = place.executor()
    await run_ample(executor, "r1")
    await executor.prune(run_ids=["r1"])
    old = await tombstone(executor, "r1")
    await executor.store.journal.expire(old, 1)
    with pytest.raises(RunNotFound):
        await executor.get("r1")
    assert await executor.list() == []
    await run_ample(executor, "r1")
    again = (await left_of(executor, "r1")).header
    assert again is not None
    assert (again.expires_at_s, again.base_fence) == (None, old.fence)
    assert again.fence > old.fence


@old_blobs
async def test_what_a_zombie_left_is_taken_and_the_tombstone_then_waits_for_a_pass_that_finds_nothing(
    place: Place,
) -> None:
    clock = place.turn_clock()
    executor = place.executor()
    await run_ample(executor, "r1")
    await executor.prune(run_ids="r1")
    named, orphan = await put_blob(executor, "r1", "named"), await put_blob(executor, "r1", "orphan")
    late = Segment("r1", "map", 0, 0, "undead", 1, items=1, refs=f'["{named}"]')
    assert (await executor.store.journal.append(late)).ok
    clock.turn(DAY_S + 1)
    plan = await executor.sweep(dry_run=True)
    assert (plan.records, plan.blobs, plan.expired, plan.dry_run) == (1, 1, 0, True)
    assert (await left_of(executor, "r1")).blobs == {named, orphan}
    report = await executor.sweep()
    assert (report.records, report.blobs, report.orphans, report.expired) == (1, 1, 1, 0)
    assert (await left_of(executor, "r1"))[1:] == ([], set())
    assert (await tombstone(executor, "r1")).expires_at_s is None
    report = await executor.sweep()
    assert (report.records, report.orphans, report.expired) == (0, 0, 1)


async def test_a_blob_that_is_too_young_to_be_an_orphan_keeps_the_tombstone(place: Place) -> None:
    clock = place.turn_clock()
    executor = place.executor()
    await run_ample(executor, "r1")
    await executor.prune(run_ids="r1")
    ref = await put_blob(executor, "r1", "undead")
    clock.turn(DAY_S + 1)
    report = await executor.sweep()
    assert (report.orphans, report.expired) == (0, 0)
    assert (await left_of(executor, "r1")).blobs == {ref}


@old_blobs
async def test_the_records_of_a_later_life_of_the_id_stay(place: Place) -> None:
    clock = place.turn_clock()
    executor = place.executor()
    await run_ample(executor, "r1")
    await executor.prune(run_ids="r1")
    seen = await tombstone(executor, "r1")
    assert (await executor.store.journal.append(Segment("r1", "map", 5, 0, "undead", 1))).ok
    clock.turn(DAY_S + 1)
    result = await executor.run(ample, run_id="r1", ballast=noise(10_000))
    before = await left_of(executor, "r1")
    sweeper = sweeping._Sweeper(executor._tools, dry_run=False)
    await sweeper._look_under(seen)  # as a sweep that read the tombstone just before
    after = await left_of(executor, "r1")
    assert sweeper.expired == 0
    assert after.header == before.header
    assert [child for child in before.children if child not in after.children] == [
        ("segment", "map", 5, 0, 1, (), 0)
    ]
    assert after.blobs == before.blobs
    assert (await executor.sweep()).orphans == 0
    assert (await executor.run(ample, run_id="r1", ballast=noise(10_000))).output == result.output


async def test_a_sweep_can_be_limited_to_some_ids(place: Place) -> None:
    clock = place.turn_clock()
    executor = place.executor()
    for run_id in ("r1", "r2", "r3"):
        await run_ample(executor, run_id)
        await executor.prune(run_ids=run_id)
    clock.turn(DAY_S + 1)
    assert (await executor.sweep(run_ids=["r2", "unknown"])).expired == 1
    assert (await executor.sweep(run_ids="r2")).expired == 0
    assert (await executor.sweep()).expired == 2
    with pytest.raises(InvalidId):
        await executor.sweep(run_ids="../r1")


async def test_more_tombstones_than_one_page_are_all_looked_under(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeping, "_PAGE", 2)
    clock = place.turn_clock()
    executor = place.executor()
    for number in range(7):
        await executor.start(ample, run_id=f"r{number}", ballast=b"")
        await executor.cancel(f"r{number}")
    await executor.prune(keep=0)
    for number in range(0, 7, 2):
        assert (await executor.store.journal.append(Segment(f"r{number}", "map", 0, 0, "undead", 1))).ok
    clock.turn(DAY_S + 1)
    assert (await executor.sweep(dry_run=True)).expired == 3
    report = await executor.sweep()
    assert (report.records, report.expired) == (4, 3)
    assert (await executor.sweep()).expired == 4


# ---- Orphans ----


@old_blobs
@pytest.mark.parametrize("dry_run", [True, False])
async def test_blobs_that_nothing_points_to_are_orphans_also_of_runs_that_never_began(
    place: Place, dry_run: bool
) -> None:
    executor = place.executor()
    await run_ample(executor, "r1")
    kept = await left_of(executor, "r1")
    orphans = {await put_blob(executor, "r1", "a"), await put_blob(executor, "r1", "b")}
    lone = await put_blob(executor, "never-began", "c")
    report = await executor.sweep(dry_run=dry_run)
    assert report.orphans == 3
    left = orphans if dry_run else set()
    assert await left_of(executor, "r1") == kept._replace(blobs=kept.blobs | left)
    assert (await left_of(executor, "never-began")).blobs == ({lone} if dry_run else set())


async def test_a_young_blob_is_no_orphan(place: Place) -> None:
    executor = place.executor()
    ref = await put_blob(executor, "r1", "a")
    assert (await executor.sweep()).orphans == 0
    assert (await left_of(executor, "r1")).blobs == {ref}


@old_blobs
async def test_records_of_an_earlier_life_keep_their_blobs_until_they_go(place: Place) -> None:
    executor = place.executor()
    await run_ample(executor, "r1")
    await executor.prune(run_ids="r1")
    await executor.run(ample, run_id="r1", ballast=b"")
    ref = await put_blob(executor, "r1", "undead")
    assert (await executor.store.journal.append(Segment("r1", "map", 0, 0, "u", 1, refs=f'["{ref}"]'))).ok
    event = Event("r1", "approval", 0, "e", 3, ref=await put_blob(executor, "r1", "sent"))
    assert (await executor.store.journal.send(event, (await left_of(executor, "r1")).header)).ok
    before = await left_of(executor, "r1")
    assert (await executor.sweep()).orphans == 0
    assert await left_of(executor, "r1") == before


@old_blobs
async def test_the_blob_of_an_attempt_that_can_still_commit_stays(place: Place, processes: Processes) -> None:
    """Its owner was paused, or died, between the blob and the record that will point to it."""
    await crash(
        place, processes, lambda one: one.run(ample, run_id="r1", ballast=b""), at=verb_of("commit", "large")
    )
    executor = place.executor()
    before = await left_of(executor, "r1")
    assert len(before.blobs) == 1
    assert (await executor.sweep()).orphans == 0
    (record,) = [one async for page in executor.store.journal.steps("r1") for one in page]
    assert record.status == STARTED
    (ref,) = before.blobs
    assert (await executor.store.journal.commit(record._replace(status=COMMITTED, output_ref=ref))).ok
    assert (await executor.sweep()).orphans == 0
    assert await executor.store.blobs.get(ref)


@old_blobs
async def test_a_blob_whose_pointer_is_committed_while_pointers_are_read_stays(
    place: Place, processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    await crash(
        place, processes, lambda one: one.run(ample, run_id="r1", ballast=b""), at=verb_of("commit", "large")
    )
    executor, journal = place.mortal()
    (ref,) = (await left_of(executor, "r1")).blobs
    steps = journal.steps

    async def late(run_id: str) -> AsyncIterator[list[StepRecord]]:
        record = await journal.step(run_id, "large")
        assert record is not None
        assert (await journal.commit(record._replace(status=COMMITTED, output_ref=ref))).ok
        async for page in steps(run_id):
            yield page

    monkeypatch.setattr(journal, "steps", late)
    assert (await executor.sweep()).orphans == 0
    assert (await left_of(executor, "r1")).blobs == {ref}


@old_blobs
async def test_an_orphan_under_a_tombstone_is_counted_once(place: Place) -> None:
    clock = place.turn_clock()
    executor = place.executor()
    await run_ample(executor, "r1")
    await executor.prune(run_ids="r1")
    await put_blob(executor, "r1", "undead")
    clock.turn(DAY_S + 1)
    for dry_run in (True, False):
        report = await executor.sweep(dry_run=dry_run)
        assert (report.orphans, report.expired) == (1, 0)


@old_blobs
async def test_the_blob_of_an_attempt_that_was_begun_anew_goes(place: Place, processes: Processes) -> None:
    await crash(
        place, processes, lambda one: one.run(ample, run_id="r1", ballast=b""), at=verb_of("commit", "large")
    )
    executor = place.executor()
    (orphan,) = (await left_of(executor, "r1")).blobs
    await executor.resume("r1", ample)
    assert orphan in (await left_of(executor, "r1")).blobs
    assert (await executor.sweep()).orphans == 1
    found = await left_of(executor, "r1")
    assert found.blobs == {ref for one in found.children for ref in one.refs} | {found.header.output_ref}  # type: ignore[union-attr]


@old_blobs
async def test_the_output_of_a_run_that_is_about_to_end_stays(place: Place, processes: Processes) -> None:
    await crash(
        place,
        processes,
        lambda one: one.run(ample, run_id="r1", ballast=b""),
        at=lambda verb, *_: verb == "leave",
    )
    executor = place.executor()
    before = await left_of(executor, "r1")
    assert len(before.blobs) == 4
    assert (await executor.sweep()).orphans == 0
    assert await left_of(executor, "r1") == before


@old_blobs
async def test_orphans_of_a_run_go_with_its_prune_once_they_are_old(place: Place) -> None:
    executor = place.executor()
    await run_ample(executor, "r1")
    await put_blob(executor, "r1", "orphan")
    await executor.prune(run_ids="r1")
    assert (await left_of(executor, "r1"))[1:] == ([], set())


async def test_young_blobs_that_nothing_named_outlive_the_prune(place: Place) -> None:
    """They may be the first of the id's next life."""
    executor = place.executor()
    await run_ample(executor, "r1")
    ref = await put_blob(executor, "r1", "next")
    await executor.prune(run_ids="r1")
    assert (await left_of(executor, "r1")).blobs == {ref}


@old_blobs
async def test_a_prune_that_takes_long_does_not_take_blobs_of_the_next_life_for_old_ones(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was paused between the tombstone and its look for orphans."""
    clock = place.turn_clock()
    executor, later = place.mortal()[0], place.executor()
    await run_ample(later, "r1")
    journal = executor.store.journal
    bury, refs = journal.bury, []

    async def slowly(*args: Any) -> Any:
        reply = await bury(*args)
        refs.append(await put_blob(later, "r1", "next"))
        clock.turn(3600)
        return reply

    monkeypatch.setattr(journal, "bury", slowly)
    await executor.prune(run_ids="r1")
    assert (await left_of(later, "r1")).blobs == set(refs)


@old_blobs
async def test_where_a_pointer_can_not_be_read_no_blob_is_taken_for_an_orphan(place: Place) -> None:
    executor = place.executor()
    await run_ample(executor, "r1")
    await run_ample(executor, "r2")
    await put_blob(executor, "r2", "orphan")
    before = await left_of(executor, "r1")
    journal = executor.store.journal
    assert (await journal.append(Segment("r1", "map", 1, 0, "a", 1, refs="{not json"))).ok
    await put_blob(executor, "r1", "orphan")
    report = await executor.sweep()
    assert [(one.run_id, "JSON" in one.why) for one in report.left] == [("r1", True)]
    assert report.orphans == 1
    blobs = {ref async for ref in executor.store.blobs.refs("r1")}
    assert len(blobs) == len(before.blobs) + 1
    assert [one.run_id for one in (await executor.prune(run_ids="r1", dry_run=True)).left] == ["r1"]
    with pytest.raises(CorruptRecord):
        await left_of(executor, "r1")


@old_blobs
async def test_pointers_of_running_workflows_never_dangle_while_others_prune_and_sweep(place: Place) -> None:
    """Twenty drivers spill and commit; all blobs count as old."""
    workers, cleaner = place.executor(), place.executor()
    ill: set[str] = set()

    @step
    async def spill(name: str, number: int) -> bytes:
        await asyncio.sleep(0)
        if name in ill and number == 3:
            ill.discard(name)
            raise ValueError("once")
        return noise(9_000, f"{name}.{number}")

    @workflow
    async def spilling(ctx: Context, name: str) -> list[bytes]:
        return [await ctx.step(spill, name, number) for number in range(6)]

    async def drive(run_id: str) -> list[bytes]:
        ill.add(run_id)
        with pytest.raises(RunFailed):
            await workers.run(spilling, run_id=run_id, name=run_id)
        return (await workers.resume(run_id, spilling)).output

    async def clean() -> int:
        orphans = 0
        while True:
            orphans += (await cleaner.sweep()).orphans
            await cleaner.prune(status="COMPLETED", older_than=timedelta(days=1))
            await asyncio.sleep(0)
            if driving.done():
                return orphans

    driving = asyncio.gather(*(drive(f"r{number}") for number in range(20)))
    assert await clean() == 0
    for number, output in enumerate(await driving):
        assert output == [noise(9_000, f"r{number}.{part}") for part in range(6)]
        for view in await workers.steps(f"r{number}"):
            assert len(await view.output()) == 9_000  # type: ignore[arg-type]  # bytes
