"""Looking at runs: which are listed, and a run's steps in their order. Nothing is written."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from durable_core.arguments import check_count
from durable_core.clock import rfc3339
from durable_core.errors import UsageError
from durable_core.identity import PLACE_CHARS
from durable_core.journal.base import RunFilter
from durable_core.records import ITEM_KIND, JOIN_KIND, LISTED

if TYPE_CHECKING:
    from durable_core.engine.results import RunView
    from durable_core.journal.base import Journal
    from durable_core.records import RunHeader, StepRecord


def wanted(
    *,
    status: str | None = None,
    workflow: str | None = None,
    prefix: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    text: str | None = None,
    before: RunView | None = None,
    limit: int,
) -> RunFilter:
    """Which runs are to be listed.

    Raises:
        UsageError: There is no such status, `limit` isn't from 1, a name is no text of ASCII, a time has no
            zone, or the text can be in no record.
    """
    if status is not None and status not in LISTED:
        raise UsageError(
            f"status={status!r} is no status of a run", remedy=f"Use one of: {', '.join(LISTED)}"
        )
    for name, part in (("workflow", workflow), ("prefix", prefix)):
        _check_text(name, part)
    check_count("limit", limit)
    after = (before.created_at, before.run_id) if before is not None else None
    if text is not None and not (text.strip() and text.isprintable()):
        raise UsageError(f"text={text!r:.40} is nothing to look for", remedy="Give a part of a line")
    return RunFilter(
        status=status, workflow=workflow, prefix=prefix, since=_time("since", since),
        until=_time("until", until), text=text, before=after, limit=limit,
    )  # fmt: skip


def _time(name: str, given: object) -> str | None:
    if given is None:
        return None
    if not isinstance(given, datetime) or given.utcoffset() is None:
        raise UsageError(f"{name}={given!r:.60} must be a datetime with a time zone")
    return rfc3339((given - _EPOCH) // timedelta(milliseconds=1))


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def _check_text(name: str, given: object) -> None:
    """Refuses what can't be compared with a name; a text that no name begins with finds nothing."""
    if given is not None and not (isinstance(given, str) and given.isascii()):
        raise UsageError(f"{name}={given!r} can't be a name, nor the beginning of one")


async def steps_of(journal: Journal, header: RunHeader, within: str | None = "") -> list[StepRecord]:
    """The steps of this life of a run, in the order in which they were first begun.

    Args:
        journal: Where they are.
        header: Of the run.
        within: Only those whose ids begin so, without those of map items below; None: all.
    """
    found = [
        record
        async for page in journal.steps(header.run_id)
        for record in page
        if record.fence > header.base_fence
        and record.kind not in (JOIN_KIND, ITEM_KIND)
        and (
            within is None or (record.step_id.startswith(within) and "[" not in record.step_id[len(within) :])
        )
    ]
    return sorted(found, key=begun)


def begun(record: StepRecord) -> tuple[str, str, str]:
    """Sorts steps, damaged ones too, by when they were first begun.

    The attempt's place tells, whichever attempt it is. Times don't: many steps share one, and clocks step
    back.
    """
    return str(record.attempt_id)[:PLACE_CHARS], str(record.started_at), str(record.step_id)
