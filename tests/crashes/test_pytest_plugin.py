"""The pytest plugin finds what the README says, in a project of somebody else's."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FLOW = """
from durable_core import Context, step, workflow

ran = []

@step
async def add(number: int) -> int:
    ran.append(number)
    return number + 1

@workflow
async def adding(ctx: Context, number: int) -> int:
    return await ctx.step(add, await ctx.wait_for_event("go", type=int) + number)
"""


def test_the_readmes_example_finds_its_bug(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    section = text.partition("## Test that your workflow survives")[2].partition("\n## ")[0]
    for code in re.findall(r"```python\n(.*?)```", section, re.DOTALL):
        (tmp_path / code.splitlines()[0].removeprefix("# ")).write_text(code)

    told = said_of(tmp_path)

    failed = re.findall(r"^FAILED \S+::(\S+)", told, re.MULTILINE)
    assert "test_careless[3-commit-pay-killed-before]" in failed
    assert "['ann', 'ann', 'bob'] == ['ann', 'bob']" in told
    assert {name.partition("[")[0] for name in failed} == {"test_careless"}
    assert len(re.findall(r"test_careful\[\S+ PASSED", told)) >= 30


def test_all_crash_points_are_tried_in_one_test(tmp_path: Path) -> None:
    (tmp_path / "test_flow.py").write_text(
        FLOW
        + """
from durable_core import DurableWorkflowExecutor

def test_all(assert_resumable):
    calls = []
    assert_resumable(adding, {"number": 1}, events={"go": 3}, before_each=lambda: calls.append(1))
    assert len(calls) >= 20

def test_what_is_found_is_told(assert_resumable):
    def ran_once():
        assert len(ran) == 1, ran
    try:
        assert_resumable(adding, {"number": 1}, events={"go": 3}, before_each=ran.clear, after_each=ran_once)
    except AssertionError as error:
        assert "commit-add-killed-before" in str(error) and "crash points of adding" in str(error)
    else:
        raise RuntimeError("nothing was found")

def test_a_store_goes_by_the_clock(memory_store, fake_clock):
    executor = DurableWorkflowExecutor(memory_store, clock=fake_clock).blocking
    fake_clock.advance(3600)
    began = executor.start(adding, run_id="r1", number=1).created_at
    executor.signal("r1", "go", 2)
    assert executor.run(adding, run_id="r1", number=1).output == 4
    assert began == "2026-01-01T01:00:00.000Z"
"""
    )
    assert "3 passed" in said_of(tmp_path)


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("@crash_points(adding, {'number': 1})\ndef test_it():\n    pass\n", "no parameter `crash_point`"),
        ("def test_it(crash_point):\n    pass\n", "for tests that are marked by crash_points"),
    ],
)
def test_a_mark_and_its_fixture_belong_together(code: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "test_flow.py").write_text(f"{FLOW}\nfrom durable_core.testing import crash_points\n{code}")
    assert told in said_of(tmp_path)


def said_of(folder: Path) -> str:
    """What pytest says there, with the plugin as it is installed."""
    command = [sys.executable, "-m", "pytest", "-rA", "-v", "-p", "no:asyncio", "-W", "error", "."]
    command += ["-p", "no:cacheprovider"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120).stdout
