"""Maps whose owners die, are stopped, fenced or cut off: what is durable stays and never runs again."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from durable_core import Context, DurableWorkflowExecutor, step, workflow
from durable_core.blobs.memory import MemoryBlobs
from durable_core.errors import (
    CrashLimitReached,
    DeadlineReached,
    Fenced,
    JournalUnavailable,
    MapFailed,
    RunCancelled,
)
from durable_core.journal.memory import MemoryJournal
from durable_core.records import Reply, Segment
from durable_core.store import Store
from tests.e2e.batches import (
    World,
    batch_of,
    failure,
    gave,
    outputs,
    raises,
    resumed,
    tenfold,
    waits,
    world,
)
from tests.stores import Mortal, Place, Processes, crash


@pytest.fixture(autouse=True)
def _fresh_world() -> None:
    world.__dict__.update(World().__dict__)


async def until(condition: Any) -> None:
    """Waits in the loop."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - what is waited for is no event
            await asyncio.sleep(0.001)


async def dies_in(place: Place, processes: Processes, deadly: Any, wf: Any = batch_of, **gives: Any) -> None:
    """Drives the run in a process that dies in the body of this item."""
    processes.next_is_doomed()
    executor, journal = place.mortal()

    async def die() -> None:
        journal.die()
        raise asyncio.CancelledError

    before = world.gives.get(deadly)
    world.gives[deadly] = die
    with pytest.raises((JournalUnavailable, Fenced)):
        await executor.run(wf, run_id="r1")
    world.gives.pop(deadly)
    if before is not None:
        world.gives[deadly] = before
    processes.next_lives()


def ran() -> list[Any]:
    return world.taken()


# ---- Deaths ----


@pytest.mark.parametrize("at", range(4))
async def test_a_death_at_any_segment_repeats_only_what_was_not_durable(
    at: int, place: Place, processes: Processes
) -> None:
    world.items, world.options = (lambda: range(1000)), {"max_concurrency": 8}
    appended = 0

    def dies(verb: str, *args: Any) -> bool:
        nonlocal appended
        appended += verb == "append"
        return verb == "append" and appended > at

    await crash(place, processes, lambda executor: executor.run(batch_of, run_id="r1"), at=dies)
    first = ran()
    assert await outputs(place.executor()) == [item * 10 for item in range(1000)]
    again = set(ran()) & set(first)
    assert len(again) <= 8 + 256


@pytest.mark.parametrize("verb", ["begin", "append", "commit"])
async def test_a_death_after_a_write_is_as_one_before_the_next(
    verb: str, place: Place, processes: Processes
) -> None:
    world.items = lambda: range(10)

    def dies(called: str, *args: Any) -> bool:
        return called == verb and getattr(args[0], "step_id", None) == "tenfold"

    await crash(place, processes, lambda executor: executor.run(batch_of, run_id="r1"), after=dies)
    first = ran()
    assert await outputs(place.executor()) == [item * 10 for item in range(10)]
    durable = set(first) if verb != "begin" else set()
    assert ran() == sorted(set(range(10)) - durable)


async def test_after_a_death_the_suspects_get_a_record_each_and_the_others_none(
    place: Place, processes: Processes
) -> None:
    world.items, world.options = (lambda: range(600)), {"max_concurrency": 4}
    await dies_in(place, processes, 100)
    ran()
    executor, journal = place.mortal()
    assert len(await outputs(executor)) == 600
    items = [call for call in journal.calls if call == "begin"]
    assert len(items) == 1 + 4 + 256  # the map, and the window


async def test_a_map_that_was_left_in_peace_has_no_suspects(place: Place) -> None:
    world.items, world.options = (lambda: range(100)), {"max_concurrency": 4}
    world.gives[50] = raises(ValueError("no"))
    await failure(place.executor())
    world.gives.clear()
    executor, journal = place.mortal()
    assert len(await resumed(executor)) == 100
    assert journal.calls.count("begin") == 1


