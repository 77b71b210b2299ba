"""What `--json` gives, command by command: stable, so that programs may rely on it.

A name once here keeps its meaning and its type; names are only ever added. Times are RFC 3339 in UTC, sizes
are bytes before compression, and what isn't known is null, never left out. Errors are an `ErrorDocument` on
standard output, whatever the command, beside the exit code.
"""

from __future__ import annotations

from typing import Any

from typing_extensions import TypedDict


class Error(TypedDict):
    """An error of the command itself."""

    code: str
    message: str
    remedy: str | None
    run_id: str | None
    step_id: str | None


class ErrorDocument(TypedDict):
    """What each command gives when it fails."""

    error: Error


# ---- Runs and steps ----


class RecordedError(TypedDict):
    """What ended a step or an item."""

    code: str | None
    type: str | None
    message: str | None


class ErrorWithTraceback(RecordedError):
    """The same, with where it was raised."""

    traceback: str | None


class RunError(RecordedError):
    """What ended a run, and the steps that it came from."""

    steps: list[str] | None


class RunErrorWithTraceback(RunError):
    """The same, with where it was raised."""

    traceback: str | None


class Driver(TypedDict):
    """Who drives a run: driving, silent (its lease is over), or dead for certain."""

    process: str
    state: str
    lease_left_s: float


class Run(TypedDict):
    """A run, without its error."""

    run_id: str
    workflow: str
    status: str
    driver: Driver | None
    created_at: str
    updated_at: str
    ended_at: str | None
    wakes_at: str | None
    took_ms: int | None
    counts: dict[str, int]
    fence: int
    crashes: int
    fingerprint: str | None
    input_hash: str
    input_size_bytes: int | None
    output_hash: str | None
    output_size_bytes: int | None
    session_id: str | None
    forked_from: str | None
    corrupt: str | None


class ListedRun(Run):
    """A run as `list` has it."""

    error: RunError | None


class ShownRun(Run):
    """A run as `show` has it."""

    error: RunErrorWithTraceback | None


class Attempt(TypedDict):
    """An attempt that has ended."""

    attempt: int
    fence: int
    started_at: str
    ended_at: str | None
    error: str | None


class Items(TypedDict):
    """How far a map is."""

    total: int | None
    done: int
    succeeded: int
    failed: int


class Step(TypedDict):
    """A step, without its error; `state` says what STARTED means: running, waiting, retrying, in doubt."""

    step_id: str
    step_index: int
    kind: str
    status: str
    state: str | None
    attempt: int
    crashes: int
    started_at: str | None
    committed_at: str | None
    took_ms: int | None
    output_size_bytes: int | None
    output_hash: str | None
    codec: str | None
    stored_in: str | None
    input_hash: str | None
    idempotency_key: str
    fence: int
    retry_at_ms: int | None
    attempts: list[Attempt]
    items: Items | None
    corrupt: str | None


class ListedStep(Step):
    """A step in the list of a run's."""

    error: RecordedError | None


class ShownStep(Step):
    """A step by itself; `output` is null where there is none, as where it is null: see `output_hash`."""

    error: ErrorWithTraceback | None
    output: Any


class ShownItem(TypedDict):
    """An item of a map."""

    step_id: str
    item_index: int | None
    item_key: str | None
    status: str
    attempt: int | None
    error: ErrorWithTraceback | None
    output: Any


class StepWithTraceback(Step):
    """A step of an item."""

    error: ErrorWithTraceback | None


# ---- Looking ----


class ListDocument(TypedDict):
    """`durable list`: one page, and what `--after` takes for the next."""

    runs: list[ListedRun]
    count: int
    more: bool
    next: str | None


class ShowDocument(TypedDict):
    """`durable show RUN`."""

    run: ShownRun
    steps: list[ListedStep]


class ShowStepDocument(TypedDict):
    """`durable show RUN --step ID`."""

    run_id: str
    step: ShownStep


class ShowItemDocument(TypedDict):
    """`durable show RUN --step 'MAP[ITEM]'`."""

    run_id: str
    item: ShownItem
    steps: list[StepWithTraceback]


class ChangedStep(TypedDict):
    """A step that stands otherwise than before."""

    step_id: str
    kind: str
    status: str
    state: str | None
    committed_at: str | None
    items: Items | None


class WatchLine(TypedDict):
    """`durable watch`: one such document a line."""

    at: str
    run_id: str
    status: str
    counts: dict[str, int]
    changed: list[ChangedStep]


class ReportDocument(TypedDict):
    """`durable report -o FILE`."""

    run_id: str
    path: str
    steps: int
    size_bytes: int


# ---- Costs ----


class Bill(TypedDict):
    """Requests, what they are billed as, and dollars."""

    writes: float
    write_units: float
    reads: float
    read_units: float
    s3_puts: float
    s3_gets: float
    usd: float


class Stored(TypedDict):
    """What lies there now."""

    table_bytes: int
    s3_bytes: int
    usd_per_month: float


class Part(Bill):
    """All steps of one name, or a map."""

    kind: str
    name: str
    count: int


class EstimateDocument(TypedDict):
    """A run over more items, scaled from the run that `run_id` names."""

    workflow: str
    items: int
    items_then: int
    fixed: Bill
    per_item: Bill
    bill: Bill


