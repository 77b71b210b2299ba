"""Runs and steps as text for people."""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING, Final

from durable_core.cli.jsonable import as_text
from durable_core.cli.output import clean, clean_lines, encodable
from durable_core.cli.tables import Column, facts_text, table
from durable_core.records import PRUNING, STARTED, SUSPENDED
from durable_core.report.scopes import Scope, tree_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from durable_core.cli.facts import Document

_UNITS: Final = ("B", "KiB", "MiB", "GiB")
_RUNS: Final = (
    Column("run", folds=True),
    Column("workflow", folds=True, from_width=110),
    Column("status"),
    Column("steps", folds=True, from_width=90),
    Column("created"),
    Column("took", right=True, from_width=80),
)
_STEPS: Final = (
    Column("step", folds=True),
    Column("status"),
    Column("attempt", right=True),
    Column("crashes", right=True, from_width=100),
    Column("started", from_width=80),
    Column("took", right=True),
    Column("size", right=True, from_width=60),
)
_ATTEMPTS: Final = (
    Column("attempt", right=True),
    Column("fence", right=True),
    Column("started"),
    Column("ended"),
    Column("error"),
)


def runs_table(runs: Sequence[Document], *, more: bool) -> str:
    """The listing of runs, and how many they are."""
    rows = [
        (
            run["run_id"],
            run["workflow"],
            run_status(run),
            counts(run["counts"]),
            moment(run["created_at"]),
            duration(run["took_ms"]),
        )
        for run in runs
    ]
    shown = f"{len(runs)} run{'s' * (len(runs) != 1)}"
    footer = (
        f"{shown}, and there are more: --limit N, or --after {clean(runs[-1]['run_id'])}" if more else shown
    )
    damaged = [f"Corrupt: run {run['run_id']}: {run['corrupt']}" for run in runs if run["corrupt"]]
    return (table(_RUNS, rows) if rows else "") + f"{footer}\n" + _lines(damaged)


def run_text(run: Document, steps: Sequence[Document]) -> str:
    """A run: what is known of it, then its steps."""
    error = run["error"]
    facts = [
        ("run", run["run_id"]),
        ("workflow", f"{run['workflow']}{_source(run['fingerprint'])}"),
        ("status", run_status(run)),
        ("pruner" if run["status"] == PRUNING else "driver", _driver(run)),
        ("created", moment(run["created_at"])),
        ("ended", _ended(run["ended_at"], run["took_ms"])),
        ("wakes", _wakes(run)),
        ("updated", None if run["ended_at"] else moment(run["updated_at"])),
        ("takeovers", run["fence"] - 1 if isinstance(run["fence"], int) and run["fence"] > 1 else None),
        ("crashes", run["crashes"] or None),
        ("session", run["session_id"]),
        ("forked from", run["forked_from"]),
        ("input", f"{size(run['input_size_bytes'])}, hash {run['input_hash']}"),
        ("output", run["output_hash"] and f"{size(run['output_size_bytes'])}, hash {run['output_hash']}"),
        ("root hash", run.get("root_hash")),
        ("steps", counts(Counter(str(one["status"]) for one in steps)) or "none"),
        *((f"map {one['step_id']}", map_progress(one["items"])) for one in steps if one["items"]),
        ("error", error and f"{error['type']}: {error['message']}"),
        ("failed steps", error and ", ".join(map(str, error["steps"] or ()))),
        ("corrupt", run["corrupt"]),
    ]
    return facts_text(facts) + _steps_text(steps)


def item_text(run_id: str, item: Document, shown: str | None, steps: Sequence[Document]) -> str:
    """One item of a map, and the steps of its own, if it has any.

    Args:
        run_id: Of its run.
        item: What is known of it.
        shown: Its output as JSON, if it has one.
        steps: Its own.
    """
    facts = [
        ("run", run_id),
        ("item", item["step_id"]),
        ("status", f"{item['status']} (no outcome yet)" if item["status"] == STARTED else item["status"]),
        ("key", item["item_key"]),
        ("index", item["item_index"]),
        ("attempt", item["attempt"]),
    ]
    output = f"\nOutput:\n{shown}\n" if shown is not None else ""
    return facts_text(facts) + output + _error_text(item["error"]) + _steps_text(steps)


def _steps_text(steps: Sequence[Document]) -> str:
    damaged = [f"Corrupt: step {one['step_id']}: {one['corrupt']}" for one in steps if one["corrupt"]]
    rows: list[tuple[object, ...]] = []
    for name, step in _named(steps):
        if step is None:
            rows.append((name, *[""] * (len(_STEPS) - 1)))
            continue
        rows.append((
            name, step_status(step), step["attempt"], step["crashes"], moment(step["started_at"]),
            duration(step["took_ms"]), size(step["output_size_bytes"]),
        ))  # fmt: skip
    return (f"\n{table(_STEPS, rows)}" if rows else "") + _lines(damaged)


def _named(steps: Sequence[Document]) -> list[tuple[str, Document | None]]:
    """Steps with their names: as a tree for people; whole ids in a pipe, where each line is by itself."""
    if not sys.stdout.isatty():
        return [(str(step["step_id"]), step) for step in steps]
    found: list[tuple[str, Document | None]] = []
    for depth, one in tree_of(steps).walk():
        path = one.path if isinstance(one, Scope) else str(one["step_id"])
        indented = "  " * depth + path.rpartition("/")[2]
        found.append((f"{indented}/", None) if isinstance(one, Scope) else (indented, one))
    return found


