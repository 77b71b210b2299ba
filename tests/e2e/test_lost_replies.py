"""A journal that loses replies or is out of reach: nothing runs twice or goes on without a record."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import pytest
from typing_extensions import override

from durable_core import Context, DurableWorkflowExecutor, Retry, current_step, step, workflow
from durable_core.blobs.memory import MemoryBlobs
from durable_core.errors import JournalUnavailable, RunFailed
from durable_core.journal.base import Journal
from durable_core.journal.memory import MemoryJournal
from durable_core.journal.sqlite import SqliteJournal
from durable_core.store import Store
from durable_core.testing.forwarding_journal import ForwardingJournal
from tests.stores import WITH_DYNAMODB, Place
from tests.waiting import full

P = ParamSpec("P")
T = TypeVar("T")


class Unreliable(ForwardingJournal):
    """Applies a verb and loses its reply, or doesn't apply it at all, as often as told.

    Attributes:
        loses: How many replies of a verb are lost yet, after it was applied.
        refuses: How many calls of a verb fail yet, before it is applied.
        skips: How many calls of a verb pass first.
        waited_s: How long a call says it has waited before it failed: from a second on it isn't made again.
    """

    def __init__(self, inner: Journal) -> None:
        super().__init__(inner)
        self.reliable()

    def reliable(self) -> None:
        self.loses, self.refuses, self.skips = Counter[str](), Counter[str](), Counter[str]()
        self.waited_s = 0.0

    @override
    async def ask(self, call: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **options: P.kwargs) -> T:
        verb = call.__name__
        if self.skips[verb]:
            self.skips[verb] -= 1
            return await super().ask(call, *args, **options)
        if self.refuses[verb]:
            self.refuses[verb] -= 1
            raise JournalUnavailable(f"{verb}: as planned, not applied", waited_s=self.waited_s)
        reply = await super().ask(call, *args, **options)
        if self.loses[verb]:
            self.loses[verb] -= 1
            raise JournalUnavailable(f"{verb}: as planned, applied")
        return reply


ran: list[tuple[str, str]] = []
actions: dict[str, Callable[[], None]] = {}


@pytest.fixture(autouse=True)
def _nothing_ran_yet() -> None:
    ran.clear()
    actions.clear()


@pytest.fixture(params=WITH_DYNAMODB if full() else ("memory", "sqlite"))
async def journal(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Unreliable]:
    url = request.getfixturevalue("postgres_url") if request.param == "postgres" else None
    opens = request.getfixturevalue("aws").store if request.param == "dynamodb" else None
    place = Place(request.param, tmp_path, url=url, opens=opens)
    yield Unreliable(place.store().journal)
    await place.close()


@pytest.fixture
async def executor(journal: Unreliable) -> AsyncIterator[DurableWorkflowExecutor]:
    """With a short lease: what an owner that isn't driving holds is soon free."""
    lease_s = 0.3 if isinstance(journal.inner, MemoryJournal | SqliteJournal) else 2
    async with DurableWorkflowExecutor(Store("test://", journal, MemoryBlobs()), lease_s=lease_s) as opened:
        yield opened


def noted(name: str) -> str:
    info = current_step()
    ran.append((info.step_id, info.idempotency_key))
    actions.get(info.step_id, lambda: None)()
    return name


@step
async def plain(name: str) -> str:
    return noted(name)


@step
def threaded(name: str) -> str:
    return noted(name)


@step(retry=Retry(max_attempts=2, initial_delay_s=0))
async def twice(name: str) -> str:
    noted(name)
    if current_step().attempt == 1:
        raise ValueError("as planned")
    return name


@workflow
async def flow(ctx: Context) -> list[str]:
    found = [await ctx.step(plain, "a"), await ctx.step(threaded, "b"), await ctx.step(twice, "c")]
    return found + await asyncio.gather(ctx.step(plain, "d"), ctx.step(plain, "e"))


OUTPUT = ["a", "b", "c", "d", "e"]
BODIES = ["plain", "plain#2", "plain#3", "threaded", "twice", "twice"]  # one raises once, and is retried


def bodies() -> list[str]:
    return [step_id for step_id, _ in ran]


CALLS = [
    pytest.param(verb, skipped, id=f"{verb}_{skipped + 1}")
    for verb, calls in (("create", 1), ("begin", 6), ("commit", 6), ("leave", 1))
    for skipped in range(calls)
]


@pytest.mark.parametrize(("verb", "skipped"), CALLS)
async def test_a_lost_reply_is_recognised_and_nothing_runs_twice(
    verb: str, skipped: int, journal: Unreliable, executor: DurableWorkflowExecutor
) -> None:
    journal.skips[verb], journal.loses[verb] = skipped, 1
    result = await executor.run(flow, run_id="r1")
    assert (result.status, result.output) == ("COMPLETED", OUTPUT)
    assert journal.loses[verb] == 0
    assert sorted(bodies()) == BODIES
    assert result.counts == {"COMMITTED": 5}