@pytest.mark.over_dynamodb
@pytest.mark.parametrize("concurrency", [1, 4, 32])
@pytest.mark.parametrize("poison", [0, 5, 39])
async def test_only_the_poison_item_is_quarantined(
    poison: int, concurrency: int, place: Place, processes: Processes
) -> None:
    world.items = lambda: range(40)
    world.options = {"max_concurrency": concurrency, "tolerate_failures": 1}
    world.after = lambda batch: [(one.index, one.error["code"]) for one in batch.failures if one.error]
    deaths = 0
    for _ in range(4):
        await dies_in(place, processes, poison)
        deaths += 1
    world.gives[poison] = lambda: pytest.fail("it was started again")
    executor = place.executor()
    assert await outputs(executor) == [(poison, CrashLimitReached.code)]
    starts = Counter(world.ran)
    assert starts[poison] == deaths
    others = [starts[item] for item in range(40) if item != poison]
    assert max(others) <= 3  # before anybody knew, beside it once as a suspect, and to its end


async def test_two_poison_items_are_both_found_and_nobody_else(place: Place, processes: Processes) -> None:
    world.items = lambda: range(40)
    world.options = {"max_concurrency": 8, "tolerate_failures": 2}
    world.after = lambda batch: [(one.index, one.error["code"]) for one in batch.failures if one.error]
    deaths = 0
    while deaths < 12:
        processes.next_is_doomed()
        executor, journal = place.mortal()

        async def die(journal: Mortal = journal) -> None:
            journal.die()
            raise asyncio.CancelledError

        world.gives = {3: die, 20: die}
        try:
            found = await outputs(executor)
            break
        except (JournalUnavailable, Fenced):
            deaths += 1
        finally:
            processes.next_lives()
    assert found == [(3, CrashLimitReached.code), (20, CrashLimitReached.code)]
    starts = Counter(world.ran)
    assert (starts[3], starts[20]) <= (4, 4)
    assert deaths <= 8


async def test_a_lone_poison_item_is_quarantined_before_the_run_is_given_up(
    place: Place, processes: Processes
) -> None:
    world.items = lambda: [7]
    for _ in range(4):
        await dies_in(place, processes, 7)
    error = await failure(place.executor())
    assert isinstance(error, MapFailed)
    assert "CrashLimitReached" in str(error)
    assert world.ran == [7] * 4
    assert await resumed(place.executor()) == [70]  # a person asked for it: a fresh budget


async def test_a_poison_item_that_is_tried_again_by_hand_is_quarantined_again(
    place: Place, processes: Processes
) -> None:
    world.items = lambda: range(3)
    for _ in range(4):
        await dies_in(place, processes, 1)
    error = await failure(place.executor())
    assert "CrashLimitReached" in str(error)
    before = world.ran.count(1)
    for number in range(4):
        processes.next_is_doomed()
        executor, journal = place.mortal()

        async def die(journal: Mortal = journal) -> None:
            journal.die()
            raise asyncio.CancelledError

        world.gives[1] = die
        if number < 3:
            with pytest.raises((JournalUnavailable, Fenced)):
                await (
                    executor.resume("r1", batch_of) if number == 0 else executor.run(batch_of, run_id="r1")
                )
        else:
            assert "CrashLimitReached" in str(await failure(executor))
    assert world.ran.count(1) - before == 3
    processes.next_lives()
    world.gives.clear()
    assert await resumed(place.executor()) == [0, 10, 20]


async def test_items_that_wait_for_their_turn_are_not_blamed(place: Place, processes: Processes) -> None:
    """Twenty in flight, and the guilty one comes first each time: the others aren't counted down with it."""
    world.items = lambda: range(20)
    world.options = {"max_concurrency": 20, "tolerate_failures": 1}
    world.after = lambda batch: [one.index for one in batch.failures]
    for _ in range(4):
        await dies_in(place, processes, 0)
    world.gives[0] = lambda: pytest.fail("it was started again")
    assert await outputs(place.executor()) == [0]


