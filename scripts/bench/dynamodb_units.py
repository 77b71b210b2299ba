"""Units and money of requests to DynamoDB and S3, as AWS documents them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import ceil
from typing import TYPE_CHECKING, Any, Final

from durable_core.journal._items import item_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from durable_core.journal._dynamodb_keys import Item

REGION: Final = "us-east-1"
AS_OF: Final = "2025-06"
# From the public price lists for on-demand tables and S3 Standard; dollars for a million.
PRICES: Final = {
    "write_units": 0.625,
    "read_units": 0.125,
    "s3_puts": 5.0,
    "s3_gets": 0.4,
}

_WRITE_UNIT_BYTES: Final = 1024
_READ_UNIT_BYTES: Final = 4096  # strongly consistent
_INDEXES: Final = (("due_shard", "due_at_ms"), ("status_shard", "created_at"))


@dataclass(frozen=True, slots=True)
class Bill:
    """What some requests came to.

    Attributes:
        writes, reads: Requests to DynamoDB.
        write_units, read_units: What they are billed as, the indexes' own writes among them.
        s3_puts, s3_gets: Requests to S3.
    """

    writes: float = 0
    write_units: float = 0
    reads: float = 0
    read_units: float = 0
    s3_puts: float = 0
    s3_gets: float = 0

    def __add__(self, other: Bill) -> Bill:
        return Bill(*(a + b for a, b in zip(self._values(), other._values(), strict=True)))

    def __sub__(self, other: Bill) -> Bill:
        return Bill(*(a - b for a, b in zip(self._values(), other._values(), strict=True)))

    def __truediv__(self, number: float) -> Bill:
        return Bill(*(value / number for value in self._values()))

    @property
    def dollars_per_million(self) -> float:
        """The price of a million times this."""
        return (
            self.write_units * PRICES["write_units"]
            + self.read_units * PRICES["read_units"]
            + self.s3_puts * PRICES["s3_puts"]
            + self.s3_gets * PRICES["s3_gets"]
        )

    def told(self) -> dict[str, float]:
        """Everything by name."""
        named = {field.name: getattr(self, field.name) for field in fields(self)}
        return named | {"usd_per_million": self.dollars_per_million}

    def _values(self) -> list[float]:
        return [getattr(self, field.name) for field in fields(self)]


class Meter:
    """Adds up requests. It remembers the size of each item, since the larger of old and new counts."""

    def __init__(self) -> None:
        self.bill = Bill()
        self._items: dict[str, Item] = {}

    def count(self, operation: str, request: Mapping[str, Any], reply: Mapping[str, Any]) -> None:
        """Adds a request that succeeded."""
        if operation in ("put_item", "update_item"):
            item = request.get("Item") or reply["Attributes"]
            self.bill += Bill(writes=1, write_units=self._written(item))
        elif operation == "transact_write_items":
            units = sum(2 * self._in_transaction(one) for one in request["TransactItems"])
            self.bill += Bill(writes=1, write_units=units)
        elif operation in ("get_item", "query"):
            items = reply["Items"] if operation == "query" else [reply.get("Item", {})]
            read_bytes = sum(map(item_bytes, items))
            self.bill += Bill(reads=1, read_units=max(1, ceil(read_bytes / _READ_UNIT_BYTES)))
        elif operation == "put_object":
            self.bill += Bill(s3_puts=1)
        elif operation == "get_object":
            self.bill += Bill(s3_gets=1)

    def _in_transaction(self, one: Mapping[str, Any]) -> int:
        ((action, write),) = one.items()
        if action == "Put":
            return self._written(write["Item"])
        return _units(self._items.get(_place(write["Key"]), {}))  # a check, or a change of a few bytes

    def _written(self, item: Item) -> int:
        place = _place(item)
        old, self._items[place] = self._items.get(place, {}), item
        return max(_units(old), _units(item)) + index_units(old, item)


def index_units(old: Item, new: Item) -> int:
    """Write units of the indexes when an item changes: their entries are small.

    An entry that appears or goes costs one, and one whose key changes two: it is deleted and put.
    """
    units = 0
    for names in _INDEXES:
        before = tuple(str(old[name]) for name in names if name in old)
        after = tuple(str(new[name]) for name in names if name in new)
        was, is_there = len(before) == len(names), len(after) == len(names)
        if was != is_there:
            units += 1
        elif was and before != after:
            units += 2
    return units


def _units(item: Item) -> int:
    return max(1, ceil(item_bytes(item) / _WRITE_UNIT_BYTES))


def _place(key: Item) -> str:
    return f"{key['pk']['S']} {key['sk']['S']}"
