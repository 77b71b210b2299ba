"""Who gets to drive a run: created, taken over, or given way to."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from durable_core.clock import rfc3339
from durable_core.codec import freeze
from durable_core.engine.asking import ask
from durable_core.engine.invocation import dead_from_ms, gone_of
from durable_core.engine.keeping import gone_json, keeps_changed
from durable_core.engine.owners import is_dead_for_certain, lease_now_ms, owner_process
from durable_core.engine.process import this_process, told
from durable_core.errors import (
    CorruptRecord,
    DurableError,
    InputNotSerializable,
    NotSerializable,
    RunBusy,
    RunInputMismatch,
    RunNotFound,
    RunPruned,
    UsageError,
)
from durable_core.identity import check_id, input_hash, new_owner
from durable_core.journal.base import Claim, Departure, Lease
from durable_core.records import (
    ENDED,
    FAILED,
    PENDING,
    PRUNING,
    RUNNING,
    TOMBSTONE,
    RunHeader,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from durable_core.engine.drive import Tools
    from durable_core.engine.values import Stored
    from durable_core.workflow import Workflow


_LOOK_S: Final = 1.0  # a store that doesn't answer for so long holds up no way out


@dataclass(frozen=True, slots=True)
class Admitted:
    """A run that this process owns now.

    Attributes:
        header: As acquired.
    """

    header: RunHeader

    def gone(self) -> dict[int, int | None]:
        """The fences of owners that never released the run, and from when on each is dead for certain."""
        return gone_of(self.header)


async def create(
    tools: Tools,
    workflow: Workflow[..., Any],
    run_id: str,
    inputs: Mapping[str, object],
    *,
    owned: bool = True,
    session_id: str | None = None,
    forked_from: str | None = None,
) -> tuple[RunHeader, bool]:
    """Creates a run, if its id is free.

    Args:
        tools: The executor's.
        workflow: That will be run.
        run_id: The id.
        inputs: By name.
        owned: Whether it is acquired in the same write; else it waits for who drives it.
        session_id: Under which agent checkpoints are kept.
        forked_from: The run that it is a fork of.

    Returns:
        The header as it is now, and whether this call made it (and owns it, if it was to).

    Raises:
        InvalidId: The session's can't be one.
        InputNotSerializable: An input can't be stored.
        RunPruned: The run that had the id isn't gone yet.
    """
    old = await ask(tools.journal.header, run_id)
    if old is not None and old.status != TOMBSTONE:
        check_not_pruned(old)
        return old, False
    if session_id is not None:
        check_id(session_id, "session id")
    creator = new_owner()
    stored = await _stored_inputs(tools, workflow, run_id, creator, inputs)
    base_fence = old.fence if old is not None else 0
    now = rfc3339(tools.clock.now_ms())
    header = RunHeader(
        run_id=run_id,
        workflow=workflow.name,
        fingerprint=workflow.fingerprint,
        input_hash=hash_of(workflow, inputs),
        input_data=stored.data,
        input_ref=stored.ref,
        input_codec=stored.codec,
        input_size=stored.size,
        input_data_hash=stored.output_hash,
        created_by=creator,
        status=RUNNING if owned else PENDING,
        owner=creator if owned else None,
        owner_process=owner_process(tools) if owned else None,
        fence=base_fence + owned,
        base_fence=base_fence,
        due_at_ms=tools.clock.now_ms(),
        session_id=session_id,
        forked_from=forked_from,
        created_at=now,
        updated_at=now,
    )
    try:
        reply = await ask(tools.journal.create, header, tools.lease_now_ms())
    except asyncio.CancelledError:
        await _give_back(tools, Lease(run_id, creator, header.fence, base_fence), header)
        raise
    if reply.row is None:
        raise CorruptRecord("the run's header vanished while it was created", run_id=run_id)
    check_not_pruned(reply.row)
    # Whoever took it over since, the creator stays; only the owner tells whether it is still mine to drive.
    return reply.row, (reply.row.owner if owned else reply.row.created_by) == creator


async def _stored_inputs(
    tools: Tools, workflow: Workflow[..., Any], run_id: str, creator: str, inputs: Mapping[str, object]
) -> Stored:
    try:
        raw, _ = freeze(dict(inputs), workflow.input_adapter)
        return await tools.values.store(raw, run_id, creator)
    except NotSerializable as error:
        raise InputNotSerializable(
            f"an input of workflow {workflow.name!r} can't be stored: {error.message}",
            path=error.path,
            run_id=run_id,
            remedy=error.remedy,
        ) from error


async def _give_back(tools: Tools, lease: Lease, before: RunHeader) -> None:
    """Leaves a run that a cancelled create or acquire may have made ours, as it was before.

    A   create ─▶ applied ── (cancelled) ── header: A's own ── leave ─▶ applied: PENDING
    A   create (waits for a busy store) ── (cancelled) ── header: none, or another's ── nothing to leave
    """
    try:
        async with asyncio.timeout(_LOOK_S):
            found = await tools.journal.header(lease.run_id)
        if found is not None and found.owner == lease.owner:
            status = FAILED if before.status == FAILED else PENDING
            departure = Departure(
                status=status, due_at_ms=tools.clock.now_ms(), keep_error=True, counts=before.counts
            )
            await ask(tools.journal.leave, lease, departure)
    except (DurableError, TimeoutError) as error:  # if it is ours, its lease runs out by itself
        tools.log.warning(
            "run_not_released", run_id=lease.run_id, fence=lease.fence, reason=str(error) or "no reply"
        )


async def acquire(
    tools: Tools, seen: RunHeader, fingerprint: str | None = None, *, keeps: bool | None = None
) -> Admitted | RunHeader:
    """Takes over a run that nobody drives, or whose driver is dead, and that still has the status seen.

    Args:
        tools: The executor's.
        seen: The header as last read.
        fingerprint: Of the workflow as it is now.
        keeps: Whether recorded outputs are to be used although their inputs have changed, from now on; None:
            as was decided before.

    Returns:
        The run, as acquired; or its header as it is now, if it went on since it was read: to be judged anew.

    Raises:
        RunBusy: Somebody drives it, or was faster.
        RunPruned: It is being pruned, or was.
    """
    check_not_pruned(seen)
    if not is_free(tools, seen):
        raise busy(tools, seen)
    journal = tools.journal
    owner_died = seen.status == RUNNING and seen.owner is not None
    owner_is_dead = seen.owner is not None and is_dead_for_certain(tools, seen.owner_process)
    crashes = 0 if seen.status == FAILED else seen.crashes
    if owner_died:
        finished_something = await ask(journal.progressed, seen.run_id, seen.fence)
        crashes = 0 if finished_something else seen.crashes + 1
    gone: dict[int, int | bool | None] = dict(gone_of(seen))
    if owner_died or owner_is_dead:
        gone[seen.fence] = owner_is_dead or dead_from_ms(seen.owner_process)
    claim = Claim(
        owner=new_owner(),
        owner_process=owner_process(tools),
        lease_ms=tools.lease_now_ms(),
        crashes=crashes,
        gone=gone_json(gone, keeps=keeps_changed(seen) if keeps is None else keeps),
        fingerprint=fingerprint,
    )
    dead_owner = seen.owner if owner_is_dead else None
    try:
        reply = await ask(journal.acquire, seen, claim, statuses=(seen.status,), dead_owner=dead_owner)
    except asyncio.CancelledError:
        await _give_back(tools, Lease(seen.run_id, claim.owner, seen.fence + 1, seen.base_fence), seen)
        raise
    header = reply.row
    if header is None:
        raise CorruptRecord("the run's header vanished while it was acquired", run_id=seen.run_id)
    if header.owner != claim.owner:
        check_not_pruned(header)
        if header.fence == seen.fence and header.status != seen.status:
            return header
        raise busy(tools, header)
    log = tools.log.bind(run_id=header.run_id, fence=header.fence)
    if owner_died:
        log.warning("run_taken_over", crashes=crashes, owner=told(seen.owner_process))
    if fingerprint is not None and seen.fingerprint not in (None, fingerprint):
        log.warning("workflow_changed", workflow=header.workflow)
    return Admitted(header)


async def acquire_to_prune(tools: Tools, seen: RunHeader) -> Admitted | RunHeader | None:
    """Takes a run that is over, or that a pruner left half-way, in order to delete it.

    P   FAILED, fence 2 ── acquire [fence 2, over] ─▶ PRUNING, fence 3
    A   FAILED, fence 2 ──────────────────────── (resumes) acquire [fence 2] ─▶ refused: PRUNING, fence 3
    Q   FAILED, fence 2 ──────────────────────── acquire [fence 2] ─▶ refused: PRUNING, fence 3

    Had A come first, P would be refused and leave the run alone.

    Args:
        tools: The executor's.
        seen: The header as last read, of a run that is free.

    Returns:
        The run, as acquired; or its header as it is now, if it went on since it was read; None: it is gone.
    """
    claim = Claim(
        owner=new_owner(),
        owner_process=this_process(),
        lease_ms=tools.lease_ms,
        crashes=seen.crashes,
        gone=seen.gone,
        status=PRUNING,
    )
    dead_owner = (
        seen.owner if seen.owner is not None and is_dead_for_certain(tools, seen.owner_process) else None
    )
    reply = await ask(tools.journal.acquire, seen, claim, statuses=(*ENDED, PRUNING), dead_owner=dead_owner)
    header = reply.row
    return Admitted(header) if header is not None and header.owner == claim.owner else header


async def header_of(tools: Tools, run_id: str, where: str) -> RunHeader:
    """The header of a run.

    Args:
        tools: The executor's.
        run_id: The run.
        where: The store's name, for the message.

    Raises:
        RunNotFound: There is none of that id.
    """
    header = await ask(tools.journal.header, check_id(run_id, "run id"))
    if header is None or header.status == TOMBSTONE:
        raise RunNotFound(
            f"there is no such run in {where}",
            run_id=run_id,
            remedy="See which there are with `durable list`, and check the store's URL",
        )
    return header


def check_not_pruned(header: RunHeader) -> None:
    """Refuses a run of which a part may be gone already.

    Raises:
        RunPruned: It is being pruned, or was.
    """
    if header.status == PRUNING:
        raise RunPruned(
            "the run is being pruned: a part of its records is gone",
            run_id=header.run_id,
            remedy="Its id is free again once that is done; if it was cut short, prune the run again",
        )
    if header.status == TOMBSTONE:
        raise RunPruned(
            "the run was pruned this moment", run_id=header.run_id, remedy="Its id is free: start it anew"
        )


def busy(tools: Tools, header: RunHeader) -> RunBusy:
    """Why a run can't be driven here now."""
    left_ms = header.lease_until_ms - lease_now_ms(tools)
    return RunBusy(header.run_id, owner=told(header.owner_process), lease_left_s=left_ms / 1000)


