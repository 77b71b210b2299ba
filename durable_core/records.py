"""What the journal stores: run headers and step records, the same in every store.

Step records are NamedTuples in the order of their columns, because one is built per step. JSON columns
(`error`, `detail`, `attempts`) stay text here; only those who need them parse them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, TypeVar

from durable_core.errors import CorruptRecord

R = TypeVar("R")

# Status of a step.
STARTED: Final = "STARTED"
COMMITTED: Final = "COMMITTED"
SKIPPED: Final = "SKIPPED"
FAILED: Final = "FAILED"  # also of a run

# Status of a run.
PENDING: Final = "PENDING"
RUNNING: Final = "RUNNING"
SUSPENDED: Final = "SUSPENDED"
COMPLETED: Final = "COMPLETED"
CANCELLED: Final = "CANCELLED"
PRUNING: Final = "PRUNING"
TOMBSTONE: Final = "TOMBSTONE"

CORRUPT: Final = "CORRUPT"  # only of a listed run whose header can't be read; never stored

RUN_STATUSES: Final = (PENDING, RUNNING, SUSPENDED, COMPLETED, FAILED, CANCELLED, PRUNING, TOMBSTONE)
STEP_STATUSES: Final = (STARTED, COMMITTED, SKIPPED, FAILED)
CHUNK_STATUSES: Final = (PENDING, RUNNING, COMPLETED, FAILED)
ACTIVE: Final = (PENDING, RUNNING, SUSPENDED)
ENDED: Final = (COMPLETED, FAILED, CANCELLED)
LISTED: Final = (*ACTIVE, *ENDED, PRUNING)  # what a listing shows; a tombstone is no run any more

STEP_KIND: Final = "step"
JOIN_KIND: Final = "join"  # of the record of a `parallel` that failed: no step, and not shown as one
MAP_KIND: Final = "map"
SLEEP_KIND: Final = "sleep"
EVENT_KIND: Final = "event"
ITEM_KIND: Final = "item"  # of a map's item that may have killed its process: no step, and not shown as one

MAX_ATTEMPTS_KEPT: Final = 10


class StepRecord(NamedTuple):
    """One step of a run: a row of `checkpoints`.

    Attributes:
        step_id: Unique in its run: scope path, function name, `#2` and so on for repeats.
        step_index: Ordinal of the call within its scope, from 0.
        status: STARTED, COMMITTED, SKIPPED or FAILED.
        input_hash: Hex SHA-256 of the canonical bytes of (step_id, args, kwargs).
        output_hash: Hex SHA-256 of the raw output bytes.
        output_data: The stored bytes, when inline.
        output_ref: The blob's name, when spilled.
        codec: `json`, `json+zstd` or `json+gzip`.
        started_at, committed_at: RFC 3339, UTC, milliseconds; `committed_at` is the time of any outcome.
        idempotency_key: Hex SHA-256 of (run_id, step_index, input_hash).
        attempt: How often the step has been begun.
        crashes: How many of those starts ended with the death of the process.
        attempt_id: New with each start: random, after a place that the step's first start gave it. They sort
            as the steps of the run were first begun.
        fence: Of the owner that wrote the record last.
        kind: step, map, sleep, event; join, of a `parallel` that failed; item, of a map.
        output_size: Raw bytes.
        error: JSON of an `ErrorInfo`: of the outcome FAILED, or of the last attempt that raised.
        detail: JSON: `errors` (attempts of this budget that raised), `retry_at_ms`; `interrupted`,
            `overran`, `left_running` (the body was stopped from outside; late; not even that); `unsure` (an
            owner of an earlier attempt may still be in its body); `forked`, `skipped_by_hand`.
        attempts: JSON list of the last 10 ended attempts: `attempt`, `fence`, `started_at`, `ended_at`,
            `error`.
    """

    run_id: str
    step_id: str
    step_index: int
    status: str
    input_hash: str | None
    output_hash: str | None
    output_data: bytes | None
    output_ref: str | None
    codec: str | None
    started_at: str | None
    committed_at: str | None
    idempotency_key: str
    attempt: int
    crashes: int
    attempt_id: str
    fence: int
    kind: str = STEP_KIND
    output_size: int | None = None
    error: str | None = None
    detail: str | None = None
    attempts: str | None = None

    def details(self) -> dict[str, Any]:
        """`detail` as a dict, empty when there is none."""
        return parse_object(self.detail, self.run_id, self.step_id)

    def error_info(self) -> dict[str, str]:
        """`error` as a dict, empty when there is none."""
        return parse_object(self.error, self.run_id, self.step_id)

    def history(self) -> list[dict[str, Any]]:
        """`attempts` as a list, oldest first."""
        found = _parsed(self.attempts, self.run_id, self.step_id) or []
        if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
            raise CorruptRecord(
                "the history of attempts isn't a list", run_id=self.run_id, step_id=self.step_id
            )
        return found


class Seen(NamedTuple):
    """A step record as last seen: what a conditional write compares."""

    status: str
    attempt_id: str


@dataclass(frozen=True, slots=True)
class RunHeader:
    """One run: a row of `runs`.

    Attributes:
        workflow: Name of the workflow.
        fingerprint: Of the workflow's source, as it was when the run was last acquired.
        input_hash: Of the inputs as they were passed: what a later call with the same run id is compared
            with.
        input_data, input_ref, input_codec, input_size, input_data_hash: The inputs, stored like a step's
            output.
        created_by: Random value of whoever created the run: how a lost reply to that is recognised.
        owner: Random value of whoever drives the run; None when nobody does.
        owner_process: JSON of the process that drives it, so that its death can be told.
        fence: The takeover number: 1 for the first owner, one more at each acquire.
        base_fence: Records with a fence up to this belong to an earlier life of the id.
        lease_until_ms: End of the lease, milliseconds since the epoch; 0 when nobody holds one.
        due_at_ms: When a worker should next look at the run: the end of the lease while it is driven, else a
            wake time, or when it was released.
        wake_count: How often the run was woken.
        crashes: Takeovers from dead owners that had finished nothing, in a row.
        gone: JSON: the fences of owners that never released the run, each with whether its process is dead
            for certain; the last 50. Beside them `keeps`, if recorded outputs are used although their inputs
            have changed.
        counts: JSON: steps by status, written when the run ends or is released.
        error: JSON: an error's code, type, message, traceback, and `steps`: ids of the failures that ended
            the run.
        expires_at_s: Of a tombstone under which nothing is left: when it may go, seconds since the epoch.
        idle_drives: Drives in a row that came to their deadline and had finished nothing.
    """

    run_id: str
    workflow: str
    fingerprint: str | None = None
    input_hash: str = ""
    input_data_hash: str | None = None
    input_data: bytes | None = None
    input_ref: str | None = None
    input_codec: str | None = None
    input_size: int | None = None
    status: str = PENDING
    created_by: str | None = None
    owner: str | None = None
    owner_process: str | None = None
    fence: int = 0
    base_fence: int = 0
    lease_until_ms: int = 0
    due_at_ms: int = 0
    wake_count: int = 0
    crashes: int = 0
    gone: str | None = None
    output_hash: str | None = None
    output_data: bytes | None = None
    output_ref: str | None = None
    output_codec: str | None = None
    output_size: int | None = None
    error: str | None = None
    counts: str | None = None
    session_id: str | None = None
    forked_from: str | None = None
    created_at: str = ""
    updated_at: str = ""
    ended_at: str | None = None
    expires_at_s: int | None = None
    idle_drives: int = 0

    def error_info(self) -> dict[str, Any]:
        """`error` as a dict, empty when there is none."""
        return parse_object(self.error, self.run_id)


class Segment(NamedTuple):
    """Outcomes of many map items, written together: a row of `segments`.

    Attributes:
        step_id: Of the map.
        chunk: Which part of the items, from 0.
        seq: The place in the chunk's log, from 0, without gaps.
        attempt_id: Random, new with each segment: how a lost reply is recognised.
        fence: Of the run's owner that wrote it.
        chunk_fence: Of the chunk's owner, where workers share the map.
        items: How many outcomes it holds; none: it claims the chunk.
        succeeded, failed: Items of the chunk that have so come out, up to and with this segment.
        data, codec, size, output_hash: The packed outcomes, stored like a step's output, always inline.
        refs: JSON list of the blobs that its outcomes point to; None without any.
        written_at: RFC 3339, UTC, milliseconds.
    """

    run_id: str
    step_id: str
    chunk: int
    seq: int
    attempt_id: str
    fence: int
    chunk_fence: int = 0
    items: int = 0
    succeeded: int = 0
    failed: int = 0
    data: bytes | None = None
    codec: str | None = None
    size: int | None = None
    output_hash: str | None = None
    refs: str | None = None
    written_at: str = ""

    def blob_refs(self) -> tuple[str, ...]:
        """`refs` as a tuple.

        Raises:
            CorruptRecord: It isn't a list of names.
        """
        found = _parsed(self.refs, self.run_id, self.step_id) or []
        if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
            raise CorruptRecord(
                "the blobs of a segment aren't a list", run_id=self.run_id, step_id=self.step_id
            )
        return tuple(found)


class Chunk(NamedTuple):
    """A part of a map's items that one worker has claimed: a row of `chunks`.

    Attributes:
        step_id: Of the map.
        chunk: Which part, from 0.
        fence: Of the map's record when it was last claimed.
        chunk_fence: The takeover number: 1 for the first owner, one more at each claim.
        status: RUNNING while somebody works on it; PENDING, handed back; COMPLETED, each item has an outcome;
            FAILED, it can't go on.
        owner: Random value of whoever works on it; None when nobody does.
        owner_process: JSON of its process, so that its death can be told.
        lease_until_ms: End of the lease, milliseconds since the epoch; 0 when nobody holds one.
        succeeded, failed: Its items that have so come out, as of the last time it was left.
        gone: JSON: the chunk fences of owners that never left it, each with whether its process is dead for
            certain; the last 50. Beside them `idle`, if not 0: how often in a row it was handed back at a
            deadline with nothing done.
        error: JSON of an `ErrorInfo`: why it FAILED.
        updated_at: RFC 3339, UTC, milliseconds: when it was claimed or left.
    """

    run_id: str
    step_id: str
    chunk: int
    fence: int
    chunk_fence: int
    status: str
    owner: str | None = None
    owner_process: str | None = None
    lease_until_ms: int = 0
    succeeded: int = 0
    failed: int = 0
    gone: str | None = None
    error: str | None = None
    updated_at: str = ""

    def error_info(self) -> dict[str, Any]:
        """`error` as a dict, empty when there is none."""
        return parse_object(self.error, self.run_id, self.step_id)


class Event(NamedTuple):
    """Something sent to a run: a row of `events`, kept until the run is pruned.

    Attributes:
        name: What it is waited for by.
        seq: The order in which events of that name were sent, from 0.
        event_id: The sender's: sent twice it is one event.
        fence: Of the run's life that it was sent to: its `base_fence` + 1.
        data, ref, codec, size, output_hash: The payload, stored like a step's output.
        sent_at: RFC 3339, UTC, milliseconds.
        taken_by: The attempt_id of the step that took it.
    """

    run_id: str
    name: str
    seq: int
    event_id: str
    fence: int
    data: bytes | None = None
    ref: str | None = None
    codec: str | None = None
    size: int | None = None
    output_hash: str | None = None
    sent_at: str = ""
    taken_by: str | None = None


class Child(NamedTuple):
    """A record under a run's header, as pruning sees it.

    Attributes:
        kind: step, segment, event or chunk.
        name: The step's id or the event's name.
        chunk, seq: The rest of the key; 0 where the kind has none.
        fence: Nothing above the pruner's own is deleted.
        refs: The blobs that it points to.
        size_bytes: Of its output, outcomes or payload before compression; for people.
    """

    kind: str
    name: str
    chunk: int
    seq: int
    fence: int
    refs: tuple[str, ...] = ()
    size_bytes: int = 0


class Unreadable(NamedTuple):
    """A record that isn't one that we wrote, as far as can be told.

    Attributes:
        kind: step, segment or event.
        name: The step's id or the event's name.
        place: Which of the segments or events it is; empty for steps.
        why: One clause, for a person.
    """

    kind: str
    name: str
    place: str
    why: str


@dataclass(frozen=True, slots=True)
class Reply(Generic[R]):
    """What a conditional write came to.

    Attributes:
        ok: Whether it was applied.
        row: Refused: the record in the way, None if it is gone. Applied: the record as it is now, where it is
            asked for.
    """

    ok: bool
    row: R | None = None


def parse_object(text: str | None, run_id: str | None = None, step_id: str | None = None) -> dict[str, Any]:
    """A JSON object from a text column; empty for None.

    Raises:
        CorruptRecord: It is something else; names the run and step.
    """
    found = _parsed(text, run_id, step_id) or {}
    if not isinstance(found, dict):
        raise CorruptRecord("a JSON column isn't an object", run_id=run_id, step_id=step_id)
    return found


def _parsed(text: str | None, run_id: str | None, step_id: str | None) -> object:
    try:
        return json.loads(text) if text else None
    except (ValueError, TypeError, RecursionError) as error:
        raise CorruptRecord(
            f"a JSON column can't be read: {error}", run_id=run_id, step_id=step_id
        ) from error
