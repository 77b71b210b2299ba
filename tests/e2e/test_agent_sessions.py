"""Runs with a session: a checkpoint after every successful step, whatever happens in between."""

from __future__ import annotations

import asyncio
import json
import threading
from datetime import date
from typing import Any, NamedTuple

import pytest
from pydantic import BaseModel, SecretStr
from typing_extensions import override

from durable_core import (
    Checkpointer,
    CheckpointingConfig,
    Context,
    DurableWorkflowExecutor,
    JournalUnavailable,
    RunFailed,
    UsageError,
    configure_logging,
    current_step,
    failed_saves,
    step,
    workflow,
)
from durable_core.blobs.base import SESSIONS
from durable_core.checkpoints.base import CheckpointRecord
from durable_core.checkpoints.memory import MemoryCheckpoints
from durable_core.errors import Fenced, InvalidId
from durable_core.journal.base import Claim, Departure, Holding, Lease
from durable_core.records import PENDING
from durable_core.store import Store
from durable_core.stores import open_store
from durable_core.testing.durable_writes import Watch, Write, watched
from tests.stores import Place, Processes, crash, verb_of

ON = CheckpointingConfig(enabled=True)
AT_COMPLETION = CheckpointingConfig(enabled=True, granularity="agent")
SESSION = "session-1"


class Notes(BaseModel):
    topic: str
    facts: list[int]


@step
def research(topic: str) -> Notes:
    return Notes(topic=topic, facts=[1, 2, 3])


@step
async def weigh(notes: Notes, factor: int = 2) -> dict[str, Any]:
    return {"sum": sum(notes.facts) * factor, "key": current_step().idempotency_key}


@step
def fail() -> None:
    raise ValueError("no")


@workflow
async def crew(ctx: Context, topic: str) -> int:
    notes = await ctx.step(research, topic)
    weighed = await ctx.step(weigh, notes, factor=3)
    await ctx.step_if(False, fail)
    return int(weighed["sum"])


async def side(ctx: Context, topic: str) -> int:
    notes = await ctx.step(research, topic)
    return len(notes.facts)


@workflow
async def two_sides(ctx: Context) -> int:
    pro, con = await ctx.parallel(ctx.branch(side, "pro"), ctx.branch(side, "con"))
    return int(pro + con)


@workflow
async def failing(ctx: Context) -> None:
    await ctx.step(research, "x")
    await ctx.step(fail)


def saved(store: Store, session_id: str = SESSION) -> list[tuple[str, str]]:
    """Agent and step of all checkpoints, oldest first."""
    found = Checkpointer(ON, store).list(session_id, limit=1000)
    return [(one.agent_id, one.step_id) for one in reversed(found)]


async def test_each_step_leaves_its_output_and_what_it_was_called_with(place: Place) -> None:
    executor = place.executor(checkpointing=ON)
    result = await executor.run(crew, session_id=SESSION, topic="otters")
    checkpointer = Checkpointer(ON, executor.store)
    assert saved(executor.store) == [("crew", "research"), ("crew", "weigh")]
    first, latest = checkpointer.load_by_step(SESSION, "research"), checkpointer.load_latest(SESSION)
    assert first is not None
    assert latest is not None
    assert first.state == Notes(topic="otters", facts=[1, 2, 3])
    assert latest.state["sum"] == result.output == 18
    assert latest.metadata["run_id"] == result.run_id
    assert latest.metadata["idempotency_key"] == latest.state["key"]
    assert latest.inputs == ((first.state,), {"factor": 3}, None)


@pytest.mark.over_dynamodb
async def test_a_step_is_replayed_from_its_checkpoint_as_it_ran_in_the_workflow(place: Place) -> None:
    executor = place.executor(checkpointing=ON)
    await executor.run(crew, session_id=SESSION, topic="otters")
    checkpointer = Checkpointer(ON, executor.store)
    assert checkpointer.replay(SESSION, "research", research).equal
    assert checkpointer.replay(SESSION, "weigh", weigh).equal  # current_step() tells the recorded key

    def other(notes: Notes, factor: int) -> dict[str, Any]:
        return {"sum": 17}

    found = checkpointer.replay(SESSION, "weigh", other)
    assert [(one.path, one.kind) for one in found.differences] == [(".sum", "changed"), (".key", "missing")]


