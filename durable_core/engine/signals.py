"""Sending events to runs: each is stored before anybody is woken, and stays until the run is pruned.

S   looks: life 1, events 0 and 1 ── send 2 ─▶ applied, and the wake count is one more
T   looks: life 1, events 0 and 1 ───────── send 2 ─▶ refused by S's: the next place
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from durable_core.clock import rfc3339
from durable_core.codec import freeze
from durable_core.engine.asking import ask
from durable_core.errors import InputNotSerializable, NotSerializable, RunEnded, RunNotFound
from durable_core.identity import check_id
from durable_core.records import ACTIVE, TOMBSTONE, Event

if TYPE_CHECKING:
    from durable_core.engine.drive import Tools
    from durable_core.records import RunHeader


async def send(
    tools: Tools, run_id: str, name: str, payload: object, *, event_id: str | None, early: bool
) -> str:
    """Stores an event, in the life that the run has now, at the first free place of its name.

    Returns:
        The event's id.

    Raises:
        RunNotFound: There is no such run, and it isn't early.
        RunEnded: The run is over.
        InvalidId: The run, the event or its id can't be named so.
        InputNotSerializable: The payload can't be stored.
    """
    check_id(run_id, "run id")
    check_id(name, "event name")
    event_id = check_id(event_id, "event id") if event_id is not None else os.urandom(10).hex()
    event = await _made(tools, run_id, name, payload, event_id)
    while True:
        seen = await ask(tools.journal.header, run_id)
        life = 1 + (seen.base_fence if seen is not None else 0)
        placed = await ask(_first_free, tools, event._replace(fence=life))
        if placed is None:  # also if the run is over by now: whoever sends again only wants to be sure
            return event_id
        _check_open(seen, run_id, early)
        reply = await ask(tools.journal.send, placed, seen)
        if reply.ok or (reply.row is not None and reply.row.event_id == event_id):
            tools.log.info("event_sent", run_id=run_id, event_name=name, event_id=event_id)
            return event_id


async def _made(tools: Tools, run_id: str, name: str, payload: object, event_id: str) -> Event:
    try:
        raw, _ = freeze(payload)
        stored = await tools.values.store(raw, run_id, event_id)
    except NotSerializable as error:
        raise InputNotSerializable(
            f"the payload of event {name!r} can't be stored: {error.message}",
            path=error.path,
            run_id=run_id,
            remedy=error.remedy,
        ) from error
    return Event(
        run_id, name, 0, event_id, 0, stored.data, stored.ref, stored.codec, stored.size, stored.output_hash,
        rfc3339(tools.clock.now_ms()),
    )  # fmt: skip


def _check_open(seen: RunHeader | None, run_id: str, early: bool) -> None:
    if seen is None or seen.status == TOMBSTONE:
        if not early:
            raise RunNotFound(
                "there is no such run", run_id=run_id, remedy="Start it first, or send the event as early"
            )
    elif seen.status not in ACTIVE:
        raise RunEnded(f"the run is {seen.status}, and takes no more events", run_id=run_id)


async def _first_free(tools: Tools, event: Event) -> Event | None:
    """The event at the first free place of its name; None if it is there already."""
    seq = 0
    async for page in tools.journal.events(event.run_id, event.name):
        for one in page:
            if one.event_id == event.event_id and one.fence == event.fence:
                return None
            seq = one.seq + 1
    return event._replace(seq=seq)
