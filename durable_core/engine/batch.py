"""A map: one function over many items, each outcome durable, none run twice that is.

begin (STARTED) ── read and claim the log ── items ─▶ segments ── … ── commit: counts, pins, a content hash

The map's record stays STARTED while its segments grow. An owner that takes over reads them, claims the log by
an empty segment, and runs what is missing. The COMMITTED record pins the last segment: what lies beyond is
ignored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sized
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from durable_core.clock import rfc3339
from durable_core.engine.batch_intake import Intake, ItemsUnreadable
from durable_core.engine.batch_items import ItemRunner
from durable_core.engine.batch_log import ChunkLog
from durable_core.engine.batch_progress import MapProgress, live
from durable_core.engine.batch_pump import Pump
from durable_core.engine.failure import as_json, described
from durable_core.engine.step_records import committed, failed, next_attempt
from durable_core.errors import Fenced, JournalUnavailable, MapFailed, StepFailed, StepMismatch
from durable_core.item_table import SUCCEEDED, ItemTable
from durable_core.map_reference import MapReference, recorded_map, recorded_output, recorded_place
from durable_core.map_result import MapResult
from durable_core.records import FAILED, MAP_KIND, STARTED

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from durable_core.engine.attempts import Attempts
    from durable_core.engine.step_records import Call
    from durable_core.map_options import MapOptions
    from durable_core.records import StepRecord
    from durable_core.verbs import Engine


_MANY_ROWS: Final = 5_000  # hashing them takes milliseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One call of a map.

    Attributes:
        attempts: Of the drive.
        engine: What the contexts of its items call.
        call: Its step is what is done with each item; its arguments are those bound.
        items: As given.
        options: As given.
    """

    attempts: Attempts
    engine: Engine
    call: Call
    items: Iterable[Any]
    options: MapOptions

    async def replay(self, record: StepRecord) -> MapResult[Any] | None:
        """The result of a map that has committed; None where a fork has to run it anew, on other items.

        Raises:
            StepMismatch: It has committed other items; the drive is stopped.
            CorruptRecord: Its record can't be read.
        """
        drive = self.attempts.drive
        reference, items_hash = await self._recorded(record)
        if not drive.keeps_changed:
            intake = Intake(drive, self.call, self.items, self.options, ItemTable())
            try:
                while await intake.next() is not None:
                    await intake.give_turn()
            except ItemsUnreadable as error:
                raise self._mismatch(f"the map has committed, and now {error}") from error.__cause__
            finally:
                intake.close()
            if intake.items_hash != items_hash:
                if record.details().get("forked"):
                    return None
                raise self._other_items(intake.pulled, reference.succeeded + reference.failed)
        return MapResult(reference, drive.tools.outcomes, self.call.step.adapter)

    async def run(self, attempt: StepRecord, before: StepRecord | None) -> tuple[StepRecord, MapResult[Any]]:
        """Runs the items of a map that was begun.

        Args:
            attempt: As begun.
            before: The record that it was begun over, of this life of the run.

        Raises:
            MapFailed: Too many items failed, or they could not be read to the end.
        """
        drive, options, detail = self.attempts.drive, self.options, attempt.details()
        table = ItemTable()
        log = ChunkLog(
            drive,
            self.call.step_id,
            table,
            most_items=options.segment_items,
            linger_ms=options.linger_ms,
            redriven_fence=detail["redriven_fence"],
            first_seq=detail["first_seq"],
        )
        if before is not None:
            await log.read()
            await log.claim()
        intake = Intake(drive, self.call, self.items, options, table, may_change=bool(detail.get("forked")))
        runner = ItemRunner(
            self.engine,
            drive,
            self.call,
            window=detail["window"] if before is not None else 0,
            suspects=bool(detail.get("suspects")),
            log=log,
        )
        progress = MapProgress(run_id=drive.run_id, step_id=self.call.step_id, total=intake.total)
        progress.begin(table.succeeded + table.failed, table.failed)
        pump = Pump(drive, self.call, options, intake, runner, log, progress)
        live[drive.run_id, self.call.step_id] = progress
        try:
            with drive.suspension.waiting():  # for its items
                await pump.run()
        except asyncio.CancelledError:
            await self._leave(attempt, log, runner)
            raise
        finally:
            intake.close()
            if live.get((drive.run_id, self.call.step_id)) is progress:  # else the same run of another store
                del live[drive.run_id, self.call.step_id]
        if drive.stopped is not None or self._is_halted():
            await self._leave(attempt, log, runner)
            drive.check()
            self.call.scope.check()
        await log.flush()
        if pump.error is not None and not isinstance(pump.error, ItemsUnreadable):
            raise pump.error
        if pump.error is not None or pump.is_over_limit():
            raise await self._fail(attempt, table, pump.error, pump.failed, pump.first_failures)
        return await self._commit(attempt, table, intake, [log])

    async def begun(self, seen: StepRecord | None, before: StepRecord | None) -> StepRecord:
        """The STARTED record of this map, to be put over the one that was seen.

        Args:
            seen: What is recorded under its id.
            before: The same, if it is of this life of the run.
        """
        drive, options = self.attempts.drive, self.options
        kept = before.details() if before is not None else {}
        detail: dict[str, Any] = {
            "window": max(options.max_concurrency + options.segment_items, _count(kept, "window")),
            "keyed": options.key is not None,
            "redriven_fence": _count(kept, "redriven_fence"),
            "first_seq": _count(kept, "first_seq"),
        }
        other_keys = before is not None and bool(kept.get("keyed")) != detail["keyed"]
        was_shared = any(kept.get(name) for name in ("chunk_size", "divided_by"))
        other_form = before is not None and was_shared != options.distribute
        if (other_keys or other_form) and not kept.get("forked"):
            now = f"with{'' if detail['keyed'] else 'out'} key="
            if other_form:
                now = f"with distribute={options.distribute}"
            raise self._mismatch(f"the map is called {now} now, and was not before")
        if seen is not None and (before is None or other_keys or other_form):
            # What is in the log is of other arguments, of an earlier life, or can't be told apart.
            last = await drive.ask(drive.tools.journal.last_segment, drive.run_id, self.call.step_id)
            detail["first_seq"] = last.seq + 1 if last is not None else 0
        if before is not None and before.status == FAILED:
            detail["redriven_fence"] = drive.redrive_fence
        elif before is not None and before.status == STARTED and drive.crashed(before):
            detail["suspects"] = True
        for flag in ("suspects", "forked"):
            if kept.get(flag):
                detail[flag] = True
        if isinstance(self.items, Sized):
            detail["total"] = len(self.items)
        told = as_json(drive.marked(detail))
        return next_attempt(drive, self.call, seen)._replace(kind=MAP_KIND, crashes=0, detail=told)

    # ---- Ways out ----

    async def _leave(self, attempt: StepRecord, log: ChunkLog, runner: ItemRunner) -> None:
        """What has finished is made durable, if it can be, and the map left for the next owner."""
        if runner.overran:
            attempt = attempt._replace(detail=as_json(attempt.details() | {"suspects": True}))
        if not isinstance(self.attempts.drive.stopped, Fenced | JournalUnavailable):
            await log.flush()
            await self.attempts.interrupted(attempt)

    async def _fail(
        self,
        attempt: StepRecord,
        table: ItemTable,
        error: BaseException | None,
        count: int = 0,
        told_first: Sequence[str] = (),
    ) -> StepFailed:
        """Ends the map FAILED; what has an outcome keeps it.

        Args:
            attempt: As begun.
            table: What is known of its items.
            error: Why they couldn't be read to the end; None: too many failed.
            count: So many failed.
            told_first: Why the first ones did.
        """
        cause = error.__cause__ if error is not None else None
        told = {"code": MapFailed.code, "type": MapFailed.__name__, "traceback": ""}
        if error is not None:
            told |= described(cause or error) | {"code": MapFailed.code, "message": str(error)}
        else:
            first = "; ".join(told_first) or "before the run was last resumed"
            tolerated = self.options.tolerate_failures
            told["message"] = f"{count} items failed, and {tolerated} are tolerated ({first})"
        told |= {"succeeded": str(table.succeeded), "failed": str(table.failed)}
        record = failed(attempt, told, self._now())._replace(detail=attempt.detail)
        await self.attempts.write(record)
        error = self.attempts.told_failed(record, told["type"])
        error.__cause__ = cause
        return error

    async def _commit(
        self,
        attempt: StepRecord,
        table: ItemTable,
        intake: Intake,
        logs: Sequence[ChunkLog],
        kept: Mapping[str, object] = MappingProxyType({}),
    ) -> tuple[StepRecord, MapResult[Any]]:
        """Ends the map COMMITTED, with what its chunks have in their logs by now.

        Args:
            attempt: As begun.
            table: What is known of its items.
            intake: All of them have been pulled.
            logs: Of its chunks, in order.
            kept: What else its record is to say.
        """
        drive, order = self.attempts.drive, intake.order
        if order is None and len(table) > intake.pulled and not intake.may_change:
            raise self._other_items(intake.pulled, len(table))
        rows = order if order is not None else range(intake.pulled)
        if len(rows) < _MANY_ROWS:
            content_hash = table.content_hash(rows)
        else:
            content_hash = await asyncio.to_thread(table.content_hash, rows)
        order_segments = 0
        if order is not None and not _is_as_run(table, order):
            order_segments = await logs[0].put_order([table.place(row) for row in order])
        succeeded = sum(table.states[row] == SUCCEEDED for row in rows)
        reference = MapReference(
            drive.run_id, self.call.step_id, tuple(log.last_seq for log in logs), logs[0].first_seq,
            logs[0].above_fence, succeeded, intake.pulled - succeeded, content_hash, order_segments,
            self.options.collect,
        )  # fmt: skip
        raw = recorded_output(reference, intake.items_hash)
        stored = await drive.tools.values.store(raw, drive.run_id, attempt.attempt_id)
        detail = {**recorded_place(reference), "keyed": order is not None, **kept}
        record = committed(attempt, stored, self._now())._replace(detail=as_json(detail))
        await self.attempts.write(record)
        self.attempts.told_committed(record)
        return record, MapResult(reference, drive.tools.outcomes, self.call.step.adapter, table, rows)

    # ---- Records ----

    async def _recorded(self, record: StepRecord) -> tuple[MapReference, str]:
        """What a COMMITTED map left: where its outcomes are, and the hash of its items."""
        raw = await self.attempts.drive.tools.values.load(
            record.codec, record.output_data, record.output_ref, record.output_size, record.output_hash
        )
        return recorded_map(record, raw)

    def _other_items(self, now: int, recorded: int) -> StepMismatch:
        return self._mismatch(f"the map was run with other items: {recorded} of them, now {now}")

    def _mismatch(self, message: str) -> StepMismatch:
        """Stops the drive: it is no outcome of the map, and no path may be taken on it."""
        drive = self.attempts.drive
        error = StepMismatch(
            message,
            run_id=drive.run_id,
            step_id=self.call.step_id,
            remedy="Give it the items it had and resume; keep the recorded outputs (on_change='keep'); or"
            " fork the run from it, which runs what changed",
        )
        drive.stop(error)
        return error

    def _is_halted(self) -> bool:
        halt = self.call.scope.halt
        return halt is not None and halt.is_set()

    def _now(self) -> str:
        return rfc3339(self.attempts.drive.tools.clock.now_ms())


def _is_as_run(table: ItemTable, order: Sequence[int]) -> bool:
    """Whether the items are those that were run, each at the position that it had then."""
    return len(order) == len(table) and all(table.index(row) == at for at, row in enumerate(order))


def _count(detail: dict[str, Any], name: str) -> int:
    found = detail.get(name, 0)
    return found if isinstance(found, int) else 0
