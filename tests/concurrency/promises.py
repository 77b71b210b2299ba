"""What has to hold in every execution, checked as it goes on."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from durable_core.journal.base import Lease
from durable_core.journal.chunks import ChunkLease
from durable_core.outcomes import outcomes_of
from durable_core.records import (
    COMMITTED,
    COMPLETED,
    MAP_KIND,
    PRUNING,
    RUNNING,
    SKIPPED,
    TOMBSTONE,
    Reply,
    RunHeader,
    Segment,
    StepRecord,
)
from tests.concurrency.traces import brief

if TYPE_CHECKING:
    from tests.concurrency.journals import Rows
    from tests.concurrency.processes import Process, Request
    from tests.concurrency.simulation import Scenario

RUN = "r"
FROM_BEFORE = "old."  # attempts of records that are there when the execution begins


class Violation(Exception):
    """A promise is broken."""


class Promises:
    """The promises of one execution.

    Args:
        scenario: What is allowed.
        journal: What has become of the run.
    """

    def __init__(self, scenario: Scenario, journal: Rows) -> None:
        self.scenario, self.journal = scenario, journal
        self.settled: dict[str, StepRecord] = {}
        self.segments: dict[tuple[str, str, int, int], Segment] = {}
        self.ended: RunHeader | None = None
        self.fence = 0
        self.bodies: dict[str, list[tuple[str, int]]] = {}
        self.keys: dict[str, set[str]] = {}

    def check(self) -> None:
        """After each write."""
        header = self.journal.headers.get(RUN)
        base = header.base_fence if header is not None else 0
        if header is not None:
            if header.fence < self.fence:
                raise Violation(f"the fence went back from {self.fence}: {brief(header)}")
            self.fence = header.fence
            if self.scenario.prunes and header.status in (PRUNING, TOMBSTONE):
                self._check_pruned(header)
                return
        elif self.fence:
            raise Violation("the header is gone, and its fence with it")
        for step_id, record in self.settled.items():
            now = self.journal.records.get((RUN, step_id))
            if now != record:
                raise Violation(f"a settled record changed: {brief(record)} became {brief(now)}")
        for (_, step_id), record in self.journal.records.items():
            if record.status in (COMMITTED, SKIPPED) and record.fence > base and header is not None:
                self.settled[step_id] = record
        for place, segment in self.segments.items():
            if self.journal.logs.get(place) != segment:
                raise Violation(
                    f"a segment changed: {brief(segment)} became {brief(self.journal.logs.get(place))}"
                )
        self.segments = dict(self.journal.logs)
        if self.ended is not None and header != self.ended:
            raise Violation(f"an ended run changed: {brief(self.ended)} became {brief(header)}")
        if self.scenario.has_ended(header):
            self.ended = header

    def _check_pruned(self, header: RunHeader) -> None:
        """What there was before it may go now; and it has gone when there is a tombstone.

        What zombies put meanwhile may lie under it.
        """
        self.settled.clear()
        self.segments.clear()
        self.ended = None
        if header.status == TOMBSTONE:
            self.bodies.clear()  # they are counted anew in each life of the id
            for record in self.journal.records.values():
                if record.attempt_id.startswith(FROM_BEFORE):
                    raise Violation(f"the run was buried with {brief(record)} under it")

    def _check_events(self, header: RunHeader | None) -> None:
        """Each event is there once, and taken by the step that has its payload; none that came is left."""
        events = sorted(self.journal.letters.values())
        ids = [event.event_id for event in events]
        if sorted(set(ids)) != sorted(self.scenario.events) or len(ids) != len(set(ids)):
            raise Violation(f"sent were {self.scenario.events}, stored are {ids}")
        takers = {record.attempt_id: record for record in self.journal.records.values()}
        for event in events:
            if event.taken_by is None:
                raise Violation(f"{brief(event)} was lost, with the run {brief(header)}")
            taker = takers.get(event.taken_by)
            if taker is None or (taker.status, taker.output_data) != (COMMITTED, event.data):
                raise Violation(f"{brief(event)} was taken by {brief(taker)}")

    def ran(self, name: str, by: str, fence: int, key: str) -> None:
        """A body has its effect now."""
        bodies = self.bodies.setdefault(name, [])
        bodies.append((by, fence))
        header = self.journal.headers.get(RUN)
        owners = header.fence - header.base_fence if header is not None else 0
        most = 1 if name in self.scenario.once else owners + self.scenario.extra
        if len(bodies) > most:
            raise Violation(f"the body of {name} ran {len(bodies)} times: {bodies}; allowed are {most}")
        keys = self.keys.setdefault(name, set())
        keys.add(key)
        if len(keys) > 1:
            raise Violation(f"the body of {name} ran under {len(keys)} idempotency keys")

    def heard(self, request: Request, reply: object) -> None:
        """A process gets this reply, and has to draw its conclusions."""
        process = request.process
        if not isinstance(reply, Reply):
            return
        if request.verb in ("create", "acquire"):
            if isinstance(reply.row, RunHeader) and reply.row.owner_process == process.name:
                process.fence = process.knows = reply.row.fence
                process.acquired, process.refused = True, ()
            return
        asked = request.what[0] if request.what else None
        if isinstance(asked, Lease) and not asked.owner.startswith(f"{process.name}."):
            raise Violation(f"{process.name} drives with the lease of {asked.owner}")
        in_chunk = any(isinstance(one, ChunkLease) for one in request.what)
        if request.verb in ("begin", "put") and isinstance(asked, StepRecord) and not in_chunk:
            record = asked
            if record.fence != process.fence:
                raise Violation(f"{process.name} owns fence {process.fence}, and writes under {record.fence}")
            if request.knew > record.fence:
                raise Violation(f"{process.name} goes on, although it was told of fence {request.knew}")
            own = isinstance(reply.row, StepRecord) and reply.row.attempt_id == record.attempt_id
            refused = () if reply.ok or own else (request.verb, record.step_id, reply.row)
            if refused and refused == process.refused:
                raise Violation(f"{process.name} asks again, as if it had learned nothing from the refusal")
            process.refused = refused
        process.knows = max(process.knows, getattr(reply.row, "fence", 0))

    def give_chunk_up(self, process: Process) -> None:
        """The process was fenced from a chunk: has it lost it?"""
        for chunk in self.journal.claims.values():
            if chunk.status == RUNNING and chunk.owner_process == process.name:
                raise Violation(f"{process.name} was fenced, although {brief(chunk)} is its own")

    def give_way(self, process: Process) -> None:
        """The process was fenced: was it not the rightful owner?"""
        header = self.journal.headers.get(RUN)
        if header is not None and header.fence == process.fence:
            raise Violation(f"{process.name} was fenced, although nobody has taken over since")

    def judge(self, processes: list[Process]) -> None:
        """At the end of an execution."""
        header = self.journal.headers.get(RUN)
        allowed = (*self.scenario.may_end, *((COMPLETED,) if self.scenario.may_complete else ()))
        self._check_events(header)
        if header is None or header.status not in allowed:
            raise Violation(f"the run was left {brief(header)}")
        if header.status != COMPLETED:
            return
        records = [self.journal.records.get((RUN, name)) for name in self.scenario.steps]
        outputs = []
        for record in records:
            if (
                record is None
                or record.status not in (COMMITTED, SKIPPED)
                or record.fence <= header.base_fence
            ):
                raise Violation(f"the run is COMPLETED with {brief(record)}")
            if record.kind == MAP_KIND:
                outputs += self._mapped(record, header.base_fence)
            else:
                outputs.append(json.loads(record.output_data or b"null"))
        said = json.loads(header.output_data or b"null")
        if said != outputs:
            raise Violation(f"the run's output is {said}, its steps' are {outputs}")
        self._judge_processes(processes, header, said)

    def _judge_processes(self, processes: list[Process], header: RunHeader, said: object) -> None:
        for process in processes:
            if self.scenario.reuses and process.fence <= header.base_fence:
                continue  # it was told of an earlier life
            if process.outcome is not None and process.outcome != said:
                raise Violation(f"{process.name} was told {process.outcome}, the run's output is {said}")

    def _mapped(self, record: StepRecord, base_fence: int) -> list[object]:
        """The outputs of a map that has committed, as its log has them: of each item exactly one."""
        told, pins = json.loads(record.output_data or b"{}"), record.details()["pins"]
        found: dict[int, object] = {}
        for (_, step_id, chunk, seq), segment in sorted(self.journal.logs.items()):
            if step_id != record.step_id or segment.fence <= base_fence or seq > pins[chunk]:
                continue
            for outcome in outcomes_of(segment):
                if outcome.item_index in found:
                    raise Violation(
                        f"item {outcome.item_index} is in the log twice, again in {brief(segment)}"
                    )
                found[outcome.item_index] = json.loads(outcome.payload)
        if sorted(found) != list(range(told["succeeded"])):
            raise Violation(
                f"the map has committed {told['succeeded']} outputs, its log has items {sorted(found)}"
            )
        return [found[item] for item in sorted(found)]
