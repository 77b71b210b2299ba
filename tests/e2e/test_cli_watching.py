"""Following runs from another process: in a terminal, in a pipe, as JSON; and what only terminals get."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.programs import operated
from tests.e2e.test_cli import (
    FLOWS,
    PATIENCE_S,
    Terminal,
    durable,
    environment,
    eventually,
    started,
    until_in,
)

PROGRAM = Path(operated.__file__)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "flows.py").write_text(FLOWS, encoding="utf-8")
    return tmp_path


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)


def test_a_terminal_shows_what_a_run_does_until_it_ends(folder: Path) -> None:
    with started(folder, "run", "flows:gated", "--run-id", "r"):
        until_in(folder, "gate")
        with Terminal(folder, "watch", "r", "--every", "0.1") as terminal:
            terminal.read_until(b"gate  running")
            (folder / "go").touch()
            seen = plain(terminal.read_until(None))
            assert terminal.process.wait(PATIENCE_S) == 0
    assert "r  RUNNING" in seen
    assert "1 committed, 1 started" in seen
    assert seen.rstrip().endswith("r: COMPLETED, 2 committed")


def test_a_pipe_gets_a_line_for_each_change_and_the_runs_exit_code(folder: Path) -> None:
    with started(folder, "run", "flows:gated", "--run-id", "r"):
        until_in(folder, "gate")
        with started(folder, "watch", "r", "--every", "0.1") as watcher:
            assert watcher.stdout is not None
            lines = [watcher.stdout.readline().split("  ")[1:] for _ in range(2)]
            assert lines == [["first", "COMMITTED\n"], ["gate", "STARTED (running)\n"]]
            (folder / "go").touch()
            rest, _ = watcher.communicate(timeout=PATIENCE_S)
            assert watcher.returncode == 0
    assert re.fullmatch(r"\S+ \S+Z  gate  COMMITTED\nr: COMPLETED, 2 committed\n", rest), rest
    durable(folder, "run", "flows:failing", "--run-id", "f")
    assert durable(folder, "watch", "f").returncode == 1


def test_a_map_that_is_under_way_is_told_with_its_items(folder: Path) -> None:
    with started(folder, "run", "flows:mapped", "--run-id", "r"):
        eventually(lambda: "4 of 10 items" in durable(folder, "show", "r").stdout, "4 items are done")
        with Terminal(folder, "watch", "r", "--every", "0.1", columns=60) as terminal:
            seen = plain(terminal.read_until(b"4 of 10 items done, 1 failed"))
    assert max(map(len, seen.splitlines())) <= 60


def test_ctrl_c_ends_the_watching_and_not_the_run(folder: Path) -> None:
    with started(folder, "run", "flows:gated", "--run-id", "r") as run:
        until_in(folder, "gate")
        with Terminal(folder, "watch", "r", "--every", "0.1") as terminal:
            terminal.read_until(b"gate  running")
            terminal.type(b"\x03")
            assert "Traceback" not in terminal.read_until(None)
            assert terminal.process.wait(PATIENCE_S) == 130
        (folder / "go").touch()
        assert run.wait(PATIENCE_S) == 0


def test_a_run_that_is_pruned_while_it_is_watched_is_told(folder: Path) -> None:
    with started(folder, "run", "flows:gated", "--run-id", "r"):
        until_in(folder, "gate")
        with started(folder, "watch", "r", "--every", "0.1", "--json") as watcher:
            assert watcher.stdout is not None
            first = json.loads(watcher.stdout.readline())
            assert (first["status"], first["counts"]) == ("RUNNING", {"COMMITTED": 1, "STARTED": 1})
            assert durable(folder, "cancel", "r").returncode == 0
            rest, _ = watcher.communicate(timeout=PATIENCE_S)
            assert watcher.returncode == 1
    assert json.loads(rest.splitlines()[-1])["status"] == "CANCELLED"


def test_a_listing_that_is_watched_is_drawn_anew_until_ctrl_c(folder: Path) -> None:
    durable(folder, "run", "flows:failing", "--run-id", "one")
    with Terminal(folder, "list", "--watch", "--every", "0.2") as terminal:
        terminal.read_until(b"1 run")
        durable(folder, "run", "flows:failing", "--run-id", "two")
        terminal.read_until(b"2 runs")
        terminal.process.send_signal(signal.SIGINT)
        assert "Traceback" not in terminal.read_until(None)
        assert terminal.process.wait(PATIENCE_S) == 130
    for more in ((), ("--json",)):
        refused = durable(folder, "list", "--watch", *more)
        assert refused.returncode == 2
        assert "--watch is for terminals" in refused.stdout + refused.stderr


def test_branches_are_a_tree_on_a_terminal_and_whole_ids_in_a_pipe(folder: Path) -> None:
    subprocess.run(
        [sys.executable, PROGRAM, "sqlite:///durable.db"],
        cwd=folder,
        env=environment(),
        check=False,
        timeout=PATIENCE_S,
    )
    with Terminal(folder, "show", "june-1", columns=120, NO_COLOR="1") as terminal:
        seen = plain(terminal.read_until(None))
    tree = [line.split("  COMMITTED")[0].rstrip() for line in seen.partition("STEP ")[2].splitlines()[1:]]
    assert tree == ["part/", "  bill", "part#2/", "  bill", "extract"]
    piped = durable(folder, "show", "june-1").stdout.partition("STEP ")[2].splitlines()[1:]
    assert [line.split()[0] for line in piped] == ["part/bill", "part#2/bill", "extract"]


def test_only_the_steps_in_doubt_are_shown_where_that_is_asked(folder: Path) -> None:
    subprocess.run(
        [sys.executable, PROGRAM, "sqlite:///durable.db"],
        cwd=folder,
        env=environment(),
        check=False,
        timeout=PATIENCE_S,
    )
    found = json.loads(durable(folder, "show", "august", "--in-doubt", "--json").stdout)["steps"]
    assert [(step["step_id"], step["state"]) for step in found] == [("deadly", "in doubt")]
    assert json.loads(durable(folder, "show", "june-1", "--in-doubt", "--json").stdout)["steps"] == []
    assert durable(folder, "show", "august", "--in-doubt", "--step", "deadly").returncode == 2
