"""A map whose items several workers share: its driver divides them, waits for the chunks, and joins.

begin (STARTED, with the division) ── where each chunk of a manifest begins ── (workers: chunks) ── … ── join

The driver writes no outcome. It waits, SUSPENDED if it may, until the end of a chunk wakes the run; then it
looks at all chunks. When each is COMMITTED it reads their logs, and commits what they say. Where its process
stays it works on chunks itself.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from durable_core.engine.asking import ask
from durable_core.engine.batch import Batch
from durable_core.engine.batch_intake import Intake, ItemsUnreadable
from durable_core.engine.batch_log import ChunkLog
from durable_core.engine.chunk_claims import BROKEN, BUSY, FREE, OVER, chunks_now, shared_map, state_of
from durable_core.engine.chunk_plan import put_plan
from durable_core.engine.chunk_view import ChunkView
from durable_core.engine.chunk_work import EngineOf, work_here
from durable_core.engine.failure import as_json
from durable_core.engine.suspension import Wait
from durable_core.errors import ChunkStalled, DurableError, ManifestError, StepInDoubt, StepMismatch
from durable_core.item_table import ItemTable
from durable_core.manifest import Jsonl
from durable_core.map_options import CHUNK_ITEMS
from durable_core.records import FAILED, STARTED

if TYPE_CHECKING:
    from durable_core.engine.chunk_claims import SharedMap
    from durable_core.manifest_lines import LineRange
    from durable_core.map_result import MapResult
    from durable_core.records import Chunk, StepRecord

SAFETY_NET_S: Final = 60.0
"""After so long a run that waits for a map looks at its chunks by itself: a worker may have died just before
it could wake it."""

_LOOK_EVERY_S: Final = 1.0
_READ_AT_ONCE: Final = 8
_STOPPING: Final = {one.code: one for one in (StepInDoubt, StepMismatch)}


@dataclass(slots=True)
class _Look:
    """All chunks of a map, at one moment.

    Attributes:
        states: How many there are of each.
        free: Those that may be claimed.
        left: Of those, the ones that somebody has had.
        broken: Those that can't go on.
        failed: Items that failed in those that were left.
    """

    states: Counter[str] = field(default_factory=Counter)
    free: list[int] = field(default_factory=list)
    left: list[int] = field(default_factory=list)
    broken: list[Chunk] = field(default_factory=list)
    failed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedBatch(Batch):
    """One call of a map that workers share.

    Attributes:
        ranges: Where each chunk of a manifest is, if that was found out now.
        unreadable: Why the items can't be shared: the manifest can't be read, or two have the same key.
        views: What chunks are worked on with here, once that is known.
        engine_of: Makes what the contexts of a chunk's items call.
    """

    ranges: list[LineRange] = field(default_factory=list)
    unreadable: list[ItemsUnreadable] = field(default_factory=list)
    views: list[ChunkView] = field(default_factory=list)
    engine_of: EngineOf

    async def begun(self, seen: StepRecord | None, before: StepRecord | None) -> StepRecord:
        """The STARTED record, with the division; that stays as it was, once it was begun."""
        drive, items = self.attempts.drive, self.items
        record = await Batch.begun(self, seen, before)
        detail, kept = record.details(), before.details() if before is not None else {}
        size = kept.get("chunk_size") or kept.get("divided_by") or self.options.chunk_size or CHUNK_ITEMS
        was_divided = "chunk_size" in kept and not kept.get("unreadable")
        if isinstance(items, Jsonl):
            total = int(kept.get("total", 0))
            plan = {name: kept.get(name) for name in ("manifest", "plan_fence")}
            if not was_divided or (before is not None and before.status == FAILED):  # it may have been mended
                await self._divide(items, size)
                total = sum(one.items for one in self.ranges)
                plan["manifest"] = self.ranges[0].version if self.ranges else ""
                plan["plan_fence"] = drive.lease.fence
            detail |= plan
        else:
            total = len(items)  # type: ignore[arg-type]  # it was refused otherwise when it was called
        if was_divided and not self.unreadable and total != kept.get("total"):
            raise self._other_items(total, kept["total"])
        if self.options.key is not None and not was_divided and not self.unreadable:
            await self._check_keys()
        detail |= {"chunk_size": size, "chunks": -(-total // size), "total": total}
        if self.unreadable:
            detail["unreadable"] = True
        if detail.pop("first_seq"):  # something lies there that isn't of this map
            detail["above_fence"] = drive.lease.fence - 1
        elif kept.get("above_fence"):
            detail["above_fence"] = kept["above_fence"]
        detail |= {"first_seq": 0}
        detail.pop("suspects", None)
        return record._replace(detail=as_json(detail))

    async def run(self, attempt: StepRecord, before: StepRecord | None) -> tuple[StepRecord, MapResult[Any]]:
        """Waits until the chunks of a map that was begun are done, and joins them.

        Raises:
            MapFailed: Too many items failed, or they could not be read to the end.
        """
        drive = self.attempts.drive
        if self.unreadable:
            raise await self._fail(attempt, ItemTable(), self.unreadable[0])
        of = shared_map(attempt, drive.lease.base_fence)
        if of.manifest is not None:
            await put_plan(drive, of, lambda: self._divided(of))
        is_told = False
        while True:
            heard = drive.suspension.heard
            look = await drive.ask(self._look, of)
            limit = self.options.tolerated(of.total)
            is_lost = bool(look.broken) or (limit is not None and look.failed > limit)
            if look.states[OVER] == of.chunks or (is_lost and not look.states[BUSY]):
                return await self._join(attempt, of, look)
            if is_lost and not of.stops:
                attempt = attempt._replace(detail=as_json({**attempt.details(), "stops": True}))
                await self.attempts.write(attempt)
                of = of._replace(record=attempt, stops=True)
            elif not is_lost and look.free:
                if not is_told:
                    is_told = True
                    is_new = before is None or before.status != STARTED or of.is_forked
                    await self._tell(of, look.free if is_new or not look.states[BUSY] else look.left)
                if not drive.suspension.suspends:
                    await self._work_here(of, look)
                    continue
            if heard == drive.suspension.heard:  # else something has come while it looked
                await self._wait(of)

    # ---- Dividing ----

    async def _divide(self, items: Jsonl[Any], size: int) -> None:
        """Finds out where the chunks of a manifest are; what it can't be read for is kept for `run`."""
        drive = self.attempts.drive
        try:
            self.ranges.extend(await ask(asyncio.to_thread, _ranges, items, size))
        except ManifestError as error:
            self.unreadable.append(_unreadable(error))
        except DurableError as error:  # the store of the manifest: it tells nothing about the items
            drive.stop(error)
            raise

    async def _check_keys(self) -> None:
        """Looks at all keys once, before anybody begins: nobody else will have all of them at hand."""
        intake = Intake(self.attempts.drive, self.call, self.items, self.options, ItemTable())
        try:
            while await intake.next() is not None:
                await intake.give_turn()
        except ItemsUnreadable as error:
            self.unreadable.append(error)
        finally:
            intake.close()

    async def _divided(self, of: SharedMap) -> list[LineRange]:
        """The same as when the map began."""
        if not self.ranges and isinstance(self.items, Jsonl):
            await self._divide(self.items, of.chunk_size)
        found = sum(one.items for one in self.ranges)
        if self.unreadable or found != of.total or any(one.version != of.manifest for one in self.ranges):
            raise self._other_items(found, of.total)
        return self.ranges

    # ---- Waiting ----

    async def _look(self, of: SharedMap) -> _Look:
        tools, look, met = self.attempts.drive.tools, _Look(), set[int]()
        async for chunk in chunks_now(tools, of):
            met.add(chunk.chunk)
            state = state_of(tools, of, chunk)
            look.states[state] += 1
            if state == FREE:
                look.left.append(chunk.chunk)
            if state == BROKEN:
                look.broken.append(chunk)
            if state != FREE or chunk.fence > of.redriven_fence:
                look.failed += chunk.failed
        look.free = look.left + [number for number in range(of.chunks) if number not in met]
        look.states[FREE] = len(look.free)
        return look

    async def _has_come(self, of: SharedMap) -> bool:
        """Whether there is something to do for the driver: asked just before the run is suspended."""
        look = await self.attempts.drive.ask(self._look, of)
        limit = self.options.tolerated(of.total)
        is_lost = bool(look.broken) or (limit is not None and look.failed > limit)
        return look.states[OVER] == of.chunks or (is_lost and not (of.stops and look.states[BUSY]))

    async def _wait(self, of: SharedMap) -> None:
        drive = self.attempts.drive
        wait_s = SAFETY_NET_S if drive.suspension.suspends else _LOOK_EVERY_S
        wake_at_ms = drive.tools.clock.now_ms() + round(wait_s * 1000)
        wait = Wait(wake_at_ms, looks=lambda: self._has_come(of))
        await drive.suspension.until(wait, self.call.scope)

    async def _tell(self, of: SharedMap, chunks: list[int]) -> None:
        """Tells of chunks: of all when the map begins or nobody works on any, else of those that were left.

        A driver that is woken in the middle must not tell of ten thousand chunks each time.
        """
        dispatch = self.attempts.drive.tools.dispatch
        if dispatch is not None and chunks:
            await dispatch.chunks(of.record.run_id, of.record.step_id, chunks)

    async def _work_here(self, of: SharedMap, look: _Look) -> None:
        """Works on one chunk: this process has nothing else to do with the map."""
        drive = self.attempts.drive
        if not self.views:
            made = await ChunkView.made(drive.tools, of, self.call, self.items, self.options)
            self.views.extend([made] if made is not None else [])
        for view in self.views:
            await work_here(drive, of, look.free[0], view, self.engine_of)
        self.attempts.drive.check()
        self.call.scope.check()

    # ---- Joining ----

    async def _join(
        self, attempt: StepRecord, of: SharedMap, look: _Look
    ) -> tuple[StepRecord, MapResult[Any]]:
        """What the chunks have come to is what the map comes to."""
        drive, table = self.attempts.drive, ItemTable()
        logs = [
            ChunkLog(
                drive,
                self.call.step_id,
                table,
                most_items=1,
                redriven_fence=of.redriven_fence,
                chunk=chunk,
                above_fence=of.above_fence,
            )
            for chunk in range(max(of.chunks, 1))
        ]
        for start in range(0, len(logs), _READ_AT_ONCE):
            await asyncio.gather(*(log.read() for log in logs[start : start + _READ_AT_ONCE]))
        if look.broken:
            raise await self._broken(attempt, table, look.broken[0])
        if look.states[OVER] < of.chunks:
            raise await self._fail(attempt, table, None, table.failed)
        intake = Intake(drive, self.call, self.items, self.options, table, may_change=of.is_forked)
        try:
            if await intake.next() is not None:
                raise self._other_items(intake.pulled, len(table))
        except ItemsUnreadable as error:
            raise await self._fail(attempt, table, error) from error.__cause__
        finally:
            intake.close()
        limit = self.options.tolerated(of.total)
        if limit is not None and intake.failed_before > limit:
            raise await self._fail(attempt, table, None, intake.failed_before)
        return await self._commit(attempt, table, intake, logs, {"divided_by": of.chunk_size})

    async def _broken(self, attempt: StepRecord, table: ItemTable, chunk: Chunk) -> DurableError:
        """Why a chunk can't go on: it ends the map, or the run."""
        told = chunk.error_info()
        message = str(told.get("message", ""))
        kind = _STOPPING.get(str(told.get("code")))
        if told.get("code") == ChunkStalled.code:
            stalled = ChunkStalled(message)
            failed = await self._fail(attempt, table, stalled)
            failed.__cause__ = stalled
            return failed
        if kind is None:
            return await self._fail(attempt, table, ItemsUnreadable(message))
        error = kind(message, run_id=chunk.run_id, step_id=chunk.step_id)
        self.attempts.drive.stop(error)
        return error


def _ranges(items: Jsonl[Any], size: int) -> list[LineRange]:
    return list(items.ranges(size))


def _unreadable(error: ManifestError) -> ItemsUnreadable:
    found = ItemsUnreadable(f"the items could not be had: {error}")
    found.__cause__ = error
    return found
