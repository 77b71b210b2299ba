"""The walkthroughs of the README run as they are written, on every store."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from durable_core.cli.app import execute
from durable_core.store import Store
from durable_core.stores import open_store
from tests.cloud import Cloud
from tests.e2e.programs.nursery import ROOT
from tests.stores import WITH_DYNAMODB, Place

URL = '"sqlite:///agents.db"'


def blocks(language: str) -> list[str]:
    """The blocks of code in the README's section about agents."""
    text = (ROOT / "README.md").read_text("utf-8")
    section = text.partition("## Agents: save, resume, replay")[2].partition("\n## ")[0]
    return re.findall(rf"```{language}\n(.*?)```", section, re.DOTALL)


@pytest.fixture(params=WITH_DYNAMODB)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "dynamodb":
        cloud: Cloud = request.getfixturevalue("cloud")
        opened = open_store(cloud.url(cloud.new_table(), cloud.shared_bucket))
    else:
        url = request.getfixturevalue("postgres_url") if request.param == "postgres" else None
        opened = Place(request.param, tmp_path, url=url).store()
    yield opened
    asyncio.run(opened.close())


def run(code: str, store: Store) -> dict[str, Any]:
    """Runs a block, with the store under test in the place of its URL; gives what it has defined."""
    assert URL in code
    # As in a module that is started: its classes and functions are looked up there.
    names: dict[str, Any] = {"__name__": "walkthrough", "STORE": store}
    exec(compile(code.replace(URL, "STORE"), "README.md", "exec", dont_inherit=True), names)  # noqa: S102 - ours
    return names


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_walkthrough_runs_as_written(store: Store, number: int) -> None:
    code = blocks("python")
    assert len(code) == 3
    run(code[number], store)


def test_the_crew_goes_on_after_the_agent_that_was_saved_last(store: Store) -> None:
    names = run(blocks("python")[1], store)
    called: list[str] = []

    def failing_once(agent_id: str) -> Any:
        inner = names["CREW"][agent_id]

        def agent(state: dict[str, Any]) -> Any:
            called.append(agent_id)
            if called == ["researcher", "analyst", "coder"]:
                raise KeyboardInterrupt
            return inner(state)

        return agent

    expected = names["run_crew"]("whole", task="x")
    names["CREW"].update({agent_id: failing_once(agent_id) for agent_id in names["CREW"]})
    with pytest.raises(KeyboardInterrupt):
        names["run_crew"]("cut", task="x")
    assert names["run_crew"]("cut", task="x") == expected
    assert called == ["researcher", "analyst", "coder", "coder"]


DIES = "def code(state):\n    import os, signal\n    os.kill(os.getpid(), signal.SIGKILL)\n\n\ndef other("
FAILS = "def research(state):\n    raise SystemExit(9)\n\n\ndef other("


@pytest.mark.slow
def test_the_crew_goes_on_after_a_kill(tmp_path: Path) -> None:
    code = blocks("python")[1]

    def crew(text: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "crew.py").write_text(text)
        command = [sys.executable, "crew.py"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert crew(code.replace("def code(", DIES)).returncode == -signal.SIGKILL
    done = crew(code.replace("def research(", FAILS))  # it isn't run again
    assert (done.returncode, "program" in done.stdout) == (0, True), done.stderr


def test_the_commands_of_the_walkthrough_are_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code = blocks("python")[1]
    store = open_store("sqlite:///agents.db")
    run(code, store)
    (commands,) = blocks("sh")
    first, *rest = [line.partition("#")[0].split() for line in commands.splitlines()]
    monkeypatch.setenv(*first[1].split("=", 1))
    for words in rest:
        capsys.readouterr()
        assert execute([*words[1:], "--json"]) == 0, words
        assert json.loads(capsys.readouterr().out)["session_id"] == "crew-8"
    names = run(code, store)  # from the research on, once more
    latest = names["checkpointer"].list("crew-8")
    assert [one.step_id for one in latest] == ["code", "analyse", "research", "code", "analyse", "research"]
    asyncio.run(store.close())