def is_free(tools: Tools, header: RunHeader) -> bool:
    """Whether an acquire could succeed, as far as the header tells."""
    return header.lease_until_ms < lease_now_ms(tools) or is_dead_for_certain(tools, header.owner_process)


def hash_of(workflow: Workflow[..., Any], inputs: Mapping[str, object]) -> str:
    """The hash of a run's inputs.

    Raises:
        InputNotSerializable: One can't be hashed.
    """
    return input_hash(workflow.name, (), inputs)


def check_same(header: RunHeader, workflow: Workflow[..., Any], inputs: Mapping[str, object] | None) -> None:
    """Refuses another workflow, or other inputs, under an id that is taken.

    Args:
        header: Of the run.
        workflow: As asked for now.
        inputs: As asked for now; None when the recorded ones are meant.

    Raises:
        RunInputMismatch: They differ.
    """
    if header.workflow != workflow.name:
        raise RunInputMismatch(
            f"the run is of workflow {header.workflow!r}, not of {workflow.name!r}",
            run_id=header.run_id,
            remedy="Use another run id for the other workflow",
        )
    if inputs is not None and (now := hash_of(workflow, inputs)) != header.input_hash:
        raise RunInputMismatch(
            f"the run was started with other inputs (hash {header.input_hash[:12]}…, now {now[:12]}…)",
            run_id=header.run_id,
            remedy="Resume it without inputs for the recorded ones, or use another run id for the new ones",
        )


