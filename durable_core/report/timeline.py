"""What the page shows of a run, as plain data: its steps in a tree of scopes, against time.

Nothing is read here, and nothing is judged: the facts of run and steps come in as `durable show` tells them.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from durable_core.clock import epoch_ms
from durable_core.report.scopes import Scope, tree_of

if TYPE_CHECKING:
    from collections.abc import Sequence

Document = dict[str, Any]

MOST_STEPS: Final = 100_000
"""More make a page that no browser likes to open: of the rest only those that say something are shown."""

_COPIED: Final = (
    "kind", "status", "state", "attempt", "crashes", "output_size_bytes", "output_hash", "codec", "stored_in",
    "input_hash", "idempotency_key", "fence", "error", "items", "corrupt", "output", "output_note",
)  # fmt: skip
_STATES: Final = {"in doubt", "running", "retrying", "waiting", "interrupted"}


def timeline(run: Document, steps: Sequence[Document], now_ms: int) -> Document:
    """A run's steps as rows of a tree.

    Args:
        run: What is known of the run.
        steps: What is known of each, in the order in which they were begun; `output` and `output_note` may be
            there too.
        now_ms: Where the time of a run ends that goes on.

    Returns:
        `start_ms` (since the epoch) and `length_ms`; `rows`, each with times in milliseconds from the start;
        `counts` of rows by mark; `left_out`, the number of steps that are not shown.
    """
    shown = list(steps) if len(steps) <= MOST_STEPS else _noteworthy(steps)
    start = _moment(run["created_at"]) or min(filter(None, map(_first_ms, shown)), default=now_ms)
    rows: list[Document] = []
    _lay_out(tree_of(shown), rows, start, parent=-1, depth=0)
    ends = [row["end"] for row in rows if row.get("end") is not None]
    ended = _moment(run["ended_at"])
    if ended is None and _goes_on(run):
        ended = now_ms
    return {
        "start_ms": start,
        "length_ms": max((ended or start) - start, *ends, 1),
        "rows": rows,
        "counts": Counter(mark for row in rows for mark in row.get("marks", ())),
        "left_out": len(steps) - len(shown),
    }


def marks(step: Document) -> list[str]:
    """What a step can be filtered by: how it stands, and what happened to it on the way."""
    if step["corrupt"]:
        return ["corrupt"]
    state = step["state"]
    found = [state if state in _STATES else str(step["status"]).lower()]
    if isinstance(step["attempt"], int) and step["attempt"] > 1:
        found.append("re-run")
    if isinstance(step["crashes"], int) and step["crashes"] > 0:
        found.append("crashed")
    return found


def slowest(steps: Sequence[Document], most: int = 10) -> list[Document]:
    """The steps that took longest, longest first."""
    return _greatest(steps, "took_ms", most)


def largest(steps: Sequence[Document], most: int = 10) -> list[Document]:
    """The steps with the largest outputs, largest first."""
    return _greatest(steps, "output_size_bytes", most)


def _greatest(steps: Sequence[Document], name: str, most: int) -> list[Document]:
    timed = [step for step in steps if isinstance(step[name], int) and step[name] > 0]
    found = sorted(timed, key=lambda step: -step[name])[:most]
    # What is a hundredth of the first says nothing beside it.
    return [
        {"step_id": step["step_id"], "value": step[name]}
        for step in found
        if step[name] * 100 >= found[0][name]
    ]


def _noteworthy(steps: Sequence[Document]) -> list[Document]:
    """All that is not simply committed, and as many of the others as there is room for, in order."""
    plain = ["committed"]
    room = max(MOST_STEPS - sum(marks(step) != plain for step in steps), 0)
    found = []
    for step in steps:
        if marks(step) != plain:
            found.append(step)
        elif room > 0:
            room -= 1
            found.append(step)
    return found


def _lay_out(scope: Scope, rows: list[Document], start: int, *, parent: int, depth: int) -> None:
    """Appends the rows of a scope's children, each before its own."""
    for child in scope.children:
        if not isinstance(child, Scope):
            rows.append(_step_row(child, start, parent, depth))
            continue
        place = len(rows)
        row: Document = {"scope": True, "id": child.path, "parent": parent, "depth": depth}
        row["name"] = child.path.rpartition("/")[2]
        rows.append(row)
        _lay_out(child, rows, start, parent=place, depth=depth + 1)
        below = [one for one in rows[place + 1 :] if not one.get("scope")]
        starts = [one["start"] for one in below if one.get("start") is not None]
        ends = [one["end"] for one in below if one.get("end") is not None]
        row |= {"start": min(starts, default=None), "end": max(ends, default=None), "count": len(below)}
        row["open"] = any(one.get("end") is None for one in below)


def _step_row(step: Document, start: int, parent: int, depth: int) -> Document:
    step_id = str(step["step_id"])
    row = {name: step[name] for name in _COPIED if step.get(name) not in (None, "", 0)}
    row |= {"id": step_id, "name": step_id.rpartition("/")[2], "parent": parent, "depth": depth}
    row |= {"marks": marks(step), "start": _since(step["started_at"], start)}
    row["end"] = _since(step["committed_at"], start)
    earlier = [
        {
            "attempt": one.get("attempt"),
            "fence": one.get("fence"),
            "start": _since(one.get("started_at"), start),
            "end": _since(one.get("ended_at"), start),
            "error": one.get("error"),
        }
        for one in step["attempts"]
    ]
    return {**row, "attempts": earlier} if earlier else row


def _goes_on(run: Document) -> bool:
    return run["status"] in ("PENDING", "RUNNING", "SUSPENDED")


def _first_ms(step: Document) -> int | None:
    return _moment(step["started_at"])


def _since(text: object, start: int) -> int | None:
    found = _moment(text)
    return found - start if found is not None else None


def _moment(text: object) -> int | None:
    """A recorded time; a damaged one is none, and said to be so elsewhere."""
    try:
        return epoch_ms(text) if isinstance(text, str) and text else None
    except ValueError:
        return None
