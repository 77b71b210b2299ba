"""Values from the command line: `JSON`, `@FILE`, or `-` for standard input."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from durable_core.arguments import finite, no_constant
from durable_core.errors import UsageError


def read_inputs(given: str | None) -> dict[str, object]:
    """The inputs by name.

    Args:
        given: JSON text, `@` and the name of a file with it, or `-` for standard input; None for no inputs.

    Raises:
        UsageError: It can't be read, or isn't a JSON object.
    """
    found = read_value(given, "--input") if given is not None else {}
    if not isinstance(found, dict):
        where = (
            given[1:] if given and given[0] == "@" else {"-": "standard input"}.get(given or "", "--input")
        )
        raise UsageError(
            f"{where} is a JSON {_KINDS.get(type(found), 'value')}, not an object",
            remedy="""Name each input of the workflow: {"name": value, …}""",
        )
    return found


def read_value(given: str, what: str) -> object:
    """Any JSON value, given in the same ways.

    Args:
        given: As above.
        what: The option or argument that it was given with.

    Raises:
        UsageError: It can't be read.
    """
    where = _source(given, what)
    if given == "-":
        if sys.stdin is None:
            raise UsageError("there is no standard input to read from")
        return _parsed(_decoded(sys.stdin.buffer.read(), where), where, what)
    if given.startswith("@"):
        try:
            data = Path(where).read_bytes()
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise UsageError(f"the input file {where!r} can't be read: {reason}") from error
        return _parsed(_decoded(data, where), where, what)
    return _parsed(given, where, what)


def _source(given: str, what: str) -> str:
    """Where a value comes from, as messages say it."""
    if given == "-":
        return "standard input"
    return given[1:] if given.startswith("@") else what


def _decoded(data: bytes, where: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{where} is no UTF-8 text (byte {error.start})") from error


def _parsed(text: str, where: str, what: str) -> object:
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=no_constant, parse_float=finite)
    except json.JSONDecodeError as error:
        raise UsageError(
            f"{where} is no JSON: {error.msg} at line {error.lineno}, column {error.colno}",
            remedy=_EXAMPLES.get(what, """Text is written in double quotes inside single ones: '"yes"'"""),
        ) from error
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise UsageError(f"{where} can't be used: {reason}") from error


_EXAMPLES = {
    "--input": """Write --input '{"name": "value"}' in single quotes, or use a file (--input @FILE)"""
}
_KINDS = {list: "array", str: "string", int: "number", float: "number", bool: "boolean", type(None): "null"}


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object; a name that is given twice would silently lose a value."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        doubled = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the name {doubled!r} is given twice")
    return found
