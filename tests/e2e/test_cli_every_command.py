"""Every command, one line each: in a pipe and in a terminal, as JSON, and with what can be wrong.

The table is the whole command list; a command that isn't in it fails a test. A pipe and a terminal are tried
with the installed program. What can be wrong is tried in this process, as one command takes half a second to
start; with DURABLE_FULL=1 with the installed program, too.
"""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer.main
from pydantic import ConfigDict, TypeAdapter

from durable_core.cli.app import app, execute
from durable_core.cli.documents import checkpoints, doing, runs
from durable_core.workflow import Workflow
from tests.e2e.programs import operated
from tests.e2e.test_cli import Terminal, environment
from tests.waiting import full

PROGRAM = Path(operated.__file__)
DURABLE = Path(sys.executable).parent / "durable"
PATIENCE_S = 60  # a limit for a machine that has hung
MODULE = "operated"
OUT_OF_REACH = "postgresql://127.0.0.1:1/nowhere?connect_timeout=1"


class Command(NamedTuple):
    """One use of a command.

    Attributes:
        args: As they are typed.
        says: What is in its output, as a pattern.
        document: What `--json` gives; None where it is another test's.
        code: Its exit code.
        named: Which argument is a run's or a session's id, if any.
        found: Whether it looks for what is there: in a store without it, it is a mistake.
        corrupt: The exit code where the run's header is damaged.
    """

    args: str
    says: str
    document: Any = None
    code: int = 0
    named: str | None = None
    found: bool = True
    corrupt: int | None = None

    @property
    def name(self) -> str:
        words = self.args.split()
        return " ".join(words[: 2 if words[0] in ("checkpoint", "workflow") else 1])


RUN = "june-1"
COMMANDS = (
    Command("list", r"june-2 .*FAILED", runs.ListDocument, found=False, corrupt=6),
    Command("show june-1", r"extract", runs.ShowDocument, named=RUN, corrupt=6),
    Command("show june-2 --step refuse", "ConnectionError", runs.ShowStepDocument, named="june-2"),
    Command("show june-1 --step extract[3]", "no title", runs.ShowItemDocument, named=RUN),
    Command("show august --in-doubt", r"deadly .*in doubt", runs.ShowDocument, named="august"),
    Command("watch june-1", r"june-1: COMPLETED", None, named=RUN, corrupt=6),
    Command("report june-1 -o page.html", r"page\.html", runs.ReportDocument, named=RUN, corrupt=6),
    Command("cost june-1", "DynamoDB writes", runs.CostDocument, named=RUN, corrupt=6),
    Command("cost --estimate month --items 1000", "1,000 items", runs.CostDocument),
    Command(f"run {MODULE}:month --run-id june-3", "5", doing.ResultDocument, found=False),
    Command(f"run {MODULE}:month --run-id june-3 --detach", "june-3", doing.RecordedDocument, found=False),
    Command(
        f"resume june-2 --workflows {MODULE}",
        "the line to bob is dead",
        runs.ErrorDocument,
        1,
        "june-2",
        corrupt=6,
    ),
    Command(f"resume june-1 --workflows {MODULE}", "5", doing.ResultDocument, named=RUN, corrupt=6),
    Command("signal july approval true", r"\w", doing.SignalDocument, named="july"),
    Command("cancel july", "july: cancelled", doing.RecordedDocument, named="july", corrupt=6),
    Command("skip june-2 refuse --output 1", "refuse skipped", doing.SkipDocument, named="june-2"),
    Command(
        f"fork june-2 --dry-run --workflows {MODULE}",
        r"first +refuse",
        doing.ForkDocument,
        named="june-2",
        corrupt=6,
    ),
    Command("prune june-1 --yes", "Pruned 1 run", doing.PruneDocument, named=RUN, corrupt=6),
    Command("prune --keep 0 --dry-run", "june-2", doing.PruneDocument, found=False),
    Command(f"recover --workflows {MODULE}", "august", doing.RecoverDocument, 1, found=False),
    Command("verify june-1", "june-1: completed, sound", doing.VerifyDocument, named=RUN, corrupt=6),
    Command("verify --all", "june-2: failed, sound", doing.VerifyDocument, found=False, corrupt=6),
    Command("export june-1", r"root hash", doing.ExportDocument, named=RUN, corrupt=6),
    Command("import may.durable", "may: completed", doing.ImportDocument, found=False),
    Command("init --dry-run", "everything is there", doing.InitDocument, found=False),
    Command("doctor", "a record was put and taken back", doing.DoctorDocument, found=False),
    Command("checkpoint list", "crew-1", checkpoints.SessionsDocument, found=False),
    Command("checkpoint list crew-1", "look-2", checkpoints.CheckpointsDocument, named="crew-1"),
    Command("checkpoint show crew-1", "look-2", checkpoints.CheckpointDocument, named="crew-1"),
    Command(
        "checkpoint prune crew-1 --keep 1 --yes",
        "Removed 2",
        checkpoints.CheckpointPruneDocument,
        named="crew-1",
    ),
    Command("checkpoint resume crew-1", "step: look-2", checkpoints.ResumePointDocument, named="crew-1"),
    Command("workflow resume crew-1", "step: look-2", checkpoints.ResumePointDocument, named="crew-1"),
)
# What serves until it is stopped has tests of its own.
ELSEWHERE = {"worker", "local-cloud"}

