"""`durable checkpoint` and `durable workflow resume`, called in this process."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from durable_core import (
    Checkpointer,
    CheckpointingConfig,
    CorruptRecord,
    DurableWorkflowExecutor,
    Inputs,
    RunFailed,
)
from durable_core.cli.app import execute
from tests.e2e.test_agent_sessions import crew, failing

ON = CheckpointingConfig(enabled=True)


class Report(BaseModel):
    title: str
    scores: dict[str, float]


class Called:
    """One command: its exit code and what it wrote."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code = code
        self.out = out
        self.err = err

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Cli:
    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.url = f"sqlite:///{folder / 'agents.db'}"
        self._capsys = capsys

    def __call__(self, *args: str) -> Called:
        self._capsys.readouterr()
        code = execute([*args, "--store", self.url])
        return Called(code, *self._capsys.readouterr())


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.chdir(tmp_path)
    return Cli(tmp_path, capsys)


@pytest.fixture
def checkpointer(cli: Cli) -> Iterator[Checkpointer]:
    with Checkpointer(ON, cli.url) as opened:
        opened.save(
            "crew-7", "researcher", "research", {"facts": [1, 2]}, {"tries": 2}, inputs=Inputs(("x",))
        )
        opened.save("crew-7", "analyst", "weigh", Report(title="t" * 3000, scores={"a": 0.5}))
        yield opened


# ---- Resume ----


@pytest.mark.parametrize("command", ["checkpoint", "workflow"])
def test_resume_tells_session_agent_step_time_and_format_one_a_line(
    cli: Cli, checkpointer: Checkpointer, command: str
) -> None:
    latest = checkpointer.load_latest("crew-7")
    assert latest is not None
    at = latest.created_at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    called = cli(command, "resume", "crew-7")
    assert called.code == 0
    assert called.out.splitlines() == [
        "session: crew-7",
        "agent: analyst",
        "step: weigh",
        f"created at: {at}",
        "format: json+gzip",
        "next: run your agents again; load_latest('crew-7') gives them this state",
    ]


def test_resume_as_json_has_the_same(cli: Cli, checkpointer: Checkpointer) -> None:
    found = cli("workflow", "resume", "crew-7", "--json").json
    assert (found["session_id"], found["agent_id"], found["step_id"]) == ("crew-7", "analyst", "weigh")
    assert (found["format"], found["seq"], found["dry_run"]) == ("json+gzip", 2, False)
    assert "load_latest" in found["next"]
    assert "state" not in found


def test_a_dry_run_prints_the_state_and_changes_nothing(cli: Cli, checkpointer: Checkpointer) -> None:
    called = cli("checkpoint", "resume", "crew-7", "--dry-run", "--from-step", "research")
    assert called.code == 0
    assert json.loads(called.out.partition("state:\n")[2]) == {"facts": [1, 2]}
    shown = cli("checkpoint", "resume", "crew-7", "--dry-run", "--json").json
    assert shown["state"]["scores"] == {"a": 0.5}
    assert checkpointer.stats("crew-7").latest_seq == 2


def test_from_step_makes_it_the_resume_point_and_undo_takes_that_back(
    cli: Cli, checkpointer: Checkpointer
) -> None:
    called = cli("checkpoint", "resume", "crew-7", "--from-step", "research")
    assert called.code == 0
    assert "step: research\n" in called.out
    assert called.out.splitlines()[-1].startswith(
        "undo: durable checkpoint resume crew-7 --undo --store sqlite"
    )
    latest = checkpointer.load_latest("crew-7")
    assert latest is not None
    assert (latest.step_id, latest.state) == ("research", {"facts": [1, 2]})
    assert "step: weigh\n" in cli("checkpoint", "resume", "crew-7", "--undo").out
    latest = checkpointer.load_latest("crew-7")
    assert latest is not None
    assert latest.step_id == "weigh"
    again = cli("checkpoint", "resume", "crew-7", "--undo")
    assert (again.code, again.err.startswith("Error: ")) == (2, True)


