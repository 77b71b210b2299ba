"""`durable list`: which runs are in a store, page by page, or as they change."""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer

from durable_core.cli import output
from durable_core.cli.ages import parse_age
from durable_core.cli.facts import run_facts
from durable_core.cli.finding import complete_run_id, named_store
from durable_core.cli.jsonable import as_document
from durable_core.cli.options import AsJson, StoreUrl  # noqa: TC001 - typer reads them at run time
from durable_core.cli.outcome import CORRUPT
from durable_core.cli.render import runs_table
from durable_core.clock import SystemClock
from durable_core.engine.looking import wanted as checked
from durable_core.errors import RunNotFound, UsageError
from durable_core.identity import check_id
from durable_core.records import LISTED

if TYPE_CHECKING:
    from collections.abc import Callable

    from durable_core.cli.facts import Document
    from durable_core.journal.base import RunFilter
    from durable_core.records import RunHeader
    from durable_core.store import Store

_PAGE: Final = 1000
_DEFAULT_LIMIT: Final = 100
_LONGEST: Final = timedelta(days=36_500)


def list_runs(
    status: Annotated[
        str | None, typer.Option("--status", metavar="STATUS", help=f"Only these: {', '.join(LISTED)}.")
    ] = None,
    workflow: Annotated[
        str | None, typer.Option("--workflow", metavar="NAME", help="Only runs of this workflow.")
    ] = None,
    text: Annotated[
        str | None,
        typer.Option(
            "--text", metavar="TEXT", help="Only runs with this in id, workflow, session, origin, error."
        ),
    ] = None,
    newer_than: Annotated[
        str | None, typer.Option("--newer-than", metavar="AGE", help="Only those created since: 2h, 7d.")
    ] = None,
    older_than: Annotated[
        str | None, typer.Option("--older-than", metavar="AGE", help="Only those created before that.")
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", min=1, metavar="N", help="The most that are shown.")
    ] = _DEFAULT_LIMIT,
    after: Annotated[
        str | None,
        typer.Option("--after", metavar="RUN_ID", help="The next page: what comes after it."),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Look again and again, until Ctrl-C.")] = False,
    every_s: Annotated[
        float, typer.Option("--every", min=0.2, metavar="SECONDS", help="How often, with --watch.")
    ] = 2.0,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """List runs, newest first.

    A damaged record is marked, and the others are shown all the same; the exit code is then 6.

    Example: durable list --status FAILED --newer-than 1d --text ConnectionError
    """
    if status is not None and status.upper() not in LISTED:
        raise UsageError(f"{status!r} is no status of a run", remedy=f"Use one of: {', '.join(LISTED)}")
    asked = _Asked(
        status=status.upper() if status is not None else None,
        workflow=check_id(workflow, "workflow name") if workflow is not None else None,
        text=text,
        newer_than=_age(newer_than, "--newer-than"),
        older_than=_age(older_than, "--older-than"),
        limit=limit,
        after=after,
    )
    asked.as_filter()  # what is wrong with it is told before a store is opened

    def look() -> _Found:
        return asyncio.run(_found(named_store(store), asked))

    if watch:
        if as_json or not sys.stdout.isatty():
            raise UsageError(
                "--watch is for terminals", remedy="Leave it out, or follow one run with `durable watch RUN`"
            )
        _watch(look, every_s)
        return
    found = look()
    if as_json:
        for run in found.runs:
            if run["error"]:
                del run["error"]["traceback"]
        output.write(as_document({**found._asdict(), "count": len(found.runs)}))
    else:
        output.write(runs_table(found.runs, more=found.more))
    if any(run["corrupt"] for run in found.runs):
        raise typer.Exit(CORRUPT)


class _Asked(NamedTuple):
    """Which runs."""

    status: str | None
    workflow: str | None
    text: str | None
    newer_than: timedelta | None
    older_than: timedelta | None
    limit: int
    after: str | None

    def as_filter(self) -> RunFilter:
        """As a journal takes it, by the time as it is now."""
        now = datetime.now(UTC)
        return checked(
            status=self.status,
            workflow=self.workflow,
            text=self.text,
            since=now - self.newer_than if self.newer_than is not None else None,
            until=now - self.older_than if self.older_than is not None else None,
            limit=self.limit,
        )


class _Found(NamedTuple):
    """One page.

    Attributes:
        more: Whether there are more.
        next: What `--after` takes for the page after this; None at the end.
    """

    runs: list[Document]
    more: bool
    next: str | None


def _age(given: str | None, option: str) -> timedelta | None:
    found = parse_age(given, option) if given is not None else None
    if found is not None and found > _LONGEST:
        raise UsageError(f"{option} {given!r:.40} is longer than {_LONGEST.days} days")
    return found


async def _found(store: Store, asked: _Asked) -> _Found:
    """The newest headers that fit."""
    found: list[RunHeader] = []
    journal, wanted = store.journal, asked.as_filter()
    try:
        await journal.open(create=False)
        if asked.after is not None:
            wanted = replace(wanted, before=await _place(store, asked.after))
        while len(found) <= asked.limit:
            portion = min(_PAGE, asked.limit + 1 - len(found))
            page = await journal.runs(replace(wanted, limit=portion))
            found += page
            if len(page) < portion:
                break
            wanted = replace(wanted, before=(page[-1].created_at, page[-1].run_id))
    finally:
        await store.close()
    now_ms = SystemClock().now_ms()
    runs = [run_facts(header, now_ms) for header in found[: asked.limit]]
    more = len(found) > asked.limit
    return _Found(runs, more, runs[-1]["run_id"] if more else None)


async def _place(store: Store, given: str) -> tuple[str, str]:
    """Where a run is in the listing."""
    run_id = await complete_run_id(store.journal, given, store.url)
    header = await store.journal.header(run_id)
    if header is None:
        raise RunNotFound("the run was removed meanwhile", run_id=run_id)
    return header.created_at, run_id


def _watch(look: Callable[[], _Found], every_s: float) -> None:
    """Draws the listing over itself."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(file=sys.stdout, markup=False, highlight=False, emoji=False)  # heeds NO_COLOR
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        while True:
            found = look()
            live.update(Text.from_ansi(runs_table(found.runs, more=found.more)), refresh=True)
            time.sleep(every_s)
