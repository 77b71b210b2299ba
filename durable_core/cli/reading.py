"""What `show` reads: a run with its steps, one step, or one item of a map."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from durable_core.cli.facts import run_facts, step_facts
from durable_core.cli.finding import complete_run_id, complete_step_id
from durable_core.cli.jsonable import stored_as_json
from durable_core.cli.maps import find_item, item_step_ids, map_counts
from durable_core.clock import SystemClock
from durable_core.engine.executor import DurableWorkflowExecutor
from durable_core.engine.looking import begun
from durable_core.engine.values import Values
from durable_core.errors import CorruptRecord, DurableError, RunNotFound, StepNotFound
from durable_core.records import ITEM_KIND, JOIN_KIND, MAP_KIND

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine

    from durable_core.cli.facts import Document
    from durable_core.cli.maps import ItemName
    from durable_core.records import RunHeader, StepRecord
    from durable_core.store import Store

_AT_ONCE: Final = 16

T = TypeVar("T")


async def shown(store: Store, given: str) -> tuple[Document, list[Document]]:
    """A run and its steps, in the order in which they were begun."""
    try:
        header, run = await run_of(store, given)
        records = [_without_output(record) async for record in records_of(store, header)]
        steps = [await facts_of(store, header, record, run) for record in sorted(records, key=begun)]
    finally:
        await store.journal.close()
        await store.blobs.close()
    return run, steps


async def root_hash(store: Store, run_id: str) -> str | None:
    """The root hash of a run; None if a record can't be read."""
    executor = DurableWorkflowExecutor(store)
    try:
        return (await executor.verify(run_id)).runs[0].root_hash
    finally:
        await executor.close()


async def facts_of(store: Store, header: RunHeader, record: StepRecord, run: Document) -> Document:
    """What is known of a step; of a map also how many of its items are done."""
    step = step_facts(record, run)
    if record.kind == MAP_KIND:
        try:
            step["items"] = await map_counts(store, header, record)
        except CorruptRecord as error:
            step["corrupt"] = "; ".join(filter(None, (step["corrupt"], error.message)))
    return step


async def shown_step(store: Store, given: str, given_step: str) -> tuple[Document, Document, Any]:
    """A run, one of its steps, and the step's output."""
    try:
        header, run = await run_of(store, given)
        item, slash, _ = given_step.rpartition("]/")
        if slash:
            known = await item_step_ids(store, header, f"{item}]")
        else:
            known = [record.step_id async for record in records_of(store, header)]
        step_id = complete_step_id(known, given_step, header.run_id)
        record = await store.journal.step(header.run_id, step_id)
        if record is None:
            raise StepNotFound("the step was removed meanwhile", run_id=header.run_id, step_id=step_id)
        step, value = await facts_of(store, header, record, run), None
        if record.output_hash is not None:
            try:
                value = await _output(store, record)
            except CorruptRecord as error:
                step["corrupt"] = "; ".join(filter(None, (step["corrupt"], error.message)))
    finally:
        await store.journal.close()
        await store.blobs.close()
    return run, step, value


async def shown_item(
    store: Store, given: str, wanted: ItemName
) -> tuple[Document, Document, Any, list[Document]]:
    """A run, an item of a map in it, the item's output, and its own steps."""
    try:
        header, run = await run_of(store, given)
        try:
            item, value = await find_item(store, header, wanted)
        except DurableError as error:
            error.run_id, error.step_id = header.run_id, error.step_id or wanted.given
            raise
        steps = []
        for step_id in await item_step_ids(store, header, item["step_id"]):
            record = await store.journal.step(header.run_id, step_id)
            if record is not None:
                steps.append(record)
        facts = [await facts_of(store, header, record, run) for record in sorted(steps, key=begun)]
    finally:
        await store.journal.close()
        await store.blobs.close()
    return run, item, value, facts


async def run_of(store: Store, given: str) -> tuple[RunHeader, Document]:
    """Opens the store, and finds the run that is named so, or begins so."""
    await store.journal.open(create=False)
    run_id = await complete_run_id(store.journal, given, store.url)
    header = await store.journal.header(run_id)
    if header is None:
        raise RunNotFound("the run was removed meanwhile", run_id=run_id)
    return header, run_facts(header, SystemClock().now_ms())


def _without_output(record: StepRecord) -> StepRecord:
    """A record as it is kept until all are there: memory must not depend on outputs. A map's is small."""
    return record if record.kind == MAP_KIND else record._replace(output_data=None)


async def records_of(store: Store, header: RunHeader) -> AsyncIterator[StepRecord]:
    """The steps of this life of the run, in the order of their ids.

    Steps inside the items of maps are left out. There may be millions, so at the first of them those that
    aren't are looked up, some side by side.
    """
    async for record in _outside_items(store, header):
        if record.kind in (JOIN_KIND, ITEM_KIND) or not _is_of_this_life(record, header):
            continue
        yield record


async def _outside_items(store: Store, header: RunHeader) -> AsyncIterator[StepRecord]:
    known = set()
    async for page in store.journal.steps(header.run_id):
        outside = list(itertools.takewhile(lambda record: "[" not in str(record.step_id), page))
        for record in outside:
            known.add(record.step_id)
            yield record
        if len(outside) < len(page):
            break
    else:
        return
    async for page in store.journal.replay(header.run_id):
        missing = [found.step_id for found in page if found.step_id not in known]
        for start in range(0, len(missing), _AT_ONCE):
            asked = [store.journal.step(header.run_id, one) for one in missing[start : start + _AT_ONCE]]
            for whole in await _together(asked):
                if whole is not None:
                    yield whole


async def _together(asked: list[Coroutine[Any, Any, T]]) -> list[T]:
    """The answers to some questions; none is left at work when one fails."""
    found = await asyncio.gather(*asked, return_exceptions=True)
    for one in found:
        if isinstance(one, BaseException):
            raise one
    return cast("list[T]", found)


def _is_of_this_life(record: StepRecord, header: RunHeader) -> bool:
    try:
        return record.fence > header.base_fence
    except TypeError:  # a damaged column: the record is shown, and marked
        return True


async def _output(store: Store, record: StepRecord) -> Any:
    """The output as plain data."""
    raw = await Values(store.blobs).load(
        record.codec, record.output_data, record.output_ref, record.output_size, record.output_hash
    )
    return stored_as_json(raw)
