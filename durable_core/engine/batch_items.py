"""One item of a map: its body with its retries, or its own steps, and what comes of it.

An item has no record of its own; what came of it goes into a segment. Only after a crash, when nobody knows
which item killed the process, those that may have been in work get a STARTED record each before they run
again:

in doubt   crashes 0   run beside others: if the process dies again, these records tell which were in work
           crashes 1   one at a time
           more        alone, so that the guilty one is certain; at `crash_limit` it fails without its body
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from durable_core.codec import freeze
from durable_core.context import Context
from durable_core.current import StepInfo, here
from durable_core.engine import bodies
from durable_core.engine.failure import as_json, described, escaped_steps
from durable_core.engine.step_records import Call, known, next_attempt
from durable_core.errors import (
    ControlFlow,
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
        retried: Rows of items that failed before and get a fresh budget, with the failed steps inside them.
    """

    def __init__(
        self,
        engine: Engine,
        drive: Drive,
        call: Call,
        *,
        window: int,
        suspects: bool,
        retried: dict[int, list[str]],
    ) -> None:
        self._engine = engine
        self._drive = drive
        self._call = call
        self._window = window
        self._retried = retried
        self._gate = Alone() if suspects and window else None
        self._suspected = 0
        self._context = context_kind(call.step.fn)

    async def run(self, item: Item) -> Ended:
        """Runs one item to its outcome.

        Raises:
            ControlFlow, CancelledError: It was stopped from outside: it has none.
            Fenced, JournalUnavailable, StepInDoubt, StepMismatch: So was the drive.
        """
        in_window = self._window > 0
        self._window -= in_window
        if self._context is not None and (in_window or item.row in self._retried):
            await self._load(item)
        if self._gate is None:
            return await self._ended(item)
        if in_window:
            self._suspected += 1
            try:
                return await self._run_suspect(item, self._gate)
            finally:
                self._suspected -= 1
                if not self._window and not self._suspected:
                    self._gate = None
        async with self._gate.beside():
            return await self._ended(item)

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
                if (
                    self._context is not None
                    and drive.stopped is not None
                    and isinstance(error, DurableError)
                ):
                    raise  # a verb's, because nothing more may be done
                errors += 1
                if not retry.allows(error, errors):
                    return self._failed(item, errors, error)
                delay_s = error.after_s if isinstance(error, RetryLater) else retry.delay_s(errors)
            else:
                return await self._succeeded(item, errors + 1, value)
            await drive.pause(delay_s, self._call.scope)
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
        token = here.set(info)
        try:
            return await bodies.run(call.step, args, call.kwargs, drive)
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

    async def _load(self, item: Item) -> None:
        """Reads what the item's own steps have recorded."""
        drive = self._drive
        drive.redrive.update(self._retried.get(item.row, ()))
        async for page in drive.tools.journal.replay(drive.run_id, f"{self._id(item)}/"):
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
        limit = self._call.step.options.crash_limit
        attempt = await self._begun(item)
        if attempt.crashes >= limit:
            told = (
                f"starts that ended with the death of its process: {attempt.crashes}; it is not started again"
            )
            info = {"code": CrashLimitReached.code, "type": CrashLimitReached.__name__, "message": told}
            error = CrashLimitReached(attempt.run_id, attempt.step_id, info)
            return self._failed(item, attempt.attempt, error)
        if not attempt.crashes and limit > 1:
            async with gate.beside():
                return await self._ended(item)
        async with self._drive.suspects, gate.alone() if attempt.crashes >= limit - 1 else gate.beside():
            return await self._ended(item)

    async def _begun(self, item: Item) -> StepRecord:
        """Puts the item's STARTED record; a crash of an owner that died in it is counted."""
        drive, step_id = self._drive, self._id(item)
        call = Call(self._call.step, step_id, item.position, item.hashed, (item.value,), {}, self._call.scope)
        seen = await drive.ask(drive.tools.journal.step, drive.run_id, step_id)
        before = known(drive, call, seen)
        same = before if before is not None and before.input_hash == item.hashed else None
        attempt = next_attempt(drive, call, same)
        attempt = attempt._replace(
            kind=ITEM_KIND,
            idempotency_key=drive.keys.key(item.position if item.key is None else item.key, item.hashed),
            crashes=0 if item.row in self._retried else attempt.crashes,
        )
        reply = await drive.ask(drive.tools.journal.begin, attempt, as_seen(seen), drive.lease)
        if not reply.ok and (reply.row is None or reply.row.attempt_id != attempt.attempt_id):
            raise drive.fenced_by(reply.row)
        return attempt

    def _id(self, item: Item) -> str:
        return item_id(self._call.step_id, item.position, item.key)
