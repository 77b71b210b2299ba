"""The commands about runs that wait, and what people do to runs: exit codes, ids, payloads, refusals."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from durable_core.cli.app import execute
from durable_core.cli.outcome import exit_code
from durable_core.errors import RunEnded
from durable_core.workflow import Workflow

FLOWS = """
from dataclasses import dataclass
from durable_core import Context, step, workflow

@dataclass
class Decision:
    approved: bool

@step
def prepare(name: str) -> str:
    return name

@step
def refuse(name: str) -> str:
    raise ConnectionError("the line is dead")

@workflow
async def month(ctx: Context, name: str = "june") -> str:
    prepared = await ctx.step(prepare, name)
    decision = await ctx.wait_for_event("approval", type=Decision)
    return f"{prepared}: {decision.approved}"

@workflow
async def nap(ctx: Context) -> None:
    await ctx.sleep(3600)

@workflow
async def refused(ctx: Context) -> str:
    return await ctx.step(refuse, await ctx.step(prepare, "x"))

@workflow
async def quick(ctx: Context, name: str) -> str:
    return await ctx.step(prepare, name)

@workflow
async def shared(ctx: Context) -> int:
    return (await ctx.map(prepare, ["a", "b", "c"], distribute=True, chunk_size=2)).succeeded
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
    (tmp_path / "waiting_flows.py").write_text(FLOWS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DURABLE_LOG_LEVEL", "critical")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(sys.modules[Workflow.__module__], "_registered", {})  # what other tests have defined

    def run(*args: str) -> Done:
        capsys.readouterr()
        code = execute(args)
        return Done(code, *capsys.readouterr())

    yield run
    sys.modules.pop("waiting_flows", None)


IN = ("--workflows", "waiting_flows")


def recorded(cli: Cli, workflow: str, run_id: str, **inputs: object) -> None:
    target = f"waiting_flows:{workflow}"
    done = cli("run", target, "--detach", "--run-id", run_id, "--input", json.dumps(inputs))
    assert (done.code, done.out) == (0, f"{run_id}\n")


def waiting(cli: Cli, run_id: str = "june") -> None:
    recorded(cli, "month", run_id)
    assert cli("recover", *IN).code == 0


def status(cli: Cli, run_id: str) -> str:
    return str(cli("show", run_id, "--json").document["run"]["status"])


def test_a_detached_run_is_only_recorded(cli: Cli) -> None:
    recorded(cli, "quick", "r1", name="x")
    again = cli(
        "run", "waiting_flows:quick", "--detach", "--run-id", "r1", "--input", '{"name": "x"}', "--json"
    )
    assert (again.code, again.document["status"]) == (0, "PENDING")
    assert (
        cli("run", "waiting_flows:quick", "--detach", "--run-id", "r1", "--input", '{"name": "y"}').code == 2
    )


def test_recover_drives_what_was_recorded_and_tells_what_came_of_it(cli: Cli) -> None:
    recorded(cli, "quick", "r1", name="x")
    recorded(cli, "month", "june")
    done = cli("recover", *IN, "--json")
    assert done.code == 0
    told = {one["run_id"]: (one["workflow"], one["status"], one["error"]) for one in done.document["runs"]}
    assert told == {"r1": ("quick", "COMPLETED", None), "june": ("month", "SUSPENDED", None)}
    nothing = cli("recover", *IN)
    assert (nothing.code, nothing.out, nothing.err) == (0, "", "0 runs\n")


def test_recover_tells_of_the_chunks_of_maps_too(cli: Cli) -> None:
    recorded(cli, "shared", "r1")
    done = cli("recover", *IN, "--json")
    assert (done.document["chunks"], done.document["count"]) == ({"DONE": 2}, 2)
    assert [one["status"] for one in done.document["runs"]] == ["SUSPENDED", "COMPLETED"]
    recorded(cli, "shared", "r2")
    done = cli("recover", *IN)
    assert done.out == "r2  suspended\nr2  completed\n"
    assert done.err == "2 runs: 1 suspended, 1 completed\n2 chunks: 2 done\n"


def test_recover_says_by_its_exit_code_that_a_run_failed(cli: Cli) -> None:
    recorded(cli, "refused", "r1")
    done = cli("recover", *IN)
    assert (done.code, done.out) == (1, "r1  failed\n")
    assert cli("recover", *IN).code == 0


def test_recover_leaves_the_runs_of_unknown_workflows(cli: Cli) -> None:
    recorded(cli, "quick", "r1", name="x")
    Path("other_flows.py").write_text("from durable_core import workflow\n", encoding="utf-8")
    registered = sys.modules[Workflow.__module__]._registered
    registered.clear()
    done = cli("recover", "--workflows", "other_flows")
    assert (done.code, done.out) == (0, "")
    assert status(cli, "r1") == "PENDING"
    del sys.modules["other_flows"]


def test_show_says_what_a_run_waits_for(cli: Cli) -> None:
    waiting(cli)
    recorded(cli, "nap", "naps")
    cli("recover", *IN)
    shown = cli("show", "june").out
    assert "STARTED (waiting)" in shown
    assert "when an event comes" in shown
    assert cli("show", "june", "--json").document["run"]["wakes_at"] is None
    naps = cli("show", "naps", "--json").document
    assert naps["run"]["wakes_at"] > naps["run"]["created_at"]
    assert naps["steps"][0]["state"] == "waiting"


def test_a_run_that_is_left_waiting_gives_exit_code_5(cli: Cli) -> None:
    done = cli("run", "waiting_flows:month", "--run-id", "june", "--on-wait", "suspend")
    assert (done.code, done.out) == (5, "")
    assert "durable resume june --workflows waiting_flows" in done.err
    again = cli("resume", "june", *IN, "--on-wait", "suspend", "--json")
    assert (again.code, again.document["status"], again.document["output"]) == (5, "SUSPENDED", None)


def test_a_signal_lets_the_run_go_on(cli: Cli) -> None:
    waiting(cli)
    sent = cli("signal", "ju", "approval", '{"approved": true}', "--id", "mail-17", "--json")
    assert sent.code == 0
    assert sent.document == {"run_id": "june", "name": "approval", "event_id": "mail-17"}
    assert cli("signal", "june", "approval", '{"approved": false}', "--id", "mail-17").out == "mail-17\n"
    assert cli("recover", *IN).out == "june  completed\n"
    assert cli("resume", "june", *IN).out == '"june: True"\n'


@pytest.mark.parametrize("how", ["file", "standard input"])
def test_a_payload_comes_from_a_file_or_standard_input(
    how: str, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting(cli)
    Path("answer.json").write_text('{"approved": true}', encoding="utf-8")
    stdin = io.TextIOWrapper(io.BytesIO(b'{"approved": true}'))
    monkeypatch.setattr(sys, "stdin", stdin)
    assert cli("signal", "june", "approval", "@answer.json" if how == "file" else "-").code == 0
    assert cli("recover", *IN).out == "june  completed\n"


def test_a_payload_that_does_not_fit_is_refused_where_the_workflow_is_known(cli: Cli) -> None:
    waiting(cli)
    for payload in ('{"approved": "perhaps"}', "{}", "7"):
        refused = cli("signal", "june", "approval", payload, *IN)
        assert (refused.code, refused.out) == (2, "")
        assert "isn't what the run waits for" in refused.err
        assert "june" in refused.err
    assert status(cli, "june") == "SUSPENDED"
    assert cli("signal", "june", "another", "7", *IN).code == 0  # nobody has said yet what that must be


def test_elsewhere_it_is_the_run_that_refuses_it(cli: Cli) -> None:
    waiting(cli)
    sys.modules[Workflow.__module__]._registered.clear()
    sys.modules.pop("waiting_flows")
    assert cli("signal", "june", "approval", "7").code == 0
    assert cli("recover", *IN).code == 1
    assert cli("show", "june", "--json").document["run"]["error"]["code"] == "EVENT_INVALID"


def test_an_early_signal_waits_for_its_run(cli: Cli) -> None:
    assert cli("signal", "june", "approval", '{"approved": true}').code == 3
    assert cli("signal", "june", "approval", '{"approved": true}', "--early").code == 0
    assert cli("run", "waiting_flows:month", "--run-id", "june").out == '"june: True"\n'


def test_nothing_can_be_sent_to_a_run_that_is_over(cli: Cli) -> None:
    waiting(cli)
    assert cli("cancel", "june").out == "june: cancelled\n"
    refused = cli("signal", "june", "approval", '{"approved": true}', "--json")
    assert (refused.code, refused.document["error"]["code"]) == (2, "RUN_ENDED")
    assert exit_code(RunEnded("no")) == 2


def test_cancel_says_what_the_run_is_now(cli: Cli) -> None:
    waiting(cli)
    assert cli("cancel", "june", "--json").document["status"] == "CANCELLED"
    assert cli("cancel", "june").code == 0  # as it is
    recorded(cli, "quick", "r1", name="x")
    cli("recover", *IN)
    refused = cli("cancel", "r1")
    assert (refused.code, refused.out) == (2, "")
    assert "COMPLETED already" in refused.err


def test_skip_settles_a_failed_step(cli: Cli) -> None:
    assert cli("run", "waiting_flows:refused", "--run-id", "r1").code == 1
    done = cli("skip", "r1", "ref", "--output", '"by hand"')
    assert (done.code, done.out) == (0, "r1: refuse skipped\n")
    assert cli("resume", "r1", *IN).out == '"by hand"\n'
    assert cli("skip", "r1", "refuse").code == 2
    assert cli("skip", "r1", "nothing").code == 3


def test_fork_tells_what_it_takes_over(cli: Cli) -> None:
    cli("run", "waiting_flows:quick", "--run-id", "r1", "--input", '{"name": "x"}')
    dry = cli("fork", "r1", "--dry-run", *IN, "--json")
    assert (dry.code, dry.document["run_id"], dry.document["kept"]) == (0, None, ["prepare"])
    done = cli("fork", "r1", "--run-id", "r2", "--input", '{"name": "y"}', *IN)
    assert (done.code, done.out) == (0, "r2\n")
    assert cli("resume", "r2", *IN).out == '"y"\n'
    assert cli("fork", "r1", "--run-id", "r2", *IN).code == 2
    assert cli("fork", "r1", "--from-step", "nope", *IN).code == 3
    anew = cli("fork", "r1", "--from-step", "prep", *IN, "--json").document
    assert (anew["kept"], anew["left"]) == ([], ["prepare"])


@pytest.mark.parametrize(
    ("args", "code", "told"),
    [
        (("worker",), 2, "--workflows"),
        (("recover",), 2, "--workflows"),
        (("worker", "--workflows", "nowhere"), 2, "no module 'nowhere'"),
        (("worker", *IN, "--concurrency", "0"), 2, "--concurrency"),
        (("worker", *IN, "--drain", "-1"), 2, "--drain"),
        (("worker", *IN, "--store", "sqlite:///no/folder.db", "--log-level", "loud"), 2, "loud"),
        (("recover", *IN), 3, "durable.db"),
        (("signal", "june"), 2, "NAME"),
        (("signal", "june", "approval", "{"), 2, "no JSON"),
        (("signal", "june", "approval", "yes"), 2, "no JSON"),
        (("signal", "june", "approval", "@missing"), 2, "No such file"),
        (("signal", "june", "approval"), 3, "durable.db"),
        (("signal", "../june", "approval", "--early"), 2, "run id"),
        (("cancel", "june"), 3, "durable.db"),
        (("skip", "june", "step"), 3, "durable.db"),
        (("skip", "june", "step", "--output", "x"), 2, "no JSON"),
        (("fork", "june", *IN), 3, "durable.db"),
        (("fork", "june", "--run-id", "a/b"), 2, "run id"),
        (("run", "waiting_flows:nap", "--on-wait", "for-ever"), 2, "block or suspend"),
        (("run", "waiting_flows:nap", "--detach", "--wait"), 2, "--detach"),
    ],
)
def test_a_mistake_is_told_in_words_and_gives_its_exit_code(
    cli: Cli, args: tuple[str, ...], code: int, told: str
) -> None:
    done = cli(*args)
    assert (done.code, done.out) == (code, "")
    assert told in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize("args", [("signal", "ru", "approval"), ("cancel", "ru"), ("skip", "ru", "step")])
def test_a_beginning_that_several_runs_have_is_refused(cli: Cli, args: tuple[str, ...]) -> None:
    recorded(cli, "nap", "run1")
    recorded(cli, "nap", "run2")
    done = cli(*args)
    assert done.code == 2
    assert "run2, run1" in done.err
    assert cli("cancel", "nope").code == 3


@pytest.mark.parametrize(
    "command", ["worker", "recover", "signal", "cancel", "skip", "fork", "run", "resume"]
)
def test_help_has_an_example(cli: Cli, command: str) -> None:
    done = cli(command, "--help")
    assert done.code == 0
    assert f"Example: durable {command}" in done.out
