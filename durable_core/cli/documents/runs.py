"""Errors; runs, steps and items; `list`, `show`, `watch`, `report`, `cost`."""

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
