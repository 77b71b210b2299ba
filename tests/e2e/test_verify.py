"""Verifying: every kind of damage is found on every store, none hides another, and none is seen in health."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

from durable_core import DurableWorkflowExecutor
from durable_core.engine import pruning
from durable_core.engine.findings import DAMAGE, Finding
from durable_core.envelope import seal
from durable_core.errors import RunNotFound
from durable_core.journal.carrying import Kind, Record
from durable_core.records import RUNNING, Unreadable
from tests.aws_place import AwsPlace
from tests.damages import DAMAGES, RUN, SOUND_CHUNK, everything, run_everything
from tests.raw_store import RawStore, raw
from tests.stores import WITH_DYNAMODB, Place
from tests.waiting import full

STORES = WITH_DYNAMODB
SEEDS = range(20 if full() else 1)
HARMLESS = {"orphan-blob", "in-doubt", "left-started"}


@pytest.fixture
def under(place: Place, request: pytest.FixtureRequest) -> RawStore:
    """The rows and blobs below the place."""
    aws: AwsPlace | None = request.getfixturevalue("aws") if place.kind == "dynamodb" else None
    return raw(place, aws)


@pytest.fixture(autouse=True)
def _all_blobs_are_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pruning, "ORPHAN_AGE_S", -1)


async def findings_of(executor: DurableWorkflowExecutor) -> list[Finding]:
    """What there is to find in the one run."""
    (found,) = (await executor.verify(RUN)).runs
    return list(found.findings)


async def test_every_kind_of_damage_is_found_and_nothing_else_in_a_healthy_run(
    place: Place, under: RawStore
) -> None:
    executor = place.executor()
    await run_everything(executor)
    (healthy,) = (await executor.verify()).runs
    assert healthy.findings == ()
    assert (healthy.segments, healthy.events, healthy.blobs) == (len(under.rows("segment")), 3, 7)
    assert healthy.steps == len(under.rows("step"))
    before = under.snapshot()
    blobs = {ref: await executor.store.blobs.get(ref) async for ref in executor.store.blobs.refs(RUN)}
    under.put("chunk", under.new_chunk(SOUND_CHUNK))
    assert await findings_of(executor) == []
    under.undo(before, blobs)
    some = list(DAMAGES.items())
    if place.kind == "dynamodb" and not full():  # a look is a dozen requests there
        some = some[::3]
    missed = []
    for seed in SEEDS:
        for name, (kinds, doing) in some:
            named = doing(under, random.Random(seed))
            found = await findings_of(executor)
            told = [one for one in found if one.kind in kinds and named in (None, one.where)]
            if not told or any((one.severity == DAMAGE) == (one.kind in HARMLESS) for one in told):
                missed.append(f"{name} ({seed}): {named}, {found}")
            under.undo(before, blobs)
    assert missed == []
    assert (await executor.verify()).runs == (healthy,)


async def test_one_damaged_record_hides_no_other(place: Place, under: RawStore) -> None:
    executor = place.executor()
    await run_everything(executor)
    steps = [one for one in under.rows("step") if one["status"] == "COMMITTED" and one["output_data"]]
    for row in steps:
        under.put("step", row | {"status": "DONE"})
    under.put("segment", under.rows("segment")[0] | {"data": b"?"})
    under.put("event", under.rows("event")[0] | {"data": b"?"})
    under.put("header", under.row("header") | {"input_data": b"?"})
    found = await findings_of(executor)
    unknown = {one.where for one in found if one.kind in ("step-unknown", "step-unreadable")}
    assert unknown == {row["step_id"] for row in steps}
    others = sorted(one.kind for one in found if one.where not in unknown)
    assert others == ["value-damaged", "value-damaged"]
    assert [one.kind for one in found if one.kind.startswith("segment")] == ["segment-damaged"]


async def test_who_was_never_a_run_is_not_found(place: Place) -> None:
    with pytest.raises(RunNotFound):
        await place.executor().verify("nobody")


# ---- Whatever lies there ----

JUNK: dict[type, tuple[Any, ...]] = {
    str: (
        "",
        " ",
        "{",
        "[]",
        "{}",
        "[1]",
        '{"a":[]}',
        "null",
        "1e999",
        "\U0010ffff",
        "x" * 70_000,
        "a/../b",
        "[[",
        "]",
    ),
    int: (-1, 0, 1, 2**31, 2**53 + 1, 2**63 - 1, -(2**63)),
    bytes: (b"", b"\x00", b"\xff" * 100, b"{", b"[1]", b"[0,"),
}
NOT_KEYS = frozenset({"run_id", "pk", "sk"})


@pytest.mark.parametrize("seed", range(40 if full() else 2))
async def test_no_damage_stops_a_look(place: Place, under: RawStore, seed: int) -> None:
    """Columns of any kind with anything that the store takes, many at a time, also in what isn't checked."""
    executor, drawn = place.executor(), random.Random(seed)
    await run_everything(executor)
    before = under.snapshot()
    blobs = {ref: await executor.store.blobs.get(ref) async for ref in executor.store.blobs.refs(RUN)}
    for _ in range(3 if place.kind == "dynamodb" else 15):
        for _ in range(drawn.randrange(1, 6)):
            kind = drawn.choice(["header", "step", "step", "segment", "event"])
            row = dict(drawn.choice(under.rows(kind)))
            names = [name for name in row if name not in NOT_KEYS and type(row[name]) in JUNK]
            name = drawn.choice(names)
            if name in ("step_id", "name", "chunk", "seq", "status_shard", "due_shard"):
                continue  # another key is another row
            row[name] = drawn.choice(JUNK[type(row[name])])
            under.put(kind, row)
        (found,) = (await executor.verify(RUN)).runs
        assert found.steps == len(before["step"])
        under.undo(before, blobs)
    assert (await executor.verify(RUN)).is_sound


