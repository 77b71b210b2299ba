"""`durable verify`, `export`, `import`, `doctor` and `run --replay-only`, as the installed program."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from durable_core import Context, DurableWorkflowExecutor, workflow
from durable_core.cli.app import execute
from tests.damages import reckon, run_everything
from tests.e2e.test_cli import Terminal
from tests.waiting import full

ROOT = Path(__file__).parents[2]
FLOWS = "from tests.damages import everything\n"
UNREACHABLE = "postgresql://127.0.0.1:1/nowhere"
RUNS = ("june", "june-2", "may")


class Done(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)


Durable = Callable[..., Done]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store of three runs."""
    folder = tmp_path_factory.mktemp("prepared")
    (folder / "flows.py").write_text(FLOWS, encoding="utf-8")

    async def made() -> None:
        async with DurableWorkflowExecutor(f"sqlite:///{folder / 'runs.db'}") as executor:
            for run_id in RUNS:
                await run_everything(executor, run_id)

    asyncio.run(made())
    return folder


@pytest.fixture
def folder(prepared: Path, tmp_path: Path) -> Path:
    shutil.copytree(prepared, tmp_path / "here")
    return tmp_path / "here"


def command() -> str:
    found = shutil.which("durable", path=str(Path(sys.executable).parent))
    assert found is not None
    return found


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS")}
    return {
        **kept,
        "PYTHONPATH": str(ROOT),
        "DURABLE_STORE": "sqlite:///runs.db",
        "DURABLE_LOG_LEVEL": "error",
    }


