"""How far the maps are that this process runs: for a bar on a terminal, for a line in the log at times."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

_LOGGED_EVERY_S: Final = 5.0


@dataclass(slots=True, kw_only=True)
class MapProgress:
    """One map.

    Attributes:
        total: Of its items, where that is known.
        done: Items with an outcome; `failed` of them failed.
        in_flight: Items in work.
        rate: Items that got their outcome in a second, since the map was begun in this process.
    """

    run_id: str
    step_id: str
    total: int | None = None
    done: int = 0
    failed: int = 0
    in_flight: int = 0
    _done_before: int = 0
    _begun_at: float = field(default_factory=time.monotonic)
    _logged_at: float = field(default_factory=time.monotonic)

    def begin(self, done: int, failed: int) -> None:
        """The outcomes of earlier owners have been read; time counts from now."""
        self.done = self._done_before = done
        self.failed = failed
        self._begun_at = self._logged_at = time.monotonic()

    @property
    def rate(self) -> float:
        """Items in a second."""
        return (self.done - self._done_before) / max(time.monotonic() - self._begun_at, 1e-3)

    @property
    def left_s(self) -> float | None:
        """Seconds until the end at this rate; None where that can't be told."""
        rate = self.rate
        return (self.total - self.done) / rate if self.total is not None and rate > 0 else None

    def log_if_due(self, log: FilteringBoundLogger) -> None:
        """A line every few seconds."""
        now = time.monotonic()
        if now - self._logged_at < _LOGGED_EVERY_S:
            return
        self._logged_at = now
        left_s = self.left_s
        log.info(
            "map_progress",
            step_id=self.step_id,
            done=self.done,
            failed=self.failed,
            in_flight=self.in_flight,
            total=self.total,
            items_per_s=round(self.rate, 1),
            left_s=round(left_s) if left_s is not None else None,
        )


live: dict[tuple[str, str], MapProgress] = {}
"""The maps that are running in this process, by run and step."""
