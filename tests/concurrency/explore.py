"""Tries the interleavings of the scenarios: all of them up to a limit, and seeded random ones.

python -m tests.concurrency.explore                                     all scenarios, on both forms in memory
    python -m tests.concurrency.explore --walks 10000 --limit 20000         the same at full scale
    python -m tests.concurrency.explore "3 steps" --on sqlite --seed 17     one random execution again
    python -m tests.concurrency.explore "3 steps" --path 0,0,3 --budget 2   one of an exhaustive search again
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.concurrency.journals import Kind, kinds
from tests.concurrency.map_scenarios import MAP_SCENARIOS
from tests.concurrency.moves import Move
from tests.concurrency.processes import simulated
from tests.concurrency.promises import Violation
from tests.concurrency.prune_scenarios import PRUNE_SCENARIOS
from tests.concurrency.scenarios import PLAIN_SCENARIOS
from tests.concurrency.shared_map_scenarios import SHARED_MAP_SCENARIOS
from tests.concurrency.simulation import Scenario, World
from tests.concurrency.traces import brief
from tests.concurrency.wait_scenarios import WAIT_SCENARIOS

SCENARIOS = (*PLAIN_SCENARIOS, *MAP_SCENARIOS, *PRUNE_SCENARIOS, *WAIT_SCENARIOS, *SHARED_MAP_SCENARIOS)
FAULT_SHARE = 0.12


class _SeenBefore(Exception):
    """This state was explored before."""


@dataclass(frozen=True)
class Found:
    """A broken promise, and how to see it again."""

    message: str
    trace: str
    replay: str

    def __str__(self) -> str:
        return f"{self.message}\n{self.trace}\nreplay: {self.replay}"


def explore(scenario: Scenario, kind: Kind, budget_number: int, limit: int) -> tuple[Found | None, int, bool]:
    """Executions in the order of how often they depart from "who goes on, goes on".

    Args:
        scenario: To be explored.
        kind: Of the journal.
        budget_number: Of the scenario's budgets.
        limit: The most executions.

    Returns:
        The first broken promise, how many executions were made, and whether those were all.
    """
    queue: deque[tuple[int, ...]] = deque([()])
    seen: set[int] = set()
    made = 0
    while queue and made < limit:
        prefix = queue.popleft()
        made += 1
        found = execute(scenario, kind, scenario.budgets[budget_number], _Systematic(prefix, queue, seen))
        if found is not None:
            message, world, path = found
            return (
                _found(message, world, kind, f"--path {','.join(map(str, path))} --budget {budget_number}"),
                made,
                False,
            )
    return None, made, not queue


def walk(scenario: Scenario, kind: Kind, seed: int) -> Found | None:
    """One random execution, with all of the scenario's faults."""
    most: dict[str, int] = {}
    for budget in scenario.budgets:
        for fault, times in budget.items():
            most[fault] = max(most.get(fault, 0), times)
    found = execute(scenario, kind, most, _Random(seed))
    return _found(found[0], found[1], kind, f"--seed {seed}") if found is not None else None


def replay(scenario: Scenario, kind: Kind, budget_number: int, path: Sequence[int]) -> Found | None:
    """One execution of an exhaustive search."""
    found = execute(scenario, kind, scenario.budgets[budget_number], _Systematic(tuple(path), deque(), set()))
    return _found(found[0], found[1], kind, "") if found is not None else None


class _Systematic:
    """Follows a path, then always takes the first move; queues all departures from there."""

    def __init__(self, prefix: tuple[int, ...], queue: deque[tuple[int, ...]], seen: set[int]) -> None:
        self.path = list(prefix)
        self.at = 0
        self.queue = queue
        self.seen = seen

    def __call__(self, world: World, moves: list[Move]) -> int:
        self.at += 1
        if self.at <= len(self.path):
            return self.path[self.at - 1]
        key = world.key()
        if key in self.seen:
            raise _SeenBefore
        self.seen.add(key)
        self.queue.extend((*self.path, other) for other in range(1, len(moves)))
        self.path.append(0)
        return 0


