"""Maps that workers share: divided, worked on by whoever claims a chunk, joined by whoever drives the run."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from durable_core import (
    Context,
    DurableWorkflowExecutor,
    Jsonl,
    Rate,
    RunFailed,
    SyncContext,
    step,
    workflow,
)
from durable_core.errors import (
    CrashLimitReached,
    ManifestError,
    MapFailed,
    StepInDoubt,
    StepMismatch,
    UsageError,
    WorkflowNotFound,
)
from durable_core.records import Segment
from tests.e2e.batches import (
    World,
    batch_of,
    batch_with_steps,
    failure,
    gave,
    keyed,
    one_by_one,
    outputs,
    plain,
    raises,
    sync_with_steps,
    tenfold,
    waits,
    world,
)
from tests.stores import Place, Processes, crash

SHARED: dict[str, Any] = {"distribute": True, "chunk_size": 4}


@pytest.fixture(autouse=True)
def _fresh_world() -> None:
    world.__dict__.update(World().__dict__)
    world.options = dict(SHARED)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - many things bring it about
            await asyncio.sleep(0.01)


async def begin(executor: DurableWorkflowExecutor, wf: Any = batch_of, run_id: str = "r1") -> None:
    """Has the map begun, by a driver that leaves when everybody waits."""
    result = await executor.run(wf, run_id=run_id, on_wait="suspend")
    assert result.status == "SUSPENDED"


async def serve(executors: Sequence[DurableWorkflowExecutor], run_id: str = "r1") -> str:
    """Workers pass over the store, side by side, until the run is over."""
    for _ in range(50):
        await asyncio.gather(*(one.worker(concurrency=2).recover() for one in executors))
        status = (await executors[0].get(run_id)).status
        if status in ("COMPLETED", "FAILED", "CANCELLED"):
            return status
    raise AssertionError("the run has no end")


async def output_of(executor: DurableWorkflowExecutor, wf: Any = batch_of, run_id: str = "r1") -> Any:
    return (await executor.run(wf, run_id=run_id)).output


class Told:
    def __init__(self) -> None:
        self.drives: list[str] = []
        self.pieces: list[tuple[str, str, list[int]]] = []

    async def drive(self, run_id: str, *, delay_s: float = 0) -> None:
        if delay_s == 0:
            self.drives.append(run_id)

    async def chunks(self, run_id: str, step_id: str, chunks: Sequence[int]) -> None:
        self.pieces.append((run_id, step_id, list(chunks)))


# ---- Shared ----


@pytest.mark.over_dynamodb
async def test_workers_share_a_map_each_item_once_and_the_last_one_wakes_the_run(place: Place) -> None:
    world.items = lambda: list(range(30))
    workers = [place.executor() for _ in range(3)]
    await begin(workers[0])
    assert world.taken() == []
    assert await serve(workers) == "COMPLETED"
    assert world.taken() == list(range(30))
    assert await output_of(workers[0]) == [n * 10 for n in range(30)]
    assert world.taken() == []


async def test_a_worker_that_serves_does_all_of_it_by_itself(place: Place) -> None:
    world.items = lambda: list(range(10))
    executor = place.executor()
    await executor.start(batch_of, run_id="r1")
    worker = executor.worker(concurrency=3)
    serving = asyncio.create_task(worker.serve())
    await until(lambda: worker.counts["COMPLETED"])
    worker.drain()
    await serving
    assert world.taken() == list(range(10))
    assert worker.chunks["DONE"] == 3


async def test_a_driver_that_waits_in_its_process_works_on_chunks_itself(place: Place) -> None:
    world.items = lambda: list(range(10))
    assert await outputs(place.executor()) == [n * 10 for n in range(10)]
    assert world.taken() == list(range(10))


@pytest.mark.parametrize("count", [0, 1, 4, 5])
async def test_the_last_chunk_may_have_fewer_items_and_there_may_be_none(place: Place, count: int) -> None:
    world.items = lambda: list(range(count))
    assert await outputs(place.executor()) == [n * 10 for n in range(count)]


@step
async def three() -> list[int]:
    return [1, 2, 3]


async def leg(ctx: Context, by: int) -> list[int]:
    def times(item: int) -> int:  # a closure, which no store could name
        return int(gave(item)) * by

    found = await ctx.map(times, await ctx.step(three), distribute=True, chunk_size=2, key=lambda n: f"n{n}")
    return list(found.outputs)


@workflow
async def in_branches(ctx: Context) -> list[list[int]]:
    first = ctx.branch(leg, 2)
    second = ctx.branch(leg, 3)
    return list(await ctx.parallel(first, second))


async def test_closures_keys_and_branches_are_found_by_replaying_the_workflow(place: Place) -> None:
    workers = [place.executor() for _ in range(2)]
    await begin(workers[0], in_branches)
    assert await serve(workers) == "COMPLETED"
    assert await output_of(workers[0], in_branches) == [[20, 40, 60], [30, 60, 90]]
    assert world.taken() == [1, 1, 2, 2, 3, 3]


@workflow
def in_plain_code(ctx: SyncContext) -> list[Any]:
    numbers = ctx.step(three)
    batch = ctx.map(sync_with_steps, numbers, distribute=True, chunk_size=2)
    return list(batch.outputs)


@pytest.mark.parametrize("wf", [in_plain_code, batch_with_steps], ids=["def", "async"])
async def test_items_with_steps_of_their_own_are_begun_by_the_worker(place: Place, wf: Any) -> None:
    world.items = lambda: [1, 2, 3]
    workers = [place.executor() for _ in range(2)]
    await begin(workers[0], wf)
    assert await serve(workers) == "COMPLETED"
    assert await output_of(workers[0], wf) == [10, 20, 30]
    name = "sync_with_steps" if wf is in_plain_code else "with_steps"
    inside = [one.step_id for one in await workers[0].steps("r1", within=f"{name}[1]/")]
    assert inside == [f"{name}[1]/fetched", f"{name}[1]/checked"]


async def test_items_know_their_position_and_have_the_keys_that_they_have_in_one_process(
    place: Place,
) -> None:
    world.items = lambda: list(range(6))
    await outputs(place.executor())
    shared = {told.item_index: told.idempotency_key for told in world.told}
    world.told, world.options = [], {}
    assert sorted(shared) == list(range(6))
    other = DurableWorkflowExecutor("memory://")
    await other.run(batch_of, run_id="r1")
    assert {told.item_index: told.idempotency_key for told in world.told} == shared
    await other.close()


async def test_a_manifest_is_read_by_range(place: Place, tmp_path: Path) -> None:
    path = tmp_path / "items.jsonl"
    path.write_text("".join(f"{n}\n\n" for n in range(11)))
    world.items = lambda: Jsonl(path)
    workers = [place.executor() for _ in range(2)]
    await begin(workers[0])
    assert await serve(workers) == "COMPLETED"
    assert world.taken() == list(range(11))
    assert await output_of(workers[0]) == [n * 10 for n in range(11)]


async def test_a_broken_line_fails_the_map_by_its_number_and_once_mended_the_rest_runs(
    place: Place, tmp_path: Path
) -> None:
    path = tmp_path / "items.jsonl"
    lines = [f"{n}\n" for n in range(12)]
    path.write_text("".join([*lines[:5], "{\n", *lines[6:]]))
    world.items = lambda: Jsonl(path)
    workers = [place.executor() for _ in range(2)]
    await begin(workers[0])
    assert await serve(workers) == "FAILED"
    with pytest.raises(RunFailed, match="line 6 of the manifest"):
        await output_of(workers[0])
    done = world.taken()
    path.write_text("".join(lines))
    assert (await place.executor().resume("r1", batch_of)).output == [n * 10 for n in range(12)]
    assert sorted(done + world.taken()) == list(range(12))


async def test_a_manifest_that_is_not_there_fails_the_map(place: Place, tmp_path: Path) -> None:
    world.items = lambda: Jsonl(tmp_path / "items.jsonl")
    error = await failure(place.executor())
    assert isinstance(error, MapFailed)
    assert "items.jsonl" in str(error)
    assert isinstance(error.__cause__, ManifestError)
    (tmp_path / "items.jsonl").write_text("1\n2\n")
    assert (await place.executor().resume("r1", batch_of)).output == [10, 20]


# ---- Failures ----


async def test_a_failure_fails_the_map_and_a_resume_runs_failed_and_missing_items_only(place: Place) -> None:
    world.items, world.gives = (lambda: list(range(12))), {5: raises(ValueError("odd"))}
    workers = [place.executor() for _ in range(2)]
    await begin(workers[0])
    assert await serve(workers) == "FAILED"
    with pytest.raises(RunFailed, match="1 items failed, and 0 are tolerated"):
        await output_of(workers[0])
    ran = Counter(world.taken())
    world.gives.clear()
    assert (await workers[1].resume("r1", batch_of)).output == [n * 10 for n in range(12)]
    again = world.taken()
    assert 5 in again
    assert Counter(again) + ran == Counter(range(12)) + Counter([5])


async def test_failures_that_are_tolerated_are_counted_over_all_chunks(place: Place) -> None:
    world.items = lambda: list(range(12))
    world.gives = {n: raises(ValueError("odd")) for n in (1, 6, 11)}
    world.options |= {"tolerate_failures": 3}
    world.after = lambda batch: [(one.index, one.error["type"]) for one in batch.failures]
    workers = [place.executor() for _ in range(2)]
    await begin(workers[0])
    assert await serve(workers) == "COMPLETED"
    assert await output_of(workers[0]) == [(n, "ValueError") for n in (1, 6, 11)]


async def test_one_failure_more_than_is_tolerated_over_all_chunks_fails_the_map(place: Place) -> None:
    world.items = lambda: list(range(12))
    world.gives = {n: raises(ValueError("odd")) for n in (1, 6, 11)}
    world.options |= {"tolerate_failures": 2}
    workers = [place.executor() for _ in range(2)]
    await begin(workers[0])
    assert await serve(workers) == "FAILED"
    world.gives.clear()
    assert (await workers[0].resume("r1", batch_of)).output == [n * 10 for n in range(12)]


@step(semantics="at_most_once", verify=None)
async def touchy(item: int) -> int:
    return int(await gave(item))


async def with_doubt(ctx: Context, item: int) -> int:
    return await ctx.step(touchy, item)


@workflow
async def doubtful(ctx: Context) -> list[int]:
    return list((await ctx.map(with_doubt, [1, 2, 3], **world.options)).outputs)


async def test_a_step_in_doubt_inside_an_item_ends_the_run_as_it_does_elsewhere(
    place: Place, processes: Processes
) -> None:
    world.gives = {n: (lambda n=n: asyncio.sleep(0, n)) for n in (1, 2, 3)}
    await begin(place.executor(), doubtful)
    await crash(
        place,
        processes,
        lambda ex: ex.work_chunk("r1", "with_doubt", 0),
        at=lambda verb, *args: verb == "commit" and args[0].step_id == "with_doubt[1]/touchy",
    )
    assert (await place.executor().work_chunk("r1", "with_doubt", 0)).status == "STUCK"
    with pytest.raises(RunFailed) as caught:
        await place.executor().resume("r1", doubtful)
    assert isinstance(caught.value.__cause__, StepInDoubt)


# ---- Leaving and dying ----


async def test_what_is_not_done_by_the_deadline_is_handed_back_and_nothing_runs_twice(place: Place) -> None:
    told, gate = Told(), asyncio.Event()
    world.items, world.gives = (lambda: list(range(4))), {2: waits(gate, 20)}
    world.options |= {"max_concurrency": 1}
    await begin(place.executor())
    result = await place.executor(dispatch=told).work_chunk(
        "r1", "tenfold", 0, deadline=timedelta(seconds=0.3)
    )
    assert (result.status, result.items, result.woken) == ("HANDED_BACK", 2, False)
    assert told.pieces == [("r1", "tenfold", [0])]
    gate.set()
    again = await place.executor(dispatch=told).work_chunk("r1", "tenfold", 0)
    assert (again.status, again.items, again.woken) == ("DONE", 2, True)
    assert told.drives == ["r1"]
    assert Counter(world.ran) == Counter([0, 1, 2, 2, 3])
    assert await output_of(place.executor()) == [0, 10, 20, 30]


async def test_a_dead_workers_chunk_goes_on_from_its_last_segment(place: Place, processes: Processes) -> None:
    world.items = lambda: list(range(4))
    world.options |= {"max_concurrency": 1}
    await begin(place.executor())
    world.gives = {n: (lambda n=n: asyncio.sleep(0.05, n)) for n in range(4)}
    filled = 0

    def second(verb: str, *args: Any) -> bool:
        nonlocal filled
        filled += verb == "append" and args[0].items > 0
        return filled == 2

    await crash(place, processes, lambda ex: ex.work_chunk("r1", "tenfold", 0), at=second)
    durable = [one.items async for page in _log_of(place) for one in page]
    assert sum(durable) == 1
    ran = len(world.ran)
    result = await place.executor().work_chunk("r1", "tenfold", 0)
    assert (result.status, result.items) == ("DONE", 3)
    assert sorted(world.ran[ran:]) == [1, 2, 3]
    assert await output_of(place.executor()) == [0, 1, 2, 3]


def _log_of(place: Place) -> AsyncIterator[list[Segment]]:
    return place.executor().store.journal.segments("r1", "tenfold", 0)


async def test_an_item_that_kills_its_workers_is_set_aside_and_the_others_go_on(
    place: Place, processes: Processes
) -> None:
    world.items = lambda: list(range(4))
    world.options |= {"max_concurrency": 2, "tolerate_failures": 1}
    world.after = lambda batch: [one.error and one.error["code"] for one in batch.iter()]
    await begin(place.executor())
    for _ in range(6):
        executor, journal = place.mortal()

        def die(journal: Any = journal) -> Any:
            journal.dead = True
            return 0

        world.gives = {2: die}
        processes.next_is_doomed()
        try:
            result = await executor.work_chunk("r1", "tenfold", 0)
        except Exception:  # whatever a dead process raises
            processes.next_lives()
            continue
        assert result.status == "DONE"
        break
    processes.next_lives()
    assert await output_of(place.executor()) == [None, None, CrashLimitReached.code, None]
    assert Counter(world.ran)[2] <= 4


async def test_two_that_want_one_chunk_do_not_share_it_and_a_second_message_is_harmless(
    place: Place,
) -> None:
    gate = asyncio.Event()
    world.items, world.gives = (lambda: list(range(3))), {0: waits(gate, 0)}
    await begin(place.executor())
    first = asyncio.create_task(place.executor().work_chunk("r1", "tenfold", 0))
    await until(lambda: world.ran)
    second = await place.executor().work_chunk("r1", "tenfold", 0)
    assert (second.status, second.items) == ("BUSY", 0)
    gate.set()
    assert (await first).status == "DONE"
    third = await place.executor().work_chunk("r1", "tenfold", 0)
    assert (third.status, third.items, third.woken) == ("DONE", 0, True)  # it looks at the join once more
    assert Counter(world.ran) == Counter(range(3))


async def test_chunks_that_nobody_has_are_gone(place: Place) -> None:
    world.items = lambda: list(range(3))
    executor = place.executor()
    await begin(executor)
    assert (await executor.work_chunk("r1", "tenfold", 1)).status == "GONE"
    assert (await executor.work_chunk("r1", "other", 0)).status == "GONE"
    assert await output_of(executor) == [0, 10, 20]
    assert (await executor.work_chunk("r1", "tenfold", 0)).status == "GONE"
    for odd in (-1, 1.5, True, "0"):
        with pytest.raises(UsageError, match="chunk"):
            await executor.work_chunk("r1", "tenfold", odd)  # type: ignore[arg-type]


async def test_a_cancelled_run_stops_whoever_works_on_it(place: Place) -> None:
    world.items = lambda: list(range(400))
    world.options |= {"chunk_size": 400, "max_concurrency": 1}
    world.gives = {n: (lambda n=n: asyncio.sleep(0.02, n)) for n in range(400)}
    await begin(place.executor())
    work = asyncio.create_task(place.executor().work_chunk("r1", "tenfold", 0))
    await until(lambda: len(world.ran) >= 3)
    await place.executor().cancel("r1")
    result = await asyncio.wait_for(work, 10)
    assert result.status == "HANDED_BACK"
    assert len(world.ran) < 400
    assert (await place.executor().get("r1")).status == "CANCELLED"


# ---- Around it ----


async def test_a_dispatch_is_told_of_all_chunks_once_they_may_be_worked_on(place: Place) -> None:
    told = Told()
    world.items = lambda: list(range(10))
    executor = place.executor(dispatch=told)
    await begin(executor)
    assert told.pieces == [("r1", "tenfold", [0, 1, 2])]
    for chunk in (2, 0):
        assert not (await executor.work_chunk("r1", "tenfold", chunk)).woken
    assert told.drives == []
    assert (await executor.work_chunk("r1", "tenfold", 1)).woken
    assert told.drives == ["r1"]


async def test_a_driver_that_is_woken_in_the_middle_tells_of_what_was_left_alone(place: Place) -> None:
    told, gate = Told(), asyncio.Event()
    world.items, world.gives = (lambda: list(range(12))), {0: waits(gate, 0)}
    executor = place.executor(dispatch=told)
    await begin(executor)
    await executor.resume("r1", batch_of, on_wait="suspend")  # nobody works on it: they may have got lost
    assert told.pieces == [("r1", "tenfold", [0, 1, 2])] * 2
    work = asyncio.create_task(place.executor().work_chunk("r1", "tenfold", 0))
    await until(lambda: world.ran)
    await executor.resume("r1", batch_of, on_wait="suspend")
    assert len(told.pieces) == 2
    gate.set()
    assert (await work).status == "DONE"


async def test_a_process_without_the_workflow_says_so_and_one_with_other_code_too(place: Place) -> None:
    world.items = lambda: list(range(3))
    await begin(place.executor())
    world.items = lambda: list(range(2))
    with pytest.raises(StepMismatch, match="begun with 3 items"):
        await place.executor().work_chunk("r1", "tenfold", 0)

    @workflow(name="batch_of_another")
    async def elsewhere(ctx: Context) -> None:
        return None

    with pytest.raises(UsageError, match="doesn't come to this map"):
        await place.executor().work_chunk("r1", "tenfold", 0, workflow=elsewhere)
    assert world.taken() == []


async def test_an_unknown_workflow_is_named(place: Place) -> None:
    @workflow(name="known_for_a_moment")
    async def gone(ctx: Context) -> None:
        await ctx.map(tenfold, [1], **world.options)

    await begin(place.executor(), gone)
    from durable_core import workflow as module  # noqa: F401
    from durable_core.workflow import _registered

    _registered.pop("known_for_a_moment")
    with pytest.raises(WorkflowNotFound, match="known_for_a_moment"):
        await place.executor().work_chunk("r1", "tenfold", 0)


async def test_a_committed_map_and_one_in_the_middle_are_forked_with_what_is_done(place: Place) -> None:
    world.items = lambda: list(range(10))
    executor = place.executor()
    await begin(executor)
    assert (await executor.work_chunk("r1", "tenfold", 1)).status == "DONE"
    assert world.taken() == [4, 5, 6, 7]
    await executor.fork("r1", wf=batch_of, new_run_id="middle")
    assert (await executor.resume("middle", batch_of)).output == [n * 10 for n in range(10)]
    assert world.taken() == [0, 1, 2, 3, 8, 9]
    await executor.fork("middle", wf=batch_of, new_run_id="end")
    assert (await executor.resume("end", batch_of)).output == [n * 10 for n in range(10)]
    assert world.taken() == []
    world.items = lambda: [*range(9), 90, 10]
    await executor.fork("end", wf=batch_of, new_run_id="other")
    assert (await executor.resume("other", batch_of)).output == [*[n * 10 for n in range(9)], 900, 100]
    assert world.taken() == [10, 90]


async def test_pruning_takes_chunks_and_plans_along(place: Place, tmp_path: Path) -> None:
    path = tmp_path / "items.jsonl"
    path.write_text("".join(f"{n}\n" for n in range(9)))
    world.items = lambda: Jsonl(path)
    executor = place.executor()
    await outputs(executor)
    await executor.prune(run_ids=["r1"])
    journal = executor.store.journal
    assert [page async for page in journal.children("r1")] == []
    assert [page async for page in journal.chunks("r1", "tenfold")] == []
    assert await outputs(executor) == [n * 10 for n in range(9)]


async def test_keys_may_be_given_and_two_items_with_one_are_refused(place: Place) -> None:
    world.items = lambda: keyed(range(6))
    world.options |= {"key": lambda item: item["id"]}
    world.gives = {}
    executor = place.executor()

    @workflow(name="shared_keyed")
    async def with_keys(ctx: Context) -> list[str]:
        batch = await ctx.map(named, world.items(), **world.options)
        return [one.key or "" for one in batch.iter()]

    assert (await executor.run(with_keys, run_id="r1")).output == [f"doc-{n}" for n in range(6)]
    world.items = lambda: [*keyed(range(6)), {"id": "doc-1", "n": 9}]
    with pytest.raises(RunFailed, match="have the same key"):
        await executor.run(with_keys, run_id="r2")


@step
async def named(item: dict[str, Any]) -> str:
    return str(item["id"])


async def test_a_rate_is_held_by_all_chunks_together() -> None:
    world.items = lambda: list(range(12))
    world.options |= {"rate": Rate(40, per_s=1)}
    executor = DurableWorkflowExecutor("memory://")
    await begin(executor)
    loop = asyncio.get_running_loop()
    began = loop.time()
    await asyncio.gather(*(executor.work_chunk("r1", "tenfold", n) for n in range(3)))
    assert loop.time() - began > 0.2  # 12 items at 40 a second, of which the first few may come at once
    await executor.close()


# ---- Refused ----


@pytest.mark.parametrize(
    "items",
    [lambda: one_by_one([1]), lambda: {1: 2}.keys(), lambda: iter([1])],
    ids=["generator", "view", "iterator"],
)
async def test_items_that_can_only_be_read_from_their_beginning_are_refused(items: Any) -> None:
    world.items = items
    executor = DurableWorkflowExecutor("memory://")
    error = await failure(executor)
    assert isinstance(error, UsageError)
    assert "distribute=True" in str(error)
    await executor.close()


async def inner(ctx: Context, item: int) -> None:
    await ctx.map(plain, [item], distribute=True)


@workflow
async def nested(ctx: Context) -> None:
    await ctx.map(inner, [1])


async def test_a_map_inside_an_item_cannot_be_shared() -> None:
    executor = DurableWorkflowExecutor("memory://")
    error = await failure(executor, wf=nested)
    assert "can't be shared" in str(error)
    await executor.close()


async def test_a_map_that_has_begun_stays_shared_or_not() -> None:
    world.items = lambda: list(range(3))
    journal = DurableWorkflowExecutor("memory://")
    await begin(journal)
    world.options = {}
    with pytest.raises(RunFailed, match="distribute=False"):
        await journal.resume("r1", batch_of)
    await journal.close()


async def test_other_items_are_a_mismatch() -> None:
    world.items = lambda: list(range(3))
    executor = DurableWorkflowExecutor("memory://")
    await begin(executor)
    world.items = lambda: list(range(4))
    with pytest.raises(RunFailed, match="other items"):
        await executor.resume("r1", batch_of)
    await executor.close()


async def test_a_shared_map_is_verified_and_carried_to_another_store(place: Place, tmp_path: Path) -> None:
    path = tmp_path / "items.jsonl"
    path.write_text("".join(f"{n}\n" for n in range(10)))
    world.items = lambda: Jsonl(path)
    executor = place.executor()
    await begin(executor)
    assert (await executor.work_chunk("r1", "tenfold", 1)).status == "DONE"
    (half,) = (await executor.verify("r1")).runs
    assert (half.damaged, half.leftovers, half.chunks) == (0, 0, 1)
    assert await output_of(executor) == [n * 10 for n in range(10)]
    (whole,) = (await executor.verify("r1")).runs
    assert (whole.damaged, whole.leftovers, whole.notices) == (0, 0, 0)
    await executor.export_run("r1", tmp_path / "r1.durable")
    other = DurableWorkflowExecutor("memory://")
    await other.import_run(tmp_path / "r1.durable")
    assert await output_of(other) == [n * 10 for n in range(10)]
    assert world.taken() == list(range(10))
    await other.close()
