"""What a map is given: manifests, generators, keys; and what a resume or a fork makes of other items."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from durable_core import Context, Jsonl, MapResult, step, workflow
from durable_core.errors import ManifestError, MapFailed, StepMismatch, UsageError
from tests.e2e.batches import (
    World,
    batch_and_step,
    batch_of,
    failure,
    failure_again,
    keyed,
    one_by_one,
    outputs,
    raises,
    resumed,
    tenfold,
    world,
)
from tests.stores import Place


class Doc(BaseModel):
    id: str
    pages: int = 1


@pytest.fixture(autouse=True)
def _fresh_world() -> None:
    world.__dict__.update(World().__dict__)


async def stop_before_the_end(place: Place, wf: Any = batch_and_step) -> None:
    """The map has committed, and the step after it fails until further notice."""
    world.gives["end"] = raises(ValueError("not yet"))
    await failure(place.executor(), wf=wf)
    world.gives.pop("end")
    world.taken()


# ---- Manifests ----


def manifest(path: Path, *lines: object) -> Path:
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return path


@step
async def pages(doc: Doc) -> int:
    world.ran.append(doc.id)
    return doc.pages


@workflow
async def over_manifest(ctx: Context, path: str) -> Any:
    return list((await ctx.map(pages, Jsonl(path, type=Doc), key=lambda doc: doc.id)).outputs)


@pytest.mark.over_dynamodb
async def test_items_are_read_from_a_manifest(place: Place, tmp_path: Path) -> None:
    path = manifest(tmp_path / "m.jsonl", 1, "", 2, "   ", 3)
    world.items = lambda: Jsonl(path)
    assert await outputs(place.executor()) == [10, 20, 30]


async def test_each_line_of_a_manifest_is_given_its_type(place: Place, tmp_path: Path) -> None:
    path = manifest(tmp_path / "m.jsonl", {"id": "a", "pages": 3}, {"id": "b"})
    result = await place.executor().run(over_manifest, path=str(path))
    assert result.output == [3, 1]
    assert world.ran == ["a", "b"]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("{broken", "no JSON"),
        ("NaN", "NaN is not JSON"),
        ('{"pages": 2}', "doesn't fit its type"),
        ("[" * 100_000, "no JSON"),
    ],
    ids=["broken", "NaN", "other type", "deep"],
)
async def test_a_broken_line_is_named_and_can_be_mended(
    line: str, told: str, place: Place, tmp_path: Path
) -> None:
    good = [{"id": f"d{n}"} for n in range(5)]
    path = manifest(tmp_path / "m.jsonl", *good, "", line, {"id": "last"})
    executor = place.executor()
    error = await failure(executor, wf=over_manifest.bind(path=str(path)))
    assert isinstance(error, MapFailed)
    assert isinstance(error.__cause__, ManifestError)
    assert "line 7" in str(error)
    assert told in str(error)
    assert (error.succeeded, error.failed) == (5, 0)
    assert sorted(world.taken()) == [f"d{n}" for n in range(5)]
    manifest(path, *good, "", {"id": "mended"}, {"id": "last"})
    result = await place.executor().resume((await executor.list())[0].run_id, over_manifest)
    assert len(result.output) == 7
    assert sorted(world.taken()) == ["last", "mended"]


async def test_a_manifest_that_is_not_there_is_named(place: Place, tmp_path: Path) -> None:
    world.items = lambda: Jsonl(tmp_path / "none.jsonl")
    error = await failure(place.executor())
    assert isinstance(error, MapFailed)
    assert isinstance(error.__cause__, ManifestError)
    assert "none.jsonl" in str(error)
    manifest(tmp_path / "none.jsonl", 1)
    assert await resumed(place.executor()) == [10]


@pytest.mark.parametrize("path", ["https://bucket/key", 5, None], ids=str)
def test_what_is_no_path_is_refused(path: Any) -> None:
    with pytest.raises(UsageError):
        Jsonl(path)


async def test_a_manifest_that_changed_before_the_map_committed_is_a_mismatch(
    place: Place, tmp_path: Path
) -> None:
    path = manifest(tmp_path / "m.jsonl", 1, 2, 3)
    world.items, world.gives = (lambda: Jsonl(path)), {3: raises(ValueError("no"))}
    await failure(place.executor())
    manifest(path, 1, 9, 3)
    world.taken()
    error = await failure_again(place.executor())
    assert isinstance(error, StepMismatch)
    assert "item 1 " in str(error)
    manifest(path, 1, 2, 3)
    world.gives = {}
    assert await resumed(place.executor()) == [10, 20, 30]
    assert set(world.taken()) == {3}


@pytest.mark.parametrize("change", ["changed", "broken", "removed"])
async def test_a_manifest_that_is_not_the_same_after_the_commit_is_a_mismatch(
    change: str, place: Place, tmp_path: Path
) -> None:
    path = manifest(tmp_path / "m.jsonl", 1, 2, 3)
    world.items = lambda: Jsonl(path)
    await stop_before_the_end(place)
    if change == "removed":
        path.unlink()
    else:
        manifest(path, 1, 2, 4 if change == "changed" else "{")
    error = await failure_again(place.executor(), wf=batch_and_step)
    assert isinstance(error, StepMismatch)
    assert error.step_id == "tenfold"
    assert isinstance(error.__cause__, ManifestError) == (change != "changed")
    assert await resumed(place.executor(), wf=batch_and_step, on_change="keep") == [10, 20, 30]
    assert world.taken() == []


async def test_a_workflow_cannot_go_on_without_the_items_of_a_map_that_committed(
    place: Place, tmp_path: Path
) -> None:
    """What it would do after catching that error was never what it did before."""
    path = manifest(tmp_path / "m.jsonl", 1)

    @workflow
    async def catching(ctx: Context) -> str:
        try:
            await ctx.map(tenfold, Jsonl(path))
        except Exception:
            await ctx.step(other)
        await ctx.step(end_step)
        return "done"

    @step
    async def other() -> None:
        world.ran.append("other")

    @step
    async def end_step() -> None:
        world.gives.get("end", lambda: None)()

    await stop_before_the_end(place, catching)
    path.unlink()
    assert isinstance(await failure_again(place.executor(), wf=catching), StepMismatch)
    assert world.ran == []


# ---- Iterators ----


async def test_a_generator_that_raises_half_way_fails_the_map_with_what_it_raised(place: Place) -> None:
    world.items = lambda: one_by_one(range(10), stops_at=6)
    error = await failure(place.executor())
    assert isinstance(error, MapFailed)
    assert isinstance(error.__cause__, OSError)
    assert "item 6 could not be had: OSError: no item 6" in str(error)
    assert (error.succeeded, error.failed) == (6, 0)
    world.taken()
    world.items = lambda: one_by_one(range(10))
    assert len(await resumed(place.executor())) == 10
    assert world.taken() == [6, 7, 8, 9]


async def test_a_generator_that_raises_after_the_commit_is_a_mismatch(place: Place) -> None:
    world.items = lambda: one_by_one(range(10))
    await stop_before_the_end(place)
    world.items = lambda: one_by_one(range(10), stops_at=6)
    error = await failure_again(place.executor(), wf=batch_and_step)
    assert isinstance(error, StepMismatch)
    assert isinstance(error.__cause__, OSError)


async def test_an_iterable_that_cannot_be_begun_fails_the_map(place: Place) -> None:
    class Broken:
        def __iter__(self) -> Any:
            raise OSError("no cursor")

    world.items = Broken
    error = await failure(place.executor())
    assert isinstance(error, MapFailed)
    assert "no cursor" in str(error)
    world.items = lambda: [1]
    assert await resumed(place.executor()) == [10]


async def test_items_are_pulled_only_as_they_are_needed(place: Place) -> None:
    pulled: list[int] = []
    world.items = lambda: one_by_one(range(100), pulled)
    world.options = {"max_concurrency": 2}
    world.gives = {5: raises(ValueError("no"))}
    await failure(place.executor())
    assert len(pulled) <= 8


# ---- Changed items, without keys ----


async def stopped_at(place: Place, item: Any, **options: Any) -> None:
    """The map has failed at this item; those before it are done."""
    world.gives[item] = raises(ValueError("no"))
    world.options = {"max_concurrency": 1, **options}
    assert isinstance(await failure(place.executor()), MapFailed)
    world.gives.pop(item)
    world.taken()


@pytest.mark.parametrize(
    "now", [[9, 1, 2, 3, 4], [1, 0, 2, 3, 4], [0, 1, 9, 3, 4], [0, 1], [0, 1, 2][:0]], ids=str
)
async def test_without_keys_other_items_are_a_mismatch(now: list[int], place: Place) -> None:
    await stopped_at(place, 2)
    world.items = lambda: now
    error = await failure_again(place.executor())
    assert isinstance(error, StepMismatch)
    assert world.taken() == []
    world.items = lambda: range(5)
    assert await resumed(place.executor()) == [0, 10, 20, 30, 40]


async def test_without_keys_items_that_were_never_run_may_be_others(place: Place) -> None:
    await stopped_at(place, 2)
    world.items = lambda: [0, 1, 2, 7, 8, 9]
    assert await resumed(place.executor()) == [0, 10, 20, 70, 80, 90]
    assert world.taken() == [2, 7, 8, 9]


async def test_a_changed_item_is_kept_on_request(place: Place) -> None:
    await stopped_at(place, 2)
    world.items = lambda: [0, 111, 2, 3, 4]
    assert await resumed(place.executor(), on_change="keep") == [0, 10, 20, 30, 40]


# ---- Keys ----


def by_id(item: dict[str, Any]) -> str:
    return str(item["id"])


def use_keyed(items: Any) -> None:
    world.items = lambda: items
    world.options = {"key": by_id}


@step
async def numbered(item: dict[str, Any]) -> int:
    world.ran.append(item["n"])
    world.gives.get(item["n"], lambda: None)()
    return int(item["n"]) * 10


@workflow
async def by_key(ctx: Context) -> Any:
    return world.after(await ctx.map(numbered, world.items(), **world.options))


async def test_a_hundred_items_appended_are_a_hundred_bodies(place: Place) -> None:
    use_keyed(keyed(range(1000)))
    world.gives[999] = raises(ValueError("no"))
    await failure(place.executor(), wf=by_key)
    assert world.taken() == list(range(1000))
    world.gives.clear()
    use_keyed(keyed(range(1100)))
    assert await resumed(place.executor(), wf=by_key) == [n * 10 for n in range(1100)]
    assert world.taken() == list(range(999, 1100))


async def test_a_hundred_items_appended_in_a_fork_are_a_hundred_bodies(place: Place) -> None:
    use_keyed(keyed(range(1000)))
    executor = place.executor()
    await outputs(executor, wf=by_key)
    world.taken()
    use_keyed(keyed(range(1100)))
    plan = await executor.fork("r1", wf=by_key)
    assert plan.run_id is not None
    assert await resumed(executor, plan.run_id, wf=by_key) == [n * 10 for n in range(1100)]
    assert world.taken() == list(range(1000, 1100))
    assert len(await outputs(executor, wf=by_key)) == 1000  # the other run stays as it was


@pytest.mark.parametrize("generator", [False, True])
async def test_reordered_items_run_no_body(generator: bool, place: Place) -> None:
    use_keyed(keyed(range(50)))
    world.gives[7] = raises(ValueError("no"))
    world.options["max_concurrency"] = 1
    await failure(place.executor(), wf=by_key)
    world.gives.clear()
    world.taken()
    items = keyed(range(50))[::-1]
    world.items = (lambda: one_by_one(items)) if generator else (lambda: items)
    world.after = lambda batch: batch
    batch = await resumed(place.executor(), wf=by_key)
    assert world.taken() == list(range(7, 50))
    wanted = [n * 10 for n in reversed(range(50))]
    assert list(batch.outputs) == wanted
    assert [(one.index, one.key) for one in batch.iter()] == [(n, f"doc-{49 - n}") for n in range(50)]
    again = (await place.executor().run(by_key, run_id="r1")).output
    assert list(again.outputs) == wanted
    assert [(one.index, one.key) for one in again.iter()] == [(n, f"doc-{49 - n}") for n in range(50)]


@pytest.mark.parametrize("generator", [False, True])
@pytest.mark.parametrize("change", ["same", "reordered", "fewer", "changed", "more"])
@pytest.mark.parametrize("with_keys", [False, True], ids=["by position", "by key"])
async def test_a_fork_runs_what_changed_and_nothing_else(
    with_keys: bool, change: str, generator: bool, place: Place
) -> None:
    items = keyed(range(20))
    use_keyed(items)
    if not with_keys:
        world.options = {}
    executor = place.executor()
    world.after = lambda batch: batch
    first = await outputs(executor, wf=by_key)
    world.taken()
    now = {
        "same": items,
        "reordered": items[::-1],
        "fewer": items[:15],
        "changed": [{**item, "n": item["n"] + 100 * (item["n"] == 3)} for item in items],
        "more": [*items, *keyed(range(20, 23))],
    }[change]
    world.items = (lambda: one_by_one(now)) if generator else (lambda: now)
    plan = await executor.fork("r1", wf=by_key)
    assert plan.run_id is not None
    batch = await resumed(executor, plan.run_id, wf=by_key)
    wanted = [item["n"] * 10 for item in now]
    assert list(batch.outputs) == wanted
    ran = {"same": [], "reordered": [], "fewer": [], "changed": [103], "more": [20, 21, 22]}[change]
    if change == "reordered" and not with_keys:
        ran = list(range(20))
    assert world.taken() == ran
    assert (batch == first) == (change == "same")
    again = (await place.executor().run(by_key, run_id=plan.run_id)).output
    assert list(again.outputs) == wanted
    assert again == batch
    assert list(first.outputs) == [n * 10 for n in range(20)]


async def test_a_result_is_the_same_in_a_fork_so_that_what_comes_after_is_not_run_again(place: Place) -> None:
    @step
    async def total(batch: MapResult[int], outputs: Any) -> int:
        world.ran.append("total")
        return sum(outputs)

    @workflow
    async def summing(ctx: Context) -> int:
        batch = await ctx.map(tenfold, range(4))
        return await ctx.step(total, batch, batch.outputs)

    executor = place.executor()
    await outputs(executor, wf=summing)
    world.ran.clear()
    plan = await executor.fork("r1", wf=summing)
    assert plan.run_id is not None
    assert await resumed(executor, plan.run_id, wf=summing) == 60
    assert world.ran == []


async def test_removed_items_are_left_out(place: Place) -> None:
    use_keyed(keyed(range(10)))
    world.options["max_concurrency"] = 1
    world.gives[8] = raises(ValueError("no"))
    await failure(place.executor(), wf=by_key)
    world.gives.clear()
    world.taken()
    use_keyed([item for item in keyed(range(10)) if item["n"] not in (2, 8)])
    world.after = lambda batch: batch
    batch = await resumed(place.executor(), wf=by_key)
    assert world.taken() == [9]
    assert list(batch.outputs) == [0, 10, 30, 40, 50, 60, 70, 90]
    assert (batch.succeeded, batch.failed) == (8, 0)
    again = (await place.executor().run(by_key, run_id="r1")).output
    assert list(again.outputs) == list(batch.outputs)


async def test_a_keyed_item_that_changed_is_a_mismatch(place: Place) -> None:
    use_keyed(keyed(range(5)))
    world.options["max_concurrency"] = 1
    world.gives[3] = raises(ValueError("no"))
    await failure(place.executor(), wf=by_key)
    world.gives.clear()
    for changed in (1, 3):
        use_keyed([{**item, "n": item["n"] + 100 * (item["n"] == changed)} for item in keyed(range(5))])
        error = await failure_again(place.executor(), wf=by_key)
        assert isinstance(error, StepMismatch)
        assert f"doc-{changed}" in str(error)
    use_keyed([{**item, "n": item["n"] + 100 * (item["n"] == 1)} for item in keyed(range(5))])
    assert await resumed(place.executor(), wf=by_key, on_change="keep") == [0, 10, 20, 30, 40]


async def test_a_key_that_two_items_have_is_refused_with_both_positions(place: Place) -> None:
    use_keyed([*keyed(range(5)), {"id": "doc-2", "n": 77}])
    error = await failure(place.executor(), wf=by_key)
    assert isinstance(error, MapFailed)
    assert "items 2 and 5 have the same key 'doc-2'" in str(error)
    use_keyed(keyed(range(5)))
    assert await resumed(place.executor(), wf=by_key) == [0, 10, 20, 30, 40]


async def test_a_key_that_two_items_have_is_seen_on_resume_too(place: Place) -> None:
    use_keyed(keyed(range(5)))
    world.gives[4] = raises(ValueError("no"))
    await failure(place.executor(), wf=by_key)
    world.gives.clear()
    use_keyed([{"id": "doc-1", "n": 1}, *keyed(range(5))])
    error = await failure_again(place.executor(), wf=by_key)
    assert "items 0 and 2 have the same key 'doc-1'" in str(error)


@pytest.mark.parametrize("key", [None, "", b"x", 1.5, True, "x" * 1025, ["a"], "\ud800"], ids=ascii)
async def test_a_key_that_does_not_fit_is_refused(key: Any, place: Place) -> None:
    world.options = {"key": lambda item: key if item == 3 else str(item), "max_concurrency": 1}
    error = await failure(place.executor())
    assert isinstance(error, MapFailed)
    assert "item 3: its key is" in str(error)


async def test_a_key_function_that_raises_fails_the_map(place: Place) -> None:
    world.options = {"key": lambda item: item["id"]}
    error = await failure(place.executor())
    assert isinstance(error, MapFailed)
    assert "item 0: TypeError" in str(error)


@pytest.mark.parametrize("key", ["ключ/[1]#!", "a" * 1024, '","', "]", "null", " "], ids=ascii)
async def test_any_text_can_be_a_key(key: str, place: Place) -> None:
    world.items = lambda: [1, 2]
    world.options = {"key": lambda item: key if item == 1 else 2}
    world.after = lambda batch: batch
    await stop_before_the_end(place)
    batch = await resumed(place.executor(), wf=batch_and_step)
    assert [(one.key, one.output) for one in batch.iter()] == [(key, 10), ("2", 20)]
    assert world.taken() == []


async def test_a_batch_with_keys_and_one_without_are_not_the_same(place: Place) -> None:
    """What was run by position has no key to be found by; nothing is done twice."""
    await stopped_at(place, 3)
    world.options = {"key": str}
    error = await failure_again(place.executor())
    assert isinstance(error, StepMismatch)
    assert "key" in str(error)
    assert world.taken() == []
    executor = place.executor()
    plan = await executor.fork("r1", wf=batch_of)
    assert plan.run_id is not None
    assert await resumed(executor, plan.run_id) == [0, 10, 20, 30, 40]
    assert world.taken() == [0, 1, 2, 3, 4]
    world.options = {}
    assert await resumed(executor) == [0, 10, 20, 30, 40]
    assert world.taken() == [3, 4]
