"""Many processes, one store: of those that want the same, one gets it. `DURABLE_FULL=1` is full scale."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.programs.nursery import Nursery, open_nursery
from tests.e2e.programs.witness import bodies, count, leave, noted, outcome
from tests.waiting import full, until

PROCESSES = 8
RUNS = 1000 if full() else 40
TAKEOVERS = 2000 if full() else 200
STARTERS = 20

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    yield from open_nursery()


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'runs.db'}"
    found: str = request.getfixturevalue("postgres_url")
    return found


def race(nursery: Nursery, url: str, folder: Path, what: str, processes: int, size: int = 0) -> None:
    """All begin when all are there, and end well."""
    pids = [nursery.start("racing", what, url, folder, number, size) for number in range(processes)]
    until(lambda: count(folder / "ready") == processes, "the processes", limit_s=60)
    leave(folder / "go")
    assert [nursery.wait(pid, limit_s=900 if full() else 60) for pid in pids] == [0] * processes


def test_of_processes_that_want_all_runs_each_body_runs_exactly_once(
    nursery: Nursery, url: str, tmp_path: Path
) -> None:
    race(nursery, url, tmp_path, "all", PROCESSES, RUNS)
    lines = bodies(tmp_path / "bodies")
    steps = ("counted", "counted#2", "counted#3")
    expected = Counter((f"r{number}", step) for number in range(RUNS) for step in steps)
    assert Counter((line.run_id, line.step_id) for line in lines) == expected
    assert {line.attempt for line in lines} == {1}
    assert len({line.pid for line in lines}) > 1


def test_each_fence_has_one_winner(nursery: Nursery, url: str, tmp_path: Path) -> None:
    race(nursery, url, tmp_path, "take", PROCESSES, TAKEOVERS)
    assert Counter(noted(tmp_path / "fences")) == Counter(range(1, TAKEOVERS + 1))


def test_many_that_start_one_id_make_one_run(nursery: Nursery, url: str, tmp_path: Path) -> None:
    race(nursery, url, tmp_path, "start", STARTERS)
    assert [outcome(tmp_path, f"outcome-{number}") for number in range(STARTERS)] == [
        {"output": 6} for _ in range(STARTERS)
    ]
    lines = bodies(tmp_path / "bodies")
    assert [line.step_id for line in lines] == ["counted", "counted#2", "counted#3"]
    assert len({line.pid for line in lines}) == 1