async def test_at_its_last_chance_an_item_runs_alone(place: Place, processes: Processes) -> None:
    world.items = lambda: range(600)
    world.options = {"max_concurrency": 10}
    for _ in range(3):
        await dies_in(place, processes, 0)
    ran()
    at_work: set[int] = set()
    beside: list[set[int]] = []

    def of(item: int) -> Any:
        async def give() -> int:
            if at_work:
                beside.append({item, *at_work})
            at_work.add(item)
            await asyncio.sleep(0.001)
            at_work.discard(item)
            return item * 10

        return give

    world.gives = {item: of(item) for item in range(600)}
    assert len(await outputs(place.executor())) == 600
    assert beside
    assert not any(0 in found for found in beside)


@pytest.mark.parametrize("inside", ["step", "code"])
async def test_a_poison_item_with_steps_of_its_own_is_found_wherever_it_dies(
    inside: str, place: Place, processes: Processes
) -> None:
    journals: list[Mortal] = []

    async def each(ctx: Context, item: int) -> int:
        found = await ctx.step(tenfold, item)
        if inside == "code" and item == 5 and journals:
            journals[-1].die()
            raise asyncio.CancelledError
        return int(found)

    @workflow
    async def mapped(ctx: Context) -> Any:
        batch = await ctx.map(each, range(12), max_concurrency=6, tolerate_failures=1)
        return [one.index for one in batch.failures]

    deaths = 0
    while True:
        processes.next_is_doomed()
        executor, journal = place.mortal()
        journals.append(journal)

        async def die(journal: Mortal = journal) -> None:
            journal.die()
            raise asyncio.CancelledError

        world.gives = {5: die} if inside == "step" else {}
        async with asyncio.timeout(20):
            try:
                found = (await executor.run(mapped, run_id="r1")).output
                break
            except (JournalUnavailable, Fenced):
                deaths += 1
            finally:
                processes.next_lives()
    assert found == [5]
    assert deaths <= 4
    starts = Counter(world.ran)
    assert all(starts[item] <= 3 for item in range(12) if item != 5)


async def test_an_items_committed_step_is_not_run_again_after_a_death(
    place: Place, processes: Processes
) -> None:
    async def each(ctx: Context, item: int) -> int:
        return int(await ctx.step(checked, await ctx.step(tenfold, item)))

    @step
    async def checked(found: int) -> int:
        found += int(gave(f"checked {found}") or 0)
        return found

    @workflow
    async def mapped(ctx: Context) -> Any:
        return list((await ctx.map(each, range(5), max_concurrency=5)).outputs)

    world.gives = {f"checked {item * 10}": lambda: None for item in range(5)}
    doomed: list[Mortal] = []

    def die() -> None:
        doomed[0].die()
        raise asyncio.CancelledError

    world.gives["checked 20"] = die
    processes.next_is_doomed()
    executor, journal = place.mortal()
    doomed.append(journal)
    with pytest.raises((JournalUnavailable, Fenced)):
        await executor.run(mapped, run_id="r1")
    processes.next_lives()
    first = [one for one in world.ran if isinstance(one, int)]
    assert 2 in first
    world.ran.clear()
    world.gives["checked 20"] = lambda: None
    assert await outputs(place.executor(), wf=mapped) == [0, 10, 20, 30, 40]
    again = [one for one in world.ran if isinstance(one, int)]
    assert 2 not in again


async def test_a_death_in_the_map_of_an_item_repeats_none_of_its_durable_items(
    place: Place, processes: Processes
) -> None:
    async def each(ctx: Context, base: int) -> list[int]:
        inner = await ctx.map(tenfold, range(base, base + 5), max_concurrency=1)
        return list(inner.outputs)

    @workflow
    async def nested(ctx: Context) -> Any:
        return list((await ctx.map(each, [0, 100], max_concurrency=1)).outputs)

    await dies_in(place, processes, 102, wf=nested)
    first = ran()
    assert await outputs(place.executor(), wf=nested) == [
        [0, 10, 20, 30, 40],
        [1000, 1010, 1020, 1030, 1040],
    ]
    assert set(ran()) & set(first) <= {100, 101, 102}


