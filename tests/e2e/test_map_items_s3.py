"""Maps over manifests in S3: read a part at a time, beside the items, and on bad days as on good ones."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from durable_core import Context, DurableWorkflowExecutor, Jsonl, step, workflow
from durable_core.aws.ranges import RangedObject
from durable_core.errors import JournalUnavailable, ManifestError, MapFailed, RunFailed, StepMismatch
from tests.cloud import Cloud, open_clients
from tests.cloud_faults import DENIED, UNREACHABLE, FaultyTransport
from tests.e2e.batches import (
    World,
    batch_and_step,
    batch_of,
    failure,
    failure_again,
    outputs,
    raises,
    resumed,
    world,
)
from tests.manifests import Home, faulty_manifests, in_parts_of
from tests.stores import Place

STORES = ("sqlite",)  # what it is about lies before any store


class Doc(BaseModel):
    id: str
    pages: int = 1


@step
async def pages(doc: Doc) -> int:
    return doc.pages


@workflow
async def over_manifest(ctx: Context, path: str) -> list[int]:
    return list((await ctx.map(pages, Jsonl(path, type=Doc), key=lambda doc: doc.id)).outputs)


@pytest.fixture(autouse=True)
def _fresh_world() -> None:
    world.__dict__.update(World().__dict__)


@pytest.fixture
def home(cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("AWS_ENDPOINT_URL", cloud.endpoint)
    in_parts_of(monkeypatch, 2)
    made = Home(tmp_path, cloud).put(b"1\n2\n3\n4\n5\n6\n")
    world.items = lambda: Jsonl(made.path)
    return made


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[FaultyTransport]]:
    yield from faulty_manifests(monkeypatch)


async def test_items_are_read_from_s3(place: Place, home: Home) -> None:
    assert await outputs(place.executor()) == [10, 20, 30, 40, 50, 60]
    assert await outputs(place.executor()) == [10, 20, 30, 40, 50, 60]


async def test_the_manifest_and_the_runs_may_be_in_one_bucket(cloud: Cloud, home: Home) -> None:
    home.put(b'{"id": "a", "pages": 3}\n{"id": "b"}\n')
    executor = DurableWorkflowExecutor(store=cloud.url(cloud.new_table(), cloud.shared_bucket))
    assert (await executor.run(over_manifest, path=home.path)).output == [3, 1]
    await executor.close()


async def test_items_go_on_while_a_part_is_waited_for(
    place: Place, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    first_has_run = threading.Event()
    real = RangedObject.read

    def read(self: RangedObject, start: int, length: int) -> bytes:
        if start == 2:
            assert first_has_run.wait(10), "the first item waits for the second part"
        return real(self, start, length)

    monkeypatch.setattr(RangedObject, "read", read)
    world.gives[1] = lambda: first_has_run.set() or 10
    assert await outputs(place.executor()) == [10, 20, 30, 40, 50, 60]


def plan_after(faulty: list[FaultyTransport], start: int, fault: str, times: int) -> Any:
    """The body of an item that lets the reads from a byte on fail."""

    def give() -> int:
        part = f"bytes={start}-{start + 1}"
        faulty[-1].plan("get_object", fault, times=times, when=lambda request: request["Range"] == part)
        return 10

    return give


async def test_a_read_without_an_answer_is_made_again(
    place: Place, home: Home, faulty: list[FaultyTransport]
) -> None:
    world.options = {"max_concurrency": 1}
    world.gives[1] = plan_after(faulty, 4, UNREACHABLE, 2)
    assert await outputs(place.executor()) == [10, 20, 30, 40, 50, 60]
    assert faulty[0].counts["get_object"] == 8


async def test_a_run_whose_manifest_is_out_of_reach_is_released_and_goes_on_later(
    place: Place, home: Home, faulty: list[FaultyTransport]
) -> None:
    world.options = {"max_concurrency": 1}
    world.gives[1] = plan_after(faulty, 4, UNREACHABLE, 100)
    executor = place.executor()
    with pytest.raises(JournalUnavailable):
        await outputs(executor)
    assert (await executor.get("r1")).status == "PENDING"
    assert world.taken() == [1, 2]
    assert open_clients() == []
    assert await outputs(place.executor()) == [10, 20, 30, 40, 50, 60]
    assert world.taken() == [3, 4, 5, 6]


@pytest.mark.parametrize("change", ["replaced", "removed", "forbidden"])
async def test_a_manifest_that_does_not_stay_as_it_was_ends_the_map_and_can_be_put_back(
    change: str, place: Place, home: Home, faulty: list[FaultyTransport]
) -> None:
    def give() -> int:
        if change == "replaced":
            home.put(b"1\n2\n9\n4\n5\n6\n")
        elif change == "removed":
            home.remove()
        else:
            faulty[-1].plan("get_object", DENIED)
        return 10

    world.options, world.gives = {"max_concurrency": 1}, {1: give}
    error = await failure(place.executor())
    assert isinstance(error, MapFailed)
    assert isinstance(error.__cause__, ManifestError)
    assert home.path in str(error)
    ran = world.taken()
    assert ran in ([1], [1, 2])
    home.put(b"1\n2\n3\n4\n5\n6\n")
    world.gives = {}
    assert await resumed(place.executor()) == [10, 20, 30, 40, 50, 60]
    assert world.taken() == [one for one in (1, 2, 3, 4, 5, 6) if one not in ran]


async def test_a_manifest_that_is_gone_after_the_commit_is_a_mismatch(place: Place, home: Home) -> None:
    world.gives["end"] = raises(ValueError("not yet"))
    await failure(place.executor(), wf=batch_and_step)
    home.remove()
    del world.gives["end"]
    world.taken()
    error = await failure_again(place.executor(), wf=batch_and_step)
    assert isinstance(error, StepMismatch)
    assert isinstance(error.__cause__, ManifestError)
    assert await resumed(place.executor(), wf=batch_and_step, on_change="keep") == [10, 20, 30, 40, 50, 60]
    assert world.taken() == []


# ---- Shared among workers ----


async def served(place: Place) -> str:
    """Two workers pass over the store until the run is over; gives how it ended."""
    workers = [place.executor() for _ in range(2)]
    for _ in range(20):
        await asyncio.gather(*(one.worker(concurrency=2).recover() for one in workers))
        if (status := (await workers[0].get("r1")).status) in ("COMPLETED", "FAILED"):
            return status
    raise AssertionError("the run has no end")


async def test_workers_that_share_a_map_read_their_own_parts_of_the_object(
    place: Place, home: Home, faulty: list[FaultyTransport], monkeypatch: pytest.MonkeyPatch
) -> None:
    in_parts_of(monkeypatch, 100)
    world.options = {"distribute": True, "chunk_size": 2}
    assert (await place.executor().run(batch_of, run_id="r1", on_wait="suspend")).status == "SUSPENDED"
    planned = len(faulty)
    assert await served(place) == "COMPLETED"
    assert world.taken() == [1, 2, 3, 4, 5, 6]
    assert await outputs(place.executor()) == [10, 20, 30, 40, 50, 60]
    parts = {one["Range"] for made in faulty[planned:] for one in made.requests("get_object")}
    assert parts >= {"bytes=0-3", "bytes=4-7", "bytes=8-11"}


async def test_an_object_that_was_replaced_since_it_was_divided_ends_a_shared_map(
    place: Place, home: Home
) -> None:
    world.options = {"distribute": True, "chunk_size": 2}
    assert (await place.executor().run(batch_of, run_id="r1", on_wait="suspend")).status == "SUSPENDED"
    home.put(b"1\n2\n3\n4\n55\n6\n")
    assert await served(place) == "FAILED"
    assert world.taken() == []
    with pytest.raises(RunFailed, match="was changed"):
        await outputs(place.executor())
    home.put(b"1\n2\n3\n4\n5\n6\n")
    assert await resumed(place.executor()) == [10, 20, 30, 40, 50, 60]
