"""Requests to DynamoDB: expressions with a placeholder for every name and value, and what they go into."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from durable_core.journal._items import attribute, fitting

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from durable_core.journal._dynamodb_keys import Item

Value = str | int | bytes
Request = dict[str, Any]

# The item that stood in the way comes with a refusal: how a writer recognises its own earlier try.
_SHOW: Final = {"ReturnValuesOnConditionCheckFailure": "ALL_OLD"}


class Condition(NamedTuple):
    """An expression with its names and values."""

    text: str
    names: dict[str, str]
    values: dict[str, dict[str, Any]]

    def __and__(self, other: Condition) -> Condition:
        """Both."""
        return Condition(f"{self.text} AND {other.text}", *self._with(other))

    def __or__(self, other: Condition) -> Condition:
        """Either."""
        return Condition(f"(({self.text}) OR ({other.text}))", *self._with(other))

    def _with(self, other: Condition) -> tuple[dict[str, str], dict[str, dict[str, Any]]]:
        return self.names | other.names, self.values | other.values


def equals(name: str, value: Value) -> Condition:
    """An attribute is there and has this value."""
    return _compared(f"#{name} = :{name}", name, value)


def below(name: str, value: int) -> Condition:
    """A number is there and less than this."""
    return _compared(f"#{name} < :{name}", name, value)


def at_most(name: str, value: Value) -> Condition:
    """A value is there and not above this."""
    return _compared(f"#{name} <= :{name}", name, value)


def above(name: str, value: Value) -> Condition:
    """A value is there and more than this."""
    return _compared(f"#{name} > :{name}", name, value)


def one_of(name: str, values: Sequence[Value]) -> Condition:
    """An attribute is there and has one of these values."""
    named = {f":{name}_{n}": attribute(value) for n, value in enumerate(values)}
    return Condition(f"#{name} IN ({', '.join(named)})", {f"#{name}": name}, named)


def begins(name: str, value: str) -> Condition:
    """A text begins so."""
    return _compared(f"begins_with(#{name}, :{name})", name, value)


def between(name: str, low: Value, high: Value) -> Condition:
    """A value is in a range, its ends included."""
    named = {f":{name}_low": attribute(low), f":{name}_high": attribute(high)}
    return Condition(f"#{name} BETWEEN {' AND '.join(named)}", {f"#{name}": name}, named)


def absent(name: str) -> Condition:
    """There is no such attribute; of a part of the key: no such item."""
    return Condition(f"attribute_not_exists(#{name})", {f"#{name}": name}, {})


def present(name: str) -> Condition:
    """There is such an attribute; of a part of the key: such an item."""
    return Condition(f"attribute_exists(#{name})", {f"#{name}": name}, {})


def unchanged(item: Item, names: Iterable[str]) -> Condition:
    """An item is as it was seen: each attribute that it had, whatever it holds, and none of these besides."""
    texts, known, values = list[str](), dict[str, str](), dict[str, dict[str, Any]]()
    for n, name in enumerate(dict.fromkeys((*item, *names))):
        known[f"#seen_{n}"] = name
        if name in item:
            values[f":seen_{n}"] = item[name]
            texts.append(f"#seen_{n} = :seen_{n}")
        else:
            texts.append(f"attribute_not_exists(#seen_{n})")
    return Condition(" AND ".join(texts), known, values)


def _compared(text: str, name: str, value: Value) -> Condition:
    return Condition(text, {f"#{name}": name}, {f":{name}": attribute(value)})


# ---- Writes ----


class Write(NamedTuple):
    """A conditional write of one item.

    Attributes:
        action: Put, Update, Delete or ConditionCheck.
        request: As a transaction takes it.
    """

    action: str
    request: Request

    @property
    def key(self) -> Item:
        """Of the item."""
        where: Item = self.request.get("Key") or self.request["Item"]
        return {name: where[name] for name in ("pk", "sk")}

    def alone(self) -> tuple[str, Request]:
        """The operation and its request, outside a transaction."""
        if self.action == "Update":
            return "update_item", self.request | {"ReturnValues": "ALL_NEW"}
        return f"{self.action.lower()}_item", self.request


def put(table: str, item: Item, condition: Condition) -> Write:
    """A whole item.

    Raises:
        OutputTooLarge, InvalidId: It doesn't fit; names run and step.
    """
    request = {"TableName": table, "Item": fitting(item), "ConditionExpression": condition.text}
    return Write("Put", request | _placeholders(condition) | _SHOW)


def update(
    table: str, key: Item, changes: Mapping[str, Value | None], condition: Condition, *, count: str = ""
) -> Write:
    """Changes of an item.

    Args:
        table: Its name.
        key: Of the item.
        changes: Attributes and their new values; None takes one away.
        condition: What must hold.
        count: An attribute that becomes one more.
    """
    values = {f":to_{name}": attribute(value) for name, value in changes.items() if value is not None}
    clauses = {
        "SET": [f"#{name} = :to_{name}" for name, value in changes.items() if value is not None],
        "REMOVE": [f"#{name}" for name, value in changes.items() if value is None],
        "ADD": [f"#{count} :one"] if count else [],
    }
    names = {f"#{name}": name for name in (*changes, *([count] if count else []))}
    if count:
        values[":one"] = attribute(1)
    request = {
        "TableName": table,
        "Key": key,
        "UpdateExpression": " ".join(
            f"{verb} {', '.join(parts)}" for verb, parts in clauses.items() if parts
        ),
        "ConditionExpression": condition.text,
    }
    changed = Condition("", names, values)
    return Write("Update", request | _placeholders(changed, condition) | _SHOW)


def delete(table: str, key: Item, condition: Condition) -> Write:
    """The end of an item."""
    return _of_key("Delete", table, key, condition)


def check(table: str, key: Item, condition: Condition) -> Write:
    """Something that must hold of another item, in a transaction."""
    return _of_key("ConditionCheck", table, key, condition)


def transaction(*writes: Write) -> Request:
    """All of them or none; no two of the same item."""
    return {"TransactItems": [{one.action: one.request} for one in writes]}


def _of_key(action: str, table: str, key: Item, condition: Condition) -> Write:
    request = {"TableName": table, "Key": key, "ConditionExpression": condition.text}
    return Write(action, request | _placeholders(condition) | _SHOW)


# ---- Reads ----


def get(table: str, key: Item) -> Request:
    """One item as it is now."""
    return {"TableName": table, "Key": key, "ConsistentRead": True}


def query(
    table: str,
    keys: Condition,
    *,
    index: str | None = None,
    matching: Condition | None = None,
    only: Sequence[str] = (),
    backwards: bool = False,
) -> Request:
    """Items side by side: of the table as they are now, of an index as they were a moment ago.

    Args:
        table: Its name.
        keys: Which.
        index: Whose order; the table's own without.
        matching: What else must hold; items that don't match are read, but not sent.
        only: The attributes wanted; all without.
        backwards: From the end.
    """
    request: Request = {"TableName": table, "KeyConditionExpression": keys.text}
    request |= {"IndexName": index} if index else {"ConsistentRead": True}
    parts = [keys]
    if matching is not None:
        request["FilterExpression"] = matching.text
        parts.append(matching)
    if only:
        request["ProjectionExpression"] = ", ".join(f"#{name}" for name in only)
        parts.append(Condition("", {f"#{name}": name for name in only}, {}))
    if backwards:
        request["ScanIndexForward"] = False
    return request | _placeholders(*parts)


def _placeholders(*parts: Condition) -> Request:
    names: dict[str, str] = {}
    values: dict[str, dict[str, Any]] = {}
    for part in parts:
        names |= part.names
        values |= part.values
    found: Request = {"ExpressionAttributeNames": names}
    return found | {"ExpressionAttributeValues": values} if values else found
