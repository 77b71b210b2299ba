"""What the README shows works: every block of Python and every command in it is run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PATIENCE_S = 60

# What the examples leave to the reader, so that they stay short: a bank, and who wants to be written to.
LEFT_TO_THE_READER = """
class Bank:
    paid = {}
    def find(self, key):
        return self.paid.get(key)
    def pay(self, customer, key):
        return self.paid.setdefault(key, f"receipt of {customer}")

bank = Bank()

def wants_mail(customer):
    return customer != "bob"

def send_mail(customer):
    pass
"""
# By workflow: the inputs that it is run with, and what has to come out.
RUNS = {
    "month_end": ({"customers": ["ann"]}, None),
    "close_account": ({"customer": "ann"}, "receipt of ann"),
    "extract_all": ({"manifest": "documents.jsonl"}, 3),
    "price_all": ({"items": ["a", "bc"]}, 3),
    "score_all": ({"names": ["a", "bc"]}, 27),
    "count_words": ({"manifest": "documents.jsonl"}, 15),
}
# Waits for an hour: the commands below it start it, signal it and let it go on.
DRIVEN_BY_COMMANDS = {"order", "statements"}
FAILS = "durable run statements:statements"  # on purpose, to be settled by the commands below it
# Commands that need what isn't here, or never end; what is in the scripts is run by CI and by hand.
NOT_RUN = (
    "scripts/", "durable init --store 'dynamodb://", "durable worker", "durable local-cloud", "sqlite3 ",
    "pip install", "export ",
)  # fmt: skip
# Their blocks are run by tests of their own: tests/e2e/test_readme_walkthroughs.py, on every store, and
# tests/crashes/test_pytest_plugin.py.
RUN_ELSEWHERE = re.compile(r"^## (?:Agents: |Test that your ).*?(?=^## )", re.M | re.S)


class Block(NamedTuple):
    language: str
    text: str

    @property
    def module(self) -> str:
        """The name of the file in its first line."""
        named = re.match(r"# (\w+)\.py\n", self.text)
        assert named, f"a block without a name:\n{self.text}"
        return named[1]


BLOCKS = [
    Block(*found)
    for found in re.findall(
        r"^```(\w*)\n(.*?)^```$", RUN_ELSEWHERE.sub("", (ROOT / "README.md").read_text("utf-8")), re.M | re.S
    )
]
PROGRAMS = [block for block in BLOCKS if block.language == "python"]
COMMANDS = [
    re.sub(r"\s+# .*", "", line)
    for block in BLOCKS
    if block.language == "sh"
    for line in block.text.splitlines()
    if not line.startswith(NOT_RUN)
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for block in PROGRAMS:
        (tmp_path / f"{block.module}.py").write_text(LEFT_TO_THE_READER + block.text, encoding="utf-8")
    (tmp_path / "documents.jsonl").write_text(
        "".join(f'{{"id": "d{n}", "text": "Title {n}. And the rest."}}\n' for n in (1, 2, 3)), "utf-8"
    )
    return tmp_path


def run(folder: Path, command: str) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-c", command],
        cwd=folder,
        env={
            **os.environ,
            "PATH": path,
            "PYTHONPATH": str(ROOT),
            "DURABLE_STORE": "sqlite:///runs.db",
            "DURABLE_LOG_LEVEL": "error",
        },
        capture_output=True,
        check=False,
        timeout=PATIENCE_S,
        encoding="utf-8",
    )
    assert done.returncode == int(command.startswith(FAILS)), f"{command}: {done.stderr}"
    return done.stdout


def test_every_block_is_of_a_language_that_is_checked() -> None:
    assert {block.language for block in BLOCKS} == {"python", "sh"}


@pytest.mark.parametrize("block", PROGRAMS, ids=lambda block: block.module)
def test_every_workflow_in_the_readme_runs(block: Block, folder: Path) -> None:
    workflows = re.findall(r"@workflow\n(?:async )?def (\w+)", block.text)
    assert workflows, "a block that is never run proves nothing"
    for name in set(workflows) - DRIVEN_BY_COMMANDS:
        inputs, wanted = RUNS[name]
        command = f"durable run {block.module}:{name} --json --input '{json.dumps(inputs)}'"
        document = json.loads(run(folder, command))
        assert document["status"] == "COMPLETED"
        assert wanted is None or document["output"] == wanted


def test_every_command_in_the_readme_works_in_its_order(folder: Path) -> None:
    # Nobody is here to be asked.
    seen = [
        run(folder, f"{command} --yes" if command == "durable prune june" else command)
        for command in COMMANDS
    ]
    told = "".join(seen)
    assert "3 of 3 items done" in told
    assert "invalid literal for int() with base 10: 'twelve'" in told  # the failed step's error
    assert "29\n" in seen  # what its run came to once that was settled
    assert "<title>may" in (folder / "may.html").read_text("utf-8")
    assert (folder / "titles.txt").read_text("utf-8").splitlines() == ["Title 1", "Title 2", "Title 3"]
