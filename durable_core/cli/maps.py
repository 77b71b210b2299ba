"""What `show` tells of maps: how far one is, and what came of one of its items."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from durable_core.cli.facts import chosen_error
from durable_core.cli.jsonable import stored_as_json
from durable_core.engine.values import Values
from durable_core.errors import StepNotFound
from durable_core.identity import item_id
from durable_core.map_reference import recorded_map
from durable_core.outcomes import BLOB, outcomes_of
from durable_core.records import COMMITTED, COMPLETED, FAILED, MAP_KIND, STARTED

if TYPE_CHECKING:
    from durable_core.cli.facts import Document
    from durable_core.outcomes import Outcome
    from durable_core.records import RunHeader, StepRecord
    from durable_core.store import Store


async def map_counts(store: Store, header: RunHeader, record: StepRecord) -> Document:
    """How many items of a map are done: exactly, from its record or its newest segment alone.

    Of one that workers share, from the records of its chunks, and the newest segments of those in work.

    Raises:
        CorruptRecord, MissingBlob: They can't be read.
    """
    if record.status == COMMITTED:
        raw = await Values(store.blobs).load(
            record.codec, record.output_data, record.output_ref, record.output_size, record.output_hash
        )
        reference, _ = recorded_map(record, raw)
        return _counts(reference.succeeded + reference.failed, reference.succeeded, reference.failed)
    total = record.details().get("total")
    if "chunk_size" in record.details():
        return _counts(total, *await _in_chunks(store, header, record))
    last = await store.journal.last_segment(header.run_id, record.step_id)
    if last is None or last.fence <= header.base_fence:
        return _counts(total, 0, 0)
    return _counts(total, last.succeeded, last.failed)


async def _in_chunks(store: Store, header: RunHeader, record: StepRecord) -> tuple[int, int]:
    succeeded = failed = 0
    above = max(header.base_fence, record.details().get("above_fence", 0))
    async for page in store.journal.chunks(header.run_id, record.step_id):
        for chunk in page:
            last = None
            if chunk.fence > above and chunk.status != COMPLETED:
                last = await store.journal.last_segment(header.run_id, record.step_id, chunk.chunk)
            if last is not None and last.fence > above:
                succeeded, failed = succeeded + last.succeeded, failed + last.failed
            elif chunk.fence > above:
                succeeded, failed = succeeded + chunk.succeeded, failed + chunk.failed
    return succeeded, failed


def _counts(total: object, succeeded: int, failed: int) -> Document:
    known = total if isinstance(total, int) else None
    return {"total": known, "done": succeeded + failed, "succeeded": succeeded, "failed": failed}


# ---- One item ----


class ItemName(NamedTuple):
    """How an item is asked for: `extract[12]`; where items have keys, `extract[invoice-7]`."""

    map_id: str
    name: str

    @property
    def given(self) -> str:
        """As it was written."""
        return f"{self.map_id}[{self.name}]"


def item_named(given: str) -> ItemName | None:
    """Which item is asked for; None where it is a step."""
    scope, slash, last = given.rpartition("]/")
    map_name, bracket, name = last.partition("[")
    return ItemName(f"{scope}{slash}{map_name}", name[:-1]) if bracket and name.endswith("]") else None


async def find_item(store: Store, header: RunHeader, wanted: ItemName) -> tuple[Document, Any]:
    """What came of an item, and its output as plain data.

    Raises:
        StepNotFound: There is no such map, or nothing is recorded of such an item.
        CorruptRecord, MissingBlob: It can't be read.
    """
    record = await store.journal.step(header.run_id, wanted.map_id)
    if record is None or record.kind != MAP_KIND:
        raise StepNotFound(
            f"the run has no map {wanted.map_id!r}",
            run_id=header.run_id,
            step_id=wanted.given,
            remedy="See its steps with `durable show`",
        )
    outcome = await _outcome(store, header, record, wanted.name)
    if outcome is None:
        return await _unfinished(store, header, record, wanted), None
    found = {
        "step_id": item_id(wanted.map_id, outcome.item_index, outcome.key),
        "item_index": outcome.item_index,
        "item_key": outcome.key,
        "status": COMMITTED if outcome.succeeded else FAILED,
        "attempt": outcome.attempts,
        "error": None if outcome.succeeded else chosen_error(outcome.error()),
    }
    return found, await _output(store, outcome) if outcome.succeeded else None


async def _outcome(store: Store, header: RunHeader, record: StepRecord, name: str) -> Outcome | None:
    """The first success of an item, else its last failure: what the map goes by."""
    detail, failure = record.details(), None
    pins = detail.get("pins") if record.status == COMMITTED else None
    chunks = len(pins) if pins else detail.get("chunks", 1)
    size = detail.get("chunk_size") or detail.get("divided_by")
    keyed = detail.get("keyed") or not name.isdecimal()
    of = range(chunks) if not size or keyed else range(int(name) // size, min(int(name) // size + 1, chunks))
    for chunk in of:
        async for page in store.journal.segments(header.run_id, record.step_id, chunk):
            for segment in page:
                if segment.fence <= header.base_fence or (pins and segment.seq > pins[chunk]):
                    continue
                for outcome in outcomes_of(segment):
                    if _is_named(outcome, record.step_id, name):
                        if outcome.succeeded:
                            return outcome
                        failure = outcome
    return failure


async def _unfinished(store: Store, header: RunHeader, record: StepRecord, wanted: ItemName) -> Document:
    """An item without an outcome, of which there is a record: its own, or one of a step inside it."""
    keyed = record.details().get("keyed") and not wanted.name.startswith("k-")
    step_id = item_id(record.step_id, 0, wanted.name) if keyed else wanted.given
    begun = await store.journal.step(header.run_id, step_id)
    if begun is None and not await item_step_ids(store, header, step_id):
        raise StepNotFound(
            "nothing is recorded of such an item" + ("" if record.status == COMMITTED else " so far"),
            run_id=header.run_id,
            step_id=wanted.given,
            remedy=f"See how far the map is with `durable show`; items are named by their position, from 0,"
            f" or by their key: {record.step_id}[12]",
        )
    return {
        "step_id": step_id,
        "item_index": begun.step_index if begun is not None else None,
        "item_key": wanted.name if keyed else None,
        "status": STARTED,
        "attempt": begun.attempt if begun is not None else None,
        "error": None,
    }


async def item_step_ids(store: Store, header: RunHeader, step_id: str) -> list[str]:
    """The ids of an item's own steps, those of maps inside it left out."""
    return [
        record.step_id
        async for page in store.journal.replay(header.run_id, f"{step_id}/")
        for record in page
        if record.fence > header.base_fence
    ]


def _is_named(outcome: Outcome, map_id: str, name: str) -> bool:
    if outcome.key is None:
        return str(outcome.item_index) == name
    return outcome.key == name or item_id(map_id, 0, outcome.key) == f"{map_id}[{name}]"


async def _output(store: Store, outcome: Outcome) -> Any:
    if outcome.kind != BLOB:
        return stored_as_json(outcome.payload)
    ref, codec, size, output_hash = outcome.pointer()
    return stored_as_json(await Values(store.blobs).load(codec, None, ref, size, output_hash))