ALL = pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.args.replace(" ", "_"))
NAMED = pytest.mark.parametrize(
    "command", [one for one in COMMANDS if one.named], ids=lambda command: command.args.replace(" ", "_")
)


class Done(NamedTuple):
    code: int
    out: str
    err: str


Durable = Callable[..., Done]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a run of every sort."""
    folder = tmp_path_factory.mktemp("made")
    killed = subprocess.run(
        [sys.executable, PROGRAM, "sqlite:///durable.db"], cwd=folder, check=False, timeout=PATIENCE_S
    )
    assert killed.returncode == -9
    for args in (("export", "may"), ("prune", "may", "--yes")):
        assert installed(folder, *args).code == 0
    sqlite3.connect(folder / "durable.db").execute("PRAGMA wal_checkpoint(TRUNCATE)").connection.close()
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """The same store for one test alone, beside the workflows."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    shutil.copy(PROGRAM, tmp_path / f"{MODULE}.py")
    return tmp_path


@pytest.fixture
def durable(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Durable]:
    """Runs a command in that folder."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("DURABLE_LOG_LEVEL", "critical")
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(sys.modules[Workflow.__module__], "_registered", {})
    sys.modules.pop(MODULE, None)

    def run(*args: str) -> Done:
        if full():
            return installed(folder, *args)
        capsys.readouterr()
        code = execute(args)
        return Done(code, *capsys.readouterr())

    yield run
    sys.modules.pop(MODULE, None)


def installed(folder: Path, *args: str) -> Done:
    width = {"COLUMNS": os.environ["COLUMNS"]} if "COLUMNS" in os.environ else {}
    done = subprocess.run(
        [DURABLE, *args],
        cwd=folder,
        env=environment(DURABLE_LOG_LEVEL="critical", **width),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        timeout=PATIENCE_S,
        encoding="utf-8",
    )
    return Done(done.returncode, done.stdout, done.stderr)


def commands_of(group: Any, above: str = "") -> set[str]:
    found: set[str] = set()
    for name, command in group.commands.items():
        below = hasattr(command, "commands")
        found |= commands_of(command, f"{above}{name} ") if below else {f"{above}{name}"}
    return found


def strict(document: Any) -> TypeAdapter[Any]:
    """Refuses names that aren't documented, and other types."""
    seen: set[int] = set()

    def close(kind: Any) -> None:
        if id(kind) in seen:
            return
        seen.add(id(kind))
        if hasattr(kind, "__total__"):
            kind.__pydantic_config__ = ConfigDict(extra="forbid", strict=True)
            for field in kind.__annotations__.values():
                close(field)
        for inner in getattr(kind, "__args__", ()):
            close(inner)

    for module in (runs, doing, checkpoints):
        for kind in vars(module).values():
            close(kind)
    return TypeAdapter(document)


def test_the_table_has_every_command() -> None:
    listed = {command.name for command in COMMANDS} | ELSEWHERE
    assert listed == commands_of(typer.main.get_command(app))


@ALL
def test_a_pipe_gets_plain_whole_lines(folder: Path, command: Command) -> None:
    done = installed(folder, *command.args.split())
    assert done.code == command.code, done
    assert re.search(command.says, done.out + done.err), done
    assert "\x1b" not in done.out + done.err
    assert "Traceback" not in done.err


@ALL
def test_a_terminal_gets_the_same(folder: Path, command: Command) -> None:
    with Terminal(folder, *command.args.split(), columns=100, DURABLE_LOG_LEVEL="critical") as terminal:
        seen = terminal.read_until(None)
        assert terminal.process.wait(PATIENCE_S) == command.code, seen
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", seen)
    assert re.search(command.says, plain), seen
    assert "cli/app.py" not in seen  # of a traceback of ours; those of steps are shown


@pytest.mark.parametrize(
    "command",
    [one for one in COMMANDS if one.document],
    ids=lambda command: command.args.replace(" ", "_"),
)
def test_json_is_one_document_of_the_documented_shape(durable: Durable, command: Command) -> None:
    done = durable(*command.args.split(), "--json")
    assert done.code == command.code, done
    strict(command.document).validate_json(done.out)


def test_watching_as_json_gives_a_document_a_line(durable: Durable) -> None:
    lines = durable("watch", "june-1", "--json").out.splitlines()
    looks = [strict(runs.WatchLine).validate_json(line) for line in lines]
    assert looks[-1]["status"] == "COMPLETED"
    assert {step["step_id"] for look in looks for step in look["changed"]} == {
        "part/bill", "part#2/bill", "extract",
    }  # fmt: skip


