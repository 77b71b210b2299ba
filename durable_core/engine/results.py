"""What callers get to see of runs and steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from durable_core.engine.failure import ERROR_PARTS
from durable_core.errors import CorruptRecord, DurableError, RunCancelled, RunFailed, RunNotFinished
from durable_core.map_reference import recorded_map
from durable_core.map_result import MapResult
from durable_core.records import (
    CANCELLED,
    COMMITTED,
    COMPLETED,
    FAILED,
    MAP_KIND,
    RunHeader,
    StepRecord,
    parse_object,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import TypeAdapter

    from durable_core.engine.outputs import StoredOutcomes
    from durable_core.engine.values import Values

R = TypeVar("R")


class RunResult(Generic[R]):
    """What a run came to.

    Attributes:
        run_id: The run.
        status: COMPLETED, or how far it is.
        counts: Steps by status.
    """

    __slots__ = ("_output", "counts", "run_id", "status")

    def __init__(self, run_id: str, status: str, output: R | None, counts: Mapping[str, int]) -> None:
        self.run_id = run_id
        self.status = status
        self.counts = dict(counts)
        self._output = output

    @property
    def output(self) -> R:
        """What the workflow returned.

        Raises:
            RunNotFinished: It hasn't.
        """
        if self.status != COMPLETED:
            raise RunNotFinished(f"the run is {self.status} and has no output yet", run_id=self.run_id)
        return self._output  # type: ignore[return-value]  # COMPLETED: it is the workflow's

    def __repr__(self) -> str:
        return f"RunResult(run_id={self.run_id!r}, status={self.status!r}, counts={self.counts!r})"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """A run as `get` and `list` show it. Times are RFC 3339, UTC; sizes are raw bytes.

    Attributes:
        owner_process: JSON of the process that drives it, if any.
        fence: How often the run has been acquired in all its lives.
        crashes: Takeovers in a row from owners that had finished nothing.
        counts: Steps by status, as of the last time the run was left.
        error: What ended the run, if it failed: code, type, message, traceback; `steps`: the failed steps it
            came from.
    """

    run_id: str
    workflow: str
    status: str
    fence: int
    crashes: int
    owner_process: str | None
    lease_until_ms: int
    fingerprint: str | None
    input_hash: str
    input_size: int | None
    output_size: int | None
    output_hash: str | None
    session_id: str | None
    forked_from: str | None
    created_at: str
    updated_at: str
    ended_at: str | None
    counts: Mapping[str, int]
    error: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class StepView:
    """A step as `steps` shows it.

    Attributes:
        record: As it is stored.
    """

    record: StepRecord = field(repr=False)
    _values: Values = field(repr=False)
    _outcomes: StoredOutcomes = field(repr=False)

    def __repr__(self) -> str:
        return f"StepView(step_id={self.step_id!r}, status={self.status!r})"

    @property
    def step_id(self) -> str:
        """The step."""
        return self.record.step_id

    @property
    def status(self) -> str:
        """STARTED, COMMITTED, SKIPPED or FAILED."""
        return self.record.status

    @property
    def attempts(self) -> list[dict[str, Any]]:
        """The ended attempts before the last, oldest first; at most ten."""
        return self.record.history()

    @property
    def error(self) -> dict[str, str]:
        """Code, type, message and traceback of what the step, or its last attempt, raised; else empty."""
        return self.record.error_info()

    async def output(self, adapter: TypeAdapter[Any] | None = None) -> object:
        """The output, read and checked now.

        Args:
            adapter: Of a type to restore it as.

        Raises:
            RunNotFinished: The step has none.
            CorruptRecord, MissingBlob, UnknownType: It can't be read back.
        """
        record = self.record
        if record.output_hash is None:
            raise RunNotFinished("the step has no output", run_id=record.run_id, step_id=record.step_id)
        stored = (
            record.codec, record.output_data, record.output_ref, record.output_size, record.output_hash
        )  # fmt: skip
        try:
            if record.kind == MAP_KIND and record.status == COMMITTED:
                raw = await self._values.load(*stored)
                return MapResult(recorded_map(record, raw)[0], self._outcomes, adapter)
            with self._outcomes.here():
                return await self._values.restore(*stored, adapter)
        except DurableError as error:
            error.run_id, error.step_id = record.run_id, record.step_id
            raise


def view_of(header: RunHeader) -> RunView:
    """A header as callers see it."""
    shared = {
        name: getattr(header, name)
        for name in RunView.__dataclass_fields__
        if name not in ("counts", "error")
    }
    return RunView(**shared, counts=counts_of(header), error=_readable(header.error))


def counts_of(header: RunHeader) -> dict[str, int]:
    """Steps by status, as the header has them."""
    found = _readable(header.counts)
    return {status: count for status, count in found.items() if isinstance(count, int)}


async def result_of(
    header: RunHeader, values: Values, outcomes: StoredOutcomes, adapter: TypeAdapter[Any] | None
) -> RunResult[Any]:
    """What an ended run came to.

    Raises:
        RunFailed, RunCancelled: As it ended.
        CorruptRecord, MissingBlob, UnknownType: Its output can't be read back.
    """
    if header.status == FAILED:
        found = header.error_info()
        raise RunFailed(header.run_id, {part: str(found.get(part, "")) for part in ERROR_PARTS})
    if header.status == CANCELLED:
        raise RunCancelled("the run was cancelled", run_id=header.run_id)
    output = None
    if header.status == COMPLETED:
        try:
            with outcomes.here():
                output = await values.restore(
                    header.output_codec,
                    header.output_data,
                    header.output_ref,
                    header.output_size,
                    header.output_hash,
                    adapter,
                )
        except DurableError as error:
            error.run_id = header.run_id
            raise
    return RunResult(header.run_id, header.status, output, counts_of(header))


def _readable(text: str | None) -> dict[str, Any]:
    """A JSON column for people: a damaged one must not hide the rest of the row."""
    try:
        return parse_object(text)
    except CorruptRecord:
        return {"code": "CORRUPT_RECORD", "message": "this part of the record can't be read"}
