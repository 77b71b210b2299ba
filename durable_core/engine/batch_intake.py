"""The items of a map as they are pulled: each with hash, key and row; those that are done are passed over."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Sized
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from durable_core.errors import DurableError, StepMismatch, UsageError
from durable_core.identity import input_hash
from durable_core.item_table import FAILED
from durable_core.manifest import Items, Jsonl
from durable_core.map_options import MAX_KEY_CHARS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from durable_core.engine.drive import Drive
    from durable_core.engine.step_records import Call
    from durable_core.item_table import ItemTable
    from durable_core.map_options import MapOptions

_LOOP_TURN_EVERY_S: Final = 0.005
_MARK_CHARS: Final = 16


class Item(NamedTuple):
    """One item.

    Attributes:
        position: Among the items, from 0.
        row: Of the item table.
        key: Under which it is known; None without keys.
        hashed: Hex SHA-256 of (the map's step_id, the item).
    """

    position: int
    row: int
    key: str | None
    value: Any
    hashed: str

    @property
    def mark(self) -> str:
        """The part of the hash that is kept for every item."""
        return self.hashed[:_MARK_CHARS]


class ItemsUnreadable(Exception):
    """The items could not be read to the end; what stood in the way is chained."""


class Reread:
    """Items that can be had once, to be read twice: held in memory from the first time on.

    Args:
        items: An iterator.
    """

    def __init__(self, items: Iterable[Any]) -> None:
        self._items = iter(items)
        self._held: list[Any] = []
        self._error: Exception | None = None

    def __iter__(self) -> Iterator[Any]:
        yield from self._held
        if self._error is not None:
            raise self._error
        try:
            for item in self._items:
                self._held.append(item)
                yield item
        except Exception as error:  # the user's iterator would seem to be at its end the second time
            self._error = error
            raise


class Intake:
    """Pulls items, one after the other.

    Args:
        drive: Of the run.
        call: Of the map.
        items: Any iterable; it is iterated once.
        options: Of the map.
        table: What is known of the items.
        may_change: Whether items that aren't those that were run are run anew: in a fork.
        first: Position of the first item, where these are a part of the map's.

    Attributes:
        order: With keys: the rows of the items that were pulled.
        total: How many there are, where that is known.
        failed_before: Items that were passed over because they failed in an earlier life.
    """

    def __init__(
        self,
        drive: Drive,
        call: Call,
        items: Iterable[Any],
        options: MapOptions,
        table: ItemTable,
        *,
        may_change: bool = False,
        first: int = 0,
    ) -> None:
        self._drive = drive
        self._call = call
        self._key = options.key
        self._table = table
        self.may_change = may_change
        self._first = first
        self._hash = sha256()
        self._turn_at = time.perf_counter()
        self._manifest = iter(items) if isinstance(items, Jsonl | Items) else None
        self._filling = asyncio.Lock()
        self._given = self._manifest or items
        self._items: Iterator[Any] | None = None
        self._positions = array("I")  # of rows, plus one: where a key was seen
        self.order = array("I") if options.key is not None else None
        self.pulled = 0
        self.failed_before = 0
        self.total = len(items) if isinstance(items, Sized) else None
        self.exhausted = False

    @property
    def items_hash(self) -> str:
        """Hex SHA-256 over key and hash of every item that was pulled, in order."""
        return self._hash.hexdigest()

    async def next(self) -> Item | None:
        """The next item that has no outcome yet; None at the end.

        Raises:
            ItemsUnreadable: The iterable raised, or an item can't be hashed or has no fitting key.
            StepMismatch: An item isn't the one that the recorded outcome is of; the drive is stopped.
            JournalUnavailable: The items are read from S3, which doesn't answer; the drive is stopped.
        """
        while True:
            while self._manifest is not None and self._manifest.is_dry:  # others pull while one fills
                await self._fill(self._manifest)
            item = self._pull()
            if item is None:
                return None
            known = self._table.knows(item.row)
            if self._table.is_other(item.row, item.mark) and not (known and self._drive.keeps_changed):
                if not self.may_change:
                    raise self._mismatch(item)
                self._table.forget(item.row)
                return item
            if not known:
                return item
            self.failed_before += self._table.states[item.row] == FAILED
            await self.give_turn()

    async def give_turn(self) -> None:
        """Gives the event loop a turn now and then: passing over a million items waits for nothing."""
        now = time.perf_counter()
        if now - self._turn_at > _LOOP_TURN_EVERY_S:
            self._turn_at = now
            await asyncio.sleep(0)
            self._drive.check()

    def close(self) -> None:
        """Gives back what a manifest is read by."""
        if self._manifest is not None:
            self._manifest.close()

    async def _fill(self, manifest: Items[Any]) -> None:
        """Reads on in a thread: what S3 takes its time for must hold up nothing here."""
        async with self._filling:
            if manifest.is_dry:
                await self._drive.ask(asyncio.to_thread, manifest.fill)

    def _pull(self) -> Item | None:
        if self.exhausted:
            return None
        index = self.pulled
        try:
            if self._items is None:
                self._items = iter(self._given)
            value = next(self._items)
        except StopIteration:
            self.exhausted = True
            self.total = index
            return None
        except Exception as error:  # whatever the user's iterable raises ends the items
            self.exhausted = True
            raise ItemsUnreadable(
                f"item {self._first + index} could not be had: {type(error).__qualname__}: {error}"
            ) from error
        self.pulled = index + 1
        try:
            hashed = input_hash(self._call.step_id, (value,), {})
            key = _key(self._key(value)) if self._key is not None else None
        except Exception as error:  # the key is the user's function; a DurableError says what is wrong itself
            self.exhausted = True
            told = (
                error.message if isinstance(error, DurableError) else f"{type(error).__qualname__}: {error}"
            )
            raise ItemsUnreadable(f"item {self._first + index}: {told}") from error
        row = index if key is None else self._row_of(key, index)
        self._hash.update(b"%d:%b%b" % (len(key or ""), (key or "").encode(), hashed.encode()))
        return Item(self._first + index, row, key, value, hashed)

    def _row_of(self, key: str, index: int) -> int:
        row = self._table.row_of(key)
        while row >= len(self._positions):
            self._positions.append(0)
        if self._positions[row]:
            self.exhausted = True
            raise ItemsUnreadable(
                f"items {self._first + self._positions[row] - 1} and {self._first + index} have the same key"
                f" {key[:100]!r}"
            ) from UsageError("a key names one item")
        self._positions[row] = index + 1
        if self.order is not None:
            self.order.append(row)
        return row

    def _mismatch(self, item: Item) -> StepMismatch:
        error = StepMismatch(
            f"item {item.position}{f' (key {item.key!r})' if item.key is not None else ''} isn't the one that"
            f" was run (hash {self._table.mark(item.row)}…, now {item.mark}…)",
            run_id=self._drive.run_id,
            step_id=self._call.step_id,
            remedy="Give the map the items it had and resume, or fork the run from it, which runs what"
            " changed; with key= items may be appended and reordered until the map has committed",
        )
        self._drive.stop(error)
        return error


def _key(given: object) -> str:
    if isinstance(given, int) and not isinstance(given, bool):
        given = str(given)
    if not isinstance(given, str) or not given or len(given) > MAX_KEY_CHARS or not _is_text(given):
        raise UsageError(
            f"its key is {given!r:.100}",
            remedy=f"A key is a text of 1 to {MAX_KEY_CHARS} characters, or an int",
        )
    return given


def _is_text(given: str) -> bool:
    """Whether it can be written: half of a surrogate pair can't."""
    try:
        given.encode()
    except UnicodeEncodeError:
        return False
    return True
