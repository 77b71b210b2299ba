"""What an `async def` workflow works with: its context, its scopes and its branches."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, overload

from durable_core.awaited import UNSET, awaited, slept
from durable_core.errors import UsageError
from durable_core.identity import check_id
from durable_core.map_options import MapArguments, checked, mapped
from durable_core.scope import Scope, calling_task
from durable_core.step_definition import is_async
from durable_core.verbs import Verbs
from durable_core.workflow import step_of

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable
    from datetime import datetime, timedelta

    from typing_extensions import Unpack

    from durable_core.map_result import MapResult

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")


class Branch(Coroutine[Any, Any, R]):
    """A part of a workflow with a scope of its own; a coroutine, to be awaited or given to `parallel`.

    Attributes:
        name: As its step ids begin with it, without the `/`.
        scope: Its namespace.
    """

    def __init__(self, scope: Scope, start: Callable[[], Coroutine[Any, Any, R]]) -> None:
        self.scope = scope
        self.name = scope.path[:-1]
        self._start = start
        self._started: Coroutine[Any, Any, R] | None = None
        self._closed = False

    def send(self, value: Any, /) -> Any:
        """As of coroutines."""
        if self._started is None:
            self._started = self._start()
        return self._started.send(value)

    def throw(self, *error: Any) -> Any:
        """As of coroutines."""
        if self._started is None:
            self._started = self._start()
        return self._started.throw(*error)

    def close(self) -> None:
        """As of coroutines."""
        self._closed = True
        if self._started is not None:
            self._started.close()

    def __del__(self) -> None:
        """Warns, as coroutines do."""
        if self._started is None and not self._closed:
            warnings.warn(f"branch {self.name!r} was never awaited", RuntimeWarning, stacklevel=2)

    def __await__(self) -> Generator[Any, Any, R]:
        """Runs the branch in the current task."""
        if self._started is None:
            self._started = self._start()
        return self._started.__await__()


class Context(Verbs):
    """The verbs of an `async def` workflow. Handed to it by the executor."""

    @overload
    def step(
        self, fn: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, R]: ...

    @overload
    def step(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]: ...

    def step(self, fn: Callable[..., Any], /, *args: object, **kwargs: object) -> Coroutine[Any, Any, Any]:
        """Runs a function once and for all: its output is recorded, and used on every later replay.

        The step's id is given by this call, not by awaiting it: make several calls in order, and await them
        together.

        Args:
            fn: A `@step`, or any callable with a name; `def` runs in a worker thread.
            args: Its arguments. They are hashed: another value on resume is a `StepMismatch`.
            kwargs: The same.

        Returns:
            To be awaited: the output, as it comes back on every replay.

        Raises:
            AmbiguousStep: Another task called this step name first.
            StepFailed: (awaiting) The step failed; the same when it is replayed.
            StepInDoubt: (awaiting) It is `at_most_once`, and nothing tells whether it happened.
            StepMismatch: (awaiting) It is recorded with other arguments.
        """
        return self._engine.call(self._scope, step_of(fn), args, kwargs, calling_task())

    @overload
    def step_if(
        self, condition: bool, fn: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, R | None]: ...

    @overload
    def step_if(
        self, condition: bool, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, R | None]: ...

    def step_if(
        self, condition: bool, fn: Callable[..., Any], /, *args: object, **kwargs: object
    ) -> Coroutine[Any, Any, Any]:
        """A step that is recorded as SKIPPED, and gives None, if the condition is false.

        The recorded outcome wins on replay, whatever the condition is then.
        """
        step, caller = step_of(fn), calling_task()
        return self._engine.call(self._scope, step, args, kwargs, caller, condition=bool(condition))

    def sleep(
        self, seconds: float | timedelta | None = None, /, *, until: datetime | None = None
    ) -> Coroutine[Any, Any, None]:
        """Waits, for however long: the end is recorded, and a process needn't stay for it.

        Args:
            seconds: How long; a time that is over already ends at once.
            until: Till when: an aware datetime, best made from `ctx.now()`.

        Raises:
            UsageError: It is no time.
        """
        return self._engine.sleep(self._scope, slept(seconds, until), calling_task())

    @overload
    def wait_for_event(
        self, name: str, /, *, type: type[T], timeout: float | timedelta | None = None
    ) -> Coroutine[Any, Any, T]: ...

    @overload
    def wait_for_event(
        self, name: str, /, *, type: type[T], timeout: float | timedelta | None = None, default: A
    ) -> Coroutine[Any, Any, T | A]: ...

    @overload
    def wait_for_event(
        self, name: str, /, *, timeout: float | timedelta | None = None, default: object = UNSET
    ) -> Coroutine[Any, Any, Any]: ...

    def wait_for_event(
        self,
        name: str,
        /,
        *,
        type: Any = None,
        timeout: float | timedelta | None = None,
        default: Any = UNSET,
    ) -> Coroutine[Any, Any, Any]:
        """Waits for something that is sent to the run: `executor.signal`, `durable signal`.

        Events of a name are taken in the order in which they were sent, each once; one that came before the
        wait is taken at once.

        Args:
            name: Of the event.
            type: What its payload is restored as.
            timeout: How long to wait: seconds, or a timedelta.
            default: What comes instead when nothing has come by then.

        Raises:
            UsageError: The timeout is no time, or the type can't be restored.
            EventTimeout: (awaiting) Nothing came in time, and there is no default.
            EventInvalid: (awaiting) What came doesn't fit the type.
        """
        found = awaited(name, type, timeout, default)
        return self._engine.event(self._scope, found, calling_task())

    @overload
    def map(
        self,
        fn: Callable[[Context, T], Coroutine[Any, Any, R]],
        items: Iterable[T],
        **options: Unpack[MapArguments],
    ) -> Coroutine[Any, Any, MapResult[R]]: ...

    @overload
    def map(
        self, fn: Callable[[T], Coroutine[Any, Any, R]], items: Iterable[T], **options: Unpack[MapArguments]
    ) -> Coroutine[Any, Any, MapResult[R]]: ...

    @overload
    def map(
        self, fn: Callable[[T], R], items: Iterable[T], **options: Unpack[MapArguments]
    ) -> Coroutine[Any, Any, MapResult[R]]: ...

    def map(
        self, fn: Callable[..., Any], items: Iterable[Any], **options: Unpack[MapArguments]
    ) -> Coroutine[Any, Any, MapResult[Any]]:
        """Runs a function over many items, up to `max_concurrency` at a time; each is done once and for all.

        Args:
            fn: A `@step` or function of one item; a `functools.partial` of one, whose arguments are hashed;
                or `async def fn(ctx: Context, item)`, whose items have steps of their own.
            items: A list, an iterator, or a `Jsonl` manifest. They are pulled as they are needed.
            options: `key` (a function that names an item: items may then be appended and reordered until
                the map has committed), `max_concurrency` (32), `rate` (a `Rate`), `tolerate_failures` (a
                count, or a share as a float), `linger_ms` (how long finished items wait to be written
                together), `retry` (instead of the step's own), `collect` (False: no `outputs`).

        Returns:
            To be awaited: counts, and outputs that are read from the store when asked for.

        Raises:
            UsageError: An option is out of range.
            AmbiguousStep: Another task called this name first.
            MapFailed: (awaiting) More items failed than are tolerated, or they could not be read to the end;
                a resume of the run goes on with those that failed or are missing.
            StepMismatch: (awaiting) An item isn't the one that its recorded outcome is of.
        """
        chosen = checked(options)
        return self._engine.map(self._scope, mapped(fn, chosen), items, chosen, calling_task())

    def branch(
        self,
        fn: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Branch[R]:
        """A part of the workflow whose step ids begin with the function's name: `risk/score`.

        Args:
            fn: `async def fn(ctx, *args)`.
            args: Its arguments. They are not recorded: the steps inside are.
            kwargs: The same.

        Returns:
            To be awaited, or given to `parallel`, `asyncio.gather` or a task group. Its id is given by this
            call.

        Raises:
            AmbiguousStep: Another task called this branch name first.
            UsageError: The function is no `async def`.
        """
        name = branch_name(fn)
        if not is_async(inspect.unwrap(fn)):
            raise UsageError(
                f"branch {name!r} is a `def`, and this workflow is an `async def`",
                remedy="Write it as `async def`; or write the workflow as `def`, with a SyncContext",
            )
        scope = self._scope.allot_branch(name, calling_task())
        return Branch(scope, lambda: fn(Context(self._engine, scope), *args, **kwargs))

    @overload
    async def parallel(self, first: Branch[A], /) -> tuple[A]: ...

    @overload
    async def parallel(self, first: Branch[A], second: Branch[B], /) -> tuple[A, B]: ...

    @overload
    async def parallel(self, first: Branch[A], second: Branch[B], third: Branch[C], /) -> tuple[A, B, C]: ...

    @overload
    async def parallel(
        self, first: Branch[A], second: Branch[B], third: Branch[C], fourth: Branch[D], /
    ) -> tuple[A, B, C, D]: ...

    @overload
    async def parallel(self, *branches: Branch[R]) -> tuple[R, ...]: ...

    async def parallel(self, *branches: Branch[Any]) -> tuple[Any, ...]:
        """Runs branches side by side and gives their results in the order of the arguments.

        When one fails, the others go on to their next step boundary and begin nothing more; what they
        committed stays.

        Raises:
            BranchFailed: Names the branch; what it raised is chained.
        """
        check_branches(branches)
        try:
            return tuple(await self._engine.join(self._scope, branches, calling_task()))
        finally:
            for branch in branches:
                branch.close()


def check_branches(branches: tuple[object, ...]) -> None:
    """Refuses what can't be joined.

    Raises:
        UsageError: Something is no branch, or given twice.
    """
    for number, branch in enumerate(branches):
        if not isinstance(branch, Branch):
            raise UsageError(f"{branch!r} is no branch", remedy="Write ctx.parallel(ctx.branch(fn, …), …)")
        if branch in branches[:number]:
            raise UsageError(f"branch {branch.name!r} is given twice", remedy="Call ctx.branch once for each")


def branch_name(fn: Callable[..., Any]) -> str:
    """The name that a branch of this function has.

    Raises:
        InvalidId, UsageError: It has none that can be one.
    """
    name = getattr(fn, "__name__", None)
    if name is None or name == "<lambda>":
        raise UsageError(f"{fn!r} has no name to be a branch by", remedy="Write it as a function with a name")
    return check_id(name, "branch name")
