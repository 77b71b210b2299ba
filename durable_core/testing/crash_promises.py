"""What must hold of a run whose process was killed: judged from what three lives of it left behind.

The unharmed life says what comes out. The first life ended at a crash point; the second began from the top
and went to the end. Whatever is broken is told in a sentence, with the step that it is about.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from durable_core.engine.executor import DurableWorkflowExecutor
from durable_core.engine.findings import DAMAGE
from durable_core.engine.invocation import gone_of
from durable_core.errors import StepInDoubt
from durable_core.outcomes import BLOB, OUTPUT, BlobPointer, outcomes_of
from durable_core.records import COMMITTED, COMPLETED, FAILED, MAP_KIND, SKIPPED, STARTED, TOMBSTONE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from durable_core.records import Chunk, Event, RunHeader, Segment, StepRecord
    from durable_core.store import Store


class Body(NamedTuple):
    """One start of the body of a step, or of a map's item.

    Attributes:
        step_id: Of the step, or `map[item]`.
        item: The position of the item.
        key: The idempotency key that it was given.
        once: It must not start again, whoever died: it is `at_most_once`, without a verifier.
        guarded: It is `at_most_once`: it must not start again while whoever began it may be alive.
        recorded: It has a STARTED record of its own: it is neither pure nor an item.
    """

    step_id: str
    item: int | None
    key: str
    once: bool
    guarded: bool
    recorded: bool

    @property
    def place(self) -> tuple[str, int]:
        """Of an item: its map, and its position."""
        return self.step_id.rpartition("[")[0], self.item if self.item is not None else -1


@dataclass(frozen=True, slots=True)
class State:
    """What a store has of a run at one moment.

    Attributes:
        items: The outcomes of maps' items, by map and position.
        segments: Whose the segments of maps' logs are, by map, chunk and place.
        chunks: What is known of the chunks of maps that workers share.
        twice: Items that are in a log twice.
        damage: What verifying the run found wrong.
        root_hash: Over what the records say; the same for a run that was killed and one that wasn't.
        under: How many records lie under the header.
    """

    header: RunHeader | None = None
    records: dict[str, StepRecord] = field(default_factory=dict)
    items: dict[tuple[str, int], str] = field(default_factory=dict)
    segments: dict[tuple[str, int, int], str] = field(default_factory=dict)
    chunks: tuple[Chunk, ...] = ()
    twice: tuple[str, ...] = ()
    events: tuple[Event, ...] = ()
    damage: tuple[str, ...] = ()
    root_hash: str | None = None
    under: int = 0

    def settled(self) -> dict[str, StepRecord]:
        """The records of steps that have an output for good."""
        return {id_: one for id_, one in self.records.items() if one.status in (COMMITTED, SKIPPED)}


class Life(NamedTuple):
    """What became of a run in one process.

    Attributes:
        outcome: What the process was told in the end, as text; None when it was told nothing.
        bodies: That it started, in order.
        state: That it left the store in.
        error: What it ended by, if it did.
        value: What it was told, as it was told.
    """

    outcome: str | None
    bodies: Sequence[Body]
    state: State
    error: BaseException | None = None
    value: object = None


async def state_of(store: Store, run_id: str) -> State:
    """Looks at a run, over a store that nobody watches."""
    journal = store.journal
    header = await journal.header(run_id)
    if header is None:
        return State()
    records = {one.step_id: one async for page in journal.steps(run_id) for one in page}
    base = header.base_fence
    maps = [step_id for step_id, record in records.items() if record.kind == MAP_KIND]
    chunks = [one for name in maps async for page in journal.chunks(run_id, name) for one in page]
    logs = {(name, 0) for name in maps} | {(one.step_id, one.chunk) for one in chunks}
    log = [
        segment
        for name, chunk in sorted(logs)
        async for page in journal.segments(run_id, name, chunk)
        for segment in page
        if segment.fence > base
    ]
    items = [item for segment in log for item in _items(segment)]
    times = Counter(place for place, _ in items)
    events = [one async for page in journal.events(run_id) for one in page if one.fence > base]
    under = 0
    async for children in journal.children(run_id):
        under += len(children)
    verified = await DurableWorkflowExecutor(store).verify(run_id)
    damage = [
        f"{one.kind} {one.where or ''}: {one.message}" for one in verified.findings if one.severity == DAMAGE
    ]
    owned = {step_id: one for step_id, one in records.items() if one.fence > base}
    return State(
        header,
        owned,
        dict(items),
        {(one.step_id, one.chunk, one.seq): one.attempt_id for one in log},
        tuple(one for one in chunks if one.fence > base),
        tuple(f"{name}[{item}]" for (name, item), count in times.items() if count > 1),
        tuple(events),
        tuple(damage),
        verified.runs[0].root_hash,
        under,
    )


def _items(segment: Segment) -> Iterator[tuple[tuple[str, int], str]]:
    """What items gave, as text that says the same wherever a blob may be."""
    for one in outcomes_of(segment):
        if one.kind == OUTPUT:
            yield (segment.step_id, one.item_index), one.payload.decode()
        elif one.kind == BLOB:
            yield (segment.step_id, one.item_index), BlobPointer(*json.loads(one.payload)).output_hash


def broken(
    unharmed: Life, first: Life, second: Life, *, deaths: int, takeovers: int, late: bool = False
) -> list[str]:
    """The promises that weren't kept; empty when all were.

    Args:
        unharmed: A life that nobody disturbed.
        first: The one that ended early; its state is the store as it left it.
        second: The one that went on from there, to the end.
        deaths: How many processes were killed: so many crashes may be counted.
        takeovers: How many times a body in flight may have been begun anew.
        late: Whether bodies of a process that was overtaken are among the second's. It may still run items
            and pure steps, whose records it then can't write.
    """
    found = [f"the store is damaged, {what}" for what in first.state.damage]
    found += [f"the store is damaged in the end, {what}" for what in second.state.damage]
    found += _bodies(unharmed, first, second, takeovers, late)
    found += _changed(first.state, second.state)
    found += _crashes(second.state, deaths)
    found += [f"{item} is in its map's log twice" for item in second.state.twice]
    if not _is_in_doubt(first, second):
        found += _ends(unharmed, second)
    return found


def _bodies(unharmed: Life, first: Life, second: Life, begun_anew: int, late: bool) -> Iterator[str]:
    for body in first.bodies:
        if body.recorded and body.step_id not in first.state.records and first.state.header is not None:
            if first.state.header.status in (COMPLETED, TOMBSTONE):
                continue
            yield f"the body of {body.step_id} ran without a STARTED record"
    settled = first.state.settled()
    starts = Counter(body.step_id for body in (*first.bodies, *second.bodies))
    for body in second.bodies:
        record = first.state.records.get(body.step_id)
        # Begun before it was overtaken, and its body only afterwards: each start has a begin of its own.
        is_begun = record is not None and starts[body.step_id] <= record.attempt
        if late and (is_begun or not body.recorded):
            continue
        if body.item is None and body.step_id in settled:
            yield f"the body of {body.step_id} ran again after it was committed"
        if body.item is not None and body.place in first.state.items:
            yield f"the body of {body.step_id} ran again after its outcome was committed"
    usual = Counter(body.step_id for body in unharmed.bodies)
    both = [*first.bodies, *second.bodies]
    started = Counter(body.step_id for body in both)
    once = {body.step_id for body in both if body.once or (late and body.guarded)}
    for name, times in started.items():
        most = usual[name] + (0 if name in once else begun_anew)
        if times > most:
            yield f"the body of {name} started {times} times; declared are {most}"
    keys: dict[str, set[str]] = {}
    for body in [*both, *unharmed.bodies]:
        keys.setdefault(body.step_id, set()).add(body.key)
    for name, used in keys.items():
        if len(used) > 1:
            yield f"{name} ran under {len(used)} idempotency keys"


def _changed(first: State, second: State) -> Iterator[str]:
    if second.header is not None and second.header.status == TOMBSTONE:
        return
    for step_id, record in first.settled().items():
        if second.records.get(step_id) != record:
            yield f"the committed record of {step_id} was changed or lost"
    for (step_id, chunk, seq), whose in first.segments.items():
        if second.segments.get((step_id, chunk, seq)) != whose:
            yield f"segment {seq} of {step_id}!{chunk} was changed or lost"
    for place, payload in first.items.items():
        if place not in second.items:
            yield f"the committed outcome of {place[0]}[{place[1]}] was lost"
        elif second.items[place] != payload:
            yield f"the committed outcome of {place[0]}[{place[1]}] was changed"


def _crashes(state: State, deaths: int) -> Iterator[str]:
    header = state.header
    if header is None:
        return
    gone = json.loads(header.gone) if header.gone else {}
    if header.crashes > deaths or len(gone) > deaths:
        counted = max(header.crashes, len(gone))
        yield f"the run counts {counted} crashes of its processes; {deaths} died"
    for chunk in state.chunks:
        if len(gone_of(chunk)) > deaths:
            yield f"{chunk.step_id}!{chunk.chunk} counts {len(gone_of(chunk))} crashes; {deaths} died"
    for record in state.records.values():
        if record.crashes > deaths:
            yield f"{record.step_id} counts {record.crashes} crashes; {deaths} processes died"


def _ends(unharmed: Life, second: Life) -> Iterator[str]:
    if second.error is not None and second.outcome is None:
        yield f"it ended by {type(second.error).__name__}: {second.error}"
        return
    if second.outcome != unharmed.outcome:
        yield f"it came to {second.outcome}; without the crash it is {unharmed.outcome}"
    left, usual = second.state.header, unharmed.state.header
    if left is not None and usual is not None and left.status != usual.status:
        yield f"the run was left {left.status}; without the crash it is {usual.status}"
    if second.state.root_hash != unharmed.state.root_hash:
        differs = _difference(unharmed.state, second.state)
        yield f"its records differ from those of a run without the crash: {differs}"
    header = second.state.header
    if header is not None and header.status == TOMBSTONE and second.state.under:
        yield f"{second.state.under} records lie under the tombstone"
    if header is not None and header.status == COMPLETED:
        for record in second.state.records.values():
            if record.status == STARTED and record.kind != "item":
                yield f"the run is COMPLETED, and {record.step_id} still STARTED"


def _difference(one: State, other: State) -> str:
    """Where two states part, for a person."""
    if (one.header is None) != (other.header is None):
        return "only one of them is there"
    if one.header is not None and other.header is not None:
        for name in ("status", "input_hash", "output_hash"):
            pair = getattr(one.header, name), getattr(other.header, name)
            if pair[0] != pair[1]:
                return f"{name} {pair[1]} instead of {pair[0]}"
    for step_id in sorted({*one.records, *other.records}):
        here, there = one.records.get(step_id), other.records.get(step_id)
        if here is None or there is None:
            return f"only one of them has {step_id}"
        for name in ("status", "input_hash", "output_hash", "idempotency_key"):
            if getattr(here, name) != getattr(there, name):
                return f"{step_id} has another {name}"
    return "in the items of a map, or in the events"


def _is_in_doubt(first: Life, second: Life) -> bool:
    """Whether the run stands still for a person, as it has to when a body that must not run twice was in
    flight.
    """
    header = second.state.header
    if header is None or header.status != FAILED or not header.error:
        return False
    error = json.loads(header.error)
    if StepInDoubt.__name__ not in (error.get("type"), error.get("code")):
        return False
    return any(
        record.status == STARTED and second.state.records.get(step_id, record).status == STARTED
        for step_id, record in first.state.records.items()
    )
