"""Log lines: which run and step they belong to, where they go, and what they never hold."""

from __future__ import annotations

import contextvars
import json
import logging
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import structlog

import durable_core
from durable_core import (
    Context,
    DurableWorkflowExecutor,
    Retry,
    add_run_context,
    configure_logging,
    current_step,
    step,
    workflow,
)
from durable_core.errors import RunFailed, UsageError
from durable_core.log import ensure_configured, get_logger

MARKER = "m4rk3r-in-a-payload"


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


@step(retry=Retry(max_attempts=2, initial_delay_s=0))
async def flaky(text: str) -> str:
    get_logger("mine").info("in_the_body")
    if current_step().attempt == 1:
        raise ValueError(f"no {text}")
    return text


@step
async def poison(text: str) -> str:
    raise ValueError(text)


@workflow(name="logged")
async def logged(ctx: Context, text: str) -> str:
    ctx.log.info("in_the_workflow", mine=1)
    found = await ctx.step(flaky, text)
    try:
        await ctx.step(poison, text)
    except Exception:
        ctx.log.warning("caught")
    return found


@workflow(name="fails")
async def fails(ctx: Context, text: str) -> str:
    return await ctx.step(poison, text)


async def run_both() -> None:
    async with DurableWorkflowExecutor("memory://") as executor:
        assert (await executor.run(logged, run_id="r1", text=MARKER)).output == MARKER
        with pytest.raises(RunFailed):
            await executor.run(fails, run_id="r2", text=MARKER)


async def test_every_line_names_its_run_and_step_and_goes_to_stderr(
    capsys: pytest.CaptureFixture[str],
) -> None:
    configure_logging(level="debug", style="json")
    await run_both()
    out, err = capsys.readouterr()
    assert out == ""
    found = lines(err)
    assert {line["run_id"] for line in found} == {"r1", "r2"}
    assert {line["fence"] for line in found} == {1}
    body = [line for line in found if line["event"] == "in_the_body"]
    assert [(line["step_id"], line["attempt"]) for line in body] == [("flaky", 1), ("flaky", 2)]
    raised = next(line for line in found if line["event"] == "step_raised")
    assert (raised["step_id"], raised["attempt"], raised["error"]) == ("flaky", 1, "ValueError")
    committed = next(line for line in found if line["event"] == "step_committed")
    assert (committed["step_id"], committed["attempt"]) == ("flaky", 2)
    failed = [line for line in found if line["event"] == "step_failed"]
    assert [(line["run_id"], line["step_id"]) for line in failed] == [("r1", "poison"), ("r2", "poison")]
    mine = next(line for line in found if line["event"] == "in_the_workflow")
    assert (mine["run_id"], mine["mine"], "step_id" in mine) == ("r1", 1, False)
    assert all(line["level"] and line["timestamp"] and line["logger"] for line in found)


@pytest.mark.parametrize("style", ["json", "console"])
async def test_no_line_holds_an_input_an_output_or_an_exceptions_text(
    style: str, capsys: pytest.CaptureFixture[str]
) -> None:
    configure_logging(level="debug", style=style)
    await run_both()
    out, err = capsys.readouterr()
    assert "run_failed" in err
    assert MARKER not in out + err


