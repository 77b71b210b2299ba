"""Names, ids and hashes: what makes two calls the same call."""

from __future__ import annotations

import hashlib
import inspect
import os
import re
from types import CodeType
from typing import TYPE_CHECKING, Any, Final

from durable_core.codec import canonical_call
from durable_core.errors import InputNotSerializable, InvalidId, NotSerializable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MAX_ID_CHARS = 128
MAX_STEP_ID_CHARS: Final = 960
"""Of a step with all branches around it: a sort key of DynamoDB has 1,024, and more in it than the id."""

PLACE_CHARS: Final = 10
_LAST_PLACE: Final = 0xFFFFF  # who comes after it shares it; then times decide the order
_ID = re.compile(r"[A-Za-z0-9_:@+=-][A-Za-z0-9._:@+=-]{0,127}")


def check_id(value: object, what: str) -> str:
    """The value itself, if it may name a run, step, branch, event, agent or workflow.

    Args:
        value: What the caller gave.
        what: What it names, for the message: `run id`, `step name`.

    Raises:
        InvalidId: It isn't 1-128 of `[A-Za-z0-9._:@+=-]` without a leading dot.
    """
    if isinstance(value, str) and _ID.fullmatch(value):
        return str(value)
    shown = repr(value) if len(repr(value)) <= 80 else f"{repr(value)[:77]}..."
    raise InvalidId(
        f"{shown} can't be a {what}",
        remedy=f"Use 1 to {MAX_ID_CHARS} of A-Z a-z 0-9 . _ : @ + = - without a leading dot",
    )


def new_owner() -> str:
    """A fresh random name for one acquisition of a run."""
    return os.urandom(10).hex()


def place(fence: int, number: int) -> str:
    """Where a step comes among those of its run: texts that sort as the steps were first begun.

    Args:
        fence: Of the owner that first began the step.
        number: Of that start among those of the owner, from 1.
    """
    if fence > _LAST_PLACE or number > _LAST_PLACE:
        fence, number = min(fence, _LAST_PLACE), min(number, _LAST_PLACE)
    return f"{fence:05x}{number:05x}"


def place_of(attempt_id: str) -> str:
    """The place of the step that an attempt is of."""
    return attempt_id[:PLACE_CHARS]


def new_attempt_id(place: str) -> str:
    """A fresh name for one start of a step: the step's place, and 40 random bits."""
    return place + os.urandom(5).hex()


def new_segment_id() -> str:
    """A fresh random name for one segment of a map, or for a blob that a segment points to."""
    return os.urandom(10).hex()


def new_run_id(workflow: str, now: str) -> str:
    """A run id that tells people what runs and since when, and is unique.

    Args:
        workflow: The workflow's name.
        now: RFC 3339 time.
    """
    stamp = now[:19].replace("-", "").replace(":", "").replace("T", "-")
    return f"{workflow[:90]}-{stamp}-{os.urandom(4).hex()}"


def input_hash(step_id: str, args: tuple[object, ...], kwargs: Mapping[str, object]) -> str:
    """Hex SHA-256 of the canonical bytes of (step_id, args, kwargs).

    Raises:
        InputNotSerializable: An argument has no canonical bytes; names where it is.
    """
    try:
        return hashlib.sha256(canonical_call(step_id, args, kwargs)).hexdigest()
    except NotSerializable as error:
        raise InputNotSerializable(
            f"an argument can't be hashed: {error.message}",
            path=error.path,
            step_id=step_id,
            remedy=error.remedy
            or "Pass data (ids, paths, numbers, models), and open connections and files inside",
        ) from error


class KeyMaker:
    """Makes the idempotency keys of one run: the part of the hash that names the run is done once."""

    def __init__(self, run_id: str) -> None:
        self._run = hashlib.sha256(_part(run_id))

    def key(self, index: int | str, hashed: str) -> str:
        """Hex SHA-256 of (run_id, step_index, input_hash), each after its length as 8 bytes, big-endian."""
        made = self._run.copy()
        made.update(_part(str(index)) + _part(hashed))
        return made.hexdigest()


def idempotency_key(run_id: str, index: int | str, hashed: str) -> str:
    """The idempotency key of one step, or of one map item when `index` is its key or position."""
    return KeyMaker(run_id).key(index, hashed)


def item_id(map_id: str, position: int, key: str | None) -> str:
    """The step id of a map's item: by its key, where the map has keys."""
    if key is None:
        return f"{map_id}[{position}]"
    return f"{map_id}[k-{hashlib.sha256(key.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}]"


def fingerprint(fn: Callable[..., Any]) -> str:
    """Hex SHA-256 of a function's source, or of its code where there is no source to read."""
    try:
        text = inspect.getsource(fn).encode("utf-8", "surrogatepass")
    except (OSError, TypeError):  # no source: typed at a prompt, frozen, or compiled
        code = getattr(fn, "__code__", None)
        text = _code_bytes(code) if isinstance(code, CodeType) else repr(type(fn)).encode()
    return hashlib.sha256(text).hexdigest()


def _argument(path: str) -> str:
    """The argument that a path inside (step_id, args, kwargs) is of, as a caller would call it."""
    positional = re.match(r"\[1\]\[(\d+)\]", path)
    if positional:
        return f"argument {int(positional[1]) + 1}"
    named = re.match(r"\[2\](?:\.(\w+)|\['(\w+)'\])", path)
    return f"argument {named[1] or named[2]!r}" if named else "an argument"


def _code_bytes(code: CodeType) -> bytes:
    """What a code object does: without addresses, line numbers or file names."""
    parts = [code.co_code, repr((code.co_names, code.co_varnames)).encode()]
    parts.extend(_code_bytes(one) if isinstance(one, CodeType) else _constant(one) for one in code.co_consts)
    return b"".join(len(part).to_bytes(8, "big") + part for part in parts)


def _constant(value: object) -> bytes:
    # The order of a set differs from process to process.
    return repr(sorted(map(repr, value)) if isinstance(value, frozenset) else value).encode(
        "utf-8", "replace"
    )


def _part(text: str) -> bytes:
    data = text.encode()
    return len(data).to_bytes(8, "big") + data
