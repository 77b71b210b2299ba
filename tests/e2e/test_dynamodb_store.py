"""A DynamoDB store by its URL, as a user has it: both transports, nothing left open."""

from __future__ import annotations

import asyncio

import pytest

from durable_core import Context, DurableWorkflowExecutor, step, workflow
from durable_core.errors import RunNotFound, StoreNotFound
from durable_core.stores import open_store
from tests.cloud import TRANSPORTS, Cloud, new_table_name


@step
async def grow(number: int) -> bytes:
    return bytes(number)


@step
def shrink(data: bytes) -> int:
    return len(data)


@workflow
async def both(ctx: Context, number: int) -> int:
    return await ctx.step(shrink, await ctx.step(grow, number))


@pytest.mark.parametrize("kind", TRANSPORTS)
async def test_a_store_is_used_by_its_url(cloud: Cloud, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if kind == "boto3":
        monkeypatch.setattr("durable_core.aws.transport.find_spec", lambda name: name == "boto3" or None)
    url = cloud.url(cloud.new_table(), cloud.new_bucket(), inline_max_bytes=0)
    async with DurableWorkflowExecutor(store=url) as executor:
        result = await executor.run(both, run_id="r1", number=100_000)
        assert result.output == 100_000
        assert [header.run_id for header in (await executor.list())] == ["r1"]
        with pytest.raises(RunNotFound):
            await executor.get("r2")
    store = open_store(url)
    assert type(store.journal.table.transport).__name__ == (  # type: ignore[attr-defined]  # of DynamoDB only
        "AsyncTransport" if kind == "aioboto3" else "ThreadTransport"
    )
    assert len([ref async for ref in store.blobs.refs("r1")]) == 4  # the inputs, both steps, the result
    await store.journal.close()
    await store.journal.close()


def test_a_store_is_used_from_plain_code_and_from_one_loop_after_another(cloud: Cloud) -> None:
    url = cloud.url(cloud.new_table(), cloud.new_bucket())
    executor = DurableWorkflowExecutor(store=url)
    assert executor.run_sync(both, run_id="r1", number=3).output == 3
    assert executor.run_sync(both, run_id="r2", number=4).output == 4
    asyncio.run(executor.close())


async def test_a_table_that_is_not_there_is_named_with_what_makes_it(cloud: Cloud) -> None:
    table = new_table_name()
    async with DurableWorkflowExecutor(store=cloud.url(table, cloud.new_bucket())) as executor:
        with pytest.raises(StoreNotFound, match=f"{table}.*durable init"):
            await executor.run(both, run_id="r1", number=3)
        with pytest.raises(StoreNotFound):
            await executor.list()
