"""Processes that drive large maps are killed, or killed by an item; larger ones with `DURABLE_FULL=1`."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from durable_core import DurableWorkflowExecutor
from durable_core.outcomes import outcomes_of
from durable_core.stores import open_store
from tests.e2e.programs.batching import CONCURRENCY, is_unlucky
from tests.e2e.programs.nursery import Nursery, is_over, open_nursery
from tests.e2e.programs.witness import count, integrity, noted, outcome, size_of
from tests.waiting import full, moment, until

pytestmark = pytest.mark.slow

SEGMENT = 256
LONG_S = 600.0 if full() else 60.0


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    yield from open_nursery()


async def durable(db: Path, step_id: str = "counted") -> Counter[int]:
    """The items whose outcomes are in the log, each with how often."""
    store = open_store(f"sqlite:///{db}")
    found: Counter[int] = Counter()
    async for page in store.journal.segments("r1", step_id):
        for segment in page:
            found.update(one.item_index for one in outcomes_of(segment))
    await store.journal.close()
    return found


def written(log: Path) -> int:
    return size_of(log) if log.exists() else 0


def items(log: Path, since: int = 0) -> list[int]:
    return [int(line) for line in log.read_bytes().splitlines()[since:]]


async def test_a_map_killed_at_random_moments_repeats_only_what_was_in_flight(
    nursery: Nursery, tmp_path: Path
) -> None:
    total = 200_000 if full() else 5_000
    db, log, drawn = tmp_path / "runs.db", tmp_path / "bodies", random.Random(11)
    program = ("batching", db, "r1", tmp_path, "many", {"items": total})
    before: set[int] = set()
    kills = 0
    for kill in range(20):
        started = count(log)
        pid = nursery.start(*program)
        aim = written(log) + 1 + drawn.randrange(2 * total // 20) * 5  # bytes: some 5 a line
        until(lambda pid=pid, aim=aim: written(log) >= aim or is_over(pid), "a body", limit_s=LONG_S)
        moment(drawn.uniform(0, 0.01))
        kills += nursery.kill(pid) == -signal.SIGKILL
        assert integrity(db) == "ok"
        now = items(log, started)
        done = set(await durable(db))
        assert not before & set(now), f"kill {kill}: durable items ran again"
        assert len(now) == len(set(now))
        assert len(set(now) - done) <= CONCURRENCY + SEGMENT
        before = done
    started = count(log)
    assert nursery.run(*program, limit_s=LONG_S) == 0
    assert not before & set(items(log, started))
    assert outcome(tmp_path) == {"output": [total, True, (total - 1) * 3]}
    assert set(await durable(db)) == set(range(total))
    assert max((await durable(db)).values()) == 1
    assert kills >= 10
    assert len(items(log)) <= total + kills * (CONCURRENCY + SEGMENT)


async def test_a_map_that_is_stopped_by_deploys_loses_nothing_that_had_finished(
    nursery: Nursery, tmp_path: Path
) -> None:
    total = 2_000
    db, log, finished = tmp_path / "runs.db", tmp_path / "bodies", tmp_path / "finished"
    program = ("batching", db, "r1", tmp_path, "calmly", {"items": total})
    for number in range(5):
        pid = nursery.start(*program)
        until(lambda number=number: written(finished) > number * 1000 + 100, "work", limit_s=LONG_S)
        os.kill(pid, signal.SIGTERM)
        assert nursery.wait(pid) == 143
        assert set(items(finished)) == set(await durable(db, "unhurried"))
        assert count(finished) == len(set(items(finished)))
    assert nursery.run(*program, limit_s=LONG_S) == 0
    assert outcome(tmp_path) == {"output": [total, True, (total - 1) * 3]}
    assert count(finished) == total
    assert count(log) - total <= 5 * CONCURRENCY
    executor = DurableWorkflowExecutor(db_path=db)
    assert (await executor.get("r1")).crashes == 0
    await executor.close()


def deaths_of(nursery: Nursery, program: tuple[object, ...]) -> int:
    """Drives a run until it has an end; gives how often an item has killed the process before."""
    deaths = 0
    while (code := nursery.run(*program, limit_s=LONG_S)) == 9:  # type: ignore[arg-type]
        deaths += 1
        assert deaths < 20
    assert code == 0
    return deaths


@pytest.mark.parametrize("poison", [[0], [150], [150, 151], [3, 299]], ids=str)
def test_of_uneven_items_only_the_poison_is_quarantined(
    poison: list[int], nursery: Nursery, tmp_path: Path
) -> None:
    total, most_ms = (5_000, 2_000) if full() else (300, 200)
    inputs = {"items": total, "most_ms": most_ms, "poison": poison}
    deaths = deaths_of(nursery, ("batching", tmp_path / "runs.db", "r1", tmp_path, "poisoned", inputs))
    unlucky = [(item, "ERROR") for item in range(total) if is_unlucky(item)]
    failures = sorted([*unlucky, *((item, "CRASH_LIMIT_REACHED") for item in poison)])
    wanted = [total - len(failures), len(failures), [list(one) for one in failures]]
    assert outcome(tmp_path) == {"output": wanted}
    starts = Counter(items(tmp_path / "bodies"))
    assert set(starts) == set(range(total))
    assert all(starts[item] <= 4 for item in poison)
    assert deaths <= 4 * len(poison)  # one before anybody knew, and three each
    innocent = [starts[item] for item in starts if item not in poison]
    assert max(innocent) <= 3 + len(poison)
    assert sum(innocent) <= total + deaths * (CONCURRENCY + SEGMENT)


@pytest.mark.parametrize("poison", [[20], [20, 21]], ids=str)
def test_a_poison_step_of_an_item_is_found_and_no_committed_step_runs_again(
    poison: list[int], nursery: Nursery, tmp_path: Path
) -> None:
    inputs = {"items": 60, "poison": poison}
    deaths = deaths_of(nursery, ("batching", tmp_path / "runs.db", "r1", tmp_path, "poisoned_inside", inputs))
    told = outcome(tmp_path)["output"]
    assert isinstance(told, list)
    assert told[:2] == [60 - len(poison), len(poison)]
    assert [one[0] for one in told[2]] == poison
    assert deaths <= 3 * len(poison) + 1
    fetched = Counter(items(tmp_path / "fetched"))
    assert all(fetched[item] == 1 for item in poison)
    assert max(fetched.values()) <= 1 + deaths


async def test_a_large_manifest_is_mapped_in_flat_memory_and_resumed_at_once(
    nursery: Nursery, tmp_path: Path
) -> None:
    total = 1_000_000 if full() else 100_000
    (tmp_path / "items.jsonl").write_text("".join(f"{item}\n" for item in range(total)))
    db, log = tmp_path / "runs.db", tmp_path / "bodies"
    program = ("batching", db, "r1", tmp_path, "from_manifest", {"items": total})
    pid = nursery.start(*program)
    until(lambda: written(log) > total * 3, "half", limit_s=LONG_S)
    nursery.kill(pid)
    done, started, size = set(await durable(db)), count(log), written(log)
    assert 0 < len(done) < total
    resumed_at, limit_s = time.monotonic(), 60 if full() else 20  # ten times what a machine at rest takes
    pid = nursery.start(*program)
    until(lambda: written(log) > size or is_over(pid), "new work", limit_s=LONG_S)
    new_work_s = time.monotonic() - resumed_at
    assert new_work_s < limit_s
    assert nursery.wait(pid, limit_s=LONG_S) == 0
    assert outcome(tmp_path) == {"output": [total, True, (total - 1) * 3]}
    again = items(log, started)
    assert not done & set(again)
    assert count(log) - total <= CONCURRENCY + SEGMENT
    (peak_kib,) = noted(tmp_path / "peak")
    assert int(str(peak_kib)) < 300 * 1024
    sys.stdout.write(
        f"{total} items: new work after {new_work_s:.1f} s, at most {int(str(peak_kib)) // 1024} MiB\n"
    )
