"""What a report tells of a map: how it went on, and which items failed."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from durable_core.cli.render import duration, map_progress
from durable_core.clock import epoch_ms
from durable_core.errors import CorruptRecord
from durable_core.outcomes import outcomes_of
from durable_core.records import COMMITTED

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from durable_core.cli.facts import Document
    from durable_core.outcomes import Outcome
    from durable_core.records import RunHeader, Segment, StepRecord
    from durable_core.store import Store

_MOST_FAILURES: Final = 200
_MOST_POINTS: Final = 200
_MESSAGE_CHARS: Final = 300


async def map_card(store: Store, header: RunHeader, record: StepRecord, step: Document) -> Document:
    """A map for the page.

    Args:
        store: Open.
        header: Of the run.
        record: Of the map.
        step: What is known of it.
    """
    items = step["items"]
    if items is None:
        return {"step_id": record.step_id, "corrupt": step["corrupt"] or "how far it is can't be read"}
    try:
        points, failures = await _log(store, header, record)
    except CorruptRecord as error:
        return {"step_id": record.step_id, "corrupt": error.message}
    of = max(items["total"] or 0, items["done"], 1)
    listed = [_told(one) for one in list(failures.values())[:_MOST_FAILURES]]
    told = f"{items['failed']:,} failed" + (f", {len(listed)} shown" if len(listed) < items["failed"] else "")
    return {
        "step_id": record.step_id,
        "corrupt": None,
        "told": map_progress(items),
        "good": round(100 * items["succeeded"] / of, 2),
        "fail": round(100 * items["failed"] / of, 2),
        "failures": listed,
        "failed_told": told,
        **_curve(points),
    }


async def _log(
    store: Store, header: RunHeader, record: StepRecord
) -> tuple[list[tuple[int, int]], dict[int | str, Outcome]]:
    """How many items were done when, and the failures that no success superseded, in order."""
    pins = _pins(record)
    written: list[tuple[int, int, int]] = []
    failures: dict[int | str, Outcome] = {}
    seen_failed: dict[int, int] = {}
    async for segment in log_of(store, header, record):
        if segment.items == 0 or (pins and segment.seq > pins.get(segment.chunk, -1)):
            continue
        written.append((_time(segment.written_at), segment.chunk, segment.succeeded + segment.failed))
        if failures or segment.failed != seen_failed.get(segment.chunk, 0):  # else it has successes alone
            for outcome in outcomes_of(segment):
                name = outcome.item_index if outcome.key is None else outcome.key
                if outcome.succeeded:
                    failures.pop(name, None)
                else:
                    failures.setdefault(name, outcome)
        seen_failed[segment.chunk] = segment.failed
    return _summed(written), failures


def _pins(record: StepRecord) -> dict[int, int]:
    """The last segment of each chunk that a committed map goes by; none of one that has not committed."""
    found = record.details().get("pins") if record.status == COMMITTED else None
    return dict(enumerate(found)) if isinstance(found, list) else {}


def _summed(written: list[tuple[int, int, int]]) -> list[tuple[int, int]]:
    """How many items of all chunks were done when, of how many of each."""
    done: dict[int, int] = {}
    points = []
    for at, chunk, count in sorted(written):
        done[chunk] = count
        points.append((at, sum(done.values())))
    return points


async def log_of(store: Store, header: RunHeader, record: StepRecord) -> AsyncIterator[Segment]:
    """The segments of a map in this life of its run, chunk by chunk."""
    run_id, map_id = header.run_id, record.step_id
    divided = record.details().get("chunks")
    chunks = set(range(max(len(_pins(record)), divided if isinstance(divided, int) else 1)))
    chunks |= {one.chunk async for page in store.journal.chunks(run_id, map_id) for one in page}
    for chunk in sorted(chunks):
        async for page in store.journal.segments(run_id, map_id, chunk):
            for segment in page:
                if segment.fence > header.base_fence:
                    yield segment


def _time(text: str) -> int:
    try:
        return epoch_ms(text)
    except ValueError as error:
        raise CorruptRecord("the time of a segment can't be read") from error


def _told(outcome: Outcome) -> Document:
    error = outcome.error()
    return {
        "item": outcome.item_index if outcome.key is None else outcome.key,
        "type": str(error.get("type", "")),
        "message": str(error.get("message", ""))[:_MESSAGE_CHARS],
        "attempts": outcome.attempts,
    }


def _curve(points: list[tuple[int, int]]) -> dict[str, Any]:
    """Items over time as paths in a box of 100 by 40; none where there is nothing to see."""
    if len(points) < 3 or points[-1][0] <= points[0][0]:
        return {"curve": None, "area": None, "pace": None}
    first, last = points[0][0], points[-1][0]
    most = max(done for _, done in points) or 1
    kept = points[:: len(points) // _MOST_POINTS + 1]
    if kept[-1] != points[-1]:
        kept.append(points[-1])
    line = " ".join(
        f"{100 * (at - first) / (last - first):.2f},{40 - 38 * done / most:.2f}" for at, done in kept
    )
    rates = [(b[1] - a[1]) * 1000 / (b[0] - a[0]) for a, b in pairwise(kept) if b[0] > a[0]]
    mean = (points[-1][1] - points[0][1]) * 1000 / (last - first)
    pace = f"items done over {duration(last - first)}: {mean:,.1f} a second, {max(rates):,.1f} at the most"
    return {"curve": f"M{line}", "area": f"M0,40 L{line} L100,40 Z", "pace": pace}
