"""One step, from its call to its outcome: who may begin it, and when.

seen       record         what happens
─────────  ─────────────  ──────────────────────────────────────────────────────────────────────────
nothing                   begun as new
COMMITTED                 its output is used
SKIPPED                   its output, or None, is used
FAILED                    raised again - or begun anew, when the run was resumed because of it
STARTED    attempt ended  begun again at its retry time
STARTED    in doubt       its owner died or was interrupted in it: begun again, a crash is counted
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from durable_core.control_flow import NotBegun
from durable_core.current import StepInfo, here
from durable_core.engine import branches
from durable_core.engine.attempts import NOTHING, Attempts
from durable_core.engine.batch import Batch
from durable_core.engine.batch_intake import Reread
from durable_core.engine.branches import JOIN
from durable_core.engine.pure import run_pure
from durable_core.engine.recorded import inline_output_of, is_used, output_of
from durable_core.engine.retry_times import until_retry
from durable_core.engine.shared_batch import SharedBatch
from durable_core.engine.step_records import Call, is_suspect, known, next_attempt, skipped
from durable_core.engine.timing import check_time
from durable_core.engine.waits import SLEEP_STEP, Waits, restorer, wait_step
from durable_core.errors import (
    InputNotSerializable,
    StepFailed,
    StepMismatch,
    UsageError,
)
from durable_core.identity import input_hash
from durable_core.map_options import check_items, check_shareable
from durable_core.records import (
    COMMITTED,
    EVENT_KIND,
    FAILED,
    MAP_KIND,
    SKIPPED,
    SLEEP_KIND,
    STARTED,
    STEP_KIND,
    StepRecord,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable

    from durable_core.awaited import Awaited, Slept
    from durable_core.context import Branch
    from durable_core.engine.drive import Drive
    from durable_core.map_options import MapOptions, Mapped
    from durable_core.map_result import MapResult
    from durable_core.scope import Scope
    from durable_core.step_definition import Step

# A replay waits for nothing; after this long without a turn the event loop gets one.
LOOP_TURN_EVERY_S: Final = 0.005


class Steps:
    """The steps of one drive: the engine that the workflow's context calls.

    Args:
        drive: Of the run.
    """

    def __init__(self, drive: Drive) -> None:
        self.drive = drive
        self.run_id = drive.run_id
        self.created_at = drive.header.created_at
        self.plain_code = drive.plain_code
        self._attempts = Attempts(drive)
        self._waits = Waits(self._attempts)
        self._turn_at = 0.0

    def beside(self, drive: Drive) -> Steps:
        """The same of a drive that works on a part of this run."""
        return type(self)(drive)

    def is_replaying(self) -> bool:
        """Whether recorded steps are left that the workflow has not come to."""
        return bool(self.drive.records)

    async def join(self, scope: Scope, found: tuple[Branch[Any], ...], caller: object) -> list[Any]:
        """Runs branches side by side."""
        self._check_called()
        scope.check()
        self._refuse_inside_a_body()
        step_id, index = scope.allot(JOIN, caller)
        if asyncio.current_task() not in self.drive.tasks:
            return await branches.join(self.drive, scope, found, step_id, index)
        with self.drive.suspension.waiting():  # an item of a map, for its branches
            return await branches.join(self.drive, scope, found, step_id, index)

    def call(
        self,
        scope: Scope,
        step: Step[..., Any],
        args: tuple[object, ...],
        kwargs: dict[str, object],
        caller: object,
        *,
        condition: bool = True,
    ) -> Coroutine[Any, Any, Any]:
        """Allots the id of a call; the coroutine runs, replays or skips it."""
        if self.drive.stopped is not None or (scope.halt is not None and scope.halt.is_set()):
            self.drive.suspension.called()
            return self._refused(scope)
        self._refuse_inside_a_body()
        step.resolve()  # an annotation that can't be resolved is refused now, not after the body ran
        step_id, index = scope.allot(step.name, caller)
        return self._run(scope, step, step_id, index, args, kwargs, condition)

    def map(
        self, scope: Scope, mapped: Mapped, items: Iterable[Any], options: MapOptions, caller: object
    ) -> Coroutine[Any, Any, MapResult[Any]]:
        """Allots the id of a map; the coroutine runs what is missing, or replays it."""
        if self.drive.stopped is not None or (scope.halt is not None and scope.halt.is_set()):
            self.drive.suspension.called()
            return self._refused(scope)
        self._refuse_inside_a_body()
        check_items(items)
        if options.distribute:
            check_shareable(items)
            if scope.in_item:
                raise UsageError(
                    "a map inside an item of a map can't be shared: its item is one worker's",
                    run_id=self.run_id,
                    remedy="Leave out distribute=True there; share the outer map",
                )
        step, args, kwargs = mapped
        step.resolve()
        step_id, index = scope.allot(step.name, caller)
        return self._map(scope, Call(step, step_id, index, "", args, kwargs, scope, MAP_KIND), items, options)

    async def _map(
        self, scope: Scope, call: Call, items: Iterable[Any], options: MapOptions
    ) -> MapResult[Any]:
        drive = self.drive
        self._check_called()
        # What is mapped and with what, not over what: items are judged one by one.
        call = call._replace(hashed=input_hash(call.step_id, (call.step.name, *call.args), call.kwargs))
        seen = drive.records.pop(call.step_id, None)
        if seen is not None:  # it may have been read without what a map takes
            with drive.inside():
                seen = await drive.ask(drive.tools.journal.step, self.run_id, call.step_id)
            if seen is not None and seen.details().get("forked") and isinstance(items, Iterator):
                items = Reread(items)  # once to see whether it is the same map, once to run what is not
        batch = Batch(attempts=self._attempts, engine=self, call=call, items=items, options=options)
        if options.distribute:
            batch = SharedBatch(
                attempts=self._attempts, engine=self, call=call, items=items, options=options,
                engine_of=self.beside,
            )  # fmt: skip
        result: MapResult[Any] = await self._until_boundary(call, seen, partial(self._settle_map, batch))
        return result

    async def _settle_map(self, batch: Batch, call: Call, seen: StepRecord | None) -> tuple[StepRecord, Any]:
        """From what is recorded of a map to its outcome."""
        own = ""
        while True:
            record = known(self.drive, call, seen)
            if record is not None and is_used(self.drive, call, record, own):
                if record.status == SKIPPED:  # by hand: what was given stands for the whole result
                    return record, await output_of(self.drive, record, None)
                result = await batch.replay(record)
                if result is not None:
                    return record, result
            call.scope.check_new()
            attempt = await batch.begun(seen, record)
            own = attempt.attempt_id
            seen = await self._attempts.begin(attempt, seen)
            if seen is attempt:
                return await batch.run(attempt, record)

    def sleep(self, scope: Scope, asked: Slept, caller: object) -> Coroutine[Any, Any, None]:
        """Allots the id of a sleep; the coroutine waits for what is left of it."""
        return self._wait(scope, SLEEP_STEP, SLEEP_KIND, asked, caller)

    def event(self, scope: Scope, awaited: Awaited, caller: object) -> Coroutine[Any, Any, Any]:
        """Allots the id of a wait for an event; the coroutine gives its payload."""
        return self._wait(scope, wait_step(awaited), EVENT_KIND, awaited, caller)

    def _wait(
        self, scope: Scope, step: Step[..., Any], kind: str, asked: Slept | Awaited, caller: object
    ) -> Coroutine[Any, Any, Any]:
        if self.drive.stopped is not None or (scope.halt is not None and scope.halt.is_set()):
            self.drive.suspension.called()
            return self._refused(scope)
        self._refuse_inside_a_body()
        step_id, index = scope.allot(step.name, caller)
        call = Call(step, step_id, index, input_hash(step_id, asked.hashed(), {}), (), {}, scope, kind)
        return self._waited(call, asked)

    async def _waited(self, call: Call, asked: Slept | Awaited) -> Any:
        self._check_called()
        seen = self.drive.records.pop(call.step_id, None)
        if seen is not None and not seen.attempt_id:  # it was read without its kind and detail
            with self.drive.inside():
                seen = await self.drive.ask(self.drive.tools.journal.step, self.run_id, call.step_id)

        async def settle(call: Call, seen: StepRecord | None) -> tuple[StepRecord, Any]:
            while True:
                record = known(self.drive, call, seen)
                if record is not None and is_used(self.drive, call, record, ""):
                    return record, await output_of(self.drive, record, restorer(record, call.step))
                call.scope.check_new()
                seen, value = await self._waits.outcome(call, seen, asked)
                if value is not NOTHING and seen is not None:
                    return seen, value

        return await self._until_boundary(call, seen, settle)

    def _check_called(self) -> None:
        if self.drive.stopped is not None:
            self.drive.suspension.called()
            self.drive.check()

    async def _refused(self, scope: Scope) -> Any:
        """Raises why nothing may be begun, after a turn of the loop: it must not be stopped by a workflow."""
        await asyncio.sleep(0)
        self.drive.check()
        scope.check()

    def _refuse_inside_a_body(self) -> None:
        if type(here.get()) is StepInfo:
            raise UsageError(
                "a verb was called inside the body of a step",
                run_id=self.run_id,
                remedy="Call it in the workflow, or call the plain function here",
            )

    async def _run(
        self,
        scope: Scope,
        step: Step[..., Any],
        step_id: str,
        index: int,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        condition: bool,
    ) -> Any:
        drive = self.drive
        if drive.stopped is not None:
            self._check_called()
        try:
            hashed = input_hash(step_id, args, kwargs)
        except InputNotSerializable as error:
            error.run_id = self.run_id
            raise
        seen = drive.records.pop(step_id, None)
        if (
            seen is not None
            and seen.status == COMMITTED
            and seen.input_hash == hashed
            and seen.kind == STEP_KIND
            and drive.owns(seen)
        ):
            now = time.perf_counter()
            if now - self._turn_at > LOOP_TURN_EVERY_S:
                self._turn_at = now
                await asyncio.sleep(0)
                drive.check()
            scope.returned(seen)
            if seen.output_data is not None:
                return inline_output_of(drive, seen, step.adapter)
            with drive.inside():
                return await output_of(drive, seen, step.adapter)
        if seen is not None and not seen.attempt_id:  # it was read without what a change of input takes
            with drive.inside():
                seen = await drive.ask(drive.tools.journal.step, self.run_id, step_id)
        call = Call(step, step_id, index, hashed, args, kwargs, scope)
        skips = not condition and known(drive, call, seen) is None
        return await self._until_boundary(call, seen, self._skip if skips else self._settle)

    async def _until_boundary(
        self,
        call: Call,
        seen: StepRecord | None,
        settle: Callable[[Call, StepRecord | None], Coroutine[Any, Any, tuple[StepRecord, Any]]],
    ) -> Any:
        """Takes a step from its record to its outcome, while the drive knows that its task is in it."""
        drive = self.drive
        before = seen.status if seen is not None and drive.owns(seen) else None
        after: str | None = STARTED
        task = drive.enter()
        try:
            record, value = await settle(call, seen)
            after = record.status
        except (StepMismatch, NotBegun):
            after = before
            raise
        except StepFailed:
            after = FAILED
            raise
        finally:
            drive.leave(task, *((None, None) if call.scope.in_item else (before, after)))
        call.scope.returned(record)
        drive.check()
        if task in drive.deferred:
            drive.deferred.discard(task)
            raise asyncio.CancelledError
        return value

    async def _settle(self, call: Call, seen: StepRecord | None) -> tuple[StepRecord, Any]:
        """From what is recorded to an outcome: begins until one attempt has it."""
        own = ""
        while True:
            record = known(self.drive, call, seen)
            if record is not None:
                if is_used(self.drive, call, record, own):
                    return record, await output_of(self.drive, record, call.step.adapter)
                seen = await until_retry(self.drive, call, record)
                if seen is not record:
                    continue
            call.scope.check_new()
            check_time(self.drive, call.step, record)
            if call.step.options.pure and (record is None or record.status != STARTED):
                seen, value = await run_pure(self._attempts, call, seen)
            else:
                attempt = next_attempt(self.drive, call, seen)
                own = attempt.attempt_id
                if attempt.crashes or (record is not None and is_suspect(record)):
                    # One at a time, from before the record says that it was started: the guilty one is
                    # certain.
                    async with self.drive.suspects:
                        seen, value = await self._begin(call, attempt, seen)
                else:
                    seen, value = await self._begin(call, attempt, seen)
            if value is not NOTHING and seen is not None:
                return seen, value

    async def _begin(
        self, call: Call, attempt: StepRecord, seen: StepRecord | None
    ) -> tuple[StepRecord | None, Any]:
        """Begins an attempt and runs it; or gives the record that came back when somebody else was faster."""
        row = await self._attempts.begin(attempt, seen, guarded=call.step.options.is_guarded)
        if row is not attempt:
            return row, NOTHING
        if attempt.crashes >= call.step.options.crash_limit:
            await self._attempts.fail_without_body(call, attempt)
        return await self._attempts.run(call, attempt, seen)

    async def _skip(self, call: Call, seen: StepRecord | None) -> tuple[StepRecord, Any]:
        """Records a step whose condition is false; whatever was recorded first wins."""
        call.scope.check_new()
        record = skipped(self.drive, call)
        row = await self._attempts.begin(record, seen)
        if row is not record:
            return await self._settle(call, row)
        self.drive.tally.committed += 1
        return record, None
