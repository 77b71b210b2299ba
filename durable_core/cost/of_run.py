"""What a run cost, or would have cost, on DynamoDB and S3: from its records, in whatever store they are.

Each record becomes the item that the DynamoDB store would write, at each of its stages, and those are billed
by the rules by which `scripts/bench/dynamodb.py` counts what is really sent; a test holds the two together.

Records don't tell everything. A step is taken for a plain one: a pure step has one write less, an
at-most-once step begins with a transaction, which costs twice as much. An earlier attempt is billed by the
size of the last one. Renewals are reckoned from how long the run took, waiting included. What was spent on
looking isn't here, nor what its session cost: a checkpoint is a transaction of twice its units, with a look
at the header.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from durable_core.clock import epoch_ms
from durable_core.cost.bill import Bill, change_units, read_units, write_units
from durable_core.errors import CorruptRecord
from durable_core.journal._items import (
    chunk_item,
    event_item,
    header_item,
    item_bytes,
    segment_item,
    step_item,
)
from durable_core.records import (
    ITEM_KIND,
    JOIN_KIND,
    MAP_KIND,
    PENDING,
    RUNNING,
    SKIPPED,
    STARTED,
    RunHeader,
)
from durable_core.store import DEFAULT_INLINE_MAX_BYTES

if TYPE_CHECKING:
    from durable_core.records import Chunk, Event, Segment, StepRecord

_LEASE_MS: Final = 30_000
_RENEWALS_A_LEASE: Final = 3
_A_REF: Final = "s3/" + "0" * 90  # as long as a real one


@dataclass(slots=True)
class RunCost:
    """The bill of a run, in parts.

    Attributes:
        header: Its own writes, what renewed its lease, and the reads of each drive.
        steps: By the names that steps have in code, without scope and number; and how many there were.
        maps: Of each map, with the steps inside its items; and how many items have come out.
        events: What was sent to it.
        table_bytes, s3_bytes: What lies there now; of S3 raw sizes, before compression.
    """

    header: Bill = field(default_factory=Bill)
    steps: dict[str, tuple[int, Bill]] = field(default_factory=dict)
    maps: dict[str, tuple[int, Bill]] = field(default_factory=dict)
    events: Bill = field(default_factory=Bill)
    table_bytes: int = 0
    s3_bytes: int = 0

    @property
    def total(self) -> Bill:
        """Of everything."""
        parts = [bill for _, bill in (*self.steps.values(), *self.maps.values())]
        return sum(parts, self.header + self.events)

    def add_step(self, record: StepRecord) -> None:
        """Adds a step: to its name, or to the map that it is, or that it is in an item of."""
        stored, puts = _spilled(record)
        self.table_bytes += item_bytes(step_item(stored))
        self.s3_bytes += (record.output_size or 0) * puts
        bill = _step_bill(stored, puts)
        map_id, in_item, _ = record.step_id.partition("[")
        if in_item or record.kind == MAP_KIND:
            count, so_far = self.maps.get(map_id, (0, Bill()))
            self.maps[map_id] = count, so_far + bill
        else:
            name = step_name(record.step_id)
            count, so_far = self.steps.get(name, (0, Bill()))
            self.steps[name] = count + 1, so_far + bill

    def add_segment(self, segment: Segment) -> None:
        """Adds a segment of a map."""
        item = segment_item(segment)
        self.table_bytes += item_bytes(item)
        bill = Bill(1, write_units(item), s3_puts=len(segment.blob_refs()))
        count, so_far = self.maps.get(segment.step_id, (0, Bill()))
        self.maps[segment.step_id] = count + segment.items, so_far + bill

    def add_chunk(self, chunk: Chunk) -> None:
        """Adds the record of a chunk that workers share: each owner claimed it and left it."""
        item = chunk_item(chunk)
        self.table_bytes += item_bytes(item)
        count, so_far = self.maps.get(chunk.step_id, (0, Bill()))
        bill = Bill(2, 2 * write_units(item)) * chunk.chunk_fence
        self.maps[chunk.step_id] = count, so_far + bill

    def add_event(self, event: Event) -> None:
        """Adds an event: sent in a transaction with the header, taken in one with the step's outcome."""
        item = event_item(event)
        self.table_bytes += item_bytes(item)
        units = 2 * (write_units(item) + 1)
        self.events += Bill(2, 2 * units, s3_puts=int(event.ref is not None))

    def add_header(self, header: RunHeader) -> None:
        """Adds the run itself; the last of all, since each drive reads what there is."""
        self.header += _header_bill(header) + _drives_bill(header, self.table_bytes, self.total.s3_puts)
        self.table_bytes += item_bytes(header_item(header))


