"""Deterministic replay: the recorded inputs again, and where what came out differs."""

from __future__ import annotations

import dataclasses
import inspect
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic import BaseModel

from durable_core.codec import canonical, freeze
from durable_core.current import StepInfo, here
from durable_core.errors import NotSerializable, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from durable_core.checkpoints.checkpoint import Checkpoint

replayed: Final[ContextVar[tuple[str, str] | None]] = ContextVar("durable_replayed", default=None)
"""The session and the step that are replayed here: what comes of it isn't saved."""

_NOTHING: Final = object()


@dataclass(frozen=True, slots=True)
class Difference:
    """One place where a replay came to something else.

    Attributes:
        path: Where in the state, such as `.items[3].price`; empty for the state itself.
        kind: `changed`; `missing`, what was recorded didn't come; `added`, what came wasn't recorded.
        recorded: What was recorded there; None when added.
        replayed: What came now; None when missing.
    """

    path: str
    kind: Literal["changed", "missing", "added"]
    recorded: object
    replayed: object


@dataclass(frozen=True, slots=True)
class Replay:
    """What a replay came to.

    Attributes:
        checkpoint: That was replayed.
        output: What the function gave now.
        differences: Between the recorded state and that; none when they are equal.
    """

    checkpoint: Checkpoint
    output: object
    differences: tuple[Difference, ...]

    @property
    def equal(self) -> bool:
        """Whether the function gave what was recorded: the same values of the same types."""
        return not self.differences


def call(checkpoint: Checkpoint, fn: Callable[..., Any]) -> Any:
    """Calls a function with what was recorded; inside, `current_step()` tells what it told then.

    A function that takes the session gets it, although it isn't recorded among the inputs.

    Raises:
        UsageError: The inputs weren't recorded.
    """
    inputs = checkpoint.inputs
    if inputs is None:
        reason = checkpoint.metadata.get("inputs_not_recorded")
        raise UsageError(
            f"checkpoint {checkpoint.seq} of session {checkpoint.session_id!r} has no recorded inputs"
            + (f": {reason}" if reason else ""),
            step_id=checkpoint.step_id,
            remedy="Save it by the executor, by @checkpointed, or with save(…, inputs=Inputs(args, kwargs))",
        )
    given = dict(inputs.kwargs) if inputs.seed is None else {**inputs.kwargs, "seed": inputs.seed}
    if "session_id" in _unfilled(fn, inputs.args):
        given.setdefault("session_id", checkpoint.session_id)
    return fn(*inputs.args, **given)


def _unfilled(fn: Callable[..., Any], args: Sequence[object]) -> set[str]:
    """The parameters that these arguments leave to be given by name; none, where a function doesn't tell."""
    try:
        parameters = inspect.signature(fn).parameters
    except (TypeError, ValueError):
        return set()
    by_place = [name for name, one in parameters.items() if one.kind is not one.KEYWORD_ONLY]
    return {*parameters} - {*by_place[: len(args)]}


@contextmanager
def inside(checkpoint: Checkpoint) -> Iterator[None]:
    """Inside the replay of a step; of the one that was recorded, when an executor recorded it."""
    told = checkpoint.metadata
    names = ("run_id", "fence", "attempt", "idempotency_key", "step_index")
    replaying = replayed.set((checkpoint.session_id, checkpoint.step_id))
    try:
        if not all(name in told for name in names):
            yield
            return
        run_id, fence, attempt, key, index = (told[name] for name in names)
        token = here.set(StepInfo(run_id, fence, checkpoint.step_id, attempt, key, index))
        try:
            yield
        finally:
            here.reset(token)
    finally:
        replayed.reset(replaying)


def compared(checkpoint: Checkpoint, value: object) -> Replay:
    """The recorded state beside what came out now.

    Raises:
        NotSerializable: What came out can't be stored, so that it is no state.
    """
    try:
        _, output = freeze(value)
    except NotSerializable as error:
        error.message = f"what the replay gave can't be compared: {error.message}"
        error.step_id = checkpoint.step_id
        raise
    return Replay(checkpoint, output, tuple(differences(checkpoint.state, output)))


def differences(recorded: object, replayed: object, path: str = "") -> list[Difference]:
    """Where two values differ, by type or value; the order of a dict is no difference."""
    if type(recorded) is type(replayed):
        if canonical(recorded) == canonical(replayed):
            return []
        pair = _parts(recorded), _parts(replayed)
        if pair[0] is not None and pair[1] is not None:
            return _of_parts(pair[0], pair[1], path)
    return [Difference(path, "changed", recorded, replayed)]


def _of_parts(recorded: Mapping[str, object], replayed: Mapping[str, object], path: str) -> list[Difference]:
    found: list[Difference] = []
    for name in dict.fromkeys((*recorded, *replayed)):
        before, now = recorded.get(name, _NOTHING), replayed.get(name, _NOTHING)
        if now is _NOTHING:
            found.append(Difference(path + name, "missing", before, None))
        elif before is _NOTHING:
            found.append(Difference(path + name, "added", None, now))
        else:
            found += differences(before, now, path + name)
    return found


def _parts(value: object) -> Mapping[str, object] | None:
    """The parts of a value by their place in it; None when it has none."""
    if isinstance(value, dict):
        return {_place(key): part for key, part in value.items()}
    if isinstance(value, list | tuple):
        return {f"[{index}]": part for index, part in enumerate(value)}
    if isinstance(value, set | frozenset):
        return {f"{{{part!r}}}": part for part in sorted(value, key=repr)}
    if isinstance(value, BaseModel):
        return {f".{name}": part for name, part in value}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f".{one.name}": getattr(value, one.name) for one in dataclasses.fields(value)}
    return None


def _place(key: object) -> str:
    return f".{key}" if isinstance(key, str) and key.isidentifier() else f"[{key!r}]"
