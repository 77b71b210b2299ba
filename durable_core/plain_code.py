"""Whether `def` workflow code is running between its verbs, in whatever thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import threading


class PlainCode:
    """The threads of one run's workflow code that are not inside a verb. Told so in the event loop's thread
    only: a thread is inside a verb from before the verb begins until after it has ended.

    Threads that the workflow has made by itself are not known here.
    """

    def __init__(self) -> None:
        self._known: set[threading.Thread] = set()
        self._inside: set[threading.Thread] = set()

    def is_running(self) -> bool:
        """Whether any of them is."""
        return len(self._known) > len(self._inside)

    def begins(self, thread: threading.Thread) -> None:
        """It runs workflow code from now on."""
        self._known.add(thread)

    def ends(self, thread: threading.Thread) -> None:
        """Its code has ended."""
        self._known.discard(thread)
        self._inside.discard(thread)

    def enters(self, thread: threading.Thread) -> None:
        """It has come to a verb."""
        if thread in self._known:
            self._inside.add(thread)

    def leaves(self, thread: threading.Thread) -> None:
        """The verb has ended."""
        self._inside.discard(thread)
