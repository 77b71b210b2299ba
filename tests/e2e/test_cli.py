"""The command line as people meet it: real processes, in a pipe and in a terminal, stopped in every way."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import select
import signal
import sqlite3
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import durable_core

ROOT = Path(durable_core.__file__).parents[1]
COMMAND = (sys.executable, "-m", "durable_core.cli")
PATIENCE_S = 30

# Makes its terminal the controlling one, so that a typed Ctrl-C is a SIGINT, and becomes the command.
TAKE_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""

FLOWS = """
import asyncio, os, subprocess, sys, time
from pathlib import Path
import structlog
from durable_core import Context, step, workflow

def ran(name):
    with open("ran.log", "a") as log:
        log.write(name + "\\n")

@step
def first(n: int) -> int:
    ran("first")
    return n + 1

@step
async def gate(n: int) -> int:
    ran("gate")
    while not Path("go").exists():
        await asyncio.sleep(0.01)
    return n * 10

@step
def stuck(n: int) -> int:
    ran("stuck")
    while not Path("go").exists():
        time.sleep(0.01)
    return n * 100

@step
def refuse(n: int) -> int:
    raise ValueError("no luck today")

@step
def odd(text: str) -> str:
    return text

@workflow
async def gated(ctx: Context, n: int = 1) -> dict[str, int]:
    print("printed by the workflow")
    return {"n": await ctx.step(gate, await ctx.step(first, n))}

@workflow
async def blocked(ctx: Context, n: int = 1) -> int:
    return await ctx.step(stuck, await ctx.step(first, n))

@workflow
async def failing(ctx: Context) -> int:
    return await ctx.step(refuse, await ctx.step(first, 1))

@workflow
async def echo(ctx: Context, text: str) -> list[str]:
    return [await ctx.step(odd, text)]

@step
def complain(text: str) -> None:
    raise ValueError(text)

@workflow
async def complaining(ctx: Context, text: str) -> None:
    await ctx.step(complain, text)

@step
def shell() -> None:
    subprocess.run(["sh", "-c", "echo by a child of a step; echo and its errors >&2"], check=True)

@step
def past_python() -> None:
    os.write(1, b"past the stream\\n")
    sys.__stdout__.write("by the stream itself\\n")

@workflow
async def shelling(ctx: Context) -> str:
    os.system("echo by a child")
    await ctx.step(shell)
    await ctx.step(past_python)
    return "the result"

@workflow
async def logged(ctx: Context) -> None:
    await ctx.step(logs)

@step
async def logs() -> None:
    structlog.get_logger().warning("by_the_step")

@step
async def extract(n: int) -> int:
    if n == 1:
        raise ValueError("no luck today")
    while n >= 4 and not Path("go").exists():
        await asyncio.sleep(0.01)
    return n

@workflow
async def mapped(ctx: Context) -> int:
    batch = await ctx.map(extract, range(10), max_concurrency=3, tolerate_failures=1)
    return batch.succeeded

@workflow
async def leaving(ctx: Context) -> None:
    await ctx.step(first, 1)
    sys.exit(3)
"""


# Says when the command has found its store locked, which nothing else can be seen by.
WAITING = """
import time
from pathlib import Path
from flows import echo

slept = time.sleep

def sleep(seconds):
    Path("waits").touch()
    slept(seconds)

time.sleep = sleep
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "flows.py").write_text(FLOWS, encoding="utf-8")
    return tmp_path


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS")}
    return {**kept, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", **more}


def durable(folder: Path, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *args],
        cwd=folder,
        env=environment(**env),
        capture_output=True,
        check=False,
        timeout=PATIENCE_S,
        encoding="utf-8",
    )