async def test_an_outcome_that_cannot_be_written_twice_is_written_the_third_time_without_another_body(
    journal: Unreliable, executor: DurableWorkflowExecutor
) -> None:
    journal.refuses["commit"] = 2
    assert (await executor.run(flow, run_id="r1")).output == OUTPUT
    assert sorted(bodies()) == BODIES


@pytest.mark.parametrize("verb", ["acquire", "leave", "begin", "commit"])
@pytest.mark.parametrize("how", ["lost", "refused"])
async def test_a_resume_stands_a_journal_that_fails_once(
    how: str, verb: str, journal: Unreliable, executor: DurableWorkflowExecutor
) -> None:
    actions["twice"] = raises_once()
    with pytest.raises(RunFailed):
        await executor.run(failing, run_id="r1")
    ran.clear()
    (journal.loses if how == "lost" else journal.refuses)[verb] = 1
    assert (await executor.resume("r1", failing)).output == ["a", "c"]
    assert journal.loses[verb] == journal.refuses[verb] == 0
    assert bodies() == ["twice"]


@workflow
async def failing(ctx: Context) -> list[str]:
    return [await ctx.step(plain, "a"), await ctx.step(twice, "c")]


def raises_once() -> Callable[[], None]:
    left = [1, 1]  # both attempts of the first run

    def act() -> None:
        if left:
            left.pop()
            raise ValueError("as planned")

    return act


@pytest.mark.parametrize("verb", ["header", "replay", "acquire", "begin", "commit", "leave"])
async def test_a_journal_that_stays_away_leaves_a_run_that_can_be_resumed(
    verb: str, journal: Unreliable, executor: DurableWorkflowExecutor
) -> None:
    actions["twice"] = raises_once()
    with pytest.raises(RunFailed):
        await executor.run(failing, run_id="r1")
    ran.clear()
    journal.refuses[verb], journal.waited_s = 100, 2
    with pytest.raises(JournalUnavailable):
        await executor.resume("r1", failing)
    journal.reliable()
    assert (await executor.resume("r1", failing, wait=True)).output == ["a", "c"]
    assert "plain" not in bodies()
    assert len({key for _, key in ran}) == 1


async def test_a_workflow_that_swallows_a_failed_commit_begins_no_further_step(
    journal: Unreliable, executor: DurableWorkflowExecutor
) -> None:
    swallowed: list[BaseException] = []

    @workflow(name="careless")
    async def careless(ctx: Context) -> str:
        for name in "abc":
            try:
                await ctx.step(plain, name)
            except Exception as error:  # as careless code does
                swallowed.append(error)
        return "as if nothing had happened"

    journal.refuses["commit"], journal.waited_s = 1, 2
    with pytest.raises(JournalUnavailable):
        await executor.run(careless, run_id="r1")
    assert [type(error) for error in swallowed] == [JournalUnavailable] * 3
    assert bodies() == ["plain"]
    assert (await executor.get("r1")).status == "PENDING"
    assert (await executor.resume("r1", careless)).status == "COMPLETED"
    assert bodies() == ["plain", "plain", "plain#2", "plain#3"]
    assert len({key for step_id, key in ran if step_id == "plain"}) == 1


async def test_an_outage_is_no_crash_however_often_it_comes(
    journal: Unreliable, executor: DurableWorkflowExecutor
) -> None:
    """Each time the body had run and its outcome could not be written; no process ever died."""
    journal.waited_s = 2
    for _ in range(4):
        journal.refuses["commit"] = 1
        with pytest.raises(JournalUnavailable):
            await executor.run(flow, run_id="r1")
    result = await executor.run(flow, run_id="r1")
    assert result.output == OUTPUT
    (first, *_) = await executor.steps("r1")
    assert first.record.crashes == 0


@pytest.mark.parametrize("verb", ["create", "acquire"])
async def test_a_call_that_is_cancelled_while_it_acquires_gives_the_run_back(verb: str) -> None:
    applied = asyncio.Event()

    class Slow(ForwardingJournal):
        @override
        async def ask(
            self, call: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **options: P.kwargs
        ) -> T:
            reply = await super().ask(call, *args, **options)
            if call.__name__ == verb and not applied.is_set():
                applied.set()
                await asyncio.sleep(3600)
            return reply

    @workflow(name="given_back")
    async def wf(ctx: Context) -> int:
        return 1

    executor = DurableWorkflowExecutor(Store("slow", Slow(MemoryJournal()), MemoryBlobs()))
    if verb == "acquire":
        await executor.start(wf, run_id="r1")
    running = asyncio.ensure_future(executor.run(wf, run_id="r1"))
    await applied.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    left = await executor.get("r1")
    assert (left.status, left.owner_process, left.crashes) == ("PENDING", None, 0)
    assert (await executor.run(wf, run_id="r1")).output == 1
