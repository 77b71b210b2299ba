"""Running the body of a step: awaited, or in a worker thread; within its time."""

from __future__ import annotations

import asyncio
import contextvars
import copy
import functools
import reprlib
from typing import TYPE_CHECKING, Any

from durable_core.codec import ATOMS
from durable_core.errors import StepTimedOut
from durable_core.step_definition import is_async

if TYPE_CHECKING:
    from collections.abc import Callable

    from durable_core.engine.drive import Drive
    from durable_core.step_definition import Step

_SHOWN = reprlib.Repr()
_SHOWN.maxstring = _SHOWN.maxother = 120


async def run(step: Step[..., Any], args: tuple[object, ...], kwargs: dict[str, object], drive: Drive) -> Any:
    """Runs one attempt of a body, with arguments of its own.

    Raises:
        StepTimedOut: It took longer than the step's `timeout_s`. An async body is cancelled; a `def` body
            can't be: its thread goes on, and its late result is refused.
    """
    args, kwargs = _own(args, kwargs)
    if not step.is_async:
        return await _in_thread(step, args, kwargs, drive)
    timeout_s = step.options.timeout_s
    if timeout_s is None:
        return await step.fn(*args, **kwargs)
    limit = asyncio.timeout(timeout_s)
    try:
        async with limit:
            return await step.fn(*args, **kwargs)
    except TimeoutError:
        if limit.expired():
            raise _timed_out(timeout_s) from None
        raise


def _own(args: tuple[object, ...], kwargs: dict[str, object]) -> tuple[tuple[object, ...], dict[str, object]]:
    """Copies of what a body could change: a change would be seen by the workflow, but not on replay."""
    for given in (args, kwargs.values()):
        for arg in given:
            if type(arg) not in ATOMS:
                return copy.deepcopy((args, kwargs))
    return args, kwargs


async def _in_thread(
    step: Step[..., Any], args: tuple[object, ...], kwargs: dict[str, object], drive: Drive
) -> Any:
    """Runs a `def` body. A thread can't be cancelled, so a cancellation waits for it, as long as the way out
    allows.

    What it then gave is committed before the cancellation goes on.
    """
    timeout_s = step.options.timeout_s
    future = _in_pool(step.fn, args, kwargs, drive)
    try:
        try:
            await asyncio.wait((future,), timeout=timeout_s)
        except asyncio.CancelledError:
            await asyncio.wait((future,), timeout=drive.grace_s)
            if not future.done():
                raise
            drive.deferred.add(asyncio.current_task())
    finally:
        if not future.done():
            _leave_behind(future, drive)
    if not future.done():
        raise _timed_out(timeout_s or 0)
    return future.result()


def _timed_out(timeout_s: float) -> StepTimedOut:
    return StepTimedOut(f"the body ran longer than its timeout of {timeout_s:g} s")


async def verify(
    verifier: Callable[..., Any], key: str, args: tuple[object, ...], kwargs: dict[str, object], drive: Drive
) -> Any:
    """Asks a step's verifier whether its effect has happened."""
    if is_async(verifier):
        return await verifier(key, *args, **kwargs)
    return await _in_pool(verifier, (key, *args), kwargs, drive)


def is_cancelled() -> bool:
    """Whether somebody asked to cancel the current task; else a CancelledError is the body's own failure."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _in_pool(
    fn: Callable[..., Any], args: tuple[object, ...], kwargs: dict[str, object], drive: Drive
) -> asyncio.Future[Any]:
    """Runs a plain function in a thread, with the context variables of here."""
    call = functools.partial(contextvars.copy_context().run, _called, fn, *args, **kwargs)
    return asyncio.get_running_loop().run_in_executor(drive.tools.threads, call)


def _called(fn: Callable[..., Any], /, *args: object, **kwargs: object) -> Any:
    try:
        return fn(*args, **kwargs)
    except StopIteration as error:  # no future can carry it; a coroutine turns it into the same
        raise RuntimeError("the function raised StopIteration") from error


def _leave_behind(future: asyncio.Future[Any], drive: Drive) -> None:
    """A thread goes on although nobody waits for it: the way out knows it, its exception isn't reported."""

    def ended(stray: asyncio.Future[Any]) -> None:
        drive.strays.discard(stray)
        if not stray.cancelled():
            stray.exception()

    drive.strays.add(future)
    future.add_done_callback(ended)


def shown_call(args: tuple[object, ...], kwargs: dict[str, object]) -> str:
    """Arguments as an error message shows them, shortened."""
    parts = [_SHOWN.repr(value) for value in args]
    parts += [f"{name}={_SHOWN.repr(value)}" for name, value in kwargs.items()]
    return f"({', '.join(parts)})"
