"""Log lines: which run and step they belong to, where they go, and what they never hold."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from durable_core import (
    Context,
    DurableWorkflowExecutor,
    Retry,
    configure_logging,
    current_step,
    log,
    step,
    workflow,
)
from durable_core.errors import RunFailed, UsageError
from durable_core.log import add_run_context, get_logger

MARKER = "m4rk3r-in-a-payload"


@pytest.fixture(autouse=True)
def _nothing_is_configured() -> Iterator[None]:
    log._chosen.clear()
    structlog.reset_defaults()
    yield
    log._chosen.clear()
    structlog.reset_defaults()


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
    configure_logging(style="console")
    for terminal, no_color, coloured in ((True, None, True), (True, "1", False), (False, None, False)):
        monkeypatch.setattr(sys.stderr, "isatty", lambda terminal=terminal: terminal, raising=False)
        monkeypatch.delenv("NO_COLOR", raising=False)
        if no_color:
            monkeypatch.setenv("NO_COLOR", no_color)
        get_logger("x").info("hello")
        assert ("\x1b[" in capsys.readouterr().err) is coloured
