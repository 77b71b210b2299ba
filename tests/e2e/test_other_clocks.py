"""A driver whose clock isn't the server's: its run is due when its wait is over, and not again and again."""

from __future__ import annotations

import time

import pytest

from durable_core import Context, DurableWorkflowExecutor, workflow
from durable_core.clock import SystemClock
from durable_core.stores import open_store

NAP_S = 60
HOUR_S = 3600


class Shifted(SystemClock):
    """A wall clock that is ahead, or behind."""

    def __init__(self, seconds: float) -> None:
        self._ms = round(seconds * 1000)

    def now_ms(self) -> int:
        return super().now_ms() + self._ms


@workflow(name="naps_by_another_clock")
async def naps(ctx: Context) -> None:
    await ctx.sleep(NAP_S)


@pytest.mark.parametrize("ahead_s", [-HOUR_S, 0, HOUR_S])
async def test_a_sleeping_run_is_due_by_the_servers_time_whatever_its_drivers_clock_says(
    postgres_url: str, ahead_s: int
) -> None:
    store, clock = open_store(postgres_url), Shifted(ahead_s)
    store.journal._here = clock  # type: ignore[attr-defined]  # the machine's clock, as the journal has it
    executor = DurableWorkflowExecutor(store, clock=clock)
    try:
        began_ms = time.time() * 1000
        assert (await executor.run(naps, run_id="r1", on_wait="suspend")).status == "SUSPENDED"
        header = await executor.store.journal.header("r1")
        assert header is not None
        assert 0 <= header.due_at_ms - began_ms - NAP_S * 1000 < 30_000
        assert await executor.store.journal.due() == []
        assert await executor.worker().recover() == []
        assert (await executor.get("r1")).fence == 1
    finally:
        await executor.close()
