"""`durable watch`: follows a run to its end, whoever drives it. It only reads."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from durable_core.cli import output
from durable_core.cli.facts import run_facts, step_facts
from durable_core.cli.finding import named_store
from durable_core.cli.maps import map_counts
from durable_core.cli.options import AsJson, RunId, StoreUrl  # noqa: TC001 - typer reads them at run time
from durable_core.cli.outcome import CORRUPT, DONE, RUN_FAILED
from durable_core.cli.reading import run_of
from durable_core.cli.render import counts, duration, map_progress, moment, run_status, step_status
from durable_core.clock import SystemClock, epoch_ms, rfc3339
from durable_core.errors import CorruptRecord, RunNotFound
from durable_core.records import COMPLETED, ENDED, ITEM_KIND, JOIN_KIND, MAP_KIND, STARTED
from durable_core.records import CORRUPT as CORRUPT_RUN

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from durable_core.cli.facts import Document
    from durable_core.records import RunHeader
    from durable_core.store import Store

_SHARE_OF_TIME: Final = 10  # looking at a long run may cost a tenth of the time
_MOST_RUNNING: Final = 12


class _Look(NamedTuple):
    """A run as it was at one moment.

    Attributes:
        changed: Steps that stand otherwise than at the look before.
        running: Steps that have begun and have no outcome.
    """

    at: str
    run: Document
    counts: dict[str, int]
    changed: list[Document]
    running: list[Document]


def watch(
    run_id: RunId,
    every_s: Annotated[
        float, typer.Option("--every", min=0.1, metavar="SECONDS", help="How often to look.")
    ] = 1.0,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Follow a run to its end: on a terminal what it does now, in a pipe a line for each change.

    With --json each line is a JSON document. The exit code is that of the run: 0 completed, 1 failed or
    cancelled. Ctrl-C ends the watching, not the run.

    Example: durable watch june
    """
    opened = named_store(store)
    with _told(as_json) as tell:
        last = asyncio.run(_followed(opened, run_id, every_s, tell))
    if not as_json:
        output.write(f"{last.run['run_id']}: {run_status(last.run)}, {counts(last.counts) or 'no steps'}\n")
    if code := _code(last.run):
        raise typer.Exit(code)


def _code(run: Document) -> int:
    if run["corrupt"]:
        return CORRUPT
    return DONE if run["status"] == COMPLETED else RUN_FAILED


async def _followed(store: Store, given: str, every_s: float, tell: Callable[[_Look], None]) -> _Look:
    try:
        header, _ = await run_of(store, given)
        known: dict[str, tuple[str, int]] = {}
        while True:
            began = time.monotonic()
            look = await _look(store, header, known)
            tell(look)
            if look.run["status"] in (*ENDED, CORRUPT_RUN):
                return look
            await asyncio.sleep(max(every_s, (time.monotonic() - began) * _SHARE_OF_TIME))
            found = await store.journal.header(header.run_id)
            if found is None:
                raise RunNotFound("the run was removed meanwhile", run_id=header.run_id)
            header = found
    finally:
        await store.close()


async def _look(store: Store, header: RunHeader, known: dict[str, tuple[str, int]]) -> _Look:
    """What there is now.

    Args:
        store: Open.
        header: Of the run, read before its steps: an end that it tells of is the end of these, too.
        known: How each step stood before; brought up to date.
    """
    now_ms = SystemClock().now_ms()
    run = run_facts(header, now_ms)
    tally: Counter[str] = Counter()
    changed, running = [], []
    async for step in _steps(store, header, run):
        tally[str(step["status"])] += 1
        stands = str(step["status"]), step["attempt"]
        if known.get(step["step_id"]) != stands:
            known[step["step_id"]] = stands
            changed.append(step)
        if step["status"] == STARTED:
            running.append(step)
    changed.sort(key=lambda step: str(step["committed_at"] or step["started_at"]))
    return _Look(rfc3339(now_ms), run, dict(tally), changed, running)


async def _steps(store: Store, header: RunHeader, run: Document) -> AsyncIterator[Document]:
    """The steps outside the items of maps; of a map that runs, how far it is."""
    async for page in store.journal.replay(header.run_id):
        for record in page:
            if record.kind in (JOIN_KIND, ITEM_KIND) or record.fence <= header.base_fence:
                continue
            step = step_facts(record, run)
            if record.kind == MAP_KIND and record.status == STARTED:
                with contextlib.suppress(CorruptRecord):  # `show` tells what is wrong with it
                    step["items"] = await map_counts(store, header, record)
            yield step


# ---- Telling it ----


@contextlib.contextmanager
def _told(as_json: bool) -> Iterator[Callable[[_Look], None]]:
    """How each look is told."""
    if as_json:
        yield _tell_json
    elif not sys.stdout.isatty():
        yield _tell_lines
    else:
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        console = Console(file=sys.stdout, markup=False, highlight=False, emoji=False)  # heeds NO_COLOR
        with Live(console=console, transient=True, auto_refresh=False, vertical_overflow="crop") as live:
            yield lambda look: live.update(
                Text(_drawn(look), no_wrap=True, overflow="ellipsis"), refresh=True
            )


def _tell_json(look: _Look) -> None:
    changed = [{name: step[name] for name in _TOLD} for step in look.changed]
    if changed or look.run["status"] in ENDED:
        document: dict[str, Any] = {
            "at": look.at,
            "run_id": look.run["run_id"],
            "status": look.run["status"],
            "counts": look.counts,
            "changed": changed,
        }
        output.write(f"{json.dumps(document)}\n")


_TOLD: Final = ("step_id", "kind", "status", "state", "committed_at", "items")


def _tell_lines(look: _Look) -> None:
    lines = []
    for step in look.changed:
        at = moment(step["committed_at"] or step["started_at"])
        items = f", {map_progress(step['items'])}" if step["items"] else ""
        lines.append(f"{at}  {output.clean(step['step_id'])}  {step_status(step)}{items}\n")
    if lines:
        output.write("".join(lines))


def _drawn(look: _Look) -> str:
    run = look.run
    lines = [
        f"{run['run_id']}  {run_status(run)}  {_age(run['created_at'], look.at)}",
        f"  {counts(look.counts) or 'no steps yet'}",
    ]
    for step in look.running[:_MOST_RUNNING]:
        items = f"  {map_progress(step['items'])}" if step["items"] else ""
        lines.append(f"  {step['step_id']}  {step['state']}  {_age(step['started_at'], look.at)}{items}")
    if len(look.running) > _MOST_RUNNING:
        lines.append(f"  and {len(look.running) - _MOST_RUNNING} more")
    return "\n".join(map(output.clean, lines))


def _age(since: str | None, at: str) -> str:
    with contextlib.suppress(ValueError, TypeError):  # damaged: told of by `show`
        return duration(epoch_ms(at) - epoch_ms(str(since)))
    return ""
