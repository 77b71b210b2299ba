"""The options that commands share."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from durable_core.cli.completing import runs_beginning
from durable_core.errors import UsageError
from durable_core.log import LEVEL_VARIABLE, LEVELS, configure_logging

StoreUrl = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        help="The store, such as sqlite:///runs.db. Default: DURABLE_STORE, else sqlite:///durable.db here.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on standard output; errors too.")]
RunId = Annotated[
    str,
    typer.Argument(
        metavar="RUN_ID", help="The run; the beginning of its id is enough.", autocompletion=runs_beginning
    ),
]
Wait = Annotated[bool, typer.Option("--wait", help="If another process drives the run: wait for it.")]


def _checked_on_wait(given: str) -> str:
    if given not in ("block", "suspend"):
        raise UsageError(f"--on-wait {given!r} is unknown", remedy="Use block or suspend")
    return given


OnWait = Annotated[
    str,
    typer.Option(
        "--on-wait",
        metavar="block|suspend",
        callback=_checked_on_wait,
        help="When everything in the run waits: wait here, or leave it to a worker (exit code 5).",
    ),
]
Workflows = Annotated[
    list[str] | None,
    typer.Option(
        "--workflows", metavar="MODULE", help="Where workflows are defined. Default: DURABLE_WORKFLOWS."
    ),
]
LogLevel = Annotated[
    str | None,
    typer.Option(
        "--log-level",
        metavar="LEVEL",
        help=f"{', '.join(LEVELS)}. Default: DURABLE_LOG_LEVEL, else warning on a terminal, info elsewhere.",
    ),
]
LogFormat = Annotated[
    str | None,
    typer.Option(
        "--log-format",
        metavar="FORMAT",
        help="console or json. Default: DURABLE_LOG_FORMAT, else console on a terminal and json elsewhere.",
    ),
]


def set_up_logging(level: str | None, style: str | None) -> bool:
    """How log lines look: on a terminal the progress line says what info lines would.

    Returns:
        Whether the level is debug, so that tracebacks are shown too.

    Raises:
        UsageError: Another level or format.
    """
    named = level or os.environ.get(LEVEL_VARIABLE)
    if not named and sys.stderr.isatty():
        level = "warning"
    configure_logging(level, style)
    return (named or "").lower() == "debug"
