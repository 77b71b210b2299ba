"""Annotations as pydantic adapters: what a step's output and a workflow's inputs are restored by."""

from __future__ import annotations

import collections.abc
import functools
import inspect
import sys
import types
import typing
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from pydantic import (
    PydanticSchemaGenerationError,
    PydanticUndefinedAnnotation,
    PydanticUserError,
    TypeAdapter,
)

from durable_core.errors import UnresolvedAnnotation

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_KEPT = 512
_AWAITED = (collections.abc.Awaitable, collections.abc.Coroutine)
# pydantic restores these as iterators that can be read once; the codec's own tags restore what they hold.
_READ_ONCE = (
    collections.abc.Iterable,
    collections.abc.Iterator,
    collections.abc.Generator,
    collections.abc.AsyncIterable,
    collections.abc.AsyncIterator,
    collections.abc.AsyncGenerator,
)
_UNTYPED = (None, type(None), Any, object, inspect.Parameter.empty, typing.Never, typing.NoReturn)

_by_class: WeakKeyDictionary[type, TypeAdapter[Any]] = WeakKeyDictionary()
# By identity, not equality: `A | B == B | A`, but the order decides which of them a dict becomes.
_by_identity: dict[int, tuple[object, TypeAdapter[Any]]] = {}
_returns: WeakKeyDictionary[Callable[..., object], TypeAdapter[Any] | None] = WeakKeyDictionary()


def adapter_for(annotation: object) -> TypeAdapter[Any] | None:
    """The adapter that validates values of an annotation.

    Returns:
        None where the annotation says nothing: Any, object, None, a missing one, and iterators.

    Raises:
        UnresolvedAnnotation: pydantic knows no way to restore such values.
    """
    if any(annotation is untyped for untyped in _UNTYPED):
        return None
    if (typing.get_origin(annotation) or annotation) in _READ_ONCE:
        return None
    if isinstance(annotation, type):
        found = _by_class.get(annotation)
        if found is None:
            found = _by_class[annotation] = _build(annotation)
        return found
    kept = _by_identity.get(id(annotation))
    if kept is not None:
        return kept[1]
    if len(_by_identity) >= _KEPT:
        _by_identity.clear()
    built = _build(annotation)
    _by_identity[id(annotation)] = (annotation, built)
    return built


def return_adapter(fn: Callable[..., object]) -> TypeAdapter[Any] | None:
    """The adapter of a function's return annotation: of the awaited type, if it is awaited.

    Args:
        fn: A function, method, partial, class or callable object.

    Returns:
        None without an annotation that says something.

    Raises:
        UnresolvedAnnotation: The annotation can't be resolved; names the function and the remedy.
    """
    try:
        return _returns[fn]
    except (KeyError, TypeError):  # TypeError: not hashable, or not weakly referable
        pass
    if isinstance(fn, type):
        return adapter_for(fn)
    target = _target(fn)
    try:
        return _returns[target]
    except (KeyError, TypeError):
        pass
    raw = _annotations(target).get("return")
    found = _adapter(target, "return", raw)
    for key in (fn, target):
        # A bound method is made anew for each call, and its entry is gone with it: the target's stays.
        try:
            _returns[key] = found
        except TypeError:
            continue
    return found


def input_adapters(fn: Callable[..., object]) -> dict[str, TypeAdapter[Any]]:
    """The adapters of a workflow's inputs by name: of each annotated parameter but the first, the context.

    Raises:
        UnresolvedAnnotation: An annotation can't be resolved; names function, parameter and remedy.
    """
    target = _target(fn)
    found: dict[str, TypeAdapter[Any]] = {}
    for parameter in list(inspect.signature(fn).parameters.values())[1:]:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        adapter = _adapter(target, parameter.name, _annotations(target).get(parameter.name))
        if adapter is not None:
            found[parameter.name] = adapter
    return found


def _build(annotation: Any) -> TypeAdapter[Any]:
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(annotation)
        if not adapter.pydantic_complete:
            adapter.rebuild(raise_errors=True)
    except (PydanticSchemaGenerationError, PydanticUndefinedAnnotation, PydanticUserError) as error:
        raise _unresolved(f"the annotation {annotation!r}", error) from error
    except (NameError, TypeError) as error:
        raise _unresolved(f"the annotation {annotation!r}", error) from error
    return adapter


def _adapter(fn: Callable[..., object], name: str, raw: object) -> TypeAdapter[Any] | None:
    what = "return annotation" if name == "return" else f"annotation of {name!r}"
    where = f"the {what} {raw!r} of {getattr(fn, '__module__', '?')}.{getattr(fn, '__qualname__', fn)}"
    try:
        annotation = _resolve(fn, raw)
        origin = typing.get_origin(annotation)
        if name == "return" and origin in _AWAITED:
            annotation = typing.get_args(annotation)[-1]
        return adapter_for(annotation)
    except UnresolvedAnnotation as error:
        raise _unresolved(where, error.__cause__ or error) from error
    except (NameError, TypeError, SyntaxError, AttributeError, KeyError) as error:
        raise _unresolved(where, error) from error


def _unresolved(what: str, error: BaseException) -> UnresolvedAnnotation:
    reason = (str(error).splitlines() or [""])[0].rstrip(".")
    return UnresolvedAnnotation(
        f"{what} can't be resolved to a type that values can be restored as: {reason}",
        remedy="Import the type at run time, not only under TYPE_CHECKING, define it at module "
        "level, make it a type that pydantic can validate, or leave the annotation out",
    )


def _resolve(fn: Callable[..., object], raw: object) -> object:
    if raw is None or raw is inspect.Parameter.empty:
        return None
    inner = inspect.unwrap(fn)
    holder = types.SimpleNamespace(__annotations__={"it": raw})
    scope = _closure(inner)
    return typing.get_type_hints(holder, getattr(inner, "__globals__", {}), scope, include_extras=True)["it"]


def _closure(fn: Callable[..., object]) -> dict[str, object]:
    scope: dict[str, object] = {found.__name__: found for found in getattr(fn, "__type_params__", ())}
    code, cells = getattr(fn, "__code__", None), getattr(fn, "__closure__", None) or ()
    for name, cell in zip(code.co_freevars if code is not None else (), cells, strict=False):
        try:
            scope[name] = cell.cell_contents
        except ValueError:  # not bound yet
            continue
    return scope


def _annotations(fn: Callable[..., object]) -> Mapping[str, object]:
    if sys.version_info >= (3, 14):
        import annotationlib

        try:
            return annotationlib.get_annotations(fn, format=annotationlib.Format.FORWARDREF)
        except TypeError:  # a builtin
            return {}
    found = getattr(fn, "__annotations__", None)
    return found if isinstance(found, dict) else {}


def _target(fn: Callable[..., object]) -> Callable[..., object]:
    """The function that carries the annotations."""
    while True:
        if isinstance(fn, functools.partial):
            fn = fn.func
        elif isinstance(fn, types.MethodType):
            fn = fn.__func__
        elif isinstance(fn, types.FunctionType | types.BuiltinFunctionType | type):
            return fn
        elif hasattr(fn, "__wrapped__"):
            fn = fn.__wrapped__
        elif isinstance(getattr(type(fn), "__call__", None), types.FunctionType):  # noqa: B004  the function itself
            return type(fn).__call__
        else:
            return fn