@pytest.mark.parametrize("config", [None, CheckpointingConfig()])
async def test_nothing_is_saved_where_nothing_was_asked_for(
    place: Place, config: CheckpointingConfig | None
) -> None:
    executor = place.executor(checkpointing=config)
    await executor.run(crew, session_id=SESSION, topic="x")
    assert saved(executor.store) == []


async def test_a_run_without_a_session_saves_nothing(place: Place) -> None:
    executor = place.executor(checkpointing=ON)
    await executor.run(crew, topic="x")
    assert executor.store.checkpoints is not None
    assert list(executor.store.checkpoints.sessions()) == []


async def test_branches_are_agents_of_their_own(place: Place) -> None:
    executor = place.executor(checkpointing=ON)
    await executor.run(two_sides, session_id=SESSION)
    assert sorted(saved(executor.store)) == [("side", "side/research"), ("side#2", "side#2/research")]
    latest = Checkpointer(ON, executor.store).load_latest(SESSION, "side#2")
    assert latest is not None
    assert latest.state.topic == "con"


async def test_with_agent_granularity_only_completed_agents_are_saved(place: Place) -> None:
    executor = place.executor(checkpointing=AT_COMPLETION)
    await executor.run(two_sides, run_id="r", session_id=SESSION)
    assert saved(executor.store) == [("side", "side"), ("side#2", "side#2"), ("two_sides", "two_sides")]
    latest = Checkpointer(ON, executor.store).load_latest(SESSION)
    assert latest is not None
    assert latest.state == 6


async def test_a_step_that_fails_is_not_saved(place: Place) -> None:
    executor = place.executor(checkpointing=ON)
    with pytest.raises(RunFailed):
        await executor.run(failing, session_id=SESSION)
    assert saved(executor.store) == [("failing", "research")]


async def look_at(ctx: Context, number: int) -> int:
    return await ctx.step(add, number, 1)


@workflow
async def many(ctx: Context) -> int:
    result = await ctx.map(look_at, range(20))
    return sum(result.outputs)


async def test_steps_inside_the_items_of_a_map_are_of_one_agent(place: Place) -> None:
    config = CheckpointingConfig(enabled=True, retention_per_session=5)
    executor = place.executor(checkpointing=config)
    assert (await executor.run(many, session_id=SESSION)).output == 210
    found = saved(executor.store)
    assert {agent for agent, _ in found} == {"look_at"}
    assert len(found) == 5  # each item an agent would keep all of them


# ---- Crashes ----


@workflow
async def chain(ctx: Context) -> int:
    total = 0
    for number in range(4):
        total = await ctx.step(add, total, number)
    return total


@step
def add(total: int, number: int) -> int:
    return total + number


STEPS = ("add", "add#2", "add#3", "add#4")


@pytest.mark.parametrize("verb", ["begin", "commit"])
@pytest.mark.parametrize("moment", ["at", "after"])
@pytest.mark.parametrize("step_id", STEPS)
async def test_every_step_has_one_checkpoint_wherever_its_process_died(
    place: Place, processes: Processes, verb: str, moment: str, step_id: str
) -> None:
    """Also the step that was committed, but not yet saved."""
    dies: dict[str, Any] = {moment: verb_of(verb, step_id)}
    await crash(
        place,
        processes,
        lambda executor: executor.run(chain, run_id="r", session_id=SESSION),
        checkpointing=ON,
        **dies,
    )
    resumed = place.executor(checkpointing=ON)
    assert (await resumed.resume("r", chain)).output == 6
    assert saved(resumed.store) == [("chain", step_id) for step_id in STEPS]


