"""Simulated processes: each has an executor, ids and a clock of its own, and knows what it was told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from durable_core import DurableWorkflowExecutor
from durable_core.engine.drive import Tools
from durable_core.engine.lease import HeldLease, Renewals
from tests.concurrency.traces import brief

if TYPE_CHECKING:
    from durable_core.testing.fake_clock import FakeClock
    from tests.concurrency.clocks import LocalClock
    from tests.concurrency.simulation import World

WRITES = (
    "create", "acquire", "leave", "cancel", "begin", "commit", "put", "append", "renew", "delete", "bury",
    "send", "take", "wake", "claim", "leave_chunk",
)  # fmt: skip

who: ContextVar[Process | None] = ContextVar("who", default=None)


@dataclass(eq=False)
class Request:
    """One call that waits."""

    process: Process
    number: int
    verb: str
    what: tuple[object, ...]
    call: Callable[[], Coroutine[Any, Any, Any]]
    reply: asyncio.Future[Any]
    condition: Callable[[], bool] | None = None
    knew: int = 0  # the highest fence that its process had been told of when it asked

    @property
    def writes(self) -> bool:
        return self.verb in WRITES

    def __str__(self) -> str:
        return f"{self.process.name} {self.verb} {' '.join(map(brief, self.what))}"


@dataclass(eq=False)
class Process:
    """A simulated process with an executor of its own.

    Attributes:
        clock: Its own.
        lease_clock: What the leases of its runs are judged by.
        role: drive or prune: one of each role that there is stays alive.
        history: A hash of all replies so far: what the process knows.
        fence: Of its last acquire.
        acquired: Whether it has acquired the run since it last asked to run it.
        knows: The highest fence that a reply has told it of since.
        knew: What it knew when it first asked for an attempt.
    """

    name: str
    world: World
    clock: LocalClock
    lease_clock: FakeClock
    executor: DurableWorkflowExecutor = field(init=False)
    tools: Tools = field(init=False)
    task: asyncio.Task[None] | None = None
    alive: bool = True
    role: str = ""
    history: int = 0
    ids: int = 0
    requests: int = 0
    pending: list[Request] = field(default_factory=list)
    held: list[HeldLease] = field(default_factory=list)
    outcome: object = None
    fence: int = 0
    acquired: bool = False
    knows: int = 0
    knew: dict[str, int] = field(default_factory=dict)
    refused: tuple[object, ...] = ()

    def new_id(self) -> str:
        self.ids += 1
        return f"{self.name}.{self.ids}"


def here() -> Process:
    """The process that asks."""
    process = who.get()
    assert process is not None, "asked outside a simulated process"
    return process


def who_name() -> str:
    process = who.get()
    return process.name if process is not None else "?"


@contextmanager
def simulated() -> Iterator[None]:
    """Inside, ids are counted and processes are simulated."""

    def new_id(_: str = "") -> str:
        return here().new_id()

    def is_dead(owner_process: str | None) -> bool:
        return owner_process in here().world.dead

    with ExitStack() as patches:
        for module, names in {
            "admission": {"new_owner": new_id, "this_process": who_name},
            "owners": {"this_process": who_name, "is_dead": is_dead},
            "chunk_claims": {"new_owner": new_id},
            "chunk_plan": {"new_segment_id": new_id},
            "step_records": {"new_attempt_id": new_id},
            "operations": {"new_attempt_id": new_id},
            "branches": {"new_attempt_id": new_id},
            "batch_log": {"new_segment_id": new_id},
            "batch_items": {"new_segment_id": new_id},
            "drive": {"get_logger": lambda _: Quiet()},
        }.items():
            for name, stand_in in names.items():
                patches.enter_context(patch(f"durable_core.engine.{module}.{name}", stand_in))
        yield


class ScheduledRenewals(Renewals):
    """Renewals that the chooser makes, instead of a thread."""

    def keep(self, held: HeldLease) -> None:
        here().held.append(held)

    def drop(self, held: HeldLease) -> None:
        process = here()
        if held in process.held:
            process.held.remove(held)


class Quiet:
    """A log that nobody reads."""

    def bind(self, **_: object) -> Quiet:
        return self

    def debug(self, *_: object, **__: object) -> None: ...

    info = warning = error = debug
