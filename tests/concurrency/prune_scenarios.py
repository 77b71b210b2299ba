"""Runs that are pruned while others drive them, resume them, or begin their ids anew."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from durable_core.records import CANCELLED, COMPLETED, ENDED, TOMBSTONE
from tests.concurrency.actors import drives, prunes
from tests.concurrency.promises import RUN
from tests.concurrency.scenarios import failed_run, header_of, old_record, pure_first, retried, run_it, zombie
from tests.concurrency.simulation import Scenario, World


def pruned(
    status: str, pruners: str, drivers: str, *old: str, has_zombie: bool = False
) -> Callable[[World], None]:
    """A run that is over is pruned, and its id begun anew; Z, who was driving it, may still be at it."""

    def prepare(world: World) -> None:
        world.journal.headers[RUN] = replace(header_of(pure_first), status=status, fence=2)
        for step_id in old:
            world.journal.records[RUN, step_id] = old_record(step_id, fence=2)
        if has_zombie:
            world.process("Z", zombie)
        for name in pruners:
            world.process(name, lambda process: prunes(process, _is_over))
        for name in drivers:
            world.process(name, lambda process: drives(process, partial(run_it, process, pure_first, None)))

    return prepare


def _is_over(world: World) -> bool:
    header = world.header()
    return header is not None and header.status in ENDED


def pruned_or_resumed(world: World) -> None:
    """A FAILED run is resumed by one, and pruned by others."""
    failed_run(world)
    world.process("A", lambda process: drives(process, partial(process.executor.resume, RUN, retried)))
    for name in "PQ":
        world.process(name, lambda process: prunes(process, lambda _: True))


PRUNE_SCENARIOS = (
    Scenario(
        name="prune",
        prepare=pruned(COMPLETED, "PQ", "", "p", "s1"),
        steps=(),
        budgets=({"crash": 1, "lost": 1}, {"late": 1, "pause": 1}, {"vanish": 1}, {"outage": 1}, {"skew": 1}),
        may_end=(TOMBSTONE,),
        may_complete=False,
        prunes=True,
        reuses=True,
    ),
    Scenario(
        name="prune, reuse",
        prepare=pruned(COMPLETED, "PQ", "AB", "p", "s1"),
        steps=("p", "s1"),
        budgets=({}, {"crash": 1}, {"late": 1}, {"pause": 1}, {"skew": 1, "lost": 1}, {"outage": 1}),
        prunes=True,
        reuses=True,
    ),
    Scenario(
        name="prune, zombie, reuse",
        prepare=pruned(CANCELLED, "P", "A", has_zombie=True),
        steps=("p", "s1"),
        budgets=({}, {"lost": 1}, {"late": 1}, {"pause": 1}),
        extra=1,
        prunes=True,
        reuses=True,
    ),
    Scenario(
        name="prune or resume",
        prepare=pruned_or_resumed,
        steps=("flaky", "s2"),
        budgets=({"crash": 1}, {"late": 1}, {"lost": 1, "pause": 1}, {"skew": 1}),
        may_end=(TOMBSTONE,),
        resumes=True,
        prunes=True,
    ),
)
