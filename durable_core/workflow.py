"""What users mark workflows with: `@workflow`, and what it makes of a function."""

from __future__ import annotations

import functools
import inspect
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Concatenate,
    Final,
    Generic,
    ParamSpec,
    Protocol,
    TypeVar,
    cast,
    overload,
)
from weakref import WeakKeyDictionary

from pydantic import PlainValidator, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from durable_core.codec import input_adapters, return_adapter
from durable_core.errors import UsageError
from durable_core.identity import check_id, fingerprint
from durable_core.step_definition import Step, StepOptions, is_async, name_of

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from durable_core.context import Context
    from durable_core.sync_context import SyncContext

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

RUN_OPTIONS: Final = frozenset(
    {"run_id", "resume_run_id", "session_id", "wait", "on_change", "on_wait", "deadline", "wf", "workflow"}
)


class Workflow(Generic[P, R_co]):
    """A function `(ctx, **inputs)` that can be run and resumed; `def` ones take a `SyncContext`."""

    def __init__(self, fn: Callable[..., Any], name: str | None) -> None:
        self.fn = fn
        self.name = check_id(name if name is not None else name_of(fn), "workflow name")
        self.is_async = is_async(fn)
        self.parameters = _input_parameters(fn, self.name)
        functools.update_wrapper(self, fn, updated=())
        _registered.setdefault(self.name, []).append(cast("Workflow[..., object]", self))

    def __call__(self, ctx: Context | SyncContext, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Calls the function with a context."""
        return self.fn(ctx, *args, **kwargs)

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> BoundWorkflow[R_co]:
        """This workflow with its inputs: what `run` takes, typed.

        Raises:
            UsageError: The inputs don't fit the workflow's parameters.
        """
        if len(args) > len(self.parameters):
            raise UsageError(f"workflow {self.name!r} takes {len(self.parameters)} inputs, got {len(args)}")
        named = dict(zip(self.parameters, args, strict=False))
        doubled = named.keys() & kwargs.keys()
        if doubled:
            raise UsageError(f"workflow {self.name!r} got input {min(doubled)!r} twice")
        return BoundWorkflow(self, self.checked({**named, **kwargs}))

    def checked(self, inputs: Mapping[str, object]) -> dict[str, object]:
        """The inputs, if they fit the parameters.

        Raises:
            UsageError: One is missing, or unknown.
        """
        unknown = [name for name in inputs if name not in self.parameters]
        missing = [
            name
            for name, parameter in self.parameters.items()
            if parameter.default is inspect.Parameter.empty and name not in inputs
        ]
        if unknown or missing:
            told = {"unknown": unknown, "missing": missing}
            odd = "; ".join(f"{word}: {', '.join(names)}" for word, names in told.items() if names)
            raise UsageError(
                f"the inputs don't fit workflow {self.name!r} ({odd})",
                remedy=f"It takes: {', '.join(self.parameters) or 'none'}",
            )
        return dict(inputs)

    @functools.cached_property
    def input_adapter(self) -> TypeAdapter[Any]:
        """What restores the inputs, as a dict by name."""
        known = input_adapters(self.fn)
        shape: dict[str, Any] = dict.fromkeys(self.parameters, Any)
        for name, adapter in known.items():
            shape[name] = Annotated[Any, PlainValidator(adapter.validate_python)]
        return TypeAdapter(TypedDict("Inputs", shape, total=False))  # type: ignore[operator]  # made at run time

    def from_json(self, inputs: Mapping[str, object]) -> dict[str, object]:
        """Inputs that came as JSON (from a command line or an event), as the annotations say.

        Raises:
            UsageError: They don't fit the parameters or their annotations.
        """
        named = self.checked(inputs)
        try:
            found: dict[str, object] = self.input_adapter.validate_python(named)
        except ValidationError as error:
            told = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
            raise UsageError(f"the inputs don't fit workflow {self.name!r} ({told})") from error
        return found

    @functools.cached_property
    def adapter(self) -> TypeAdapter[Any] | None:
        """What restores the output; None when the annotation says nothing."""
        return return_adapter(self.fn)

    @functools.cached_property
    def fingerprint(self) -> str:
        """Of the workflow's source."""
        return fingerprint(self.fn)

    def __repr__(self) -> str:
        return f"<workflow {self.name}>"


class BoundWorkflow(Generic[R_co]):
    """A workflow together with its inputs."""

    def __init__(self, workflow: Workflow[..., R_co], inputs: dict[str, object]) -> None:
        self.workflow = workflow
        self.inputs = inputs


_plain: WeakKeyDictionary[Callable[..., Any], Step[..., Any]] = WeakKeyDictionary()


def step_of(fn: Callable[..., Any]) -> Step[..., Any]:
    """The step that a callable is, marked or not.

    Raises:
        UsageError: It has no name that a step could have.
    """
    if isinstance(fn, Step):
        return fn
    if isinstance(fn, Workflow):
        raise UsageError(
            f"workflow {fn.name!r} was called as a step",
            remedy="Call its function as a branch, or run it on its own",
        )
    if not callable(fn):
        raise UsageError(
            f"{fn!r} is not callable", remedy="Pass the function itself, and its arguments after it"
        )
    if not inspect.isfunction(
        fn
    ):  # a bound method or callable object: known only as long as its caller holds it
        return Step(fn, StepOptions())
    known = _plain.get(fn)
    if known is None:
        known = _plain[fn] = Step(fn, StepOptions())
    return known


_registered: dict[str, list[Workflow[..., object]]] = {}


def registered(name: str) -> list[Workflow[..., object]]:
    """The workflows of that name that this process has defined, oldest first; one per place in the code."""
    places = {(found.fn.__module__, found.fn.__qualname__): found for found in _registered.get(name, [])}
    return list(places.values())


@overload
def workflow(fn: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /) -> Workflow[P, R]: ...


@overload
def workflow(fn: Callable[Concatenate[SyncContext, P], R], /) -> Workflow[P, R]: ...


@overload
def workflow(*, name: str | None = None) -> _Marker: ...


def workflow(fn: Callable[..., Any] | None = None, /, *, name: str | None = None) -> Any:
    """Marks a function `(ctx, **inputs)` as a workflow.

    Args:
        fn: The function, when the decorator is used without arguments.
        name: What runs are recorded under; the function's name by default. Keep it when the function moves.

    Raises:
        UsageError: The function can't be a workflow: no context, or `*args` or `**kwargs`.
    """
    if fn is not None:
        return Workflow(fn, name)
    return lambda wrapped: Workflow(wrapped, name)


class _Marker(Protocol):
    @overload
    def __call__(
        self, fn: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /
    ) -> Workflow[P, R]: ...

    @overload
    def __call__(self, fn: Callable[Concatenate[SyncContext, P], R], /) -> Workflow[P, R]: ...


def _input_parameters(fn: Callable[..., Any], name: str) -> dict[str, inspect.Parameter]:
    """The parameters after the context, by name."""
    found = list(inspect.signature(fn).parameters.values())
    if not found or found[0].kind is inspect.Parameter.KEYWORD_ONLY:
        raise UsageError(f"workflow {name!r} takes no context", remedy="Write it as `async def f(ctx, …)`")
    odd = [p.name for p in found if p.kind not in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    if odd:
        raise UsageError(
            f"workflow {name!r} has parameters that can't be recorded by name: {', '.join(odd)}",
            remedy="Give each input a name of its own",
        )
    return {parameter.name: parameter for parameter in found[1:]}
