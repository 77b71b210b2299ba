"""A transport on which requests fail as they do in life, and that remembers what was sent."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from botocore.exceptions import ClientError, EndpointConnectionError, ReadTimeoutError

from durable_core.aws.failures import explained
from durable_core.aws.transport import Service, Transport

REPLY_LOST = "the request is applied, and its reply lost"
THROTTLED = "throttled"
SERVER_ERROR = "a server error"
TIMED_OUT = "timed out before it was applied"
UNREACHABLE = "no connection"
DENIED = "access denied"
EXPIRED = "expired credentials"
CONFLICT = "a conflict with another transaction"
NO_KEY = "not authorized to perform: kms:Decrypt"

FAULTS = (REPLY_LOST, THROTTLED, SERVER_ERROR, TIMED_OUT, UNREACHABLE, DENIED, EXPIRED, CONFLICT)
RETRYABLE = (REPLY_LOST, THROTTLED, SERVER_ERROR, TIMED_OUT, UNREACHABLE, CONFLICT)

_CODES = {
    THROTTLED: ("ThrottlingException", 400),
    SERVER_ERROR: ("InternalServerError", 500),
    DENIED: ("AccessDeniedException", 400),
    EXPIRED: ("ExpiredTokenException", 400),
    CONFLICT: ("TransactionConflictException", 400),
    NO_KEY: ("AccessDenied", 403),
}
_WRITES = ("put_item", "update_item", "delete_item", "transact_write_items", "batch_write_item")
_Key = tuple[str, str, str]


class Sent(NamedTuple):
    """A request that was asked for, whatever came of it."""

    service: str
    operation: str
    request: Mapping[str, Any]


class _Planned(NamedTuple):
    operation: str
    fault: str
    when: Callable[[Mapping[str, Any]], bool]


class FaultyTransport(Transport):
    """Sends requests by another transport, and lets those fail that a test has planned.

    Attributes:
        sent: Every request, in order.
        stale_reads: After each write of an item, the first read that isn't strongly consistent sees the item
            as it was before.
    """

    def __init__(self, inner: Transport) -> None:
        self.inner = inner
        self.sent: list[Sent] = []
        self.stale_reads = False
        self._planned: list[_Planned] = []
        self._before: dict[_Key, dict[str, Any] | None] = {}
        self._lock = threading.Lock()

    def plan(
        self,
        operation: str,
        fault: str,
        *,
        times: int = 1,
        when: Callable[[Mapping[str, Any]], bool] = lambda request: True,
    ) -> None:
        """Lets the next requests of an operation fail.

        Args:
            operation: As boto3 names it; `*` for any.
            fault: One of `FAULTS`, or NO_KEY, of S3.
            times: How many of them.
            when: Only requests for which this is true.
        """
        assert fault in (*FAULTS, NO_KEY)
        self._planned += [_Planned(operation, fault, when)] * times

    @property
    def counts(self) -> Counter[str]:
        """How many requests of each operation were asked for."""
        return Counter(one.operation for one in self.sent)

    def requests(self, operation: str) -> list[Mapping[str, Any]]:
        """The requests of one operation."""
        return [one.request for one in self.sent if one.operation == operation]

    async def call(self, service: Service, operation: str, request: Mapping[str, Any]) -> dict[str, Any]:
        fault = self._next_fault(service, operation, request)
        if fault is not None and fault != REPLY_LOST:
            raise _failure(fault, service, operation, request)
        for key, asked in self._asked_before(operation, request):
            self._before[key] = (await self.inner.call("dynamodb", "get_item", asked)).get("Item")
        reply = await self.inner.call(service, operation, request)
        return self._answer(fault, service, operation, request, reply)

    def call_now(self, service: Service, operation: str, request: Mapping[str, Any]) -> dict[str, Any]:
        fault = self._next_fault(service, operation, request)
        if fault is not None and fault != REPLY_LOST:
            raise _failure(fault, service, operation, request)
        for key, asked in self._asked_before(operation, request):
            self._before[key] = self.inner.call_now("dynamodb", "get_item", asked).get("Item")
        reply = self.inner.call_now(service, operation, request)
        return self._answer(fault, service, operation, request, reply)

    async def close(self) -> None:
        await self.inner.close()

    def close_now(self) -> None:
        self.inner.close_now()

    def _next_fault(self, service: Service, operation: str, request: Mapping[str, Any]) -> str | None:
        with self._lock:
            self.sent.append(Sent(service, operation, request))
            for planned in self._planned:
                if planned.operation in (operation, "*") and planned.when(request):
                    self._planned.remove(planned)
                    return planned.fault
        return None

    def _answer(
        self,
        fault: str | None,
        service: Service,
        operation: str,
        request: Mapping[str, Any],
        reply: dict[str, Any],
    ) -> dict[str, Any]:
        if fault is not None:
            raise _failure(fault, service, operation, request)
        if self.stale_reads and operation in ("get_item", "query") and not request.get("ConsistentRead"):
            return self._stale(request, reply)
        return reply

    def _asked_before(
        self, operation: str, request: Mapping[str, Any]
    ) -> Iterator[tuple[_Key, dict[str, Any]]]:
        """The items that a write is about to change, with the request that reads each."""
        if not self.stale_reads or operation not in _WRITES:
            return
        if operation == "batch_write_item":
            writes = [
                {"TableName": table, **next(iter(one.values()))}
                for table, ones in request["RequestItems"].items()
                for one in ones
            ]
        else:
            writes = [next(iter(one.values())) for one in request.get("TransactItems", [{"": request}])]
        for write in writes:
            key = _key(write["TableName"], write.get("Key") or write["Item"])
            yield (
                key,
                {
                    "TableName": key[0],
                    "Key": {"pk": {"S": key[1]}, "sk": {"S": key[2]}},
                    "ConsistentRead": True,
                },
            )

    def _stale(self, request: Mapping[str, Any], reply: dict[str, Any]) -> dict[str, Any]:
        table, nothing = request["TableName"], object()
        if "Key" in request:
            old = self._before.pop(_key(table, request["Key"]), nothing)
            if old is nothing:
                return reply
            return {name: value for name, value in reply.items() if name != "Item"} | (
                {"Item": old} if old else {}
            )
        seen = []
        for item in reply["Items"]:
            old = self._before.pop(_key(table, item), nothing)
            if old is nothing:
                seen.append(item)
            elif old:
                seen.append(old)
        return reply | {"Items": seen, "Count": len(seen)}


def _key(table: str, item: Mapping[str, Any]) -> _Key:
    return table, item["pk"]["S"], item["sk"]["S"]


def _failure(fault: str, service: Service, operation: str, request: Mapping[str, Any]) -> Exception:
    """What a transport raises for it."""
    error: Exception
    if fault in (REPLY_LOST, TIMED_OUT):
        error = ReadTimeoutError(endpoint_url="http://aws.test")
    elif fault == UNREACHABLE:
        error = EndpointConnectionError(endpoint_url="http://aws.test")
    else:
        code, status = _CODES[fault]
        if service == "s3" and fault == DENIED:
            code, status = "AccessDenied", 403
        error = ClientError(
            {"Error": {"Code": code, "Message": fault}, "ResponseMetadata": {"HTTPStatusCode": status}},  # type: ignore[typeddict-item]  # no other part of it is looked at
            operation,
        )
    found = explained(error, service, operation, request)
    assert found is not None
    return found
