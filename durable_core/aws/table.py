"""The shape of the DynamoDB table: its keys, its indexes, and whether a table has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

BY_DUE: Final = "by_due"
"""Active runs by when a worker should next look at them: `due_shard` (a number), `due_at_ms`."""

BY_STATUS: Final = "by_status"
"""All runs by status and age: `status_shard` (`{status}#{shard}`), `created_at`."""

SHARDS: Final = 8
"""Partitions per index and, in `by_status`, per status: one partition takes 1,000 writes a second."""

EXPIRES_AT: Final = "expires_at_s"
"""The attribute after which DynamoDB deletes an item; only tombstones have it."""

_ATTRIBUTES: Final = {
    "pk": "S",
    "sk": "S",
    "due_shard": "N",
    "due_at_ms": "N",
    "status_shard": "S",
    "created_at": "S",
}
# Indexes say which runs; what these are like is then read from the table, which isn't behind. So a renewal,
# which moves `due_at_ms`, writes two small entries in `by_due` and none in `by_status`. The workflow is there
# to be filtered by.
_INDEXES: Final[dict[str, tuple[str, str, dict[str, Any]]]] = {
    BY_DUE: ("due_shard", "due_at_ms", {"ProjectionType": "KEYS_ONLY"}),
    BY_STATUS: (
        "status_shard",
        "created_at",
        {"ProjectionType": "INCLUDE", "NonKeyAttributes": ["run_id", "workflow"]},
    ),
}


def table_request(name: str) -> dict[str, Any]:
    """The request that makes the table: on demand, encrypted, with its indexes."""
    return {
        "TableName": name,
        "BillingMode": "PAY_PER_REQUEST",
        "SSESpecification": {"Enabled": True},
        "AttributeDefinitions": [
            {"AttributeName": attribute, "AttributeType": kind} for attribute, kind in _ATTRIBUTES.items()
        ],
        "KeySchema": _keys("pk", "sk"),
        "GlobalSecondaryIndexes": [
            {"IndexName": index, "KeySchema": _keys(partition, sort), "Projection": projection}
            for index, (partition, sort, projection) in _INDEXES.items()
        ],
    }


def differences(described: Mapping[str, Any]) -> list[str]:
    """What about a table isn't as it should be.

    Args:
        described: `Table` of the reply to `describe_table`.
    """
    kinds = {one["AttributeName"]: one["AttributeType"] for one in described.get("AttributeDefinitions", ())}
    found = _key_differences("the table", described.get("KeySchema", ()), kinds, "pk", "sk")
    indexes = {one["IndexName"]: one for one in described.get("GlobalSecondaryIndexes", ())}
    for name, (partition, sort, projection) in _INDEXES.items():
        index = indexes.get(name)
        if index is None:
            found.append(f"the index {name} is missing")
            continue
        found += _key_differences(f"the index {name}", index["KeySchema"], kinds, partition, sort)
        has, needed = index["Projection"], set(projection.get("NonKeyAttributes", ()))
        if has["ProjectionType"] != "ALL" and not needed <= set(has.get("NonKeyAttributes", ())):
            found.append(f"the index {name} doesn't project {', '.join(sorted(needed))}")
    return found


def _key_differences(
    what: str, schema: list[Mapping[str, str]], kinds: Mapping[str, str], partition: str, sort: str
) -> list[str]:
    has = {one["KeyType"]: one["AttributeName"] for one in schema}
    told = f"{what} has the keys {_told(has.get('HASH'), kinds)} and {_told(has.get('RANGE'), kinds)}"
    right = (partition, sort) == (has.get("HASH"), has.get("RANGE")) and all(
        kinds.get(key) == _ATTRIBUTES[key] for key in (partition, sort)
    )
    wanted = f"{_told(partition, _ATTRIBUTES)} and {_told(sort, _ATTRIBUTES)}"
    return [] if right else [f"{told}, not {wanted}"]


def _told(key: str | None, kinds: Mapping[str, str]) -> str:
    return f"{key} ({kinds.get(key, '?')})" if key else "none"


def _keys(partition: str, sort: str) -> list[dict[str, str]]:
    return [
        {"AttributeName": partition, "KeyType": "HASH"},
        {"AttributeName": sort, "KeyType": "RANGE"},
    ]
