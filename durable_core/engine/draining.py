"""How a worker stops: its drives begin nothing more, and what is in flight may come to its end."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from durable_core.control_flow import HandOver

if TYPE_CHECKING:
    from durable_core.engine.drive import Drive

_REASON: Final = "the worker is stopping"


class Drain:
    """Stops all drives of one worker, those that begin later too.

    Attributes:
        begun: Nothing more may be started.
        was_cut: Something was in flight that had to be interrupted.
    """

    def __init__(self) -> None:
        self._drives: dict[DrainedDrive, Drive] = {}
        self.begun = False
        self.was_cut = False

    def way_out(self) -> DrainedDrive:
        """For one more drive."""
        return DrainedDrive(self)

    def begin(self) -> None:
        """From now on every verb raises; steps that are in flight go on to their end."""
        self.begun = True
        for drive in list(self._drives.values()):
            drive.stop(HandOver(_REASON))

    def cut(self) -> None:
        """Interrupts what is still in flight, and waits for no `def` body."""
        self.begun = True
        for drive in list(self._drives.values()):
            self.was_cut = True
            drive.grace_s = 0
            drive.interrupt(HandOver(_REASON))

    def add(self, way_out: DrainedDrive, drive: Drive) -> None:
        """A drive has begun."""
        self._drives[way_out] = drive
        if self.begun:
            drive.stop(HandOver(_REASON))

    def discard(self, way_out: DrainedDrive) -> None:
        """It has ended."""
        self._drives.pop(way_out, None)


class DrainedDrive:
    """The way out of one drive: whenever its worker is to stop."""

    def __init__(self, drain: Drain) -> None:
        self._drain = drain

    @property
    def invocation(self) -> None:
        """None: nobody knows when it will begin."""

    def left_s(self) -> float:
        """For ever, until it begins."""
        return 0 if self._drain.begun else math.inf

    def has_time(self, needed_s: float | None, *, is_first: bool) -> bool:
        """Whatever is begun may come to its end."""
        return True

    def watch(self, drive: Drive) -> None:
        """The drive has begun."""
        self._drain.add(self, drive)

    def forget(self) -> None:
        """It has ended."""
        self._drain.discard(self)
