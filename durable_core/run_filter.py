"""Which runs a listing is of, the same in every store."""

from __future__ import annotations

import json
import string
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from durable_core.errors import CorruptRecord
from durable_core.records import CORRUPT, TOMBSTONE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from durable_core.records import RunHeader

_TOLD: Final = ("code", "type", "message")
_LOWER: Final = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """Which runs `runs` lists, newest first.

    Attributes:
        prefix: Only run ids that begin with this.
        since, until: Only runs created at this time or later, and before that one; RFC 3339, UTC.
        text: Only runs that have this in their id, workflow or session, in the id of the run that they are a
            fork of, or in their error's code, type, message or steps; whatever the case of its ASCII letters.
        before: Only runs that come after this (created_at, run_id) in the listing; for the next page.
    """

    status: str | None = None
    workflow: str | None = None
    prefix: str | None = None
    since: str | None = None
    until: str | None = None
    text: str | None = None
    before: tuple[str, str] | None = None
    limit: int = 100

    def needles(self) -> tuple[str, str]:
        """What `text` is looked for as: in plain columns, and in columns of JSON; both in lower case.

        Whatever of an error has it has it in its JSON, too, but not the other way round: `has_text` tells.
        """
        text = self.text or ""
        return _lower(text), _lower(json.dumps(text)[1:-1])

    def fits(self, header: RunHeader) -> bool:
        """Whether a run belongs into the listing, for stores that have no query language to ask it in."""
        return (
            header.status != TOMBSTONE
            and self.status in (None, header.status)
            and self.workflow in (None, header.workflow)
            and header.run_id.startswith(self.prefix or "")
            and (self.since is None or header.created_at >= self.since)
            and (self.until is None or header.created_at < self.until)
            and (self.before is None or (header.created_at, header.run_id) < self.before)
            and self.has_text(header)
        )

    def has_text(self, header: RunHeader) -> bool:
        """Whether a run has the text, if one is asked for, in what is listed of it."""
        if self.text is None:
            return True
        named = (header.run_id, header.workflow, header.session_id or "", header.forked_from or "")
        plain, _ = self.needles()
        return any(plain in _lower(one) for one in (*named, *_told(header)))


async def with_text(
    wanted: RunFilter, page: Callable[[RunFilter], Awaitable[list[RunHeader]]]
) -> list[RunHeader]:
    """A page of runs that have a text, from pages of those that may.

    Args:
        wanted: Which.
        page: Gives the runs whose columns have the text anywhere.
    """
    found: list[RunHeader] = []
    asked = wanted
    while True:
        some = await page(asked)
        found += [header for header in some if header.status == CORRUPT or wanted.has_text(header)]
        if len(some) < wanted.limit or len(found) >= wanted.limit:
            return found[: wanted.limit]
        asked = replace(wanted, before=(some[-1].created_at, some[-1].run_id))


def _told(header: RunHeader) -> list[str]:
    """The texts of its error that a listing has."""
    try:
        error = header.error_info()
    except CorruptRecord:
        return []
    steps = error.get("steps")
    told = (*(error.get(name) for name in _TOLD), *(steps if isinstance(steps, list) else ()))
    return [one for one in told if isinstance(one, str)]


def _lower(text: str) -> str:
    """Lower case as every store has it: of ASCII letters alone."""
    return text.translate(_LOWER)
