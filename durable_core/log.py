"""Log lines: structlog, to stderr, each with the run and step it belongs to; never with payloads."""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING, Any, Final, cast

import structlog

from durable_core.current import StepInfo, here
from durable_core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from structlog.typing import FilteringBoundLogger, Processor

LEVEL_VARIABLE: Final = "DURABLE_LOG_LEVEL"
FORMAT_VARIABLE: Final = "DURABLE_LOG_FORMAT"
LEVELS: Final = ("debug", "info", "warning", "error", "critical")
FORMATS: Final = ("console", "json")

_chosen: dict[str, str] = {}


def configure_logging(level: str | None = None, style: str | None = None) -> None:
    """Sets how this package logs, for an application that doesn't configure structlog itself.

    Args:
        level: debug, info, warning, error or critical; `DURABLE_LOG_LEVEL`, else info, when None.
        style: console or json; `DURABLE_LOG_FORMAT`, else console on a terminal and json elsewhere, when
            None.

    Raises:
        UsageError: Another level or style.
    """
    if level is not None:
        _chosen["level"] = _one_of(level, LEVELS, "log level")
    if style is not None:
        _chosen["style"] = _one_of(style, FORMATS, "log format")


def get_logger(name: str) -> FilteringBoundLogger:
    """A logger whose lines name run and step: by the application's structlog, else to stderr."""
    if structlog.is_configured():
        config = structlog.get_config()
        found = structlog.wrap_logger(
            config["logger_factory"](name), processors=[add_run_context, *config["processors"]]
        )
    else:
        found = structlog.wrap_logger(
            structlog.PrintLogger(sys.stderr),  # structlog's own default is stdout, where results are printed
            processors=_processors(),
            wrapper_class=structlog.make_filtering_bound_logger(_level()),
        )
    return cast("FilteringBoundLogger", found.bind(logger=name))


def add_run_context(_: object, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Adds `run_id` and `fence`, and `step_id` and `attempt` inside a step. A structlog processor."""
    info = here.get()
    if info is not None:
        event.setdefault("run_id", info.run_id)
        event.setdefault("fence", info.fence)
        if isinstance(info, StepInfo):
            event.setdefault("step_id", info.step_id)
            event.setdefault("attempt", info.attempt)
    return event


def _processors() -> list[Processor]:
    style = _chosen.get("style") or _one_of(
        os.environ.get(FORMAT_VARIABLE) or ("console" if sys.stderr.isatty() else "json"),
        FORMATS,
        FORMAT_VARIABLE,
    )
    shared: list[Processor] = [
        add_run_context,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if style == "console":
        return [
            *shared,
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty() and "NO_COLOR" not in os.environ),
        ]
    return [*shared, structlog.processors.dict_tracebacks, structlog.processors.JSONRenderer()]


def _level() -> int:
    level = _chosen.get("level") or _one_of(os.environ.get(LEVEL_VARIABLE) or "info", LEVELS, LEVEL_VARIABLE)
    return logging.getLevelNamesMapping()[level.upper()]


def _one_of(value: str, allowed: tuple[str, ...], what: str) -> str:
    if value.lower() not in allowed:
        raise UsageError(f"{value!r} is no {what}", remedy=f"Use one of: {', '.join(allowed)}")
    return value.lower()
