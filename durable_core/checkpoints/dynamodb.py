"""Checkpoints in the DynamoDB table of the journal: one item each, under their session.

    pk SESSION#{session_id}   sk CKPT#{seq:012d}   a checkpoint
    pk SESSIONS               sk {session_id}      that there is such a session; put before its first item

A save is one write, after a read that as a rule finds nothing; no index is written. By who drives a run it is
a transaction with a look at the run's header, or the chunk. What is asked for less often pays for that: the
latest of an agent or of a step is looked for from the newest item back.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from durable_core.aws.failures import CONDITION_FAILED, ConditionRefused
from durable_core.checkpoints.base import CheckpointRecord, CheckpointStore, Place, SessionStats, overtaken
from durable_core.errors import CorruptRecord, JournalUnavailable
from durable_core.identity import check_id
from durable_core.journal._conditions import held
from durable_core.journal._dynamodb_keys import HEADER, key
from durable_core.journal._dynamodb_requests import absent, get, put, transaction

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from durable_core.aws.transport import Transport
    from durable_core.journal.base import Holding

Item = dict[str, dict[str, Any]]

_SESSIONS: Final = "SESSIONS"
_SEQ_DIGITS: Final = 12
_LARGEST_SEQ: Final = 10**_SEQ_DIGITS - 1
_KNOWN: Final = 1000  # sessions of which this process remembers where they are
_TRIES: Final = 1000
_TEXTS: Final = ("id", "agent_id", "step_id", "format", "state_hash", "metadata", "state_ref")
_NUMBERS: Final = ("seq", "size_bytes", "created_at_ms")
_WITHOUT_STATE: Final = ("pk", "sk", *_TEXTS, *_NUMBERS)


class DynamoCheckpoints(CheckpointStore):
    """Checkpoints in one table.

    Args:
        transport: To AWS.
        table: Its name.
    """

    inline_max_bytes = 350 * 1024  # with metadata and names well below the 400 KB of an item

    def __init__(self, transport: Transport, table: str) -> None:
        self._transport = transport
        self.table = table
        self._lock = Lock()  # over what is remembered
        self._latest: dict[str, tuple[int, str]] = {}  # by session: seq and id of the last item known of

    # ---- Writing ----

    def append(self, record: CheckpointRecord, lease: Holding | None = None) -> int:
        """One conditional put, at the place after the latest, which is looked for behind the one known of.

        A   put 8 [nothing there] ─▶ applied
        B         put 8 [nothing there] ─▶ refused by A's ── looks for the latest ── put 9 ─▶ applied
        C   put 8 ── (reply lost) ── put 8 again, by botocore ─▶ refused by its own id: it is there
        D   knows of 7 ── looks: A and others are at 60, and have pruned 8 ── put 61 ─▶ applied
        E   (its run was taken over) put 62 with a check of the header ─▶ refused by the header: Fenced

        Without the look D would get 8, which is free again, and be behind what is older.
        """
        check_id(record.session_id, "session id")
        for _ in range(_TRIES):
            seq, known_id = self._newest(record.session_id)
            if known_id == record.id:
                return seq
            if seq == 0:
                self._call("put_item", {"Item": {"pk": _text(_SESSIONS), "sk": _text(record.session_id)}})
            try:
                self._put(record._replace(seq=seq + 1), lease)
            except ConditionRefused as refused:
                if (refused.item or {}).get("id") != _text(record.id):
                    if lease is not None and refused.reasons[-1] == CONDITION_FAILED:
                        if self._has_header(lease.run_id):
                            raise overtaken(record, lease) from None
                        lease = None  # the journal is in another place: nobody can be asked
                    continue
            self._remember(record.session_id, seq + 1, record.id)
            return seq + 1
        raise JournalUnavailable(
            f"{_TRIES} others were faster to save into session {record.session_id!r}",
            remedy="Save again; or give each of so many writers a session of its own",
        )

    def _put(self, record: CheckpointRecord, lease: Holding | None) -> None:
        """A record where there is none, by who still holds what it is saved by."""
        write = put(self.table, _item(record), absent("pk"))
        operation, request = write.alone()
        if lease is not None:
            operation, request = "transact_write_items", transaction(write, held(self.table, lease))
        self._transport.call_now("dynamodb", operation, request)

    def _has_header(self, run_id: str) -> bool:
        request = get(self.table, key(run_id, HEADER))
        return bool(self._transport.call_now("dynamodb", "get_item", request).get("Item"))

    def remove(self, places: Sequence[Place]) -> int:
        """One conditional delete each: another checkpoint may be at its place by now."""
        removed = 0
        for place in places:
            request = {
                "Key": _key(place.session_id, place.seq),
                "ConditionExpression": "#id = :id",
                "ExpressionAttributeNames": {"#id": "id"},
                "ExpressionAttributeValues": {":id": _text(place.id)},
            }
            try:
                self._call("delete_item", request)
                removed += 1
            except ConditionRefused:  # it is gone
                continue
            if self._latest.get(place.session_id, (0, ""))[1] == place.id:
                self._forget(place.session_id)
        return removed

    # ---- Reading ----

    def latest(self, session_id: str, agent_id: str | None = None) -> CheckpointRecord | None:
        """One query, from the newest back."""
        only = {} if agent_id is None else {"agent_id": agent_id}
        return self._first(session_id, only)

    def of_step(self, session_id: str, step_id: str) -> CheckpointRecord | None:
        """One query, from the newest back."""
        return self._first(session_id, {"step_id": step_id})

    def at(self, session_id: str, seq: int) -> CheckpointRecord | None:
        """One read."""
        reply = self._call("get_item", {"Key": _key(session_id, seq), "ConsistentRead": True})
        return _record(session_id, reply["Item"]) if reply.get("Item") else None

    def page(
        self,
        session_id: str,
        *,
        agent_id: str | None = None,
        before: int | None = None,
        limit: int = 100,
        with_state: bool = False,
    ) -> list[CheckpointRecord]:
        """Queries, from the newest back, until there are enough."""
        found: list[CheckpointRecord] = []
        last = _LARGEST_SEQ if before is None else before - 1
        only = {} if agent_id is None else {"agent_id": agent_id}
        for item in self._items(session_id, last=last, only=only, with_state=with_state, at_most=limit):
            found.append(_record(session_id, item))
            if len(found) == limit:
                break
        return found

    def prunable(self, session_id: str, keep: int, *, limit: int | None = None) -> Sequence[Place]:
        """Reads from the oldest on, and for each agent whether there is a newer one, from there on."""
        latest, _ = self._newest(session_id)
        found: list[Place] = []
        waiting: dict[str, Place] = {}  # by agent: the newest seen of it, prunable if there is a newer one
        some = None if limit is None else 2 * limit
        for item in self._items(session_id, last=latest - keep, newest_first=False, at_most=some):
            place = _place(session_id, item)
            before = waiting.pop(_of(item, "agent_id"), None)
            if before is not None:
                found.append(before)
            waiting[_of(item, "agent_id")] = place
            if limit is not None and len(found) >= limit:
                break
        for agent_id, place in waiting.items():
            if limit is not None and len(found) >= limit:
                break
            if self._has_newer(session_id, agent_id, place.seq):
                found.append(place)
        return sorted(found, key=lambda place: place.seq)[:limit]

    def places(self, session_id: str, *, limit: int | None = None) -> Sequence[Place]:
        """Queries over the session."""
        found = []
        for item in self._items(session_id, newest_first=False, at_most=limit):
            found.append(_place(session_id, item))
            if len(found) == limit:
                break
        return found

    def stats(self, session_id: str) -> SessionStats:
        """Queries over the session."""
        items = list(self._items(session_id))
        times = [_number(item, "created_at_ms") for item in items]
        return SessionStats(
            session_id=session_id,
            checkpoints=len(items),
            agents=len({_of(item, "agent_id") for item in items}),
            size_bytes=sum(_number(item, "size_bytes") for item in items),
            latest_seq=_seq(items[0]) if items else 0,
            first_at_ms=min(times, default=None),
            last_at_ms=max(times, default=None),
        )

    def sessions(self, *, after: str = "", limit: int = 100) -> Sequence[str]:
        """Queries over the names, and one for each: what it had may have been removed."""
        found: list[str] = []
        condition: dict[str, Any] = {
            "KeyConditionExpression": "#pk = :pk AND #sk > :after",
            "ExpressionAttributeNames": {"#pk": "pk", "#sk": "sk"},
            # Before the first name there is none: a key must not be empty, and names begin later than this.
            "ExpressionAttributeValues": {":pk": _text(_SESSIONS), ":after": _text(after or "!")},
        }
        for item in self._query(condition):
            name = _of(item, "sk")
            if next(self._items(name, at_most=1), None) is not None:
                found.append(name)
                if len(found) == limit:
                    break
        return found

    # ---- The table ----

    def open(self, *, create: bool = True) -> None:
        """Nothing to connect to yet: `durable init` makes the table."""

    def close(self) -> None:
        """Closes connections of the transport; it connects again if somebody else uses it."""
        self._transport.close_now()

    def _newest(self, session_id: str) -> tuple[int, str]:
        """Seq and id of the latest item.

        Only what came after the last that is known here is read: as a rule nothing, however large items are.
        """
        with self._lock:
            known = self._latest.get(session_id, (0, ""))
        item = next(self._items(session_id, first=known[0] + 1, at_most=1), None)
        if item is None:
            return known
        found = _seq(item), _of(item, "id")
        self._remember(session_id, *found)
        return found

    def _remember(self, session_id: str, seq: int, checkpoint_id: str) -> None:
        with self._lock:
            if len(self._latest) >= _KNOWN:
                self._latest.clear()
            self._latest[session_id] = (seq, checkpoint_id)

    def _forget(self, session_id: str) -> None:
        with self._lock:
            self._latest.pop(session_id, None)

    def _first(self, session_id: str, only: dict[str, str]) -> CheckpointRecord | None:
        # Without a filter the first item is the one; with one, a page may have none.
        at_most = None if only else 1
        found = self._items(session_id, only=only, with_state=True, at_most=at_most)
        return next((_record(session_id, item) for item in found), None)

    def _has_newer(self, session_id: str, agent_id: str, seq: int) -> bool:
        """Whether an agent has a checkpoint after this place; the next ones are the likeliest."""
        found = self._items(
            session_id, first=seq + 1, only={"agent_id": agent_id}, newest_first=False, at_most=1, grows=True
        )
        return next(found, None) is not None

    def _items(
        self,
        session_id: str,
        *,
        first: int = 0,
        last: int = _LARGEST_SEQ,
        only: dict[str, str] | None = None,
        newest_first: bool = True,
        with_state: bool = False,
        at_most: int | None = None,
        grows: bool = False,
    ) -> Iterator[Item]:
        """The items of a session in a range of places.

        Args:
            session_id: The session.
            first, last: The range; both are in it.
            only: Attributes that they must have.
            newest_first: Else the oldest first.
            with_state: Whether the stored bytes come with them.
            at_most: How many DynamoDB looks at in one request.
            grows: Whether that doubles with each request.
        """
        if last < first:
            return
        only = only or {}
        names = {"#pk": "pk", "#sk": "sk", **{f"#{name}": name for name in only}}
        request: dict[str, Any] = {
            "KeyConditionExpression": "#pk = :pk AND #sk BETWEEN :first AND :last",
            "ExpressionAttributeValues": {
                ":pk": _text(f"SESSION#{session_id}"),
                ":first": _text(_sort_key(first)),
                ":last": _text(_sort_key(last)),
                **{f":{name}": _text(value) for name, value in only.items()},
            },
            "ScanIndexForward": not newest_first,
        }
        if only:
            request["FilterExpression"] = " AND ".join(f"#{name} = :{name}" for name in only)
        if not with_state:
            names |= {f"#{name}": name for name in _WITHOUT_STATE}
            request["ProjectionExpression"] = ", ".join(f"#{name}" for name in _WITHOUT_STATE)
        yield from self._query({**request, "ExpressionAttributeNames": names}, at_most, grows=grows)

    def _query(
        self, request: dict[str, Any], at_most: int | None = None, *, grows: bool = False
    ) -> Iterator[Item]:
        """Pages to the end: an empty page with a `LastEvaluatedKey` isn't it."""
        request = {**request, "ConsistentRead": True}
        while True:
            if at_most is not None:
                request["Limit"] = at_most
                at_most = at_most * 2 if grows else at_most
            reply = self._call("query", request)
            yield from reply.get("Items", ())
            if not reply.get("LastEvaluatedKey"):
                return
            request["ExclusiveStartKey"] = reply["LastEvaluatedKey"]

    def _call(self, operation: str, request: dict[str, Any]) -> dict[str, Any]:
        return self._transport.call_now("dynamodb", operation, {"TableName": self.table, **request})


