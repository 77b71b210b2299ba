"""What a `def` workflow works with: the verbs of `Context`, blocking."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import inspect
import threading
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, overload

from durable_core.awaited import UNSET, awaited, slept
from durable_core.context import Branch, branch_name, check_branches
from durable_core.control_flow import RunInterrupted
from durable_core.errors import RunningLoop, UsageError
from durable_core.map_options import MapArguments, checked, mapped
from durable_core.step_definition import is_async
from durable_core.verbs import Engine, Verbs
from durable_core.workflow import step_of

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable
    from datetime import datetime, timedelta

    from typing_extensions import Unpack

    from durable_core.map_result import MapResult
    from durable_core.scope import Scope

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")


class SyncContext(Verbs):
    """The verbs of a `def` workflow. Handed to it by the executor; for the thread that the workflow runs in.

    Args:
        engine: What drives the workflow.
        scope: Where its ids are given.
        loop: Where the engine runs.
    """

    def __init__(self, engine: Engine, scope: Scope, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(engine, scope)
        self._loop = loop

    @overload
    def step(self, fn: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs) -> R: ...

    @overload
    def step(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...

    def step(self, fn: Callable[..., Any], /, *args: object, **kwargs: object) -> Any:
        """Runs a function once and for all, as `Context.step`; gives its output."""
        return self._wait(self._engine.call(self._scope, step_of(fn), args, kwargs, self._caller()))

    @overload
    def step_if(
        self, condition: bool, fn: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> R | None: ...

    @overload
    def step_if(
        self, condition: bool, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> R | None: ...

    def step_if(self, condition: bool, fn: Callable[..., Any], /, *args: object, **kwargs: object) -> Any:
        """A step that is recorded as SKIPPED if the condition is false, as `Context.step_if`."""
        step, caller = step_of(fn), self._caller()
        return self._wait(
            self._engine.call(self._scope, step, args, kwargs, caller, condition=bool(condition))
        )

    def sleep(self, seconds: float | timedelta | None = None, /, *, until: datetime | None = None) -> None:
        """Waits, for however long, as `Context.sleep`."""
        self._wait(self._engine.sleep(self._scope, slept(seconds, until), self._caller()))

    @overload
    def wait_for_event(
        self, name: str, /, *, type: type[T], timeout: float | timedelta | None = None
    ) -> T: ...

    @overload
    def wait_for_event(
        self, name: str, /, *, type: type[T], timeout: float | timedelta | None = None, default: A
    ) -> T | A: ...

    @overload
    def wait_for_event(
        self, name: str, /, *, timeout: float | timedelta | None = None, default: object = UNSET
    ) -> Any: ...

    def wait_for_event(
        self,
        name: str,
        /,
        *,
        type: Any = None,
        timeout: float | timedelta | None = None,
        default: Any = UNSET,
    ) -> Any:
        """Waits for something that is sent to the run, as `Context.wait_for_event`; gives its payload."""
        found = awaited(name, type, timeout, default)
        return self._wait(self._engine.event(self._scope, found, self._caller()))

    @overload
    def map(
        self, fn: Callable[[SyncContext, T], R], items: Iterable[T], **options: Unpack[MapArguments]
    ) -> MapResult[R]: ...

    @overload
    def map(
        self, fn: Callable[[T], Coroutine[Any, Any, R]], items: Iterable[T], **options: Unpack[MapArguments]
    ) -> MapResult[R]: ...

    @overload
    def map(
        self, fn: Callable[[T], R], items: Iterable[T], **options: Unpack[MapArguments]
    ) -> MapResult[R]: ...

    def map(
        self, fn: Callable[..., Any], items: Iterable[Any], **options: Unpack[MapArguments]
    ) -> MapResult[Any]:
        """Runs a function over many items, as `Context.map`; gives the result.

        Items whose function is `def fn(ctx: SyncContext, item)` have steps of their own.
        """
        chosen = checked(options)
        return self._wait(self._engine.map(self._scope, mapped(fn, chosen), items, chosen, self._caller()))

    def branch(
        self, fn: Callable[Concatenate[SyncContext, P], R], /, *args: P.args, **kwargs: P.kwargs
    ) -> Branch[R]:
        """A part of the workflow with a scope of its own, to be given to `parallel`, which runs it in a
        thread.

        Args:
            fn: `def fn(ctx, *args)`.
            args: Its arguments.
            kwargs: The same.

        Raises:
            AmbiguousStep: Another thread called this branch name first.
            UsageError: The function is an `async def`.
        """
        name = branch_name(fn)
        if is_async(inspect.unwrap(fn)):
            raise UsageError(
                f"branch {name!r} is an `async def`, and this workflow is a `def`",
                remedy="Write it as `def`; or write the workflow as `async def`, with a Context",
            )
        scope = self._scope.allot_branch(name, self._caller())
        context = SyncContext(self._engine, scope, self._loop)

        async def run() -> R:
            return await in_thread(fn, context, *args, **kwargs)

        return Branch(scope, run)

    @overload
    def parallel(self, first: Branch[A], /) -> tuple[A]: ...

    @overload
    def parallel(self, first: Branch[A], second: Branch[B], /) -> tuple[A, B]: ...

    @overload
    def parallel(self, first: Branch[A], second: Branch[B], third: Branch[C], /) -> tuple[A, B, C]: ...

    @overload
    def parallel(self, *branches: Branch[R]) -> tuple[R, ...]: ...

    def parallel(self, *branches: Branch[Any]) -> tuple[Any, ...]:
        """Runs branches side by side, as `Context.parallel`.

        Raises:
            BranchFailed: Names the branch; what it raised is chained.
        """
        check_branches(branches)
        try:
            return tuple(self._wait(self._engine.join(self._scope, branches, self._caller())))
        finally:
            for branch in branches:
                branch.close()

    def _caller(self) -> object:
        """The thread that calls a verb."""
        return threading.current_thread()

    def _wait(self, verb: Coroutine[Any, Any, R]) -> R:
        if _running_loop() is self._loop:  # waiting here would stop what is waited for
            verb.close()
            raise RunningLoop(
                "a blocking verb was called in the event loop that drives the run",
                run_id=self.run_id,
                remedy="Use a SyncContext in the thread of its `def` workflow only",
            )
        plain_code, thread = self._engine.plain_code, threading.current_thread()

        async def inside() -> R:
            plain_code.enters(thread)
            try:
                return await verb
            finally:
                plain_code.leaves(thread)

        try:
            return asyncio.run_coroutine_threadsafe(inside(), self._loop).result()
        except (
            concurrent.futures.CancelledError
        ):  # an `Exception`, which would pass for the code's own failure
            raise RunInterrupted("the run was interrupted") from None


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


async def in_thread(
    fn: Callable[Concatenate[SyncContext, P], R], context: SyncContext, /, *args: P.args, **kwargs: P.kwargs
) -> R:
    """Runs plain workflow code in a thread of its own: however many branches wait, none holds up another.

    The thread can't be cancelled: a cancellation waits until the code has come to its next verb, which
    raises.
    """
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[R] = loop.create_future()
    variables, plain_code = contextvars.copy_context(), context._engine.plain_code

    def settle(result: R | None, error: BaseException | None) -> None:
        plain_code.ends(thread)
        if error is not None:
            ended.set_exception(error)
        else:
            ended.set_result(result)  # type: ignore[arg-type]  # no error: it is the function's

    def run() -> None:
        result, error = None, None
        try:
            result = variables.run(fn, context, *args, **kwargs)
        except (
            BaseException
        ) as raised:  # whatever ends the code has to reach the loop; StopIteration can't as it is
            error = RuntimeError(repr(raised)) if isinstance(raised, StopIteration) else raised
        loop.call_soon_threadsafe(settle, result, error)

    thread = threading.Thread(target=run, name="durable-workflow", daemon=True)
    plain_code.begins(thread)
    thread.start()
    while True:
        try:
            return await asyncio.shield(ended)
        except asyncio.CancelledError:
            if ended.done():
                raise
            await asyncio.wait((ended,))
