"""Values to JSON-ready trees: the way down.

Dispatch is on the exact type: a subclass may carry what its base can't tell. There is one frame per level of
nesting, so that `MAX_DEPTH` levels fit under Python 3.11's recursion limit. Where nothing needs a tag, the
value itself is handed on uncopied.
"""

from __future__ import annotations

import json.encoder
from collections import OrderedDict
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from pydantic import Secret

from durable_core.codec_atoms import ATOMS, SECRETS, Refused, lower_text, tag
from durable_core.codec_classes import Shape, dump, find, shape_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MAX_DEPTH: Final = 400

# What the tree is for: to be stored; to be stored and restored by an annotation; to be hashed.
STORED: Final = 0
ANNOTATED: Final = 1
HASHED: Final = 2

_ANNOTATE = "Convert it to plain data, or annotate the return type if pydantic knows how to restore it"
_ANNOTATE_CLASS = "Define the class at module level under the name it has, or annotate the return type"


def _unencodable(value: object) -> object:
    raise TypeError(f"a {type(value).__name__} appeared while the value was being stored")


def writer(*, sort_keys: bool) -> Callable[[object], str]:
    """A function that writes a lowered tree as JSON: ASCII only, without spaces."""
    make = getattr(json.encoder, "c_make_encoder", None)
    if make is None:
        return json.JSONEncoder(
            check_circular=False,
            allow_nan=False,
            sort_keys=sort_keys,
            separators=(",", ":"),
            default=_unencodable,
        ).encode
    # json.dumps builds this object anew at each call, which takes longer than to write a small value.
    encode = make(
        None, _unencodable, json.encoder.encode_basestring_ascii, None, ":", ",", sort_keys, False, False
    )
    return lambda tree: "".join(encode(tree, 0))


write_sorted: Final = writer(sort_keys=True)


def register_branch(cls: type, name: str, payload_of: Callable[[Any, bool], object]) -> None:
    """Stores instances of a class under a tag of its own.

    Args:
        cls: The class itself; not its subclasses.
        name: Of the tag.
        payload_of: The JSON-ready payload of an instance; told whether it is to be hashed.
    """
    _BRANCHES[cls] = lambda value, _, mode: tag(name, payload_of(value, mode == HASHED))


def lower(value: object, mode: int) -> Any:
    """The JSON-ready tree of a value.

    Raises:
        Refused: Something in it can't be stored.
    """
    return _lower(value, 0, mode)


def _lower(value: object, depth: int, mode: int) -> Any:
    kind = type(value)
    atom = ATOMS.get(kind)
    return atom(value) if atom is not None else _BRANCHES.get(kind, _instance)(value, depth, mode)


def _sequence(value: Any, depth: int, mode: int) -> object:
    if depth >= MAX_DEPTH:
        raise _too_deep()
    out: list[object] | None = None
    index = 0
    try:
        for index, item in enumerate(value):
            kind = type(item)
            if kind is str and item.isascii():
                lowered = item
            elif kind in ATOMS:
                lowered = ATOMS[kind](item)
            else:
                lowered = _BRANCHES.get(kind, _instance)(item, depth + 1, mode)
            if out is not None:
                out[index] = lowered
            elif lowered is not item:
                out = list(value)
                out[index] = lowered
    except Refused as refused:
        refused.inside(value, f"[{index}]")
        raise
    tree = value if out is None else out
    kind = type(value)
    if kind is list:
        return tree
    # Sets have no order of their own: the bytes of their elements give one that is the same in every process.
    return tag(kind.__name__, tree if kind is tuple else sorted(tree, key=write_sorted))


def _mapping(value: Any, depth: int, mode: int) -> object:
    if depth >= MAX_DEPTH:
        raise _too_deep()
    out: dict[Any, object] | None = None
    odd = type(value) is not dict or _has_odd_key(value)
    key: object = None
    try:
        for key, item in value.items():
            kind = type(item)
            if kind is str and item.isascii():
                continue
            if kind in ATOMS:
                lowered = ATOMS[kind](item)
            else:
                lowered = _BRANCHES.get(kind, _instance)(item, depth + 1, mode)
            if lowered is not item:
                if out is None:
                    out = dict(value)
                out[key] = lowered
        tree = value if out is None else out
        if not odd:
            return tree
        pairs = []
        for key, lowered in tree.items():
            pairs.append((_lower(key, depth + 1, mode), lowered))
    except Refused as refused:
        refused.inside(value, _at(key))
        raise
    return _pairs(pairs, "dict" if type(value) is dict else "OrderedDict", mode)


