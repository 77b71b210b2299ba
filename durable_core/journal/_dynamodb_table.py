"""The table as the DynamoDB journal uses it: requests sent, refusals read, pages turned to the end."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

from durable_core.aws.failures import CONDITION_FAILED, ConditionRefused
from durable_core.errors import DurableError, JournalUnavailable
from durable_core.journal._dynamodb_keys import HEADER, Item, key, run_of
from durable_core.journal._dynamodb_requests import Request, Write, get, transaction
from durable_core.records import Reply

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator, Sequence

    from durable_core.aws.transport import Transport

R = TypeVar("R")
T = TypeVar("T")

MOST_GOT_AT_ONCE: Final = 100
_PAUSES_S: Final = (0.05, 0.2, 0.8, 1.6)  # when DynamoDB has left all keys of a request for later


class Table:
    """A table behind a transport.

    Args:
        transport: Sends the requests.
        name: Of the table.
        page_items: Most items of a page; DynamoDB's own limit, 1 MB, without.
    """

    def __init__(self, transport: Transport, name: str, page_items: int | None = None) -> None:
        self.transport = transport
        self.name = name
        self._page_items = page_items

    # ---- Writes ----

    async def write(self, write: Write, read: Callable[[Item], R], step_id: str | None = None) -> Reply[R]:
        """Makes a write; the reply has the record as it is after an update, or what refused the write.

        Args:
            write: Of one item.
            read: Makes a record of it.
            step_id: For messages.
        """
        there = write.key
        try:
            reply = await self.call(*write.alone(), run_id=run_of(there), step_id=step_id)
        except ConditionRefused as refused:
            return Reply(False, await self._in_the_way(refused.item, there, read))
        changed = reply.get("Attributes")
        return Reply(True, read(changed) if changed else None)

    def write_now(self, write: Write, read: Callable[[Item], R]) -> Reply[R]:
        """The same for plain code."""
        with _naming(run_of(write.key)):
            operation, request = write.alone()
            try:
                reply = self.transport.call_now("dynamodb", operation, request)
            except ConditionRefused as refused:
                found = refused.item
                if found is None:
                    asked = get(self.name, write.key)
                    found = self.transport.call_now("dynamodb", "get_item", asked).get("Item")
                return Reply(False, read(found) if found else None)
        return Reply(True, read(reply["Attributes"]))

    async def write_all(self, *writes: Write, step_id: str | None = None) -> list[Item | None] | None:
        """Makes writes together.

        Returns:
            None if they were made; else, for each, what its item was like if it refused them - `{}` if there
            was none - and None if it didn't.
        """
        try:
            await self.call(
                "transact_write_items", transaction(*writes), run_id=run_of(writes[0].key), step_id=step_id
            )
        except ConditionRefused as refused:
            return [
                (item if item is not None else await self._item(write.key) or {})
                if reason == CONDITION_FAILED
                else None
                for write, reason, item in zip(writes, refused.reasons, refused.items, strict=True)
            ]
        return None

    # ---- Reads ----

    async def read(self, run_id: str, sort_key: str, read: Callable[[Item], R]) -> R | None:
        """One record as it is now."""
        found = await self._item(key(run_id, sort_key))
        return read(found) if found else None

    async def pages(self, request: Request, run_id: str | None = None) -> AsyncGenerator[list[Item], None]:
        """The items of a query, to the end; empty pages are left out."""
        start: Item | None = None
        while True:
            items, start = await self.page(request, start, run_id=run_id)
            if items:
                yield items
            if start is None:
                return

    async def page(
        self, request: Request, start: Item | None, *, limit: int | None = None, run_id: str | None = None
    ) -> tuple[list[Item], Item | None]:
        """One page of a query.

        Args:
            request: The query.
            start: Where it begins: the key that the page before gave.
            limit: Most items that it should read.
            run_id: For messages.

        Returns:
            Its items, and the key after which the next page begins; None at the end, and only there.
        """
        reply = await self.call("query", self._paged(request, start, limit), run_id=run_id)
        return reply["Items"], reply.get("LastEvaluatedKey")

    def items_now(self, request: Request, run_id: str) -> list[Item]:
        """The items of a query, to the end, for plain code."""
        found: list[Item] = []
        start: Item | None = None
        while True:
            with _naming(run_id):
                reply = self.transport.call_now("dynamodb", "query", self._paged(request, start, None))
            found += reply["Items"]
            start = reply.get("LastEvaluatedKey")
            if start is None:
                return found

    async def headers(self, run_ids: Sequence[str]) -> dict[str, Item]:
        """The headers of many runs as they are now, by run; of those that are there.

        Raises:
            JournalUnavailable: DynamoDB leaves some for later again and again.
        """
        found: dict[str, Item] = {}
        for some in _portions(run_ids, MOST_GOT_AT_ONCE):
            wanted = [key(run_id, HEADER) for run_id in some]
            pauses = iter(_PAUSES_S)
            while wanted:
                asked = {self.name: {"Keys": wanted, "ConsistentRead": True}}
                reply = await self.call("batch_get_item", {"RequestItems": asked})
                items = reply["Responses"].get(self.name, [])
                found |= {run_of(item): item for item in items}
                wanted = reply.get("UnprocessedKeys", {}).get(self.name, {}).get("Keys", [])
                if wanted and not items:
                    await _wait(next(pauses, None), self.name)
        return found

    async def call(
        self, operation: str, request: Request, *, run_id: str | None = None, step_id: str | None = None
    ) -> dict[str, Any]:
        """Sends a request; an error tells which run and step it was about."""
        with _naming(run_id, step_id):
            return await self.transport.call("dynamodb", operation, request)

    async def _item(self, there: Item) -> Item | None:
        reply = await self.call("get_item", get(self.name, there), run_id=run_of(there))
        return reply.get("Item")

    async def _in_the_way(self, item: Item | None, there: Item, read: Callable[[Item], R]) -> R | None:
        # A refusal without an item should mean that there is none. Not all that speak DynamoDB keep to it.
        found = item or await self._item(there)
        return read(found) if found else None

    def _paged(self, request: Request, start: Item | None, limit: int | None) -> Request:
        bounds = [bound for bound in (limit, self._page_items) if bound is not None]
        if bounds:
            request = request | {"Limit": min(bounds)}
        return request | {"ExclusiveStartKey": start} if start is not None else request


async def to_its_end(call: Coroutine[Any, Any, T]) -> T:
    """Makes a call that is over when this ends, also when the caller is cancelled meanwhile.

    A request that was sent may be applied at any time until its answer comes, or none: the transport gives up
    after some seconds. Only then does it make sense to look whether it was.
    """
    task = asyncio.ensure_future(call)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # seen: nobody is left to be told of it
        raise


async def together(calls: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Makes calls at the same time; if one fails, the others are ended, too."""
    tasks = [asyncio.ensure_future(one) for one in calls]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for one in tasks:
            one.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextmanager
def _naming(run_id: str | None, step_id: str | None = None) -> Iterator[None]:
    try:
        yield
    except DurableError as error:
        error.run_id = error.run_id or run_id
        error.step_id = error.step_id or step_id
        raise


def _portions(of: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (of[start : start + size] for start in range(0, len(of), size))


async def _wait(pause_s: float | None, name: str) -> None:
    if pause_s is None:
        raise JournalUnavailable(
            f"the table {name} leaves reads for later again and again",
            remedy="It is throttled: ask again once it has less to do",
            waited_s=sum(_PAUSES_S),
        )
    await asyncio.sleep(pause_s)
