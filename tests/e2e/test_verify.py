"""Verifying: every kind of damage is found on every store, none hides another, and none is seen in health."""

from __future__ import annotations

import random

import pytest

from durable_core import DurableWorkflowExecutor
from durable_core.engine import pruning
from durable_core.engine.findings import DAMAGE, Finding
from durable_core.errors import RunNotFound
from tests.aws_place import AwsPlace
from tests.damages import DAMAGES, RUN, run_everything
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
    missed = []
    for seed in SEEDS:
        for name, (kinds, doing) in DAMAGES.items():
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
