"""Verifying a run of a session: the checkpoints of its agents are what was saved, or are told of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from durable_core import Context, DurableWorkflowExecutor, step, workflow
from durable_core.blobs.base import SESSIONS, blob_ref
from durable_core.checkpoints.base import CheckpointRecord
from durable_core.engine.findings import DAMAGE
from durable_core.envelope import seal
from durable_core.settings import CheckpointingConfig
from tests.stores import Place


@dataclass
class Notes:
    """What only the agents know: verifying mustn't need it."""

    text: str


@step
async def note(number: int) -> Notes:
    return Notes("x" * number)


@workflow(name="noting")
async def noting(ctx: Context) -> int:
    for number in (1, 5000, 3):
        await ctx.step(note, number)
    return 3


async def noted(place: Place) -> DurableWorkflowExecutor:
    """Two runs of one session."""
    executor = place.executor(checkpointing=CheckpointingConfig(enabled=True))
    for run_id in ("r1", "r2"):
        await executor.run(noting, run_id=run_id, session_id="crew")
    await executor.run(noting, run_id="alone")
    return executor


def saved(**columns: Any) -> CheckpointRecord:
    """A sound record, as another agent saves it, but for some columns."""
    stored = seal(b'{"a":1}', codec="gzip")
    made = CheckpointRecord(
        "0" * 20, "crew", "risk", "damaged", 0, stored.codec, stored.size, stored.output_hash, "{}",
        1_750_000_000_000, stored.data,
    )  # fmt: skip
    return made._replace(**columns)


@pytest.mark.over_dynamodb
async def test_a_sound_session_is_counted_and_runs_without_one_are_not_asked_for_it(place: Place) -> None:
    executor = await noted(place)
    assert executor.store.checkpoints is not None
    executor.store.checkpoints.append(saved())
    report = await executor.verify()
    assert report.findings == []
    assert {run.run_id: run.checkpoints for run in report.runs} == {"r1": 7, "r2": 7, "alone": 0}


DAMAGES: dict[str, tuple[str, Callable[[], CheckpointRecord]]] = {
    "hash": ("checkpoint-damaged", lambda: saved(state_hash="0" * 64)),
    "state": ("checkpoint-damaged", lambda: saved(state=b'{"a":2}')),
    "size": ("checkpoint-damaged", lambda: saved(size_bytes=8)),
    "format": ("checkpoint-damaged", lambda: saved(format="json+zip")),
    "metadata": ("checkpoint-damaged", lambda: saved(metadata="{")),
    "blob": (
        "checkpoint-blob-missing",
        lambda: saved(state=None, state_ref=blob_ref("crew", "0" * 20, b"gone", SESSIONS)),
    ),
    "pointer": ("checkpoint-damaged", lambda: saved(state=None, state_ref="../../etc/passwd")),
}


@pytest.mark.over_dynamodb
async def test_every_damaged_checkpoint_is_found(place: Place) -> None:
    executor = await noted(place)
    kept = executor.store.checkpoints
    assert kept is not None
    for n, (name, (_, damaged)) in enumerate(DAMAGES.items()):
        kept.append(damaged()._replace(id=f"{n:020}", step_id=name))
    (found,) = (await executor.verify("r1")).runs
    assert (found.checkpoints, found.damaged, found.is_sound) == (6 + len(DAMAGES), len(DAMAGES), False)
    assert {one.where: one.kind for one in found.findings if one.severity == DAMAGE} == {
        name: kind for name, (kind, _) in DAMAGES.items()
    }
    assert found.root_hash is not None  # the run itself is sound
    assert (await executor.verify("alone")).is_sound