def test_a_shape_is_refused_when_a_name_is_missing_new_or_of_another_type() -> None:
    """The check itself can fail."""
    sound = {"run_id": "r", "name": "n", "event_id": "e"}
    adapter = strict(doing.SignalDocument)
    adapter.validate_python(sound)
    for wrong in ({**sound, "new": 1}, {"run_id": "r", "name": "n"}, {**sound, "name": 1}):
        with pytest.raises(ValueError, match="validation error"):
            adapter.validate_python(wrong)


@NAMED
@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
def test_an_id_that_is_not_there_is_told_in_a_line(durable: Durable, command: Command, as_json: bool) -> None:
    args = ["nobody" if word == command.named else word for word in command.args.split()]
    done = durable(*args, *["--json"] * as_json)
    assert done.code == 3, done
    if as_json:
        error = strict(runs.ErrorDocument).validate_json(done.out)["error"]
        assert error["message"]
        assert error["remedy"]
    else:
        assert done.out == ""
        assert re.fullmatch(r"Error: .*nobody.*\n", done.err), done


@NAMED
def test_a_beginning_that_two_have_names_both(durable: Durable, folder: Path, command: Command) -> None:
    with sqlite3.connect(folder / "durable.db") as connection:
        for table, column in (("runs", "run_id"), ("agent_checkpoints", "session_id")):
            columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
            changed = {"id": "id || '!'", column: f"{column} || '-x'"}
            copied = ", ".join(changed.get(one, one) for one in columns)
            query = f"INSERT INTO {table} SELECT {copied} FROM {table} WHERE {column} = ?"  # noqa: S608
            connection.execute(query, (command.named,))
    short = str(command.named)[:-1] if command.named != "july" else "jul"
    done = durable(*[short if word == command.named else word for word in command.args.split()])
    assert done.code == 2, done
    assert {str(command.named), f"{command.named}-x"} <= set(re.split("[ ,:.]+", done.err))
    assert "Write more of the id" in done.err


@ALL
def test_a_store_with_nothing_in_it_is_no_mistake_but_for_what_is_looked_for(
    durable: Durable, folder: Path, command: Command
) -> None:
    (folder / "durable.db").unlink()
    assert durable("init").code == 0
    done = durable(*command.args.split())
    assert done.code == (3 if command.found else 0), done
    assert "Traceback" not in done.err


@ALL
def test_a_store_that_is_out_of_reach_is_told_with_its_code(durable: Durable, command: Command) -> None:
    done = durable(*command.args.split(), "--store", OUT_OF_REACH)
    assert done.code == 7, done
    assert re.search("^(Error: |fail )", done.out + done.err, re.M), done
    assert "Traceback" not in done.err


@ALL
def test_a_file_that_is_no_store_is_told_with_its_code(
    durable: Durable, folder: Path, command: Command
) -> None:
    (folder / "durable.db").write_bytes(b"no database" * 500)
    done = durable(*command.args.split())
    assert done.code in (6, 7), done
    assert re.search("^(Error: |fail )", done.out + done.err, re.M), done
    assert "Traceback" not in done.err


@ALL
@pytest.mark.parametrize("damage", ["status = 'BLUE'", "created_at = 7", "counts = '[]', error = '{'"])
def test_a_damaged_header_is_never_a_defect(
    durable: Durable, folder: Path, command: Command, damage: str
) -> None:
    """It is told with the run's id, and whatever else can be shown is."""
    with sqlite3.connect(folder / "durable.db") as connection:
        connection.execute(f"UPDATE runs SET {damage} WHERE run_id = ?", (command.named or RUN,))  # noqa: S608
    done = durable(*command.args.split())
    assert done.code in (command.code, 1, 2, 3, 6), done
    assert "Traceback" not in done.err
    if command.corrupt and damage == "status = 'BLUE'":
        assert done.code == command.corrupt, done


@pytest.mark.parametrize("name", sorted(commands_of(typer.main.get_command(app))))
def test_the_help_of_each_command_has_an_example_and_fits_a_narrow_terminal(
    durable: Durable, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    done = durable(*name.split(), "--help")
    assert done.code == 0
    assert re.search(rf"Example: durable {name}\b", " ".join(done.out.split())), done.out
    assert max(map(len, done.out.splitlines())) <= 60


def test_completion_offers_commands_options_and_the_ids_in_the_store(folder: Path) -> None:
    def offered(line: str) -> list[str]:
        words = line.split(" ")
        done = subprocess.run(
            [DURABLE],
            cwd=folder,
            env=environment(
                _DURABLE_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=str(len(words) - 1)
            ),
            capture_output=True,
            check=False,
            timeout=PATIENCE_S,
            encoding="utf-8",
        )
        return done.stdout.split()

    assert "report" in offered("durable re")
    assert "--in-doubt" in offered("durable show --in")
    assert offered("durable show june") == ["june-2", "june-1"]
    (folder / "durable.db").write_bytes(b"no database")
    assert offered("durable show j") == []
    shell = {name: value for name, value in os.environ.items() if name != "SHELL"}
    done = subprocess.run(
        [DURABLE, "--show-completion", "bash"], env=shell, capture_output=True, check=True, encoding="utf-8"
    )
    assert "_DURABLE_COMPLETE=complete_bash" in done.stdout