def step_name(step_id: str) -> str:
    """What steps are grouped by: the name in the code, in whatever scope and for the how-many-th time."""
    return step_id.rpartition("/")[2].partition("#")[0]


def _spilled(record: StepRecord) -> tuple[StepRecord, int]:
    """A record as DynamoDB would have it, and the objects that it points to."""
    if record.output_ref is not None:
        return record, 1
    if record.output_data is None or len(record.output_data) <= DEFAULT_INLINE_MAX_BYTES:
        return record, 0
    return record._replace(output_data=None, output_ref=_A_REF), 1


def _step_bill(record: StepRecord, puts: int) -> Bill:
    """Begun, and committed over what was begun; or put at once. Once more for each earlier attempt."""
    final = step_item(record)
    by_hand = record.status == SKIPPED and record.attempts is not None
    if record.kind in (JOIN_KIND, ITEM_KIND) or (record.status == SKIPPED and not by_hand):
        return Bill(1, write_units(final), s3_puts=puts)
    started = record._replace(
        status=STARTED, output_hash=None, output_data=None, output_ref=None, output_size=None, codec=None,
        committed_at=None, error=None,
    )  # fmt: skip
    begun = step_item(started)
    if record.status == STARTED:
        return Bill(record.attempt, record.attempt * write_units(final), s3_puts=puts)
    earlier = max(record.attempt - 1, 0)
    units = write_units(begun) + change_units(begun, final) + 2 * earlier * write_units(begun)
    return Bill(2 * (1 + earlier), units, s3_puts=puts)


def _header_bill(header: RunHeader) -> Bill:
    """Created with its first owner; each later owner acquired it, from one that left or died; the end."""
    now = header_item(header)
    running = replace(
        header, status=RUNNING, output_hash=None, output_data=None, output_ref=None, output_size=None,
        output_codec=None, error=None, counts=None, ended_at=None, owner="0" * 32, due_at_ms=1,
    )  # fmt: skip
    held = header_item(running)
    bill = Bill(1, change_units({}, held), s3_puts=_refs(header))
    left = header_item(replace(running, status=PENDING, owner=None, due_at_ms=2))
    moved = Bill(1, change_units(held, left))
    takeovers = max(header.fence - header.base_fence - 1, 0)
    died = min(_listed(header.gone), takeovers)
    bill += moved * takeovers + moved * (takeovers - died)
    renewed = header_item(replace(running, due_at_ms=3))
    bill += Bill(1, change_units(held, renewed)) * _renewals(header)
    if header.status != RUNNING:
        bill += Bill(1, change_units(held, now))
    return bill


def _refs(header: RunHeader) -> int:
    return sum(ref is not None for ref in (header.input_ref, header.output_ref))


def _listed(text: str | None) -> int:
    try:
        return len(json.loads(text)) if text else 0
    except (ValueError, TypeError) as error:
        raise CorruptRecord("a JSON column of the header can't be read") from error


def _renewals(header: RunHeader) -> int:
    """One every third of a lease, as long as the run took."""
    try:
        took_ms = epoch_ms(header.ended_at or header.updated_at) - epoch_ms(header.created_at)
    except ValueError as error:
        raise CorruptRecord("a time of the run can't be read", run_id=header.run_id) from error
    return max(took_ms, 0) * _RENEWALS_A_LEASE // _LEASE_MS


def _drives_bill(header: RunHeader, table_bytes: int, objects: float) -> Bill:
    """The reads of each drive: a look for records at the first, all records and large outputs later."""
    drives = max(header.fence - header.base_fence, 0)
    if drives == 0:
        return Bill()
    again = Bill(reads=2, read_units=1 + read_units(table_bytes), s3_gets=objects)
    return Bill(reads=1, read_units=1) + again * (drives - 1)
