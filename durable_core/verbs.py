"""What both kinds of context have, and what they ask of the engine that drives their workflow."""

from __future__ import annotations

import random
import uuid
from datetime import UTC, datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Protocol

from durable_core.clock import epoch_ms
from durable_core.log import get_logger
from durable_core.scope import calling_task

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable

    from structlog.typing import FilteringBoundLogger

    from durable_core.awaited import Awaited, Slept
    from durable_core.context import Branch
    from durable_core.map_options import MapOptions, Mapped
    from durable_core.map_result import MapResult
    from durable_core.plain_code import PlainCode
    from durable_core.scope import Scope
    from durable_core.step_definition import Step


class Engine(Protocol):
    """What drives the workflow that holds a context."""

    run_id: str
    created_at: str
    plain_code: PlainCode

    def sleep(self, scope: Scope, asked: Slept, caller: object) -> Coroutine[Any, Any, None]:
        """Allots the id of a sleep; the coroutine waits for what is left of it."""
        ...

    def event(self, scope: Scope, awaited: Awaited, caller: object) -> Coroutine[Any, Any, Any]:
        """Allots the id of a wait for an event; the coroutine gives its payload."""
        ...

    def call(
        self,
        scope: Scope,
        step: Step[..., Any],
        args: tuple[object, ...],
        kwargs: dict[str, object],
        caller: object,
        *,
        condition: bool = True,
    ) -> Coroutine[Any, Any, Any]:
        """Allots the id of a step call; the coroutine runs, replays or skips it."""
        ...

    def is_replaying(self) -> bool:
        """Whether recorded steps are left that the workflow has not come to."""
        ...

    def map(
        self, scope: Scope, mapped: Mapped, items: Iterable[Any], options: MapOptions, caller: object
    ) -> Coroutine[Any, Any, MapResult[Any]]:
        """Allots the id of a map; the coroutine runs its items, or replays it."""
        ...

    async def join(self, scope: Scope, branches: tuple[Branch[Any], ...], caller: object) -> list[Any]:
        """Runs branches side by side, until each has ended or stands at a step boundary."""
        ...


class Verbs:
    """What both kinds of context have, not awaited and the same on every replay.

    `now`, `random` and `uuid4` are for decisions and ids in the workflow's own code, where the wall clock and
    the random module would give something else on resume.
    """

    def __init__(self, engine: Engine, scope: Scope) -> None:
        self._engine = engine
        self._scope = scope

    @property
    def run_id(self) -> str:
        """The run's id."""
        return self._engine.run_id

    @property
    def is_replaying(self) -> bool:
        """Whether the run was resumed and this line has run before."""
        return self._engine.is_replaying()

    @property
    def log(self) -> FilteringBoundLogger:
        """A logger; its lines name the run."""
        return get_logger("durable_core.workflow")

    def now(self) -> datetime:
        """When this scope's last returned step was committed, in UTC; at first the run's creation."""
        millis = epoch_ms(self._scope.last_at or self._engine.created_at)
        return datetime.fromtimestamp(millis / 1000, UTC)

    def random(self) -> float:
        """A number from 0 to 1 that depends on the run, the scope and how many were drawn before.

        Raises:
            AmbiguousStep: Another task draws in this scope, too.
        """
        return random.Random(self._draw()).random()

    def uuid4(self) -> uuid.UUID:
        """A UUID that depends on the run, the scope and how many were drawn before.

        Raises:
            AmbiguousStep: Another task draws in this scope, too.
        """
        return uuid.UUID(bytes=self._draw()[:16], version=4)

    def _draw(self) -> bytes:
        number = self._scope.draw(self._caller())
        return sha256(f"{self.run_id}\n{self._scope.path}\n{number}".encode()).digest()

    def _caller(self) -> object:
        """Who calls a verb: the task, or the thread."""
        return calling_task()
