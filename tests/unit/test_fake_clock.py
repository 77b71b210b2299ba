"""The clock that tests turn by hand."""

from __future__ import annotations

import asyncio
import time

import pytest

from durable_core import Context, DurableWorkflowExecutor, Retry, step, workflow
from durable_core.clock import Clock, rfc3339
from durable_core.errors import RunFailed, UsageError
from durable_core.testing import FakeClock


def test_time_stands_still_until_it_is_advanced() -> None:
    clock: Clock = FakeClock()
    assert rfc3339(clock.now_ms()) == "2026-01-01T00:00:00.000Z"
    fake = FakeClock(5_000)
    fake.advance(1.5, ms=2)
    assert (fake.now_ms(), fake.boot_ms()) == (6_502, 1_502)


def test_setting_the_wall_clock_lets_no_time_pass() -> None:
    clock = FakeClock(5_000)
    clock.set_wall(1_000)
    assert (clock.now_ms(), clock.boot_ms()) == (1_000, 0)
    with pytest.raises(ValueError, match="go back"):
        clock.advance(-1)


async def test_sleeps_overlap_and_end_in_order() -> None:
    clock, ended = FakeClock(0), []

    async def sleeper(seconds: float) -> None:
        await clock.sleep(seconds)
        ended.append((seconds, clock.boot_ms()))

    began = time.monotonic()
    await asyncio.gather(sleeper(3600), sleeper(1), sleeper(0), sleeper(60), sleeper(1))
    assert ended == [(0, 0), (1, 1_000), (1, 1_000), (60, 60_000), (3600, 3_600_000)]
    assert time.monotonic() - began < 5


async def test_a_sleeper_that_is_cancelled_holds_nobody_up() -> None:
    clock = FakeClock(0)
    first = asyncio.create_task(clock.sleep(1))
    await asyncio.sleep(0)
    first.cancel()
    await clock.sleep(5)
    assert clock.boot_ms() == 5_000
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_retries_take_no_real_time_with_it() -> None:
    tries: list[int] = []

    @step(retry=Retry(max_attempts=4, initial_delay_s=600, factor=2, max_delay_s=10_000, jitter=0))
    async def flaky() -> int:
        tries.append(clock.boot_ms() // 1000)
        if len(tries) < 4:
            raise ConnectionError("not yet")
        return len(tries)

    @workflow
    async def patient(ctx: Context) -> int:
        return await ctx.step(flaky)

    clock = FakeClock()
    async with DurableWorkflowExecutor("memory://", clock=clock, lease_s=100_000) as executor:
        assert (await executor.run(patient)).output == 4
    assert tries == [0, 600, 1800, 4200]


@workflow
async def waits(ctx: Context) -> None:
    await ctx.wait_for_event("never")


async def test_a_wait_for_what_never_comes_ends_in_an_error_that_says_so() -> None:
    clock = FakeClock(most_turns=1_000)
    async with DurableWorkflowExecutor("memory://", clock=clock) as executor:
        with pytest.raises(UsageError, match=r"turned 1,000 times .* never comes") as caught:
            await executor.run(waits, run_id="r1")
        assert "on_wait='suspend'" in caught.value.remedy
        run = await executor.get("r1")
        assert (run.status, run.crashes) == ("PENDING", 0)


@step(retry=Retry(max_attempts=10**9))
async def hopeless() -> None:
    raise ConnectionError("as always")


@workflow
async def hopes(ctx: Context) -> None:
    await ctx.step(hopeless)


async def test_retries_without_end_end_in_that_error_too() -> None:
    clock = FakeClock(most_turns=1_000)
    async with DurableWorkflowExecutor("memory://", clock=clock, lease_s=10**5) as executor:
        with pytest.raises(RunFailed) as caught:
            await executor.run(hopes, run_id="r1")
    assert isinstance(caught.value.__cause__, UsageError)
    assert "never comes" in str(caught.value.__cause__)


async def test_a_test_that_turns_the_clock_itself_gives_it_all_its_turns_again() -> None:
    clock = FakeClock(0, most_turns=3)
    for turned in (lambda: clock.advance(1), lambda: clock.set_wall(7), lambda: None):
        for _ in range(3):
            await clock.sleep(60)
        turned()
    with pytest.raises(UsageError):
        await clock.sleep(60)
    assert clock.boot_ms() == 9 * 60_000 + 1_000
    await clock.sleep(0)  # needs no turn
