"""Runs that the Lambda functions drive: the real handlers, whose sends are durable writes like any other.

Whoever triggers them gives each message again until its function has dealt with it, and has the sweep run
when nothing is left in the queues. A process is a sandbox of each function.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from typing_extensions import override

from durable_core import Context, DurableWorkflowExecutor, step, workflow
from durable_core.aws.drive import drive_handler
from durable_core.aws.metrics import Metrics
from durable_core.aws.sandbox import Handler
from durable_core.aws.signal import signal_handler
from durable_core.aws.start import start_handler
from durable_core.aws.sweep import sweep_handler
from durable_core.aws.work import work_handler
from durable_core.errors import JournalUnavailable
from durable_core.records import ACTIVE, SUSPENDED
from durable_core.testing.crash_trials import Act
from durable_core.testing.durable_writes import Watch, WatchedJournal
from durable_core.testing.simulated_process import SimulatedProcess
from tests import lambda_place
from tests.crashes.between import DRIVE, WORK, Sends, between_of
from tests.crashes.passing import lets_pass, passes

RUN = "r1"
TIME_OUT_MS = 15_000
MINUTE_S = 60
MOST_ROUNDS = 60


@step
async def lasting(number: int) -> int:
    passes(TIME_OUT_MS / 1000)
    return number + 1


@step
async def tripled(number: int) -> int:
    return number * 3


@workflow
async def on_functions(ctx: Context) -> list[Any]:
    """Handed over after its first step; waits for an event; shares a map."""
    number = await ctx.step(tripled, await ctx.step(lasting, 1))
    word = await ctx.wait_for_event("go", type=str)
    batch = await ctx.map(tripled, range(3), distribute=True, chunk_size=2, max_concurrency=1)
    return [number, word, *batch.outputs]


class Functions:
    """The functions of one process, over the store of its executor."""

    def __init__(self, executor: DurableWorkflowExecutor) -> None:
        journal, clock = executor.store.journal, executor._tools.clock
        assert isinstance(journal, WatchedJournal)
        self._watch, self._clock = journal.watch, clock
        self.between = between_of(executor.store, clock)
        told = {
            "DURABLE_STORE": executor.store.url,
            "DURABLE_DRIVE_QUEUE_URL": self.between.queue_url(DRIVE),
            "DURABLE_WORK_QUEUE_URL": self.between.queue_url(WORK),
            "DURABLE_EVENT_BUS": "default",
            "DURABLE_RETENTION_DAYS": "30",
            "DURABLE_LOG_LEVEL": "critical",
        }
        sends = Sends(self.between.transport, self._watch)
        stand_ins = {
            "aws.sandbox.open_store": lambda *_, **__: executor.store,
            "aws.sandbox.open_transport": lambda **_: sends,
            "aws.sandbox.SystemClock": lambda: clock,
            "aws.sandbox.Metrics": _Unmeasured,
            "engine.executor.SystemClock": lambda: clock,
        }
        with ExitStack() as patches:
            patches.enter_context(patch.dict(os.environ, told))
            for name, stand_in in stand_ins.items():
                patches.enter_context(patch(f"durable_core.{name}", stand_in))
            self.start: Handler[Any] = start_handler(workflows=__name__)
            self.signal: Handler[Any] = signal_handler()
            self.sweep: Handler[Any] = sweep_handler()
            self.by_queue: dict[str, Handler[Any]] = {
                DRIVE: drive_handler(workflows=__name__),
                WORK: work_handler(workflows=__name__),
            }

    async def asked(self, handler: Handler[Any], event: dict[str, Any]) -> None:
        """Calls a function, twice if it has to be: whoever gets no answer asks again."""
        try:
            await handler.answer(event, self._context())
        except JournalUnavailable:
            await handler.answer(event, self._context())

    async def trigger(self) -> None:
        """Once with everything that is in the queues; the sweep if there is nothing."""
        self._watch.asked()  # who is dead triggers nothing
        messages = self.between.messages()
        if not messages:
            await self._until_others_are_idle()
            passes(MINUTE_S)
            await self.sweep.answer({"do": ["due"]}, self._context())
        for message in messages:
            with at_work(self._watch):
                answer = await self.by_queue[message.queue].answer(
                    lambda_place.batch(message.body), self._context()
                )
            self._watch.asked()
            if answer == lambda_place.DONE:
                self.between.take_out(message)

    async def _until_others_are_idle(self) -> None:
        """The minute that passes at once is one in which they would have come to their end."""
        while any(is_moving(other) for other in _at_work if other is not self._watch):  # noqa: ASYNC110 - in a test
            await asyncio.sleep(0.001)

    def _context(self) -> lambda_place.Context:
        return lambda_place.Context(TIME_OUT_MS)


@contextmanager
def at_work(watch: Watch) -> Iterator[None]:
    """Inside, a function of this process is at work."""
    _at_work.append(watch)
    try:
        yield
    finally:
        _at_work.remove(watch)


def is_moving(watch: Watch) -> bool:
    """Whether it doesn't stand before a write."""
    stands = isinstance(watch, SimulatedProcess) and watch.paused.is_set() and not watch.go_on.is_set()
    return not stands


_at_work: list[Watch] = []


class _Unmeasured(Metrics):
    """Writes no lines."""

    @override
    def put(self, values: Mapping[str, int | float], **beside: object) -> None:
        pass


async def serve(executor: DurableWorkflowExecutor) -> object:
    """Starts the run, sends what it waits for once it sleeps, and triggers functions until it is over."""
    with lets_pass(executor._tools.clock):
        functions = Functions(executor)
        try:
            return await _served(functions, executor)
        finally:
            await functions.between.transport.close()


async def _served(functions: Functions, executor: DurableWorkflowExecutor) -> object:
    await functions.asked(functions.start, {"workflow": on_functions.name, "run_id": RUN})
    is_sent, status = False, ""
    for _ in range(MOST_ROUNDS):
        status = (await executor.get(RUN)).status
        if status not in ACTIVE and not functions.between.messages():
            return (await executor.resume(RUN)).output
        if status == SUSPENDED and not is_sent:
            is_sent = True
            go = {"run_id": RUN, "event": "go", "payload": "on", "event_id": "go"}
            await functions.asked(functions.signal, go)
        await functions.trigger()
    raise TimeoutError(f"the run is {status} after {MOST_ROUNDS} rounds")


FUNCTION_ACTS = {"functions": Act(serve, RUN, takes_long=True)}
"""For stores in memory, and on AWS."""
