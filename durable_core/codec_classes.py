"""Instances of classes: models, dataclasses and enums, taken apart into fields and put together again.

A class is named `module:qualname` and is looked up only among what is already imported; nothing is imported,
and nothing is called but a class of the kind that the tag says, by way of pydantic's validation.
"""

from __future__ import annotations

import dataclasses
import sys
import typing
from enum import Enum
from functools import cached_property
from types import ModuleType
from typing import Any, Literal, cast
from weakref import WeakKeyDictionary

from pydantic import BaseModel, RootModel, TypeAdapter, ValidationError

from durable_core.annotations import adapter_for
from durable_core.codec_atoms import Refused, items, text
from durable_core.errors import CorruptRecord, UnknownType, UnresolvedAnnotation

Kind = Literal["model", "dataclass", "enum"]
_BUILT_IN = (dict, list, tuple, set, frozenset, str, bytes, int, float, BaseException)
_ABSENT = object()
_shapes: WeakKeyDictionary[type, Shape] = WeakKeyDictionary()


class Shape:
    """How instances of one class are stored.

    Attributes:
        kind: The tag.
        name: `module:qualname`.
        fields: Names of the stored fields, in the order of their definition.
    """

    def __init__(self, cls: type, kind: Kind, fields: tuple[str, ...]) -> None:
        self.cls = cls
        self.kind = kind
        self.name = f"{cls.__module__}:{cls.__qualname__}"
        self.fields = fields
        self._adapters: dict[str, TypeAdapter[Any] | None] = {}

    def members(self, value: Any) -> dict[str, object]:
        """The fields of an instance by name; those never set are left out.

        Private attributes, cached properties and whatever else was hung on an instance are no fields.
        """
        if self.kind == "model":
            held = value.__dict__
            found = {name: held[name] for name in self.fields if name in held}
            return found | value.__pydantic_extra__ if value.__pydantic_extra__ else found
        pairs = ((name, getattr(value, name, _ABSENT)) for name in self.fields)
        return {name: member for name, member in pairs if member is not _ABSENT}

    def field_adapter(self, name: str) -> TypeAdapter[Any] | None:
        """The adapter of one field's annotation; None where it has none that says something."""
        if name not in self._adapters:
            try:
                self._adapters[name] = adapter_for(self._hints.get(name))
            except UnresolvedAnnotation:
                self._adapters[name] = None
        return self._adapters[name]

    @cached_property
    def _hints(self) -> dict[str, object]:
        fields = getattr(self.cls, "__pydantic_fields__", None)
        if fields is not None:
            return {name: info.rebuild_annotation() for name, info in fields.items()}
        try:
            return typing.get_type_hints(self.cls, include_extras=True)
        except (NameError, TypeError, AttributeError):
            return {}


def shape_of(cls: type) -> Shape | None:
    """How instances of a class are stored; None if the codec knows no way."""
    found = _shapes.get(cls)
    if found is None:
        if issubclass(cls, Enum):
            found = Shape(cls, "enum", ())
        elif issubclass(cls, BaseModel):
            found = Shape(cls, "model", tuple(cls.model_fields))
        elif _is_plain_dataclass(cls):
            names = [field.name for field in dataclasses.fields(cast("Any", cls))]
            found = Shape(cls, "dataclass", tuple(names))
        else:
            return None
        _shapes[cls] = found
    return found


def find(name: str) -> type | None:
    """The class of that name, if its module is imported and has it; nothing is imported to look."""
    module_name, _, qualname = name.partition(":")
    module = sys.modules.get(module_name)
    if type(module) is not ModuleType:  # other types may load themselves when they are looked at
        return None
    found: object = module
    for part in qualname.split("."):
        # Of the namespace itself: a module's or class's __getattr__ is code, and may import.
        found = vars(found).get(part) if isinstance(found, ModuleType | type) else None
        if isinstance(found, ModuleType):
            return None
    return found if isinstance(found, type) else None


def class_of(kind: Kind, name: str) -> type:
    """The class that a stored tag names.

    Raises:
        UnknownType: It isn't there, or isn't what the tag says.
    """
    cls = find(name)
    shape = shape_of(cls) if cls is not None else None
    if cls is None or shape is None or shape.kind != kind:
        raise UnknownType(
            f"the stored {kind} {name!r} is no such class in this process",
            remedy="Import its module before the run is resumed, keep its old name as an alias, or annotate "
            "the return type of the step",
        )
    return cls