def program(folder: Path, *args: str) -> Done:
    """The installed program, with its output in a pipe."""
    done = subprocess.run(
        [command(), *args],
        cwd=folder,
        env=environment(),
        capture_output=True,
        check=False,
        timeout=60,
        encoding="utf-8",
    )
    assert "Traceback" not in done.stderr
    return Done(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def durable(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Durable:
    """The program, or, which is ten times as fast, what it calls."""
    if full():
        return lambda *args: program(folder, *args)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    for name, value in environment().items():
        if name.startswith("DURABLE"):
            monkeypatch.setenv(name, value)

    def run(*args: str) -> Done:
        capsys.readouterr()
        code = execute(args)
        done = Done(code, *capsys.readouterr())
        assert "Traceback" not in done.err
        return done

    return run


def damage(folder: Path, statement: str) -> None:
    with closing(sqlite3.connect(folder / "runs.db")) as file, file:
        file.execute(statement)


# ---- The way of a run from one store to another ----


def test_the_program_verifies_a_run_exports_it_takes_it_in_elsewhere_and_replays_it(folder: Path) -> None:
    durable, laptop = partial(program, folder), ("--store", "sqlite:///laptop.db")
    verified = durable("verify", "may", "--json").document
    (told,) = verified["runs"]
    assert (told["status"], told["is_sound"], told["findings"], verified["damaged"]) == (
        "COMPLETED",
        True,
        [],
        0,
    )
    exported = durable("export", "may", "--json").document
    assert (exported["path"], exported["root_hash"]) == ("may.durable", told["root_hash"])
    assert (folder / "may.durable").stat().st_size == exported["size_bytes"]
    taken = durable("import", "may.durable", *laptop, "--json").document
    assert taken["root_hash"] == told["root_hash"]
    replayed = durable("run", "flows:everything", "--replay-only", "--run-id", "ma", *laptop)
    assert (replayed.code, replayed.err, replayed.out[:1]) == (0, "", '"')


def test_what_was_taken_in_is_the_same_there(durable: Durable, folder: Path) -> None:
    laptop = ("--store", "sqlite:///laptop.db")
    assert durable("export", "may").code == 0
    tried = durable("import", "may.durable", "--dry-run", *laptop)
    assert tried.out.startswith("could be taken in: may: completed")
    assert not (folder / "laptop.db").exists()
    assert durable("import", "may.durable", *laptop).code == 0
    assert durable("verify", "--all", *laptop).out == durable("verify", "may").out
    (run,) = durable("verify", "may", "--json").document["runs"]
    assert (
        durable("show", "may", "--root", "--json", *laptop).document["run"]["root_hash"] == run["root_hash"]
    )
    assert f"root hash   {run['root_hash']}" in durable("show", "may", "--root").out
    assert durable("show", "may", "--root", "--step", "give").code == 2
    at_home = durable("run", "flows:everything", "--replay-only", "--run-id", "may")
    elsewhere = durable("run", "flows:everything", "--replay-only", "--run-id", "may", *laptop)
    assert (at_home.code, at_home.out) == (0, elsewhere.out)
    forked = durable("fork", "may", "--workflows", "flows", "--dry-run", *laptop)
    assert re.search("kept +give\n", forked.out)


@pytest.mark.parametrize("args", [("verify", "may"), ("doctor",), ("export", "may", "--force")])
def test_a_terminal_shows_the_same_lines(folder: Path, args: tuple[str, ...]) -> None:
    piped = program(folder, *args)
    with Terminal(folder, *args, DURABLE_STORE="sqlite:///runs.db", columns=40) as terminal:
        shown = terminal.read_until(None)
        assert terminal.process.wait() == piped.code == 0
    without_sizes = re.compile("[0-9.]+ (GiB|bytes|ms)")
    assert "\x1b" not in shown
    assert without_sizes.sub("", shown.replace("\r\n", "\n")) == without_sizes.sub("", piped.out)


# ---- What goes wrong ----


@pytest.mark.parametrize(
    ("args", "code", "told"),
    [
        (("verify",), 2, "Give run ids, or --all"),
        (("verify", "--all", "may"), 2, "Give run ids, or --all"),
        (("verify", "nobody"), 3, "there is no such run"),
        (("verify", "ju"), 2, "june-2"),
        (("verify", "../june"), 2, "can't be a run id"),
        (("verify", "may", "--store", "sqlite:///none.db"), 3, "there is no store"),
        (("verify", "may", "--store", UNREACHABLE), 7, "can't be reached"),
        (("export", "nobody"), 3, "there is no such run"),
        (("export", "jun"), 2, "june-2"),
        (("export", "may", "-o", "flows.py"), 2, "is there already"),
        (("export", "may", "-o", "none/may"), 7, "can't be written"),
        (("export", "may", "--store", "sqlite:///none.db"), 3, "there is no store"),
        (("export", "may", "--store", UNREACHABLE), 7, "can't be reached"),
        (("import", "none.durable"), 2, "can't be read"),
        (("import", "."), 2, "can't be read"),
        (("import", "flows.py"), 6, "no whole exported run"),
        (("import",), 2, "Missing argument"),
        (("doctor", "--store", UNREACHABLE), 7, "fail"),
        (("doctor", "--store", "ftp://x"), 2, "ftp"),
        (("run", "flows:everything", "--replay-only"), 2, "--run-id"),
        (
            ("run", "flows:everything", "--replay-only", "--run-id", "may", "--input", "{}"),
            2,
            "recorded inputs",
        ),
        (("run", "flows:everything", "--replay-only", "--run-id", "nobody"), 3, "there is no such run"),
        (("run", "flows:everything", "--replay-only", "--run-id", "ju"), 2, "june-2"),
    ],
)
def test_mistakes_are_told_with_the_way_on(
    durable: Durable, args: tuple[str, ...], code: int, told: str
) -> None:
    done = durable(*args)
    assert done.code == code, done
    assert told in done.out + done.err
    if code != 2 or "Missing" not in told:
        as_json = durable(*args, "--json")
        assert as_json.code == code
        assert isinstance(as_json.document, dict)


def test_an_import_over_a_run_or_out_of_reach_is_refused(durable: Durable) -> None:
    assert durable("export", "may").code == 0
    for where, code, told in (
        ("sqlite:///runs.db", 2, "a run of that id"),
        (UNREACHABLE, 7, "can't be reached"),
    ):
        done = durable("import", "may.durable", "--store", where)
        assert (done.code, told in done.err) == (code, True)


def test_an_empty_store_is_sound(durable: Durable) -> None:
    assert durable("init", "--store", "sqlite:///empty.db").code == 0
    done = durable("verify", "--all", "--store", "sqlite:///empty.db")
    assert (done.code, done.out, done.err) == (0, "", "0 verified, 0 damaged\n")
    assert durable("doctor", "--store", "sqlite:///empty.db").code == 0


def test_damage_is_told_of_each_run_and_hides_no_other(durable: Durable, folder: Path) -> None:
    damage(folder, "UPDATE checkpoints SET status = 'DONE' WHERE run_id = 'june' AND step_id = 'give'")
    damage(
        folder,
        "UPDATE checkpoints SET step_id = CAST(x'ff1b5b' AS TEXT) WHERE run_id = 'may' AND step_id = 'give'",
    )
    damage(folder, "UPDATE runs SET crashes = 'many' WHERE run_id = 'may'")
    done = durable("verify", "--all")
    assert done.code == 6
    assert "june-2: completed, sound" in done.out
    assert "june: completed, 1 damaged" in done.out
    assert "may: corrupt, 2 damaged" in done.out
    assert "\x1b" not in done.out
    assert done.err == "3 verified, 2 damaged\n"
    document = durable("verify", "june", "may", "--json").document
    assert document["damaged"] == 2
    assert {one["kind"] for run in document["runs"] for one in run["findings"]} == {
        "step-unknown",
        "step-unreadable",
        "header-unreadable",
    }
    assert [run["root_hash"] for run in document["runs"]][1] is None
    refused = durable("export", "june")
    assert (refused.code, "give" in refused.err) == (6, True)
    assert not (folder / "june.durable").exists()


def test_a_page_of_the_file_that_is_damaged_hides_no_other_run(durable: Durable, folder: Path) -> None:
    path = folder / "runs.db"
    data = bytearray(path.read_bytes())
    at = data.index(b"junestumble")  # in a page of steps
    data[at - at % 4096 : at - at % 4096 + 100] = bytes(100)
    path.write_bytes(data)
    done = durable("verify", "--all")
    assert done.code == 6
    assert "store-damaged" in done.out
    assert done.out.count("completed") == 3


def test_what_is_repaired_is_shown_before_and_then_gone(durable: Durable, folder: Path) -> None:
    orphans = [folder / "runs.db.blobs" / "runs" / "may" / f"{'0' * 20}-{'a' * 64}"]
    for orphan in orphans:
        orphan.write_bytes(b"left")
        os.utime(orphan, (0, 0))
    found = durable("verify", "may")
    assert (found.code, "leftover  orphan-blob" in found.out) == (0, True)
    done = durable("verify", "may", "--repair")
    assert done.out.startswith(f"may: delete the blob runs/may/{orphans[0].name}\n")
    assert "(repaired)" in done.out
    assert not orphans[0].exists()
    assert "orphan" not in durable("verify", "--all", "--repair").out


def test_replaying_a_changed_workflow_names_the_step(durable: Durable, folder: Path) -> None:
    (folder / "later.py").write_text(
        "from durable_core import workflow\nfrom tests.damages import give\n\n\n"
        "@workflow(name='everything')\nasync def everything(ctx, size: int):\n"
        "    await ctx.step(give, 5)\n    await ctx.step(give.with_options(name='given'), 6)\n",
        encoding="utf-8",
    )
    before = (folder / "runs.db").read_bytes()
    done = durable("run", "later:everything", "--replay-only", "--run-id", "may")
    assert (done.code, "no recorded outcome" in done.err, "'given'" in done.err) == (3, True, True)
    assert (folder / "runs.db").read_bytes() == before


@pytest.mark.parametrize("name", ["verify", "export", "import", "doctor", "run"])
def test_the_help_has_an_example_that_names_the_command(durable: Durable, name: str) -> None:
    done = durable(name, "--help")
    assert done.code == 0
    assert f"Example: durable {name} " in done.out


# ---- Killed ----


@workflow(name="many")
async def many(ctx: Context, steps: int) -> int:
    for number in range(steps):
        await ctx.step(reckon, number)
    return steps


def rows_in(path: Path) -> int:
    """How many steps are there by now; none while there is no such table."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as file:
        return int(file.execute("SELECT count(*) FROM checkpoints").fetchone()[0])


def test_an_import_that_is_killed_is_repeated_or_pruned(folder: Path) -> None:
    """By SIGKILL, with some of its records written."""

    async def made() -> str:
        async with DurableWorkflowExecutor("memory://") as executor:
            await executor.run(many, run_id="large", steps=3000)
            return (await executor.export_run("large", folder / "large.durable")).root_hash

    root, drawn, cut_short = asyncio.run(made()), random.Random(3), 0
    for number in range(12 if full() else 3):
        store = folder / f"laptop-{number}.db"
        args = ("import", "large.durable", "--store", f"sqlite:///{store.name}")
        least = drawn.randrange(1, 2500)
        with subprocess.Popen([command(), *args], cwd=folder, env=environment()) as process:
            while process.poll() is None:
                with suppress(sqlite3.OperationalError):  # not there yet
                    if rows_in(store) >= least:
                        process.kill()
                        break
                with suppress(subprocess.TimeoutExpired):
                    process.wait(0.003)
        shown = json.loads(program(folder, "list", "--json", *args[2:]).out)["runs"]
        if [run["status"] for run in shown] == ["PRUNING"]:
            cut_short += 1
            if number % 2:
                assert program(folder, "prune", "large", "--yes", *args[2:]).code == 0
            assert program(folder, *args).code == 0
        (found,) = program(folder, "verify", "large", "--json", *args[2:]).document["runs"]
        assert (found["root_hash"], found["findings"]) == (root, [])
    assert cut_short > 0
