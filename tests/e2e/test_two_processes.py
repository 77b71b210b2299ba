"""Two processes want one run: one drives it, the other gives way, and takes over as soon as it may."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from durable_core import DurableWorkflowExecutor, RunResult
from durable_core.errors import RunBusy
from durable_core.journal.base import Claim
from durable_core.journal.sqlite import SqliteJournal
from durable_core.records import ACTIVE, Reply, RunHeader
from durable_core.stores import Store, open_store
from tests.e2e.programs.held import held
from tests.e2e.programs.nursery import Nursery, open_nursery
from tests.e2e.programs.witness import bodies, outcome, statuses
from tests.waiting import until

pytestmark = pytest.mark.slow

WELL_BEFORE_THE_LEASE_ENDS_S = 5


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    yield from open_nursery()


def drives(nursery: Nursery, folder: Path, name: str = "first", lease_s: float = 30) -> int:
    """A child that is inside the second step of r1."""
    pid = nursery.start("held", folder / "runs.db", "r1", folder, name, lease_s)
    until((folder / "inside").exists, "the body")
    return pid


async def test_the_later_of_two_gets_run_busy_before_any_body(nursery: Nursery, tmp_path: Path) -> None:
    pid = drives(nursery, tmp_path)
    before = bodies(tmp_path / "bodies")
    async with DurableWorkflowExecutor(db_path=tmp_path / "runs.db") as executor:
        for attempt in (
            executor.resume("r1", held),
            executor.run(held, run_id="r1", folder=str(tmp_path)),
            executor.run(held, resume_run_id="r1"),
        ):
            with pytest.raises(RunBusy, match=f"process {pid} ") as caught:
                await attempt
            assert 0 < caught.value.lease_left_s <= 30
    assert bodies(tmp_path / "bodies") == before
    (tmp_path / "go").write_text("on")
    assert nursery.wait(pid) == 0
    assert outcome(tmp_path, "first") == {"output": [1, "on", 3]}
    assert len(bodies(tmp_path / "bodies")) == 3


@pytest.mark.parametrize("reaped", [True, False], ids=["reaped", "zombie"])
async def test_a_killed_drivers_run_is_taken_over_at_once(
    reaped: bool, nursery: Nursery, tmp_path: Path
) -> None:
    pid = drives(nursery, tmp_path)
    if reaped:
        assert nursery.kill(pid) == -signal.SIGKILL
    else:
        nursery.leave_zombie(pid)
        os.kill(pid, 0)  # still answers
    (tmp_path / "go").write_text("on")
    began = time.monotonic()
    async with DurableWorkflowExecutor(db_path=tmp_path / "runs.db") as executor:
        result = await executor.resume("r1", held)
    assert time.monotonic() - began < WELL_BEFORE_THE_LEASE_ENDS_S
    assert result.output == [1, "on", 3]
    assert result.counts == {"COMMITTED": 3}
    assert [line.step_id for line in bodies(tmp_path / "bodies")] == ["first", "gate", "gate", "last"]


async def test_who_waits_for_a_busy_run_goes_on_with_it_when_its_driver_dies(
    nursery: Nursery, tmp_path: Path
) -> None:
    pid = drives(nursery, tmp_path)
    async with DurableWorkflowExecutor(db_path=tmp_path / "runs.db") as executor:
        waiting = asyncio.create_task(executor.run(held, run_id="r1", wait=True, folder=str(tmp_path)))
        await asyncio.wait((waiting,), timeout=0.3)
        assert not waiting.done()
        nursery.kill(pid)
        (tmp_path / "go").write_text("on")
        result = await asyncio.wait_for(waiting, WELL_BEFORE_THE_LEASE_ENDS_S)
    assert result.output == [1, "on", 3]


async def test_who_waits_for_a_busy_run_gets_its_result_when_its_driver_ends_it(
    nursery: Nursery, tmp_path: Path
) -> None:
    pid = drives(nursery, tmp_path)
    async with DurableWorkflowExecutor(db_path=tmp_path / "runs.db") as executor:
        waiting = asyncio.create_task(executor.run(held, run_id="r1", wait=True, folder=str(tmp_path)))
        await asyncio.wait((waiting,), timeout=0.3)
        (tmp_path / "go").write_text("on")
        assert (await waiting).output == [1, "on", 3]
    assert nursery.wait(pid) == 0
    assert {line.pid for line in bodies(tmp_path / "bodies")} == {pid}


async def test_a_driver_that_wakes_up_after_a_takeover_changes_nothing(
    nursery: Nursery, tmp_path: Path
) -> None:
    db = tmp_path / "runs.db"
    pid = drives(nursery, tmp_path, "old", lease_s=0.5)
    os.kill(pid, signal.SIGSTOP)
    (tmp_path / "go").write_text("new")
    async with DurableWorkflowExecutor(db_path=db) as executor:
        result = await executor.run(held, run_id="r1", wait=True, folder=str(tmp_path))
        assert result.output == [1, "new", 3]
        ended = await executor.store.journal.header("r1")
        steps = [view.record for view in await executor.steps("r1")]
        (tmp_path / "go").write_text("late")  # what the old driver's body returns
        os.kill(pid, signal.SIGCONT)
        assert nursery.wait(pid) == 1
        assert outcome(tmp_path, "old")["error"] == "FENCED"
        assert await executor.store.journal.header("r1") == ended
        assert [view.record for view in await executor.steps("r1")] == steps
    gates = [line for line in bodies(tmp_path / "bodies") if line.step_id == "gate"]
    assert len(gates) == 2
    assert len({line.key for line in gates}) == 1


async def test_a_driver_whose_lease_is_renewed_keeps_its_run_however_long_a_step_takes(
    nursery: Nursery, tmp_path: Path
) -> None:
    pid = drives(nursery, tmp_path, lease_s=0.6)
    async with DurableWorkflowExecutor(db_path=tmp_path / "runs.db") as executor:
        first = (await executor.get("r1")).lease_until_ms
        async with asyncio.timeout(10):
            while (await executor.get("r1")).lease_until_ms < first + 1200:  # two leases later
                with pytest.raises(RunBusy):
                    await executor.resume("r1", held)
    (tmp_path / "go").write_text("on")
    assert nursery.wait(pid) == 0


async def test_of_many_that_resume_at_once_one_drives(nursery: Nursery, tmp_path: Path) -> None:
    nursery.kill(drives(nursery, tmp_path))
    (tmp_path / "go").write_text("on")
    executors = [DurableWorkflowExecutor(db_path=tmp_path / "runs.db") for _ in range(6)]
    came = await asyncio.gather(*(one.resume("r1", held) for one in executors), return_exceptions=True)
    for one in executors:
        await one.close()
    assert {type(one) for one in came} <= {RunResult, RunBusy}
    assert [one.output for one in came if isinstance(one, RunResult)][:1] == [[1, "on", 3]]
    assert [line.step_id for line in bodies(tmp_path / "bodies")] == ["first", "gate", "gate", "last"]


class SeesThePast(SqliteJournal):
    """A journal whose next look at a header shows what it was."""

    past: RunHeader | None = None
    claims: list[bool]

    async def header(self, run_id: str) -> RunHeader | None:
        found, self.past = self.past, None
        return found or await super().header(run_id)

    async def acquire(
        self,
        seen: RunHeader,
        claim: Claim,
        *,
        statuses: Sequence[str] = ACTIVE,
        dead_owner: str | None = None,
    ) -> Reply[RunHeader]:
        reply = await super().acquire(seen, claim, statuses=statuses, dead_owner=dead_owner)
        self.claims.append(reply.ok)
        return reply


async def test_who_resumes_from_an_old_list_of_dead_runs_runs_nothing(
    nursery: Nursery, tmp_path: Path
) -> None:
    nursery.kill(drives(nursery, tmp_path))
    (tmp_path / "go").write_text("on")
    opened = open_store(f"sqlite:///{tmp_path}/runs.db")
    journal = SeesThePast(tmp_path / "runs.db")
    journal.claims = []
    async with DurableWorkflowExecutor(Store(opened.url, journal, opened.blobs)) as late:
        listed = await journal.header("r1")
        async with DurableWorkflowExecutor(opened) as prompt:
            assert (await prompt.resume("r1", held)).output == [1, "on", 3]
        before = bodies(tmp_path / "bodies")
        journal.past = listed
        with pytest.raises(RunBusy):
            await late.resume("r1", held)
        assert journal.claims == [False]
    assert bodies(tmp_path / "bodies") == before
    assert set(statuses(tmp_path / "runs.db", "r1").values()) == {"COMMITTED"}
