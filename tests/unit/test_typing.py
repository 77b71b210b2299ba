"""Type checkers know what steps, branches and workflows take and give: wrong arguments are errors."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tests" / "typing"
ACCEPTED, REFUSED = FOLDER / "accepted.py", FOLDER / "refused.py"


def marked() -> set[int]:
    """The lines that must be refused."""
    return {
        number for number, line in enumerate(REFUSED.read_text().splitlines(), 1) if line.endswith("# error")
    }


@cache
def mypy() -> dict[str, dict[int, str]]:
    """Errors by file and line, as mypy finds them."""
    command = [
        sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--hide-error-context",
        "--disable-error-code=no-untyped-def", "--no-warn-unreachable", str(ACCEPTED), str(REFUSED),
    ]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    found: dict[str, dict[int, str]] = {}
    for line in done.stdout.splitlines():
        match = re.fullmatch(r"(.+?):(\d+): error: (.+)", line)
        if match:
            found.setdefault(Path(match[1]).name, {})[int(match[2])] = match[3]
    return found


@cache
def pyright() -> dict[str, dict[int, str]]:
    """Errors by file and line, as pyright finds them."""
    command = [sys.executable, "-m", "pyright", "--outputjson", "-p", str(FOLDER)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    found: dict[str, dict[int, str]] = {}
    for one in json.loads(done.stdout)["generalDiagnostics"]:
        if one["severity"] == "error":
            line = one["range"]["start"]["line"] + 1
            found.setdefault(Path(one["file"]).name, {})[line] = one["message"]
    return found


CHECKERS = {"mypy": mypy, "pyright": pyright}


@pytest.mark.slow
@pytest.mark.parametrize("checker", CHECKERS)
def test_right_calls_are_accepted_and_their_results_known(checker: str) -> None:
    assert CHECKERS[checker]().get(ACCEPTED.name, {}) == {}


@pytest.mark.slow
@pytest.mark.parametrize("checker", CHECKERS)
def test_each_wrong_call_is_an_error_and_nothing_else_is(checker: str) -> None:
    found = CHECKERS[checker]().get(REFUSED.name, {})
    assert sorted(marked() - set(found)) == [], "not refused"
    assert {line: found[line] for line in set(found) - marked()} == {}, "refused beside"
    assert len(marked()) >= 40


def test_the_package_says_that_it_is_typed() -> None:
    assert (ROOT / "durable_core" / "py.typed").exists()
