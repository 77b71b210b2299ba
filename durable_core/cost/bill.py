"""Units and money of requests to DynamoDB and S3, as AWS documents them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import ceil
from typing import Any, Final

from durable_core.cost.prices import PRICES
from durable_core.journal._items import item_bytes

Item = dict[str, Any]

WRITE_UNIT_BYTES: Final = 1024
READ_UNIT_BYTES: Final = 4096  # strongly consistent
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

    def __mul__(self, number: float) -> Bill:
        return Bill(*(value * number for value in self._values()))

    def __truediv__(self, number: float) -> Bill:
        return self * (1 / number)

    @property
    def dollars_per_million(self) -> float:
        """The price of a million times this."""
        return float(sum(getattr(self, name) * price for name, price in PRICES.items()))

    @property
    def dollars(self) -> float:
        """The price of this."""
        return self.dollars_per_million / 1_000_000

    def told(self) -> dict[str, float]:
        """Everything by name."""
        named = {field.name: getattr(self, field.name) for field in fields(self)}
        return named | {"usd_per_million": self.dollars_per_million}

    def _values(self) -> list[float]:
        return [getattr(self, field.name) for field in fields(self)]


def write_units(item: Item) -> int:
    """Of writing an item where there is none, or a smaller one."""
    return max(1, ceil(item_bytes(item) / WRITE_UNIT_BYTES))


def read_units(read_bytes: int) -> int:
    """Of one strongly consistent read of so much."""
    return max(1, ceil(read_bytes / READ_UNIT_BYTES))


def change_units(old: Item, new: Item) -> int:
    """Of writing an item over another: the larger one counts, and the indexes' entries."""
    return max(write_units(old), write_units(new)) + index_units(old, new)


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
