"""What the end-to-end tests share: a place for runs, the same tests over every store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from durable_core.aws.transport import Transport
from tests.aws_place import AwsPlace
from tests.cloud import Cloud
from tests.stores import WITH_DYNAMODB, WITH_DYNAMODB_IF_FULL, Place, Processes
from tests.waiting import tasks_left


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Over all stores; at CI scale over DynamoDB only what asks for it. Or as a module says."""
    marked = [mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")]
    if "place" in metafunc.fixturenames and "place" not in marked:
        stores = getattr(metafunc.module, "STORES", WITH_DYNAMODB_IF_FULL)
        if metafunc.definition.get_closest_marker("over_dynamodb"):
            stores = WITH_DYNAMODB
        metafunc.parametrize("place", stores, indirect=True)


@pytest.fixture
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    url = request.getfixturevalue("postgres_url") if request.param == "postgres" else None
    opens = request.getfixturevalue("aws").store if request.param == "dynamodb" else None
    found = Place(request.param, tmp_path, url=url, opens=opens)
    yield found
    await found.close()
    assert await tasks_left() == set()


@pytest.fixture
def aws(moto_server: Cloud, lent_transport: Transport) -> Iterator[AwsPlace]:
    """A table that no other test has, with a prefix in a bucket that all have."""
    made = AwsPlace(moto_server, lent_transport)
    yield made
    lent_transport.call_now("dynamodb", "delete_table", {"TableName": made.table})


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> Processes:
    return Processes(monkeypatch)
