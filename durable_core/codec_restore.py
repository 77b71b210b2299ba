"""JSON back to values: the way up. Stored data isn't trusted: what is wrong with it is `CorruptRecord`."""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from durable_core.annotations import adapter_for
from durable_core.codec_atoms import MALFORMED, RESTORE_ATOMS, items, text
from durable_core.codec_classes import class_of, find, rebuild, shape_of
from durable_core.errors import CorruptRecord, UnknownType, UnresolvedAnnotation

if TYPE_CHECKING:
    from collections.abc import Callable

# What to do with the name of a class: it has to be known; it may decay to plain data, which an annotation
# validates then; all of them decay.
STRICT: Final = 0
LENIENT: Final = 1
RAW: Final = 2

_CLASS_NAMES = re.compile(r'"t":"([^"\\]*)"')


def register_tag(name: str, restore: Callable[[object], object]) -> None:
    """Reads what is stored under a tag; a payload that is wrong raises one of `MALFORMED`."""
    _TAGS[name] = restore


class Restorer:
    """Turns one JSON text into a value.

    Attributes:
        decayed: Whether something tagged as an instance was given back as plain data.
    """

    def __init__(self, mode: int) -> None:
        self.decayed = False
        self._mode = mode
        self._scan = _scanner(json.JSONDecoder(object_hook=self._node, parse_constant=_refuse_constant))

    def read(self, stored: str) -> Any:
        """The value of a JSON text.

        Raises:
            CorruptRecord: It isn't what the codec writes.
            UnknownType: It names a class that isn't there.
        """
        return _read(self._scan, stored)

    def _node(self, node: dict[str, Any]) -> object:
        if "$" not in node:
            return node
        name = node["$"]
        try:
            restore = _TAGS.get(text(name))
            if restore is not None:
                payload = node["v"]
                if len(node) != 2:
                    raise ValueError("parts that don't belong to it")
                return restore(payload)
            if name == "json":
                return self._dumped(node)
            if name not in ("model", "dataclass", "enum"):
                raise ValueError("an unknown tag")
            return self._instance(node)
        except MALFORMED as error:
            raise CorruptRecord(f"a stored value of kind {str(name)[:40]!r} is malformed: {error}") from error

    def _dumped(self, node: dict[str, Any]) -> object:
        if self._mode == STRICT:
            raise UnknownType(
                "a stored value can only be restored by the annotation it was stored by, and none is given",
                remedy="Read it by way of the step that returned it",
            )
        self.decayed = True
        return node["v"]

    def _instance(self, node: dict[str, Any]) -> object:
        kind, name, payload, fields_set = node["$"], text(node["t"]), node["v"], node.get("s")
        if self._mode != RAW:
            try:
                cls = class_of(kind, name)
            except UnknownType:
                if self._mode == STRICT:
                    raise
            else:
                return rebuild(kind, cls, payload, fields_set)
        self.decayed = True
        return payload


def read_plain(stored: str) -> Any:
    """The value of a JSON text that has no tags.

    Raises:
        CorruptRecord: It isn't JSON.
    """
    try:  # in this frame, because it is done for each step
        value, end = _scan_plain(stored, 0)
    except (StopIteration, ValueError):
        return _read(_scan_plain, stored)
    return value if end == len(stored) else _read(_scan_plain, stored)


def has_tags(stored: str) -> bool:
    """Whether a JSON text may have tags in it."""
    return '"$"' in stored


def prepare(stored: str) -> None:
    """Meet the classes that a deeply nested text names while there is stack left to build schemas on."""
    for name in set(_CLASS_NAMES.findall(stored)):
        cls = find(name)
        shape = shape_of(cls) if cls is not None else None
        if shape is not None and shape.kind == "dataclass":
            with suppress(UnresolvedAnnotation):
                adapter_for(cls)


def _read(scan: Callable[[str, int], tuple[Any, int]], stored: str) -> Any:
    try:
        value, end = scan(stored, 0)
    except StopIteration as error:
        raise CorruptRecord("a stored value is cut short or is no JSON") from error
    except ValueError as error:
        raise CorruptRecord(f"a stored value is no JSON: {error}") from error
    if end != len(stored):
        raise CorruptRecord("a stored value has something behind its end")
    return value


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


def _scanner(decoder: json.JSONDecoder) -> Callable[[str, int], tuple[Any, int]]:
    scan: Callable[[str, int], tuple[Any, int]] = decoder.scan_once  # type: ignore[attr-defined]  # typeshed lacks it
    return scan


_scan_plain = _scanner(json.JSONDecoder(parse_constant=_refuse_constant))


def _full_set(payload: object, kind: type[set[Any] | frozenset[Any]]) -> object:
    found = kind(items(payload))
    if len(found) != len(items(payload)):
        raise ValueError("two elements are equal")
    return found


def _mapping(payload: object, kind: Callable[[Any], dict[Any, Any]]) -> object:
    flat = items(payload)
    found = kind(zip(flat[::2], flat[1::2], strict=True))
    if len(found) * 2 != len(flat):
        raise ValueError("two keys are equal")
    return found


_TAGS: Final[dict[str, Callable[[object], object]]] = {
    **RESTORE_ATOMS,
    "tuple": lambda payload: tuple(items(payload)),
    "set": lambda payload: _full_set(payload, set),
    "frozenset": lambda payload: _full_set(payload, frozenset),
    "dict": lambda payload: _mapping(payload, dict),
    "OrderedDict": lambda payload: _mapping(payload, OrderedDict),
}
