"""A checkpoint as users see it, and its way into a record and back.

A record's state is one line of JSON; with recorded inputs a second line follows. Both are compressed, hashed
and spilled together.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from durable_core.checkpoints.base import FORMATS, CheckpointRecord
from durable_core.clock import rfc3339
from durable_core.codec import decode, encode, freeze
from durable_core.envelope import seal, unseal
from durable_core.errors import (
    CorruptRecord,
    DurableError,
    InvalidId,
    NotSerializable,
    StateNotSerializable,
    UsageError,
)
from durable_core.identity import check_id

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from durable_core.envelope import Sealed

METADATA_MAX_BYTES: Final = 32 * 1024
_CLASS_TAG: Final = b'"t":"'
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Inputs(NamedTuple):
    """What a function was called with, for `replay`.

    Attributes:
        seed: Given to the function's parameter `seed`, when it has one.
    """

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = {}
    seed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Checkpoint:
    """A saved state of an agent.

    Attributes:
        id: Random.
        agent_id: Whose state it is.
        step_id: After which step.
        format: How it is stored: `json` or `json+gzip`.
        metadata: What was saved beside it.
        created_at: In UTC, by the clock of who saved it.
        seq: Place in the session, from 1 without gaps; the highest is the latest.
        size_bytes: Of the state as JSON, with its recorded inputs, before compression.
    """

    id: str
    session_id: str
    agent_id: str
    step_id: str
    seq: int
    format: str
    size_bytes: int
    created_at: datetime
    metadata: dict[str, Any]
    _contents: _Contents = field(repr=False)

    @property
    def state(self) -> Any:
        """The state, with the types that it was saved with.

        Raises:
            CorruptRecord: What is stored isn't what was saved, or can't be understood here.
        """
        return self._contents()[0]

    @property
    def inputs(self) -> Inputs | None:
        """What the step was called with, when that was recorded.

        Raises:
            CorruptRecord: As `state`.
        """
        return self._contents()[1]


class Draft(NamedTuple):
    """A checkpoint before it is saved: taken from the state at once, so that later changes have no say."""

    session_id: str
    agent_id: str
    step_id: str
    raw: bytes
    metadata: str


def drafted(
    session_id: str,
    agent_id: str,
    step_id: str,
    state: object,
    metadata: Mapping[str, object] | None,
    inputs: bytes | None = None,
    *,
    is_raw: bool = False,
) -> Draft:
    """Encodes what is to be saved.

    Args:
        session_id: The session.
        agent_id: Whose state it is.
        step_id: After which step.
        state: The state.
        metadata: To be kept beside it.
        inputs: As `encoded_inputs` gave them.
        is_raw: The state is given as `raw_of` gave it.

    Raises:
        StateNotSerializable: The state or the metadata can't be stored, or would not come back.
        UsageError: The metadata is no mapping of names, or too large.
    """
    where = f"session {session_id!r}, agent {agent_id!r}"
    raw = state if is_raw and isinstance(state, bytes) else _encoded(state, "the state", where, step_id)
    if inputs is not None:
        raw += b"\n" + inputs
    if metadata is None:
        return Draft(session_id, agent_id, step_id, raw, "{}")
    named = dict(metadata) if hasattr(metadata, "keys") else None
    if named is None or not all(isinstance(key, str) for key in named):
        raise UsageError(f"metadata of type {type(metadata).__name__} is no dict with names as keys")
    told = _encoded(named, "the metadata", where, step_id)
    if len(told) > METADATA_MAX_BYTES and not is_raw:  # a copy has what was fit, and a few words more
        raise UsageError(
            f"the metadata has {len(told)} bytes as JSON, and the limit is {METADATA_MAX_BYTES} ({where})",
            step_id=step_id,
            remedy="Put what is large into the state",
        )
    return Draft(session_id, agent_id, step_id, raw, told.decode("ascii"))


def encoded_inputs(inputs: Inputs) -> bytes:
    """What a step is called with, as it is recorded: before the call, which may change it.

    Raises:
        StateNotSerializable: It can't be stored, or would not come back.
    """
    return _encoded(tuple(inputs), "what the step was called with", "", "")


def inputs_if_storable(inputs: Inputs) -> tuple[bytes | None, dict[str, str]]:
    """The same for calls that mustn't fail for it; the metadata tell why there are none then."""
    try:
        return encoded_inputs(inputs), {}
    except StateNotSerializable as error:
        return None, {"inputs_not_recorded": error.message}


def checked_ids(session_id: object, agent_id: object, step_id: object) -> tuple[str, str, str]:
    """The ids, if a user may name session, agent and step so.

    Raises:
        InvalidId: One isn't 1-128 of `[A-Za-z0-9._:@+=-]` without a leading dot.
    """
    return (
        check_id(session_id, "session id"),
        check_id(agent_id, "agent id"),
        check_id(step_id, "step id"),
    )


def asked_for(name: object, what: str) -> str:
    """A name to look for, if a store can be asked for it; a run's own have `/`, `#` and brackets.

    Raises:
        InvalidId: It isn't printable text.
    """
    if isinstance(name, str) and name.isprintable():
        return name
    raise InvalidId(f"{name!r:.80} can't be a {what}", remedy="Give it as `list` tells it")


def sealed(draft: Draft) -> Sealed:
    """The bytes to store.

    Raises:
        StateNotSerializable: They are more than can be stored.
    """
    try:
        return seal(draft.raw, codec="gzip")
    except NotSerializable as error:
        raise _unfit(
            error, "the state", f"session {draft.session_id!r}, agent {draft.agent_id!r}", draft.step_id
        ) from error


