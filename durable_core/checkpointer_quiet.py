"""Saving from inside an agent: never raises; what could not be saved is logged and counted."""

from __future__ import annotations

import atexit
import os
import threading
from typing import TYPE_CHECKING, Final

from durable_core.checkpointer_blocking import Checkpointer
from durable_core.checkpoints.checkpoint import Checkpoint, checked_ids, drafted
from durable_core.errors import Fenced
from durable_core.log import get_logger
from durable_core.store import Store

if TYPE_CHECKING:
    from collections.abc import Mapping

    from durable_core.settings import CheckpointingConfig

_opened: Final[dict[tuple[str, str], Store]] = {}
_lock: Final = threading.Lock()  # over these two
_failures: Final = {"saves": 0}


def save_checkpoint_if_enabled(
    config: CheckpointingConfig,
    session_id: str | None,
    agent_id: str,
    step_id: str,
    state: object,
    metadata: Mapping[str, object] | None = None,
    *,
    completed: bool = False,
    store: str | Store | None = None,
) -> Checkpoint | None:
    """Saves a state from inside an agent: never raises; a failure is logged at warning, with its reason, and
    counted.

    Args:
        config: Disabled: nothing happens.
        session_id: None: nothing happens.
        agent_id: Whose state it is.
        step_id: After which step.
        state: Any value the codec knows.
        metadata: To be kept beside it.
        completed: Whether the agent has completed; with `granularity="agent"` only then anything is saved.
        store: As of `get_checkpointer`; a URL is opened once in a process.

    Returns:
        What was saved; None when nothing was.
    """
    if session_id is None or not is_due(config, completed=completed):
        return None
    saved: Checkpoint | None = None
    with told(session_id, agent_id, step_id):
        ids = checked_ids(session_id, agent_id, step_id)
        saved = shared(config, store).write(drafted(*ids, state, metadata))
    return saved


def failed_saves() -> int:
    """How many checkpoints this process could not save, of those whose failure isn't raised."""
    return _failures["saves"]


def is_due(config: CheckpointingConfig, *, completed: bool) -> bool:
    """Whether the settings want a checkpoint: after a step, or of an agent that has completed."""
    return config.enabled and (completed or config.granularity == "step")


class told:  # noqa: N801 - reads as what it does: `with told(session_id, …):`
    """Inside, a failure to save is logged and counted instead of being raised.

    That the run is somebody else's by now is no failure, and only logged: they save it.
    """

    def __init__(self, session_id: object, agent_id: object, step_id: object) -> None:
        self._where = {"session_id": session_id, "agent_id": agent_id, "step_id": step_id}

    def __enter__(self) -> None:
        """Nothing yet."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> bool:
        """Whatever a state, its classes or a store raise: the work of an agent isn't lost for it."""
        if not isinstance(error, Exception):
            return False
        if isinstance(error, Fenced):
            get_logger("durable_core").info("checkpoint_stale", **self._where, reason=str(error))
            return True
        with _lock:
            _failures["saves"] += 1
        get_logger("durable_core").warning(
            "checkpoint_not_saved",
            **self._where,
            reason=str(error) or type(error).__qualname__,
            failed_saves=_failures["saves"],
        )
        return True


def shared(config: CheckpointingConfig, store: str | Store | None) -> Checkpointer:
    """A checkpointer over a store that this process opens once, whoever saves into it."""
    if isinstance(store, Store):
        return Checkpointer(config, store)
    # What a relative URL, or none, names depends on these.
    key = (store or f"?{os.environ.get('DURABLE_STORE', '')}", os.getcwd())  # noqa: PTH109 - only compared
    with _lock:
        if key not in _opened:
            _opened[key] = Checkpointer(config, store).store
        return Checkpointer(config, _opened[key])


@atexit.register
def _close_all() -> None:
    for store in _opened.values():
        if store.checkpoints is not None:
            store.checkpoints.close()
    _opened.clear()
