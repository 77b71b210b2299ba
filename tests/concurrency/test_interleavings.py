"""The real engine keeps the protocol's promises, in whatever order the journal's calls of processes come.

No double commit, no lost commit, each body within its count, and the rightful owner is never the one fenced.
A broken promise prints the execution and the command that replays it. `DURABLE_FULL=1` searches at full
scale.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.concurrency.explore import SCENARIOS, explore, replay, walk
from tests.concurrency.journals import DYNAMODB, SQL, InSqlite, Kind, sqlite_file
from tests.concurrency.processes import simulated
from tests.concurrency.shared_map_scenarios import SHARED_MAP_SCENARIOS
from tests.concurrency.simulation import Scenario, World
from tests.concurrency.traces import brief
from tests.concurrency.wait_scenarios import WAIT_SCENARIOS
from tests.waiting import full

LIMIT = 3_000 if full() else 40  # executions per scenario, journal and budget of faults
WALKS = 10_000 if full() else 100  # random executions per scenario and journal
ON_SQLITE = (*WAIT_SCENARIOS, *SHARED_MAP_SCENARIOS)
WALKS_ON_SQLITE = 1_000 if full() else 20  # for each scenario: 14,000 in all
WHOLE = ("3 steps", "pure step", "hand-over")

by_scenario = pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
by_journal = pytest.mark.parametrize("kind", [SQL, DYNAMODB], ids=lambda kind: kind.name)


@pytest.fixture(autouse=True)
def _simulated() -> Iterator[None]:
    with simulated():
        yield


@pytest.fixture(scope="module")
def sqlite() -> Iterator[InSqlite]:
    with sqlite_file() as kind:
        yield kind


@by_journal
@by_scenario
def test_promises_are_kept_in_random_executions(scenario: Scenario, kind: Kind) -> None:
    for seed in range(WALKS):
        found = walk(scenario, kind, seed)
        assert found is None, str(found)


@pytest.mark.parametrize("scenario", ON_SQLITE, ids=lambda scenario: scenario.name)
def test_waits_and_shared_maps_keep_them_over_a_sqlite_file(scenario: Scenario, sqlite: InSqlite) -> None:
    """No wake-up is lost and no event taken twice by what the file's own statements do."""
    for seed in range(WALKS_ON_SQLITE):
        found = walk(scenario, sqlite, seed)
        assert found is None, str(found)


@by_journal
@by_scenario
def test_promises_are_kept_in_the_executions_nearest_to_the_usual_one(scenario: Scenario, kind: Kind) -> None:
    for number in range(len(scenario.budgets)):
        found, made, whole = explore(scenario, kind, number, LIMIT)
        assert found is None, str(found)
        assert whole or made == LIMIT


@by_journal
@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("fault", ["lost", "crash"])
def test_promises_are_kept_in_every_execution_with_one_fault(name: str, fault: str, kind: Kind) -> None:
    scenario = next(scenario for scenario in SCENARIOS if scenario.name == name)
    found, _, whole = explore(replace(scenario, budgets=({fault: 1},)), kind, 0, 5000)
    assert found is None, str(found)
    assert whole


@by_scenario
def test_the_same_choices_give_the_same_execution(scenario: Scenario) -> None:
    traces = [trace_of(scenario, SQL, seed) for seed in (1, 2, 1)]
    assert traces[0] == traces[2]
    assert traces[0] != traces[1]


def test_the_same_choices_give_the_same_execution_over_a_file(sqlite: InSqlite) -> None:
    traces = [trace_of(WAIT_SCENARIOS[0], sqlite, seed) for seed in (1, 2, 1)]
    assert traces[0] == traces[2]
    assert traces[0] != traces[1]


def test_a_broken_promise_is_replayed_by_its_seed_and_by_its_path() -> None:
    scenario = next(scenario for scenario in SCENARIOS if scenario.name == "hopeless step")
    hopeful = replace(scenario, extra=0)  # promises one body per owner, though the step has two attempts
    found, _, _ = explore(hopeful, SQL, 0, 10)
    assert found is not None
    assert "the body of hopeless ran 2 times" in found.message
    path = [int(n) for n in found.replay.split("--path ")[1].split()[0].split(",")]
    again = replay(hopeful, SQL, 0, path)
    assert again is not None
    assert (again.message, again.trace) == (found.message, found.trace)
    first, second = walk(hopeful, SQL, 3), walk(hopeful, SQL, 3)
    assert first is not None
    assert first == second
    assert first.replay.endswith("--seed 3")


def trace_of(scenario: Scenario, kind: Kind, seed: int) -> list[str]:
    worlds: list[World] = []

    def prepare(world: World) -> None:
        worlds.append(world)
        scenario.prepare(world)

    assert walk(replace(scenario, prepare=prepare), kind, seed) is None
    return [f"{move} -> {brief(reply)}" for move, reply in worlds[0].trace]
