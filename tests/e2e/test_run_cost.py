"""What `durable cost` reckons from records is what really was sent, as the benchmark counts it over moto."""

from __future__ import annotations

import random
from typing import Any

import pytest

from durable_core import Context, DurableWorkflowExecutor, step, workflow
from durable_core.cli.costing import cost_of
from durable_core.cost.bill import Bill
from durable_core.cost.estimate import estimate
from durable_core.cost.of_run import RunCost
from durable_core.errors import UsageError
from durable_core.store import Store
from durable_core.stores import open_store
from scripts.bench.dynamodb import Metered
from tests.aws_place import AwsPlace


@step
async def work(number: int, size_bytes: int) -> bytes:
    return random.Random(number).randbytes(size_bytes)


@step(pure=True)
async def pure(number: int) -> int:
    return number


@step(semantics="at_most_once")
async def guarded(number: int) -> int:
    return number


async def large(number: int) -> bytes:
    return random.Random(number).randbytes(number)


async def in_steps(ctx: Context, number: int) -> int:
    return len(await ctx.step(work, number, 2_000))


@workflow
async def chain(ctx: Context, steps: int, size_bytes: int) -> None:
    for number in range(steps):
        await ctx.step(work, number, size_bytes)


@workflow
async def chosen(ctx: Context, which: str, steps: int) -> None:
    for number in range(steps):
        await ctx.step({"pure": pure, "guarded": guarded}[which], number)


@workflow
async def mapped(ctx: Context, items: int, step_inside: bool) -> None:
    await ctx.step(work, 1, 100)
    sizes = [n * 400 for n in range(items)]
    await ctx.map(in_steps if step_inside else large, sizes, max_concurrency=8)


@pytest.fixture
def metered(aws: AwsPlace) -> tuple[Store, Metered]:
    over = Metered(aws.plain)
    return aws.store(over=over), over


async def reckoned(store: Store, run_id: str) -> RunCost:
    header = await store.journal.header(run_id)
    assert header is not None
    return await cost_of(store, header)


async def sent_and_reckoned(metered: tuple[Store, Metered], wf: Any, **inputs: Any) -> tuple[Bill, Bill]:
    store, over = metered
    await DurableWorkflowExecutor(store=store).run(wf, run_id="r1", **inputs)
    sent = over.meter.bill
    return sent, (await reckoned(store, "r1")).total


@pytest.mark.parametrize(
    ("wf", "inputs"),
    [
        (chain, {"steps": 0, "size_bytes": 0}),
        (chain, {"steps": 7, "size_bytes": 200}),
        (chain, {"steps": 7, "size_bytes": 5_000}),
        (chain, {"steps": 7, "size_bytes": 64_000}),
        (mapped, {"items": 40, "step_inside": False}),
        (mapped, {"items": 12, "step_inside": True}),
    ],
    ids=["nothing", "small outputs", "larger ones", "objects", "a map", "a map of items with steps"],
)
async def test_what_is_reckoned_from_records_is_what_was_sent(
    metered: tuple[Store, Metered], wf: Any, inputs: Any
) -> None:
    sent, found = await sent_and_reckoned(metered, wf, **inputs)
    assert (found.writes, found.write_units, found.s3_puts) == (sent.writes, sent.write_units, sent.s3_puts)
    assert found.read_units <= sent.read_units <= found.read_units + 2


async def test_what_records_do_not_tell_is_off_as_it_is_documented(metered: tuple[Store, Metered]) -> None:
    sent, found = await sent_and_reckoned(metered, chosen, which="pure", steps=10)
    assert found.writes == sent.writes + 10
    store, over = metered
    before = over.meter.bill
    await DurableWorkflowExecutor(store=store).run(chosen, run_id="r2", which="guarded", steps=10)
    guarded_bill = over.meter.bill - before
    assert guarded_bill.write_units > (await reckoned(store, "r2")).total.write_units


async def test_a_run_in_another_store_is_reckoned_as_if_it_were_there(metered: tuple[Store, Metered]) -> None:
    """Also what SQLite has in the row, and DynamoDB would put into the bucket."""
    sent, _ = await sent_and_reckoned(metered, chain, steps=3, size_bytes=20_000)
    elsewhere = open_store("memory://")
    async with DurableWorkflowExecutor(
        store=Store("memory://", elsewhere.journal, elsewhere.blobs, 10**6)
    ) as here:
        await here.run(chain, run_id="r1", steps=3, size_bytes=20_000)
        found = (await reckoned(here.store, "r1")).total
    assert found.s3_puts == sent.s3_puts == 3
    assert abs(found.write_units - sent.write_units) <= 3


async def test_an_estimate_scales_what_grows_with_the_items(metered: tuple[Store, Metered]) -> None:
    store, over = metered
    executor = DurableWorkflowExecutor(store=store)
    await executor.run(chain, run_id="few", steps=10, size_bytes=2_000)
    few = await reckoned(store, "few")
    before = over.meter.bill
    await executor.run(chain, run_id="many", steps=60, size_bytes=2_000)
    sent = over.meter.bill - before
    told = estimate(few, 60)
    assert told.items_then == 10
    assert told.total.writes == pytest.approx(sent.writes)
    assert told.total.write_units == pytest.approx(sent.write_units, rel=0.03)
    mapped_run = RunCost(
        maps={"m": (100, Bill(writes=10)), "few": (2, Bill(writes=2))}, header=Bill(writes=2)
    )
    assert estimate(mapped_run, 1_000).total.writes == 2 + 2 + 100


async def test_an_estimate_from_a_run_without_items_is_refused() -> None:
    with pytest.raises(UsageError, match="nothing in that run grows"):
        estimate(RunCost(steps={"a": (1, Bill()), "b": (1, Bill())}), 10)


async def test_later_drives_cost_their_reads_and_the_header_its_changes(
    metered: tuple[Store, Metered],
) -> None:
    """A run that was released and taken up again, as a deploy does it."""
    store, over = metered
    executor = DurableWorkflowExecutor(store=store)
    view = await executor.start(chain, run_id="r1", steps=5, size_bytes=3_000)
    assert view.status == "PENDING"
    await executor.run(chain, run_id="r1", steps=5, size_bytes=3_000)
    once = (await reckoned(store, "r1")).total
    assert abs(once.write_units - over.meter.bill.write_units) <= 5