async def test_a_crash_limit_of_one_quarantines_at_the_first_certain_death(
    place: Place, processes: Processes
) -> None:
    @workflow
    async def strict(ctx: Context) -> Any:
        fn = tenfold.with_options(crash_limit=1)
        batch = await ctx.map(fn, range(10), max_concurrency=5, tolerate_failures=1)
        return [one.index for one in batch.failures]

    for _ in range(2):
        await dies_in(place, processes, 3, wf=strict)
    world.gives[3] = lambda: pytest.fail("it was started again")
    assert await outputs(place.executor(), wf=strict) == [3]


# ---- Stops ----


async def test_cancelling_a_run_stops_its_map_and_keeps_what_was_durable(place: Place) -> None:
    executor = place.executor(lease_s=0.3)
    never = asyncio.Event()
    world.items, world.options = (lambda: range(20)), {"max_concurrency": 2}
    world.gives = {10: waits(never), 11: waits(never)}
    running = asyncio.ensure_future(outputs(executor))
    await until(lambda: {10, 11} <= set(world.ran))
    await place.executor().cancel("r1")
    with pytest.raises(RunCancelled):
        async with asyncio.timeout(20):
            await running
    assert sorted(world.ran) == list(range(12))


async def test_a_run_that_is_stopped_has_all_that_was_finished_and_no_crash(place: Place) -> None:
    executor = place.executor()
    never = asyncio.Event()
    world.items, world.options = (lambda: range(20)), {"max_concurrency": 3, "linger_ms": 60_000}
    world.gives = {10: waits(never), 11: waits(never)}
    running = asyncio.ensure_future(outputs(executor))
    await until(lambda: len(world.ran) == 20)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    header = await place.executor().get("r1")
    assert (header.status, header.crashes) == ("PENDING", 0)
    ran()
    world.gives.clear()
    world.options.pop("linger_ms")
    again, journal = place.mortal()
    assert len(await outputs(again)) == 20
    assert ran() == [10, 11]
    assert journal.calls.count("begin") == 1  # nobody is suspected


async def test_def_bodies_are_waited_for_and_kept(place: Place) -> None:
    import threading

    go = threading.Event()

    @step
    def slow(item: int) -> int:
        world.ran.append(item)
        if item == 3:
            go.wait(20)
        return item

    @workflow
    async def slowly(ctx: Context) -> Any:
        return list((await ctx.map(slow, range(6), max_concurrency=1)).outputs)

    running = asyncio.ensure_future(outputs(place.executor(), wf=slowly))
    await until(lambda: world.ran == [0, 1, 2, 3])
    running.cancel()
    await asyncio.sleep(0.01)
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    ran()
    assert await outputs(place.executor(), wf=slowly) == [0, 1, 2, 3, 4, 5]
    assert ran() == [4, 5]


async def test_a_deadline_in_the_middle_keeps_what_is_done(place: Place) -> None:
    world.items, world.options = (lambda: range(30)), {"max_concurrency": 2}
    world.gives = {20: waits(asyncio.Event()), 21: waits(asyncio.Event())}
    for _ in range(3):
        with pytest.raises(DeadlineReached):
            await place.executor().run(batch_of, run_id="r1", deadline=timedelta(seconds=0.2))
    (batch,) = await place.executor().steps("r1")
    assert batch.record.crashes == 0  # the run counts drives that came to nothing; neither map nor items do
    assert Counter(world.ran)[20] <= 3
    world.gives.clear()
    assert len(await outputs(place.executor())) == 30
    assert all(count == 1 for item, count in Counter(world.ran).items() if item not in (20, 21))


# ---- The store ----


async def test_an_outage_leaves_the_run_to_be_resumed_with_what_was_durable(
    place: Place, processes: Processes
) -> None:
    world.items, world.options = (lambda: range(600)), {"max_concurrency": 4}
    executor, journal = place.mortal()
    down = False
    inner = journal.append

    async def append(segment: Segment) -> Reply[Segment]:
        if down:
            raise JournalUnavailable("as planned", waited_s=60)
        return await inner(segment)

    journal.append = append  # type: ignore[method-assign]

    def goes_down() -> int:
        nonlocal down
        down = True
        return 3000

    world.gives[300] = goes_down
    with pytest.raises(JournalUnavailable):
        await outputs(executor)
    first = ran()
    assert len(first) <= 300 + 256 + 4
    assert len(await outputs(place.executor())) == 600
    again = set(ran()) & set(first)
    assert 300 in again
    assert len(again) <= 256 + 4
    assert (await place.executor().get("r1")).crashes == 0


