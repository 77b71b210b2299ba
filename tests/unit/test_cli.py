"""The commands, called in this process: exit codes, ids, inputs, modules, damaged records."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from durable_core.cli import finding, outcome, output
from durable_core.cli.app import execute
from durable_core.engine.executor import DurableWorkflowExecutor
from durable_core.engine.results import RunResult
from durable_core.errors import (
    CorruptRecord,
    DeadlineReached,
    DurableError,
    Fenced,
    InvalidId,
    JournalUnavailable,
    MissingBlob,
    RunBusy,
    RunCancelled,
    RunFailed,
    RunInputMismatch,
    RunNotFinished,
    RunNotFound,
    RunPruned,
    SchemaTooNew,
    StepNotFound,
    StoreMisconfigured,
    UnknownType,
    UsageError,
)
from durable_core.stores import open_store
from durable_core.workflow import Workflow

FLOWS = """
from dataclasses import dataclass
from datetime import date
from durable_core import Context, Retry, step, workflow

calls = []

@dataclass
class Invoice:
    customer: str
    due: date

@step
def bill(customer: str) -> Invoice:
    return Invoice(customer, date(2026, 1, 31))

@step
def large(size: int) -> str:
    import random
    return random.Random(1).randbytes(size).hex()

@step(retry=Retry(max_attempts=2, initial_delay_s=0))
def flaky(name: str) -> str:
    calls.append(name)
    if len(calls) < 2:
        raise ConnectionError("the line is dead")
    return name

@workflow
async def month(ctx: Context, customers: list[str], since: date = date(2026, 1, 1)) -> list[str]:
    return [(await ctx.step(bill, one)).customer for one in customers] + [since.strftime("%d.%m.")]

@step
def refuse() -> None:
    raise ConnectionError("the line is dead")

@workflow
async def refused(ctx: Context) -> None:
    await ctx.step(refuse)

@workflow
async def blobs(ctx: Context) -> int:
    return len(await ctx.step(large, 20_000))

@workflow
async def retried(ctx: Context) -> str:
    return await ctx.step(flaky, "x")

