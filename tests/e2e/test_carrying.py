"""Carrying runs: from any store into any other in one file, the same to the last column; or not at all."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from durable_core import (
    Context,
    CorruptRecord,
    DurableWorkflowExecutor,
    RunBusy,
    RunFailed,
    RunInputMismatch,
    UsageError,
    step,
    workflow,
)
from durable_core.engine.chunk_result import DONE
from durable_core.engine.suspension import NEVER_MS
from durable_core.errors import JournalUnavailable, StoreMisconfigured
from durable_core.journal.carrying import KINDS
from durable_core.records import COMPLETED, FAILED, PENDING, PRUNING, RUNNING, SUSPENDED, RunHeader
from tests.damages import RUN, everything, run_everything
from tests.stores import WITH_DYNAMODB, Place, Processes, crash, verb_of

STORES = WITH_DYNAMODB


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "june.durable"


def memory() -> DurableWorkflowExecutor:
    return DurableWorkflowExecutor("memory://")


async def all_of(executor: DurableWorkflowExecutor, run_id: str = RUN) -> tuple[RunHeader | None, Any, Any]:
    """Header, records and blobs of a run."""
    journal, blobs = executor.store.journal, executor.store.blobs
    records = {
        kind: [one async for page in journal.as_stored(run_id, kind) for one in page] for kind in KINDS
    }
    found = {ref: await blobs.get(ref) async for ref in blobs.refs(run_id)}
    return await journal.header(run_id), records, found


async def root_of(executor: DurableWorkflowExecutor, run_id: str = RUN) -> str:
    (found,) = (await executor.verify(run_id)).runs
    assert found.is_sound, found.findings
    assert found.root_hash is not None
    return found.root_hash


def size_of(path: Path) -> int | None:
    return path.stat().st_size if path.exists() else None


def names_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def write(path: Path, data: bytes) -> None:
    path.write_bytes(data)


# ---- Round trips ----


async def test_a_run_is_the_same_after_a_way_through_any_store(place: Place, file: Path) -> None:
    """Out of it and into it: header, records, segments, events and blobs, each column and byte."""
    executor, other = place.executor(), memory()
    await run_everything(executor)
    before = await all_of(executor)
    exported = await executor.export_run(RUN, file)
    counts = exported.steps, exported.segments, exported.events, exported.chunks
    assert counts == tuple(len(records) for records in before[1].values())
    assert (exported.blobs, exported.size_bytes) == (len(before[2]), size_of(file))
    imported = await other.import_run(file)
    assert imported.root_hash == exported.root_hash == await root_of(executor) == await root_of(other)
    assert await all_of(other) == before
    await executor.prune(run_ids=RUN)
    await other.export_run(RUN, file, replace=True)
    await executor.import_run(file)  # over the tombstone: all fences are higher now, and nothing else
    assert await root_of(executor) == exported.root_hash
    header, records, blobs = await all_of(executor)
    assert header is not None
    assert before[0] is not None
    assert header.fence > before[0].fence
    assert replace(header, fence=1, base_fence=0) == before[0]
    assert [one.step_id for one in records["step"]] == [one.step_id for one in before[1]["step"]]
    assert blobs == before[2]
    result = await executor.run(everything, run_id=RUN, size=20_000)
    assert result.status == COMPLETED


async def test_root_hashes_are_equal_from_store_to_store_to_store(
    tmp_path: Path, postgres_url: str, aws: Any
) -> None:
    """SQLite, PostgreSQL, DynamoDB and back."""
    urls = [
        f"sqlite:///{tmp_path / 'a.db'}",
        postgres_url,
        None,
        f"sqlite:///{tmp_path / 'b.db'}",
        "memory://",
    ]
    roots, contents, last = [], [], None
    for number, url in enumerate(urls):
        async with DurableWorkflowExecutor(url if url is not None else aws.store()) as executor:
            if number == 0:
                await run_everything(executor)
            else:
                await executor.import_run(tmp_path / f"{number - 1}.durable")
            roots.append(await root_of(executor))
            contents.append(await all_of(executor))
            await executor.export_run(RUN, tmp_path / f"{number}.durable")
    assert len(set(roots)) == 1
    for last in contents[1:]:
        assert last == contents[0]


LATER: dict[str, int] = {}


@step
async def unsteady(n: int) -> int:
    LATER[str(n)] = LATER.get(str(n), 0) + 1
    if n == 5 and not LATER.get("mended"):
        raise ValueError("not today")
    return n * n


@workflow(name="mended_later")
async def mended_later(ctx: Context) -> int:
    first = await ctx.step(unsteady, 1)
    batch = await ctx.map(unsteady, range(2, 9), max_concurrency=2)
    return int(first) + sum(batch.outputs)


async def test_a_failed_run_goes_on_where_it_was_in_another_store_and_over_a_tombstone(
    place: Place, file: Path
) -> None:
    """Only what isn't committed is run."""
    LATER.clear()
    executor = place.executor()
    with pytest.raises(RunFailed):
        await executor.run(mended_later, run_id=RUN)
    with pytest.raises(RunFailed):
        await executor.resume(RUN)  # so that there are fences to be told apart
    await executor.export_run(RUN, file)
    await executor.prune(run_ids=RUN)
    await executor.import_run(file)
    assert (await executor.get(RUN)).status == FAILED
    before = dict(LATER)
    LATER["mended"] = 1
    other = memory()
    await other.import_run(file)
    for each in (executor, other):
        LATER.update(before | {"mended": 1})
        result = await each.resume(RUN)
        assert result.output == sum(n * n for n in range(1, 9))
        ran_again = {n for n, count in LATER.items() if count > before.get(n, 0)} - {"mended"}
        assert "5" in ran_again
        assert not ran_again & {n for n in "123" if before[n] and n in before} - {"5"}
        await root_of(each)
    assert await root_of(executor) == await root_of(other)


