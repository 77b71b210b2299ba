"""`@checkpointed`: functions whose results are saved as an agent's state."""

from __future__ import annotations

import asyncio
import functools
import inspect
import random
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar

from durable_core.checkpointer_quiet import is_due, shared, told
from durable_core.checkpoints.checkpoint import Draft, Inputs, checked_ids, drafted, inputs_if_storable
from durable_core.checkpoints.replaying import replayed
from durable_core.errors import UsageError
from durable_core.identity import check_id
from durable_core.settings import load_config
from durable_core.step_definition import Step, is_async, name_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from durable_core.settings import CheckpointingConfig
    from durable_core.store import Store

P = ParamSpec("P")
R = TypeVar("R")


def checkpointed(
    agent_id: str,
    *,
    step_id: str | None = None,
    config: CheckpointingConfig | None = None,
    store: str | Store | None = None,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Marks a function, `def` or `async def`, as an agent: what it returns is saved as the agent's state.

    That is done when it is called with `session_id=…`, which it may have as a parameter and needn't. What it
    was called with is recorded beside the state, for `replay`. A parameter `seed` that the call leaves out is
    filled with a random number, which is recorded too. A failure to save is logged and counted, never raised.

    Args:
        agent_id: Whose state it is.
        step_id: The step; the function's name by default.
        config: The settings; `load_config()` at the first call by default.
        store: As of `save_checkpoint_if_enabled`.

    Raises:
        UsageError: The function can't be an agent, or an id can't be one.

    Example:
        @checkpointed(agent_id="analyst")
        async def analyse(notes: list[str], *, session_id: str | None = None) -> Analysis: ...
    """
    check_id(agent_id, "agent id")

    def mark(fn: Callable[P, R]) -> Callable[P, R]:
        return _wrapped(_Agent(fn, agent_id, step_id, config, store), fn)

    return mark


class _Agent:
    """A marked function, and how its calls are saved."""

    def __init__(
        self,
        fn: Callable[..., Any],
        agent_id: str,
        step_id: str | None,
        config: CheckpointingConfig | None,
        store: str | Store | None,
    ) -> None:
        if isinstance(fn, Step) or inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
            raise UsageError(
                f"{fn!r} can't be marked as an agent: it has to be a function that returns its state",
                remedy="Write @step above @checkpointed, and return instead of yielding",
            )
        self.agent_id = agent_id
        self.step_id = check_id(step_id or name_of(fn), "step id")
        self.parameters = inspect.signature(fn).parameters
        self.config = config
        self.store = store

    def begun(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call:
        """One call: with what the function is to be called, and what is recorded of that."""
        given = dict(kwargs)
        session_id = given.pop("session_id", None)
        seed = None
        if "seed" in self.parameters and "seed" not in self.signature_of(args, given):
            seed = random.getrandbits(63)
        passed = given if seed is None else {**given, "seed": seed}
        if "session_id" in self.parameters and "session_id" in kwargs:
            passed = {**passed, "session_id": session_id}
        if self.config is None:
            self.config = load_config()
        replays = replayed.get() == (session_id, self.step_id)
        if session_id is None or replays or not is_due(self.config, completed=True):
            return _Call(self, passed, None, None, {})
        recorded, why_not = inputs_if_storable(Inputs(args, given, seed))
        return _Call(self, passed, session_id, recorded, why_not)

    def signature_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> set[str]:
        """The parameters that a call gives."""
        by_place = [
            name
            for name, one in self.parameters.items()
            if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
        ]
        return {*by_place[: len(args)], *kwargs}


class _Call(NamedTuple):
    agent: _Agent
    kwargs: dict[str, Any]
    session_id: str | None
    inputs: bytes | None
    metadata: dict[str, str]

    def save(self, state: object) -> Callable[[], object] | None:
        """Encodes the state; gives what is left to be done, which may be done in a thread."""
        agent, session_id, config = self.agent, self.session_id, self.agent.config
        if session_id is None or config is None:
            return None
        draft: Draft | None = None
        with told(session_id, agent.agent_id, agent.step_id):
            ids = checked_ids(session_id, agent.agent_id, agent.step_id)
            draft = drafted(*ids, state, self.metadata, self.inputs)
        return functools.partial(_write, config, agent.store, draft) if draft is not None else None


def _wrapped(agent: _Agent, fn: Callable[..., Any]) -> Callable[..., Any]:
    if is_async(fn):

        @functools.wraps(fn)
        async def awaited(*args: Any, **kwargs: Any) -> Any:
            call = agent.begun(args, kwargs)
            state = await fn(*args, **call.kwargs)
            write = call.save(state)
            if write is not None:
                await asyncio.to_thread(write)
            return state

        return awaited

    @functools.wraps(fn)
    def called(*args: Any, **kwargs: Any) -> Any:
        call = agent.begun(args, kwargs)
        state = fn(*args, **call.kwargs)
        write = call.save(state)
        if write is not None:
            write()
        return state

    return called


def _write(config: CheckpointingConfig, store: str | Store | None, draft: Draft) -> None:
    with told(draft.session_id, draft.agent_id, draft.step_id):
        shared(config, store).write(draft)
