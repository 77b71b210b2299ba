"""`durable doctor`: whether runs can be driven here, and what to do if not."""

from __future__ import annotations

import asyncio
import platform
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import typer

from durable_core.cli import output
from durable_core.cli.jsonable import as_document
from durable_core.cli.options import AsJson, StoreUrl, set_up_logging
from durable_core.cli.outcome import UNAVAILABLE
from durable_core.health import FAIL, OK, WARN, Check
from durable_core.store_urls import store_url
from durable_core.stores import examine_store, open_store

if TYPE_CHECKING:
    from collections.abc import Iterator


def doctor(store: StoreUrl = None, as_json: AsJson = False) -> None:
    """Examine the store: is it within reach, and do schema, permissions, clock, versions and room do?

    Each line is ok, warn or fail, with what to do about it. What is tried is taken back. Exit code 7 if
    anything fails.

    Example: durable doctor --store postgresql://jobs@db.example/work
    """
    set_up_logging(None, None)
    url = store_url(store, None, None)
    shown = open_store(url).url
    checks: list[Check] = []
    for check in (*_here(), *asyncio.run(_examined(url))):
        checks.append(check)
        if not as_json:
            output.write(_line(check))
    failed = sum(check.state == FAIL for check in checks)
    if as_json:
        document: dict[str, Any] = {"store": shown, "checks": [check._asdict() for check in checks]}
        warned = sum(check.state == WARN for check in checks)
        output.write(as_document({**document, "failed": failed, "warned": warned}))
    if failed:
        raise typer.Exit(UNAVAILABLE)


async def _examined(url: str) -> list[Check]:
    return await asyncio.to_thread(lambda: list(examine_store(url)))


def _here() -> Iterator[Check]:
    """What this process is."""
    told = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    yield Check("python", OK, told)
    packages = ("durable-core", "pydantic", "zstandard", "structlog")
    yield Check("packages", OK, ", ".join(f"{name} {version(name)}" for name in packages))


def _line(check: Check) -> str:
    text = f"{check.state:<4}  {check.name:<20}  {output.clean(check.message)}\n"
    if check.remedy is not None:
        text += f"{'':<28}{output.clean(check.remedy)}\n"
    return text