@workflow(name="waiting")
async def waiting(ctx: Context) -> int:
    await ctx.step(unsteady, 1)
    return int(await ctx.wait_for_event("go", type=int))


async def test_a_run_that_waits_is_taken_in_but_nobody_drives_it_unasked(place: Place, file: Path) -> None:
    """The store that it comes from may go on with it."""
    executor = place.executor()
    assert (await executor.run(waiting, run_id=RUN, on_wait="suspend")).status == SUSPENDED
    await executor.export_run(RUN, file)
    await executor.prune(run_ids=(await executor.cancel(RUN)).run_id)
    await executor.import_run(file)
    header = await executor.store.journal.header(RUN)
    assert header is not None
    assert (header.status, header.due_at_ms) == (SUSPENDED, NEVER_MS)
    assert await executor.store.journal.due() == []
    await executor.signal(RUN, "go", 7)
    assert (await executor.resume(RUN)).output == 7


async def test_what_a_dead_owner_left_is_exported_as_if_it_had_been_released(
    place: Place, processes: Processes, file: Path
) -> None:
    """Which steps are in doubt, and that their owner is dead, stays known."""
    await crash(
        place, processes, lambda ex: ex.run(mended_later, run_id=RUN), after=verb_of("begin", "unsteady")
    )
    executor, other = place.executor(), memory()
    assert (await executor.get(RUN)).status == RUNNING
    exported = await executor.export_run(RUN, file)
    assert exported.status == PENDING
    await other.import_run(file)
    assert await root_of(executor) == await root_of(other)
    LATER["mended"] = 1
    assert (await other.resume(RUN)).output == (await executor.resume(RUN)).output
    (view,) = [one for one in await other.steps(RUN) if one.step_id == "unsteady"]
    assert view.record.crashes == 1


@workflow(name="shared_out")
async def shared_out(ctx: Context) -> list[int]:
    batch = await ctx.map(unsteady, range(10, 22), distribute=True, chunk_size=4)
    return list(batch.outputs)


async def test_a_map_that_workers_share_is_carried_in_the_middle_and_at_its_end(
    place: Place, file: Path
) -> None:
    """Also over a tombstone, where all its fences are lifted."""
    executor, other = place.executor(), memory()
    assert (await executor.run(shared_out, run_id=RUN, on_wait="suspend")).status == SUSPENDED
    assert (await executor.work_chunk(RUN, "unsteady", 1, workflow=shared_out)).status == DONE
    exported = await executor.export_run(RUN, file)
    assert exported.chunks == 1
    await executor.cancel(RUN)
    await executor.prune(run_ids=RUN)
    await executor.import_run(file)
    await other.import_run(file)
    assert await root_of(executor) == await root_of(other) == exported.root_hash
    LATER.clear()
    expected = [n * n for n in range(10, 22)]
    assert (await executor.resume(RUN, shared_out)).output == expected
    assert not set(LATER) & {"14", "15", "16", "17"}
    await root_of(executor)
    ended = await executor.export_run(RUN, file, replace=True)
    await other.prune(run_ids=(await other.cancel(RUN)).run_id)
    await other.import_run(file)
    assert await root_of(other) == ended.root_hash
    assert (await other.replay(RUN, shared_out)).output == expected


# ---- Refused ----


async def test_a_run_that_is_driven_is_not_exported(place: Place, file: Path) -> None:
    executor, entered, go_on = place.executor(), asyncio.Event(), asyncio.Event()

    @step(name="held")
    async def held() -> None:
        entered.set()
        await go_on.wait()

    @workflow(name="holding")
    async def holding(ctx: Context) -> None:
        await ctx.step(held)

    running = asyncio.create_task(executor.run(holding, run_id=RUN))
    await entered.wait()
    with pytest.raises(RunBusy):
        await place.executor().export_run(RUN, file)
    assert size_of(file) is None
    go_on.set()
    await running


