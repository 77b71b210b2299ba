"""One item of a map: its body with its retries, or its own steps, and what comes of it.

An item has no record of its own; what came of it goes into a segment. Only after a crash, when nobody knows
which item killed the process, those that may have been in work get a STARTED record each before they run
again:

in doubt   crashes 0   run beside others: if the process dies again, these records tell which were in work
           crashes 1   one at a time
           more        alone, so that the guilty one is certain; at `crash_limit` it fails without its body

The record is put when the item's turn has come, never while it waits, and the next one's turn comes when the
outcome is durable: nobody is blamed for having waited, or for having finished.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from durable_core.clock import rfc3339
from durable_core.codec import freeze
from durable_core.context import Context
from durable_core.control_flow import ControlFlow
from durable_core.current import StepInfo, here
from durable_core.engine import bodies
from durable_core.engine.drive import poison
from durable_core.engine.failure import as_json, described, escaped_steps
from durable_core.engine.step_records import Call, known, next_attempt
from durable_core.engine.timing import has_time, timed
from durable_core.errors import (
    CrashLimitReached,
    DurableError,
    NotSerializable,
    OutputNotSerializable,
    OutputTooLarge,
)
from durable_core.identity import item_id, new_segment_id
from durable_core.journal.base import as_seen
from durable_core.map_options import context_kind
from durable_core.outcomes import BLOB, ERROR, OUTPUT, BlobPointer, Outcome
from durable_core.records import ITEM_KIND
from durable_core.retry import RetryLater
from durable_core.scope import Scope
from durable_core.sync_context import SyncContext, in_thread

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from durable_core.engine.batch_intake import Item
    from durable_core.engine.batch_log import ChunkLog
    from durable_core.engine.drive import Drive
    from durable_core.records import StepRecord
    from durable_core.verbs import Engine

MAX_INLINE_BYTES: Final = 8 * 1024  # raw; a larger output is a blob of its own
_MAX_TRACEBACK_CHARS: Final = 2_000
_MAX_MESSAGE_CHARS: Final = 1_000


class Ended(NamedTuple):
    """What came of an item, and the blob that it points to."""

    outcome: Outcome
    ref: str | None = None


class Alone:
    """Lets items run beside each other, or one of them without any other."""

    def __init__(self) -> None:
        self._running = 0
        self._one = asyncio.Lock()
        self._nobody = asyncio.Event()
        self._nobody.set()

    @asynccontextmanager
    async def beside(self) -> AsyncIterator[None]:
        """With others."""
        async with self._one:  # held by one that is alone, or is about to be
            self._running += 1
            self._nobody.clear()
        try:
            yield
        finally:
            self._running -= 1
            if not self._running:
                self._nobody.set()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """With no other."""
        async with self._one:
            await self._nobody.wait()
            yield


class ItemRunner:
    """Runs the items of one map.

    Args:
        engine: What the contexts of items with steps of their own call.
        drive: Of the run.
        call: Of the map; its arguments are those bound.
        window: How many of the first items may have been in work when an earlier owner went.
        suspects: Whether one of those owners died: the process may have been killed by one of these items.
        log: Where outcomes go; knows the items that failed before and get a fresh budget.

    Attributes:
        overran: Positions of items that were cut off after half of the time that there ever is: from then on
            all that may have been in work are suspects, as after a crash.
    """

    def __init__(
        self,
        engine: Engine,
        drive: Drive,
        call: Call,
        *,
        window: int,
        suspects: bool,
        log: ChunkLog,
    ) -> None:
        self._engine = engine
        self._drive = drive
        self._call = call
        self._window = window
        self._log = log
        self._retried = log.retried
        self._gate = Alone() if suspects and window else None
        self._suspected = 0
        self.overran: set[int] = set()
        self._context = context_kind(call.step.fn)
        # One at a time among all that may have killed the process, in this map and beside it. An item with
        # steps of its own may not hold that lock: one of them may want it.
        self._in_turn = drive.suspects if self._context is None else asyncio.Lock()

    def has_time(self) -> bool:
        """Whether one more item may be begun; one that has steps of its own may be left between them."""
        return self._context is not None or has_time(self._drive, self._call.step)

    async def run(self, item: Item) -> Ended:
        """Runs one item to its outcome, which is on its way into the log then.

        Raises:
            ControlFlow, CancelledError: It was stopped from outside: it has none.
            Fenced, JournalUnavailable, StepInDoubt, StepMismatch: So was the drive.
        """
        in_window = self._window > 0
        self._window -= in_window
        if self._context is not None and (in_window or item.row in self._retried):
            await self._load(item)
        if self._gate is None:
            return self._logged(item, await self._ended(item))
        if in_window:
            self._suspected += 1
            try:
                return await self._run_suspect(item, self._gate)
            finally:
                self._suspected -= 1
                if not self._window and not self._suspected:
                    self._gate = None
        async with self._gate.beside():
            return self._logged(item, await self._ended(item))

    def _logged(self, item: Item, ended: Ended) -> Ended:
        self._log.add(item.row, ended.outcome, ended.ref)
        return ended

    # ---- Bodies ----

    async def _ended(self, item: Item) -> Ended:
        drive, step = self._drive, self._call.step
        retry, errors = step.options.retry, 0
        while True:
            try:
                value = await self._body(item, errors + 1)
            except (KeyboardInterrupt, GeneratorExit, ControlFlow):
                raise
            except BaseException as error:  # whatever else a body raises is its item's failure
                if isinstance(error, asyncio.CancelledError) and bodies.is_cancelled():
                    raise
                self._check_steps()
                errors += 1
                if not retry.allows(error, errors):
                    return self._failed(item, errors, error)
                delay_s = error.after_s if isinstance(error, RetryLater) else retry.delay_s(errors)
            else:
                self._check_steps()
                return await self._succeeded(item, errors + 1, value)
            await drive.pause(delay_s, self._call.scope)
            self.has_time()
            drive.check()
            self._call.scope.check()

    async def _body(self, item: Item, attempt: int) -> Any:
        drive, call = self._drive, self._call
        args = (*call.args, item.value)
        if self._context is not None:
            return await self._with_steps(item, args)
        key = drive.keys.key(item.position if item.key is None else item.key, item.hashed)
        info = StepInfo(
            drive.run_id,
            drive.lease.fence,
            self._id(item),
            attempt,
            key,
            item.position,
            item.position,
            item.key,
        )
        token, clock = here.set(info), drive.tools.clock
        try:
            if drive.way_out is None:
                return await bodies.run(call.step, args, call.kwargs, drive)
            began_ms = clock.boot_ms()
            try:
                with timed(drive, call.step):
                    return await bodies.run(call.step, args, call.kwargs, drive)
            except asyncio.CancelledError:
                if drive.is_half_its_time(clock.boot_ms() - began_ms):
                    self.overran.add(item.position)
                    drive.tally.overran += 1
                raise
        finally:
            here.reset(token)

    async def _with_steps(self, item: Item, args: tuple[object, ...]) -> Any:
        """An item whose function takes a context: a scope of its own."""
        call = self._call
        scope = Scope(f"{self._id(item)}/", call.scope.halt, in_item=True)
        fn: Callable[..., Any] = call.step.fn
        if self._context == Context.__name__:
            return await fn(Context(self._engine, scope), *args, **call.kwargs)
        context = SyncContext(self._engine, scope, asyncio.get_running_loop())
        with self._drive.suspension.waiting():  # for the code in the thread, which is watched by itself
            return await in_thread(fn, context, *args, **call.kwargs)

    def _check_steps(self) -> None:
        """Raises why the drive is stopped: one of the item's steps may have been refused for that.

        What the item made of the refusal is no outcome, whether it raised or caught it. On resume it runs
        again, and what its steps have committed comes back.
        """
        if self._context is not None and self._drive.stopped is not None:
            raise poison(self._drive.stopped)

    async def _load(self, item: Item) -> None:
        """Reads what the item's own steps have recorded."""
        drive = self._drive
        drive.redrive.update(self._retried.get(item.row, ()))
        async for page in drive.pages(drive.tools.journal.replay(drive.run_id, f"{self._id(item)}/")):
            drive.records.update((record.step_id, record) for record in page)

    # ---- Outcomes ----

    async def _succeeded(self, item: Item, attempts: int, value: object) -> Ended:
        drive = self._drive
        try:
            raw, _ = freeze(value, self._call.step.adapter)
            if len(raw) <= MAX_INLINE_BYTES:
                return Ended(Outcome(item.position, item.mark, attempts, OUTPUT, item.key, raw))
            stored = await drive.tools.values.spilled(raw, drive.run_id, new_segment_id())
        except NotSerializable as error:
            kind = OutputTooLarge if isinstance(error, OutputTooLarge) else OutputNotSerializable
            told = kind(f"the output can't be stored: {error.message}", path=error.path, remedy=error.remedy)
            return self._failed(item, attempts, told)
        except DurableError as error:  # the blob store's: the output isn't safe, so nothing more may be begun
            error.run_id, error.step_id = drive.run_id, self._id(item)
            drive.stop(error)
            raise
        pointer = BlobPointer(stored.ref or "", stored.codec, stored.size, stored.output_hash)
        payload = as_json(pointer).encode()
        return Ended(Outcome(item.position, item.mark, attempts, BLOB, item.key, payload), stored.ref)

    def _failed(self, item: Item, attempts: int, error: BaseException) -> Ended:
        told: dict[str, Any] = dict(described(error))
        told["message"] = told["message"][:_MAX_MESSAGE_CHARS]
        told["traceback"] = told["traceback"][-_MAX_TRACEBACK_CHARS:]
        steps = escaped_steps(error, self._drive.run_id)
        if steps:
            told["steps"] = steps
        self._drive.log.debug("item_failed", step_id=self._id(item), error=told["type"], attempts=attempts)
        payload = as_json(told).encode()
        return Ended(Outcome(item.position, item.mark, attempts, ERROR, item.key, payload))

    # ---- After a crash ----

    async def _run_suspect(self, item: Item, gate: Alone) -> Ended:
        drive, limit = self._drive, self._call.step.options.crash_limit
        seen = await drive.ask(drive.tools.journal.step, drive.run_id, self._id(item))
        attempt = self._next_attempt(item, seen)
        if attempt.crashes >= limit:
            told = (
                f"starts that ended with the death of its process: {attempt.crashes}; it is not started again"
            )
            info = {"code": CrashLimitReached.code, "type": CrashLimitReached.__name__, "message": told}
            error = CrashLimitReached(attempt.run_id, attempt.step_id, info)
            return self._logged(item, self._failed(item, attempt.attempt, error))
        if not attempt.crashes and limit > 1:
            async with gate.beside():
                return await self._begin(item, attempt, seen)
        alone = attempt.crashes >= limit - 1
        async with self._in_turn, gate.alone() if alone else gate.beside():
            if alone:
                await self._log.flush()
            ended = await self._begin(item, attempt, seen)
            await self._log.until_durable(item.row)
            return ended

    def _next_attempt(self, item: Item, seen: StepRecord | None) -> StepRecord:
        """The item's STARTED record; a crash of an owner that died in it is counted."""
        drive, step_id = self._drive, self._id(item)
        call = Call(self._call.step, step_id, item.position, item.hashed, (item.value,), {}, self._call.scope)
        before = known(drive, call, seen)
        same = before if before is not None and before.input_hash == item.hashed else None
        attempt = next_attempt(drive, call, same)
        # What an item had done before it failed for good is forgiven, what it does after that is not.
        has_counted = same is not None and same.fence > self._log.redriven_fence
        return attempt._replace(
            kind=ITEM_KIND,
            idempotency_key=drive.keys.key(item.position if item.key is None else item.key, item.hashed),
            crashes=attempt.crashes if has_counted else 0,
        )

    async def _begin(self, item: Item, attempt: StepRecord, seen: StepRecord | None) -> Ended:
        """Begins an item whose turn has come, and runs it.

        A   begin 2 (on its way, A is paused) ─────────▶ put
        B             takes over, sees no record ── begin 3 ─▶ refused by A's: begun over it

        A lower fence in the way is of an owner that was late, and has been taken over from. Any other record
        but our own, or a refusal with the record as it was seen, tells that the run is somebody else's.
        """
        drive = self._drive
        drive.check()
        self._call.scope.check()
        while True:
            reply = await drive.ask(drive.tools.journal.begin, attempt, as_seen(seen), drive.lease)
            row = reply.row
            if reply.ok or (row is not None and row.attempt_id == attempt.attempt_id):
                try:
                    return self._logged(item, await self._ended(item))
                except asyncio.CancelledError:
                    await self._cut_off(item, attempt)
                    raise
            if row is None or drive.is_as_late(row) or as_seen(row) == as_seen(seen):
                raise drive.fenced_by(row)
            seen, attempt = row, self._next_attempt(item, row)

    async def _cut_off(self, item: Item, attempt: StepRecord) -> None:
        """Records how a suspect was stopped from outside; refused, somebody else has begun it anew."""
        drive = self._drive
        told = {"overran" if item.position in self.overran else "interrupted": True}
        now = rfc3339(drive.tools.clock.now_ms())
        record = attempt._replace(committed_at=now, detail=as_json(attempt.details() | told))
        await drive.ask(drive.tools.journal.commit, record)

    def _id(self, item: Item) -> str:
        return item_id(self._call.step_id, item.position, item.key)
