"""Checkpoints of a run's agents: what its steps come to, saved per session beside the journal.

    step ── commit ── checkpoint ── returns to the workflow
                   ✗ killed here: replayed on resume, and saved then, if nothing later of its agent was

The journal is what a run resumes from; checkpoints are for people and for other code to look at and to go on
from. So a checkpoint that can't be saved is logged and counted, and never fails a run. It is saved by who
drives the run: the drive waits for it before it leaves, and one that was overtaken saves nothing any more.

An agent is the workflow, or the branch that a step belongs to (`risk`, `risk/inner`); items of a map are one.
The state after a step is the step's output. With `granularity="agent"` it is the workflow's output, and that
of each branch of a `parallel`.
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any, Final

from durable_core.checkpointer_quiet import is_due, told
from durable_core.checkpoints.checkpoint import Draft, Inputs, drafted, inputs_if_storable, metadata_of
from durable_core.engine.steps import Steps
from durable_core.errors import StateNotSerializable
from durable_core.records import COMMITTED

if TYPE_CHECKING:
    from pydantic import TypeAdapter

    from durable_core.checkpointer import Checkpointer
    from durable_core.context import Branch
    from durable_core.engine.drive import Drive
    from durable_core.engine.step_records import Call
    from durable_core.records import StepRecord
    from durable_core.scope import Scope
    from durable_core.step_definition import Step

_PAGE: Final = 1000
_ITEM: Final = re.compile(r"\[[^\]]*\]")


def steps_of(drive: Drive) -> Steps:
    """The engine of a drive: one that saves when the run belongs to a session, and checkpoints are wanted."""
    checkpointer, session_id = drive.tools.checkpointer, drive.header.session_id
    if checkpointer is None or session_id is None:
        return Steps(drive)
    return SessionSteps(drive, checkpointer, session_id)


async def completed(engine: Steps, output: object, adapter: TypeAdapter[Any] | None) -> None:
    """The workflow has returned."""
    if isinstance(engine, SessionSteps):
        name = engine.drive.header.workflow
        await engine.save_agent(name, output, adapter)


class SessionSteps(Steps):
    """The steps of a drive, each followed by a checkpoint.

    Args:
        drive: Of the run.
        checkpointer: Of the executor.
        session_id: Of the run.
    """

    def __init__(self, drive: Drive, checkpointer: Checkpointer, session_id: str) -> None:
        super().__init__(drive)
        self._checkpointer = checkpointer
        self._session_id = session_id
        self._after_steps = is_due(checkpointer.config, completed=False)
        # What this drive has brought to an outcome, until it is saved.
        self._fresh: dict[str, StepRecord] = {}
        self._earlier: asyncio.Future[_Earlier] | None = None

    def beside(self, drive: Drive) -> Steps:
        """The same of a drive that works on a part of this run."""
        return SessionSteps(drive, self._checkpointer, self._session_id)

    async def _settle(self, call: Call, seen: StepRecord | None) -> tuple[StepRecord, Any]:
        record, value = await super()._settle(call, seen)
        self._fresh[record.step_id] = record
        return record, value

    async def _run(
        self,
        scope: Scope,
        step: Step[..., Any],
        step_id: str,
        index: int,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        condition: bool,
    ) -> Any:
        replayed = self.drive.records.get(step_id)
        value = await super()._run(scope, step, step_id, index, args, kwargs, condition)
        record = self._fresh.pop(step_id, replayed)
        if self._after_steps and record is not None and record.status == COMMITTED:
            agent_id = _ITEM.sub("", scope.path[:-1]) or self.drive.header.workflow
            with self.drive.inside():
                is_new = record.fence == self.drive.lease.fence
                if is_new or not (await self._before()).has(agent_id, record, index):
                    await self._save_step(agent_id, record, value, step.adapter, Inputs(args, kwargs))
        return value

    async def _save_step(
        self,
        agent_id: str,
        record: StepRecord,
        output: object,
        adapter: TypeAdapter[Any] | None,
        inputs: Inputs,
    ) -> None:
        with told(self._session_id, agent_id, record.step_id):
            if not record.attempt_id:  # it was read without what a replay doesn't take
                # Not asked by the drive: that this can't be read now mustn't stop it.
                whole = await self.drive.tools.journal.step(self.run_id, record.step_id)
                record = whole if whole is not None else record
            recorded, why_not = inputs_if_storable(inputs)
            metadata: dict[str, object] = {
                "run_id": self.run_id,
                "fence": record.fence,
                "attempt": record.attempt,
                "idempotency_key": record.idempotency_key,
                "step_index": record.step_index,
                "committed_at": record.committed_at,
                **why_not,
            }
            draft = self._drafted(agent_id, record.step_id, output, metadata, recorded, adapter)
            await asyncio.to_thread(self._checkpointer.write, draft, self.drive.lease)

    async def join(self, scope: Scope, found: tuple[Branch[Any], ...], caller: object) -> list[Any]:
        """Runs branches side by side; each is an agent that has completed then."""
        outputs = await super().join(scope, found, caller)
        with self.drive.inside():
            for branch, output in zip(found, outputs, strict=True):
                await self.save_agent(_ITEM.sub("", branch.name), output, None)
        return outputs

    async def save_agent(self, agent_id: str, output: object, adapter: TypeAdapter[Any] | None) -> None:
        """Saves what an agent has come to, when that is wanted and wasn't done before the run was resumed."""
        if self._after_steps:
            return
        with told(self._session_id, agent_id, agent_id):
            if (agent_id, agent_id) not in (await self._before()).saved:
                draft = self._drafted(agent_id, agent_id, output, {"run_id": self.run_id}, None, adapter)
                await asyncio.to_thread(self._checkpointer.write, draft, self.drive.lease)

    def _drafted(
        self,
        agent_id: str,
        step_id: str,
        state: Any,
        metadata: dict[str, object],
        inputs: bytes | None,
        adapter: TypeAdapter[Any] | None,
    ) -> Draft:
        try:
            return drafted(self._session_id, agent_id, step_id, state, metadata, inputs)
        except StateNotSerializable:
            if adapter is None:
                raise
            # Only its annotation can restore it, and whoever loads a checkpoint has none: as plain data.
            plain = adapter.dump_python(state, mode="json")
            return drafted(self._session_id, agent_id, step_id, plain, metadata, inputs)

    async def _before(self) -> _Earlier:
        """What earlier drives of the run have saved; read once, when the first step is replayed."""
        if self._earlier is None:
            self._earlier = asyncio.ensure_future(asyncio.to_thread(self._read_earlier))
        return await asyncio.shield(self._earlier)

    def _read_earlier(self) -> _Earlier:
        earlier, before = _Earlier(), None
        with told(self._session_id, self.drive.header.workflow, "resume"):
            while True:
                page = self._checkpointer.kept.page(self._session_id, before=before, limit=_PAGE)
                for record in page:
                    metadata = metadata_of(record)
                    if metadata.get("run_id") == self.run_id:
                        earlier.saved.add((record.agent_id, record.step_id))
                        place = metadata.get("step_index", 0), metadata.get("committed_at") or ""
                        earlier.newest.setdefault(record.agent_id, place)
                if len(page) < _PAGE:
                    return earlier
                before = page[-1].seq
        earlier.is_unknown = True
        return earlier


class _Earlier:
    """What earlier drives of a run have saved."""

    def __init__(self) -> None:
        self.saved: set[tuple[str, str]] = set()
        self.newest: dict[str, tuple[int, str]] = {}  # by agent: place and time of the step saved last
        self.is_unknown = False

    def has(self, agent_id: str, record: StepRecord, step_index: int) -> bool:
        """Whether a step needn't be saved any more: it was, or a later one of its agent was."""
        index, at = self.newest.get(agent_id, (0, ""))
        is_past = step_index < index and (record.committed_at or "") <= at
        return self.is_unknown or is_past or (agent_id, record.step_id) in self.saved