class CostDocument(TypedDict):
    """`durable cost`; `estimate` is null unless asked for."""

    run_id: str
    region: str
    as_of: str
    prices: dict[str, float]
    bill: Bill
    stored: Stored
    parts: list[Part]
    estimate: EstimateDocument | None


# ---- Driving and repairing ----


class ResultDocument(TypedDict):
    """`durable run` and `durable resume`."""

    run_id: str
    status: str
    output: Any
    counts: dict[str, int]


class RecordedDocument(TypedDict):
    """`durable run --detach`, `durable cancel`."""

    run_id: str
    status: str
    counts: dict[str, int]


class WorkerDocument(TypedDict):
    """`durable worker`: how many runs came to what."""

    runs: dict[str, int]


class RecoveredRun(TypedDict):
    """A run that was gone on with, or left."""

    run_id: str
    workflow: str
    status: str
    error: Error | None


class RecoverDocument(TypedDict):
    """`durable recover`."""

    runs: list[RecoveredRun]
    count: int


class SignalDocument(TypedDict):
    """`durable signal`."""

    run_id: str
    name: str
    event_id: str


class SkipDocument(TypedDict):
    """`durable skip`; `output` as it was given, null where it wasn't."""

    run_id: str
    step_id: str
    status: str
    output: Any


class ForkDocument(TypedDict):
    """`durable fork`: which steps are taken over, which not, and what runs first; a dry run has no id."""

    run_id: str | None
    forked_from: str
    kept: list[str]
    left: list[str]
    first: str | None
    dry_run: bool


class PrunedRun(TypedDict):
    """A run that went, or would."""

    run_id: str
    workflow: str
    status: str
    ended_at: str | None
    fence: int
    records: int
    blobs: int


class LeftRun(TypedDict):
    """A run that stays, and why."""

    run_id: str
    status: str
    why: str


class Swept(TypedDict):
    """What `--sweep` came to."""

    dry_run: bool
    records: int
    blobs: int
    orphans: int
    expired: int
    purged: int
    left: list[LeftRun]


class PruneDocument(TypedDict):
    """`durable prune`."""

    dry_run: bool
    runs: list[PrunedRun]
    count: int
    records: int
    blobs: int
    left: list[LeftRun]
    swept: Swept | None


class Finding(TypedDict):
    """Something that verifying has found: damage, leftover or notice."""

    kind: str
    severity: str
    run_id: str
    where: str | None
    message: str
    repair: str | None
    is_repaired: bool


class VerifiedRun(TypedDict):
    """A run that was verified; no root hash where a record can't be read."""

    run_id: str
    workflow: str | None
    status: str | None
    root_hash: str | None
    steps: int
    segments: int
    events: int
    chunks: int
    blobs: int
    findings: list[Finding]
    damaged: int
    leftovers: int
    notices: int
    is_sound: bool


class VerifyDocument(TypedDict):
    """`durable verify`."""

    runs: list[VerifiedRun]
    count: int
    damaged: int


class CarriedRun(TypedDict):
    """A run in a file, or out of one."""

    run_id: str
    status: str
    root_hash: str
    steps: int
    segments: int
    events: int
    chunks: int
    blobs: int


class ExportDocument(CarriedRun):
    """`durable export`."""

    path: str
    size_bytes: int


class ImportDocument(CarriedRun):
    """`durable import`."""

    workflow: str
    dry_run: bool


class InitDocument(TypedDict):
    """`durable init`."""

    store: str
    dry_run: bool
    changes: list[str]


class Check(TypedDict):
    """Something that was examined: ok, warn or fail, and what to do about it."""

    name: str
    state: str
    message: str
    remedy: str | None


class DoctorDocument(TypedDict):
    """`durable doctor`."""

    store: str
    checks: list[Check]
    failed: int
    warned: int


# ---- Checkpoints of agents ----


class Checkpoint(TypedDict):
    """A checkpoint without its contents."""

    session_id: str
    seq: int
    agent_id: str
    step_id: str
    created_at: str
    format: str
    size_bytes: int
    metadata: Any
    corrupt: str | None


class CheckpointWithContents(Checkpoint):
    """The same with its state, and what its agent was called with."""

    state: Any
    inputs: Any


class Session(TypedDict):
    """A session of agents."""

    session_id: str
    checkpoints: int
    agents: int
    size_bytes: int
    first_at: str | None
    last_at: str | None


class SessionsDocument(TypedDict):
    """`durable checkpoint list`."""

    sessions: list[Session]
    count: int
    more: bool


class CheckpointsDocument(TypedDict):
    """`durable checkpoint list SESSION`."""

    session_id: str
    checkpoints: list[Checkpoint]
    count: int
    more: bool


class CheckpointDocument(TypedDict):
    """`durable checkpoint show`."""

    checkpoint: CheckpointWithContents


class CheckpointPruneDocument(TypedDict):
    """`durable checkpoint prune`."""

    session_id: str
    removed: int
    size_bytes: int
    kept: int
    dry_run: bool


class ResumePointDocument(Checkpoint):
    """`durable checkpoint resume`: where a session goes on from, and the command that does."""

    next: str
    dry_run: bool


class ResumePointWithContents(ResumePointDocument):
    """The same with `--dry-run`, which prints the state."""

    state: Any
    inputs: Any
