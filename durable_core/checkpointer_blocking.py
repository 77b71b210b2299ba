"""The checkpointer: saves, loads and prunes the states of agents; for plain code."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from durable_core.arguments import check_count
from durable_core.checkpoints import replaying
from durable_core.checkpoints.checkpoint import (
    Checkpoint,
    Draft,
    Inputs,
    asked_for,
    checked_ids,
    drafted,
    encoded_inputs,
    metadata_of,
    new_record,
    opened,
    raw_of,
    sealed,
)
from durable_core.checkpoints.spilled import SpilledStates, wait_for
from durable_core.clock import Clock, SystemClock
from durable_core.errors import (
    CheckpointNotFound,
    CorruptRecord,
    DurableError,
    Fenced,
    MissingBlob,
    UsageError,
)
from durable_core.identity import check_id
from durable_core.log import get_logger
from durable_core.store import Store
from durable_core.store_urls import store_url

if TYPE_CHECKING:
    import builtins
    from collections.abc import Callable, Mapping, Sequence

    from durable_core.checkpoints.base import CheckpointRecord, CheckpointStore, Place, SessionStats
    from durable_core.checkpoints.replaying import Replay
    from durable_core.journal.base import Holding
    from durable_core.settings import CheckpointingConfig

BATCH: Final = 100  # records that are removed in one write: others get their turn in between
RESUME_POINT: Final = "resume_point"


class Pruned(NamedTuple):
    """What pruning came to, or would come to.

    Attributes:
        removed: How many checkpoints.
        size_bytes: Of their states as JSON.
        kept: How many are left in the session.
    """

    removed: int
    size_bytes: int
    kept: int


class Checkpointer:
    """Saves and loads checkpoints; blocking. In an event loop: `AsyncCheckpointer`, with the same methods.

    Args:
        config: Whether anything is written, and how much is kept.
        store: An executor's `store`, to share it; or a URL. None: `DURABLE_STORE`, else `sqlite:///durable.db`.
        clock: Tells when a checkpoint was saved.

    Raises:
        UsageError: It names no store, or one that keeps no checkpoints.
    """

    def __init__(
        self, config: CheckpointingConfig, store: str | Store | None = None, *, clock: Clock | None = None
    ) -> None:
        self._owns_store = not isinstance(store, Store)
        if not isinstance(store, Store):
            from durable_core.stores import open_store  # an import that points up, only when it is called

            store = open_store(store_url(store, None, None))
        if store.checkpoints is None:
            raise UsageError(
                f"the store {store.url} keeps no agent checkpoints", remedy="Give Store(…) a CheckpointStore"
            )
        self.config = config
        self.store: Store = store
        self.kept: CheckpointStore = store.checkpoints
        self._spilled = SpilledStates(store.blobs)
        self._clock = clock or SystemClock()

    # ---- Saving ----

    def save(
        self,
        session_id: str,
        agent_id: str,
        step_id: str,
        state: object,
        metadata: Mapping[str, object] | None = None,
        *,
        inputs: Inputs | None = None,
    ) -> Checkpoint | None:
        """Saves a state as the session's latest; one of the same step that is there stays.

        Args:
            session_id: The session.
            agent_id: Whose state it is.
            step_id: After which step.
            state: Any value the codec knows.
            metadata: To be kept beside it: at most 32 KiB, names as keys.
            inputs: What the step was called with, for `replay`.

        Returns:
            What was saved; None when checkpointing is disabled.

        Raises:
            StateNotSerializable: It can't be stored; `path` says where in the value.
            InvalidId: An id can't be one.
            JournalUnavailable, StoreMisconfigured: The store can't take it.
        """
        if not self.config.enabled:
            return None
        ids = checked_ids(session_id, agent_id, step_id)
        recorded = None if inputs is None else encoded_inputs(inputs)
        return self.write(drafted(*ids, state, metadata, recorded))

    def write(self, draft: Draft, lease: Holding | None = None) -> Checkpoint:
        """Saves what was drafted, whatever the settings say.

        Args:
            draft: The checkpoint.
            lease: What its saver holds of the run, or the chunk, that it is a state of.

        Raises:
            Fenced: The run, or the chunk, is somebody else's by now: whose state is newer.
            StateNotSerializable, JournalUnavailable, StoreMisconfigured: As `save`.
        """
        saved = self._append(draft, lease)
        self._prune_after(draft.session_id, saved.seq)
        return saved

    # ---- Loading ----

    def load_latest(self, session_id: str, agent_id: str | None = None) -> Checkpoint | None:
        """The latest checkpoint of a session, or of one of its agents; None when there is none.

        Raises:
            CorruptRecord: It was damaged. UnknownType: It names a class that this process hasn't imported.
        """
        check_id(session_id, "session id")
        agent_id = None if agent_id is None else asked_for(agent_id, "agent id")
        return self._loaded(lambda: self.kept.latest(session_id, agent_id))

    def load_by_step(self, session_id: str, step_id: str) -> Checkpoint | None:
        """The latest checkpoint of a step; None when there is none.

        Raises:
            CorruptRecord: As `load_latest`.
        """
        check_id(session_id, "session id")
        step_id = asked_for(step_id, "step id")
        return self._loaded(lambda: self.kept.of_step(session_id, step_id))

    def list(
        self, session_id: str, *, agent_id: str | None = None, before: int | None = None, limit: int = 100
    ) -> builtins.list[Checkpoint]:
        """Checkpoints of a session, the newest first.

        One that is damaged doesn't hide the others: it raises when its `state` is asked for.

        Args:
            session_id: The session.
            agent_id: Only those of this agent.
            before: Only those with a lower `seq`; for the next page.
            limit: The most that are given.
        """
        check_id(session_id, "session id")
        check_count("limit", limit)
        agent_id = None if agent_id is None else asked_for(agent_id, "agent id")
        found = self.kept.page(session_id, agent_id=agent_id, before=before, limit=limit, with_state=True)
        checkpoints = []
        for record in found:
            try:
                checkpoints.append(opened(self._spilled.fetched(record)))
            except CorruptRecord as error:
                checkpoints.append(opened(record, error))
        return checkpoints

    def stats(self, session_id: str) -> SessionStats:
        """How much is kept of a session; zeros when there is nothing."""
        return self.kept.stats(check_id(session_id, "session id"))

    # ---- Removing ----

    def prune(self, session_id: str, keep: int | None = None, *, dry_run: bool = False) -> Pruned:
        """Removes old checkpoints; never the newest of the session or of one of its agents.

        Also sweeps what saves that were killed a day ago or longer left in the blob store. Nothing is removed
        while checkpointing is disabled.

        Args:
            session_id: The session.
            keep: How many of its newest are kept; 0 keeps all. None: `retention_per_session`.
            dry_run: Only tell what would be removed.
        """
        check_id(session_id, "session id")
        keep = self.config.retention_per_session if keep is None else keep
        check_count("keep", keep, least=0)
        removed, size_bytes = 0, 0
        if dry_run and keep:
            places = self.kept.prunable(session_id, keep)
            removed, size_bytes = len(places), sum(place.size_bytes for place in places)
        elif keep and self.config.enabled:
            while places := self.kept.prunable(session_id, keep, limit=BATCH):
                removed += self._remove(places)
                size_bytes += sum(place.size_bytes for place in places)
            self._spilled.sweep(session_id, self.kept.places)
        kept = self.kept.stats(session_id).checkpoints
        return Pruned(removed, size_bytes, kept - removed if dry_run else kept)

    def delete_session(self, session_id: str) -> int:
        """Removes all checkpoints of a session, also while checkpointing is disabled.

        Returns:
            How many there were.
        """
        check_id(session_id, "session id")
        removed = 0
        while places := self.kept.places(session_id, limit=BATCH):
            removed += self._remove(places)
        self._spilled.sweep(session_id, self.kept.places)
        return removed

    # ---- Going on from a checkpoint ----

    def resume_from(self, session_id: str, step_id: str) -> Checkpoint:
        """Makes a step the point from which the session goes on: a copy of its checkpoint becomes the latest.

        Nothing is overwritten: `undo_resume_from` takes it back.

        Raises:
            CheckpointNotFound: There is none such.
            UsageError: Checkpointing is disabled.
        """
        latest = self.kept.latest(check_id(session_id, "session id"))
        if latest is None:
            raise no_session(session_id, self.store.url)
        chosen = self.kept.of_step(session_id, asked_for(step_id, "step id"))
        if chosen is None:
            raise no_step(session_id, step_id)
        return self._copy(chosen, {RESUME_POINT: chosen.seq, "instead_of": latest.seq})

    def undo_resume_from(self, session_id: str) -> Checkpoint:
        """Takes a resume point back, while nothing was saved since: the latest before it is the latest again.

        Raises:
            UsageError: The latest checkpoint is no resume point, or checkpointing is disabled.
            CheckpointNotFound: There is none such.
        """
        latest = self.kept.latest(check_id(session_id, "session id"))
        if latest is None:
            raise no_session(session_id, self.store.url)
        metadata = metadata_of(latest)
        before = metadata.get("instead_of")
        if RESUME_POINT not in metadata or not isinstance(before, int):
            raise UsageError(
                f"the latest checkpoint of session {session_id!r} is no resume point that could be undone",
                remedy="Set another one: --from-step STEP, resume_from(session_id, step_id)",
            )
        replaced = self.kept.at(session_id, before)
        if replaced is None:
            raise CheckpointNotFound(f"checkpoint {before} of session {session_id!r} has been pruned since")
        return self._copy(replaced, {"undone": latest.seq})

    def replay(self, session_id: str, step_id: str, fn: Callable[..., Any]) -> Replay:
        """Calls a function with the inputs and the seed that were recorded for a step, and compares.

        The function really runs, with all that it does. `async def` functions are run to their end.

        Raises:
            CheckpointNotFound: The step has no checkpoint.
            UsageError: Its inputs weren't recorded.
        """
        checkpoint = self._replayed(session_id, step_id)
        with replaying.inside(checkpoint):
            value = replaying.call(checkpoint, fn)
            if asyncio.iscoroutine(value):
                value = wait_for(value)
        return replaying.compared(checkpoint, value)

    # ---- The checkpointer itself ----

    def close(self) -> None:
        """Gives connections back, unless they are those of an executor's store; it can be used again."""
        if self._owns_store:
            self.kept.close()
            self._spilled.close()

    def __enter__(self) -> Checkpointer:
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Closes it."""
        self.close()

    def fetched(self, record: CheckpointRecord) -> CheckpointRecord:
        """A record with its state, wherever that is.

        Raises:
            MissingBlob, CorruptRecord: The blob isn't what was put.
        """
        return self._spilled.fetched(record)

    def _replayed(self, session_id: str, step_id: str) -> Checkpoint:
        checkpoint = self.load_by_step(session_id, step_id)
        if checkpoint is None:
            raise no_step(session_id, step_id)
        return checkpoint

    def _loaded(self, read: Callable[[], CheckpointRecord | None]) -> Checkpoint | None:
        while (record := read()) is not None:
            try:
                found = opened(self._spilled.fetched(record))
            except MissingBlob:
                again = read()
                if again is not None and again.id == record.id:
                    raise
                continue  # it was pruned between the two looks
            _ = found.state  # what is wrong with it is told now
            return found
        return None

    def _append(self, draft: Draft, lease: Holding | None = None) -> Checkpoint:
        stored = sealed(draft)
        record = new_record(draft, stored, self._clock.now_ms())
        if len(stored.data) > self.kept.inline_max_bytes:
            record = self._spilled.put(record)
        try:
            seq = self.kept.append(record, lease)
        except Fenced:
            self._spilled.take_back(record)
            raise
        return opened(record._replace(seq=seq, state=stored.data))

    def _copy(self, record: CheckpointRecord, why: dict[str, object]) -> Checkpoint:
        """Saves what a record has as it is stored: the classes in it need not be there.

        Nothing is pruned: whoever moves a session may have other settings than the agents, or none.
        """
        if not self.config.enabled:
            raise UsageError("checkpointing is disabled: no resume point can be set", remedy="Enable it")
        ours = (RESUME_POINT, "instead_of", "undone")
        kept = {name: value for name, value in metadata_of(record).items() if name not in ours}
        where = (record.session_id, record.agent_id, record.step_id)
        return self._append(
            drafted(*where, raw_of(self._spilled.fetched(record)), {**kept, **why}, is_raw=True)
        )

    def _prune_after(self, session_id: str, seq: int) -> None:
        """Best effort: a checkpoint that was saved is saved, whether or not an old one goes."""
        keep = self.config.retention_per_session
        if not keep or seq <= keep:  # there can't be more than that
            return
        try:
            self._remove(self.kept.prunable(session_id, keep, limit=BATCH))
        except DurableError as error:
            get_logger("durable_core").warning(
                "checkpoints_not_pruned", session_id=session_id, reason=str(error)
            )

    def _remove(self, places: Sequence[Place]) -> int:
        """Records first, blobs second: nothing that can be found ever points to nothing."""
        removed = self.kept.remove(places)
        for place in places:
            if place.state_ref is not None:
                self._spilled.delete(place.state_ref)
        return removed


def no_session(session_id: str, url: str) -> CheckpointNotFound:
    """The error for a session of which nothing is kept."""
    return CheckpointNotFound(
        f"there is no checkpoint of session {session_id!r} in {url}",
        remedy="See which sessions there are with `durable checkpoint list`, and check the store's URL",
    )


def no_step(session_id: str, step_id: str) -> CheckpointNotFound:
    """The error for a step of which no checkpoint is kept."""
    return CheckpointNotFound(
        f"session {session_id!r} has no checkpoint of that step",
        step_id=step_id,
        remedy="See its steps with `durable checkpoint list SESSION`; older ones may have been pruned",
    )
