"""Whether the events that were sent to a run are whole, and taken by who waited for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from durable_core.blobs.base import is_run_id
from durable_core.engine.verify_header import is_time
from durable_core.engine.verify_values import StoredValue
from durable_core.identity import place_of

if TYPE_CHECKING:
    from durable_core.engine.findings import Findings
    from durable_core.engine.verify_header import Life
    from durable_core.engine.verify_steps import StepCheck
    from durable_core.engine.verify_values import ValueCheck
    from durable_core.records import Event


class EventCheck:
    """Takes in the events of one run, by name and seq.

    Args:
        life: Of the run.
        steps: What its steps have told.
        findings: Where damage goes.
        values: Checks payloads.
    """

    def __init__(self, life: Life, steps: StepCheck, findings: Findings, values: ValueCheck) -> None:
        self._life = life
        self._waits = steps.waits
        self._knows_waits = not steps.damaged
        self._without_event = dict(steps.takers)
        self._findings = findings
        self._values = values
        self._name: str | None = None
        self._next_seq: int | None = None
        self._ids: set[str] = set()

    async def check(self, event: Event) -> bool:
        """Checks one event; gives whether it was sent to this life."""
        if event.name != self._name:
            self._name, self._next_seq, self._ids = event.name, None, set()
        if event.fence <= self._life.base_fence:
            return False
        if event.fence != self._life.base_fence + 1:
            told = f"it was sent to life {event.fence}, and this is {self._life.base_fence + 1}"
            self._damage("future-fence", event, told)
        if not is_run_id(event.name) or not is_run_id(event.event_id) or event.seq < 0:
            self._damage("event-identity", event, f"no event can have the id {event.event_id!r:.140}")
        # What came before the first of this life may have been swept with the life before.
        if self._next_seq is not None and event.seq != self._next_seq:
            self._damage("event-missing", event, f"there is none from {self._next_seq} to {event.seq - 1}")
        self._next_seq = event.seq + 1
        if event.event_id in self._ids:
            self._damage("event-twice", event, f"event {event.event_id!r:.140} is there already")
        self._ids.add(event.event_id)
        if not is_time(event.sent_at):
            self._damage("event-time", event, f"it was sent at {event.sent_at!r:.40}")
        await self._values.check(
            StoredValue(
                event.name, "payload", event.codec, event.data, event.ref, event.size, event.output_hash
            )
        )
        if event.taken_by is not None:
            self._without_event.pop(event.taken_by, None)
            if self._knows_waits and place_of(event.taken_by) not in self._waits:
                self._damage("event-taken", event, "it was taken by a step that isn't there")
        return True

    def finish(self) -> None:
        """After the last one."""
        for step_id in self._without_event.values():
            self._findings.damage("event-missing", step_id, "the event that it took isn't there")

    def _damage(self, kind: str, event: Event, message: str) -> None:
        self._findings.damage(kind, event.name, f"number {event.seq}: {message}")