async def test_nothing_is_taken_in_over_a_run_or_an_event_that_was_sent_early(
    place: Place, file: Path
) -> None:
    executor, other = memory(), place.executor()
    await run_everything(executor)
    await executor.export_run(RUN, file)
    await other.signal(RUN, "go", 1, early=True)
    with pytest.raises(RunInputMismatch, match="sent early"):
        await other.import_run(file)
    assert await other.store.journal.header(RUN) is None
    await run_everything(other, "r2")
    await executor.prune(run_ids=RUN)
    before = await all_of(other, "r2")
    await run_everything(executor, "r2")
    await executor.export_run("r2", file, replace=True)
    with pytest.raises(RunInputMismatch, match="a run of that id"):
        await other.import_run(file)
    assert await all_of(other, "r2") == before


async def test_a_damaged_run_is_not_exported_and_no_file_is_left(tmp_path: Path, file: Path) -> None:
    executor = memory()
    await run_everything(executor)
    record = await executor.store.journal.step(RUN, "scramble")
    assert record is not None
    await executor.store.blobs.delete(record.output_ref or "")
    with pytest.raises(CorruptRecord, match="scramble"):
        await executor.export_run(RUN, file)
    assert names_in(tmp_path) == []


async def test_a_file_is_not_replaced_unasked_nor_written_where_there_is_no_place(
    tmp_path: Path, file: Path
) -> None:
    executor = memory()
    await run_everything(executor)
    write(file, b"mine")
    with pytest.raises(UsageError, match="there already"):
        await executor.export_run(RUN, file)
    assert size_of(file) == len(b"mine")
    with pytest.raises(StoreMisconfigured):
        await executor.export_run(RUN, tmp_path / "nowhere" / "june")
    await executor.export_run(RUN, file, replace=True)
    await memory().import_run(file)


# ---- Cut short ----


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("number", [0, 1, 4])
async def test_an_import_that_dies_is_repeated_or_pruned(
    place: Place, processes: Processes, file: Path, number: int, after: bool
) -> None:
    """At each of its writes, before it or with the reply lost."""
    source = memory()
    await run_everything(source)
    root = (await source.export_run(RUN, file)).root_hash
    written = 0

    def here(verb: str, *_: object) -> bool:
        nonlocal written
        written += verb in ("create", "restore", "restore_header")
        return written == number + 1 and verb in ("create", "restore", "restore_header")

    when: dict[str, Callable[..., bool]] = {"after" if after else "at": here}
    await crash(place, processes, lambda ex: ex.import_run(file), **when)
    executor = place.executor()
    header = await executor.store.journal.header(RUN)
    if after and number == 4:  # it was the last: all is there
        assert header is not None
        assert header.status == COMPLETED
        assert await root_of(executor) == root
        return
    assert header is None or header.status == PRUNING
    if header is not None and after:
        assert (await executor.verify(RUN)).is_sound
        assert (await executor.prune(run_ids=RUN)).run_ids == (RUN,)
    await executor.import_run(file)
    assert await root_of(executor) == root
    assert set((await all_of(executor))[2]) == set((await all_of(source))[2])


async def test_an_import_whose_reply_was_lost_goes_on(place: Place, file: Path) -> None:
    """Each write is made again, and knows itself."""
    source = memory()
    await run_everything(source)
    root = (await source.export_run(RUN, file)).root_hash
    executor, journal = place.mortal()
    lost: list[str] = []

    def once(verb: str, *_: object) -> bool:
        if verb in ("create", "restore", "restore_header") and lost.count(verb) < 1:
            lost.append(verb)
            raise JournalUnavailable("the reply was lost")
        return False

    journal.dies_after = once
    await executor.import_run(file)
    assert lost == ["create", "restore", "restore_header"]
    assert await root_of(executor) == root


def test_the_file_is_as_it_is_documented(file: Path) -> None:
    """Zip, JSON lines and the hash of each part: whoever has no durable-core can read it."""
    import hashlib
    import zipfile

    async def made() -> None:
        executor = memory()
        await run_everything(executor)
        await executor.export_run(RUN, file)

    asyncio.run(made())
    with zipfile.ZipFile(file) as bundle:
        assert bundle.testzip() is None
        manifest = json.loads(bundle.read("manifest.json"))
        assert (manifest["format"], manifest["version"], manifest["run_id"]) == ("durable-run", 1, RUN)
        for name, part in manifest["parts"].items():
            data = bundle.read(name)
            assert (hashlib.sha256(data).hexdigest(), len(data)) == (part["sha256"], part["size_bytes"])
        steps = [json.loads(line) for line in bundle.read("steps.jsonl").splitlines()]
    assert manifest["parts"]["steps.jsonl"]["amount"] == len(steps)
    assert {one["step_id"] for one in steps} >= {"give", "item", "nested", "sleep"}
