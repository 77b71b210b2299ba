"""What runs cost on DynamoDB, as botocore itself counts the requests that leave the process."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from durable_core import Context, DurableWorkflowExecutor, step, workflow
from durable_core.aws import transport_async, transport_threads
from tests.cloud import TRANSPORTS, Cloud

READS = {"GetItem", "BatchGetItem", "Query"}
STEPS = 20
ITEMS = 640


async def nothing(number: int) -> int:
    return number


@step
async def plain(number: int) -> int:
    return number


@step(pure=True)
async def pure(number: int) -> int:
    return number


@workflow
async def plain_steps(ctx: Context, count: int) -> int:
    return sum([await ctx.step(plain, number) for number in range(count)])


@workflow
async def pure_steps(ctx: Context, count: int) -> int:
    return sum([await ctx.step(pure, number) for number in range(count)])


@workflow
async def items(ctx: Context, count: int) -> int:
    return (await ctx.map(nothing, list(range(count)), max_concurrency=32)).succeeded


@pytest.fixture(params=TRANSPORTS)
def sent(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts each request of every client that is made meanwhile, also one that botocore sends again."""
    counts: Counter[str] = Counter()
    described = transport_threads.with_descriptions

    def counting(session: Any) -> Any:
        session.register("before-send.dynamodb", lambda event_name, **_: counts.update([event_name]))
        return described(session)

    for module in (transport_threads, transport_async):
        monkeypatch.setattr(module, "with_descriptions", counting)
    if request.param == "boto3":
        monkeypatch.setattr("durable_core.aws.transport.find_spec", lambda name: name == "boto3" or None)
    return counts


def writes(sent: Counter[str]) -> int:
    """How many there were since the last look."""
    operations = {name.rsplit(".", 1)[-1]: count for name, count in sent.items()}
    sent.clear()
    return sum(count for operation, count in operations.items() if operation not in READS)


async def test_steps_pure_steps_and_items_cost_what_is_promised(cloud: Cloud, sent: Counter[str]) -> None:
    """A run has two writes of its own, its header's; a map has its record besides its segments."""
    url = cloud.url(cloud.new_table(), cloud.shared_bucket)
    sent.clear()  # of the table itself
    async with DurableWorkflowExecutor(store=url) as executor:
        await executor.run(plain_steps, run_id="r1", count=STEPS)
        assert writes(sent) == 2 + 2 * STEPS
        await executor.run(pure_steps, run_id="r2", count=STEPS)
        assert writes(sent) == 2 + STEPS
        assert (await executor.run(items, run_id="r3", count=ITEMS)).output == ITEMS
        assert 2 < writes(sent) <= ITEMS / 10
