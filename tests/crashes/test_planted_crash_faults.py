"""Each fault of the engine or a journal, planted alone, is found at some crash point.

So the crash points can fail. A fault whose text is no longer there fails the test: it can't outlive its code.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.crashes.faults import FAULTS, OFTEN
from tests.crashes.killing import ALL
from tests.waiting import full

ROOT = Path(__file__).parents[2]
LIMIT_S = 900


def test_every_planted_fault_is_found_at_a_crash_point() -> None:
    names = [fault.name for fault in FAULTS] if full() else list(OFTEN)
    done = subprocess.run(
        [sys.executable, "-m", "tests.crashes.planting", *names],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    found = dict(json.loads(line) for line in done.stdout.splitlines())
    assert sorted(found) == sorted(names)
    assert [name for name, where in found.items() if where is None] == []
    assert len(names) >= 12


def test_every_fault_has_a_name_of_its_own_and_an_act_that_there_is() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    assert {fault.scenario for fault in FAULTS} <= set(ALL)
    assert set(OFTEN) <= {fault.name for fault in FAULTS}
