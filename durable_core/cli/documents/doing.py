"""`run`, `resume`, `worker`, `recover`; what changes runs, carries them, checks them, lets them go."""

from __future__ import annotations

from typing import Any

from typing_extensions import TypedDict

from durable_core.cli.documents.runs import Error  # noqa: TC001 - read when documents are checked


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
    """`durable worker`: how many runs and chunks came to what."""

    runs: dict[str, int]
    chunks: dict[str, int]


class RecoveredRun(TypedDict):
    """A run that was gone on with, or left."""

    run_id: str
    workflow: str
    status: str
    error: Error | None


class RecoverDocument(TypedDict):
    """`durable recover`."""

    runs: list[RecoveredRun]
    chunks: dict[str, int]
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
    """A run that went, or would; `damage` where its header can't be read, and its status is CORRUPT."""

    run_id: str
    workflow: str
    status: str
    ended_at: str | None
    fence: int
    records: int
    blobs: int
    size_bytes: int
    damage: str | None


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
    size_bytes: int
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
    checkpoints: int
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