def step_text(run_id: str, step: Document, shown: str | None) -> str:
    """One step with all that is recorded of it.

    Args:
        run_id: Of its run.
        step: What is known of it.
        shown: Its output as JSON, if it has one.
    """
    facts = [
        ("run", run_id),
        ("step", step["step_id"]),
        ("status", step_status(step)),
        ("kind", step["kind"]),
        ("index", step["step_index"]),
        ("items", step["items"] and map_progress(step["items"])),
        ("attempt", step["attempt"]),
        ("crashes", step["crashes"]),
        ("started", moment(step["started_at"])),
        ("ended", _ended(step["committed_at"], step["took_ms"])),
        ("input hash", step["input_hash"]),
        ("idempotency key", step["idempotency_key"]),
        ("output", _stored(step)),
        ("output hash", step["output_hash"]),
        ("corrupt", step["corrupt"]),
    ]
    parts = [facts_text(facts)]
    if shown is not None:
        parts.append(f"\nOutput:\n{shown}\n")
    parts.append(_error_text(step["error"]))
    if step["attempts"]:
        rows = [
            (
                one.get("attempt"),
                one.get("fence"),
                moment(one.get("started_at")),
                moment(one.get("ended_at")),
                one.get("error") or "",
            )
            for one in step["attempts"]
        ]
        parts.append(f"\nEarlier attempts:\n{table(_ATTEMPTS, rows)}")
    return "".join(parts)


_DRIVERS: Final = {
    "driving": "lease for {left_s} s more",
    "dead": "which is dead: {again} the run",
    "silent": "whose lease is over: {again} the run",
}


def run_status(run: Document) -> str:
    """The status, with what makes it untrue."""
    if run["corrupt"]:
        return "CORRUPT"
    driver = run["driver"]
    return (
        f"{run['status']} ({driver['state']})"
        if driver and driver["state"] != "driving"
        else str(run["status"])
    )


def step_status(step: Document) -> str:
    """The status, and what STARTED means here."""
    if step["corrupt"]:
        return "CORRUPT"
    return f"{step['status']} ({step['state']})" if step["state"] else str(step["status"])


def counts(found: Mapping[str, int]) -> str:
    """Numbers of steps by status."""
    return ", ".join(f"{count} {clean(status).lower()}" for status, count in sorted(found.items()))


def map_progress(items: Document) -> str:
    """How many items of a map are done, as exactly as it is recorded."""
    of = f" of {items['total']:,}" if items["total"] is not None else ""
    return f"{items['done']:,}{of} items done" + (f", {items['failed']:,} failed" if items["failed"] else "")


def moment(text: object) -> str:
    """A recorded time, to the second; as it is recorded, in UTC."""
    return str(text)[:19].replace("T", " ") + "Z" if text else ""


def duration(milliseconds: object) -> str:
    """A time span for people."""
    if not isinstance(milliseconds, int):
        return ""
    if milliseconds < 1000:
        return f"{milliseconds} ms"
    seconds = milliseconds / 1000
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {seconds:02d} s"


def size(count: object) -> str:
    """Bytes for people."""
    if not isinstance(count, int):
        return ""
    amount, unit = float(count), 0
    while amount >= 1024 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{count} B" if not unit else f"{amount:.1f} {_UNITS[unit]}"


def value_text(value: object) -> str:
    """A value as JSON that standard output can show."""
    text = as_text(value)
    return text if encodable(text, sys.stdout) else as_text(value, ascii_only=True)


def _driver(run: Document) -> str:
    driver = run["driver"]
    if driver is None:
        return ""
    again = "prune" if run["status"] == PRUNING else "resume"
    return (
        f"{driver['process']}, {_DRIVERS[driver['state']].format(left_s=driver['lease_left_s'], again=again)}"
    )


def _error_text(error: Document | None) -> str:
    if not error:
        return ""
    of = f" ({clean(error['type'])})" if error["type"] else ""
    return f"\nError{of}:\n{_error_lines(error)}\n"


def _error_lines(error: Document) -> str:
    """The traceback, which ends with type and message; or only these, where none was recorded."""
    return clean_lines(str(error["traceback"] or f"{error['type']}: {error['message']}")).rstrip("\n")


def _stored(step: Document) -> str:
    if not step["output_hash"]:
        return ""
    return f"{size(step['output_size_bytes'])} as {step['codec']}, in the {step['stored_in']}"


def _source(fingerprint: object) -> str:
    return f"  (source {str(fingerprint)[:12]})" if fingerprint else ""


def _wakes(run: Document) -> str | None:
    if run["status"] != SUSPENDED:
        return None
    return moment(run["wakes_at"]) if run["wakes_at"] else "when an event comes"


def _ended(at: object, took_ms: object) -> str:
    return f"{moment(at)}  (took {duration(took_ms)})" if at else ""


def _lines(texts: Sequence[str]) -> str:
    return "".join(f"{clean(text)}\n" for text in texts)