def check_session(header: RunHeader, session_id: str | None) -> None:
    """Refuses another session for a run that exists; None is whichever it has.

    Raises:
        RunInputMismatch: It has another, or none.
    """
    if session_id is not None and session_id != header.session_id:
        has = f"session {header.session_id!r}" if header.session_id is not None else "no session"
        raise RunInputMismatch(
            f"the run has {has}, and is asked for with session_id={session_id!r}",
            run_id=header.run_id,
            remedy="Leave session_id out for the recorded one, or use another run id",
        )


async def recorded_inputs(tools: Tools, header: RunHeader, workflow: Workflow[..., Any]) -> dict[str, object]:
    """The inputs as they reach the workflow.

    Raises:
        UsageError: They don't fit the workflow's parameters any more.
        CorruptRecord, MissingBlob, UnknownType: They can't be read back.
    """
    try:
        stored = (
            header.input_codec, header.input_data, header.input_ref, header.input_size, header.input_data_hash
        )  # fmt: skip
        found = await tools.values.restore(*stored, workflow.input_adapter)
        if not isinstance(found, dict):
            raise CorruptRecord("the run's inputs aren't named values")
        return workflow.checked(found)
    except UsageError as error:
        error.run_id, error.remedy = (
            header.run_id,
            "Put the parameters back, or fork the run with other inputs",
        )
        raise
    except DurableError as error:
        error.run_id = header.run_id
        raise
