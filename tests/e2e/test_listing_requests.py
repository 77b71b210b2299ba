"""What a listing costs in requests to DynamoDB: a page of each shard of the index, and the headers shown."""

from __future__ import annotations

import random

import pytest

from durable_core.aws.table import SHARDS
from durable_core.journal._items import header_item
from durable_core.journal.base import RunFilter
from durable_core.records import LISTED
from durable_core.testing.samples import header
from tests.aws_place import AwsPlace
from tests.waiting import full

RUNS = 20_000 if full() else 1_500
PAGE = 50


@pytest.fixture
def listed(aws: AwsPlace) -> list[str]:
    """The ids of many runs of every status, newest first."""
    made = [
        header(
            f"r{n:05}",
            status=random.Random(n).choice(LISTED),
            created_at=f"2026-01-{1 + n // 1_000:02}T00:{n // 60 % 60:02}:{n % 60:02}.{n % 1_000:03}Z",
        )
        for n in range(RUNS)
    ]
    aws.write([header_item(one) for one in made])
    made.sort(key=lambda one: (one.created_at, one.run_id), reverse=True)
    return [one.run_id for one in made]


async def ids(aws: AwsPlace, wanted: RunFilter) -> list[str]:
    aws.faulty.sent.clear()
    return [one.run_id for one in await aws.journal().runs(wanted)]


async def test_the_first_page_reads_one_page_of_each_shard(aws: AwsPlace, listed: list[str]) -> None:
    assert await ids(aws, RunFilter(limit=PAGE)) == listed[:PAGE]
    assert aws.faulty.counts == {"query": SHARDS * len(LISTED), "batch_get_item": 1}


async def test_of_one_status_it_reads_the_shards_of_that(aws: AwsPlace, listed: list[str]) -> None:
    found = await ids(aws, RunFilter(status="FAILED", limit=PAGE))
    assert len(found) == PAGE
    assert found == [one for one in listed if one in set(found)]
    assert aws.faulty.counts == {"query": SHARDS, "batch_get_item": 1}


async def test_a_later_page_begins_where_the_one_before_ended(aws: AwsPlace, listed: list[str]) -> None:
    first = await aws.journal().runs(RunFilter(limit=PAGE))
    after = (first[-1].created_at, first[-1].run_id)
    assert await ids(aws, RunFilter(limit=PAGE, before=after)) == listed[PAGE : 2 * PAGE]
    # The run that the page begins after is at the end of the key's range: it is read once more.
    assert aws.faulty.counts == {"query": SHARDS * len(LISTED), "batch_get_item": 2}


async def test_an_age_is_part_of_the_key_that_is_asked_for(aws: AwsPlace, listed: list[str]) -> None:
    """So that it costs no more than what it finds."""
    since = "2026-01-02T00:00:00.000Z"
    found = await ids(aws, RunFilter(limit=RUNS, since=since))
    assert found == [one for one in listed if int(one[1:]) >= 1_000]
    asked = [request["KeyConditionExpression"] for request in aws.faulty.requests("query")]
    assert len(asked) >= SHARDS * len(LISTED)
    assert all("#created_at BETWEEN" in one for one in asked)
    assert await ids(aws, RunFilter(since=since, until="2026-01-01T00:00:00.000Z")) == []
    assert aws.faulty.counts == {}
