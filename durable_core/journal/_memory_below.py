"""What lies under a header in the memory journal besides steps and maps: events; and how it is pruned."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from durable_core.journal._memory_chunks import MemoryChunks
from durable_core.journal._memory_rows import is_mine, life, pages
from durable_core.records import (
    ACTIVE,
    TOMBSTONE,
    Child,
    Event,
    Reply,
    RunHeader,
    StepRecord,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from durable_core.journal.base import Lease


class MemoryBelow(MemoryChunks):
    """The verbs on events and tombstones."""

    # ---- Events ----

    async def send(self, event: Event, seen: RunHeader | None) -> Reply[Event]:
        """Where there is none, to the life as seen."""
        with self.lock:
            header, key = self.headers.get(event.run_id), (event.run_id, event.name, event.seq)
            old = self.letters.get(key)
            if life(header) != life(seen) or old is not None:
                return Reply(False, old)
            self.letters[key] = event
            if header is not None and header.status in ACTIVE:
                self.add_wake(header)
            return Reply(True, event)

    async def take(self, event: Event, outcome: StepRecord) -> Reply[StepRecord]:
        """An event that is there and nobody's, with the step's outcome."""
        with self.lock:
            key = (event.run_id, event.name, event.seq)
            now = self.letters.get(key)
            if now is None or now.taken_by is not None:
                return Reply(False, self.records.get((outcome.run_id, outcome.step_id)))
            reply = self.put_outcome(outcome)
            if reply.ok:
                self.letters[key] = now._replace(taken_by=outcome.attempt_id)
            return reply

    async def events(self, run_id: str, name: str | None = None) -> AsyncIterator[list[Event]]:
        """Of a run, or of one name."""
        found = [
            (key, one)
            for key, one in list(self.letters.items())
            if key[0] == run_id and name in (None, key[1])
        ]
        for page in pages([one for _, one in sorted(found)]):
            yield page

    # ---- Pruning ----

    async def children(self, run_id: str) -> AsyncIterator[list[Child]]:
        """All that lies under the header."""
        steps = [
            Child(
                "step",
                one.step_id,
                0,
                0,
                one.fence,
                (one.output_ref,) if one.output_ref else (),
                one.output_size or 0,
            )
            for (of, _), one in list(self.records.items())
            if of == run_id
        ]
        segments = [
            Child("segment", one.step_id, one.chunk, one.seq, one.fence, one.blob_refs(), one.size or 0)
            for (of, *_), one in list(self.logs.items())
            if of == run_id
        ]
        events = [
            Child("event", one.name, 0, one.seq, one.fence, (one.ref,) if one.ref else (), one.size or 0)
            for (of, *_), one in list(self.letters.items())
            if of == run_id
        ]
        chunks = [
            Child("chunk", one.step_id, one.chunk, 0, one.fence)
            for one in list(self.claims.values())
            if one.run_id == run_id
        ]
        for page in pages(steps + segments + events + chunks):
            yield page

    async def delete(self, run_id: str, children: Sequence[Child], fence: int) -> None:
        """One by one, as they are now."""
        with self.lock:
            for kind, name, chunk, seq, *_ in children:
                tables: dict[str, tuple[dict[Any, Any], tuple[int, ...]]] = {
                    "step": (self.records, ()),
                    "segment": (self.logs, (chunk, seq)),
                    "event": (self.letters, (seq,)),
                    "chunk": (self.claims, (chunk,)),
                }
                table, rest = tables[kind]
                row = table.get((run_id, name, *rest))
                if row is not None and row.fence <= fence:
                    del table[run_id, name, *rest]

    async def bury(self, lease: Lease, at: str) -> Reply[RunHeader]:
        """My owner and fence; the tombstone keeps the fence."""
        with self.lock:
            old = self.headers.get(lease.run_id)
            if old is None or not is_mine(old, lease):
                return Reply(False, old)
            return self.put_header(
                RunHeader(
                    run_id=old.run_id,
                    workflow=old.workflow,
                    status=TOMBSTONE,
                    fence=old.fence,
                    base_fence=old.fence,
                    created_at=old.created_at,
                    updated_at=at,
                    ended_at=old.ended_at,
                )
            )

    async def tombstones(self, before: str, *, limit: int = 100) -> list[RunHeader]:
        """Without an end, oldest first."""
        found = [
            header
            for header in list(self.headers.values())
            if header.status == TOMBSTONE and header.updated_at < before and header.expires_at_s is None
        ]
        return sorted(found, key=lambda header: (header.updated_at, header.run_id))[:limit]

    async def expire(self, seen: RunHeader, expires_at_s: int) -> Reply[RunHeader]:
        """The tombstone as seen, without an end."""
        with self.lock:
            old = self.headers.get(seen.run_id)
            if old is None or (old.status, old.fence, old.expires_at_s) != (TOMBSTONE, seen.fence, None):
                return Reply(False, old)
            return self.put_header(replace(old, expires_at_s=expires_at_s))

    async def purge(self) -> int:
        """Those whose end has come."""
        now_s = self.clock.now_ms() / 1000
        with self.lock:
            gone = [
                header.run_id
                for header in self.headers.values()
                if header.status == TOMBSTONE
                and header.expires_at_s is not None
                and header.expires_at_s <= now_s
            ]
            for run_id in gone:
                del self.headers[run_id]
            return len(gone)
