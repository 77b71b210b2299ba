"""What users mark steps with: `@step`, and what it makes of a function."""

from __future__ import annotations

import functools
import inspect
from dataclasses import dataclass, replace
from types import MethodType
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Final,
    Generic,
    Literal,
    ParamSpec,
    TypeVar,
    get_args,
    overload,
)

from typing_extensions import TypedDict, Unpack

from durable_core.arguments import check_count, check_number
from durable_core.codec import return_adapter
from durable_core.errors import UsageError
from durable_core.identity import check_id
from durable_core.retry import NO_RETRY, Retry

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydantic import TypeAdapter

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

DEFAULT_CRASH_LIMIT: Final = 3
Semantics = Literal["at_least_once", "at_most_once"]


class StepChanges(TypedDict, total=False):
    """The options of a step that can be given to `@step` and `with_options`."""

    name: str | None
    retry: Retry
    timeout_s: float | None
    crash_limit: int
    semantics: Semantics
    verify: Callable[..., Any] | None
    pure: bool


@dataclass(frozen=True, slots=True)
class Done(Generic[R]):
    """A verifier's answer: the step's effect has happened, and this is its output."""

    output: R


@dataclass(frozen=True, slots=True)
class NotDone:
    """A verifier's answer: the step's effect has not happened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOptions:
    """How a step is run.

    Attributes:
        name: Its part of the step id; the function's name when None.
        retry: When a body that raised is tried again; never, by default.
        timeout_s: Seconds that one attempt may take.
        crash_limit: Starts that may end with the process's death before the step is failed without its body.
        semantics: What happens to a step that was running when its process died. `at_least_once`: it runs
            again. `at_most_once`: `verify` tells whether it happened; without `verify` a person has to.
        verify: Called with the idempotency key and the step's arguments; answers `Done(output)` or
            `NotDone()`.
        pure: The body has no effect worth guarding: one record after it instead of two.
    """

    name: str | None = None
    retry: Retry = NO_RETRY
    timeout_s: float | None = None
    crash_limit: int = DEFAULT_CRASH_LIMIT
    semantics: Semantics = "at_least_once"
    verify: Callable[..., Any] | None = None
    pure: bool = False

    def __post_init__(self) -> None:
        """Refuses what can't be meant."""
        if self.name is not None:
            check_id(self.name, "step name")
        if type(self.retry) is not Retry:
            raise UsageError(f"retry={self.retry!r} must be a Retry")
        if self.timeout_s is not None:
            check_number("timeout_s", self.timeout_s, least=0, above=True)
        check_count("crash_limit", self.crash_limit)
        if self.semantics not in get_args(Semantics):
            raise UsageError(
                f"semantics={self.semantics!r} is unknown",
                remedy=f"Use one of: {', '.join(get_args(Semantics))}",
            )
        if self.is_guarded and self.pure:
            raise UsageError("a pure step has no effect to guard", remedy="Leave out pure= or semantics=")
        if self.verify is not None and not self.is_guarded:
            raise UsageError("verify= is for at_most_once steps", remedy='Add semantics="at_most_once"')
        if self.is_guarded and self.verify is None and self.retry.max_attempts > 1:
            raise UsageError(
                "an at_most_once step without verify can't be tried again: nothing tells whether it happened",
                remedy="Give it verify=, or leave out retry=",
            )

    @property
    def is_guarded(self) -> bool:
        """Whether the body must not run twice."""
        return self.semantics == "at_most_once"


class Step(Generic[P, R_co]):
    """A function whose output is checkpointed when a workflow calls it through its context.

    Called directly it is the plain function.

    Attributes:
        adapter: What restores the output, once `resolve` was called; None when the annotation says nothing.
    """

    def __init__(self, fn: Callable[P, R_co], options: StepOptions) -> None:
        self.fn = fn
        self.options = options
        self.is_async = is_async(fn)
        self.name = check_id(options.name or name_of(fn), "step name")
        self.adapter: TypeAdapter[Any] | None = None
        self._resolved = False
        functools.update_wrapper(self, fn, updated=())

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Calls the function, without a checkpoint."""
        return self.fn(*args, **kwargs)

    @overload
    def __get__(self, instance: None, owner: type) -> Step[P, R_co]: ...

    @overload
    def __get__(self: Step[Concatenate[Any, Q], R], instance: object, owner: type) -> Step[Q, R]: ...

    def __get__(self, instance: object, owner: type) -> Step[..., Any]:
        """The step itself, or, on a method, that of the bound method."""
        if instance is None:
            return self
        return Step(MethodType(self.fn, instance), self.options)

    def with_options(self, **options: Unpack[StepChanges]) -> Step[P, R_co]:
        """The same step with some options changed, for one call.

        Raises:
            UsageError: An option is unknown or out of range.
        """
        unknown = options.keys() - StepOptions.__dataclass_fields__.keys()
        if unknown:
            raise UsageError(f"unknown step option {min(unknown)!r}")
        return Step(self.fn, replace(self.options, **options))

    def resolve(self) -> None:
        """Finds what restores the output.

        Raises:
            UnresolvedAnnotation: The return annotation can't be resolved.
        """
        if not self._resolved:
            self.adapter = return_adapter(self.fn)
            self._resolved = True

    def __repr__(self) -> str:
        return f"<step {self.name}>"


@overload
def step(fn: Callable[P, R], /) -> Step[P, R]: ...


@overload
def step(**options: Unpack[StepChanges]) -> Callable[[Callable[P, R]], Step[P, R]]: ...


def step(
    fn: Callable[P, R] | None = None, /, **options: Unpack[StepChanges]
) -> Step[P, R] | Callable[[Callable[P, R]], Step[P, R]]:
    """Marks a function (`def`, run in a worker thread, or `async def`) as a step and gives it options.

    Args:
        fn: The function, when the decorator is used without arguments.
        options: As the attributes of `StepOptions`: name, retry, timeout_s, crash_limit, semantics, verify,
            pure.

    Raises:
        UsageError: An option is unknown or out of range, or the name can't be a step's.

    Example:
        @step(retry=Retry(max_attempts=4), timeout_s=60)
        async def extract(path: str) -> Extraction: ...
    """
    unknown = options.keys() - StepOptions.__dataclass_fields__.keys()
    if unknown:
        raise UsageError(
            f"unknown step option {min(unknown)!r}",
            remedy=f"Use: {', '.join(StepOptions.__dataclass_fields__)}",
        )
    chosen = StepOptions(**options)
    if fn is not None:
        return Step(fn, chosen)
    return lambda wrapped: Step(wrapped, chosen)


def name_of(fn: Callable[..., Any]) -> str:
    """The name that a function gives its step or workflow.

    Raises:
        UsageError: It has none.
    """
    name = getattr(fn, "__name__", None)
    if not isinstance(name, str) or name == "<lambda>":
        raise UsageError(
            f"{fn!r} has no name to be known by",
            remedy='Give it one: `step(name="…")(fn)`, or write it as a function',
        )
    return name


def is_async(fn: Callable[..., Any]) -> bool:
    """Whether calling it gives something to await."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    called = getattr(type(fn), "__call__", None)  # noqa: B004 - the method itself, not whether there is one
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(called)
