"""Values to bytes and back, with their Python types: one codec for inputs, outputs, events and checkpoints.

JSON, with tags `{"$": kind, "v": payload}` for what JSON lacks. What can't be stored exactly is refused with
the path inside the value; what can't be read exactly is an error. No stored name is ever imported or called.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from types import NoneType
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from durable_core.annotations import adapter_for, input_adapters, return_adapter
from durable_core.codec_atoms import ATOMS, Refused
from durable_core.codec_classes import dump, reason
from durable_core.codec_lower import (
    ANNOTATED,
    HASHED,
    MAX_DEPTH,
    STORED,
    lower,
    register_branch,
    write_sorted,
    writer,
)
from durable_core.codec_restore import (
    LENIENT,
    RAW,
    STRICT,
    Restorer,
    has_tags,
    prepare,
    read_plain,
    register_tag,
)
from durable_core.errors import CorruptRecord, NotSerializable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pydantic import TypeAdapter

__all__ = [
    "ATOMS",
    "MAX_DEPTH",
    "adapter_for",
    "canonical",
    "canonical_call",
    "decode",
    "encode",
    "freeze",
    "input_adapters",
    "register",
    "restore",
    "return_adapter",
    "text_of",
]

T = TypeVar("T")
_SCALARS = frozenset((str, int, float, bool, NoneType))
_SHORT = 600  # characters: too few for an integer that has to travel in hex
_PIECES_SHOWN = 8

_write = writer(sort_keys=False)
_strict = Restorer(STRICT)


def encode(value: object, adapter: TypeAdapter[Any] | None = None) -> bytes:
    """The bytes to store for a value.

    Args:
        value: Any value the codec knows; with an adapter also what pydantic can store and restore exactly.
        adapter: Of the annotation that `decode` will be given.

    Raises:
        NotSerializable: It can't be stored; `path` says where.
    """
    return _written(value, adapter).encode()


def decode(raw: bytes, adapter: TypeAdapter[Any] | None = None) -> Any:
    """The value of stored bytes.

    Args:
        raw: What `encode` gave.
        adapter: Of the annotation that the value has to fit.

    Raises:
        CorruptRecord: These are no bytes that `encode` wrote, or they don't fit the annotation.
        UnknownType: They name a class that isn't there, and there is no annotation.
    """
    return restore(text_of(raw), adapter)


def text_of(raw: bytes) -> str:
    """Stored bytes as `restore` takes them.

    Raises:
        CorruptRecord: These are no bytes that `encode` wrote.
    """
    try:
        return raw.decode("ascii")
    except UnicodeDecodeError as error:
        raise CorruptRecord("a stored value has bytes that are not ASCII") from error


def restore(stored: str, adapter: TypeAdapter[Any] | None = None) -> Any:
    """`decode`, for whoever need not keep the bytes meanwhile."""
    try:
        if adapter is not None:
            return _by_annotation(stored, adapter)
        # One character is quicker to look for than a tag, and most values have neither.
        return _strict.read(stored) if "$" in stored and has_tags(stored) else read_plain(stored)
    except RecursionError:
        return _again(stored, adapter)


def freeze(value: object, adapter: TypeAdapter[Any] | None = None) -> tuple[bytes, Any]:
    """The bytes to store for a value, and the value as it comes back from them.

    What the first run hands on is the second, so that a resumed run sees the same. Whatever could go wrong
    when it is read back goes wrong here.

    Raises:
        NotSerializable: It can't be stored, fails its annotation, or would not come back as it is.
    """
    stored = _written(value, adapter)
    try:
        restored = restore(stored, adapter)
        settled = '"t":"' not in stored or _settles(stored, restored, adapter)
    except CorruptRecord as error:
        raise NotSerializable(f"it could not be read back: {error.message}", remedy=error.remedy) from error
    if not settled:
        raise NotSerializable(
            "it would change each time it is read back: a validator or __post_init__ in it is applied again",
            remedy="Let the validator leave values alone that it has already treated, or return plain data",
        )
    # Only now: of a large value there are five copies already while it is restored.
    return stored.encode(), restored


def canonical(value: object) -> bytes:
    """The bytes to hash for a value: the same in every process, different for values of different types.

    Secrets go in as a digest. Never stored.

    Raises:
        NotSerializable: It can't be hashed; `path` says where.
    """
    try:
        return write_sorted(lower(value, HASHED)).encode()
    except Refused as refused:
        raise _not_serializable(refused) from refused.__cause__
    except RuntimeError:  # also RecursionError
        return _typed(lambda: write_sorted(lower(value, HASHED))).encode()


def canonical_call(name: str, args: tuple[object, ...], kwargs: Mapping[str, object]) -> bytes:
    """`canonical((name, args, kwargs))`: the same bytes, sooner where all arguments are positional and plain.

    Args:
        name: An id: of characters that JSON writes as they are.
        args: Positional arguments.
        kwargs: Named arguments.

    Raises:
        NotSerializable: It can't be hashed; `path` says where.
    """
    if not kwargs:
        try:
            lowered = write_sorted([ATOMS[type(arg)](arg) for arg in args])
        except (KeyError, Refused):  # it has parts, or has to be refused with its path
            pass
        else:
            return f'{{"$":"tuple","v":["{name}",{{"$":"tuple","v":{lowered}}},{{}}]}}'.encode()
    return canonical((name, args, kwargs))


def register(
    name: str,
    cls: type[T],
    payload_of: Callable[[T, bool], object],
    restore: Callable[[object], T],
) -> None:
    """Gives a class of this package a tag of its own.

    Args:
        name: Of the tag.
        cls: The class itself; not its subclasses.
        payload_of: The JSON-ready payload of an instance; told whether it is to be hashed.
        restore: The instance of a payload, which isn't trusted: a ValueError if it is none.
    """
    register_branch(cls, name, payload_of)
    register_tag(name, restore)


def _is_flat(value: dict[Any, Any]) -> bool:
    if "$" in value:
        return False
    for key, item in value.items():  # noqa: SIM110  a generator takes twice as long, for each step
        if type(key) is not str or type(item) not in _SCALARS:
            return False
    return True


def _written(value: object, adapter: TypeAdapter[Any] | None) -> str:
    if type(value) is dict:
        try:
            stored = _write(value) if _is_flat(value) else ""
        except (ValueError, RuntimeError):  # needs tags: NaN, a long integer; or it was changed: told below
            stored = ""
        if 0 < len(stored) < _SHORT and "\\ud" not in stored:
            return stored
    return _typed(partial(_write_anew, value, adapter))


def _write_anew(value: object, adapter: TypeAdapter[Any] | None) -> str:
    if adapter is None:
        return _write(lower(value, STORED))
    try:
        return _write(lower(value, ANNOTATED))
    except Refused as refused:
        if refused.final:
            raise
        try:
            dumped = dump(adapter, value)
        except Refused as by_annotation:
            refused.message += f", and {by_annotation.message}"
            raise refused from by_annotation.__cause__
        return _write({"$": "json", "v": lower(dumped, STORED)})


def _typed(work: Callable[[], str]) -> str:
    try:
        try:
            return work()
        except RecursionError:
            return _on_an_empty_stack(work)
    except Refused as refused:
        raise _not_serializable(refused) from refused.__cause__
    except RecursionError as error:
        raise NotSerializable("it is nested too deeply", remedy="Return flatter data") from error
    except RuntimeError as error:
        raise NotSerializable(f"it was changed while it was being stored: {error}") from error


def _on_an_empty_stack(work: Callable[[], T]) -> T:
    """Run it in a thread: deep values fit the recursion limit, but not always on top of the caller."""
    with ThreadPoolExecutor(1, "durable-codec") as pool:
        return pool.submit(copy_context().run, work).result()


def _again(stored: str, adapter: TypeAdapter[Any] | None) -> Any:
    def work() -> Any:
        prepare(stored)
        return Restorer(STRICT).read(stored) if adapter is None else _by_annotation(stored, adapter)

    try:
        return _on_an_empty_stack(work)
    except RecursionError as error:
        raise CorruptRecord("a stored value is nested too deeply") from error


def _by_annotation(stored: str, adapter: TypeAdapter[Any]) -> Any:
    if not has_tags(stored):
        return _fit(adapter, read_plain(stored), by_name=False)
    lenient = Restorer(LENIENT)
    try:
        # Instances that are restored as what they were pass as they are: also those of a subclass.
        return _fit(adapter, lenient.read(stored), by_name=lenient.decayed)
    except CorruptRecord as error:
        raw = Restorer(RAW)
        value = raw.read(stored)
        if not raw.decayed:
            raise
        try:
            return _fit(adapter, value, by_name=True)
        except CorruptRecord:
            raise error from None


def _fit(adapter: TypeAdapter[Any], value: object, *, by_name: bool) -> Any:
    """The value as annotated. What we stored goes by field name, a user's dict by the model's rules."""
    try:
        return (
            adapter.validate_python(value, by_alias=False, by_name=True)
            if by_name
            else adapter.validate_python(value)
        )
    except ValidationError as error:
        raise CorruptRecord(f"it does not fit its annotation: {reason(error)}") from error
    except RecursionError:
        raise
    except Exception as error:  # validators are the user's code
        raise CorruptRecord(f"a validator of its annotation failed: {reason(error)}") from error


def _settles(stored: str, restored: object, adapter: TypeAdapter[Any] | None) -> bool:
    again = _written(restored, adapter)
    return again == stored or _written(restore(again, adapter), adapter) == again


def _not_serializable(refused: Refused) -> NotSerializable:
    pieces = refused.pieces[::-1]
    message, remedy = refused.message, refused.remedy
    if len(set(refused.holders)) < len(refused.holders):
        message, remedy = "it contains itself (a circular reference)", "Return a tree"
    path = "".join(pieces[:_PIECES_SHOWN]) + ("…" if len(pieces) > _PIECES_SHOWN else "")
    return NotSerializable(f"{message} (at {path})" if path else message, path=path, remedy=remedy)
