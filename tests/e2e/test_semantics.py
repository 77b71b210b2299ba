"""What a step may be: run at least once or at most once, pure, conditional, timed out, tried again later."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from durable_core import (
    Context,
    Done,
    DurableWorkflowExecutor,
    NotDone,
    Retry,
    RetryLater,
    Step,
    current_step,
    step,
    workflow,
)
from durable_core.errors import (
    CrashLimitReached,
    DurableError,
    RunFailed,
    StepFailed,
    StepInDoubt,
    StepTimedOut,
)
from tests.stores import WITH_DYNAMODB, Place, Processes, crash, statuses, verb_of

STORES = WITH_DYNAMODB


class Bank:
    """A service that keeps what was ordered under a key; a process can die before or after it was."""

    def __init__(self) -> None:
        self.orders: dict[str, int] = {}
        self.bodies: list[str] = []
        self.asked: list[tuple[str, int]] = []
        self.answer: Any = None  # what the verifier gives instead of the truth

    def charge(self, key: str, amount: int) -> str:
        self.bodies.append(key)
        self.orders[key] = amount
        return f"paid {amount}"

    def verify(self, key: str, amount: int) -> Any:
        self.asked.append((key, amount))
        if self.answer is not None:
            if isinstance(self.answer, Exception):
                raise self.answer
            return self.answer
        return Done(f"paid {self.orders[key]}") if key in self.orders else NotDone()


def payment(bank: Bank, *, verified: bool = True, threaded: bool = False, **options: Any) -> Step[..., Any]:
    """An at_most_once step that charges."""

    def pay(amount: int) -> str:
        return bank.charge(current_step().idempotency_key, amount)

    async def pay_async(amount: int) -> str:
        return pay(amount)

    verify = {"verify": bank.verify} if verified else {}
    return step(name="pay", semantics="at_most_once", **verify, **options)(pay if threaded else pay_async)


def paying(pay: Step[..., Any]) -> Any:
    @step
    async def tell(text: str) -> str:
        return f"told {text}"

    @workflow(name="paying")
    async def paying(ctx: Context) -> str:
        return await ctx.step(tell, await ctx.step(pay, 5))

    return paying


# ---- at_most_once ----


@pytest.mark.parametrize("threaded", [False, True])
@pytest.mark.parametrize("verified", [False, True])
async def test_an_at_most_once_step_that_nothing_disturbs_is_a_step_like_any_other(
    verified: bool, threaded: bool, place: Place
) -> None:
    bank = Bank()
    result = await place.executor().run(paying(payment(bank, verified=verified, threaded=threaded)))
    assert result.output == "told paid 5"
    assert (len(bank.bodies), bank.asked) == (1, [])


@pytest.mark.parametrize("threaded", [False, True])
async def test_what_has_happened_before_a_crash_is_verified_and_not_done_again(
    threaded: bool, place: Place, processes: Processes
) -> None:
    bank = Bank()
    wf = paying(payment(bank, threaded=threaded))
    await crash(place, processes, lambda ex: ex.run(wf, run_id="r1"), at=verb_of("commit", "pay"))
    executor = place.executor()
    assert (await executor.resume("r1", wf)).output == "told paid 5"
    assert len(bank.bodies) == 1
    assert bank.asked == [(bank.bodies[0], 5)]
    assert await statuses(executor, "r1") == {"pay": "COMMITTED", "tell": "COMMITTED"}


async def test_what_has_not_happened_before_its_process_died_is_done_under_the_same_key(
    place: Place, processes: Processes
) -> None:
    bank = Bank()
    wf = paying(payment(bank))
    await crash(place, processes, lambda ex: ex.run(wf, run_id="r1"), after=verb_of("begin", "pay"))
    assert bank.bodies == []
    executor = place.executor()
    key = (await executor.steps("r1"))[0].record.idempotency_key
    assert (await executor.resume("r1", wf)).output == "told paid 5"
    assert bank.asked == [(key, 5)]
    assert bank.bodies == [key]


async def test_not_done_is_not_believed_of_an_owner_that_may_still_be_alive(
    place: Place, processes: Processes
) -> None:
    clock, bank = place.turn_clock(), Bank()
    wf = paying(payment(bank))
    processes.next_is_unknown()
    executor, journal = place.mortal()
    journal.dies_after = verb_of("begin", "pay")
    with pytest.raises(DurableError):
        await executor.run(wf, run_id="r1")
    processes.next_lives()
    clock.turn(31)
    later = place.executor()
    with pytest.raises(RunFailed) as caught:
        await later.resume("r1", wf)
    assert isinstance(caught.value.__cause__, StepInDoubt)
    assert "may still be alive" in str(caught.value)
    assert bank.bodies == []
    assert await statuses(later, "r1") == {"pay": "STARTED"}


async def test_done_is_believed_of_an_owner_that_may_still_be_alive(
    place: Place, processes: Processes
) -> None:
    clock, bank = place.turn_clock(), Bank()
    wf = paying(payment(bank))
    processes.next_is_unknown()
    executor, journal = place.mortal()
    journal.dies_at = verb_of("commit", "pay")
    with pytest.raises(DurableError):
        await executor.run(wf, run_id="r1")
    processes.next_lives()
    clock.turn(31)
    assert (await place.executor().resume("r1", wf)).output == "told paid 5"
    assert len(bank.bodies) == 1


@pytest.mark.parametrize("answer", ["yes", True, Done, NotDone, OSError("bank is closed")], ids=repr)
async def test_a_verifier_that_gives_no_answer_leaves_the_step_in_doubt_and_runs_nothing(
    answer: Any, place: Place, processes: Processes
) -> None:
    bank = Bank()
    wf = paying(payment(bank))
    await crash(place, processes, lambda ex: ex.run(wf, run_id="r1"), after=verb_of("begin", "pay"))
    bank.answer = answer
    executor = place.executor()
    for _ in range(2):
        with pytest.raises(RunFailed) as caught:
            await executor.resume("r1", wf)
        assert isinstance(caught.value.__cause__, StepInDoubt)
    assert bank.bodies == []


async def test_in_doubt_without_a_verifier_is_for_a_person_however_often_the_run_is_resumed(
    place: Place, processes: Processes
) -> None:
    bank = Bank()
    pay = payment(bank, verified=False)
    caught_by_workflow: list[BaseException] = []

    @workflow(name="catching")
    async def wf(ctx: Context) -> str:
        try:
            return await ctx.step(pay, 5)
        except Exception as error:
            caught_by_workflow.append(error)
            return "fallback"

    await crash(place, processes, lambda ex: ex.run(wf, run_id="r1"), after=verb_of("begin", "pay"))
    executor = place.executor()
    for _ in range(3):
        with pytest.raises(RunFailed) as caught:
            await executor.resume("r1", wf)
        assert isinstance(caught.value.__cause__, StepInDoubt)
        assert "skip" in str(caught.value.__cause__)
    assert (await executor.get("r1")).status == "FAILED"
    record = (await executor.steps("r1"))[0].record
    assert (record.status, record.crashes) == ("STARTED", record.crashes)
    assert record.crashes <= 1
    await executor.skip("r1", "pay", output="paid 5 by hand")
    assert (await executor.resume("r1", wf)).output == "paid 5 by hand"
    assert bank.bodies == []


async def test_a_failed_at_most_once_step_is_not_redriven_without_a_verifier(place: Place) -> None:
    bodies: list[int] = []

    @step(semantics="at_most_once")
    async def pay() -> None:
        bodies.append(1)
        raise OSError("connection lost")

    @workflow(name="once")
    async def wf(ctx: Context) -> None:
        await ctx.step(pay)

    executor = place.executor()
    for _ in range(3):
        with pytest.raises(RunFailed, match="connection lost"):
            await (executor.resume("r1", wf) if bodies else executor.run(wf, run_id="r1"))
    assert len(bodies) == 1


@pytest.mark.parametrize("happened", [True, False])
async def test_a_failed_at_most_once_step_with_a_verifier_is_verified_before_it_is_redriven(
    happened: bool, place: Place
) -> None:
    bank, bodies = Bank(), []

    @step(semantics="at_most_once", verify=bank.verify)
    async def pay(amount: int) -> str:
        bodies.append(current_step().idempotency_key)
        if len(bodies) == 1:
            if happened:
                bank.charge(current_step().idempotency_key, amount)
            raise OSError("connection lost")
        return bank.charge(current_step().idempotency_key, amount)

    wf = paying(pay)
    executor = place.executor()
    with pytest.raises(RunFailed):
        await executor.run(wf, run_id="r1")
    assert (await executor.resume("r1", wf)).output == "told paid 5"
    assert len(bank.asked) == 1
    assert bodies == bodies[:1] * (1 if happened else 2)
    assert len(bank.orders) == 1


@pytest.mark.parametrize("happened", [True, False])
async def test_a_timed_out_attempt_of_an_at_most_once_step_is_verified_before_the_next(
    happened: bool, place: Place
) -> None:
    bank, attempts = Bank(), []

    @step(
        semantics="at_most_once",
        verify=bank.verify,
        timeout_s=0.05,
        retry=Retry(max_attempts=2, initial_delay_s=0),
    )
    async def pay(amount: int) -> str:
        attempts.append(current_step().attempt)
        if len(attempts) > 1:
            return bank.charge(current_step().idempotency_key, amount)
        if happened:
            bank.charge(current_step().idempotency_key, amount)
        await asyncio.Event().wait()
        raise AssertionError

    assert (await place.executor().run(paying(pay))).output == "told paid 5"
    assert len(bank.asked) == 1
    assert attempts == ([1] if happened else [1, 2])
    assert len(bank.bodies) == 1


async def test_a_def_body_that_timed_out_and_goes_on_is_not_begun_beside_itself(place: Place) -> None:
    bank, go = Bank(), threading.Event()
    bodies: list[int] = []

    @step(
        semantics="at_most_once",
        verify=bank.verify,
        timeout_s=0.05,
        retry=Retry(max_attempts=2, initial_delay_s=0),
    )
    def pay(amount: int) -> str:
        bodies.append(1)
        go.wait(20)
        return bank.charge(current_step().idempotency_key, amount)

    executor = place.executor()
    try:
        with pytest.raises(RunFailed) as caught:
            await executor.run(paying(pay), run_id="r1")
    finally:
        go.set()
    assert isinstance(caught.value.__cause__, StepInDoubt)
    assert bodies == [1]


async def test_an_async_verifier_is_awaited(place: Place, processes: Processes) -> None:
    async def verify(key: str, amount: int) -> Done[str]:
        await asyncio.sleep(0)
        return Done(f"{amount} found")

    @step(semantics="at_most_once", verify=verify)
    async def pay(amount: int) -> str:
        return "paid"

    wf = paying(pay)
    await crash(place, processes, lambda ex: ex.run(wf, run_id="r1"), at=verb_of("commit", "pay"))
    assert (await place.executor().resume("r1", wf)).output == "told 5 found"


async def test_what_a_verifier_found_is_restored_by_the_annotation_as_an_output_is(
    place: Place, processes: Processes
) -> None:
    @step(semantics="at_most_once", verify=lambda key: Done([1, 2]))
    async def pay() -> tuple[int, ...]:
        return (1, 2)

    @workflow(name="restores")
    async def wf(ctx: Context) -> str:
        return repr(await ctx.step(pay))

    await crash(place, processes, lambda ex: ex.run(wf, run_id="r1"), at=verb_of("commit", "pay"))
    assert (await place.executor().resume("r1", wf)).output == "(1, 2)"


# ---- Crash accounting ----


@pytest.mark.parametrize("limit", [1, 2, 3])
async def test_a_step_whose_process_dies_too_often_fails_without_its_body(
    limit: int, place: Place, processes: Processes
) -> None:
    bodies: list[int] = []

    @step(crash_limit=limit)
    async def deadly() -> None:
        bodies.append(current_step().attempt)

    @workflow(name="dies")
    async def wf(ctx: Context) -> None:
        await ctx.step(deadly)

    for _ in range(limit):
        await crash(place, processes, lambda ex: ex.run(wf, run_id="r1"), at=verb_of("commit", "deadly"))
    executor = place.executor()
    with pytest.raises(RunFailed) as caught:
        await executor.resume("r1", wf)
    assert isinstance(caught.value.__cause__, CrashLimitReached)
    assert len(bodies) == limit
    assert str(caught.value.__cause__).count("CrashLimitReached") == 1
    record = (await executor.steps("r1"))[0].record
    assert (record.status, record.crashes) == ("FAILED", limit)
    assert [one["error"] for one in record.history()] == ["CRASHED"] * limit
    assert (await executor.resume("r1", wf)).counts == {"COMMITTED": 1}


async def test_a_run_whose_owners_die_without_finishing_anything_fails(
    place: Place, processes: Processes
) -> None:
    @step(pure=True)
    async def deadly() -> None:
        pass

    @workflow(name="dies_pure")
    async def wf(ctx: Context) -> None:
        await ctx.step(deadly)

    for _ in range(3):
        await crash(place, processes, lambda ex: ex.run(wf, run_id="r1"), at=verb_of("put", "deadly"))
    executor = place.executor(run_crash_limit=3)
    with pytest.raises(RunFailed, match="3 owners in a row died"):
        await executor.resume("r1", wf)
    assert (await executor.get("r1")).status == "FAILED"
    assert (await executor.resume("r1", wf)).status == "COMPLETED"


async def test_a_run_whose_owners_finish_something_each_time_may_die_for_ever(
    place: Place, processes: Processes
) -> None:
    @step
    async def work(number: int) -> int:
        return number

    @workflow(name="creeps")
    async def wf(ctx: Context) -> int:
        return sum([await ctx.step(work, number) for number in range(8)])

    for number in range(1, 8):
        await crash(
            place,
            processes,
            lambda ex: ex.run(wf, run_id="r1"),
            at=verb_of("begin", f"work#{number + 1}"),
        )
    executor = place.executor(run_crash_limit=2)
    assert (await executor.resume("r1", wf)).output == 28


async def test_suspects_run_one_at_a_time_while_others_go_on(place: Place, processes: Processes) -> None:
    running: set[str] = set()
    together: list[frozenset[str]] = []
    first = True

    @step
    async def work(name: str) -> str:
        running.add(name)
        together.append(frozenset(running))
        await asyncio.sleep(0.06)  # longer than any store takes to begin a step
        running.discard(name)
        return name

    @workflow(name="suspects")
    async def wf(ctx: Context) -> list[str]:
        names = ["a", "b", "c"] if first else ["a", "b", "c", "x", "y"]
        return list(await asyncio.gather(*(ctx.step(work, name) for name in names)))

    begun: list[str] = []

    def all_begun(verb: str, *args: Any) -> bool:
        begun.extend([verb] if verb == "begin" else [])
        return verb == "commit"

    await crash(place, processes, lambda ex: ex.run(wf, run_id="r1"), at=all_begun)
    assert begun == ["begin"] * 3
    assert frozenset("abc") in together
    first = False
    running.clear()
    together.clear()
    result = await place.executor().resume("r1", wf)
    assert result.output == ["a", "b", "c", "x", "y"]
    assert all(len(seen & set("abc")) <= 1 for seen in together)
    assert any(seen >= {"x", "y"} and seen & set("abc") for seen in together)


async def test_suspects_that_the_next_owner_did_not_reach_before_it_died_too_stay_suspects(
    place: Place, processes: Processes
) -> None:
    running: set[str] = set()
    together: list[frozenset[str]] = []

    @step
    async def work(name: str) -> str:
        running.add(name)
        together.append(frozenset(running))
        await asyncio.sleep(0.06)  # longer than any store takes to begin a step
        running.discard(name)
        return name

    @workflow(name="suspects_again")
    async def wf(ctx: Context) -> list[str]:
        return list(await asyncio.gather(*(ctx.step(work, name) for name in "abc")))

    def commits(verb: str, *_: Any) -> bool:
        return verb == "commit"

    for _ in range(2):
        running.clear()
        together.clear()
        await crash(place, processes, lambda ex: ex.run(wf, run_id="r1"), at=commits)
    assert together == [frozenset("a")]
    running.clear()
    together.clear()
    assert (await place.executor().resume("r1", wf)).output == ["a", "b", "c"]
    assert sorted(map(sorted, together)) == [["a"], ["b"], ["c"]]


# ---- pure ----


async def test_a_pure_step_is_one_write_and_replays(place: Place) -> None:
    bodies: list[int] = []

    @step(pure=True)
    async def square(number: int) -> int:
        bodies.append(number)
        return number * number

    @workflow(name="squares")
    async def wf(ctx: Context) -> list[int]:
        return [await ctx.step(square, number) for number in (2, 3)]

    executor, journal = place.mortal()
    assert (await executor.run(wf, run_id="r1")).output == [4, 9]
    assert [verb for verb in journal.calls if verb in ("begin", "commit", "put")] == ["put", "put"]
    journal.calls.clear()
    assert (await executor.fork("r1", wf=wf, new_run_id="r2")).kept == ["square", "square#2"]
    assert (await executor.resume("r2", wf)).output == [4, 9]
    assert bodies == [2, 3]


async def test_a_pure_step_is_tried_again_and_failed_like_any_other(place: Place) -> None:
    bodies: list[int] = []

    @step(pure=True, retry=Retry(max_attempts=3, initial_delay_s=0))
    async def flaky(fails: int) -> int:
        bodies.append(current_step().attempt)
        if len(bodies) <= fails:
            raise ValueError("no")
        return len(bodies)

    @workflow(name="flaky_pure")
    async def wf(ctx: Context, fails: int) -> int:
        return await ctx.step(flaky, fails)

    executor = place.executor()
    assert (await executor.run(wf, fails=2)).output == 3
    assert bodies == [1, 2, 3]
    bodies.clear()
    with pytest.raises(RunFailed, match="no"):
        await executor.run(wf, run_id="r1", fails=3)
    assert await statuses(executor, "r1") == {"flaky": "FAILED"}
    assert (await executor.resume("r1", wf)).output == 4


async def test_a_pure_step_that_a_process_died_in_runs_again_and_adopts_what_was_put(
    place: Place, processes: Processes
) -> None:
    bodies: list[int] = []

    @step(pure=True)
    async def draw() -> int:
        bodies.append(1)
        return len(bodies)

    @workflow(name="draws")
    async def wf(ctx: Context) -> int:
        return await ctx.step(draw)

    await crash(place, processes, lambda ex: ex.run(wf, run_id="r1"), at=verb_of("put", "draw"))
    await crash(place, processes, lambda ex: ex.run(wf, run_id="r1"), after=verb_of("put", "draw"))
    assert (await place.executor().resume("r1", wf)).output == 2
    assert len(bodies) == 2


# ---- step_if ----


@pytest.mark.parametrize("first", [True, False])
async def test_the_recorded_outcome_of_a_condition_wins_whatever_it_is_later(
    first: bool, place: Place, processes: Processes
) -> None:
    condition, bodies = first, []

    @step
    async def notify(who: str) -> str:
        bodies.append(who)
        return f"told {who}"

    @step
    async def last() -> int:
        return 1

    @workflow(name="maybe")
    async def wf(ctx: Context) -> str | None:
        found = await ctx.step_if(condition, notify, "you")
        await ctx.step(last)
        return found

    await crash(place, processes, lambda ex: ex.run(wf, run_id="r1"), at=verb_of("begin", "last"))
    condition = not first
    executor = place.executor()
    result = await executor.resume("r1", wf)
    assert result.output == ("told you" if first else None)
    assert bodies == (["you"] if first else [])
    assert await statuses(executor, "r1") == {
        "notify": "COMMITTED" if first else "SKIPPED",
        "last": "COMMITTED",
    }
    assert result.counts == ({"COMMITTED": 2} if first else {"COMMITTED": 1, "SKIPPED": 1})


async def test_a_condition_that_turns_false_does_not_skip_a_step_that_was_begun(
    place: Place, processes: Processes
) -> None:
    condition, bodies = True, []

    @step
    async def notify() -> str:
        bodies.append(1)
        return "told"

    @workflow(name="maybe_begun")
    async def wf(ctx: Context) -> str | None:
        return await ctx.step_if(condition, notify)

    await crash(place, processes, lambda ex: ex.run(wf, run_id="r1"), at=verb_of("commit", "notify"))
    condition = False
    assert (await place.executor().resume("r1", wf)).output == "told"
    assert len(bodies) == 2


async def test_a_skipped_step_still_counts_for_the_ids_of_the_next(place: Place) -> None:
    @step
    async def work(number: int) -> int:
        return number

    @workflow(name="maybes")
    async def wf(ctx: Context) -> list[int | None]:
        return [await ctx.step_if(number != 1, work, number) for number in range(3)]

    executor = place.executor()
    assert (await executor.run(wf, run_id="r1")).output == [0, None, 2]
    assert await statuses(executor, "r1") == {"work": "COMMITTED", "work#2": "SKIPPED", "work#3": "COMMITTED"}


# ---- Retries, later and in time ----


async def test_retries_follow_their_delays_and_are_recorded_and_not_in_doubt(place: Place) -> None:
    clock = place.turn_clock()

    @step(retry=Retry(max_attempts=4, initial_delay_s=1, factor=2, max_delay_s=3, jitter=0))
    async def flaky() -> int:
        info = current_step()
        if info.attempt < 4:
            raise ValueError(f"attempt {info.attempt}")
        return info.attempt

    @workflow(name="retries")
    async def wf(ctx: Context) -> int:
        return await ctx.step(flaky)

    executor = place.executor()
    assert (await executor.run(wf, run_id="r1")).output == 4
    assert clock.slept == [1, 2, 3]
    record = (await executor.steps("r1"))[0].record
    assert (record.attempt, record.crashes, record.error) == (4, 0, None)
    assert [(one["attempt"], one["error"]) for one in record.history()] == [(n, "ERROR") for n in (1, 2, 3)]


async def test_a_crash_while_a_step_waits_for_its_retry_keeps_the_time_and_the_budget(
    place: Place, processes: Processes
) -> None:
    clock = place.turn_clock(waits=True)
    attempts: list[int] = []

    @step(retry=Retry(max_attempts=2, initial_delay_s=60, jitter=0))
    async def flaky() -> int:
        attempts.append(current_step().attempt)
        raise ValueError("no")

    @workflow(name="waits")
    async def wf(ctx: Context) -> int:
        return await ctx.step(flaky)

    async def dies_waiting(executor: DurableWorkflowExecutor) -> None:
        running = asyncio.ensure_future(executor.run(wf, run_id="r1"))
        while not clock.slept:  # noqa: ASYNC110 - the engine's wait has no event to wait for
            await asyncio.sleep(0)
        executor.store.journal.die()  # type: ignore[attr-defined]
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    processes.next_is_doomed()
    await dies_waiting(place.mortal()[0])
    processes.next_lives()
    executor = place.executor()
    record = (await executor.steps("r1"))[0].record
    assert (record.status, record.crashes) == ("STARTED", 0)
    clock.slept.clear()
    clock.turn(20)
    resumed = asyncio.ensure_future(executor.resume("r1", wf))
    while not clock.slept:  # noqa: ASYNC110 - as above
        await asyncio.sleep(0)
    assert clock.slept == [40]
    assert attempts == [1]
    clock.turn(40)
    with pytest.raises(RunFailed, match="no"):
        await resumed
    record = (await executor.steps("r1"))[0].record
    assert (attempts, record.crashes, record.status) == ([1, 2], 0, "FAILED")


async def test_retry_later_sets_its_own_delay_and_uses_up_an_attempt(place: Place) -> None:
    clock = place.turn_clock()

    @step(retry=Retry(max_attempts=3, initial_delay_s=1, jitter=0, retry_on=(KeyError,)))
    async def throttled() -> None:
        raise RetryLater(7.5, "come back")

    @workflow(name="throttled_run")
    async def wf(ctx: Context) -> None:
        await ctx.step(throttled)

    executor = place.executor()
    with pytest.raises(RunFailed) as caught:
        await executor.run(wf, run_id="r1")
    assert clock.slept == [7.5, 7.5]
    assert isinstance(caught.value.__cause__, StepFailed)
    assert caught.value.__cause__.error["type"] == "RetryLater"
    assert (await executor.steps("r1"))[0].record.attempt == 3


async def test_an_exception_to_give_up_on_fails_at_once(place: Place) -> None:
    clock = place.turn_clock()

    @step(retry=Retry(max_attempts=9, give_up_on=(ValueError,)))
    async def refused() -> None:
        raise UnicodeDecodeError("utf-8", b"", 0, 1, "is a ValueError")

    @workflow(name="refused_run")
    async def wf(ctx: Context) -> None:
        await ctx.step(refused)

    with pytest.raises(RunFailed):
        await place.executor().run(wf)
    assert clock.slept == []


async def test_an_async_body_that_is_too_slow_is_cancelled_and_tried_again(place: Place) -> None:
    cancelled: list[int] = []

    @step(timeout_s=0.05, retry=Retry(max_attempts=2, initial_delay_s=0))
    async def slow() -> str:
        if current_step().attempt == 2:
            return "in time"
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(1)
            raise
        raise AssertionError

    @workflow(name="slow_run")
    async def wf(ctx: Context) -> str:
        return await ctx.step(slow)

    executor = place.executor()
    assert (await executor.run(wf, run_id="r1")).output == "in time"
    assert cancelled == [1]
    assert (await executor.steps("r1"))[0].attempts[0]["error"] == "STEP_TIMED_OUT"


async def test_a_time_out_of_the_bodys_own_is_not_the_steps(place: Place) -> None:
    @step(timeout_s=30)
    async def impatient() -> None:
        async with asyncio.timeout(0.01):
            await asyncio.Event().wait()

    @workflow(name="impatient_run")
    async def wf(ctx: Context) -> None:
        await ctx.step(impatient)

    with pytest.raises(RunFailed) as caught:
        await place.executor().run(wf)
    cause = caught.value.__cause__
    assert isinstance(cause, StepFailed)
    assert cause.error["type"] == "TimeoutError"
    assert not isinstance(cause.__cause__, StepTimedOut)


async def test_the_late_result_of_a_def_body_is_refused(place: Place) -> None:
    go, ended = threading.Event(), threading.Event()

    @step(timeout_s=0.05, retry=Retry(max_attempts=2, initial_delay_s=0))
    def slow() -> str:
        attempt = current_step().attempt
        if attempt == 1:
            go.wait(20)
            ended.set()
        return f"attempt {attempt}"

    @workflow(name="slow_def")
    async def wf(ctx: Context) -> str:
        found = await ctx.step(slow)
        go.set()
        await asyncio.to_thread(ended.wait, 20)
        return found

    executor = place.executor()
    try:
        assert (await executor.run(wf, run_id="r1")).output == "attempt 2"
    finally:
        go.set()
    view = (await executor.steps("r1"))[0]
    assert await view.output() == "attempt 2"
    assert view.record.attempt == 2


async def test_options_can_be_varied_at_the_call_and_the_step_stays_as_it_was(place: Place) -> None:
    @step(retry=Retry(max_attempts=3, initial_delay_s=0))
    async def flaky() -> int:
        if current_step().attempt < 3:
            raise ValueError("no")
        return current_step().attempt

    @workflow(name="varied")
    async def wf(ctx: Context) -> list[Any]:
        try:
            await ctx.step(flaky.with_options(retry=Retry(max_attempts=1), name="once"))
        except StepFailed as error:
            return [error.step_id, await ctx.step(flaky)]
        raise AssertionError

    assert (await place.executor().run(wf)).output == ["once", 3]


async def test_a_cancelled_error_of_the_bodys_own_is_a_failure_of_the_step(place: Place) -> None:
    @step
    async def odd() -> None:
        raise asyncio.CancelledError

    @workflow(name="odd_run")
    async def wf(ctx: Context) -> str:
        try:
            await ctx.step(odd)
        except StepFailed as error:
            return error.error["type"]
        raise AssertionError

    assert (await place.executor().run(wf)).output == "CancelledError"


async def test_system_exit_in_a_body_is_a_failure_of_the_step(place: Place) -> None:
    @step
    def leaves() -> None:
        raise SystemExit(3)

    @workflow(name="leaves_run")
    async def wf(ctx: Context) -> str:
        try:
            await ctx.step(leaves)
        except StepFailed as error:
            return error.error["type"]
        raise AssertionError

    assert (await place.executor().run(wf)).output == "SystemExit"


async def test_a_step_called_in_the_body_of_another_is_refused(place: Place) -> None:
    holder: list[Context] = []

    @step
    async def inner() -> int:
        return 1

    @step
    async def outer() -> int:
        return await holder[0].step(inner)

    @workflow(name="nested")
    async def wf(ctx: Context) -> int:
        holder.append(ctx)
        return await ctx.step(outer)

    executor = place.executor()
    with pytest.raises(RunFailed, match="inside the body of a step"):
        await executor.run(wf, run_id="r1")
    assert await statuses(executor, "r1") == {"outer": "FAILED"}


async def test_outside_a_workflow_a_step_is_the_plain_function() -> None:
    @step(retry=Retry(max_attempts=3), timeout_s=1)
    async def twice(number: int) -> int:
        return number * 2

    @step
    def thrice(number: int) -> int:
        return number * 3

    assert await twice(2) == 4
    assert thrice(2) == 6


# ---- Verifiers on bad days ----


class Till:
    """Takes payments; its answers can be lost."""

    def __init__(self) -> None:
        self.paid: list[str] = []
        self.asked = 0

    def verify(self, key: str) -> Done[str] | NotDone:
        self.asked += 1
        return Done("receipt") if key in self.paid else NotDone()


async def test_an_at_most_once_body_that_raised_is_verified_before_the_next_try(place: Place) -> None:
    till = Till()

    @step(semantics="at_most_once", verify=till.verify, retry=Retry(max_attempts=3, initial_delay_s=0))
    async def pay() -> str:
        till.paid.append(current_step().idempotency_key)
        raise ConnectionError("the answer was lost")

    @workflow(name="paying_once")
    async def wf(ctx: Context) -> str:
        return await ctx.step(pay)

    assert (await place.executor().run(wf)).output == "receipt"
    assert (len(till.paid), till.asked) == (1, 1)


@pytest.mark.parametrize(
    "answer", [ConnectionError("down"), SystemExit(3), Done(object()), Done("text"), "yes"]
)
async def test_a_verifier_that_gives_no_usable_answer_leaves_the_step_in_doubt_until_it_does(
    place: Place, processes: Processes, answer: Any
) -> None:
    answers: list[Any] = [answer, NotDone()]
    bodies: list[int] = []

    def verify(key: str) -> Any:
        found = answers.pop(0)
        if isinstance(found, BaseException):
            raise found
        return found

    @step(semantics="at_most_once", verify=verify)
    async def pay() -> int:
        bodies.append(1)
        return 7

    @workflow(name="doubtful")
    async def wf(ctx: Context) -> int:
        try:
            return await ctx.step(pay)
        except StepFailed:
            return -1

    await crash(place, processes, lambda ex: ex.run(wf, run_id="r1"), after=verb_of("begin", "pay"))
    bodies.clear()
    with pytest.raises(RunFailed) as caught:
        await place.executor().resume("r1", wf)
    assert isinstance(caught.value.__cause__, StepInDoubt)
    assert bodies == []
    assert (await place.executor().resume("r1", wf)).output == 7  # whoever began it is dead for certain
    assert bodies == [1]


async def test_a_skip_of_one_step_does_not_make_another_undecidable(
    place: Place, processes: Processes
) -> None:
    @step(semantics="at_most_once", verify=lambda key, name: NotDone())
    async def pay(name: str) -> str:
        return name

    @workflow(name="two_payments")
    async def wf(ctx: Context) -> list[str]:
        return list(await asyncio.gather(ctx.step(pay, "a"), ctx.step(pay, "b")))

    await crash(place, processes, lambda ex: ex.run(wf, run_id="r1"), at=lambda verb, *_: verb == "commit")
    await place.executor().skip("r1", "pay", output="by hand")
    assert (await place.executor().resume("r1", wf)).output == ["by hand", "b"]


@pytest.mark.parametrize("timeout_s", [None, 60])
async def test_a_cancelled_def_body_is_awaited_and_committed_whatever_its_timeout(
    place: Place, timeout_s: float | None
) -> None:
    inside, go_on = threading.Event(), threading.Event()
    paid: list[int] = []

    @step(semantics="at_most_once", verify=lambda key: NotDone(), timeout_s=timeout_s)
    def pay() -> int:
        inside.set()
        go_on.wait(20)
        paid.append(1)
        return 1

    @workflow(name="cancelled_payment")
    async def wf(ctx: Context) -> int:
        return await ctx.step(pay)

    running = asyncio.ensure_future(place.executor().run(wf, run_id="r1"))
    await asyncio.to_thread(inside.wait, 20)
    running.cancel()
    await asyncio.wait((running,), timeout=0.05)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (await place.executor().resume("r1", wf)).output == 1
    assert paid == [1]
