"""Faults of the protocol: what an engine or a journal could get wrong, each planted by a change of text."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """One fault, and where it shows.

    Attributes:
        file: Below the package.
        old: The text that is right; it must be there exactly once.
        new: What is planted instead.
        scenario: The beginning of the names of the scenarios that catch it.
        on: Only on this kind of journal; else on both in memory.
        walks: Random executions per journal, after an exhaustive search of `limit` executions per budget.
        slow: Searched at full scale only.
    """

    name: str
    file: str
    old: str
    new: str
    scenario: str = "3 steps"
    on: str = ""
    walks: int = 1000
    limit: int = 100
    slow: bool = False


FAULTS = (
    Fault(
        "begin-without-cas",
        "journal/memory.py",
        "if as_seen(old) != seen or (checked and",
        "if (checked and",
    ),
    Fault(
        "begin-over-higher-fence",
        "engine/recorded.py",
        "if seen.status == STARTED and drive.is_as_late(seen) and seen.attempt_id != own:",
        "if False:",
    ),
    Fault(
        "outcome-of-a-higher-fence-is-used",
        "engine/recorded.py",
        "        if drive.is_later(seen):\n            raise drive.fenced_by(seen)\n",
        "",
    ),
    Fault(
        "header-refusal-taken-for-the-record",
        "engine/attempts.py",
        "        if as_seen(row) == as_seen(seen):  # refused for the header, not for the record\n"
        "            raise drive.fenced_by(row)\n",
        "",
    ),
    Fault(
        "commit-without-attempt",
        "journal/_memory_rows.py",
        "or (old.status, old.attempt_id) != (STARTED, record.attempt_id)",
        "or old.status != STARTED",
    ),
    Fault(
        "commit-over-anything",
        "journal/_memory_rows.py",
        "or (old.status, old.attempt_id) != (STARTED, record.attempt_id)",
        "",
    ),
    Fault(
        "commit-forgets-own",
        "engine/attempts.py",
        "if not reply.ok and not is_own(reply.row, record):",
        "if not reply.ok:",
    ),
    Fault(
        "refused-commit-is-success",
        "engine/attempts.py",
        "if not reply.ok and not is_own(reply.row, record):",
        "if False:",
    ),
    Fault(
        "acquire-without-fence",
        "journal/memory.py",
        "if old is None or old.fence != seen.fence or old.status not in statuses or not free:",
        "if old is None or old.status not in statuses or not free:",
        scenario="3 steps",
        walks=3000,
    ),
    Fault(
        "acquire-forgets-own",
        "engine/admission.py",
        "    if header.owner != claim.owner:\n",
        "    if not reply.ok:\n",
    ),
    Fault(
        "create-forgets-own",
        "engine/admission.py",
        "return reply.row, (reply.row.owner if owned else reply.row.created_by) == creator",
        "return reply.row, reply.ok",
        scenario="new run",
    ),
    Fault(
        "creator-takes-its-successors-lease",
        "engine/admission.py",
        "(reply.row.owner if owned else reply.row.created_by) == creator",
        "reply.row.created_by == creator",
        scenario="new run",
    ),
    Fault(
        "leave-forgets-own",
        "engine/driver.py",
        "if header is None or not (reply.ok or own):",
        "if header is None or not reply.ok:",
    ),
    Fault(
        "leave-without-fence",
        "journal/memory.py",
        "not is_mine(old, lease)\n                or old is None",
        "old is None",
    ),
    Fault(
        "renew-without-fence",
        "journal/memory.py",
        "if old is None or not is_mine(old, lease):",
        "if old is None:",
        walks=2000,
    ),
    Fault(
        "pure-overwrites",
        "journal/memory.py",
        '        """As begin."""\n        return await self.begin(record, seen, lease)',
        "        self.records[record.run_id, record.step_id] = record\n        return Reply(True, record)",
        scenario="pure step",
    ),
    Fault(
        "pure-adopts-any-lower-fence",
        "engine/pure.py",
        "        seen = reply.row  # a late one",
        '        return reply.row, (reply.row.output_data or b"").decode().strip(\'"\')  #',
        scenario="reuse, zombie",
        on="dynamodb",
    ),
    Fault(
        "pure-runs-again-over-an-earlier-life",
        "engine/pure.py",
        "if reply.row is not None and drive.owns(reply.row):",
        "if True:",
        scenario="reuse, zombie",
        on="dynamodb",
    ),
    Fault(
        "base-fence-ignored",
        "engine/drive.py",
        "return record.fence > self.lease.base_fence",
        "return True",
        scenario="reuse, old records",
    ),
    Fault(
        "retry-forgets-error",
        "engine/attempts.py",
        'errors = int(attempt.details().get("errors", 0)) + 1',
        "errors = 1",
        scenario="hopeless step",
    ),
    Fault(
        "at-most-once-runs-again",
        "engine/attempts.py",
        "if before is not None and call.step.options.is_guarded and needs_verifying(before):",
        "if False:",
        scenario="at_most_once",
    ),
    Fault(
        "notdone-is-trusted",
        "engine/attempts.py",
        "if not self.drive.has_ended(before):",
        "if False:",
        scenario="at_most_once",
    ),
    Fault(
        "certain-of-last-owner",
        "engine/drive.py",
        "dead_from_ms = self.gone.get(self.rank(record))",
        "dead_from_ms = min((one for one in self.gone.values() if one is not None), default=None)",
        scenario="at_most_once, stray",
        limit=1000,
    ),
    Fault(
        "doubt-is-not-inherited",
        "engine/drive.py",
        'if record.details().get("unsure"):',
        "if False:",
        scenario="at_most_once, stray",
        limit=1000,
    ),
    Fault(
        "doubt-is-not-handed-on",
        "engine/step_records.py",
        'kept["unsure"] = True',
        "pass",
        scenario="at_most_once, stray",
        limit=1000,
    ),
    Fault(
        "replaced-attempt-takes-a-new-key",
        "engine/step_records.py",
        "None, seen.idempotency_key, seen.attempt + 1,",
        "None, attempt_id, seen.attempt + 1,",
    ),
    Fault(
        "cancel-keeps-the-fence",
        "journal/memory.py",
        "status=CANCELLED,\n                    owner=None,\n                    owner_process=None,\n"
        "                    fence=seen.fence + 1,",
        "status=CANCELLED,",
        scenario="cancelled",
    ),
    Fault(
        "prune-header-first",
        "engine/pruning.py",
        "        cleared = await clear(tools, header.run_id, header.fence, hold.check)\n"
        "        await _bury(tools, hold)\n",
        "        await _bury(tools, hold)\n"
        "        cleared = await clear(tools, header.run_id, header.fence, hold.check)\n",
        scenario="prune",
    ),
    Fault(
        "prune-stuck",
        "engine/admission.py",
        "statuses=(*ENDED, PRUNING)",
        "statuses=ENDED",
        scenario="prune",
    ),
    Fault(
        "delete-without-fence",
        "journal/_memory_below.py",
        "if row is not None and row.fence <= fence:",
        "if row is not None:",
        scenario="prune, reuse",
    ),
    Fault(
        "bury-without-fence",
        "journal/_memory_below.py",
        "if old is None or not is_mine(old, lease):",
        "if old is None:",
        scenario="prune, reuse",
    ),
    Fault(
        "tombstone-forgets-its-fence",
        "journal/_memory_below.py",
        "fence=old.fence,\n                    base_fence=old.fence,",
        "fence=0,\n                    base_fence=0,",
        scenario="prune",
    ),
    Fault(
        "segment-claim-without-empty",
        "engine/batch.py",
        "            await log.claim()\n",
        "",
        scenario="map",
    ),
    Fault(
        "segment-over-anything",
        "journal/_memory_chunks.py",
        "            if old is not None:\n                return Reply(False, old)\n"
        "            self.logs[key] = segment",
        "            self.logs[key] = segment",
        scenario="map",
    ),
    Fault(
        "segment-forgets-own",
        "engine/batch_log.py",
        "if reply.ok or (stood is not None and stood.attempt_id == segment.attempt_id):",
        "if reply.ok:",
        scenario="map",
    ),
    Fault(
        "segment-goes-past-a-higher-fence",
        "engine/batch_log.py",
        "        if drive.is_later(segment):\n            raise drive.fenced_by(segment)\n",
        "",
        scenario="map",
    ),
    Fault(
        "segment-in-the-way-is-not-taken-in",
        "engine/batch_log.py",
        "            self._take_in(stood)\n",
        "            self._free_seq = stood.seq + 1\n",
        scenario="map",
        walks=3000,
    ),
    Fault(
        "segments-of-an-earlier-life-are-taken-in",
        "engine/batch_log.py",
        "if segment.fence <= self.above_fence or segment.seq < self.first_seq:",
        "if segment.seq < self.first_seq:",
        scenario="map, reuse",
    ),
    Fault(
        "map-commits-before-its-items",
        "engine/batch.py",
        "        await log.flush()\n        if pump.error",
        "        if pump.error",
        scenario="map",
    ),
    Fault(
        "item-of-a-late-owner-fences",
        "engine/batch_items.py",
        "if row is None or drive.is_as_late(row) or as_seen(row) == as_seen(seen):",
        "if True:",
        scenario="map, three owners",
        on="dynamodb",
        walks=3000,
    ),
    Fault(
        "item-is-begun-over-a-higher-fence",
        "engine/batch_items.py",
        "if row is None or drive.is_as_late(row) or as_seen(row) == as_seen(seen):",
        "if row is None or as_seen(row) == as_seen(seen):",
        scenario="map, three owners",
        on="dynamodb",
        walks=3000,
    ),
    Fault(
        "log-that-cannot-be-read-fails-the-run",
        "engine/drive.py",
        "            self.stop(error)\n            raise\n\n    def place",
        "            raise\n\n    def place",
        scenario="map",
        on="sql",
    ),
    Fault(
        "suspend-without-count",
        "engine/suspension.py",
        "journal.leave, lease, departure, wake_count=header.wake_count)",
        "journal.leave, lease, departure)",
        scenario="suspend, signal",
    ),
    Fault(
        "suspend-with-a-later-count",
        "engine/suspension.py",
        "            departure = Departure(\n",
        "            header = await drive.ask(journal.header, drive.run_id) or header\n"
        "            departure = Departure(\n",
        scenario="suspend, signal",
    ),
    Fault(
        "suspend-without-a-last-look",
        "engine/suspension.py",
        "            if await self.untaken(name) is not None:\n                return True\n",
        "            pass\n",
        scenario="suspend, signal",
    ),
    Fault(
        "refused-suspension-taken-for-done",
        "engine/suspension.py",
        "if now is not None and (reply.ok or (now.fence == lease.fence and now.owner is None)):",
        "if now is not None:",
        scenario="suspend, signal",
    ),
    Fault(
        "suspension-forgets-own",
        "engine/suspension.py",
        "if now is not None and (reply.ok or (now.fence == lease.fence and now.owner is None)):",
        "if now is not None and reply.ok:",
        scenario="suspend, signal",
    ),
    Fault(
        "signal-without-count",
        "journal/_memory_below.py",
        "                self.add_wake(header)\n",
        "                pass\n",
        scenario="suspend, signal",
    ),
    Fault(
        "early-event-unbound",
        "journal/_memory_below.py",
        "            if life(header) != life(seen) or old is not None:\n"
        "                return Reply(False, old)\n"
        "            self.letters[key] = event\n"
        "            if header is not None and header.status in ACTIVE:\n",
        "            if old is not None:\n"
        "                return Reply(False, old)\n"
        "            self.letters[key] = event\n"
        "            if life(header) == life(seen) and header is not None and header.status in ACTIVE:\n",
        scenario="early event",
    ),
    Fault(
        "send-forgets-own",
        "engine/signals.py",
        "            if one.event_id == event_id and one.fence == life:\n",
        "            if False:\n",
        scenario="sent twice",
    ),
    Fault(
        "take-outside-commit",
        "journal/_memory_below.py",
        "            reply = self.put_outcome(outcome)\n            if reply.ok:\n",
        "            reply = self.put_outcome(outcome)\n            if True:\n",
        scenario="take, branches",
    ),
    Fault(
        "event-taken-twice",
        "journal/_memory_below.py",
        "if now is None or now.taken_by is not None:",
        "if now is None:",
        scenario="take, branches",
    ),
    Fault(
        "event-deleted-when-taken",
        "journal/_memory_below.py",
        "                self.letters[key] = now._replace(taken_by=outcome.attempt_id)\n",
        "                del self.letters[key]\n",
        scenario="sent twice",
    ),
    Fault(
        "refused-take-is-fenced",
        "engine/waits.py",
        "            if as_seen(reply.row) == as_seen(attempt):\n                return None\n",
        "",
        scenario="take, branches",
    ),
    Fault(
        "refused-take-is-taken",
        "engine/waits.py",
        "if not reply.ok and not is_own(reply.row, record):",
        "if False:",
        scenario="take, branches",
    ),
    Fault(
        "last-look-for-one-event-of-several",
        "engine/suspension.py",
        "for name in sorted(self._awaited):",
        "for name in sorted(self._awaited)[:1]:",
        scenario="suspend, branches",
    ),
    Fault(
        "what-runs-is-not-waited-for",
        "engine/suspension.py",
        "if drive.tasks.keys() != self._waits.keys() or",
        "if not self._waits or",
        scenario="suspend, steps beside",
    ),
    Fault(
        "deaths-before-the-last-are-forgotten",
        "engine/admission.py",
        "    gone: dict[int, int | bool | None] = dict(gone_of(seen))\n",
        "    gone: dict[int, int | bool | None] = {}\n",
        scenario="at_most_once, all dead",
    ),
    Fault(
        "retry-time-of-another-clock-is-kept",
        "engine/retry_times.py",
        "if ahead_ms > 0:",
        "if False:",
        scenario="retried later",
    ),
    Fault(
        "retry-is-waited-for-by-the-wall-clock",
        "engine/retry_times.py",
        "min(retry_at_ms - clock.now_ms(), end_ms - clock.boot_ms())",
        "retry_at_ms - clock.now_ms()",
        scenario="retried later",
    ),
    Fault(
        "lease-of-the-store-by-ones-own-clock",
        "engine/owners.py",
        "return tools.clock.now_ms() + tools.journal.skew_ms",
        "return tools.clock.now_ms()",
        scenario="retried later",
        on="sql",
    ),
    Fault(
        "chunk-claim-without-empty-segment",
        "engine/chunk_work.py",
        "            await log.claim()\n",
        "",
        scenario="shared map, one chunk",
        walks=3000,
    ),
    Fault(
        "chunk-end-without-wake",
        "engine/chunk_work.py",
        "self._tools.journal.leave_chunk, self._lease, departure, wakes=wakes)",
        "self._tools.journal.leave_chunk, self._lease, departure, wakes=False)",
        scenario="shared map",
    ),
    Fault(
        "chunk-end-is-not-looked-at-again",
        "engine/chunk_work.py",
        "woken = not others and await rejoin(self._tools, drive.header, self._of)",
        "woken = False",
        scenario="shared map",
        walks=3000,
    ),
    Fault(
        "last-look-without-chunks",
        "engine/suspension.py",
        "            if await look():\n",
        "            if False:\n",
        scenario="shared map",
        walks=3000,
    ),
    Fault(
        "stalled-worker-goes-past-the-claim-of-the-next",
        "engine/ranks.py",
        "return self.rank(row) > (self.chunk_fence or self.lease.fence)",
        "return self.rank(row) > (1_000 if self.chunk_fence else self.lease.fence)",
        scenario="shared map, one chunk, stalls",
    ),
)
