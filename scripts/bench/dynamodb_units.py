"""What requests to DynamoDB and S3 are billed as, as they are sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from durable_core.cost.bill import Bill, change_units, read_units, write_units
from durable_core.journal._items import item_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from durable_core.journal._dynamodb_keys import Item


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
            self.bill += Bill(reads=1, read_units=read_units(read_bytes))
        elif operation == "put_object":
            self.bill += Bill(s3_puts=1)
        elif operation == "get_object":
            self.bill += Bill(s3_gets=1)

    def _in_transaction(self, one: Mapping[str, Any]) -> int:
        ((action, write),) = one.items()
        if action == "Put":
            return self._written(write["Item"])
        return write_units(self._items.get(_place(write["Key"]), {}))  # a check, or a change of a few bytes

    def _written(self, item: Item) -> int:
        place = _place(item)
        old, self._items[place] = self._items.get(place, {}), item
        return change_units(old, item)


def _place(key: Item) -> str:
    return f"{key['pk']['S']} {key['sk']['S']}"
