"""`durable prune`, called in this process: what it shows, asks, deletes and ends with."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import re
import sqlite3
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from durable_core import Context, DurableWorkflowExecutor, RunFailed, step, workflow
from durable_core.cli.ages import parse_age
from durable_core.cli.app import execute
from durable_core.errors import UsageError


@step
async def say(word: str) -> str:
    if word == "fail":
        raise ValueError(word)
    return word


@workflow
async def saying(ctx: Context, word: str) -> str:
    return await ctx.step(say, word)


class Done(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)


Cli = Callable[..., Done]


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Runs a command in an empty folder, with nobody at a terminal."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DURABLE_LOG_LEVEL", "error")
    monkeypatch.setattr(sys, "stdin", io.StringIO())

    def run(*args: str) -> Done:
        capsys.readouterr()
        code = execute(args)
        return Done(code, *capsys.readouterr())

    return run


def make(*run_ids: str, active: str | None = None) -> None:
    """Runs in `durable.db`; those whose id begins with f have failed."""

    async def made() -> None:
        async with DurableWorkflowExecutor() as executor:
            for run_id in run_ids:
                with contextlib.suppress(RunFailed):
                    word = "fail" if run_id.startswith("f") else "x"
                    await executor.run(saying, run_id=run_id, word=word)
            if active is not None:
                await executor.start(saying, run_id=active, word="x")

    asyncio.run(made())


def listed(cli: Cli) -> set[str]:
    return {run["run_id"] for run in cli("list", "--json").document["runs"]}


def change(statement: str) -> None:
    with contextlib.closing(sqlite3.connect("durable.db")) as store, store:
        assert store.execute(statement).rowcount > 0


def test_what_goes_is_shown_first_and_a_dry_run_stops_there(cli: Cli) -> None:
    make("r1", "f1", active="a1")
    shown = cli("prune", "--keep", "0", "--dry-run")
    lines = shown.out.splitlines()
    assert (shown.code, shown.err) == (0, "")
    assert lines[0].split() == ["RUN", "WORKFLOW", "STATUS", "ENDED", "RECORDS", "BLOBS", "SIZE"]
    assert {line.split()[0] for line in lines[1:-1]} == {"r1", "f1"}
    assert lines[-1].startswith("2 runs, 2 records, 0 blobs, ")
    assert listed(cli) == {"r1", "f1", "a1"}
    done = cli("prune", "--keep", "0", "--yes")
    assert (done.code, done.out) == (0, f"{shown.out}Pruned {lines[-1]}.\n")
    assert listed(cli) == {"a1"}
    assert cli("prune", "--keep", "0", "--yes").out == "nothing to prune\n"


def test_a_program_gets_one_document(cli: Cli) -> None:
    make("r1", "f1", active="a1")
    plan = cli("prune", "--status", "failed", "--json", "--dry-run").document
    done = cli("prune", "--status", "failed", "--json", "--yes")
    assert done.code == 0
    assert done.document == plan | {"dry_run": False}
    (run,) = done.document["runs"]
    assert run.keys() == {
        "run_id",
        "workflow",
        "status",
        "ended_at",
        "fence",
        "records",
        "blobs",
        "size_bytes",
        "damage",
    }
    assert (run["run_id"], run["status"], run["records"]) == ("f1", "FAILED", 1)
    assert (done.document["count"], done.document["left"], done.document["swept"]) == (1, [], None)
    swept = cli("prune", "--sweep", "--json").document["swept"]
    assert (swept["dry_run"], swept["orphans"]) == (False, 0)


def test_runs_are_named_by_the_beginnings_of_their_ids(cli: Cli) -> None:
    make("june-1", "june-2", "may-1")
    assert cli("prune", "may", "june-2", "--yes").code == 0
    assert listed(cli) == {"june-1"}


def test_a_named_run_that_is_not_over_stays_and_gives_its_exit_code(cli: Cli) -> None:
    make("r1", active="a1")
    done = cli("prune", "a1", "r1", "--yes")
    assert done.code == 4
    assert "Left: a1 (PENDING): it isn't over; cancel it first" in done.out
    assert listed(cli) == {"a1"}
    assert cli("prune", "a1", "--yes", "--json").document["left"][0]["run_id"] == "a1"
    assert cli("prune", "--keep", "0", "--yes").code == 0


@pytest.mark.parametrize(
    ("args", "code", "told"),
    [
        ((), 2, "nothing says which runs are to go"),
        (("--dry-run",), 2, "nothing says which runs are to go"),
        (("--yes",), 2, "nothing says which runs are to go"),
        (("--keep", "0"), 2, "nobody is there to be asked"),
        (("--keep", "0", "--json"), 2, "nobody is there to be asked"),
        (("--keep", "-1", "--yes"), 2, "--keep"),
        (("--keep", "many", "--yes"), 2, "--keep"),
        *(
            (("--older-than", age, "--yes"), 2, "--older-than")
            for age in ("", "7", "7 d", "-1d", "1e9d", "9999999d", "1y", "d", "1d2h", "\u0663d")
        ),
        (("--older-than", "999999d", "--yes"), 2, "older_than"),
        (("--status", "running", "--yes"), 2, "a run that isn't over is never pruned"),
        (("--status", "done", "--yes"), 2, "no status of a run that is over"),
        (("--workflow", "a/b", "--yes"), 2, "workflow name"),
        (("r1", "--keep", "1", "--yes"), 2, "no other condition"),
        (("--damaged", "--yes"), 2, "--damaged is for runs that are named"),
        (("--keep", "0", "--damaged", "--yes"), 2, "--damaged is for runs that are named"),
        (("nope", "--yes"), 3, "no such run"),
        (("r1", "nope", "--yes"), 3, "no such run"),
        (("../r1", "--yes"), 3, "no such run"),
        (("r", "--yes"), 2, "several runs begin with"),
        (("r1", "--yes", "--store", "sqlite:///none.db"), 3, "there is no store"),
    ],
)
def test_a_mistake_deletes_nothing(cli: Cli, args: tuple[str, ...], code: int, told: str) -> None:
    make("r1", "r2")
    done = cli("prune", *args)
    assert done.code == code
    assert told in (done.document["error"]["message"] if "--json" in args else done.err)
    assert listed(cli) == {"r1", "r2"}
    assert not Path("none.db").exists()


@pytest.mark.parametrize(
    ("text", "age"),
    [
        ("0d", timedelta()),
        ("45s", timedelta(seconds=45)),
        ("90m", timedelta(minutes=90)),
        ("12h", timedelta(hours=12)),
        ("30d", timedelta(days=30)),
        ("2w", timedelta(weeks=2)),
    ],
)
def test_an_age_is_a_number_and_a_unit(text: str, age: timedelta) -> None:
    assert parse_age(text) == age
    with pytest.raises(UsageError):
        parse_age(f"{text} ")


def test_a_half_pruned_run_is_shown_as_such_and_finished(cli: Cli) -> None:
    make("r1")
    change("UPDATE runs SET status = 'PRUNING', owner = 'gone', lease_until_ms = 9e15, owner_process = '{}'")
    assert cli("show", "r1", "--json").document["run"]["status"] == "PRUNING"
    assert re.search(r"^pruner +process", cli("show", "r1").out, re.MULTILINE)
    assert cli("list", "--status", "pruning", "--json").document["count"] == 1
    left = cli("prune", "r1", "--yes")
    assert (left.code, "is pruning it" in left.out) == (4, True)
    change("UPDATE runs SET lease_until_ms = 1")
    assert re.search(r"^pruner +.*whose lease is over: prune the run", cli("show", "r1").out, re.MULTILINE)
    assert cli("prune", "--older-than", "30d", "--yes").code == 0
    assert listed(cli) == set()


def test_a_damaged_step_goes_with_its_run(cli: Cli) -> None:
    make("r1")
    change("UPDATE checkpoints SET status = 'LOST', attempts = 'not json', output_hash = 'x', detail = '['")
    assert cli("prune", "r1", "--yes").code == 0
    assert listed(cli) == set()


def test_a_run_with_an_unknown_status_is_left_and_told_of(cli: Cli) -> None:
    make("r1", "r2")
    change("UPDATE runs SET status = 'LOST' WHERE run_id = 'r1'")
    assert cli("prune", "r1", "--yes").code == 6
    assert cli("prune", "--keep", "0", "--yes").code == 0
    assert listed(cli) == {"r1"}


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        ("status = 'LOST'", "its status is 'LOST'; whether it is over can't be told"),
        ("counts = x'00'", "its counts is of type bytes"),
        ("workflow = CAST(x'ff' AS TEXT)", "its workflow isn't UTF-8"),
        ("fence = 'two'", "its fence is of type str"),
        (
            "lease_until_ms = 'a'",
            "its lease_until_ms is of type str; whether somebody drives it can't be told",
        ),
        ("status = 'RUNNING', crashes = 'a'", "its crashes is of type str; it isn't over: RUNNING"),
    ],
    ids=["status", "bytes", "text", "fence", "lease", "active"],
)
def test_a_run_whose_header_cannot_be_read_goes_if_that_is_asked_for(
    cli: Cli, damage: str, told: str
) -> None:
    make("r1", "r2")
    change(f"UPDATE runs SET {damage} WHERE run_id = 'r1'")  # noqa: S608 - constants
    assert cli("prune", "r1", "--yes").code == 6
    cli("prune", "--keep", "1", "--yes")
    shown = cli("prune", "r1", "--damaged", "--dry-run")
    assert (shown.code, listed(cli)) == (0, {"r1", "r2"})
    assert f"Damaged: r1: {told}\n" in shown.out
    done = cli("prune", "r1", "--damaged", "--yes")
    assert (done.code, "Pruned 1 run, 1 record" in done.out) == (0, True)
    assert listed(cli) == {"r2"}
    assert cli("verify", "--all").code == 0
    make("r1")
    assert cli("show", "r1", "--json").document["run"]["status"] == "COMPLETED"


def test_a_sweep_tells_what_it_took(cli: Cli) -> None:
    make("r1")
    cli("prune", "r1", "--yes")
    assert cli("prune", "--sweep", "--dry-run").out == (
        "Would sweep 0 late records, 0 orphan blobs; 0 tombstones will go in a month, 0 went.\n"
    )
    change("UPDATE runs SET updated_at = '2020-01-01T00:00:00.000Z'")
    done = cli("prune", "--sweep")
    assert (done.code, done.out) == (
        0, "Swept 0 late records, 0 orphan blobs; 1 tombstone will go in a month, 0 went.\n",
    )  # fmt: skip
    change("UPDATE runs SET expires_at_s = 1")
    assert cli("prune", "--sweep").out.endswith("1 went.\n")


def test_nothing_of_a_pruned_run_can_be_found_in_the_store(cli: Cli) -> None:
    """Inputs, outputs and messages: what may be private goes."""
    canary = "canary-7f3a"

    @step
    async def tell(word: str, size: int) -> str:
        if size == 0:
            raise ValueError(f"{word} in a message")
        return word * size

    @workflow
    async def telling(ctx: Context, word: str, ballast: str) -> str:
        for size in (1, 3000, 0):
            await ctx.step(tell, word, size)
        return word

    async def run() -> None:
        async with DurableWorkflowExecutor() as executor:
            with pytest.raises(RunFailed):
                await executor.run(telling, run_id="r1", word=canary, ballast=canary * 2000)

    asyncio.run(run())
    assert cli("prune", "r1", "--yes").code == 0
    with contextlib.closing(sqlite3.connect("durable.db")) as store:
        store.execute("VACUUM")
        store.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    found = [path for path in Path().rglob("*") if path.is_file() and canary.encode() in path.read_bytes()]
    assert found == []
    assert not [path for path in Path("durable.db.blobs").rglob("*") if path.is_file()]