plain = 7
"""


class Done(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)


Cli = Callable[..., Done]


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    """Runs a command in an empty folder that has the workflows above."""
    (tmp_path / "billing.py").write_text(FLOWS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DURABLE_LOG_LEVEL", "error")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(sys.modules[Workflow.__module__], "_registered", {})  # what other tests have defined
    known = set(sys.modules)

    def run(*args: str) -> Done:
        capsys.readouterr()
        code = execute(args)
        return Done(code, *capsys.readouterr())

    yield run
    for name in set(sys.modules) - known:
        if not name.startswith(("durable_core", "rich", "typer")):
            del sys.modules[name]


def month(cli: Cli, run_id: str, *customers: str) -> Done:
    done = cli("run", "billing:month", "--run-id", run_id, "--input", json.dumps({"customers": customers}))
    assert done.code == 0
    return done


def execute_sql(statement: str, *values: object) -> None:
    with contextlib.closing(sqlite3.connect("durable.db")) as journal, journal:
        changed = journal.execute(statement, values)
        assert changed.rowcount != 0


# ---- Exit codes ----


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RunFailed("r", {}), 1),
        (RunCancelled("it was"), 1),
        (UsageError("no"), 2),
        (InvalidId("no"), 2),
        (RunInputMismatch("no"), 2),
        (RunNotFound("no"), 3),
        (StepNotFound("no"), 3),
        (RunBusy("r", owner="x", lease_left_s=1), 4),
        (RunPruned("no"), 4),
        (Fenced("no"), 4),
        (RunNotFinished("no"), 5),
        (DeadlineReached("no"), 5),
        (CorruptRecord("no"), 6),
        (MissingBlob("no"), 6),
        (UnknownType("no"), 6),
        (JournalUnavailable("no"), 7),
        (StoreMisconfigured("no"), 7),
        (SchemaTooNew("no"), 7),
    ],
)
def test_each_error_has_the_exit_code_that_is_documented(error: DurableError, code: int) -> None:
    assert outcome.exit_code(error) == code


@pytest.mark.parametrize(
    ("args", "code", "told"),
    [
        (("run", "billing:month", "--input", "{}"), 2, "missing: customers"),
        (("run", "billing:month", "--input", '{"customers": "x"}'), 2, "customers"),
        (("run", "billing:month", "--input", "[]"), 2, "a JSON array, not an object"),
        (("run", "billing:month", "--input", "{'a': 1}"), 2, "line 1, column 2"),
        (("run", "billing:month", "--input", '{"a": 1, "a": 2}'), 2, "'a' is given twice"),
        (("run", "billing:month", "--input", '{"a": NaN}'), 2, "NaN is not JSON"),
        (("run", "billing:month", "--input", '{"a": 1e999}'), 2, "1e999 is larger than any float"),
        (("run", "billing:month", "--input", "@missing.json"), 2, "No such file"),
        (("run", "billing:month", "--input", "@."), 2, "Is a directory"),
        (("run", "billing:month", "--input", "[" * 5000), 2, "can't be used"),
        (("run", "billing:month", "--run-id", "../x"), 2, "run id"),
        (("run", "billing"), 2, "MODULE:WORKFLOW"),
        (("run", "billing:moth"), 2, "Did you mean billing:month?"),
        (("run", "billing:plain"), 2, "no workflow"),
        (("run", "billling:month"), 2, "no module 'billling'"),
        (("run", "../billing:month"), 2, "no module name"),
        (("run", "missing.py:month"), 2, "no file missing.py"),
        (("run", "billing:month", "--store", "mysql://x:secret@y"), 2, "no store URL"),
        (("run", "billing:blobs", "--store", "sqlite:///no/folder.db"), 7, "doesn't exist"),
        (("run", "billing:blobs", "--log-level", "loud"), 2, "'loud' is no log level"),
        (("list", "--status", "done"), 2, "RUNNING"),
        (("list", "--limit", "0"), 2, "--limit"),
        (("list", "--limit", "-1"), 2, "--limit"),
        (("list", "--status", "DONE"), 2, "is no status of a run"),
        (("list", "--nonsense"), 2, "--nonsense"),
        (("nonsense",), 2, "nonsense"),
    ],
)
def test_a_mistake_is_told_in_words_and_gives_its_exit_code(
    cli: Cli, args: tuple[str, ...], code: int, told: str
) -> None:
    done = cli(*args)
    assert (done.code, done.out) == (code, "")
    assert told in done.err
    assert "Traceback" not in done.err
    assert "secret" not in done.err
    assert not Path("durable.db").exists()


@pytest.mark.parametrize("args", [("list",), ("show", "x"), ("resume", "x", "--workflows", "billing")])
def test_a_store_that_is_not_there_is_not_made_by_looking(cli: Cli, args: tuple[str, ...]) -> None:
    done = cli(*args)
    assert done.code == 3
    assert f"there is no store in {Path.cwd() / 'durable.db'}" in done.err
    assert not Path("durable.db").exists()


@pytest.mark.parametrize("args", [("list",), ("show", "x"), ("resume", "x", "--workflows", "billing")])
def test_the_database_of_another_program_is_left_as_it_is_by_looking(cli: Cli, args: tuple[str, ...]) -> None:
    with contextlib.closing(sqlite3.connect("durable.db")) as other:
        other.execute("CREATE TABLE customers (name TEXT)")
    before = Path("durable.db").read_bytes()
    done = cli(*args)
    assert done.code == 3
    assert "there is no store in" in done.err
    assert Path("durable.db").read_bytes() == before


def test_a_run_with_text_that_is_not_utf_8_does_not_hide_the_others(cli: Cli) -> None:
    for run_id in ("r1", "r2"):
        assert cli("run", "billing:month", "--run-id", run_id, "--input", '{"customers": []}').code == 0
    with contextlib.closing(sqlite3.connect("durable.db")) as store, store:
        damaged = store.execute("UPDATE runs SET session_id = CAST(x'ff' AS TEXT) WHERE run_id = 'r1'")
        assert damaged.rowcount == 1
    listed = cli("list")
    assert listed.code == 0
    assert "r1" in listed.out
    assert "r2" in listed.out
    assert cli("show", "r1").code == 6


@pytest.mark.parametrize(
    ("args", "code", "name"),
    [
        (("show", "nope"), 3, "RUN_NOT_FOUND"),
        (("resume", "nope", "--workflows", "billing"), 3, "RUN_NOT_FOUND"),
        (("show", "june", "--step", "nope"), 3, "STEP_NOT_FOUND"),
        (("show", "june", "--nonsense"), 2, "USAGE"),
        (("list", "--store", "sqlite:///none.db"), 3, "STORE_NOT_FOUND"),
    ],
)
def test_an_error_is_one_line_for_people_and_one_document_for_programs(
    cli: Cli, args: tuple[str, ...], code: int, name: str
) -> None:
    month(cli, "june", "ann")
    text, document = cli(*args), cli(*args, "--json")
    assert (text.code, text.out) == (code, "")
    assert "Error: " in text.err
    assert len(text.err.splitlines()) == 1 or name == "USAGE"
    assert (document.code, document.err) == (code, "")
    assert document.document["error"].keys() == {"code", "message", "remedy", "run_id", "step_id"}
    assert document.document["error"]["code"] == name


def test_no_command_shows_the_help(cli: Cli) -> None:
    assert cli().code == 2
    shown = cli("--help")
    assert shown.code == 0
    told = " ".join(shown.out.split())
    ends = (0, 1, 2, 3, 4, 5, 6, 7, 70, 130, 143)
    assert re.findall(r"\b(\d+) [a-z]", told.partition("Exit codes: ")[2]) == [str(code) for code in ends]


def test_a_run_that_has_not_come_to_its_end_is_no_success(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    async def suspend(*_: object, run_id: str, **__: object) -> RunResult[None]:
        return RunResult(run_id, "SUSPENDED", None, {"COMMITTED": 1})

    monkeypatch.setattr(DurableWorkflowExecutor, "run", suspend)
    text = cli("run", "billing:blobs", "--run-id", "r")
    assert (text.code, text.out) == (5, "")
    document = cli("run", "billing:blobs", "--run-id", "r", "--json")
    assert (document.code, document.document["status"], document.document["output"]) == (5, "SUSPENDED", None)


def test_a_defect_of_ours_is_told_apart_from_a_failed_run(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    async def stumble(*_: object, **__: object) -> RunResult[None]:
        raise ZeroDivisionError

    monkeypatch.setattr(DurableWorkflowExecutor, "run", stumble)
    done = cli("run", "billing:blobs", "--json")
    assert (done.code, done.document["error"]["code"]) == (70, "DEFECT")
    assert "ZeroDivisionError" in done.err


def test_a_file_that_is_no_database_is_corrupt(cli: Cli) -> None:
    Path("durable.db").write_bytes(b"not a database, but long enough to look like one" * 50)
    assert cli("list").code == 6


# ---- Inputs and modules ----


def test_inputs_come_as_text_as_a_file_and_from_standard_input(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = '{"customers": ["ann"], "since": "2026-02-03"}'
    Path("given.json").write_bytes(b"\xef\xbb\xbf" + given.encode())
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given.encode())))
    for form in (given, "@given.json", "-"):
        done = cli("run", "billing:month", "--input", form, "--run-id", "r", "--json")
        assert done.document["output"] == ["ann", "03.02."]


def test_a_workflow_can_be_named_by_its_file(cli: Cli) -> None:
    Path("jobs").mkdir()
    Path("jobs/nightly.py").write_text(FLOWS, encoding="utf-8")
    assert json.loads(cli("run", "jobs/nightly.py:blobs").out) == 40_000


@pytest.mark.parametrize(
    ("text", "told", "traceback"),
    [
        ("def broken(:\n", "line 1", False),
        ("x = 1\nraise RuntimeError('my own mistake')\n", "my own mistake", True),
        ("import a_package_that_is_not_there\n", "a_package_that_is_not_there", True),
        ("import sys\nsys.exit(0)\n", "SystemExit", True),
    ],
)
def test_a_module_that_cannot_be_imported_shows_where_it_is_wrong(
    cli: Cli, text: str, told: str, traceback: bool
) -> None:
    Path("wrong.py").write_text(text, encoding="utf-8")
    done = cli("run", "wrong:flow")
    assert done.code == 2
    assert "wrong.py" in done.err
    assert told in done.err
    assert ("Traceback" in done.err) is traceback
    assert "importlib" not in done.err


def test_a_name_in_the_store_is_never_imported(cli: Cli) -> None:
    month(cli, "june", "ann")
    Path("evil.py").write_text("open('imported', 'w').close()\n", encoding="utf-8")
    execute_sql("UPDATE runs SET workflow = 'evil', status = 'PENDING'")
    assert cli("show", "june").code == 0
    refused = cli("resume", "june", "--workflows", "billing", "--json")
    assert (refused.code, refused.document["error"]["code"]) == (2, "WORKFLOW_NOT_FOUND")
    assert not Path("imported").exists()


# ---- Ids ----


def test_ids_are_completed_from_a_beginning_that_only_one_has(cli: Cli) -> None:
    for run_id in ("june-1", "june-10", "july"):
        month(cli, run_id, "ann", "bob")
    assert cli("show", "jul", "--json").document["run"]["run_id"] == "july"
    assert cli("show", "june-1", "--json").document["run"]["run_id"] == "june-1"
    ambiguous = cli("show", "ju")
    assert ambiguous.code == 2
    assert all(run_id in ambiguous.err for run_id in ("june-1", "june-10", "july"))
    assert cli("resume", "july", "--workflows", "billing").out == '[\n  "ann",\n  "bob",\n  "01.01."\n]\n'
    nearest = cli("show", "juny-1")
    assert nearest.code == 3
    assert "Nearest: june-1" in nearest.err


def test_steps_are_completed_alike(cli: Cli) -> None:
    month(cli, "june", *"abcdefghijkl")
    assert cli("show", "june", "--step", "bill", "--json").document["step"]["step_id"] == "bill"
    assert cli("show", "june", "--step", "bill#12", "--json").document["step"]["step_index"] == 11
    ambiguous = cli("show", "june", "--step", "bil")
    assert ambiguous.code == 2
    assert "bill#2" in ambiguous.err
    nearest = cli("show", "june", "--step", "bell#2")
    assert nearest.code == 3
    assert "Nearest: bill#2" in nearest.err


@pytest.mark.parametrize(
    "odd", ["%", "_une", "june'", 'x" OR 1=1 --', "; DROP TABLE runs", "*", "\x00", "\udc80", "j\\"]
)
def test_a_beginning_is_no_pattern_and_no_statement(cli: Cli, odd: str) -> None:
    month(cli, "june", "ann")
    assert cli("show", odd).code == 3
    assert cli("resume", odd, "--workflows", "billing").code == 3
    assert cli("list", "--workflow", odd).code in (0, 2)
    assert "june" not in cli("list", "--workflow", odd).out
    assert cli("list", "--json").document["count"] == 1


def test_an_empty_id_is_a_mistake_and_not_every_run(cli: Cli) -> None:
    month(cli, "june", "ann")
    assert cli("show", "").code == 2
    assert cli("show", "june", "--step", "").code == 3


@pytest.mark.parametrize(
    ("url", "run_id", "unrecorded"),
    [
        ("sqlite:///durable.db", "june", False),
        ("sqlite:///durable.db", "jun", True),
        ("sqlite:///none.db", "june", True),
        ("sqlite:///no/folder.db", "june", True),
        ("sqlite:///billing.py", "june", False),
        ("memory://", "june", True),
    ],
)
def test_a_run_is_unrecorded_only_where_that_is_certain(
    cli: Cli, url: str, run_id: str, unrecorded: bool
) -> None:
    month(cli, "june", "ann")
    before = set(Path().iterdir())
    assert finding.is_unrecorded(open_store(url), run_id) is unrecorded
    assert set(Path().iterdir()) == before


def test_a_store_that_cannot_be_read_holds_nobody_up(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finding, "_LOOK_S", 0.05)
    month(cli, "june", "ann")
    before = set(threading.enumerate())
    with contextlib.closing(sqlite3.connect("durable.db", isolation_level=None)) as other:
        other.execute("PRAGMA journal_mode=DELETE")  # with a log, readers would go on
        other.execute("BEGIN EXCLUSIVE")
        assert not finding.is_unrecorded(open_store("sqlite:///durable.db"), "july")
        looking = set(threading.enumerate()) - before
        assert [thread.daemon for thread in looking] == [True]  # Python waits for no other at its end
    for thread in looking:
        thread.join(30)


# ---- list ----


@pytest.mark.parametrize("count", [0, 1, 999, 10_001])
def test_the_counts_of_a_listing_agree_however_many_there_are(cli: Cli, count: int) -> None:
    month(cli, "first", "ann")
    execute_sql(
        "INSERT INTO runs (run_id, workflow, input_hash, status, fence, base_fence, created_at, updated_at)"
        " WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)"
        " SELECT 'run-' || i, 'made', 'h', 'PENDING', 0, 0, '2026-01-01T00:00:00Z', '' FROM n WHERE i <= ?",
        max(count, 1),
        max(count, 1),
    )
    execute_sql("DELETE FROM runs WHERE run_id = 'first' OR ? = 0", count)
    listed = cli("list", "--limit", "20000", "--json").document
    assert (len(listed["runs"]), listed["count"], listed["more"]) == (count, count, False)
    assert len({run["run_id"] for run in listed["runs"]}) == count
    text = cli("list", "--limit", "20000").out.splitlines()
    assert text[-1] == f"{count} run{'s' * (count != 1)}"
    assert len(text) == (count + 2 if count else 1)
    some = cli("list", "--limit", "500", "--json").document
    assert (some["count"], some["more"]) == (min(count, 500), count > 500)


def test_a_listing_can_be_narrowed_to_a_status_and_a_workflow(cli: Cli) -> None:
    month(cli, "june", "ann")
    cli("run", "billing:blobs", "--run-id", "big")
    assert [run["run_id"] for run in cli("list", "--workflow", "month", "--json").document["runs"]] == [
        "june"
    ]
    assert len(cli("list", "--status", "completed", "--json").document["runs"]) == 2
    assert cli("list", "--status", "FAILED").out == "0 runs\n"


def test_a_listing_can_be_narrowed_to_an_age_and_a_text(cli: Cli) -> None:
    for run_id in ("june", "july"):
        month(cli, run_id, "ann")
    assert cli("run", "billing:refused", "--run-id", "may").code == 1
    execute_sql("UPDATE runs SET created_at = '2026-01-01T00:00:00.000Z' WHERE run_id = 'june'")

    def listed(*args: str) -> list[str]:
        return [run["run_id"] for run in cli("list", *args, "--json").document["runs"]]

    assert listed("--newer-than", "1h") == ["may", "july"]
    assert listed("--older-than", "1h") == ["june"]
    assert listed("--older-than", "1h", "--newer-than", "1h") == []
    assert listed("--text", "THE LINE IS") == ["may"]
    assert listed("--text", "month", "--newer-than", "1d") == ["july"]
    for args in (("--newer-than", "soon"), ("--older-than", "99999w"), ("--text", " "), ("--text", "\x07")):
        assert cli("list", *args).code == 2


def test_a_listing_goes_on_where_the_page_before_ended(cli: Cli) -> None:
    for n in range(5):
        month(cli, f"r{n}", "ann")
    pages, after = [], []
    while len(pages) < 4:
        page = cli("list", "--limit", "2", *after, "--json").document
        pages.append([run["run_id"] for run in page["runs"]])
        assert page["more"] is (page["next"] is not None)
        if not page["more"]:
            break
        after = ["--after", page["next"]]
    assert pages == [["r4", "r3"], ["r2", "r1"], ["r0"]]
    assert cli("list", "--limit", "2").out.endswith("2 runs, and there are more: --limit N, or --after r3\n")
    assert cli("list", "--after", "nobody").code == 3


@pytest.mark.parametrize(
    "damage",
    [
        "counts = '{bad'",
        "counts = '[1]'",
        "error = 'not JSON'",
        "status = 'FINE'",
        "created_at = 'yesterday'",
        "ended_at = x'00'",
        "status = x'ff'",
        "fence = 'many'",
    ],
)
def test_one_damaged_run_is_marked_and_the_others_are_listed(cli: Cli, damage: str) -> None:
    for run_id in ("a", "b", "c"):
        month(cli, run_id, "ann")
    execute_sql(f"UPDATE runs SET {damage} WHERE run_id = 'b'")  # noqa: S608 - from the list above
    listed = cli("list", "--json")
    assert listed.code == 6
    assert {run["run_id"]: bool(run["corrupt"]) for run in listed.document["runs"]} == {
        "a": False,
        "b": True,
        "c": False,
    }
    text = cli("list")
    assert text.code == 6
    assert "CORRUPT" in text.out
    assert text.out.count("COMPLETED") == 2
    assert "Corrupt: run b: " in text.out
    assert cli("show", "a").code == 0
    assert cli("show", "b").code == 6


# ---- show ----


def test_a_run_is_shown_with_its_steps_in_the_order_of_their_start(cli: Cli) -> None:
    month(cli, "june", *"abcdefghijkl")
    shown = cli("show", "june")
    assert shown.code == 0
    assert "12 committed" in shown.out
    steps = [line.split()[0] for line in shown.out.partition("STEP")[2].splitlines()[1:]]
    assert steps == ["bill", *(f"bill#{n}" for n in range(2, 13))]


def test_a_step_is_shown_with_its_output_though_its_class_is_not_there(cli: Cli) -> None:
    month(cli, "june", "ann")
    del sys.modules["billing"]
    shown = cli("show", "june", "--step", "bill", "--json").document["step"]
    assert shown["output"] == {"customer": "ann", "due": "2026-01-31"}
    assert (shown["status"], shown["attempt"], len(shown["input_hash"])) == ("COMMITTED", 1, 64)


def test_a_step_is_shown_with_its_earlier_attempts(cli: Cli) -> None:
    cli("run", "billing:retried", "--run-id", "r")
    step = cli("show", "r", "--step", "flaky", "--json").document["step"]
    assert (step["attempt"], [one["attempt"] for one in step["attempts"]]) == (2, [1])
    assert "Earlier attempts:" in cli("show", "r", "--step", "flaky").out


def test_a_failed_step_is_shown_with_the_type_of_its_error(cli: Cli) -> None:
    assert cli("run", "billing:refused", "--run-id", "r").code == 1
    shown = cli("show", "r", "--step", "refuse").out
    assert "\nError (ConnectionError):\nTraceback" in shown
    assert shown.count("ConnectionError: the line is dead") == 1


def test_an_id_that_looks_like_an_option_is_told_in_a_command_that_works(cli: Cli) -> None:
    failed = cli("run", "billing:refused", "--run-id", "-x", "--store", "sqlite:///a b.db")
    assert failed.code == 1
    told = shlex.split(failed.err.partition("then: ")[2])
    assert told[0] == "durable"
    again = cli(*told[1:])
    assert again.code == 1
    assert "Run: -x\n" in again.err
    assert "the line is dead" in again.err


def test_what_is_kept_from_standard_output_needs_no_stream_of_the_system(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    with output.kept_for_the_result():
        sys.stdout.write("by the user\n")
    output.write("the result")
    assert sys.stdout.getvalue() == "the result"
    assert capsys.readouterr().err == "by the user\n"


def test_an_output_kept_as_a_blob_is_shown_and_its_loss_is_told(cli: Cli) -> None:
    cli("run", "billing:blobs", "--run-id", "r")
    whole = cli("show", "r", "--step", "large", "--json")
    assert (len(whole.document["step"]["output"]), whole.document["step"]["stored_in"]) == (40_000, "blob")
    for blob in Path("durable.db.blobs").rglob("*"):
        if blob.is_file():
            blob.unlink()
    lost = cli("show", "r", "--step", "large")
    assert lost.code == 6
    assert "corrupt" in lost.out
    assert cli("show", "r").code == 0


@pytest.mark.parametrize(
    ("damage", "in_list"),
    [
        ("attempts = '{bad'", True),
        ("attempts = '5'", True),
        ("error = 'not JSON'", True),
        ("detail = '[]'", True),
        ("status = 'DONE'", True),
        ("fence = 'x'", False),
        ("started_at = 5", True),
        ("output_data = x'00'", False),
        ("codec = 'pickle'", False),
        ("output_size = 3", False),
    ],
)
def test_one_damaged_step_is_marked_and_the_others_are_shown(cli: Cli, damage: str, in_list: bool) -> None:
    month(cli, "june", "ann", "bob", "eve")
    execute_sql(f"UPDATE checkpoints SET {damage} WHERE step_id = 'bill#2'")  # noqa: S608 - from the list above
    shown = cli("show", "june", "--json")
    assert len(shown.document["steps"]) == 3
    assert {s["step_id"]: bool(s["corrupt"]) for s in shown.document["steps"]} == {
        "bill": False,
        "bill#2": in_list,
        "bill#3": False,
    }
    assert shown.code == (6 if in_list else 0)
    assert cli("show", "june").code == shown.code
    assert cli("show", "june", "--step", "bill#2").code == (0 if damage.startswith("fence") else 6)
    assert cli("show", "june", "--step", "bill#3").code == 0


def test_text_from_the_store_is_neither_markup_nor_a_control_sequence(cli: Cli) -> None:
    month(cli, "june", "ann")
    evil = "[red]x[/red] \x1b[2J\x07\r\n\u202e\u009b1m"
    execute_sql("UPDATE runs SET workflow = ?, error = ?", evil, json.dumps({"type": evil, "message": evil}))
    execute_sql("UPDATE checkpoints SET kind = ?, error = ?", evil, json.dumps({"traceback": evil}))
    for args in (("list",), ("show", "june"), ("show", "june", "--step", "bill")):
        out = cli(*args).out
        assert "[red]x[/red] \\x1b[2J" in out
        assert not set("\x1b\x07\r\u202e\u009b") & set(out)
