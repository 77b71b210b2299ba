"""How often the body of a step runs that never succeeds: as the README says, in real processes."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from durable_core import NotDone, Retry, UsageError, step
from tests.e2e.programs.nursery import ROOT, Nursery, open_nursery
from tests.e2e.programs.witness import bodies, outcome

HEADING = "| the body, each time | "
# The table's columns: semantics, retries after the first attempt. With retries `at_most_once` has a verifier.
COLUMNS = (("at_least_once", 0), ("at_least_once", 2), ("at_most_once", 0), ("at_most_once", 2))
ROWS = {"raises": "STEP_FAILED", "times out": "STEP_FAILED", "is killed": "CRASH_LIMIT_REACHED"}


def told() -> dict[tuple[str, str, int], str]:
    """The README's table, by ending, semantics and retries."""
    lines = iter((ROOT / "README.md").read_text("utf-8").splitlines())
    next(line for line in lines if line.startswith(HEADING))
    next(lines)
    found = {}
    for _ in ROWS:
        ending, *cells = (cell.strip() for cell in next(lines).strip("|").split("|"))
        for (semantics, retries), cell in zip(COLUMNS, cells, strict=True):
            found[ending, semantics, retries] = cell
    return found


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    yield from open_nursery()


@pytest.mark.slow
@pytest.mark.parametrize("ending", ROWS)
@pytest.mark.parametrize(("semantics", "retries"), COLUMNS)
def test_a_body_that_never_succeeds_runs_as_often_as_the_readme_says(
    ending: str, semantics: str, retries: int, nursery: Nursery, tmp_path: Path
) -> None:
    run = (tmp_path / "runs.db", "r1", tmp_path, semantics, ending, retries)
    while (code := nursery.run("budgets", *run)) == -signal.SIGKILL:
        assert ending == "is killed"
    assert code == 1
    cell = told()[ending, semantics, retries]
    number = re.match(r"\d+", cell)
    assert number is not None
    assert len(bodies(tmp_path / "bodies")) == int(number[0])
    assert len({line.key for line in bodies(tmp_path / "bodies")}) == 1
    in_doubt = "StepInDoubt" in cell
    assert in_doubt == ((ending, semantics, retries) == ("is killed", "at_most_once", 0))
    assert outcome(tmp_path)["cause"] == ("STEP_IN_DOUBT" if in_doubt else ROWS[ending])


def test_retries_of_an_at_most_once_step_need_a_verifier() -> None:
    async def pay() -> None:
        pass

    with pytest.raises(UsageError, match="verify"):
        step(semantics="at_most_once", retry=Retry(max_attempts=3))(pay)
    step(semantics="at_most_once", retry=Retry(max_attempts=3), verify=lambda _: NotDone())(pay)
