"""The log of a chunk of map items: who may write which segment, and when an outcome is durable.

finished items ── wait for the write in flight (and `linger_ms`) ── one segment ── the next …

One segment is in flight at a time, so there are no gaps; whatever finished meanwhile goes into the next one.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from durable_core.clock import rfc3339
from durable_core.engine.failure import as_json
from durable_core.envelope import seal
from durable_core.errors import CorruptRecord
from durable_core.identity import new_segment_id
from durable_core.item_table import Place
from durable_core.outcomes import MAX_SEGMENT_BYTES, Outcome, outcomes_of, packed
from durable_core.records import Segment

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from durable_core.engine.drive import Drive
    from durable_core.item_table import ItemTable


class Finished(NamedTuple):
    """An outcome on its way into a segment.

    Attributes:
        row: Of the item table.
        outcome: What came of the item.
        line: The same, as it is packed.
        ref: The blob that it points to.
    """

    row: int
    outcome: Outcome
    line: bytes
    ref: str | None


class ChunkLog:
    """Reads and writes the segments of one chunk.

    Args:
        drive: Of the run.
        step_id: Of the map.
        table: What is known of the items: outcomes are noted there once they are durable.
        most_items: The most outcomes that are not durable before whoever brings more has to wait.
        linger_ms: How long an outcome may wait for others to be written with.
        redriven_fence: Failures written under a fence up to this are to be run again.
        first_seq: What lies before is not of this map: of other arguments, or an earlier life.
        chunk: Which part of the items.
        first: Position of the part's first item, where the table is of this part alone.
        above_fence: What was written under a fence up to this is not of this map either.

    Attributes:
        retried: Rows of items that failed and are to be run again, with the failed steps inside them.
    """

    def __init__(
        self,
        drive: Drive,
        step_id: str,
        table: ItemTable,
        *,
        most_items: int,
        linger_ms: int = 0,
        redriven_fence: int = 0,
        first_seq: int = 0,
        chunk: int = 0,
        first: int = 0,
        above_fence: int = 0,
    ) -> None:
        self._drive = drive
        self._step_id = step_id
        self._chunk = chunk
        self._first = first
        self.above_fence = max(above_fence, drive.lease.base_fence)
        self._table = table
        self._most_items = most_items
        self._linger_s = linger_ms / 1000
        self.redriven_fence = redriven_fence
        self.retried: dict[int, list[str]] = {}
        self.first_seq = self._free_seq = first_seq
        self._waiting: list[Finished] = []
        self._writing = 0
        self._writer: asyncio.Task[None] | None = None
        self._failure: BaseException | None = None
        self._lingering: asyncio.Future[None] | None = None
        self._hurried = 0  # by how many who wait for all or for one to be durable
        self._room = asyncio.Event()

    @property
    def last_seq(self) -> int:
        """Of the last segment that is written; -1 without any."""
        return self._free_seq - 1

    # ---- Reading ----

    async def read(self) -> None:
        """Takes in what earlier owners wrote.

        Raises:
            Fenced: Somebody else drives the run.
            CorruptRecord: There is a gap, or a segment can't be read.
        """
        drive = self._drive
        self._free_seq = 0
        async for page in drive.pages(drive.tools.journal.segments(drive.run_id, self._step_id, self._chunk)):
            for segment in page:
                if segment.seq != self._free_seq:
                    raise CorruptRecord(
                        f"chunk {self._chunk} has segment {segment.seq} where {self._free_seq} should be",
                        run_id=drive.run_id,
                        step_id=self._step_id,
                        remedy="Restore the store from a backup, or fork the run from before this step",
                    )
                self._take_in(segment)
                await asyncio.sleep(0)

    async def claim(self) -> None:
        """Puts an empty segment at the first free place: what earlier owners write late is refused.

        Everything before it has been taken in then: by `read`, or from the refusal.
        """
        await self._append(self._segment([]))

    def _take_in(self, segment: Segment) -> None:
        drive, table = self._drive, self._table
        if drive.is_later(segment):
            raise drive.fenced_by(segment)
        self._free_seq = segment.seq + 1
        if segment.fence <= self.above_fence or segment.seq < self.first_seq:
            return
        for line, outcome in enumerate(outcomes_of(segment)):
            if outcome.key is not None:
                row = table.row_of(outcome.key)
            elif (row := outcome.item_index - self._first) < 0:
                continue  # of another division of the items, which a fork has taken over
            again = not outcome.succeeded and segment.fence <= self.redriven_fence
            if again and table.knows(row):
                continue
            table.note(row, outcome, Place(self._chunk, segment.seq, line))
            self.retried.pop(row, None)
            if again:  # what is forgotten is the outcome, not which item it was of
                table.forget(row)
                self.retried[row] = [str(one) for one in outcome.error().get("steps", ())]

    # ---- Writing ----

    def add(self, row: int, outcome: Outcome, ref: str | None = None) -> None:
        """An item has finished: it goes into the next segment."""
        self._waiting.append(Finished(row, outcome, outcome.line(), ref))
        if self._writer is None:
            self._writer = asyncio.get_running_loop().create_task(self._write_waiting())
        elif self._lingering is not None and self.is_full():
            self._lingering.cancel()

    def is_full(self) -> bool:
        """Whether as much is not durable yet as may be."""
        return len(self._waiting) + self._writing >= self._most_items

    async def until_room(self) -> None:
        """Waits until less is not durable, or nothing more can be written."""
        while self.is_full() and self._failure is None:
            self._room.clear()
            await self._room.wait()

    async def flush(self) -> None:
        """Waits until everything is durable.

        Raises:
            Fenced, JournalUnavailable: It can't be; the drive is stopped.
        """
        with self._hurry():
            if self._writer is not None:
                await asyncio.shield(self._writer)
        if self._failure is not None:
            raise self._failure

    async def until_durable(self, row: int) -> None:
        """Waits until the outcome of an item that was added is durable.

        Raises:
            Fenced, JournalUnavailable: It can't be; the drive is stopped.
        """
        with self._hurry():
            while self._failure is None and not self._table.knows(row):
                self._room.clear()
                await self._room.wait()
        if self._failure is not None:
            raise self._failure

    @contextmanager
    def _hurry(self) -> Iterator[None]:
        """Inside, nobody lingers."""
        self._hurried += 1
        if self._lingering is not None:
            self._lingering.cancel()
        try:
            yield
        finally:
            self._hurried -= 1

    async def put_order(self, places: list[Place]) -> int:
        """Records in which order the items are; gives in how many segments."""
        lines, segments = [as_json(place).encode() for place in places], 0
        while lines:
            some = lines[: fitting(map(len, lines))]
            await self._append(filled(self._segment([]), some))
            del lines[: len(some)]
            segments += 1
        return segments

    async def _write_waiting(self) -> None:
        """A segment at a time, until nothing waits."""
        try:
            while self._waiting:
                if self._linger_s and not self._hurried and not self.is_full():
                    await self._linger()
                some = fitting(len(one.line) for one in self._waiting)
                group, self._waiting = self._waiting[:some], self._waiting[some:]
                self._writing = len(group)
                written = await self._append(self._segment(group))
                for line, one in enumerate(group):
                    self._table.note(one.row, one.outcome, Place(self._chunk, written.seq, line))
                self._writing = 0
                self._room.set()
        except BaseException as error:  # raised by `flush`, which every way out of the map comes to
            self._failure = error
            self._drive.stop(error)
        finally:
            self._writer = None
            self._room.set()

    async def _linger(self) -> None:
        self._lingering = asyncio.ensure_future(self._drive.tools.clock.sleep(self._linger_s))
        try:
            await asyncio.wait((self._lingering,))
        finally:
            self._lingering.cancel()
            self._lingering = None

    def _segment(self, group: list[Finished]) -> Segment:
        drive, table = self._drive, self._table
        good = sum(one.outcome.succeeded for one in group)
        refs = [one.ref for one in group if one.ref is not None]
        empty = Segment(
            drive.run_id, self._step_id, self._chunk, self._free_seq, new_segment_id(), drive.lease.fence,
            chunk_fence=drive.chunk_fence,
            items=len(group),
            succeeded=table.succeeded + good,
            failed=table.failed + len(group) - good,
            refs=as_json(refs) if refs else None,
            written_at=rfc3339(drive.tools.clock.now_ms()),
        )  # fmt: skip
        return filled(empty, [one.line for one in group]) if group else empty

    async def _append(self, segment: Segment) -> Segment:
        """Puts a segment at the first free place; gives it as it was written.

        A   claim 2 ── segment 3 ── (paused) ───────────────── segment 4 ─▶ refused by a higher fence
        B                              claim 4 ── segment 5

        A lower fence in the way is of an earlier life, or of an owner that was late but before the claim:
        what it holds is taken in, and the next place tried.
        """
        drive = self._drive
        if drive.held.is_over():
            await drive.check_lease()
        while True:
            reply = await drive.ask(drive.tools.journal.append, segment)
            stood = reply.row
            if reply.ok or (stood is not None and stood.attempt_id == segment.attempt_id):
                self._free_seq = segment.seq + 1
                drive.tally.items += segment.items
                return segment
            if stood is None:
                raise drive.fenced_by(None)
            self._take_in(stood)
            segment = segment._replace(seq=self._free_seq)


def filled(segment: Segment, lines: list[bytes]) -> Segment:
    """A segment with these packed outcomes in it."""
    sealed = seal(packed(lines))
    return segment._replace(
        data=sealed.data, codec=sealed.codec, size=sealed.size, output_hash=sealed.output_hash
    )


def fitting(sizes: Iterable[int]) -> int:
    """How many lines fit into one segment; at least one."""
    room, count = MAX_SEGMENT_BYTES, 0
    for size in sizes:
        room -= size + 1
        if room < 0 and count:
            break
        count += 1
    return count