@pytest.mark.parametrize("style", ["json", "console"])
def test_a_logged_traceback_shows_no_variables(style: str, capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(style=style)

    def body(payload: str) -> None:
        raise ValueError("no luck")

    try:
        body("-".join(("m4rk3r", "in", "a", "payload")))  # so that no line of source has it
    except ValueError:
        get_logger("mine").exception("it_raised")
    told = capsys.readouterr().err
    assert "no luck" in told
    assert "body" in told
    assert MARKER not in told


async def test_the_level_decides_what_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DURABLE_LOG_LEVEL", "ERROR")
    await run_both()
    assert {line["level"] for line in lines(capsys.readouterr().err)} == {"error"}
    configure_logging(level="critical")
    await run_both()
    assert capsys.readouterr().err == ""


async def test_without_any_setting_steps_that_commit_are_not_told(capsys: pytest.CaptureFixture[str]) -> None:
    await run_both()
    events = {line["event"] for line in lines(capsys.readouterr().err)}
    assert "run_completed" in events
    assert "step_committed" not in events


@pytest.mark.parametrize(("option", "value"), [("level", "loud"), ("level", ""), ("style", "xml")])
def test_an_unknown_level_or_style_is_refused_and_the_known_are_named(option: str, value: str) -> None:
    with pytest.raises(UsageError, match=r"debug|console"):
        configure_logging(**{option: value})


@pytest.mark.parametrize(
    ("variable", "value"), [("DURABLE_LOG_LEVEL", "loud"), ("DURABLE_LOG_FORMAT", "xml")]
)
def test_an_unknown_setting_is_refused(variable: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(UsageError, match=value):
        DurableWorkflowExecutor("memory://")


async def test_the_applications_structlog_is_used_and_its_lines_name_run_and_step_too() -> None:
    seen: list[dict[str, Any]] = []

    def keep(_: object, method: str, event: Any) -> Any:
        seen.append({**event, "method": method})
        raise structlog.DropEvent

    structlog.configure(processors=[keep], logger_factory=structlog.ReturnLoggerFactory())
    await run_both()
    events = {line["event"] for line in seen}
    assert events >= {"run_started", "in_the_workflow", "in_the_body", "step_failed", "run_failed"}
    body = next(line for line in seen if line["event"] == "in_the_body")
    assert (body["run_id"], body["step_id"], body["attempt"], body["fence"]) == ("r1", "flaky", 1, 1)
    assert MARKER not in repr(seen)


async def test_the_standard_librarys_loggers_get_the_lines_when_the_application_says_so(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, structlog.processors.JSONRenderer()],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
    )
    with caplog.at_level(logging.WARNING):
        await run_both()
    told = [(record.name, json.loads(record.message)["event"]) for record in caplog.records]
    assert ("durable_core", "step_failed") in told
    assert ("durable_core.workflow", "caught") in told
    assert "run_started" not in {event for _, event in told}
    assert capsys.readouterr() == ("", "")


def test_an_application_that_configures_structlog_after_it_made_its_executor_is_heard_too() -> None:
    seen: list[str] = []

    def keep(_: object, __: str, event: Any) -> Any:
        seen.append(event["event"])
        raise structlog.DropEvent

    executor = DurableWorkflowExecutor("memory://")
    structlog.configure(processors=[keep], logger_factory=structlog.ReturnLoggerFactory())
    executor.blocking.run(logged, run_id="r1", text="x")
    assert "run_started" in seen


def test_outside_a_run_nothing_is_added() -> None:
    assert add_run_context(None, "info", {"event": "x"}) == {"event": "x"}


async def test_what_a_line_says_itself_is_not_overwritten() -> None:
    seen: list[dict[str, Any]] = []

    @workflow(name="says_it")
    async def wf(ctx: Context) -> None:
        seen.append(dict(add_run_context(None, "info", {"event": "x", "run_id": "another"})))

    async with DurableWorkflowExecutor("memory://") as executor:
        await executor.run(wf, run_id="r1")
    assert seen == [{"event": "x", "run_id": "another", "fence": 1}]


def test_colours_are_for_terminals_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for terminal, no_color, coloured in ((True, None, True), (True, "1", False), (False, None, False)):
        monkeypatch.setattr(sys.stderr, "isatty", lambda terminal=terminal: terminal, raising=False)
        monkeypatch.delenv("NO_COLOR", raising=False)
        if no_color:
            monkeypatch.setenv("NO_COLOR", no_color)
        configure_logging(style="console")
        get_logger("x").info("hello")
        assert ("\x1b[" in capsys.readouterr().err) is coloured


# ---- What a step writes itself ----

MODULES_OWN = structlog.get_logger()


@step
async def talks(text: str) -> str:
    MODULES_OWN.info("by_structlog", mine=1)
    current_step().log.info("by_the_step")
    return text


@step
def talks_in_a_thread(text: str) -> str:
    structlog.get_logger("mine").warning("by_structlog", mine=2)
    return text


@workflow(name="talking")
async def talking(ctx: Context) -> None:
    structlog.get_logger().info("by_the_workflow")
    await ctx.step(talks, "x")
    await ctx.step(talks_in_a_thread, "x")


async def talk() -> None:
    async with DurableWorkflowExecutor("memory://") as executor:
        await executor.run(talking, run_id="r1")


async def test_a_steps_own_lines_name_run_and_step_and_go_to_stderr(
    capsys: pytest.CaptureFixture[str],
) -> None:
    await talk()
    out, err = capsys.readouterr()
    assert out == ""
    ids = ("event", "run_id", "fence", "step_id", "attempt")
    found = [tuple(line.get(key) for key in ids) for line in lines(err) if line["event"].startswith("by_")]
    assert found == [
        ("by_the_workflow", "r1", 1, None, None),
        ("by_structlog", "r1", 1, "talks", 1),
        ("by_the_step", "r1", 1, "talks", 1),
        ("by_structlog", "r1", 1, "talks_in_a_thread", 1),
    ]


async def test_a_steps_own_lines_look_like_all_others(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DURABLE_LOG_FORMAT", "console")
    monkeypatch.setenv("DURABLE_LOG_LEVEL", "warning")
    await talk()
    out, err = capsys.readouterr()
    (line,) = err.splitlines()
    assert out == ""
    assert "warning" in line
    assert {"run_id=r1", "fence=1", "step_id=talks_in_a_thread", "attempt=1", "mine=2"} <= set(line.split())


async def test_an_application_that_configures_structlog_can_have_the_ids_in_all_its_lines() -> None:
    seen: list[dict[str, Any]] = []

    def keep(_: object, __: str, event: Any) -> Any:
        seen.append(dict(event))
        raise structlog.DropEvent

    structlog.configure(processors=[add_run_context, keep], logger_factory=structlog.ReturnLoggerFactory())
    await talk()
    mine = [line for line in seen if line["event"] == "by_structlog"]
    assert [(line["run_id"], line["fence"], line["step_id"], line["attempt"]) for line in mine] == [
        ("r1", 1, "talks", 1),
        ("r1", 1, "talks_in_a_thread", 1),
    ]
    assert "run_started" in {line["event"] for line in seen}


async def test_a_steps_logger_names_it_in_a_thread_that_the_step_has_started(
    capsys: pytest.CaptureFixture[str],
) -> None:
    @step
    async def delegates() -> None:
        info = current_step()
        thread = threading.Thread(
            target=contextvars.Context().run, args=(lambda: info.log.info("elsewhere", mine=1),)
        )
        thread.start()
        thread.join()

    @workflow(name="delegating")
    async def wf(ctx: Context) -> None:
        await ctx.step(delegates)

    async with DurableWorkflowExecutor("memory://") as executor:
        await executor.run(wf, run_id="r1")
    line = next(line for line in lines(capsys.readouterr().err) if line["event"] == "elsewhere")
    assert (line["run_id"], line["fence"], line["step_id"], line["attempt"], line["mine"]) == (
        "r1", 1, "delegates", 1, 1,
    )  # fmt: skip


@pytest.mark.parametrize(
    "changed",
    [
        {"processors": [structlog.processors.KeyValueRenderer()]},
        {"wrapper_class": structlog.make_filtering_bound_logger(logging.ERROR)},
        {"logger_factory": structlog.ReturnLoggerFactory()},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_what_the_application_configures_of_structlog_stays_however_little_it_is(
    changed: dict[str, Any],
) -> None:
    ensure_configured()
    structlog.configure(**changed)
    before = structlog.get_config()
    ensure_configured()
    DurableWorkflowExecutor("memory://")
    assert structlog.get_config() == before
    ((name, value),) = changed.items()
    assert structlog.get_config()[name] is value


async def test_settings_that_changed_count_for_the_next_executor(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DURABLE_LOG_LEVEL", "critical")
    await talk()
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("DURABLE_LOG_LEVEL", "info")
    await talk()
    assert "by_structlog" in capsys.readouterr().err


def test_a_wrong_setting_changes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(level="error", style="json")
    with pytest.raises(UsageError):
        configure_logging(level="debug", style="xml")
    get_logger("x").info("hello")
    assert capsys.readouterr().err == ""


def test_lines_follow_standard_error_wherever_it_leads(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ensure_configured()
    bound = structlog.get_logger().bind(x=1)
    other = sys.stdout
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", other)
        bound.info("first")
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", None)
        bound.info("into_the_void")
    bound.info("second")
    out, err = capsys.readouterr()
    assert [line["event"] for line in lines(out)] == ["first"]
    assert [line["event"] for line in lines(err)] == ["second"]


def test_a_standard_error_that_nobody_reads_fails_no_run() -> None:
    script = (
        "import os, sys\n"
        "from durable_core import *\n"
        "read, write = os.pipe(); os.close(read); os.dup2(write, 2)\n"
        "@workflow\n"
        "async def wf(ctx: Context) -> int:\n"
        "    ctx.log.info('x'); return 7\n"
        "print(DurableWorkflowExecutor('memory://').blocking.run(wf).output, flush=True)\n"
        "os._exit(0)\n"
    )
    root = str(Path(durable_core.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": root},
        capture_output=True,
        check=False,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, "7\n")
