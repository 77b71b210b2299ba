"""Values as JSON that any program reads: without tags, without NaN, in any encoding.

For people and pipes only; nothing is read back from it. What is stored has the exact types.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import re
from collections.abc import Mapping, Sequence, Set
from pathlib import PurePath
from typing import Any, Final

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from durable_core.codec_restore import RAW, Restorer
from durable_core.errors import CorruptRecord, UsageError
from durable_core.map_result import ItemResult, MapOutputs, MapResult

# Valid inside JSON strings, where alone they can occur, and not fit for a terminal.
_UNSAFE: Final = re.compile("[\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def as_document(value: object) -> str:
    """One JSON document for programs: indented, ASCII only, with a line end."""
    return f"{json.dumps(jsonable(value), indent=2, ensure_ascii=True)}\n"


def stored_as_json(raw: bytes) -> Any:
    """An output as plain data: the classes in it need not be there, and none of their code is run.

    Raises:
        CorruptRecord: They are no JSON.
    """
    stored = raw.decode("ascii", "replace")
    try:
        return jsonable(Restorer(RAW).read(stored))
    except CorruptRecord:  # a set of models, say: as plain data it is no set
        try:
            return json.loads(stored)
        except ValueError as error:
            raise CorruptRecord(f"the output is no JSON: {error}") from error


def as_text(value: object, *, indent: int | None = 2, ascii_only: bool = False) -> str:
    """JSON for people: the same value, with letters as they are where the terminal can show them."""
    text = json.dumps(jsonable(value), indent=indent, ensure_ascii=ascii_only)
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def jsonable(value: object) -> Any:
    """The value in the types that JSON has.

    Numbers that JSON lacks become the strings NaN, Infinity and -Infinity; bytes base64; times ISO 8601; sets
    sorted lists; a dict whose keys would collide as strings a list of pairs; a map's result its counts.
    """
    # Loops, not comprehensions: one frame a level, so that the deepest value that can be stored can be shown.
    if value is None or type(value) in (bool, str):
        return value
    if isinstance(value, enum.Enum):
        return jsonable(value.value)
    if isinstance(value, int | float):
        return _number(value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, MapResult | MapOutputs | ItemResult):
        return _of_a_map(value)
    if isinstance(value, BaseModel):
        return _object([(name, getattr(value, name)) for name in type(value).model_fields])
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _object([(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)])
    if isinstance(value, Mapping):
        return _object(list(value.items()))
    if isinstance(value, Sequence | Set) and not isinstance(value, bytes | bytearray | memoryview):
        found = []
        for item in value:
            found.append(jsonable(item))  # noqa: PERF401 - see above
        return sorted(found, key=_sorting) if isinstance(value, Set) else found
    return _leaf(value)


def _of_a_map(value: MapResult[Any] | MapOutputs[Any] | ItemResult[Any]) -> Any:
    if isinstance(value, MapResult):  # however many items it has
        return {"succeeded": value.succeeded, "failed": value.failed}
    if isinstance(value, MapOutputs):
        try:
            return [jsonable(output) for output in value]
        except UsageError:  # shown by itself, as a step's recorded output: nothing reads its items
            return _of_a_map(value.result)
    told = {"index": value.index, "key": value.key, "attempts": value.attempts, "error": value.error}
    return jsonable(told if value.error is not None else {**told, "output": value.output})


def _number(value: float) -> object:
    if isinstance(value, int):
        plain = int(value)
        try:
            str(plain)
        except ValueError:  # more digits than Python prints
            return hex(plain)
        return plain
    if math.isfinite(value):
        return float(value)
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _object(pairs: list[tuple[object, object]]) -> object:
    named: dict[str, object] = {}
    for key, item in pairs:
        shown = jsonable(key)
        named[shown if isinstance(shown, str) else json.dumps(shown)] = jsonable(item)
    if len(named) == len(pairs):
        return named
    found = []
    for key, item in pairs:
        found.append([jsonable(key), jsonable(item)])
    return found


def _leaf(value: object) -> object:
    try:
        return to_jsonable_python(value, bytes_mode="base64", inf_nan_mode="strings", fallback=str)
    except Exception:  # undecodable bytes in a path, a user's __str__: whatever it is, it must be shown
        return str(value) if isinstance(value, PurePath) else object.__repr__(value)


def _sorting(value: object) -> str:
    return json.dumps(value, sort_keys=True)