class Losing(MemoryJournal):
    """Loses the reply of every nth call of a verb, after it was applied."""

    verb = ""
    every = 1
    calls = 0

    def _lose(self, verb: str) -> None:
        if verb == self.verb:
            self.calls += 1
            if self.calls % self.every == 0:
                raise JournalUnavailable("the reply was lost")

    async def append(self, segment: Segment) -> Reply[Segment]:
        reply = await super().append(segment)
        self._lose("append")
        return reply

    async def begin(self, *args: Any, **options: Any) -> Any:
        reply = await super().begin(*args, **options)
        self._lose("begin")
        return reply

    async def commit(self, *args: Any) -> Any:
        reply = await super().commit(*args)
        self._lose("commit")
        return reply


@pytest.mark.parametrize("verb", ["append", "begin", "commit"])
async def test_lost_replies_are_recognised(verb: str) -> None:
    journal = Losing()
    journal.verb, journal.every = verb, 2
    world.items, world.options = (lambda: range(1500)), {"max_concurrency": 8}
    executor = DurableWorkflowExecutor(Store("test://", journal, MemoryBlobs()))
    if verb != "append":
        journal.calls = 1  # the first call loses its reply, its second try does not
    async with asyncio.timeout(30):
        assert await outputs(executor) == [item * 10 for item in range(1500)]
    assert sorted(world.ran) == list(range(1500))
    segments = [segment async for page in journal.segments("r1", "tenfold") for segment in page]
    assert [segment.seq for segment in segments] == list(range(len(segments)))
    assert sum(segment.items for segment in segments) == 1500
    await executor.close()


async def test_an_old_owner_that_wakes_up_is_refused_and_nothing_of_it_counts(
    place: Place, processes: Processes
) -> None:
    clock = place.turn_clock()
    processes.next_is_unknown()
    old, journal = place.mortal(lease_s=30)
    go = asyncio.Event()
    world.items, world.options = (lambda: range(10)), {"max_concurrency": 1}
    world.gives = {4: waits(go, "of the old owner")}
    running = asyncio.ensure_future(outputs(old))
    await until(lambda: 4 in world.ran and "after append" in journal.calls)
    journal.die()  # cut off, for longer than its lease
    clock.turn(3600)
    world.gives = {4: lambda: "of the new owner"}
    new = await outputs(place.executor())
    assert new[4] == "of the new owner"
    journal.dead = False
    go.set()
    with pytest.raises(Fenced):
        await running
    assert await outputs(place.executor()) == new
    assert Counter(world.ran)[4] == 2
    assert all(count == 1 for item, count in Counter(world.ran).items() if item != 4)


async def test_an_old_owner_is_refused_in_the_middle_of_its_successors_map(
    place: Place, processes: Processes
) -> None:
    clock = place.turn_clock()
    processes.next_is_unknown()
    old, journal = place.mortal(lease_s=30)
    gates = {"old": asyncio.Event(), "new": asyncio.Event()}
    world.items, world.options = (lambda: range(10)), {"max_concurrency": 1}
    world.gives = {4: waits(gates["old"], "old")}
    running = asyncio.ensure_future(outputs(old))
    await until(lambda: world.ran == [0, 1, 2, 3, 4] and "after append" in journal.calls)
    journal.die()
    clock.turn(3600)
    world.gives = {4: waits(gates["new"], "new")}
    successor = asyncio.ensure_future(outputs(place.executor()))
    await until(lambda: world.ran == [0, 1, 2, 3, 4, 4])
    journal.dead = False
    gates["old"].set()
    with pytest.raises(Fenced):
        await running
    gates["new"].set()
    assert (await successor)[4] == "new"