@contextlib.contextmanager
def started(folder: Path, *args: str) -> Iterator[subprocess.Popen[str]]:
    """A process in a group of its own, as a terminal starts it; gone afterwards."""
    process = subprocess.Popen(
        [*COMMAND, *args],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def eventually(condition: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until, f"in {PATIENCE_S} s it never came to this: {what}"
        threading.Event().wait(0.01)


def bodies(folder: Path) -> list[str]:
    log = folder / "ran.log"
    return log.read_text(encoding="utf-8").split() if log.exists() else []


def until_in(folder: Path, body: str) -> None:
    eventually(lambda: body in bodies(folder), f"the body of {body} runs")


def header(folder: Path, run_id: str) -> tuple[str, str | None]:
    with contextlib.closing(sqlite3.connect(folder / "durable.db")) as journal:
        row = journal.execute("SELECT status, owner FROM runs WHERE run_id = ?", (run_id,)).fetchone()
    return row[0], row[1]


class Terminal:
    """A process in a pseudo-terminal of its own."""

    def __init__(self, folder: Path, *args: str, columns: int = 100, **env: str) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, "-c", TAKE_TERMINAL, *COMMAND, *args],
            cwd=folder,
            env=environment(TERM="xterm-256color", **env),
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        self.seen = b""

    def read_until(self, wanted: bytes | None) -> str:
        """What is on the terminal, once `wanted` is; all of it for None."""
        until = time.monotonic() + PATIENCE_S
        while wanted is None or wanted not in self.seen:
            assert time.monotonic() < until, f"never seen: {wanted!r}; only {self.seen!r}"
            ready, _, _ = select.select([self.master], [], [], 0.1)
            if not ready:
                continue
            try:
                more = os.read(self.master, 65536)
            except OSError:  # the other side is closed: Linux says so with EIO
                more = b""
            if not more:
                assert wanted is None, f"never seen: {wanted!r}; only {self.seen!r}"
                break
            self.seen += more
        return self.seen.decode()

    def type(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.master)


# ---- Results ----


def test_a_result_is_alone_on_standard_output_and_the_rest_on_standard_error(folder: Path) -> None:
    (folder / "go").touch()
    done = durable(folder, "run", "flows:gated", "--input", '{"n": 4}', "--run-id", "r", "--json")
    assert (done.returncode, json.loads(done.stdout)) == (
        0,
        {"run_id": "r", "status": "COMPLETED", "output": {"n": 50}, "counts": {"COMMITTED": 2}},
    )
    lines = done.stderr.splitlines()
    assert "printed by the workflow" in lines
    assert [json.loads(line)["event"] for line in lines if line.startswith("{")] == [
        "run_started",
        "run_completed",
    ]


@pytest.mark.parametrize("command", [("run", "flows:shelling"), ("resume", "s", "--workflows", "flows")])
def test_what_other_processes_print_is_no_part_of_the_result(folder: Path, command: tuple[str, ...]) -> None:
    if command[0] == "resume":
        enqueued = "from durable_core import *; import flows; "
        enqueued += "DurableWorkflowExecutor().blocking.start(flows.shelling, run_id='s')"
        subprocess.run([sys.executable, "-c", enqueued], cwd=folder, env=environment(), check=True)
    done = durable(folder, *command)
    assert (done.returncode, done.stdout) == (0, '"the result"\n')
    told = ("by a child", "by a child of a step", "and its errors", "past the stream", "by the stream itself")
    assert set(told) <= set(done.stderr.splitlines())


def test_what_a_module_starts_when_it_is_imported_is_no_part_of_the_result(folder: Path) -> None:
    module = folder / "noisy.py"
    module.write_text("import os\nos.system('echo noise')\nfrom flows import *\n", encoding="utf-8")
    done = durable(folder, "run", "noisy:echo", "--input", '{"text": "x"}', "--json")
    assert json.loads(done.stdout)["output"] == ["x"]
    assert "noise" in done.stderr.splitlines()


@pytest.mark.parametrize("style", ["console", "json"])
def test_a_line_that_a_step_logs_itself_names_run_and_step(folder: Path, style: str) -> None:
    done = durable(folder, "run", "flows:logged", "--run-id", "r", "--json", "--log-format", style)
    assert json.loads(done.stdout)["status"] == "COMPLETED"
    (line,) = [line for line in done.stderr.splitlines() if "by_the_step" in line]
    if style == "json":
        found = json.loads(line)
        assert (found["run_id"], found["fence"], found["step_id"], found["attempt"]) == ("r", 1, "logs", 1)
    else:
        assert {"run_id=r", "fence=1", "step_id=logs", "attempt=1"} <= set(line.split())


def test_starting_the_same_run_again_gives_its_recorded_result_without_running_anything(folder: Path) -> None:
    (folder / "go").touch()
    results = [durable(folder, "run", "flows:gated", "--run-id", "r") for _ in range(2)]
    assert [(done.returncode, json.loads(done.stdout)) for done in results] == [(0, {"n": 20})] * 2
    assert bodies(folder) == ["first", "gate"]


def test_a_failure_is_told_without_a_traceback_and_with_the_way_on(folder: Path) -> None:
    failed = durable(folder, "run", "flows:failing", "--run-id", "f", DURABLE_LOG_LEVEL="critical")
    assert (failed.returncode, failed.stdout) == (1, "")
    assert "ValueError: no luck today" in failed.stderr
    assert "Failed steps: refuse" in failed.stderr
    assert "durable resume f --workflows flows" in failed.stderr
    assert "Traceback" not in failed.stderr
    assert "Traceback" in durable(folder, "show", "f", "--step", "refuse").stdout


def test_a_failure_shows_its_traceback_at_log_level_debug(folder: Path) -> None:
    failed = durable(folder, "run", "flows:failing", "--log-level", "debug", "--log-format", "json")
    assert failed.returncode == 1
    assert "in refuse" in failed.stderr


def test_a_workflow_that_leaves_the_process_is_no_success_and_can_be_resumed(folder: Path) -> None:
    done = durable(folder, "run", "flows:leaving", "--run-id", "l")
    assert done.returncode == 1
    assert "SystemExit(3)" in done.stderr
    assert header(folder, "l")[1] is None


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_whatever_was_stored_can_be_shown_in_any_encoding(folder: Path, encoding: str) -> None:
    given = r'{"text": "\ud800 lone, caf\u00e9 \u4e2d, \u001b[31m\u0007\u009b\u202e red"}'
    env = {"PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}

    def raw(*args: str, code: int = 0) -> bytes:
        done = subprocess.run(
            [*COMMAND, *args], cwd=folder, env=environment(**env), capture_output=True, check=False
        )
        assert done.returncode == code, done.stderr
        assert all(byte >= 32 or byte in b"\n" for byte in done.stdout)
        return done.stdout

    text = json.loads(given)["text"]
    ran = raw("run", "flows:echo", "--run-id", "e", "--input", given)
    assert json.loads(ran.decode(encoding)) == [text]
    assert json.loads(raw("show", "e", "--step", "odd", "--json"))["step"]["output"] == text
    shown = raw("show", "e", "--step", "odd").decode(encoding)
    assert json.loads(shown.partition("Output:\n")[2]) == text
    assert not set("\u009b\u202e\ud800") & set(shown)

    assert raw("run", "flows:complaining", "--run-id", "c", "--input", given, code=1) == b""
    for command in (("show", "c"), ("show", "c", "--step", "complain"), ("list",)):
        assert b"FAILED" in raw(*command)


def test_a_reader_that_goes_away_is_no_error(folder: Path) -> None:
    durable(folder, "run", "flows:echo", "--input", json.dumps({"text": "x"}), "--run-id", "e")
    for command in ("list --json", "show e", "run flows:echo --help"):
        piped = subprocess.run(
            ["bash", "-c", f'set -o pipefail; "$0" -m durable_core.cli {command} | true', sys.executable],
            cwd=folder,
            env=environment(),
            capture_output=True,
            check=False,
            timeout=PATIENCE_S,
        )
        assert piped.stderr == b""


def test_closed_streams_do_no_harm(folder: Path) -> None:
    script = '"$0" -m durable_core.cli run flows:echo --input \'{"text": "x"}\' --run-id e <&- >&- 2>&-'
    done = subprocess.run(
        ["bash", "-c", script, sys.executable], cwd=folder, env=environment(), check=False, timeout=PATIENCE_S
    )
    assert done.returncode == 0
    assert header(folder, "e") == ("COMPLETED", None)


def test_a_result_that_cannot_be_written_is_no_success(folder: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*COMMAND, "run", "flows:echo", "--input", '{"text": "x"}', "--log-level", "error"],
            cwd=folder,
            env=environment(),
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr.startswith(b"Error: standard output can't be written")


# ---- Stopped, killed, busy ----


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_run_is_released_and_says_how_it_goes_on(
    folder: Path, number: signal.Signals, code: int
) -> None:
    with started(folder, "run", "flows:gated", "--run-id", "r") as process:
        until_in(folder, "gate")
        os.killpg(process.pid, number)
        _, told = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == code
    assert "durable resume r --workflows flows" in told
    assert "Traceback" not in told
    assert header(folder, "r") == ("PENDING", None)
    assert "interrupted" in durable(folder, "show", "r").stdout

    (folder / "go").touch()
    resumed = durable(folder, "resume", "r", "--workflows", "flows")
    assert (resumed.returncode, json.loads(resumed.stdout)) == (0, {"n": 20})
    assert bodies(folder) == ["first", "gate", "gate"]


def test_a_stopped_run_is_told_of_as_json(folder: Path) -> None:
    with started(folder, "run", "flows:gated", "--run-id", "r", "--json") as process:
        until_in(folder, "gate")
        os.killpg(process.pid, signal.SIGINT)
        out, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert (json.loads(out)["error"]["code"], json.loads(out)["error"]["run_id"]) == ("INTERRUPTED", "r")


@pytest.mark.parametrize(
    ("number", "code", "how"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
def test_a_run_that_is_stopped_before_it_was_recorded_is_to_be_started_again(
    folder: Path, number: signal.Signals, code: int, how: str
) -> None:
    durable(folder, "run", "flows:echo", "--input", '{"text": "x"}', "--run-id", "e")
    (folder / "waiting.py").write_text(WAITING, encoding="utf-8")
    command = ("run", "waiting.py:echo", "--input", '{"text": "x"}', "--run-id", "new")
    with contextlib.closing(sqlite3.connect(folder / "durable.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with started(folder, *command) as process:
            eventually((folder / "waits").exists, "the command waits for the file")
            process.send_signal(number)
            _, told = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == code
    assert f"{how} before the run was recorded (run 'new'). Start it again" in told
    assert "durable resume" not in told


def test_a_killed_run_goes_on_from_its_last_committed_step(folder: Path) -> None:
    with started(folder, "run", "flows:gated", "--run-id", "r") as process:
        until_in(folder, "gate")
        process.kill()
        process.communicate()
    shown = durable(folder, "show", "r")
    assert "RUNNING (dead)" in shown.stdout
    assert "STARTED (in doubt)" in shown.stdout

    (folder / "go").touch()
    resumed = durable(folder, "resume", "r", DURABLE_WORKFLOWS="flows")
    assert (resumed.returncode, json.loads(resumed.stdout)) == (0, {"n": 20})
    assert bodies(folder) == ["first", "gate", "gate"]


def test_a_run_that_another_process_drives_is_busy_until_it_is_done(folder: Path) -> None:
    with started(folder, "run", "flows:gated", "--run-id", "r") as driver:
        until_in(folder, "gate")
        before = header(folder, "r")
        refused = durable(folder, "resume", "r", "--workflows", "flows")
        assert refused.returncode == 4
        assert f"process {driver.pid}" in refused.stderr
        assert "--wait" in refused.stderr
        as_json = durable(folder, "run", "flows:gated", "--run-id", "r", "--json")
        assert (as_json.returncode, json.loads(as_json.stdout)["error"]["code"]) == (4, "RUN_BUSY")
        assert header(folder, "r") == before
        assert "STARTED (running)" in durable(folder, "show", "r").stdout
        with started(folder, "resume", "r", "--workflows", "flows", "--wait") as waiting:
            (folder / "go").touch()
            out, _ = waiting.communicate(timeout=PATIENCE_S)
        assert (waiting.returncode, json.loads(out)) == (0, {"n": 20})
        assert driver.wait(PATIENCE_S) == 0
    assert bodies(folder) == ["first", "gate"]


# ---- In a terminal ----


def test_a_terminal_shows_how_far_the_run_is_and_then_the_result(folder: Path) -> None:
    with Terminal(folder, "run", "flows:gated", "--run-id", "r") as terminal:
        terminal.read_until(b"r: 1 committed, 1 started")
        (folder / "go").touch()
        seen = terminal.read_until(None)
        assert terminal.process.wait(PATIENCE_S) == 0
    assert '"n": 20' in seen
    assert "r: COMPLETED (2 committed)" in seen
    assert "run_started" not in seen


@pytest.mark.parametrize(
    ("columns", "shown"), [(140, b"3 in flight"), (60, b"3 in flight"), (30, b"1 failed")]
)
def test_a_terminal_shows_how_far_a_map_is_and_another_process_sees_it_too(
    folder: Path, columns: int, shown: bytes
) -> None:
    with Terminal(folder, "run", "flows:mapped", "--run-id", "r", columns=columns) as terminal:
        terminal.read_until(shown)
        eventually(lambda: "4 of 10 items done, 1 failed" in durable(folder, "show", "r").stdout, "4 done")
        (folder / "go").touch()
        seen = terminal.read_until(None)
        assert terminal.process.wait(PATIENCE_S) == 0
    assert seen.rstrip().endswith("r: COMPLETED (1 committed)")
    assert "map_progress" not in seen
    assert "map extract  10 of 10 items done, 1 failed\n" in durable(folder, "show", "r").stdout


def test_ctrl_c_says_that_it_stops_and_a_second_one_leaves_a_body_that_never_ends(folder: Path) -> None:
    with Terminal(folder, "run", "flows:blocked", "--run-id", "r") as terminal:
        until_in(folder, "stuck")
        terminal.type(b"\x03")
        terminal.read_until(b"Stopping")
        terminal.type(b"\x03")
        seen = terminal.read_until(None)
        assert terminal.process.wait(PATIENCE_S) == 130
    assert "durable resume r --workflows flows" in seen
    assert "Traceback" not in seen
    (folder / "go").touch()
    assert durable(folder, "resume", "r", "--workflows", "flows").stdout == "200\n"


@pytest.mark.parametrize("columns", [60, 140])
def test_tables_fit_the_terminal(folder: Path, columns: int) -> None:
    durable(folder, "run", "flows:failing", "--run-id", "a-run-with-a-really-long-name-" + "x" * 60)
    for command in (("list",), ("show", "a-run")):
        with Terminal(folder, *command, columns=columns) as terminal:
            seen = terminal.read_until(None)
            assert terminal.process.wait(PATIENCE_S) == 0
        table = [line for line in seen.splitlines() if "\x1b[" in line]
        assert table
        plain = ["".join(part.partition("m")[2] for part in f"m{line}".split("\x1b[")) for line in table]
        assert max(map(len, plain)) <= columns
        assert "FAILED" in seen
        assert ("WORKFLOW" in seen or "STARTED" in seen) is (columns == 140)


def test_a_pipe_gets_whole_rows_however_long_they_are(folder: Path) -> None:
    run_id = "a-run-with-a-really-long-name-" + "x" * 90
    durable(folder, "run", "flows:failing", "--run-id", run_id)
    head, row, footer = durable(folder, "list", COLUMNS="40").stdout.splitlines()
    assert head.split() == ["RUN", "WORKFLOW", "STATUS", "STEPS", "CREATED", "TOOK"]
    assert row.startswith(f"{run_id}  failing   FAILED  1 committed, 1 failed  ")
    assert footer == "1 run"


def test_colour_is_for_terminals_that_want_it(folder: Path) -> None:
    durable(folder, "run", "flows:echo", "--input", '{"text": "x"}', "--run-id", "e")
    with Terminal(folder, "list") as terminal:
        assert "\x1b[32m" in terminal.read_until(None)
    with Terminal(folder, "list", NO_COLOR="1") as terminal:
        assert "\x1b[3" not in terminal.read_until(None)
    assert "\x1b" not in durable(folder, "list").stdout