def _sort_key(seq: int) -> str:
    return f"CKPT#{seq:0{_SEQ_DIGITS}d}"


def _key(session_id: str, seq: int) -> Item:
    return {"pk": _text(f"SESSION#{session_id}"), "sk": _text(_sort_key(seq))}


def _text(value: str) -> dict[str, str]:
    return {"S": value}


def _of(item: Item, name: str) -> str:
    """An attribute as text, whatever type it has; empty where there is none."""
    return str(next(iter(item.get(name, {}).values()), ""))


def _number(item: Item, name: str) -> int:
    """An attribute as a number; 0 where it is none."""
    text = _of(item, name)
    return int(text) if text.isdecimal() else 0


def _seq(item: Item) -> int:
    """The place of an item, by its key: what stands beside it may have been damaged."""
    text = _of(item, "sk").removeprefix(_sort_key(0)[:-_SEQ_DIGITS])
    if len(text) != _SEQ_DIGITS or not text.isdecimal():
        raise CorruptRecord(
            f"the item {_of(item, 'pk')!r} {_of(item, 'sk')!r} has the place of a checkpoint, and is none",
            remedy="Remove the item, or restore the table to a point in time before it was there",
        )
    return int(text)


def _item(record: CheckpointRecord) -> Item:
    known = record._asdict()
    item: Item = {name: _text(known[name]) for name in _TEXTS if known[name] is not None}
    item |= {name: {"N": str(known[name])} for name in _NUMBERS}
    if record.state is not None:
        item["state"] = {"B": record.state}
    return item | _key(record.session_id, record.seq)


def _record(session_id: str, item: Item) -> CheckpointRecord:
    """A record from its attributes as they are; whether they are what they should be is seen when opened."""
    known: dict[str, Any] = {name: item.get(name, {}).get("S") for name in _TEXTS}
    numbers = {name: item.get(name, {}).get("N") for name in _NUMBERS}
    known |= {name: int(text) if text and text.isdecimal() else text for name, text in numbers.items()}
    state = item.get("state", {}).get("B")
    known["seq"] = _seq(item)
    return CheckpointRecord(
        session_id=session_id, **known, state=bytes(state) if isinstance(state, bytes) else None
    )


def _place(session_id: str, item: Item) -> Place:
    ref = _of(item, "state_ref") or None
    return Place(session_id, _seq(item), _of(item, "id"), ref, _number(item, "size_bytes"))
