"""What must not cross a fork - connections, threads, locks - is made anew in the child."""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class Restartable(Protocol):
    """Something that a forked child inherits in a state that is of no use there."""

    def hold(self) -> None:
        """Called in the parent before it forks: waits until no other thread is in the middle of something."""
        ...

    def let_go(self) -> None:
        """Called in the parent after it has forked."""
        ...

    def restart(self) -> None:
        """Called in the child before anything else runs there: begins anew."""
        ...


_live: WeakSet[Restartable] = WeakSet()
_held: list[Restartable] = []


def restart_in_children(thing: Restartable) -> None:
    """Restarts a thing in every child that this process forks while it lives."""
    _live.add(thing)


def _before() -> None:
    _held[:] = _live
    for thing in _held:
        thing.hold()


def _in_parent() -> None:
    for thing in _held:
        thing.let_go()
    _held.clear()


def _in_child() -> None:
    for thing in _held:
        thing.restart()
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
