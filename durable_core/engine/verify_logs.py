"""Whether the segments of a run's maps are whole, in order, and hold what their maps committed."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final, NamedTuple

from durable_core.engine.verify_header import SHA256
from durable_core.engine.verify_values import StoredValue
from durable_core.errors import CorruptRecord
from durable_core.item_table import ItemTable, Place
from durable_core.outcomes import BLOB, ERROR, Outcome, lines_of, outcomes_of
from durable_core.records import CHUNK_STATUSES, RUNNING, parse_object

if TYPE_CHECKING:
    from collections.abc import Sequence

    from durable_core.engine.findings import Findings
    from durable_core.engine.root_hash import RootHash
    from durable_core.engine.verify_header import Life
    from durable_core.engine.verify_steps import MapFacts
    from durable_core.engine.verify_values import ValueCheck
    from durable_core.map_reference import MapReference
    from durable_core.records import Chunk, Segment

_MOST_ITEMS: Final = 100_000_000  # of a map that can be looked through here
_MOST_PLACES: Final = 100_000_000
_PLACES: Final = (len(Place._fields), 4)  # of an item's outcome; of a chunk in its manifest
_MARK: Final = re.compile("[0-9a-f]{16}")


class _Log(NamedTuple):
    """Which log is being read."""

    step_id: str
    chunk: int


class LogCheck:
    """Takes in the segments of one run, in the order of their keys.

    Args:
        life: Of the run.
        maps: What the records of its maps say.
        findings: Where damage goes.
        values: Checks large outputs.
        root: Takes in the outcomes of maps that haven't committed.
    """

    def __init__(
        self,
        life: Life,
        maps: dict[str, MapFacts],
        findings: Findings,
        values: ValueCheck,
        root: RootHash | None,
    ) -> None:
        self._life = life
        self._maps = maps
        self._findings = findings
        self._values = values
        self._root = root
        self._log: _Log | None = None
        self._next_seq = 0
        self._fence = 0
        self._items: _CommittedItems | None = None
        self._last_seqs: dict[int, int] = {}  # by chunk of the map that is being read
        self._seen: set[str] = set()

    async def check(self, segment: Segment) -> None:
        """Checks one segment."""
        if not (0 <= segment.chunk < _MOST_PLACES and 0 <= segment.seq < _MOST_PLACES):
            self._damage("segment-damaged", segment, "there is no such place")
            return
        log = _Log(segment.step_id, segment.chunk)
        if log != self._log:
            if self._log is None or log.step_id != self._log.step_id:
                self._end_map()
                self._begin_map(log.step_id)
            self._log, self._next_seq, self._fence = log, 0, 0
        self._check_order(segment)
        if segment.fence <= self._life.base_fence:
            return
        facts = self._maps.get(segment.step_id)
        if facts is None:
            self._damage("segment-without-map", segment, "its map has no record")
            return
        try:
            if segment.items:
                await self._check_outcomes(segment, facts)
            elif segment.data is not None:
                self._check_places(segment)
        except CorruptRecord as error:
            self._damage("segment-damaged", segment, error.message)

    def finish(self) -> None:
        """After the last one."""
        self._end_map()
        for step_id, facts in self._maps.items():
            reference = facts.reference
            if (
                reference is not None
                and step_id not in self._seen
                and any(pin >= 0 for pin in reference.pins)
            ):
                self._findings.damage("segment-missing", step_id, "the map has committed, and has none")

    # ---- One map, one log ----

    def _begin_map(self, step_id: str) -> None:
        self._items, self._last_seqs = None, {}
        self._seen.add(step_id)
        facts = self._maps.get(step_id)
        reference = facts.reference if facts is not None else None
        if reference is not None and reference.succeeded + reference.failed <= _MOST_ITEMS:
            self._items = _CommittedItems(reference)

    def _end_map(self) -> None:
        if self._log is None or self._items is None:
            return
        told = self._pinned() or self._items.contradiction()
        if told is not None:
            self._findings.damage("map-contradicts", self._log.step_id, told)

    def _pinned(self) -> str | None:
        """What of the logs that the map committed isn't there, or is there besides; None if they are whole.

        Behind the last chunk lies, of a map that workers shared, where its chunks were.
        """
        pins = self._items.reference.pins if self._items is not None else ()
        for chunk, pin in enumerate(pins):
            if self._last_seqs.get(chunk, -1) < pin:
                count = self._last_seqs.get(chunk, -1) + 1
                return f"it committed segments of chunk {chunk} up to {pin}, and {count} are there"
        beyond = max(self._last_seqs, default=0)
        return f"it has a chunk {beyond} that it hasn't committed" if beyond > len(pins) else None

    def _check_order(self, segment: Segment) -> None:
        if segment.seq != self._next_seq:
            told = f"there is none from {self._next_seq} to {segment.seq - 1}"
            self._damage("segment-missing", segment, told)
        if segment.fence < self._fence:
            told = f"it has fence {segment.fence}, and one before it {self._fence}"
            self._damage("segment-out-of-order", segment, told)
        if self._life.fence is not None and segment.fence > self._life.fence:
            told = f"it has fence {segment.fence}, and the run was never under one above {self._life.fence}"
            self._damage("future-fence", segment, told)
        self._next_seq, self._fence = segment.seq + 1, max(self._fence, segment.fence)
        self._last_seqs[segment.chunk] = segment.seq

    async def _check_outcomes(self, segment: Segment, facts: MapFacts) -> None:
        outcomes, refs = outcomes_of(segment), []
        for outcome in outcomes:
            _check_sound(outcome)
            if outcome.kind == BLOB:
                pointer = outcome.pointer()
                refs.append(pointer.ref)
                where = f"{segment.step_id}[{outcome.item_index}]"
                await self._values.check(
                    StoredValue(
                        where, "output", pointer.codec, None, pointer.ref, pointer.size, pointer.output_hash
                    )
                )
            if self._root is not None and facts.is_open:
                self._root.outcome(segment.step_id, outcome)
        if sorted(refs) != sorted(segment.blob_refs()):
            self._damage("segment-damaged", segment, "its list of blobs isn't that of its outcomes")
        good = sum(outcome.succeeded for outcome in outcomes)
        if not (good <= segment.succeeded and len(outcomes) - good <= segment.failed):
            self._damage("segment-damaged", segment, "it counts fewer items than it holds")
        if self._items is not None:
            self._items.take_in(segment, outcomes)

    def _check_places(self, segment: Segment) -> None:
        """A segment without outcomes that holds something: the order of the items, or where chunks are."""
        try:
            lines = [json.loads(line) for line in lines_of(segment)]
        except (ValueError, RecursionError) as error:
            raise CorruptRecord(f"the places of items can't be read: {error}") from error
        if not all(isinstance(line, list) and len(line) in _PLACES for line in lines) or not all(
            type(part) is int and part >= 0 for line in lines for part in line
        ):
            raise CorruptRecord("the places of items can't be read")
        if self._items is not None and segment.chunk == 0 and self._items.is_of_order(segment.seq):
            self._items.order += [Place._make(line) for line in lines if len(line) == len(Place._fields)]

    def _damage(self, kind: str, segment: Segment, message: str) -> None:
        place = f"segment {segment.seq} of chunk {segment.chunk}"
        self._findings.damage(kind, segment.step_id, f"{place}: {message}")


def check_chunk(chunk: Chunk, life: Life, maps: dict[str, MapFacts], findings: Findings) -> None:
    """Who works on a part of a map. Nothing is lost with it: the log says what is done."""
    if chunk.fence <= life.base_fence:
        return

    def damage(kind: str, message: str) -> None:
        findings.damage(kind, chunk.step_id, f"chunk {chunk.chunk}: {message}")

    if chunk.status not in CHUNK_STATUSES:
        damage("chunk-contradicts", f"it has the status {chunk.status!r:.40}")
    if chunk.step_id not in maps:
        damage("chunk-without-map", "its map has no record")
    if life.fence is not None and chunk.fence > life.fence:
        damage(
            "future-fence", f"it has fence {chunk.fence}, and the run was never under one above {life.fence}"
        )
    if (chunk.owner is None and chunk.status == RUNNING) or min(chunk.succeeded, chunk.failed) < 0:
        damage("chunk-contradicts", f"it is {chunk.status}, with the owner {chunk.owner!r:.40}")
    for name in ("gone", "error"):
        try:
            parse_object(getattr(chunk, name), chunk.run_id, chunk.step_id)
        except CorruptRecord as error:
            damage("chunk-json", f"its {name}: {error.message}")


class _CommittedItems:
    """The items of a map that has committed, against what it committed.

    Args:
        reference: Of the map.

    Attributes:
        order: The places of its items, where their order isn't that of their indexes.
    """

    def __init__(self, reference: MapReference) -> None:
        self.reference = reference
        self.order: list[Place] = []
        self._total = reference.succeeded + reference.failed
        self._table = ItemTable()  # by index; or, where the order is another, by the order of the lines
        self._first_line: dict[tuple[int, int], int] = {}

    def is_of_order(self, seq: int) -> bool:
        """Whether a segment holds a part of the order that the map committed."""
        last = self.reference.pins[0]
        return last - self.reference.order_segments < seq <= last

    def take_in(self, segment: Segment, outcomes: list[Outcome]) -> None:
        """What a segment holds, as far as it is of this map."""
        reference = self.reference
        if segment.chunk >= len(reference.pins) or not (
            reference.first_seq <= segment.seq <= reference.pins[segment.chunk]
            and segment.fence > reference.base_fence
        ):
            return
        table, chunk, seq = self._table, segment.chunk, segment.seq
        if reference.order_segments:
            self._first_line[chunk, seq] = len(table)
        for line, outcome in enumerate(outcomes):
            if reference.order_segments:
                table.note(len(table), outcome, Place(chunk, seq, line))
            elif outcome.item_index < self._total:
                table.note(outcome.item_index, outcome, Place(chunk, seq, line))

    def contradiction(self) -> str | None:
        """Why its segments don't hold what it committed; None if they do."""
        reference, table = self.reference, self._table
        rows = self._ordered_rows() if reference.order_segments else self._rows_by_index()
        if rows is None or table.content_hash(rows) != reference.content_hash:
            return "its segments don't hold what it committed"
        good = sum(table.states[row] == 1 for row in rows)
        if good != reference.succeeded or len(rows) != self._total:
            return f"it counts {reference.succeeded} items that succeeded, and {good} did"
        return None

    def _rows_by_index(self) -> Sequence[int] | None:
        return range(self._total) if len(self._table) == self._total else None

    def _ordered_rows(self) -> Sequence[int] | None:
        try:
            rows = [self._first_line[chunk, seq] + line for chunk, seq, line in self.order]
        except KeyError:
            return None
        return rows if all(row < len(self._table) for row in rows) else None


def _check_sound(outcome: Outcome) -> None:
    """Refuses an outcome that we can't have written.

    Raises:
        CorruptRecord: It can't be.
    """
    if _MARK.fullmatch(outcome.mark) is None or outcome.attempts < 0:
        raise CorruptRecord(f"the outcome of item {outcome.item_index} can't be read")
    if outcome.kind == BLOB and SHA256.fullmatch(outcome.pointer().output_hash) is None:
        raise CorruptRecord(f"the hash of item {outcome.item_index} is none")
    if outcome.kind == ERROR:
        outcome.error()
