"""`durable report`: a run as one HTML file that can be opened anywhere."""

from __future__ import annotations

import asyncio
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from durable_core.cli import output
from durable_core.cli.costing import cost_card, cost_of
from durable_core.cli.finding import named_store
from durable_core.cli.jsonable import as_document, as_text, stored_as_json
from durable_core.cli.map_report import map_card
from durable_core.cli.options import AsJson, RunId, StoreUrl  # noqa: TC001 - typer reads them at run time
from durable_core.cli.outcome import CORRUPT
from durable_core.cli.reading import facts_of, records_of, run_of
from durable_core.cli.render import duration, size
from durable_core.cli.report_facts import headline
from durable_core.clock import SystemClock, rfc3339
from durable_core.engine.looking import begun
from durable_core.engine.values import Values
from durable_core.errors import CorruptRecord, UsageError
from durable_core.records import MAP_KIND
from durable_core.report.timeline import largest, slowest, timeline

if TYPE_CHECKING:
    from collections.abc import Sequence

    from durable_core.cli.facts import Document
    from durable_core.records import RunHeader, StepRecord
    from durable_core.store import Store

_VALUE_CHARS: Final = 2_000  # of one output
_ALL_CHARS: Final = 4_000_000  # of all outputs together
_TRACEBACK_CHARS: Final = 4_000
_STANDARD_OUTPUT: Final = "-"


def report(
    run_id: RunId,
    to: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Where to; - is standard output. Default: RUN_ID.html.",
        ),
    ] = None,
    values: Annotated[
        bool,
        typer.Option(
            "--values/--no-values",
            help="Whether inputs and outputs are in it, or only sizes and hashes.",
        ),
    ] = True,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Write a run as one HTML page: outcome, timeline, failures, sizes, cost. It needs no network.

    The page can be filtered and searched. Outputs are cut at 2,000 characters; what is kept as a blob isn't
    fetched. A damaged record is marked in it; the exit code is then 6.

    Example: durable report june -o june.html
    """
    document = asyncio.run(_read(named_store(store), run_id, values=values))
    from durable_core.report.page import page  # jinja2 takes as long to import as most commands to run

    html = page(document)
    run = document["run"]
    target = to if to is not None else f"{Path(run['run_id']).name}.html"  # a damaged id may be a path
    steps = sum(not row.get("scope") for row in document["timeline"]["rows"])
    if target == _STANDARD_OUTPUT:
        if as_json:
            raise UsageError("--json and the page can't both be on standard output", remedy="Give -o FILE")
        output.write(html)
    else:
        size_bytes = _save(Path(target), html)
        told = {"run_id": run["run_id"], "path": target, "steps": steps, "size_bytes": size_bytes}
        output.write(as_document(told) if as_json else f"{target}\n")
    if document["damaged"]:
        raise typer.Exit(CORRUPT)


def _save(target: Path, html: str) -> int:
    """Puts the page in place whole, or not at all.

    Raises:
        UsageError: It can't be written there.
    """
    data = html.encode("utf-8", "backslashreplace")
    try:
        descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[:100]}.")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                os.fchmod(file.fileno(), 0o644)
            Path(name).replace(target)
        except BaseException:  # whatever it is, no half a page stays; it is raised on
            with suppress(OSError):
                Path(name).unlink()
            raise
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise UsageError(
            f"the page can't be written to {str(target)!r}: {why}", remedy="Name another file with -o"
        ) from error
    return len(data)


# ---- Reading ----


async def _read(store: Store, given: str, *, values: bool) -> Document:
    """Everything that the page shows."""
    now_ms = SystemClock().now_ms()
    try:
        header, run = await run_of(store, given)
        room = _Room(Values(store.blobs), wanted=values)
        steps: list[tuple[Any, Document]] = []
        maps = []
        async for record in records_of(store, header):
            step = await facts_of(store, header, record, run)
            step |= room.output_of(record)
            _cut(step["error"])
            if record.kind == MAP_KIND:
                maps.append((begun(record), await map_card(store, header, record, step)))
            steps.append((begun(record), step))
        try:
            bill = await cost_of(store, header)
        except CorruptRecord:  # it is marked where it is shown
            bill = None
    finally:
        await store.close()
    ordered = [step for _, step in sorted(steps, key=lambda one: one[0])]
    _cut(run["error"])
    shown = headline(run, ordered, rfc3339(now_ms))
    shown["in_out"] = room.of_run(header)
    return {
        "run": shown,
        "timeline": timeline(run, ordered, now_ms),
        "maps": [card for _, card in sorted(maps, key=lambda one: one[0])],
        "rankings": _rankings(ordered),
        "cost": cost_card(bill) if bill is not None else None,
        "made": f"Made from {store.url} at {rfc3339(now_ms)[:19].replace('T', ' ')}Z by durable-core.",
        "damaged": bool(run["corrupt"] or any(one["corrupt"] for one in ordered)),
    }


def _cut(error: Document | None) -> None:
    if error and isinstance(error["traceback"], str) and len(error["traceback"]) > _TRACEBACK_CHARS:
        error["traceback"] = f"…{error['traceback'][-_TRACEBACK_CHARS:]}"


def _rankings(steps: Sequence[Document]) -> list[Document]:
    found = (
        ("Slowest steps", slowest(steps), duration),
        ("Largest outputs", largest(steps), size),
    )
    return [
        {
            "title": title,
            "rows": [
                {**one, "told": told(one["value"]), "share": round(100 * one["value"] / rows[0]["value"], 1)}
                for one in rows
            ],
        }
        for title, rows, told in found
        if rows
    ]


class _Room:
    """Outputs for the page, for as long as there is room for them."""

    def __init__(self, values: Values, *, wanted: bool) -> None:
        self._values = values
        self._wanted = wanted
        self._left = _ALL_CHARS

    def output_of(self, record: StepRecord) -> Document:
        """The output of a step, or why it isn't here."""
        if record.output_hash is None or record.kind == MAP_KIND:
            return {}
        if not self._wanted:
            return {"output_note": "The values were left out of this page."}
        if record.output_ref is not None:
            return {"output_note": "It is in the blob store; durable show fetches it."}
        try:
            raw = self._values.opened(
                record.codec, record.output_data, record.output_size, record.output_hash
            )
            return self._text(raw, "output", "output_note")
        except CorruptRecord as error:
            return {"corrupt": error.message}

    def of_run(self, header: RunHeader) -> list[Document]:
        """What went into the run and what came out, where these are in its header."""
        found = []
        for name, stored in (
            ("Input", (header.input_codec, header.input_data, header.input_size, header.input_data_hash)),
            ("Output", (header.output_codec, header.output_data, header.output_size, header.output_hash)),
        ):
            if stored[3] is None or not self._wanted:
                continue
            told: Document = {"name": name, "text": None, "note": size(stored[2])}
            if stored[1] is not None:
                try:
                    told |= self._text(self._values.opened(*stored), "text", "note")
                except CorruptRecord as error:
                    told["note"] = error.message
            found.append(told)
        return found

    def _text(self, raw: bytes, text_name: str, note_name: str) -> Document:
        if self._left <= 0:
            return {note_name: "There are more outputs than this page has room for; durable show has it."}
        text = as_text(stored_as_json(raw))
        cut = text[:_VALUE_CHARS]
        self._left -= len(cut)
        more = {note_name: f"The first {_VALUE_CHARS:,} of {len(text):,} characters."} if cut != text else {}
        return {text_name: cut, **more}
