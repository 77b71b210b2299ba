"""Processes that die in a test: each has an executor of its own; what it does after its death isn't stored.

A simulated death is that of a killed process as far as the store can tell, and is quicker than one by some
hundred times. What it can't show: `finally` blocks of the workflow still run, and so do threads.
"""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from enum import StrEnum
from itertools import count
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from typing_extensions import override

from durable_core.current import current_step
from durable_core.engine import bodies
from durable_core.engine.executor import DurableWorkflowExecutor
from durable_core.engine.process import is_dead, this_process
from durable_core.errors import JournalUnavailable
from durable_core.testing.crash_promises import Body
from durable_core.testing.durable_writes import Watch, watched

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from durable_core.clock import Clock
    from durable_core.store import Store
    from durable_core.testing.durable_writes import Write

_HOST = "simulated"


class Mode(StrEnum):
    """What happens to a process at one of its durable writes."""

    BEFORE = "killed-before"
    AFTER = "killed-after"
    LOST = "reply-lost"
    TORN = "torn"
    STOPPED = "stopped"
    OVERTAKEN = "overtaken"


class SimulatedProcess(Watch):
    """A process with an executor of its own.

    Args:
        store: What it uses.
        clock: That it goes by.
        mode: What happens to it; nothing if None.
        number: At which write.

    Attributes:
        executor: Its executor, behind the watched store.
        bodies: Those that it has started.
        paused: It stands before that write, until `go_on` is set.
    """

    _numbers = count(1)

    def __init__(self, store: Store, clock: Clock, mode: Mode | None = None, number: int = 0) -> None:
        super().__init__()
        self.mode = mode
        self.number = number
        self.pid = next(self._numbers)
        self.dead = False
        self.bodies: list[Body] = []
        self.paused, self.go_on = asyncio.Event(), asyncio.Event()
        self.executor = DurableWorkflowExecutor(watched(store, self), clock=clock)
        self.task: asyncio.Task[Any] | None = None

    def start(self, does: Callable[[DurableWorkflowExecutor], Any]) -> asyncio.Task[Any]:
        """Lets it do something, in a task of its own."""

        async def live() -> Any:
            _here.set(self)
            return await does(self.executor)

        self.task = asyncio.create_task(live())
        return self.task

    @property
    def described(self) -> str:
        """As a header names it."""
        return json.dumps({"host": _HOST, "pid": self.pid})

    def die(self) -> None:
        """Nothing that it does from now on reaches the store, or comes back from it."""
        self.dead = True
        _dead.add(self.described)
        self.asked()

    @override
    def asked(self) -> None:
        if self.dead:  # a wait so long that it isn't asked again
            raise JournalUnavailable("the process is dead", waited_s=3600)

    @override
    def renews(self) -> None:
        self.asked()
        if self.paused.is_set() and not self.go_on.is_set():
            raise JournalUnavailable("the process stands still")

    @override
    def before(self, write: Write) -> None:
        if write.number != self.number:
            return
        if self.mode is Mode.BEFORE:
            self.die()
        if self.mode is Mode.STOPPED and self.task is not None:
            self.task.get_loop().call_soon_threadsafe(self.task.cancel)

    @override
    async def meanwhile(self, write: Write) -> None:
        # Who asks from another thread's loop, as a checkpointer does, can't stand still in this one.
        here = self.task is not None and self.task.get_loop() is asyncio.get_running_loop()
        if write.number == self.number and self.mode is Mode.OVERTAKEN and here:
            self.paused.set()
            await self.go_on.wait()

    @override
    def hold(self, write: Write) -> None:
        if not write.verb.startswith("renew") or write.number != self.number or self.task is None:
            return
        if self.mode is Mode.OVERTAKEN:
            self.task.get_loop().call_soon_threadsafe(self.paused.set)
            while not self.go_on.is_set():
                time.sleep(0.001)

    @override
    def after(self, write: Write) -> None:
        if write.number != self.number:
            return
        if self.mode is Mode.AFTER:
            self.die()
        if self.mode is Mode.LOST:
            raise JournalUnavailable("the write was made, and its reply was lost")


_here: ContextVar[SimulatedProcess | None] = ContextVar("durable_core.testing.process", default=None)
_dead: set[str] = set()


@contextmanager
def simulated() -> Iterator[None]:
    """Inside, processes are told from each other, and the starts of bodies are noted."""

    def name() -> str:
        process = _here.get()
        return process.described if process is not None else this_process()

    def is_gone(owner_process: str | None) -> bool:
        return owner_process in _dead or is_dead(owner_process)

    def note(body: Body) -> None:
        process = _here.get()
        if process is not None:
            process.bodies.append(body)

    with ExitStack() as patches:
        stand_ins = {"admission.this_process": name, "owners.this_process": name, "owners.is_dead": is_gone}
        for target, stand_in in stand_ins.items():
            patches.enter_context(patch(f"durable_core.engine.{target}", stand_in))
        patches.enter_context(noting_bodies(note))
        yield


@contextmanager
def noting_bodies(note: Callable[[Body], None]) -> Iterator[None]:
    """Inside, each start of a body is noted before it is run."""
    run = bodies.run

    async def noted(step: Any, args: Any, kwargs: Any, drive: Any) -> Any:
        info, options = current_step(), step.options
        once = options.is_guarded and options.verify is None
        recorded = not options.pure and info.item_index is None
        key = info.idempotency_key
        note(Body(info.step_id, info.item_index, key, once, options.is_guarded, recorded))
        return await run(step, args, kwargs, drive)

    with patch.object(bodies, "run", noted):
        yield
