"""Lets a process do something, ends it at one of its durable writes, and lets another go on from there."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from durable_core.errors import DurableError, Fenced
from durable_core.stores import open_store
from durable_core.testing.crash_promises import Life, broken, state_of
from durable_core.testing.fake_clock import FakeClock
from durable_core.testing.simulated_process import Mode, SimulatedProcess, simulated

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from durable_core.clock import Clock
    from durable_core.engine.executor import DurableWorkflowExecutor
    from durable_core.store import Store
    from durable_core.testing.durable_writes import Write

SIMULATED_MODES: Final = (Mode.BEFORE, Mode.AFTER, Mode.LOST, Mode.STOPPED, Mode.OVERTAKEN)
_LEASE_OVER_S: Final = 31
_LIMIT_S: Final = 60.0  # of a trial that hangs


@dataclass(frozen=True, slots=True)
class Act:
    """What a process does; done again from the top by another, it goes on where the first one ended.

    Attributes:
        does: Given an executor, gives what it came to.
        run_id: The run that it is about.
        before: What has been done when it begins, by a process that nobody ends.
        meanwhile: What another process does while this one stands before a write; `does` itself, after the
            lease of this one is over, if not given.
        takes_long: Time passes while it is done: of two processes that stand still both count as dead.
    """

    does: Callable[[DurableWorkflowExecutor], Awaitable[object]]
    run_id: str
    before: Callable[[DurableWorkflowExecutor], Awaitable[object]] | None = None
    meanwhile: Callable[[DurableWorkflowExecutor], Awaitable[object]] | None = None
    takes_long: bool = False


class Trials:
    """Trials of one act.

    Args:
        act: What is done.
        opens: Opens a store; of one place that is empty at first in each trial.

    Attributes:
        unharmed: What becomes of it when nobody disturbs it.
        writes: The durable writes that it makes then.
    """

    def __init__(self, act: Act, opens: Callable[[], Callable[[Clock], Store]] | None = None) -> None:
        self.act = act
        self._opens = opens or in_memory
        self.unharmed, self.writes = asyncio.run(self._unharmed())

    def points(self, modes: Sequence[Mode] = SIMULATED_MODES) -> list[tuple[Write, Mode]]:
        """All crash points."""
        return [(write, mode) for write in self.writes for mode in modes]

    def broken(self, number: int, mode: Mode, other: int = 0) -> list[str]:
        """The promises that a crash point breaks.

        Args:
            number: Of the write.
            mode: What happens there.
            other: When the process is overtaken: before which of its own writes the other one stands until
                the first has ended; 0 for none.

        Raises:
            DurableError: The act failed as it does without a crash.
        """
        return self.lives(number, mode, other)[1]

    def lives(self, number: int, mode: Mode, other: int = 0) -> tuple[Life, list[str]]:
        """The second life after a crash point, and the promises that were broken."""
        return asyncio.run(self._lives(number, mode, other))

    # ---- One trial ----

    async def _unharmed(self) -> tuple[Life, list[Write]]:
        async with _place(self._opens(), self.act) as place:
            process = place.process()
            life = await place.lived(process, process.start(self.act.does))
            if life.outcome is None and life.error is not None:
                raise life.error
            return life, process.writes

    async def _lives(self, number: int, mode: Mode, other: int) -> tuple[Life, list[str]]:
        async with asyncio.timeout(_LIMIT_S), _place(self._opens(), self.act) as place:
            first = place.process(mode, number)
            doing = first.start(self.act.does)
            if mode is Mode.OVERTAKEN:
                return await self._overtaken(place, first, doing, other)
            ended = await place.lived(first, doing)
            second = place.process()
            after = await place.lived(second, second.start(self.act.does))
            deaths = 1 if mode in (Mode.BEFORE, Mode.AFTER) else 0
            anew = 0 if mode is Mode.LOST else 1
            found = broken(self.unharmed, ended, after, deaths=deaths, takeovers=anew)
            if mode is Mode.LOST and not self.writes[number - 1].blocks and ended.error is not None:
                found.append(f"a lost reply ended the process by {ended.error!r}")
            return after, found

    async def _overtaken(
        self, place: _Place, first: SimulatedProcess, doing: asyncio.Task[Any], other: int
    ) -> tuple[Life, list[str]]:
        """The first process stands before a write for longer than its lease; both go on in the end."""
        await _until(first.paused, doing)
        paused = await place.life(first)
        meanwhile = self.act.meanwhile
        if meanwhile is None:
            place.clock.advance(_LEASE_OVER_S)
        second = place.process(Mode.OVERTAKEN if other else None, other)
        taking_over = second.start(meanwhile or self.act.does)
        await _until(second.paused, taking_over)
        if not other:  # nothing that the other has settled may change any more
            paused = Life(None, (*first.bodies, *second.bodies), await state_of(place.store, self.act.run_id))
        first.go_on.set()
        zombie = await place.lived(first, doing)
        second.go_on.set()
        after = await place.lived(second, taking_over)
        third = place.process()
        last = await place.lived(third, third.start(self.act.does))
        all_bodies = [*zombie.bodies, *after.bodies, *last.bodies]
        for body in paused.bodies:
            all_bodies.remove(body)
        stood = 1 + bool(other and self.act.takes_long)
        counted = 0 if meanwhile is not None else stood  # whoever lets its lease run out counts as dead
        last = last._replace(bodies=all_bodies)
        found = broken(self.unharmed, paused, last, deaths=counted, takeovers=stood, late=True)
        if meanwhile is None and stood == 1 and isinstance(after.error, Fenced):  # its lease isn't over
            found.append(f"the rightful owner was fenced: {after.error}")
        for told_early in (zombie, *(() if meanwhile is not None else (after,))):
            if told_early.outcome not in (None, self.unharmed.outcome):
                found.append(f"a process was told {told_early.outcome}; it is {self.unharmed.outcome}")
        return last, found


async def _until(event: asyncio.Event, doing: asyncio.Task[Any]) -> None:
    """Waits until a process stands still, or is at its end."""
    waiting = asyncio.create_task(event.wait())
    await asyncio.wait((doing, waiting), return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()


class _Place:
    """Where the processes of one trial meet."""

    def __init__(self, opens: Callable[[Clock], Store], act: Act, clock: FakeClock) -> None:
        self._opens = opens
        self._act = act
        self.clock = clock
        self.store = opens(clock)
        self._made: list[SimulatedProcess] = []

    def process(self, mode: Mode | None = None, number: int = 0) -> SimulatedProcess:
        made = SimulatedProcess(self._opens(self.clock), self.clock, mode, number)
        self._made.append(made)
        return made

    async def lived(self, process: SimulatedProcess, doing: asyncio.Task[Any]) -> Life:
        """Waits for the end of what a process does."""
        try:
            value = await doing
        except (DurableError, asyncio.CancelledError) as error:
            return (await self.life(process))._replace(error=error)
        return (await self.life(process))._replace(outcome=told(value), value=value)

    async def life(self, process: SimulatedProcess) -> Life:
        """What has become of it so far."""
        return Life(None, tuple(process.bodies), await state_of(self.store, self._act.run_id))

    async def close(self) -> None:
        for process in self._made:
            process.mode = None
            await process.executor.close()
        await self.store.close()


@asynccontextmanager
async def _place(opens: Callable[[Clock], Store], act: Act) -> AsyncIterator[_Place]:
    with simulated():
        place = _Place(opens, act, FakeClock())
        try:
            await place.store.journal.open()
            if act.before is not None:
                process = place.process()
                await process.start(act.before)
                process.bodies.clear()
            yield place
        finally:
            await place.close()


def in_memory(*, checks_header: bool = True) -> Callable[[Clock], Store]:
    """An empty memory store, for all processes of a trial.

    Args:
        checks_header: Whether it looks at the run's header with each step that is begun, as SQL stores do.
    """
    made: list[Store] = []

    def opens(clock: Clock) -> Store:
        if not made:
            store = open_store("memory://", clock)
            assert store.checkpoints is not None
            vars(store.journal)["checks_header"] = checks_header
            store.checkpoints.inline_max_bytes = store.inline_max_bytes  # or no test's state would be spilled
            made.append(store)
        return made[0]

    return opens


def told(output: object) -> str:
    """An outcome as it is compared, and shown."""
    try:
        return json.dumps(output, sort_keys=True, default=repr)
    except (TypeError, ValueError):
        return repr(output)
