"""Where `def` bodies run."""

from __future__ import annotations

from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

from durable_core.forking import restart_in_children

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
R = TypeVar("R")

MAX_BODY_THREADS: Final = 256


class BodyThreads(Executor):
    """A thread pool that starts when it is used, also in a forked child and after it was shut down."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        restart_in_children(self)

    def hold(self) -> None:
        """Nothing to wait for."""

    let_go = hold

    def restart(self) -> None:
        """In a forked child, which inherits the pool but none of its threads."""
        self._pool = None

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Runs a function in a thread."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(MAX_BODY_THREADS, thread_name_prefix="durable-step")
        return self._pool.submit(fn, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Ends the threads as they become idle."""
        if self._pool is not None:
            self._pool.shutdown(wait, cancel_futures=cancel_futures)
        self._pool = None
