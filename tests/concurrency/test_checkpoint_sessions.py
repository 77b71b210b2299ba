"""Many processes save into one session, and are killed at it; `DURABLE_FULL=1` is full scale."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from durable_core import Checkpointer, CheckpointingConfig, get_checkpointer
from durable_core.checkpoints.base import CheckpointStore
from tests.e2e.programs.nursery import Nursery, is_over, open_nursery
from tests.e2e.programs.snapshots import SESSION, state_of
from tests.e2e.programs.witness import count, integrity, leave, noted
from tests.waiting import full, moment, until

pytestmark = pytest.mark.slow

PROCESSES = 8
SAVES = 1000 if full() else 100
KILLS = 100 if full() else 5
ALL = CheckpointingConfig(enabled=True, retention_per_session=0)


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    yield from open_nursery()


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if getattr(request, "param", "sqlite") == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return f"sqlite:///{tmp_path / 'agents.db'}"


@pytest.fixture
def checkpointer(url: str) -> Iterator[Checkpointer]:
    with get_checkpointer(ALL, url) as opened:
        opened.kept.open()
        yield opened


def acks(folder: Path, agent_id: str) -> list[tuple[int, int]]:
    """Seq and number of every save that an agent was told of."""
    return [(seq, number) for seq, number in noted(folder / f"{agent_id}.acks")]  # type: ignore[misc]  # our own lines


def kept(checkpoints: CheckpointStore) -> list[int]:
    return [place.seq for place in checkpoints.places(SESSION)]


@pytest.mark.parametrize("url", ["sqlite", "postgres"], indirect=True)
@pytest.mark.parametrize("retention", [0, 50])
def test_processes_that_save_at_once_share_a_session_without_gaps(
    retention: int, nursery: Nursery, url: str, checkpointer: Checkpointer, tmp_path: Path
) -> None:
    agents = [f"agent-{number}" for number in range(PROCESSES)]
    pids = [nursery.start("snapshots", url, agent, SAVES, retention, tmp_path) for agent in agents]
    leave(tmp_path / "go")
    assert [nursery.wait(pid, limit_s=600) for pid in pids] == [0] * PROCESSES
    told = {agent: acks(tmp_path, agent) for agent in agents}
    given = sorted(seq for found in told.values() for seq, _ in found)
    assert given == list(range(1, PROCESSES * SAVES + 1))
    assert all([seq for seq, _ in found] == sorted(seq for seq, _ in found) for found in told.values())
    newest = {agent: found[-1][0] for agent, found in told.items()}
    first_kept = given[-1] - retention + 1 if retention else 1
    assert kept(checkpointer.kept) == sorted({*newest.values(), *range(first_kept, given[-1] + 1)})
    latest = checkpointer.load_latest(SESSION)
    assert latest is not None
    assert latest.seq == given[-1]
    for agent in agents:
        found = checkpointer.load_latest(SESSION, agent)
        assert found is not None
        assert (found.seq, found.state) == (newest[agent], state_of(agent, SAVES - 1))


@pytest.mark.parametrize("inline_max_bytes", [None, 100])
def test_whatever_was_acknowledged_last_can_be_loaded_after_a_kill(
    inline_max_bytes: int | None, nursery: Nursery, url: str, checkpointer: Checkpointer, tmp_path: Path
) -> None:
    """Each save prunes, too: a kill meets the one as well as the other."""
    leave(tmp_path / "go")
    drawn, log = random.Random(inline_max_bytes), tmp_path / "agent.acks"
    for _ in range(KILLS):
        aim = count(log) + drawn.randrange(1, 12)
        pid = nursery.start("snapshots", url, "agent", 10_000, 2, tmp_path, inline_max_bytes)
        until(lambda pid=pid, aim=aim: count(log) >= aim or is_over(pid), "the moment of the kill")
        moment(drawn.uniform(0, 0.004))
        assert nursery.kill(pid) == -signal.SIGKILL
        seq, number = acks(tmp_path, "agent")[-1]
        latest = checkpointer.load_latest(SESSION)
        assert latest is not None
        assert latest.seq in (seq, seq + 1)  # one may have been saved, but not yet told of
        if latest.seq == seq:
            assert latest.state == state_of("agent", number)
        found = checkpointer.list(SESSION)
        assert all(one.state["agent"] == "agent" for one in found)
        assert len(found) == len(kept(checkpointer.kept)) <= 3
    assert integrity(tmp_path / "agents.db") == "ok"


def test_a_prune_that_is_killed_leaves_nothing_half_deleted(
    nursery: Nursery, url: str, checkpointer: Checkpointer, tmp_path: Path
) -> None:
    drawn = random.Random(3)
    leave(tmp_path / "go")
    checkpointer.kept.inline_max_bytes = 700
    for _ in range(KILLS):
        for number in range(120):
            checkpointer.kept.inline_max_bytes = 700 if number % 10 == 0 else 1_000_000
            checkpointer.save(SESSION, "agent", f"step-{number}", state_of("agent", number))
        (tmp_path / "pruning").unlink(missing_ok=True)
        before = checkpointer.stats(SESSION).latest_seq
        pid = nursery.start("forgetting", url, tmp_path)
        until(lambda pid=pid: (tmp_path / "pruning").exists() or is_over(pid), "the prune")
        moment(drawn.uniform(0, 0.01))
        nursery.kill(pid)
        latest = checkpointer.load_latest(SESSION)
        assert latest is not None
        assert (latest.seq, latest.state) == (before, state_of("agent", 119))
        found = checkpointer.list(SESSION, limit=1000)
        assert all(one.state["agent"] == "agent" for one in found)
    assert checkpointer.prune(SESSION, 1).kept == 1
    assert integrity(tmp_path / "agents.db") == "ok"


def test_forked_children_save_by_the_checkpointer_that_they_inherited(
    nursery: Nursery, url: str, checkpointer: Checkpointer, tmp_path: Path
) -> None:
    """Two of four are killed; what anybody was told of is there."""
    parent = nursery.start("inheriting", url, tmp_path, 4, SAVES // 2)
    (pids,) = until(lambda: noted(tmp_path / "pids"), "the children")
    assert isinstance(pids, list)
    for number in (0, 1):
        log = tmp_path / f"child-{number}.acks"
        until(lambda log=log: count(log) > 0, f"child {number}", limit_s=20)
        os.kill(pids[number], signal.SIGKILL)
    nursery.wait(parent, limit_s=600)
    told = [ack for log in tmp_path.glob("*.acks") for ack in acks(tmp_path, log.stem)]
    there = kept(checkpointer.kept)
    assert {seq for seq, _ in told} <= set(there)
    assert there == list(range(1, len(there) + 1))
    for agent in ("parent", "child-2", "child-3"):
        found = checkpointer.load_latest(SESSION, agent)
        assert found is not None
        assert found.state == state_of(agent, SAVES // 2 - 1)
    assert integrity(tmp_path / "agents.db") == "ok"


def test_a_pruned_session_of_growing_states_stays_small_and_fast(url: str, tmp_path: Path) -> None:
    """A state of 200 KB that grows, with five kept: neither the file nor the time of a save does."""
    saves = 10_000 if full() else 100
    drawn = random.Random(5)
    state = {"notes": [drawn.randbytes(60).hex() for _ in range(1600)]}
    config = CheckpointingConfig(enabled=True, retention_per_session=5)
    times = []
    with get_checkpointer(config, url) as checkpointer:
        for number in range(saves):
            state["notes"].append(f"note {number}")
            began = time.perf_counter()
            checkpointer.save(SESSION, "agent", str(number), state)
            times.append(time.perf_counter() - began)
            size = sum(path.stat().st_size for path in tmp_path.glob("agents.db*"))
            assert size < 20_000_000
        assert len(kept(checkpointer.kept)) == 5
        latest = checkpointer.load_latest(SESSION)
    assert latest is not None
    assert latest.state == state
    print(f"first tenth {sum(times[: saves // 10]):.2f} s, last {sum(times[-saves // 10 :]):.2f} s")  # noqa: T201 - a figure, not an assertion


def test_writers_go_on_while_a_large_session_is_deleted(
    nursery: Nursery, url: str, checkpointer: Checkpointer, tmp_path: Path
) -> None:
    """In small portions: none of them is kept waiting."""
    rows = 200_000 if full() else 5_000
    for number in range(3):
        checkpointer.save("large", "agent", str(number), state_of("agent", number))
    with closing(sqlite3.connect(tmp_path / "agents.db")) as other:
        other.execute(
            "WITH RECURSIVE n(i) AS (SELECT 4 UNION ALL SELECT i + 1 FROM n WHERE i < ?)"
            " INSERT INTO agent_checkpoints SELECT 'made-' || i, session_id, agent_id, step_id, i, format,"
            " size_bytes, state_hash, created_at, metadata, state_ref, state_blob FROM agent_checkpoints, n"
            " WHERE session_id = 'large' AND seq = 1",
            (rows,),
        )
        other.commit()
    pids = [nursery.start("snapshots", url, f"agent-{n}", 50, 5, tmp_path) for n in range(4)]
    leave(tmp_path / "go")
    assert checkpointer.delete_session("large") == rows
    assert [nursery.wait(pid, limit_s=120) for pid in pids] == [0] * 4
    assert checkpointer.stats("large").checkpoints == 0
    assert checkpointer.stats(SESSION).latest_seq == 200