def _pairs(pairs: list[tuple[object, object]], name: str, mode: int) -> object:
    if mode == HASHED and name == "dict":
        pairs.sort(key=lambda pair: (write_sorted(pair[0]), write_sorted(pair[1])))
    # Flat, so that one level of the user's nesting is never more than two of JSON's.
    return tag(name, [part for pair in pairs for part in pair])


def _has_odd_key(value: Mapping[Any, object]) -> bool:
    for key in value:
        if type(key) is not str or key == "$" or not (key.isascii() or lower_text(key) is key):
            return True
    return False


def _instance(value: Any, depth: int, mode: int) -> object:
    cls = type(value)
    if mode == HASHED and (cls in SECRETS or isinstance(value, Secret)):
        return _secret(value)
    shape = shape_of(cls)
    if shape is None:
        raise Refused(f"a value of type {_named(cls)} can't be stored", remedy=_ANNOTATE)
    if mode == STORED and find(shape.name) is not cls:
        raise Refused(f"its class {_named(cls)} can't be found again by that name", remedy=_ANNOTATE_CLASS)
    if depth >= MAX_DEPTH:
        raise _too_deep()
    if shape.kind == "enum":
        return _enum(value, shape, depth, mode)
    members = shape.members(value)
    out: dict[str, object] = {}
    name = ""
    try:
        for name, item in members.items():
            kind = type(item)
            try:
                if kind in ATOMS:
                    out[name] = ATOMS[kind](item)
                else:
                    out[name] = _BRANCHES.get(kind, _instance)(item, depth + 1, mode)
            except Refused as refused:
                out[name] = _by_field(shape, name, item, depth, refused)
    except Refused as refused:
        refused.inside(value, _at(name))
        raise
    fields = (
        _pairs([(lower_text(key), item) for key, item in out.items()], "dict", mode)
        if _has_odd_key(out)
        else out
    )
    node = {"$": shape.kind, "t": shape.name, "v": fields}
    if shape.kind == "model" and value.__pydantic_fields_set__ != members.keys():
        node["s"] = sorted(value.__pydantic_fields_set__)
    return node


def _enum(value: Any, shape: Shape, depth: int, mode: int) -> object:
    member = value.value
    if mode != HASHED and not _finds_itself(value):
        raise Refused(f"{_named(type(value))}.{value.name} can't be found again by its value")
    try:
        return {"$": "enum", "t": shape.name, "v": _lower(member, depth + 1, mode)}
    except Refused as refused:
        refused.inside(value, ".value")
        raise


def _finds_itself(member: Any) -> bool:
    try:
        return type(member)(member.value) is member
    except Exception:  # _missing_ is the user's code; whatever it raises, the value finds no member
        return False


def _by_field(shape: Shape, name: str, item: object, depth: int, refused: Refused) -> object:
    """What a field's own annotation stores it as: the class restores it, so it needs no tag."""
    if refused.final:
        raise refused
    try:
        return _lower(dump(shape.field_adapter(name), item), depth + 1, STORED)
    except Refused:
        raise refused from None


def _secret(value: Any) -> object:
    known = SECRETS.get(type(value))
    if known is not None:
        return known(value)
    clear = write_sorted(lower(value.get_secret_value(), HASHED))
    return tag("Secret", sha256(clear.encode()).hexdigest())


def _too_deep() -> Refused:
    return Refused(f"it is nested deeper than {MAX_DEPTH} levels", remedy="Return flatter data", final=True)


def _at(key: object) -> str:
    if type(key) is str:
        return f".{key}" if key.isidentifier() else f"[{_short(key)}]"
    return f"[{_short(key)}]" if type(key) in ATOMS else f"[<{type(key).__name__}>]"


def _short(key: object) -> str:
    try:
        shown = ascii(key)
    except ValueError:  # an integer too long to print
        shown = "<int>"
    return shown if len(shown) <= 60 else shown[:57] + "..."


def _named(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


_BRANCHES: Final[dict[type, Callable[[Any, int, int], object]]] = {
    list: _sequence,
    tuple: _sequence,
    set: _sequence,
    frozenset: _sequence,
    dict: _mapping,
    OrderedDict: _mapping,
}
