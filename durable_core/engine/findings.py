"""What verifying a run comes to."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

Severity = Literal["damage", "leftover", "notice"]

DAMAGE: Final = "damage"
LEFTOVER: Final = "leftover"
NOTICE: Final = "notice"

MOST_KEPT: Final = 1000
"""Findings that are kept of a run; the others are counted."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that verifying has found.

    Attributes:
        kind: A stable name, such as `output-damaged`.
        severity: `damage`: a record isn't what was written, or something is gone. `leftover`: it belongs to
            nothing any more, and does no harm. `notice`: as it may be, and worth knowing.
        run_id: The run.
        where: The step, event or blob; None of the header.
        message: One clause, for a person.
        repair: What a repair would do, or did; None where no repair is safe.
        is_repaired: Whether it was done.
    """

    kind: str
    severity: Severity
    run_id: str
    where: str | None
    message: str
    repair: str | None = None
    is_repaired: bool = False


class Findings:
    """Findings of one run as they come.

    Attributes:
        run_id: The run.
        kept: The first of them.
        counts: All of them, by severity.
    """

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.kept: list[Finding] = []
        self.counts: Counter[str] = Counter()

    def damage(self, kind: str, where: str | None, message: str) -> None:
        """A record isn't what was written, or something is gone."""
        self.add(Finding(kind, DAMAGE, self.run_id, where, message))

    def leftover(self, kind: str, where: str | None, message: str, repair: str | None = None) -> None:
        """Something belongs to nothing any more."""
        self.add(Finding(kind, LEFTOVER, self.run_id, where, message, repair))

    def notice(self, kind: str, where: str | None, message: str) -> None:
        """Something is as it may be, and worth knowing."""
        self.add(Finding(kind, NOTICE, self.run_id, where, message))

    def add(self, found: Finding) -> None:
        """Takes one in."""
        self.counts[found.severity] += 1
        if len(self.kept) < MOST_KEPT:
            self.kept.append(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedRun:
    """A run that was verified.

    Attributes:
        status: Of the run; CORRUPT if its header can't be read, None if it has none.
        root_hash: Hex SHA-256 over what its records say, the same in every store; None where a record can't
            be read, or some are missing.
        steps, segments, events, chunks, blobs: How many were looked at.
        checkpoints: Of the run's session, that were looked at.
        findings: The first 1000; damage first.
        damaged, leftovers, notices: All findings, by severity.
    """

    run_id: str
    workflow: str | None
    status: str | None
    root_hash: str | None
    steps: int = 0
    segments: int = 0
    events: int = 0
    chunks: int = 0
    blobs: int = 0
    checkpoints: int = 0
    findings: tuple[Finding, ...] = ()
    damaged: int = 0
    leftovers: int = 0
    notices: int = 0

    @property
    def is_sound(self) -> bool:
        """Whether nothing of it is damaged."""
        return self.damaged == 0


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What was verified.

    Attributes:
        runs: Each of them, newest first.
    """

    runs: Sequence[VerifiedRun]

    @property
    def is_sound(self) -> bool:
        """Whether no run is damaged."""
        return all(run.is_sound for run in self.runs)

    @property
    def findings(self) -> list[Finding]:
        """All that are kept."""
        return [found for run in self.runs for found in run.findings]