def new_record(draft: Draft, stored: Sealed, now_ms: int) -> CheckpointRecord:
    """The record to append, with its state inline."""
    return CheckpointRecord(
        os.urandom(10).hex(), draft.session_id, draft.agent_id, draft.step_id, 0, stored.codec, stored.size,
        stored.output_hash, draft.metadata, now_ms, stored.data,
    )  # fmt: skip


def opened(record: CheckpointRecord, fault: DurableError | None = None) -> Checkpoint:
    """A checkpoint of a record whose state is inline by now.

    What is wrong with it is raised when its state is asked for: in a listing it doesn't hide the others.

    Args:
        record: As the store gave it.
        fault: Why its state could not be read.
    """
    found = _Columns(record, fault)
    return Checkpoint(
        id=str(record.id),
        session_id=str(record.session_id),
        agent_id=str(record.agent_id),
        step_id=str(record.step_id),
        seq=found.read("seq", lambda: _whole(record.seq), 0),
        format=str(record.format),
        size_bytes=found.read("size_bytes", lambda: _whole(record.size_bytes), 0),
        created_at=found.read("created_at", lambda: at_ms(record.created_at_ms), _EPOCH),
        metadata=found.read("metadata", lambda: _object(record.metadata), {}),
        _contents=_Contents(record, found.fault),
    )


def damage_of(checkpoint: Checkpoint) -> DurableError | None:
    """What is wrong with its columns; its state isn't read, since the classes in it need not be there."""
    return checkpoint._contents.fault


def at_ms(millis: int) -> datetime:
    """The time in UTC of milliseconds since the epoch."""
    return datetime.fromisoformat(rfc3339(_whole(millis)))


def raw_of(record: CheckpointRecord) -> bytes:
    """The JSON lines of a record that has its state, checked against size and hash.

    Raises:
        CorruptRecord: They aren't what was saved.
    """
    if record.format not in FORMATS:
        raise corrupt(record, f"its format {record.format!r:.40} is not known here")
    if record.state is None or not isinstance(record.state_hash, str):
        raise corrupt(record, "its state or its hash can't be read")
    try:
        size = _whole(record.size_bytes)
        return unseal(record.format, record.state, size=size, output_hash=record.state_hash)
    except TypeError as error:
        raise corrupt(record, "its size can't be read") from error
    except CorruptRecord as error:
        raise _named(error, record) from error.__cause__


def metadata_of(record: CheckpointRecord) -> dict[str, Any]:
    """What was saved beside a state; nothing where that is damaged, which is told when it is opened."""
    return opened(record._replace(state=b"")).metadata


class _Columns:
    """Reads columns that may have been damaged, and keeps what was wrong with the first that was."""

    def __init__(self, record: CheckpointRecord, fault: DurableError | None) -> None:
        self.record = record
        self.fault = fault

    def read(self, name: str, parse: Callable[[], Any], otherwise: Any) -> Any:
        try:
            return parse()
        # Whatever stands there in a row that somebody has damaged.
        except (ValueError, TypeError, AttributeError, OverflowError, OSError, CorruptRecord):
            self.fault = self.fault or corrupt(self.record, f"its {name} can't be read")
            return otherwise


def corrupt(record: CheckpointRecord, why: str) -> CorruptRecord:
    """The error of a record that isn't as it was written."""
    return CorruptRecord(
        f"checkpoint {record.seq} of session {record.session_id!r} is damaged: {why}",
        step_id=str(record.step_id),
        remedy="Load an earlier one (`durable checkpoint list`), or restore the store from a backup",
    )


class _Contents:
    """State and inputs of a record, decoded when they are first asked for."""

    __slots__ = ("_found", "_record", "fault")

    def __init__(self, record: CheckpointRecord, fault: DurableError | None) -> None:
        self._record = record
        self.fault = fault
        self._found: tuple[Any, Inputs | None] | None = None

    def __call__(self) -> tuple[Any, Inputs | None]:
        if self._found is None:
            self._found = self._decoded()
        return self._found

    def _decoded(self) -> tuple[Any, Inputs | None]:
        if self.fault is not None:
            raise self.fault
        state, _, inputs = raw_of(self._record).partition(b"\n")
        try:
            return decode(state), Inputs(*decode(inputs)) if inputs else None
        except CorruptRecord as error:  # also a class that isn't there
            raise _named(error, self._record) from error.__cause__
        except (TypeError, ValueError) as error:
            raise corrupt(self._record, f"its inputs are none: {error}") from error


def _named(error: CorruptRecord, record: CheckpointRecord) -> CorruptRecord:
    error.message += f" (checkpoint {record.seq} of session {record.session_id!r})"
    error.step_id = str(record.step_id)
    return error


def _encoded(value: object, what: str, where: str, step_id: str) -> bytes:
    try:
        raw = encode(value)
        # Classes may have validators of their own, so whether these come back is tried; the rest always does.
        return freeze(value)[0] if _CLASS_TAG in raw else raw
    except NotSerializable as error:
        raise _unfit(error, what, where, step_id) from error


def _unfit(error: NotSerializable, what: str, where: str, step_id: str) -> StateNotSerializable:
    return StateNotSerializable(
        f"{what} can't be stored: {error.message}" + (f" ({where})" if where else ""),
        path=error.path,
        step_id=step_id or None,
        remedy=error.remedy or "Save data: numbers, texts, lists, dicts, models, dataclasses",
    )


def _whole(value: object) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r:.40} is no whole number")
    return value


def _object(text: str | None) -> dict[str, Any]:
    found = {} if text is None else decode(text.encode("ascii"))  # None: saved without any
    if not isinstance(found, dict):
        raise TypeError("no object")
    return found