class _Random:
    """Draws: in some executions the processes take turns, in others one goes on for long, or one comes last.

    A paused process mostly stays so for a while.
    """

    def __init__(self, seed: int) -> None:
        self.path: list[int] = []
        self.random = random.Random(seed)
        self.stays = self.random.choice((0.0, 0.5, 0.9))
        self.starves = self.random.choice((0.5, 0.9, 0.97))
        self.last = self.random.choice(("", "", "A", "B", "C"))

    def __call__(self, world: World, moves: list[Move]) -> int:
        draw = self.random
        calls = [n for n, move in enumerate(moves) if move.kind == "do"]
        faults = [n for n, move in enumerate(moves) if move.kind != "do"]
        if faults and (not calls or draw.random() < FAULT_SHARE):
            kinds = sorted(
                {moves[n].kind for n in faults}
            )  # each kind as likely, however often it is on offer
            kind = draw.choice(kinds)
            chosen = draw.choice([n for n in faults if moves[n].kind == kind])
        elif draw.random() < self.stays:
            chosen = 0
        else:
            late = (self.last, world.paused) if draw.random() < self.starves else ()
            chosen = draw.choice([n for n in calls if moves[n].subject.process.name not in late] or calls)
        self.path.append(chosen)
        return chosen


def execute(
    scenario: Scenario, kind: Kind, budget: dict[str, int], choose: _Systematic | _Random
) -> tuple[str, World, list[int]] | None:
    """One execution; what promise it broke, if any."""
    world = World(scenario, kind, budget, choose)
    try:
        world.run()
    except _SeenBefore:
        return None
    except Violation as violation:
        return str(violation), world, choose.path
    return None


def _found(message: str, world: World, kind: Kind, how: str) -> Found:
    lines = [f"{n:3} {move} -> {brief(reply)}" for n, (move, reply) in enumerate(world.trace, 1)]
    name = world.scenario.name
    return Found(
        f"{name} on {kind.name}: {message}",
        "\n".join(lines),
        f'python -m tests.concurrency.explore "{name}" --on {kind.name} {how}',
    )


def chosen(name: str) -> list[Scenario]:
    """The scenario of that name; all, without a name."""
    found = [scenario for scenario in SCENARIOS if name in ("", scenario.name)]
    if not found:
        raise SystemExit(
            f"there is no scenario {name!r}: {', '.join(scenario.name for scenario in SCENARIOS)}"
        )
    return found


def search(
    only: str, on: Sequence[Kind], limit: int, walks: int, told: Callable[[str], None]
) -> Found | None:
    """Scenarios of that name, or all, exhaustively up to a limit of executions per budget, and at random."""
    for scenario in chosen(only):
        for kind in on:
            executions, whole = 0, 0
            for number in range(len(scenario.budgets)):
                found, made, complete = explore(scenario, kind, number, limit)
                if found is not None:
                    return found
                executions, whole = executions + made, whole + complete
            for seed in range(walks):
                if (found := walk(scenario, kind, seed)) is not None:
                    return found
            told(
                f"{scenario.name:22} {kind.name:9} {executions:7} executions,"
                f" {whole}/{len(scenario.budgets)} budgets whole, {walks} walks"
            )
    return None


def _tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description="Tries interleavings of the real engine.")
    parser.add_argument("scenario", nargs="?", default="")
    parser.add_argument(
        "--on", choices=["sql", "dynamodb", "sqlite"], help="in memory in the form of a store, or in a file"
    )
    parser.add_argument("--seed", type=int)
    parser.add_argument("--path")
    parser.add_argument("--budget", type=int, default=0)
    parser.add_argument("--walks", type=int, default=1000)
    parser.add_argument("--limit", type=int, default=500)
    given = parser.parse_args()
    with simulated(), kinds(*([given.on] if given.on else ["sql", "dynamodb"])) as on:
        if given.seed is None and given.path is None:
            found = search(given.scenario, on, given.limit, given.walks, _tell)
        else:
            scenario = chosen(given.scenario)[0]
            if given.seed is not None:
                found = walk(scenario, on[0], given.seed)
            else:
                found = replay(scenario, on[0], given.budget, [int(n) for n in given.path.split(",")])
    _tell(str(found or "every promise was kept"))
    return int(found is not None)


if __name__ == "__main__":
    sys.exit(main())
