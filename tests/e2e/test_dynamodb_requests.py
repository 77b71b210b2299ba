"""What a run costs in requests to DynamoDB, and that every page of an answer is read."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

from durable_core import Context, DurableWorkflowExecutor, step, workflow
from durable_core.blobs.memory import MemoryBlobs
from durable_core.errors import RunFailed
from durable_core.journal._items import step_item
from durable_core.journal.base import RunFilter
from durable_core.journal.memory import MemoryJournal
from durable_core.records import STARTED
from durable_core.store import Store
from durable_core.testing.samples import RUN, attempt, committed, driven, gathered, header
from tests.aws_place import AwsPlace, CutPages, EmptyPages
from tests.cloud import ENVIRONMENT
from tests.unit.test_dynamodb_requests import bare_words
from tests.waiting import full

INLINE = 200 * 1024
WRITES = ("put_item", "update_item", "transact_write_items", "delete_item", "batch_write_item")

ran: list[int] = []
broken = False


@step
async def work(number: int, size_bytes: int) -> str:
    ran.append(number)
    return random.Random(number).randbytes(size_bytes // 2).hex()


@step(pure=True)
async def compute(number: int) -> int:
    return number


@step(semantics="at_most_once")
async def pay(number: int) -> int:
    return number


@workflow
async def many(ctx: Context, steps: int, size_bytes: int) -> int:
    found = [await ctx.step(work, number, size_bytes) for number in range(steps)]
    if broken:
        raise RuntimeError("as planned")
    assert len(set(found)) == steps
    return await ctx.step(compute, sum(map(len, found)))


@workflow
async def pure_ones(ctx: Context) -> list[int]:
    return [await ctx.step(compute, number) for number in range(10)]


@workflow
async def payments(ctx: Context) -> list[int]:
    return [await ctx.step(pay, number) for number in range(10)]


@pytest.fixture
async def executor(aws: AwsPlace) -> AsyncIterator[DurableWorkflowExecutor]:
    async with DurableWorkflowExecutor(store=aws.store()) as made:
        ran.clear()
        yield made


def counts(aws: AwsPlace) -> dict[str, int]:
    found = dict(aws.faulty.counts)
    aws.faulty.sent.clear()
    return found


async def test_a_step_costs_two_writes_and_a_run_two_more(
    aws: AwsPlace, executor: DurableWorkflowExecutor
) -> None:
    await executor.run(many, run_id="r1", steps=10, size_bytes=200)
    found = counts(aws)
    assert found["put_item"] == 1 + 2 * 10 + 1  # the header, ten steps, a pure one
    assert found["update_item"] == 1  # the end
    assert sum(found.get(verb, 0) for verb in WRITES) == 1 + 2 * 10 + 1 + 1
    assert found.get("get_item", 0) + found.get("query", 0) <= 2  # neither grows with the steps


async def test_a_pure_step_costs_one_write(aws: AwsPlace, executor: DurableWorkflowExecutor) -> None:
    await executor.run(pure_ones, run_id="r1")
    assert counts(aws)["put_item"] == 1 + 10


async def test_an_at_most_once_step_costs_a_transaction_and_a_write(
    aws: AwsPlace, executor: DurableWorkflowExecutor
) -> None:
    await executor.run(payments, run_id="r1")
    found = counts(aws)
    assert (found["put_item"], found["transact_write_items"]) == (1 + 10, 10)


async def test_an_output_that_is_spilled_costs_one_put_of_an_object(
    aws: AwsPlace, executor: DurableWorkflowExecutor
) -> None:
    await executor.run(many, run_id="r1", steps=3, size_bytes=64 * 1024)
    found = counts(aws)
    assert (found["put_object"], found["put_item"]) == (3, 1 + 2 * 3 + 1)
    assert len(aws.objects()) == 3


@pytest.mark.parametrize(
    ("steps", "size_bytes", "page_items", "cut"),
    [
        (300, 1_000, None, None),
        (300, 1_000, 7, None),
        (60, 1_000, 1, None),
        (100, 1_000, None, 1),
        (12, 100_000, None, None),
        *([(3_000, 1_000, None, None), (3_000, 1_000, None, 1)] if full() else []),
        *([(40, 100_000, None, None), (40, 100_000, 1, None)] if full() else []),
    ],
)
@pytest.mark.parametrize("empty_pages", [False, True])
async def test_a_resume_reads_every_page_and_runs_nothing_again(
    aws: AwsPlace, steps: int, size_bytes: int, page_items: int | None, cut: int | None, empty_pages: bool
) -> None:
    """Recorded in memory, which is quicker, and taken over as it is.

    Pages of so many items are asked for, or cut out of larger ones: moto takes minutes for 3,000 of its own.
    """
    global broken
    memory = Store("memory://", MemoryJournal(), MemoryBlobs(), INLINE)
    inputs: dict[str, Any] = {"steps": steps, "size_bytes": size_bytes}
    broken = True
    async with DurableWorkflowExecutor(store=memory) as first:
        with pytest.raises(RunFailed):
            await first.run(many, run_id="r1", **inputs)
    broken = False
    await aws.copy(memory.journal, "r1")
    ran.clear()
    cutter = CutPages(aws.faulty, cut) if cut is not None else None
    pages = EmptyPages(cutter or aws.faulty)
    over = pages if empty_pages else cutter
    store = aws.store(page_items=page_items, inline_max_bytes=INLINE, over=over)
    async with DurableWorkflowExecutor(store=store) as second:
        result = await second.resume("r1", many)
        views = await second.steps("r1")
    assert result.output == steps * size_bytes
    assert ran == []
    assert len(views) == steps + 1
    assert bool(pages.empty) is empty_pages
    if cutter is not None:
        assert cutter.pages > 2 * steps  # once for the resume, once for what is told of it


@pytest.mark.parametrize(("steps", "size_bytes"), [(24, 100_000)] + [(3_000, 1_000)] * full())
async def test_a_last_step_that_was_only_begun_is_seen_behind_all_pages(
    aws: AwsPlace, monkeypatch: pytest.MonkeyPatch, steps: int, size_bytes: int
) -> None:
    """It runs again and no other does, and the command line counts all of them."""
    global broken
    memory = Store("memory://", MemoryJournal(), MemoryBlobs(), INLINE)
    broken = True
    async with DurableWorkflowExecutor(store=memory) as first:
        with pytest.raises(RunFailed):
            await first.run(many, run_id="r1", steps=steps, size_bytes=size_bytes)
        views = await first.steps("r1")
    broken = False
    await aws.copy(memory.journal, "r1")
    last = max((view.record for view in views), key=lambda record: record.step_id)
    begun = last._replace(
        status=STARTED, committed_at=None, output_hash=None, output_data=None, codec=None, output_size=None
    )
    aws.write([step_item(begun)])
    ran.clear()
    pages = EmptyPages(aws.faulty)
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    url = aws.cloud.url(aws.table, aws.bucket, prefix=aws.prefix)
    show = [sys.executable, "-m", "durable_core.cli", "show", "r1", "--json", "--store", url]
    done = await asyncio.to_thread(subprocess.run, show, capture_output=True, text=True, check=True)
    shown = json.loads(done.stdout)["steps"]
    assert len(shown) == steps
    assert [one["step_id"] for one in shown if one["status"] != "COMMITTED"] == [last.step_id]
    async with DurableWorkflowExecutor(store=aws.store(inline_max_bytes=INLINE, over=pages)) as second:
        result = await second.resume("r1", many)
        assert len(await second.steps("r1")) == steps + 1
    assert result.output == steps * size_bytes
    assert len(ran) == 1
    assert pages.empty


async def test_a_listing_in_parts_has_no_gap_and_no_repeat_while_large_runs_are_added(aws: AwsPlace) -> None:
    """A page of DynamoDB ends at 1 MB: in the middle of a part, and between those that look alike."""
    journal = aws.journal(page_items=7)
    data = random.Random(1).randbytes(230 * 1024)

    async def create(number: int) -> None:
        at = f"2026-01-02T03:04:{number // 3:02}.000Z"
        await journal.create(header(f"r{number:02}", created_at=at, input_data=data))

    for number in range(30):
        await create(number)
    found: list[str] = []
    before: tuple[str, str] | None = None
    for added in range(30, 60):
        part = await journal.runs(RunFilter(limit=4, before=before))
        if not part:
            break
        found += [one.run_id for one in part]
        before = (part[-1].created_at, part[-1].run_id)
        await create(added)  # newer than all that were listed
    assert found == [f"r{number:02}" for number in reversed(range(30))]


@pytest.mark.parametrize(("steps", "size_bytes"), [(100, 200), (24, 100_000)])
async def test_a_resume_costs_one_query_a_megabyte_and_no_other_read_a_step(
    aws: AwsPlace, steps: int, size_bytes: int
) -> None:
    global broken
    memory = Store("memory://", MemoryJournal(), MemoryBlobs(), INLINE)
    broken = True
    async with DurableWorkflowExecutor(store=memory) as first:
        with pytest.raises(RunFailed):
            await first.run(many, run_id="r1", steps=steps, size_bytes=size_bytes)
    broken = False
    await aws.copy(memory.journal, "r1")
    async with DurableWorkflowExecutor(store=aws.store(inline_max_bytes=INLINE)) as second:
        await second.resume("r1", many)
    found = counts(aws)
    megabytes = steps * size_bytes / 2**20
    assert found["query"] <= megabytes + 2
    assert found.get("get_item", 0) <= 2
    assert found.get("get_object", 0) == found.get("batch_get_item", 0) == 0


async def test_a_replay_leaps_over_the_items_of_maps(aws: AwsPlace) -> None:
    """A page that ends among them is the last of them."""
    around = [attempt(step_id) for step_id in ("a", "m", "m#2", "n", "z/m")]
    of_maps = [attempt(f"{name}[{n}]/x") for name in ("m", "m#2", "z/m") for n in range(100)]
    aws.write([step_item(committed(one)) for one in around + of_maps])
    journal = aws.journal(page_items=10)
    found = await gathered(journal.replay(RUN))
    assert [one.step_id for one in found] == sorted(one.step_id for one in around)
    assert len(aws.faulty.requests("query")) <= 7
    for request in aws.faulty.requests(
        "query"
    ):  # DynamoDB refuses a start outside of the range, moto doesn't
        if (start := request.get("ExclusiveStartKey")) is not None:
            values = request["ExpressionAttributeValues"]
            assert values[":sk_low"]["S"] <= start["sk"]["S"] <= values[":sk_high"]["S"]
    await gathered(journal.steps(RUN))
    assert len(aws.faulty.requests("query")) > 30
    assert [one.step_id for one in await gathered(journal.replay(RUN, "m#2[7]/"))] == ["m#2[7]/x"]


@pytest.mark.parametrize("page_items", [1, 4, None])
async def test_runs_are_listed_and_due_in_order_whatever_the_pages(
    aws: AwsPlace, page_items: int | None
) -> None:
    """Also with empty pages among them, and with many at one place of an index."""
    journal = aws.journal(page_items=page_items, over=EmptyPages(aws.faulty))
    made = [header(f"r{n:02}", created_at=f"2026-01-02T03:04:0{n % 2}.000Z") for n in range(24)]
    for one in random.Random(7).sample(made, len(made)):
        await journal.create(one)
    made.sort(key=lambda one: (one.created_at, one.run_id), reverse=True)
    assert await journal.runs(RunFilter(status="PENDING")) == made
    first = await journal.runs(RunFilter(status="PENDING", limit=5))
    after = (first[-1].created_at, first[-1].run_id)
    assert first + await journal.runs(RunFilter(status="PENDING", before=after)) == made
    assert await journal.runs(RunFilter(status="PENDING", prefix="r2")) == [
        one for one in made if one.run_id.startswith("r2")
    ]
    assert [one.run_id for one in await journal.due()] == [f"r{n:02}" for n in range(24)]
    assert [one.run_id for one in await journal.due(limit=3)] == ["r00", "r01", "r02"]


async def test_runs_at_one_place_of_an_index_are_ordered_though_the_index_has_no_order_for_them(
    aws: AwsPlace,
) -> None:
    """Also where a page ends between them."""

    class Disorderly(EmptyPages):
        async def call(self, service: Any, operation: str, request: Any) -> dict[str, Any]:
            if "IndexName" not in request:
                return await self.inner.call(service, operation, request)
            whole = {
                name: value for name, value in request.items() if name not in ("Limit", "ExclusiveStartKey")
            }
            found = (await self.inner.call(service, operation, whole))["Items"]
            found.sort(key=lambda item: item["pk"]["S"][::-1])  # by the last letter
            start = request.get("ExclusiveStartKey")
            first = 1 + [item["pk"] for item in found].index(start["pk"]) if start else 0
            page = found[first : first + request["Limit"]]
            more = first + len(page) < len(found)
            return {"Items": page, **({"LastEvaluatedKey": page[-1]} if more else {})}

    journal = aws.journal(page_items=2, over=Disorderly(aws.faulty))
    names = [f"{one}{other}" for one in "abc" for other in "abcdefgh"]
    for name in names:
        await journal.create(header(name))
    assert [one.run_id for one in await journal.due()] == names
    assert [one.run_id for one in await journal.runs(RunFilter(status="PENDING"))] == names[::-1]


async def test_an_index_that_is_behind_lists_runs_as_they_are_now(aws: AwsPlace) -> None:
    """What it says of a run that was taken away, or has ended since, isn't believed."""
    journal = aws.journal()
    for run_id in ("ended", "gone", "waits"):
        await journal.create(header(run_id))
    behind = list(aws.faulty.inner.call_now("dynamodb", "scan", {"TableName": aws.table})["Items"])

    class Behind(EmptyPages):
        async def call(self, service: Any, operation: str, request: Any) -> dict[str, Any]:
            if operation == "query" and "IndexName" in request:
                values = request["ExpressionAttributeValues"].values()
                own = ("status_shard", "due_shard")
                return {"Items": [one for one in behind if any(one.get(name) in values for name in own)]}
            return await self.inner.call(service, operation, request)

    lease = await driven(journal, "new")
    aws.plain.call_now("dynamodb", "delete_item", {
        "TableName": aws.table, "Key": {"pk": {"S": "RUN#gone"}, "sk": {"S": "RUN"}},
    })  # fmt: skip
    assert (await journal.cancel(header("ended"), "2026-01-02T03:04:06.000Z")).ok
    stale = aws.journal(over=Behind(aws.faulty))
    assert [one.run_id for one in await stale.due()] == ["waits"]
    assert [(one.run_id, one.status) for one in await stale.runs(RunFilter())] == [
        ("waits", "PENDING"), ("ended", "CANCELLED"),
    ]  # fmt: skip
    assert [one.run_id for one in await stale.runs(RunFilter(status="PENDING"))] == ["waits"]
    assert lease.run_id == "new"


async def test_what_decides_is_read_from_the_table_as_it_is_now(
    aws: AwsPlace, executor: DurableWorkflowExecutor
) -> None:
    await executor.run(many, run_id="r1", steps=2, size_bytes=20)
    await executor.get("r1")
    await executor.steps("r1")
    await executor.list()
    for operation in ("get_item", "query"):
        for request in aws.faulty.requests(operation):
            assert request.get("ConsistentRead") is True or "IndexName" in request
    for request in aws.faulty.requests("batch_get_item"):
        assert request["RequestItems"][aws.table]["ConsistentRead"] is True
    assert aws.faulty.counts["scan"] == aws.faulty.counts["batch_write_item"] == 0
    assert [word for sent in aws.faulty.sent for word in bare_words(sent.request)] == []
