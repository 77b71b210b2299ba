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
from durable_core.engine.dispatch import tell_woken
from durable_core.engine.fitting import check_fits
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
        UsageError: The payload isn't what the run waits for.
        InputNotSerializable: The payload can't be stored.
    """
    check_id(run_id, "run id")
    check_id(name, "event name")
    event_id = check_id(event_id, "event id") if event_id is not None else os.urandom(10).hex()
    raw = _frozen(payload, run_id, name)
    event: Event | None = None
    while True:
        seen = await ask(tools.journal.header, run_id)
        life = 1 + (seen.base_fence if seen is not None else 0)
        seq = await ask(_first_free, tools, run_id, name, event_id, life)
        if seq is None:  # also if the run is over by now: whoever sends again only wants to be sure
            await tell_woken(tools, seen)
            return event_id
        _check_open(seen, run_id, early)
        if event is None:
            if seen is not None:
                await check_fits(tools, seen, name, raw)
            event = await _stored(tools, run_id, name, raw, event_id)
        placed = event._replace(fence=life, seq=seq)
        reply = await ask(tools.journal.send, placed, seen)
        if reply.ok or (reply.row is not None and reply.row.event_id == event_id):
            tools.log.info("event_sent", run_id=run_id, event_name=name, event_id=event_id)
            await tell_woken(tools, seen)
            return event_id


def _frozen(payload: object, run_id: str, name: str) -> bytes:
    try:
        return freeze(payload)[0]
    except NotSerializable as error:
        raise _cannot_be_stored(error, run_id, name) from error


async def _stored(tools: Tools, run_id: str, name: str, raw: bytes, event_id: str) -> Event:
    try:
        stored = await tools.values.store(raw, run_id, event_id)
    except NotSerializable as error:
        raise _cannot_be_stored(error, run_id, name) from error
    return Event(
        run_id, name, 0, event_id, 0, stored.data, stored.ref, stored.codec, stored.size, stored.output_hash,
        rfc3339(tools.clock.now_ms()),
    )  # fmt: skip


def _cannot_be_stored(error: NotSerializable, run_id: str, name: str) -> InputNotSerializable:
    return InputNotSerializable(
        f"the payload of event {name!r} can't be stored: {error.message}",
        path=error.path,
        run_id=run_id,
        remedy=error.remedy,
    )


def _check_open(seen: RunHeader | None, run_id: str, early: bool) -> None:
    if seen is None or seen.status == TOMBSTONE:
        if not early:
            raise RunNotFound(
                "there is no such run", run_id=run_id, remedy="Start it first, or send the event as early"
            )
    elif seen.status not in ACTIVE:
        raise RunEnded(f"the run is {seen.status}, and takes no more events", run_id=run_id)


async def _first_free(tools: Tools, run_id: str, name: str, event_id: str, life: int) -> int | None:
    """The first free place of a name; None if the event is there already."""
    seq = 0
    async for page in tools.journal.events(run_id, name):
        for one in page:
            if one.event_id == event_id and one.fence == life:
                return None
            seq = one.seq + 1
    return seq
