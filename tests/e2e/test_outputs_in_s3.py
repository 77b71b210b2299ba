"""Large outputs in S3 on bad days: no committed step points to what isn't there, and none is run again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from durable_core import Context, DurableWorkflowExecutor, step, workflow
from durable_core.blobs.s3 import S3Blobs
from durable_core.errors import (
    CorruptRecord,
    DurableError,
    JournalUnavailable,
    MissingBlob,
    RunFailed,
    StoreMisconfigured,
)
from durable_core.journal.sqlite import SqliteJournal
from durable_core.store import Store
from tests.cloud import Cloud
from tests.cloud_faults import DENIED, FAULTS, NO_KEY, REPLY_LOST, RETRYABLE, THROTTLED, FaultyTransport

ran: list[str] = []


@step
async def large(name: str) -> str:
    ran.append(name)
    return "".join(chr(0x4E00 + (ord(name[0]) * 7919 + index * 104729) % 20000) for index in range(9000))


@workflow
async def two(ctx: Context) -> list[int]:
    return [len(await ctx.step(large, "first")), len(await ctx.step(large, "second"))]


class Place:
    """Runs in a SQLite file, their large outputs in a bucket."""

    def __init__(self, cloud: Cloud, bucket: str, folder: Path) -> None:
        self.cloud, self.bucket = cloud, bucket
        self.transport = FaultyTransport(cloud.transport("aioboto3"))
        blobs = S3Blobs(self.transport, bucket)
        self.executor = DurableWorkflowExecutor(
            Store("test://", SqliteJournal(folder / "runs.db"), blobs, inline_max_bytes=1000)
        )

    async def ask(self, operation: str, **request: object) -> dict[str, object]:
        return await asyncio.to_thread(self.cloud.ask, "s3", operation, {"Bucket": self.bucket, **request})

    async def committed_refs(self) -> list[str]:
        steps = await self.executor.steps("r1")
        return [one.record.output_ref for one in steps if one.status == "COMMITTED" and one.record.output_ref]


@pytest.fixture
async def place(cloud: Cloud, tmp_path: Path) -> AsyncIterator[Place]:
    ran.clear()
    made = Place(cloud, await asyncio.to_thread(cloud.new_bucket), tmp_path)
    yield made
    await made.executor.close()


@pytest.mark.parametrize("fault", [one for one in FAULTS if one != REPLY_LOST])
async def test_an_output_that_cannot_be_put_leaves_no_pointer_and_the_run_goes_on_later(
    place: Place, fault: str
) -> None:
    place.transport.plan("put_object", fault, times=20, when=lambda _: "second" in ran)
    with pytest.raises(DurableError) as caught:
        await place.executor.run(two, run_id="r1")
    assert isinstance(caught.value, JournalUnavailable if fault in RETRYABLE else StoreMisconfigured)
    if fault not in RETRYABLE:
        assert place.bucket in str(caught.value)
    for ref in await place.committed_refs():
        await place.ask("get_object", Key=ref)
    assert len(await place.committed_refs()) == 1
    place.transport._planned.clear()
    assert (await place.executor.resume("r1", two)).output == [9000, 9000]
    assert ran == ["first", "second", "second"]
    assert len(await place.committed_refs()) == 2


@pytest.mark.parametrize("fault", sorted(RETRYABLE))
async def test_a_put_that_failed_once_goes_unnoticed(place: Place, fault: str) -> None:
    place.transport.plan("put_object", fault)
    assert (await place.executor.run(two, run_id="r1")).output == [9000, 9000]
    assert ran == ["first", "second"]


async def interrupted(place: Place) -> str:
    """A run with one committed step whose second one could not be stored; gives the ref of the first."""
    place.transport.plan("put_object", DENIED, when=lambda _: "second" in ran)
    with pytest.raises(StoreMisconfigured):
        await place.executor.run(two, run_id="r1")
    (ref,) = await place.committed_refs()
    ran.clear()
    return ref


@pytest.mark.parametrize(("data", "kind"), [(None, MissingBlob), (b"altered", CorruptRecord)])
async def test_an_output_that_is_gone_or_altered_stops_the_resume_before_any_step(
    place: Place, data: bytes | None, kind: type[DurableError]
) -> None:
    ref = await interrupted(place)
    if data is None:
        await place.ask("delete_object", Key=ref)
    else:
        await place.ask("put_object", Key=ref, Body=data)
    for _ in range(2):
        with pytest.raises(RunFailed, match=ref) as caught:
            await place.executor.resume("r1", two)
        assert caught.value.error["code"] == kind.code
        assert ran == []
    assert await place.committed_refs() == [ref]


@workflow(name="two")
async def catching(ctx: Context) -> list[int]:
    found = []
    for name in ("first", "second"):
        try:
            found.append(len(await ctx.step(large, name)))
        except Exception:  # what users write, and what must not let them take another path
            found.append(0)
    return found


async def test_an_output_whose_key_may_not_be_used_stops_the_resume_and_names_the_permission(
    place: Place,
) -> None:
    """Who may encrypt need not be allowed to decrypt, and S3 says no more than that access is denied."""
    await interrupted(place)
    place.transport.plan("get_object", NO_KEY, times=20)
    with pytest.raises(StoreMisconfigured, match="its KMS key can't be used") as caught:
        await place.executor.resume("r1", two)
    assert not caught.value.retryable
    assert (caught.value.run_id, caught.value.step_id) == ("r1", "large")
    assert "kms:Decrypt" in str(caught.value)
    assert ran == []


@pytest.mark.parametrize("fault", [DENIED, THROTTLED])
async def test_an_output_that_cannot_be_read_stops_the_resume_whatever_the_workflow_catches(
    place: Place, fault: str
) -> None:
    await interrupted(place)
    for flow in (two, catching):
        place.transport.plan("get_object", fault, times=20)
        with pytest.raises(StoreMisconfigured if fault == DENIED else JournalUnavailable) as caught:
            await place.executor.resume("r1", flow)
        assert (caught.value.run_id, caught.value.step_id) == ("r1", "large")
        assert place.bucket in str(caught.value)
    assert ran == []
    place.transport._planned.clear()
    assert (await place.executor.resume("r1", two)).output == [9000, 9000]
    assert ran == ["second"]