async def test_a_resume_does_not_bring_back_what_was_pruned(place: Place, processes: Processes) -> None:
    config = CheckpointingConfig(enabled=True, retention_per_session=1)
    await crash(
        place,
        processes,
        lambda executor: executor.run(chain, run_id="r", session_id=SESSION),
        at=verb_of("begin", "add#4"),
        checkpointing=config,
    )
    assert saved(place.store()) == [("chain", "add#3")]
    resumed = place.executor(checkpointing=CheckpointingConfig(enabled=True))
    await resumed.resume("r", chain)
    assert saved(resumed.store) == [("chain", "add#3"), ("chain", "add#4")]


async def test_an_agent_that_had_completed_before_a_crash_is_not_saved_again(
    place: Place, processes: Processes
) -> None:
    await crash(
        place,
        processes,
        lambda executor: executor.run(two_sides, run_id="r", session_id=SESSION),
        at=lambda verb, *_: verb == "leave",
        checkpointing=AT_COMPLETION,
    )
    resumed = place.executor(checkpointing=AT_COMPLETION)
    await resumed.resume("r", two_sides)
    assert saved(resumed.store) == [("side", "side"), ("side#2", "side#2"), ("two_sides", "two_sides")]


# ---- Others ----


class Pause(Watch):
    """Checkpoints are saved only when `go_on` is set, or the run is left; `waits` is set by the first.

    Args:
        limit_s: After which they are saved all the same.
    """

    def __init__(self, limit_s: float) -> None:
        super().__init__()
        self.limit_s = limit_s
        self.waits, self.go_on = threading.Event(), threading.Event()

    @override
    def before(self, write: Write) -> None:
        if write.verb == "leave":
            self.go_on.set()
        if write.verb == "append checkpoint":
            self.waits.set()
            self.go_on.wait(self.limit_s)


async def taken_from(executor: DurableWorkflowExecutor, run_id: str) -> None:
    """Whoever drives the run counts as dead, and another has taken it over and released it."""
    journal = executor.store.journal
    seen = await journal.header(run_id)
    assert seen is not None
    mine = Claim(owner="rival", owner_process="{}", lease_ms=60_000, crashes=0)
    taken = (await journal.acquire(seen, mine, dead_owner=seen.owner)).row
    assert taken is not None
    lease = Lease(run_id, "rival", taken.fence, taken.base_fence)
    assert (await journal.leave(lease, Departure(status=PENDING))).ok


