"""A table and a place in a bucket for one test, behind a transport that can fail and remembers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from durable_core.aws.transport import Service, Transport
from durable_core.blobs.s3 import S3Blobs
from durable_core.checkpoints.dynamodb import DynamoCheckpoints
from durable_core.clock import Clock
from durable_core.journal import _dynamodb_keys as keys
from durable_core.journal import _items as items
from durable_core.journal.base import Journal
from durable_core.journal.dynamodb import DynamoJournal
from durable_core.store import DEFAULT_INLINE_MAX_BYTES
from durable_core.stores import Store
from tests.cloud import Cloud, Lent
from tests.cloud_faults import FaultyTransport

_AT_ONCE = 25  # items of one batch


class AwsPlace:
    """Where the runs of a test are.

    Attributes:
        cloud: The server.
        faulty: What all requests of its stores go through.
        plain: The transport below it: for what a test does itself.
    """

    def __init__(self, cloud: Cloud, transport: Transport) -> None:
        self.cloud = cloud
        self.plain = transport
        self.faulty = FaultyTransport(transport)
        self.table = cloud.new_table(transport)
        self.bucket = cloud.shared_bucket
        self.prefix = f"{self.table}/"

    def journal(
        self, clock: Clock | None = None, *, page_items: int | None = None, over: Transport | None = None
    ) -> DynamoJournal:
        return DynamoJournal(over or self.faulty, self.table, clock=clock, page_items=page_items)

    def store(
        self,
        clock: Clock | None = None,
        *,
        page_items: int | None = None,
        inline_max_bytes: int = DEFAULT_INLINE_MAX_BYTES,
        over: Transport | None = None,
    ) -> Store:
        journal = self.journal(clock, page_items=page_items, over=over)
        blobs = S3Blobs(over or self.faulty, self.bucket, self.prefix)
        checkpoints = DynamoCheckpoints(over or self.faulty, self.table)
        return Store(f"dynamodb://{self.table}", journal, blobs, inline_max_bytes, checkpoints)

    def items(self) -> list[keys.Item]:
        """All of the table, in a scan, which only a test may do."""
        found: list[keys.Item] = []
        request: dict[str, Any] = {"TableName": self.table, "ConsistentRead": True}
        while True:
            reply = self.plain.call_now("dynamodb", "scan", request)
            found += reply["Items"]
            if "LastEvaluatedKey" not in reply:
                return found
            request["ExclusiveStartKey"] = reply["LastEvaluatedKey"]

    def objects(self) -> set[str]:
        """The names of all blobs."""
        listed = self.plain.call_now("s3", "list_objects_v2", {"Bucket": self.bucket, "Prefix": self.prefix})
        return {one["Key"].removeprefix(self.prefix) for one in listed.get("Contents", ())}

    def write(self, records: list[keys.Item]) -> None:
        """Puts items as they are, without conditions, which only a test may do."""
        for start in range(0, len(records), _AT_ONCE):
            puts = [{"PutRequest": {"Item": item}} for item in records[start : start + _AT_ONCE]]
            self.plain.call_now("dynamodb", "batch_write_item", {"RequestItems": {self.table: puts}})

    async def copy(self, of: Journal, run_id: str) -> None:
        """Takes a run over from another journal."""
        header = await of.header(run_id)
        assert header is not None
        found = [items.header_item(header)]
        async for page in of.steps(run_id):
            found += map(items.step_item, page)
        self.write(found)

    def assert_every_pointer_leads_somewhere(self) -> None:
        """No COMMITTED step and no header names a blob that isn't there."""
        named = {
            item[name]["S"]
            for item in self.items()
            for name in ("output_ref", "input_ref", "ref")
            if name in item
        }
        assert named <= self.objects()


class CutPages(Lent):
    """Cuts each page of a query over the table into pages of so many items, with a key behind each.

    moto looks through a whole table for each page that it gives, so that thousands of pages of one item would
    take it hours. Here it is asked for its own pages of 1 MB; what is cut is given once, by the key that was
    given before it, and forgotten at any write.
    """

    def __init__(self, inner: Transport, items: int) -> None:
        super().__init__(inner)
        self.pages = 0
        self._items = items
        self._left: dict[str, dict[str, Any]] = {}  # what comes next, by the request that asks for it

    async def call(self, service: Service, operation: str, request: Mapping[str, Any]) -> dict[str, Any]:
        if operation != "query" or "IndexName" in request:
            if operation.startswith(("put_", "update_", "delete_", "transact_")):
                self._left.clear()
            return await super().call(service, operation, request)
        page = self._left.pop(_told(request), None) or await super().call(service, operation, request)
        self.pages += 1
        given, left = page["Items"][: self._items], page["Items"][self._items :]
        if not left:
            return page
        last = {name: given[-1][name] for name in ("pk", "sk")}
        self._left[_told({**request, "ExclusiveStartKey": last})] = {
            **page, "Items": left, "Count": len(left)
        }  # fmt: skip
        return {**page, "Items": given, "Count": len(given), "LastEvaluatedKey": last}


def _told(request: Mapping[str, Any]) -> str:
    return repr(sorted(request.items()))


class EmptyPages(Lent):
    """Gives an empty page with a key before each page of a query, as a filter or a busy partition does."""

    def __init__(self, inner: Transport) -> None:
        super().__init__(inner)
        self.empty = 0
        self._given: set[str] = set()

    async def call(self, service: Service, operation: str, request: Mapping[str, Any]) -> dict[str, Any]:
        start = request.get("ExclusiveStartKey")
        if operation == "query" and start is None and "IndexName" not in request:
            values = request["ExpressionAttributeValues"]
            start = {"pk": values[":pk"], "sk": {"S": "A"}}  # before every key
        if operation != "query" or start is None or repr(request) in self._given:
            return await super().call(service, operation, request)
        self._given |= {repr(request), repr({**request, "ExclusiveStartKey": start})}
        self.empty += 1
        return {"Items": [], "Count": 0, "LastEvaluatedKey": start}
