"""What `show` and the bars on a terminal tell of maps."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from rich.console import Console

from durable_core import Context, DurableWorkflowExecutor, MapResult, step, workflow
from durable_core.cli import progress as progress_line
from durable_core.cli.app import execute
from durable_core.cli.jsonable import jsonable
from durable_core.cli.map_bars import MapBars
from durable_core.cli.maps import ItemName, item_named
from durable_core.engine.batch_progress import MapProgress, live
from durable_core.errors import RunFailed
from durable_core.journal.sqlite import SqliteJournal
from durable_core.stores import open_store
from durable_core.workflow import Workflow

going = asyncio.Event()
mended = asyncio.Event()


@step
async def halve(n: int) -> int:
    if n == 3 and not mended.is_set():
        raise ValueError(f"{n} is no good")
    if n >= 12:
        await going.wait()
    return n * 2


@step
async def fetch(n: int) -> str:
    return f"page {n}"


@step
async def swell(page: str) -> str:
    if page == "page 13":
        await going.wait()
    return page * 3000


@step
async def after(n: int) -> int:
    return n


async def in_steps(ctx: Context, n: int) -> str:
    return await ctx.step(swell, await ctx.step(fetch, n))


@workflow
async def halving(ctx: Context, count: int, counted: bool = True, tolerated: int = 5) -> int:
    items = range(count) if counted else iter(range(count))
    batch = await ctx.map(halve, items, tolerate_failures=tolerated, max_concurrency=4)
    return await ctx.step(after, batch.failed)


@workflow
async def swelling(ctx: Context, count: int, at_once: int = 2) -> int:
    batch = await ctx.map(in_steps, range(count), key=lambda n: f"page-{n}", max_concurrency=at_once)
    return await ctx.step(after, batch.succeeded)


@step
async def pass_on(batch: MapResult[int]) -> list[object]:
    return [batch, batch.outputs]


@workflow
async def telling(ctx: Context) -> tuple[object, ...]:
    batch = await ctx.map(halve, range(5), tolerate_failures=1)
    await ctx.step(pass_on, batch)
    return batch, batch.outputs, batch.failures, next(batch.iter())


class Done(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)


Cli = Callable[..., Done]


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DURABLE_LOG_LEVEL", "error")

    def run(*args: str) -> Done:
        capsys.readouterr()
        code = execute(args)
        return Done(code, *capsys.readouterr())

    return run


@pytest.fixture(autouse=True)
def _not_going() -> None:
    global going, mended
    going, mended = asyncio.Event(), asyncio.Event()


async def run_whole(flow: Workflow[..., int], **inputs: Any) -> None:
    going.set()
    async with DurableWorkflowExecutor(db_path="durable.db") as executor:
        await executor.run(flow, run_id="r", **inputs)


@contextlib.asynccontextmanager
async def running(flow: Workflow[..., int], until: tuple[str, int], **inputs: Any) -> Any:
    """A run whose map stands still once so many of its items are done, and goes on afterwards."""
    map_id, done = until
    async with DurableWorkflowExecutor(db_path="durable.db") as executor, asyncio.timeout(30):
        run = asyncio.create_task(executor.run(flow, run_id="r", **inputs))
        while recorded(map_id) < done:  # noqa: ASYNC110 - another connection to the file gives no signal
            await asyncio.sleep(0.005)
        yield
        going.set()
        await run


def recorded(map_id: str) -> int:
    if not Path("durable.db").exists():
        return 0
    with contextlib.closing(sqlite3.connect("durable.db")) as journal:
        query = "SELECT max(succeeded + failed) FROM segments WHERE step_id = ?"
        with contextlib.suppress(sqlite3.OperationalError):  # the tables aren't there yet
            return int(journal.execute(query, (map_id,)).fetchone()[0] or 0)
    return 0


def items_of(shown: Done, map_id: str) -> dict[str, int]:
    (found,) = [one["items"] for one in shown.document["steps"] if one["step_id"] == map_id]
    return dict(found)


async def test_another_process_sees_exactly_how_many_items_are_done(cli: Cli) -> None:
    async with running(halving, ("halve", 12), count=20):
        shown = await asyncio.to_thread(cli, "show", "r", "--json")
        text = await asyncio.to_thread(cli, "show", "r")
    assert items_of(shown, "halve") == {"total": 20, "done": 12, "succeeded": 11, "failed": 1}
    assert "map halve  12 of 20 items done, 1 failed\n" in text.out
    ended = await asyncio.to_thread(cli, "show", "r", "--json")
    assert items_of(ended, "halve") == {"total": 20, "done": 20, "succeeded": 19, "failed": 1}
    assert [one["items"] for one in ended.document["steps"] if one["step_id"] == "after"] == [None]


async def test_items_of_an_iterator_are_counted_though_nobody_knows_how_many_come(cli: Cli) -> None:
    async with running(halving, ("halve", 12), count=20, counted=False):
        shown = await asyncio.to_thread(cli, "show", "r", "--json")
        text = await asyncio.to_thread(cli, "show", "r", "--step", "halve")
    assert items_of(shown, "halve") == {"total": None, "done": 12, "succeeded": 11, "failed": 1}
    assert "items            12 items done, 1 failed\n" in text.out


async def test_a_map_that_failed_says_how_far_it_came(cli: Cli) -> None:
    with pytest.raises(RunFailed):
        await run_whole(halving, count=20, tolerated=0)
    shown = await asyncio.to_thread(cli, "show", "r", "--json")
    found = items_of(shown, "halve")
    assert (found["failed"], found["done"]) == (1, found["succeeded"] + 1)


async def test_numbers_are_read_from_one_segment_and_never_from_all(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("all segments are read")

    async with running(halving, ("halve", 12), count=20):
        monkeypatch.setattr(SqliteJournal, "segments", refuse)
        shown = await asyncio.to_thread(cli, "show", "r", "--json")
        monkeypatch.undo()
    assert items_of(shown, "halve")["done"] == 12


async def test_steps_inside_items_are_neither_listed_nor_read(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    await run_whole(swelling, count=1500, at_once=100)
    found = 0
    real = SqliteJournal.steps

    async def counted(self: SqliteJournal, run_id: str) -> Any:
        nonlocal found
        async for page in real(self, run_id):
            found += len(page)
            yield page

    monkeypatch.setattr(SqliteJournal, "steps", counted)
    shown = await asyncio.to_thread(cli, "show", "r", "--json")
    assert [one["step_id"] for one in shown.document["steps"]] == ["in_steps", "after"]
    assert all(one["input_hash"] for one in shown.document["steps"])
    assert found < 3000
    assert items_of(shown, "in_steps")["succeeded"] == 1500
    assert "steps         2 committed" in (await asyncio.to_thread(cli, "show", "r")).out


async def test_an_item_is_shown_with_its_output_or_its_error(cli: Cli) -> None:
    await run_whole(halving, count=20)
    item = (await asyncio.to_thread(cli, "show", "r", "--step", "halve[8]", "--json")).document["item"]
    assert (item["status"], item["output"], item["item_index"], item["attempt"]) == ("COMMITTED", 16, 8, 1)
    failed = await asyncio.to_thread(cli, "show", "r", "--step", "halve[3]")
    assert "status   FAILED\n" in failed.out
    assert failed.out.endswith("ValueError: 3 is no good\n")
    assert "\nError (ValueError):\n" in failed.out


async def test_an_item_that_failed_and_was_mended_is_shown_as_it_is_now(cli: Cli) -> None:
    with pytest.raises(RunFailed):
        await run_whole(halving, count=20, tolerated=0)
    before = await asyncio.to_thread(cli, "show", "r", "--step", "halve[3]", "--json")
    assert before.document["item"]["status"] == "FAILED"
    mended.set()
    async with DurableWorkflowExecutor(db_path="durable.db") as executor:
        await executor.resume("r", halving)
    after = await asyncio.to_thread(cli, "show", "r", "--step", "halve[3]", "--json")
    assert (after.document["item"]["status"], after.document["item"]["output"]) == ("COMMITTED", 6)
    assert items_of(await asyncio.to_thread(cli, "show", "r", "--json"), "halve")["failed"] == 0


async def test_an_item_is_found_by_its_key_and_shows_the_steps_of_its_own(cli: Cli) -> None:
    await run_whole(swelling, count=4)
    shown = (await asyncio.to_thread(cli, "show", "r", "--step", "in_steps[page-2]", "--json")).document
    scope = shown["item"]["step_id"]
    assert (shown["item"]["item_key"], len(shown["item"]["output"])) == ("page-2", 18_000)
    assert [one["step_id"] for one in shown["steps"]] == [f"{scope}/fetch", f"{scope}/swell"]
    by_id = await asyncio.to_thread(cli, "show", "r", "--step", scope, "--json")
    assert by_id.document == shown
    step_shown = await asyncio.to_thread(cli, "show", "r", "--step", f"{scope}/fe", "--json")
    assert step_shown.document["step"]["output"] == "page 2"


async def test_an_item_in_work_shows_the_steps_that_it_has_so_far(cli: Cli) -> None:
    async with running(swelling, ("in_steps", 13), count=14):
        shown = (await asyncio.to_thread(cli, "show", "r", "--step", "in_steps[page-13]", "--json")).document
        text = await asyncio.to_thread(cli, "show", "r", "--step", "in_steps[page-13]")
    assert [(one["step_id"].rpartition("/")[2], one["state"]) for one in shown["steps"]] == [
        ("fetch", None),
        ("swell", "running"),
    ]
    assert (shown["item"]["status"], shown["item"]["output"]) == ("STARTED", None)
    assert "status  STARTED (no outcome yet)\n" in text.out


@pytest.mark.parametrize(
    "given", ["halve[20]", "halve[-1]", "halve[]", "nothing[1]", "after[0]", "halve[1]/x"]
)
async def test_an_item_that_is_not_there_is_not_found(cli: Cli, given: str) -> None:
    await run_whole(halving, count=20)
    missing = await asyncio.to_thread(cli, "show", "r", "--step", given)
    assert missing.code == 3
    assert missing.err.count("\n") <= 2


async def test_a_map_whose_record_is_damaged_is_marked_and_the_rest_is_shown(cli: Cli) -> None:
    await run_whole(halving, count=20)
    with contextlib.closing(sqlite3.connect("durable.db")) as journal, journal:
        journal.execute("UPDATE checkpoints SET output_data = '{}' WHERE step_id = 'halve'")
    shown = await asyncio.to_thread(cli, "show", "r", "--json")
    assert shown.code == 6
    assert [(one["step_id"], bool(one["corrupt"])) for one in shown.document["steps"]] == [
        ("halve", True),
        ("after", False),
    ]


async def test_a_damaged_segment_is_told_of_when_an_item_in_it_is_asked_for(cli: Cli) -> None:
    await run_whole(halving, count=20)
    with contextlib.closing(sqlite3.connect("durable.db")) as journal, journal:
        journal.execute("UPDATE segments SET data = x'00' WHERE items > 0")
    shown = await asyncio.to_thread(cli, "show", "r", "--step", "halve[1]")
    assert (shown.code, "segment" in shown.err) == (6, True)
    assert (await asyncio.to_thread(cli, "show", "r")).code == 0


async def test_a_maps_result_is_told_by_its_counts_and_its_parts_by_what_they_hold(cli: Cli) -> None:
    async with DurableWorkflowExecutor(db_path="durable.db") as executor:
        counts, outputs, (failure,), first = jsonable((await executor.run(telling, run_id="r")).output)
    assert counts == {"succeeded": 4, "failed": 1}
    assert outputs == [0, 2, 4, 8]
    assert (failure["index"], failure["error"]["message"]) == (3, "3 is no good")
    assert "output" not in failure
    assert first == {"index": 0, "key": None, "attempts": 1, "error": None, "output": 0}
    shown = await asyncio.to_thread(cli, "show", "r", "--step", "pass_on", "--json")
    assert (shown.code, shown.document["step"]["output"]) == (0, [counts, counts])


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ("extract[12]", ItemName("extract", "12")),
        ("extract#2[a/b[c]", ItemName("extract#2", "a/b[c")),
        ("outer[3]/risk/extract[12]", ItemName("outer[3]/risk/extract", "12")),
        ("extract[12]/fetch", None),
        ("extract", None),
        ("extract[12", None),
    ],
)
def test_a_name_of_an_item_is_told_from_that_of_a_step(given: str, named: ItemName | None) -> None:
    assert item_named(given) == named


# ---- Bars ----


async def test_the_status_line_counts_no_steps_inside_items(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    await run_whole(swelling, count=5)
    monkeypatch.setattr(progress_line, "_LOOK_EVERY_S", 0)
    told = asyncio.Queue[str]()
    journal = open_store("sqlite:///durable.db").journal
    await journal.open(create=False)
    telling = asyncio.create_task(progress_line.keep_telling(journal, "r", told.put_nowait))
    assert await asyncio.wait_for(told.get(), 30) == "r: 2 committed"
    telling.cancel()
    await asyncio.wait((telling,))
    await journal.close()


async def test_the_same_run_in_two_stores_of_one_process_does_no_harm(tmp_path: Path) -> None:
    going.set()

    async def run_in(name: str) -> None:
        async with DurableWorkflowExecutor(db_path=tmp_path / name) as executor:
            await executor.run(halving, run_id="r", count=400, tolerated=400)

    await asyncio.gather(run_in("a.db"), run_in("b.db"))
    assert live == {}


@pytest.fixture
def maps() -> Iterator[Callable[..., None]]:
    known = dict(live)

    def add(map_id: str, run_id: str = "r", *, total: int | None = 1000, done: int = 250) -> None:
        progress = MapProgress(run_id=run_id, step_id=map_id, total=total, in_flight=32)
        progress.done, progress.failed = done, 7
        progress._begun_at -= 10
        live[run_id, map_id] = progress

    yield add
    live.clear()
    live.update(known)


def drawn(columns: int) -> list[str]:
    file = io.StringIO()
    Console(file=file, width=columns, force_terminal=False).print(MapBars("r"))
    return file.getvalue().splitlines()


@pytest.mark.parametrize("columns", [20, 40, 60, 80, 110, 200])
def test_a_bar_fits_the_terminal_and_keeps_the_most_important_numbers(
    columns: int, maps: Callable[..., None]
) -> None:
    maps("extract")
    lines = drawn(columns)
    assert len(lines) == (1 if columns >= 110 else 2)
    assert max(map(len, lines)) <= columns
    assert lines[0].startswith("extract  ━")
    assert "250/1,000, 7 f" in lines[-1]
    assert ("250/1,000, 7 failed, 30 s left, 25.0/s, 32 in flight" in lines[-1]) is (columns >= 60)


def test_only_maps_of_the_run_are_drawn_and_of_many_the_first(maps: Callable[..., None]) -> None:
    assert drawn(120) == []
    maps("extract", "another")
    assert drawn(120) == []
    for n in range(8):
        maps(f"a map with a really long name {n}", total=None)
    lines = drawn(120)
    assert len(lines) == 6
    assert "250 done, 7 failed, 25.0/s" in lines[0]
    assert lines[-1] == "and 3 more maps"


def test_a_bar_of_no_items_is_drawn(maps: Callable[..., None]) -> None:
    maps("extract", total=0, done=0)
    assert "0/0" in drawn(120)[0]