def test_states_of_classes_that_only_the_agents_have_are_shown_and_copied(
    cli: Cli, checkpointer: Checkpointer
) -> None:
    program = "import sys; from durable_core.cli import main; sys.exit(main())"
    for args in (["show", "crew-7"], ["resume", "crew-7", "--from-step", "weigh"], ["list", "crew-7"]):
        command = [sys.executable, "-c", program, "checkpoint", *args, "--store", cli.url, "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    latest = checkpointer.load_latest("crew-7")
    assert latest is not None
    assert latest.seq == 3
    assert isinstance(latest.state, Report)


def test_a_session_of_a_run_that_is_not_over_is_gone_on_with_by_resuming_that(cli: Cli) -> None:
    async def run() -> None:
        async with DurableWorkflowExecutor(cli.url, checkpointing=ON) as executor:
            await executor.run(crew, run_id="done", session_id="s-done", topic="x")
            with pytest.raises(RunFailed):
                await executor.run(failing, run_id="broken", session_id="s-broken")

    asyncio.run(run())
    broken = cli("workflow", "resume", "s-broken").out.splitlines()[-1]
    assert broken.startswith("next: durable resume broken --workflows MODULE --store sqlite:///")
    assert cli("workflow", "resume", "s-done").out.splitlines()[-1] == "next: nothing, run done is COMPLETED"


FLOW = """
from durable_core import Context, step, workflow

@step
def double(n: int) -> int:
    return 2 * n

@workflow
async def twice(ctx: Context, n: int) -> int:
    return await ctx.step(double, await ctx.step(double, n))
"""


def test_runs_of_the_command_line_save_checkpoints_where_durable_toml_enables_them(
    cli: Cli, tmp_path: Path
) -> None:
    (tmp_path / "flow.py").write_text(FLOW)
    run = ("run", "flow.py:twice", "--input", '{"n": 3}', "--session", "s-1")
    assert cli(*run).code == 0
    assert cli("checkpoint", "list", "s-1").code == 3
    Path("durable.toml").write_text("[checkpointing]\nenabled = true\n")
    assert cli(*run).code == 0
    found = cli("checkpoint", "list", "s-1", "--json").json["checkpoints"]
    assert [one["step_id"] for one in found] == ["double#2", "double"]
    Path("durable.toml").write_text("[checkpointing]\nenabled = 'yes'\n")
    refused = cli(*run)
    assert (refused.code, "durable.toml" in refused.err) == (2, True)


# ---- List and show ----


def test_sessions_and_their_checkpoints_are_listed(cli: Cli, checkpointer: Checkpointer) -> None:
    checkpointer.save("other", "a", "s", 1)
    sessions = cli("checkpoint", "list", "--json").json
    assert [(one["session_id"], one["checkpoints"]) for one in sessions["sessions"]] == [
        ("crew-7", 2),
        ("other", 1),
    ]
    assert "2 sessions" in cli("checkpoint", "list").out
    assert "and there are more: --limit" in cli("checkpoint", "list", "--limit", "1").out
    found = cli("checkpoint", "list", "crew-7", "--json").json
    assert [(one["seq"], one["agent_id"]) for one in found["checkpoints"]] == [
        (2, "analyst"),
        (1, "researcher"),
    ]
    assert "state" not in found["checkpoints"][0]
    lines = cli("checkpoint", "list", "crew-7", "--agent", "researcher").out.splitlines()
    assert lines[1].split()[:3] == ["1", "researcher", "research"]
    assert lines[-1] == "1 checkpoint"


def test_a_checkpoint_is_shown_with_state_inputs_and_metadata(cli: Cli, checkpointer: Checkpointer) -> None:
    text = cli("checkpoint", "show", "crew-7", "--step", "res").out
    assert "tries" in text
    assert '"facts"' in text
    assert "Inputs:" in text
    found = cli("checkpoint", "show", "crew-7", "--seq", "1", "--json").json["checkpoint"]
    assert found["state"] == {"facts": [1, 2]}
    assert found["inputs"] == {"args": ["x"], "kwargs": {}, "seed": None}
    assert found["metadata"] == {"tries": 2}


def test_what_is_shown_can_not_move_the_cursor(cli: Cli, checkpointer: Checkpointer) -> None:
    checkpointer.save("crew-7", "a", "s", "\x1b[2J\u202e\ud800", {"note": "\x1b]0;x\x07"})
    for args in (["show", "crew-7"], ["resume", "crew-7", "--dry-run"], ["show", "crew-7", "--json"]):
        called = cli("checkpoint", *args)
        assert called.code == 0
        assert "\x1b" not in called.out
        assert called.out.isprintable() or all(line.isprintable() for line in called.out.splitlines())


def test_a_damaged_checkpoint_is_marked_and_the_others_are_listed(
    cli: Cli, checkpointer: Checkpointer
) -> None:
    with closing(sqlite3.connect(cli.url.removeprefix("sqlite:///"))) as file:
        file.execute("UPDATE agent_checkpoints SET state_blob = substr(state_blob, 1, 40) WHERE seq = 2")
        file.commit()
    listed = cli("checkpoint", "list", "crew-7")
    assert listed.code == 6
    assert "CORRUPT" in listed.out
    assert "research" in listed.out
    assert cli("checkpoint", "show", "crew-7").code == 6
    assert cli("checkpoint", "show", "crew-7", "--seq", "1").code == 0
    resumed = cli("workflow", "resume", "crew-7", "--json")
    assert (resumed.code, resumed.json["error"]["code"]) == (6, "CORRUPT_RECORD")
    assert cli("checkpoint", "resume", "crew-7", "--from-step", "research").code == 0


@pytest.mark.parametrize("column", ["metadata", "created_at", "format", "state_hash", "size_bytes"])
def test_a_column_that_is_damaged_is_told_of_where_loading_would_tell_of_it(
    column: str, cli: Cli, checkpointer: Checkpointer
) -> None:
    with closing(sqlite3.connect(cli.url.removeprefix("sqlite:///"))) as file:
        file.execute(f"UPDATE agent_checkpoints SET {column} = '{{' WHERE seq = 2")  # noqa: S608 - our own names
        file.commit()
    with pytest.raises(CorruptRecord):
        checkpointer.load_latest("crew-7")
    assert cli("checkpoint", "list", "crew-7").code == 6
    assert cli("checkpoint", "show", "crew-7").code == 6
    resumed = cli("workflow", "resume", "crew-7")
    assert resumed.code == 6
    assert resumed.err.count("checkpoint 2 of session 'crew-7'") == 1
    assert cli("checkpoint", "resume", "crew-7", "--from-step", "research").code == 0


# ---- Prune ----


def test_pruning_tells_what_it_removed(cli: Cli, checkpointer: Checkpointer) -> None:
    for number in range(5):
        checkpointer.save("crew-7", "analyst", str(number), number)
    would = cli("checkpoint", "prune", "crew-7", "--keep", "2", "--dry-run", "--json").json
    assert (would["removed"], would["kept"], would["dry_run"]) == (4, 3, True)
    assert (
        cli("checkpoint", "prune", "crew-7", "--keep", "2", "--yes").out
        == "Removed 4 of session crew-7; 3 kept\n"
    )
    assert (
        cli("checkpoint", "prune", "crew-7", "--keep", "0", "--yes").out
        == "Removed 0 of session crew-7; 3 kept\n"
    )
    assert checkpointer.load_latest("crew-7", "researcher") is not None


def test_pruning_keeps_what_the_settings_of_the_folder_say(cli: Cli, checkpointer: Checkpointer) -> None:
    Path("durable.toml").write_text("[checkpointing]\nretention_per_session = 1\n")
    for number in range(5):
        checkpointer.save("crew-7", "analyst", str(number), number)
    assert cli("checkpoint", "prune", "crew-7", "--yes").out == "Removed 5 of session crew-7; 2 kept\n"
    Path("durable.toml").write_text("[checkpointing]\nretention = 1\n")
    called = cli("checkpoint", "prune", "crew-7", "--yes")
    assert called.code == 2
    assert "retention" in called.err


# ---- What isn't there ----


@pytest.mark.parametrize(
    ("args", "code", "told"),
    [
        (("resume", "crew-8"), 3, "Nearest: crew-7"),
        (("list", "crw-7"), 3, "Nearest: crew-7"),
        (("prune", "zzz", "--yes"), 3, "durable checkpoint list"),
        (("show", ""), 3, "durable checkpoint list"),
        (("resume", "../x"), 3, "durable checkpoint list"),
        (("resume", "crew-7", "--from-step", "resarch"), 3, "Nearest: research"),
        (("resume", "crew-7", "--from-step", ""), 3, "list crew-7"),
        (("show", "crew-7", "--step", "wiegh"), 3, "Nearest: weigh"),
        (("show", "crew-7", "--seq", "9"), 3, "list crew-7"),
        (("show", "crew-7", "--seq", "1", "--step", "weigh"), 2, "Give one of them"),
        (("resume", "crew-7", "--undo", "--dry-run"), 2, "--undo"),
        (("resume", "crew-7", "--undo"), 2, "no resume point"),
    ],
)
def test_what_is_not_there_is_told_with_the_nearest_names(
    cli: Cli, checkpointer: Checkpointer, args: tuple[str, ...], code: int, told: str
) -> None:
    called = cli("checkpoint", *args)
    assert (called.code, called.out) == (code, "")
    assert told in called.err
    assert called.err.count("\n") == 1
    as_json = cli("checkpoint", *args, "--json")
    assert as_json.code == code
    assert told in f"{as_json.json['error']['message']} {as_json.json['error']['remedy']}"


def test_the_beginning_of_an_id_is_enough_when_only_one_begins_so(
    cli: Cli, checkpointer: Checkpointer
) -> None:
    assert cli("checkpoint", "resume", "cre").code == 0
    checkpointer.save("crew-70", "a", "s", 1)
    assert "session: crew-7\n" in cli("checkpoint", "resume", "crew-7").out  # exact
    several = cli("checkpoint", "resume", "crew")
    assert (several.code, "crew-7, crew-70" in several.err) == (2, True)


def test_a_store_that_is_not_there_is_not_made(cli: Cli, tmp_path: Path) -> None:
    assert cli("checkpoint", "list").code == 3
    assert list(tmp_path.iterdir()) == []
