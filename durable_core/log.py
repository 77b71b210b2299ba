"""Log lines: structlog, to stderr, each with the run and step it belongs to; never with payloads."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
from typing import TYPE_CHECKING, Any, Final, cast

import structlog

from durable_core.current import StepInfo, here
from durable_core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import MutableMapping, Sequence

    from structlog.typing import FilteringBoundLogger, Processor

LEVEL_VARIABLE: Final = "DURABLE_LOG_LEVEL"
FORMAT_VARIABLE: Final = "DURABLE_LOG_FORMAT"
LEVELS: Final = ("debug", "info", "warning", "error", "critical")
FORMATS: Final = ("console", "json")

_chosen: dict[str, str] = {}
_added: list[Processor] = []
_installed: list[object] = []  # what `_install` gave structlog last: anything else there is the application's
_writing = threading.Lock()  # steps may log in several threads


def configure_logging(
    level: str | None = None, style: str | None = None, *, processors: Sequence[Processor] | None = None
) -> None:
    """Configures structlog: lines to standard error, each with the run and step it belongs to.

    It holds for the whole process, also for what steps log through `structlog.get_logger()`. An executor does
    this where structlog isn't configured; a later `structlog.configure` of the application replaces it.

    Args:
        level: debug, info, warning, error or critical; None: as chosen before, else `DURABLE_LOG_LEVEL`, else
            info.
        style: console or json; None: as chosen before, else `DURABLE_LOG_FORMAT`, else console on a terminal
            and json elsewhere.
        processors: structlog's, that every line goes through as well; None: as chosen before, else none.

    Raises:
        UsageError: Another level or style.
    """
    chosen = dict(_chosen)
    if level is not None:
        chosen["level"] = _one_of(level, LEVELS, "log level")
    if style is not None:
        chosen["style"] = _one_of(style, FORMATS, "log format")
    _install(chosen, _added if processors is None else processors)
    _chosen.update(chosen)
    if processors is not None:
        _added[:] = processors


def ensure_configured() -> None:
    """Configures structlog unless the application has; settings that have changed since count.

    Raises:
        UsageError: `DURABLE_LOG_LEVEL` or `DURABLE_LOG_FORMAT` is wrong.
    """
    if not structlog.is_configured() or _is_ours():
        _install(_chosen, _added)


def get_logger(name: str) -> FilteringBoundLogger:
    """A logger whose lines name run and step, whoever configured structlog."""
    if not structlog.is_configured():
        ensure_configured()
    config = structlog.get_config()
    processors = config["processors"]
    if not any(one is add_run_context for one in processors):
        processors = [add_run_context, *processors]
    found = structlog.wrap_logger(config["logger_factory"](name), processors=processors)
    return cast("FilteringBoundLogger", found.bind(logger=name))


def add_run_context(_: object, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Adds `run_id` and `fence`, and `step_id` and `attempt` inside a step.

    A structlog processor, for an application that configures structlog itself: put it first.
    """
    info = here.get()
    if info is not None:
        event.setdefault("run_id", info.run_id)
        event.setdefault("fence", info.fence)
        if isinstance(info, StepInfo):
            event.setdefault("step_id", info.step_id)
            event.setdefault("attempt", info.attempt)
    return event


class _ToStderr:
    """Writes to what standard error is at that moment: a status line takes its place for a while."""

    def msg(self, line: str) -> None:
        if sys.stderr is not None:
            with _writing, contextlib.suppress(OSError):  # nobody reads it any more: no reason to fail a run
                sys.stderr.write(f"{line}\n")
                sys.stderr.flush()

    log = debug = info = warn = warning = error = err = critical = fatal = failure = exception = msg


def _logger_factory(*_: object) -> _ToStderr:
    return _ToStderr()


def _install(chosen: dict[str, str], added: Sequence[Processor]) -> None:
    processors, level = _processors(chosen, added), _level(chosen)
    wrapper = structlog.make_filtering_bound_logger(level)
    structlog.configure(
        processors=processors,
        wrapper_class=wrapper,
        context_class=dict,
        logger_factory=_logger_factory,
        cache_logger_on_first_use=False,  # a module's logger is to heed a later configuration
    )
    _installed[:] = processors, wrapper


def _is_ours() -> bool:
    """Whether all of it is: `structlog.configure` leaves what it isn't given as it was."""
    config = structlog.get_config()
    found = config["processors"], config["wrapper_class"]
    return config["logger_factory"] is _logger_factory and all(
        one is other for one, other in zip(found, _installed, strict=False)
    )


def _processors(chosen: dict[str, str], added: Sequence[Processor]) -> list[Processor]:
    style = chosen.get("style") or _one_of(
        os.environ.get(FORMAT_VARIABLE) or ("console" if _is_terminal() else "json"),
        FORMATS,
        FORMAT_VARIABLE,
    )
    shared: list[Processor] = [
        add_run_context,
        *added,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if style == "console":
        coloured = _is_terminal() and "NO_COLOR" not in os.environ
        plain = structlog.dev.plain_traceback
        return [*shared, structlog.dev.ConsoleRenderer(colors=coloured, exception_formatter=plain)]
    # By default both would show the variables of each frame, and payloads are among them.
    told = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
    return [*shared, structlog.processors.ExceptionRenderer(told), structlog.processors.JSONRenderer()]


def _is_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


def _level(chosen: dict[str, str]) -> int:
    level = chosen.get("level") or _one_of(os.environ.get(LEVEL_VARIABLE) or "info", LEVELS, LEVEL_VARIABLE)
    return logging.getLevelNamesMapping()[level.upper()]


def _one_of(value: str, allowed: tuple[str, ...], what: str) -> str:
    if value.lower() not in allowed:
        raise UsageError(f"{value!r} is no {what}", remedy=f"Use one of: {', '.join(allowed)}")
    return value.lower()
