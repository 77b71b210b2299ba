"""Workers that share a map and are killed: each item is committed once, and what is done is told exactly."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from durable_core import DurableWorkflowExecutor
from durable_core.cli.maps import map_counts
from durable_core.outcomes import outcomes_of
from tests.e2e.programs.nursery import Nursery, open_nursery
from tests.e2e.programs.pooling import pool
from tests.e2e.programs.witness import Line, bodies, count
from tests.waiting import full, until

pytestmark = pytest.mark.slow

WORKERS = 4
ITEMS = 20_000 if full() else 1_500
CHUNK = 100 if full() else 50
KILL_EVERY_S = 1.0 if full() else 0.5
STORES = ("sqlite", "postgres")
MAP = "pooled"


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    yield from open_nursery()


def serve(nursery: Nursery, url: str, folder: Path) -> int:
    before = count(folder / "serving")
    pid = nursery.start("pooling", url, folder, 2)
    until(lambda: count(folder / "serving") > before, "the worker")
    return pid


async def in_the_logs(executor: DurableWorkflowExecutor) -> Counter[int]:
    """How often each item has an outcome."""
    journal, found = executor.store.journal, Counter[int]()
    for chunk in range(-(-ITEMS // CHUNK)):
        async for page in journal.segments("r1", MAP, chunk):
            for segment in page:
                found.update(one.item_index for one in outcomes_of(segment))
    return found


async def shown(executor: DurableWorkflowExecutor) -> int:
    """What `durable show` says is done."""
    journal = executor.store.journal
    header, record = await journal.header("r1"), await journal.step("r1", MAP)
    if header is None or record is None:
        return 0
    return int((await map_counts(executor.store, header, record))["done"])


@pytest.mark.parametrize("kind", STORES)
async def test_killed_workers_repeat_only_items_in_flight_and_progress_is_exact_all_along(
    kind: str, nursery: Nursery, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    if kind == "postgres":
        url = request.getfixturevalue("postgres_url")
    killed: list[int] = []
    durable: list[
        tuple[int, set[int]]
    ] = []  # at some moments: bodies that had begun, and items that were done
    async with DurableWorkflowExecutor(url) as executor:
        await executor.start(pool, run_id="r1", folder=str(tmp_path), count=ITEMS, chunk_size=CHUNK)
        live = [serve(nursery, url, tmp_path) for _ in range(WORKERS)]
        next_kill, done = time.monotonic() + KILL_EVERY_S, 0
        while (await executor.get("r1")).status != "COMPLETED":
            if time.monotonic() >= next_kill:
                next_kill += KILL_EVERY_S
                killed.append(live.pop(0))
                nursery.kill(killed[-1])
                done_by_now = set(await in_the_logs(executor))
                durable.append((count(tmp_path / "bodies"), done_by_now))
                live.append(serve(nursery, url, tmp_path))
            if not full() or len(killed) % 5 == 0:
                least = len(await in_the_logs(executor))
                now = await shown(executor)
                assert max(least, done) <= now <= len(await in_the_logs(executor))
                done = now
            assert len(killed) < 300
            time.sleep(0.05)  # noqa: ASYNC251 - nothing else runs in this process
        for pid in live:
            nursery.kill(pid)
        assert await shown(executor) == ITEMS
        assert await in_the_logs(executor) == Counter(range(ITEMS))
        assert (await executor.run(pool, resume_run_id="r1")).output == ITEMS
    assert len(killed) >= 2
    begun = bodies(tmp_path / "bodies")
    for so_many, items in durable:  # what was done is never begun again
        assert not items & {int(line.step_id[len(MAP) + 1 : -1]) for line in begun[so_many:]}
    starts: dict[str, list[Line]] = defaultdict(list)
    for line in begun:
        starts[line.step_id].append(line)
    assert len(starts) == ITEMS
    repeated = [one for lines in starts.values() for one in lines[:-1]]
    assert all(one.pid in killed for one in repeated)
    assert all(len({one.key for one in lines}) == 1 for lines in starts.values())