def rebuild(kind: Kind, cls: Any, payload: object, fields_set: object) -> object:
    """An instance of a class from its stored payload.

    Raises:
        CorruptRecord: The class doesn't take it.
    """
    try:
        if kind == "enum":
            return cls(payload)
        if type(payload) is not dict:
            raise TypeError("not an object")
        return _model(cls, payload, fields_set) if kind == "model" else _dataclass(cls, payload)
    except (RecursionError, CorruptRecord):
        raise
    except Exception as error:  # validators, __post_init__ and _missing_ are the user's code
        raise CorruptRecord(
            f"the stored {kind} can't be restored as {cls.__module__}:{cls.__qualname__}: {reason(error)}",
            remedy="If the class was changed, let it accept what older versions stored",
        ) from error


def reason(error: Exception) -> str:
    """What a validation complained about, without the values: those may be confidential."""
    if isinstance(error, ValidationError):
        found = error.errors(include_url=False, include_input=False, include_context=False)
        told = [f"{'.'.join(map(str, each['loc'])) or 'value'}: {each['msg']}" for each in found[:3]]
        return "; ".join(told) + (f" and {len(found) - 3} more" if len(found) > 3 else "")
    return f"{type(error).__name__}: {error}"


def dump(adapter: TypeAdapter[Any] | None, value: object) -> object:
    """A value as the JSON that pydantic makes of it, if exactly the same value comes back from it.

    Raises:
        Refused: It doesn't.
    """
    if adapter is None:
        raise Refused("there is no annotation to store it by")
    try:
        dumped = adapter.dump_python(value, mode="json", by_alias=False, round_trip=True, warnings="error")
        restored = adapter.validate_python(dumped, by_alias=False, by_name=True)
        kept = same(value, restored)
    except RecursionError:
        raise
    except Exception as error:  # serializers, validators and __eq__ are the user's code
        raise Refused(f"its annotation can't store it: {reason(error)}") from error
    if not kept:
        raise Refused("stored by its annotation it would come back as another value")
    return dumped


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal and of the same types, all the way down."""
    if type(one) is not type(other):
        return False
    for detail in ("maxlen", "default_factory"):  # equality looks past them
        if getattr(one, detail, None) != getattr(other, detail, None):
            return False
    if isinstance(one, BaseModel):
        return same(one.__dict__, other.__dict__) and same(one.__pydantic_extra__, other.__pydantic_extra__)
    if _is_plain_dataclass(type(one)):
        names = [field.name for field in dataclasses.fields(one)]
        return all(same(getattr(one, name, _ABSENT), getattr(other, name, _ABSENT)) for name in names)
    if isinstance(one, dict):
        return same(list(one), list(other)) and same(list(one.values()), list(other.values()))
    if isinstance(one, set | frozenset):
        return {(type(item), item) for item in one} == {(type(item), item) for item in other}
    if isinstance(one, list | tuple) or hasattr(one, "appendleft"):
        return len(one) == len(other) and all(same(*pair) for pair in zip(one, other, strict=True))
    return bool(one == other) or (one != one and other != other)


def _is_plain_dataclass(cls: type) -> bool:
    if not dataclasses.is_dataclass(cls) or issubclass(cls, _BUILT_IN):
        return False
    # Its extra attributes are no fields: they would be lost.
    return (getattr(cls, "__pydantic_config__", None) or {}).get("extra") != "allow"


def _model(cls: type[BaseModel], members: dict[str, object], fields_set: object) -> object:
    given = members["root"] if issubclass(cls, RootModel) else members
    # Lax, because a field stored by its annotation comes as JSON, which a strict model would refuse.
    found = cls.model_validate(given, strict=False, by_alias=False, by_name=True)
    if type(found) is not cls:
        raise TypeError(f"its validator gave a {type(found).__name__}")
    if fields_set is not None:
        object.__setattr__(found, "__pydantic_fields_set__", set(map(text, items(fields_set))))
    return found


def _dataclass(cls: Any, members: dict[str, object]) -> object:
    fields = dataclasses.fields(cls)
    unknown = members.keys() - {field.name for field in fields}
    if unknown:
        raise TypeError(f"it has no field {min(unknown)!r}")
    adapter = adapter_for(cls)
    if adapter is None:
        raise TypeError("no dataclass")
    given = {field.name: members[field.name] for field in fields if field.init and field.name in members}
    found: object = adapter.validate_python(given, strict=False, by_alias=False, by_name=True)
    for field in fields:
        if not field.init and field.name in members:
            object.__setattr__(found, field.name, members[field.name])
    return found
