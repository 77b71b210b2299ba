"""The head of a report: the outcome, the facts beside it, and what somebody should do about it."""

from __future__ import annotations

import shlex
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from durable_core.cli.render import duration, moment, size
from durable_core.records import (
    CANCELLED,
    COMPLETED,
    FAILED,
    PENDING,
    PRUNING,
    RUNNING,
    SUSPENDED,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from durable_core.cli.facts import Document

_TONES: Final = {
    COMPLETED: "good", FAILED: "bad", CANCELLED: "warn", RUNNING: "live", PENDING: "rest", SUSPENDED: "rest",
    PRUNING: "warn",
}  # fmt: skip
_LINKED: Final = 20  # steps that a notice names


def headline(run: Document, steps: Sequence[Document], now: str) -> Document:
    """What stands above the steps.

    Args:
        run: What is known of the run.
        steps: What is known of each of its steps.
        now: When this is told, RFC 3339.
    """
    driver = run["driver"]
    abandoned = driver is not None and driver["state"] != "driving"
    label = str(run["status"]).capitalize()
    return {
        "run_id": run["run_id"],
        "workflow": run["workflow"],
        "forked_from": run["forked_from"],
        "status": run["status"],
        "label": "Damaged" if run["corrupt"] else f"{label}, abandoned" if abandoned else label,
        "tone": "bad" if run["corrupt"] else "warn" if abandoned else _TONES.get(run["status"], "bad"),
        "facts": [fact for fact in _facts(run, steps, now) if fact["value"]],
        "notices": [*_damage(run, steps), *_failure(run, steps), *_abandoned(run), *_doubt(run, steps)],
    }


def _facts(run: Document, steps: Sequence[Document], now: str) -> list[Document]:
    again = sum(isinstance(one["attempt"], int) and one["attempt"] > 1 for one in steps)
    crashes = sum(one["crashes"] for one in steps if isinstance(one["crashes"], int))
    counts = Counter(str(one["status"]).lower() for one in steps)
    rest = [f"{count:,} {status}" for status, count in sorted(counts.items()) if status != "committed"]
    stored = sum(one["output_size_bytes"] or 0 for one in steps if isinstance(one["output_size_bytes"], int))
    takeovers = run["fence"] - 1 if isinstance(run["fence"], int) else 0
    ended = run["ended_at"]
    return [
        _fact("Took" if ended else "So far", duration(run["took_ms"]) if ended else _so_far(run, now)),
        _fact("Started", moment(run["created_at"])[11:], moment(run["created_at"])[:10]),
        _fact("Ended", moment(ended)[11:], moment(ended)[:10]),
        _fact("Steps", f"{len(steps):,}", ", ".join(rest) if rest else "all committed" if steps else ""),
        _fact("Re-run", f"{again:,}", f"{crashes:,} crashes of their process" if crashes else "steps"),
        _fact("Takeovers", str(takeovers) if takeovers > 0 else "", "by another process or a resume"),
        _fact("Outputs", size(stored), "of steps, uncompressed"),
    ]


def _fact(name: str, value: str, note: str = "") -> Document:
    return {"name": name, "value": value, "note": note}


def _so_far(run: Document, now: str) -> str:
    from durable_core.clock import epoch_ms

    try:
        return duration(epoch_ms(now) - epoch_ms(run["created_at"]))
    except (ValueError, TypeError):  # a damaged time: told of elsewhere
        return ""


def _damage(run: Document, steps: Sequence[Document]) -> list[Document]:
    damaged = [str(one["step_id"]) for one in steps if one["corrupt"]]
    if not (damaged or run["corrupt"]):
        return []
    text = run["corrupt"] or "The records of these steps can't be read as they should be; the others can."
    return [_notice("bad", "Damaged records", text, damaged)]


def _failure(run: Document, steps: Sequence[Document]) -> list[Document]:
    error = run["error"]
    if run["status"] != FAILED or not error:
        return []
    known = {str(one["step_id"]) for one in steps}
    failed = [str(one) for one in error["steps"] or () if str(one) in known]
    commands = [f"durable resume {_named(run)}"]
    if failed:
        first = shlex.quote(failed[0])
        commands.insert(0, f"durable show {_named(run)} --step {first}")
        commands.append(f"durable skip {_named(run)} {first} --output JSON")
    title = f"Failed: {error['type']}" if error["type"] else "Failed"
    return [
        _notice("bad", title, str(error["message"] or ""), failed, commands, traceback=error["traceback"])
    ]


def _abandoned(run: Document) -> list[Document]:
    driver = run["driver"]
    if driver is None or driver["state"] == "driving":
        return []
    why = "is dead" if driver["state"] == "dead" else "has let its lease run out"
    text = f"{driver['process']} {why}. Whoever resumes the run goes on from its last committed step."
    again = "prune" if run["status"] == PRUNING else "resume"
    return [_notice("warn", "Nobody drives this run", text, [], [f"durable {again} {_named(run)}"])]


def _doubt(run: Document, steps: Sequence[Document]) -> list[Document]:
    found = [str(one["step_id"]) for one in steps if one["state"] == "in doubt"]
    if not found:
        return []
    text = (
        "These were running when their process ended, and may have done their work, some of it or none. A"
        " resume runs them again with the same idempotency keys; steps that must not run twice are verified,"
        " or wait for you to say what came of them."
    )
    title = f"{len(found):,} step{'s' * (len(found) != 1)} in doubt"
    return [_notice("warn", title, text, found, [f"durable show {_named(run)} --in-doubt"])]


def _named(run: Document) -> str:
    return shlex.quote(str(run["run_id"]))


def _notice(
    tone: str,
    title: str,
    text: str,
    steps: Sequence[str],
    commands: Sequence[str] = (),
    traceback: Any = None,
) -> Document:
    return {
        "tone": tone,
        "title": title,
        "text": text,
        "steps": list(steps[:_LINKED]),
        "more": max(len(steps) - _LINKED, 0),
        "commands": list(commands),
        "traceback": traceback,
    }
