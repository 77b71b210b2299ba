"""Whether the records of a run's steps are ones that we write, and agree with each other."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from durable_core.clock import epoch_ms
from durable_core.engine.verify_header import SHA256, is_time
from durable_core.engine.verify_values import StoredValue
from durable_core.errors import CorruptRecord
from durable_core.identity import place_of
from durable_core.map_reference import MapReference, recorded_map
from durable_core.records import (
    COMMITTED,
    EVENT_KIND,
    FAILED,
    ITEM_KIND,
    JOIN_KIND,
    MAP_KIND,
    MAX_ATTEMPTS_KEPT,
    SLEEP_KIND,
    STARTED,
    STEP_KIND,
    STEP_STATUSES,
)

if TYPE_CHECKING:
    from durable_core.engine.findings import Findings
    from durable_core.engine.verify_header import Life
    from durable_core.engine.verify_values import ValueCheck
    from durable_core.records import StepRecord

_KINDS: Final = (STEP_KIND, JOIN_KIND, MAP_KIND, SLEEP_KIND, EVENT_KIND, ITEM_KIND)
_STEP_ID: Final = re.compile(r"[A-Za-z0-9._:@+=/#\[\]!-]{1,8192}")
_CLOCK_STEP_MS: Final = 24 * 3600 * 1000  # by which a clock may have been set back during a step


class MapFacts(NamedTuple):
    """What its segments are judged by.

    Attributes:
        reference: Of a map that has committed; None of one that hasn't, or whose record is damaged.
        is_open: Whether it hasn't committed.
    """

    reference: MapReference | None
    is_open: bool


class StepCheck:
    """Takes in the steps of one run, in the order of their ids.

    Args:
        life: Of the run.
        findings: Where damage goes.
        values: Checks outputs.

    Attributes:
        statuses: How many steps of each status the header is to have counted.
        maps: By id.
        waits: The places of steps that wait for an event, or have: who may have taken one.
        takers: By attempt, the committed waits that an event must have come to.
        damaged: How many records are there that can't be understood.
    """

    def __init__(self, life: Life, findings: Findings, values: ValueCheck) -> None:
        self._life = life
        self._findings = findings
        self._values = values
        self.statuses: Counter[str] = Counter()
        self.maps: dict[str, MapFacts] = {}
        self.waits: set[str] = set()
        self.takers: dict[str, str] = {}
        self.damaged = 0
        self._scopes: dict[str, list[int]] = {}  # calls with a record, and the last one's ordinal

    async def check(self, record: StepRecord) -> bool:
        """Checks one record; gives whether it is of this life."""
        life = self._life
        if record.fence <= life.base_fence:
            self._findings.notice("late-record", record.step_id, "it is of an earlier life of the run's id")
            return False
        if life.fence is not None and record.fence > life.fence:
            told = f"it has fence {record.fence}, and the run was never under one above {life.fence}"
            self._damage("future-fence", record, told)
        if record.status not in STEP_STATUSES or record.kind not in _KINDS:
            told = f"it has status {record.status!r:.40} and kind {record.kind!r:.40}"
            self._damage("step-unknown", record, told)
            self.note_damaged(record.step_id)
            return True
        details = self._json(record)
        self._check_shape(record)
        self._check_identity(record)
        self._check_times(record)
        self._check_place(record)
        if record.output_data is not None or record.output_ref is not None or record.status == COMMITTED:
            await self._check_output(record)
        elif record.kind == MAP_KIND:
            self.maps[record.step_id] = MapFacts(None, is_open=True)
        if record.kind == EVENT_KIND:
            self._note_wait(record, details)
        if record.kind != JOIN_KIND and "[" not in record.step_id:
            self.statuses[record.status] += 1
        return True

    def note_damaged(self, step_id: str) -> None:
        """A record is there, and can't be understood: it is no news that others can't be held to it."""
        self.damaged += 1
        self.maps[step_id] = MapFacts(None, is_open=False)

    def finish(self, *, all_there: bool) -> None:
        """Tells of calls that left no record, where that may mean that one is gone.

        A step that was called, and stopped before it began, has left none either.
        """
        for scope, (count, last) in self._scopes.items():
            if last + 1 > count and not all_there:
                told = f"{last + 1 - count} of {last + 1} calls have no record"
                self._findings.notice("calls-missing", scope or None, told)

    # ---- Parts of a record ----

    def _json(self, record: StepRecord) -> dict[str, Any]:
        details: dict[str, Any] = {}
        try:
            details = record.details()
            record.error_info()
            self._check_history(record, record.history())
        except CorruptRecord as error:
            self._damage("step-json", record, error.message)
        return details

    def _check_history(self, record: StepRecord, history: list[dict[str, Any]]) -> None:
        """Each attempt but the last is told of, the newest ten of them."""
        numbers = [one.get("attempt") for one in history]
        fences = [one.get("fence") for one in history]
        least = 0 if record.kind == JOIN_KIND else min(record.attempt - 1, MAX_ATTEMPTS_KEPT)
        sound = (
            all(type(one) is int for one in (*numbers, *fences))
            and numbers == sorted(numbers)  # type: ignore[type-var]  # whole numbers, as was just seen
            and (self._life.is_fork or fences == sorted(fences))  # type: ignore[type-var]
            and all(1 <= number <= record.attempt for number in numbers)  # type: ignore[operator]
            and all(is_time(one.get(name)) for one in history for name in ("started_at", "ended_at"))
            and least <= len(history) <= MAX_ATTEMPTS_KEPT
        )
        if not sound:
            self._damage("history", record, f"its history isn't that of {record.attempt} attempts")

    def _check_shape(self, record: StepRecord) -> None:
        told = _contradiction(record)
        if told is not None:
            self._damage("step-contradicts", record, f"it is {record.status}, and {told}")
        if record.attempt < 1 or not 0 <= record.crashes <= record.attempt or not record.attempt_id:
            self._damage("step-contradicts", record, f"attempt {record.attempt}, crashes {record.crashes}")

    def _check_identity(self, record: StepRecord) -> None:
        life = self._life
        hashes = (record.idempotency_key, record.input_hash, record.output_hash)
        if not all(one is None or SHA256.fullmatch(one) for one in hashes) or record.step_index < 0:
            self._damage("step-identity", record, "a hash, its key or its index can't be one")
            return
        by_key = record.kind == ITEM_KIND and record.step_id.rpartition("[")[2].startswith("k-")
        hashed = record.input_hash
        if hashed is None or by_key or not life.knows_all_keys:
            return
        if not any(of.key(record.step_index, hashed) == record.idempotency_key for of in life.keys):
            told = "its key isn't that of its index and input: one of them was altered"
            self._damage("step-identity", record, told)

    def _check_times(self, record: StepRecord) -> None:
        started, ended = record.started_at, record.committed_at
        if started is None or not is_time(started) or not is_time(ended):
            self._damage("step-time", record, f"it ran from {started!r:.40} to {ended!r:.40}")
        elif record.status not in (COMMITTED, FAILED) or ended is None:
            return  # another machine may have written the end, by its clock
        elif epoch_ms(ended) < epoch_ms(started) - _CLOCK_STEP_MS:
            self._damage("step-time", record, f"it ended at {ended}, and started at {started}")

    def _check_place(self, record: StepRecord) -> None:
        """The map of each item that a step is in has a record of its own, which comes before."""
        step_id = record.step_id
        if _STEP_ID.fullmatch(step_id) is None:
            self._damage("step-identity", record, "no step can have that id")
        for at, char in enumerate(step_id) if "[" in step_id else ():
            if char == "[" and step_id[:at] not in self.maps:
                self._damage("map-missing", record, f"its map {step_id[:at]!r:.200} has no record")
        if record.kind != ITEM_KIND:
            counted = self._scopes.setdefault(step_id.rpartition("/")[0], [0, -1])
            counted[0] += 1
            counted[1] = max(counted[1], record.step_index)

    async def _check_output(self, record: StepRecord) -> None:
        value = StoredValue(
            record.step_id, "output", record.codec, record.output_data, record.output_ref,
            record.output_size, record.output_hash,
        )  # fmt: skip
        if record.kind != MAP_KIND or record.status != COMMITTED:
            await self._values.check(value)
            if record.kind == MAP_KIND:
                self.maps[record.step_id] = MapFacts(None, is_open=True)
            return
        raw, reference = await self._values.load(value), None
        try:
            reference = recorded_map(record, raw)[0] if raw is not None else None
        except CorruptRecord as error:
            self._damage("map-damaged", record, error.message)
        self.maps[record.step_id] = MapFacts(reference, is_open=False)

    def _note_wait(self, record: StepRecord, details: dict[str, Any]) -> None:
        self.waits.add(place_of(record.attempt_id))
        if record.status == COMMITTED and not details.get("timed_out") and not details.get("forked"):
            self.takers[record.attempt_id] = record.step_id

    def _damage(self, kind: str, record: StepRecord, message: str) -> None:
        self._findings.damage(kind, record.step_id, message)


def _contradiction(record: StepRecord) -> str | None:
    """What a record has that one of its status can't have, or lacks."""
    parts = (record.output_hash, record.codec, record.output_size)
    has_output = record.output_data is not None or record.output_ref is not None
    if has_output != all(part is not None for part in parts) or has_output != any(
        part is not None for part in parts
    ):
        return "its output, or what is recorded of it, is there in part"
    if record.status == STARTED and has_output:
        return "has an output"
    if record.status == COMMITTED and not has_output:
        return "has no output"
    if record.status != STARTED and record.committed_at is None:
        return "has no time of its outcome"
    if (record.status == FAILED) != (record.error is not None) and record.status != STARTED:
        return "has no error" if record.error is None else "has an error"
    return "has an output" if record.status == FAILED and has_output else None