@pytest.mark.parametrize("place", ["memory", "sqlite"], indirect=True)
async def test_a_segment_that_says_anything_stops_no_look(place: Place, under: RawStore) -> None:
    """With the right hash: only what it says is wrong."""
    executor = place.executor()
    await run_everything(executor)
    before = under.snapshot()
    mark = "0" * 16
    for said in (
        b"",
        b"[",
        b"[0]",
        b'[0,"x",1,0,null,1]',
        b'[0,"-000000000000001",1,0,null,1]',
        f'[4294967295,"{mark}",1,0,null,1]'.encode(),
        f'[-1,"{mark}",1,0,null,1]'.encode(),
        f'[0,"{mark}",1,1,null,["x","json",1,"{"z" * 64}"]]'.encode(),
        f'[0,"{mark}",1,1,null,[]]'.encode(),
        f'[0,"{mark}",1,2,null,[]]'.encode(),
        f'[0,"{mark}",1,9,null,1]'.encode(),
        f'[0,"{mark}",1,0,5,1]'.encode(),
        f'[0,"{mark}",1,0,null,{"[" * 100_000}]'.encode(),
        b"[0,0,0]",
        b"[0,0,-1]",
        b"[0,0,99999999999]",
        b'["a",{},null]',
    ):
        for items in (1, 0):
            row = next(one for one in under.rows("segment") if one["step_id"] == "item")
            sealed = seal(said)
            told = {"data": sealed.data, "codec": sealed.codec, "size": sealed.size}
            under.put("segment", row | told | {"output_hash": sealed.output_hash, "items": items})
            assert not (await executor.verify(RUN)).is_sound, said
            under.undo(before, {})


async def test_a_run_that_goes_on_while_it_is_looked_at_is_not_taken_for_damaged(place: Place) -> None:
    """Its steps, events and segments are read one after the other, while others come."""
    executor, looker = place.executor(), place.executor()
    looks = number = 0
    while looks < 3:
        number += 1
        running = asyncio.create_task(run_everything(executor, f"r{number}"))
        while not running.done():
            await asyncio.sleep(0.002)
            for found in (await looker.verify()).runs:
                assert found.is_sound, found.findings
                looks += found.status == RUNNING
        await running
    assert [one.findings for one in (await looker.verify()).runs] == [()] * number


async def test_a_run_that_ended_while_it_was_looked_at_is_looked_at_again(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its steps and its events it waits once more, takes what has come, and completes."""
    executor, looker = place.executor(), place.executor()
    await executor.run(everything, run_id=RUN, size=10, on_wait="suspend")
    assert (await looker.verify(RUN)).runs[0].findings == ()  # a wait is in no doubt
    journal = looker.store.journal
    as_stored, looks = journal.as_stored, 0

    async def disturbed(run_id: str, kind: Kind) -> AsyncIterator[list[Record | Unreadable]]:
        nonlocal looks
        async for page in as_stored(run_id, kind):
            yield page
        looks += kind == "step"
        if kind == "step" and looks == 1:
            await executor.signal(RUN, "go", b"1", event_id="go-1")
            await executor.signal(RUN, "go", b"2", event_id="go-2")
            await executor.resume(RUN)

    monkeypatch.setattr(journal, "as_stored", disturbed)
    (found,) = (await looker.verify(RUN)).runs
    assert (found.findings, found.status, looks) == ((), "COMPLETED", 2)
