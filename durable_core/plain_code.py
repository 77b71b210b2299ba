"""Whether `def` workflow code is running between its verbs, in whatever thread."""

from __future__ import annotations

import threading


class PlainCode:
    """Counts the threads of one run's workflow code that are not waiting inside a verb."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.running = 0

    def goes_on(self) -> None:
        """A thread has begun, or a verb has returned in it."""
        with self._lock:
            self.running += 1

    def stops(self) -> None:
        """A thread has ended, or come to a verb."""
        with self._lock:
            self.running -= 1