@pytest.mark.parametrize("inline_max_bytes", [None, 1], ids=["inline", "spilled"])
async def test_who_was_overtaken_as_it_saved_does_not_put_an_old_state_before_the_new_ones(
    place: Place, inline_max_bytes: int | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """And has failed at nothing; no blob of it is left."""
    configure_logging(level="info", style="json")
    pause, before = Pause(limit_s=60), failed_saves()
    store = watched(place.store(), pause)
    assert store.checkpoints is not None
    store.checkpoints.inline_max_bytes = inline_max_bytes or store.checkpoints.inline_max_bytes
    slow = place.executor(store=store, checkpointing=ON)
    zombie = asyncio.ensure_future(slow.run(chain, run_id="r", session_id=SESSION))
    await asyncio.to_thread(pause.waits.wait)
    other = place.executor(checkpointing=ON)
    await taken_from(other, "r")
    assert (await other.resume("r", chain)).output == 6
    pause.go_on.set()
    with pytest.raises(Fenced):
        await zombie
    assert saved(other.store) == [("chain", step_id) for step_id in STEPS]
    assert failed_saves() == before
    told = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    (stale,) = [line for line in told if line["event"] == "checkpoint_stale"]
    assert (stale["level"], stale["session_id"], stale["step_id"]) == ("info", SESSION, "add")
    assert [ref async for ref in other.store.blobs.refs(SESSION, of=SESSIONS)] == []


@pytest.mark.parametrize(("config", "step_id"), [(ON, "side/research"), (AT_COMPLETION, "side")])
async def test_a_run_is_not_left_before_what_its_agents_came_to_is_saved(
    place: Place, config: CheckpointingConfig, step_id: str
) -> None:
    """Saving takes a while, and another step fails the run meanwhile."""
    pause = Pause(limit_s=0.2)
    executor = place.executor(store=watched(place.store(), pause), checkpointing=config)

    @step
    def fail_meanwhile() -> None:
        pause.waits.wait()
        raise ValueError("no")

    @workflow
    async def side_by_side(ctx: Context) -> None:
        await asyncio.gather(ctx.parallel(ctx.branch(side, "x")), ctx.step(fail_meanwhile))

    with pytest.raises(RunFailed):
        await executor.run(side_by_side, run_id="r", session_id=SESSION)
    assert saved(executor.store) == [("side", step_id)]


# ---- What can't be saved ----


class FullCheckpoints(MemoryCheckpoints):
    def append(self, record: CheckpointRecord, lease: Holding | None = None) -> int:
        raise JournalUnavailable("no room is left")


async def test_a_checkpoint_that_can_not_be_saved_fails_no_run_and_is_counted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    configure_logging(level="warning", style="json")
    inner, before = open_store("memory://"), failed_saves()
    store = Store(inner.url, inner.journal, inner.blobs, checkpoints=FullCheckpoints())
    async with DurableWorkflowExecutor(store, checkpointing=ON) as executor:
        assert (await executor.run(chain, session_id=SESSION)).output == 6
    assert failed_saves() == before + len(STEPS)
    told = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["event"] for line in told] == ["checkpoint_not_saved"] * len(STEPS)
    assert told[0]["reason"] == "no room is left"
    assert (told[0]["session_id"], told[0]["step_id"]) == (SESSION, "add")


class Pair(NamedTuple):
    left: int
    right: date


@step
def pair() -> Pair:
    return Pair(1, date(2026, 1, 2))


@step
def sign_in(secret: SecretStr) -> str:
    return "signed in"


@workflow
async def odd(ctx: Context) -> None:
    await ctx.step(pair)
    await ctx.step(sign_in, SecretStr("hunter2"))


async def test_an_output_that_only_its_annotation_restores_is_saved_as_plain_data(place: Place) -> None:
    executor = place.executor(checkpointing=ON)
    await executor.run(odd, session_id=SESSION)
    found = Checkpointer(ON, executor.store).load_by_step(SESSION, "pair")
    assert found is not None
    assert found.state == [1, "2026-01-02"]


async def test_a_secret_is_not_recorded_and_the_replay_says_so(place: Place) -> None:
    executor = place.executor(checkpointing=ON)
    await executor.run(odd, session_id=SESSION)
    checkpointer = Checkpointer(ON, executor.store)
    found = checkpointer.load_by_step(SESSION, "sign_in")
    assert found is not None
    assert (found.state, found.inputs) == ("signed in", None)
    assert "hunter2" not in repr(found.metadata)
    with pytest.raises(UsageError, match="no recorded inputs"):
        checkpointer.replay(SESSION, "sign_in", sign_in)


@pytest.mark.parametrize("session_id", ["", "../x", "a/b", "x" * 129])
async def test_a_session_that_can_not_be_named_so_is_refused_before_the_run_exists(
    place: Place, session_id: str
) -> None:
    executor = place.executor()
    with pytest.raises(InvalidId, match="session id"):
        await executor.run(chain, run_id="r", session_id=session_id)
    with pytest.raises(InvalidId):
        await executor.start(chain, run_id="r", session_id=session_id)
    assert await executor.list() == []


def test_an_executor_whose_store_keeps_no_checkpoints_refuses_the_setting() -> None:
    inner = open_store("memory://")
    with pytest.raises(UsageError, match="keeps no agent checkpoints"):
        DurableWorkflowExecutor(Store(inner.url, inner.journal, inner.blobs), checkpointing=ON)
