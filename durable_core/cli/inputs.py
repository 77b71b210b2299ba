"""A run's inputs from the command line: `--input JSON`, `--input @FILE`, `--input -`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from durable_core.errors import UsageError


def read_inputs(given: str | None) -> dict[str, object]:
    """The inputs by name.

    Args:
        given: JSON text, `@` and the name of a file with it, or `-` for standard input; None for no inputs.

    Raises:
        UsageError: It can't be read, or isn't a JSON object.
    """
    if given is None:
        return {}
    if given == "-":
        if sys.stdin is None:
            raise UsageError("there is no standard input to read the inputs from")
        return _parsed(_decoded(sys.stdin.buffer.read(), "standard input"), "standard input")
    if given.startswith("@"):
        name = given[1:]
        try:
            data = Path(name).read_bytes()
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise UsageError(f"the input file {name!r} can't be read: {reason}") from error
        return _parsed(_decoded(data, name), name)
    return _parsed(given, "--input")


def _decoded(data: bytes, where: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{where} is no UTF-8 text (byte {error.start})") from error


def _parsed(text: str, where: str) -> dict[str, object]:
    try:
        found = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise UsageError(
            f"{where} is no JSON: {error.msg} at line {error.lineno}, column {error.colno}",
            remedy="""Write --input '{"name": "value"}' in single quotes, or use a file (--input @FILE)""",
        ) from error
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise UsageError(f"{where} can't be used: {reason}") from error
    if not isinstance(found, dict):
        raise UsageError(
            f"{where} is a JSON {_KINDS.get(type(found), 'value')}, not an object",
            remedy="""Name each input of the workflow: {"name": value, …}""",
        )
    return found


_KINDS = {list: "array", str: "string", int: "number", float: "number", bool: "boolean", type(None): "null"}


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object; a name that is given twice would silently lose a value."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        doubled = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the name {doubled!r} is given twice")
    return found


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")
