"""Which runs a listing is of, the same in every store."""

from __future__ import annotations

import json
import string
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from durable_core.records import TOMBSTONE

if TYPE_CHECKING:
    from durable_core.records import RunHeader

_LOWER: Final = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """Which runs `runs` lists, newest first.

    Attributes:
        prefix: Only run ids that begin with this.
        since, until: Only runs created at this time or later, and before that one; RFC 3339, UTC.
        text: Only runs that have this in their id, workflow, session or recorded error, or in the id of the
            run that they are a fork of; whatever the case of its ASCII letters.
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
        """What `text` is looked for as: in plain columns, and in columns of JSON; both in lower case."""
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
            and (self.text is None or self._has_text(header))
        )

    def _has_text(self, header: RunHeader) -> bool:
        plain, quoted = self.needles()
        named = (header.run_id, header.workflow, header.session_id or "", header.forked_from or "")
        return any(plain in _lower(one) for one in named) or quoted in _lower(header.error or "")


def _lower(text: str) -> str:
    """Lower case as every store has it: of ASCII letters alone."""
    return text.translate(_LOWER)
