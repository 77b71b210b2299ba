"""Requests by aioboto3, in the event loop."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from durable_core.aws.failures import explained, is_conflict
from durable_core.aws.transport import CONFLICT_PAUSES_S, MAX_BODY_BYTES, Service, client_options
from durable_core.aws.transport_threads import ThreadTransport, _inherited, with_descriptions

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping


class AsyncTransport(ThreadTransport):
    """Sends requests by aioboto3; only blocking calls go by boto3."""

    def __init__(self, region: str | None, endpoint: str | None) -> None:
        super().__init__(region, endpoint)
        self._loops: dict[asyncio.AbstractEventLoop, _LoopClients] = {}

    async def call(self, service: Service, operation: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """Sends one request."""
        began = time.monotonic()
        for pause_s in (*CONFLICT_PAUSES_S, None):
            try:
                return await self._send_async(service, operation, request)
            except Exception as error:  # what isn't an error of AWS is raised as it is
                if pause_s is None or not is_conflict(error):
                    told = explained(error, service, operation, request, waited_s=time.monotonic() - began)
                    if told is None:
                        raise
                    raise told from None
            await asyncio.sleep(pause_s)
        raise AssertionError("unreachable: the last try returns or raises")

    async def close(self) -> None:
        """Closes the connections of this event loop, and those of the threads."""
        with self._lock:
            clients = self._loops.pop(asyncio.get_running_loop(), None)
        if clients is not None:
            await clients.close()
        self.close_now()

    def restart(self) -> None:
        """In a forked child."""
        super().restart()
        _inherited.append(self._loops)
        self._loops = {}

    async def _send_async(
        self, service: Service, operation: str, request: Mapping[str, Any]
    ) -> dict[str, Any]:
        client = await self._of_this_loop().client(service)
        reply: dict[str, Any] = await getattr(client, operation)(**request)
        if "Body" in reply:
            async with reply["Body"] as body:
                fits = reply["ContentLength"] <= MAX_BODY_BYTES
                reply["Body"] = await body.read() if fits else None
        return reply

    def _of_this_loop(self) -> _LoopClients:
        loop = asyncio.get_running_loop()
        found = self._loops.get(loop)
        if found is None:
            with self._lock:
                for other in [one for one in self._loops if one.is_closed()]:
                    del self._loops[other]
                found = self._loops[loop] = _LoopClients(self.region, self.endpoint)
        return found


class _LoopClients:
    """The clients of one event loop. Their connections can be used in no other."""

    def __init__(self, region: str | None, endpoint: str | None) -> None:
        self._region = region
        self._endpoint = endpoint
        self._session: Any = None
        self._making = asyncio.Lock()
        self._clients: dict[str, Any] = {}
        self._held: list[AsyncGenerator[Any, None]] = []

    async def client(self, service: Service) -> Any:
        found = self._clients.get(service)
        if found is None:
            async with self._making:
                found = self._clients.get(service)
                if found is None:
                    held = self._hold(service)
                    found = await anext(held)
                    self._held.append(held)
                    self._clients[service] = found
        return found

    async def close(self) -> None:
        self._clients.clear()
        for held in self._held:
            await held.aclose()
        self._held.clear()

    async def _hold(self, service: Service) -> AsyncGenerator[Any, None]:
        """Gives a client and keeps it open.

        An asynchronous generator, because `asyncio.run` and `Runner` end those that are left before they
        close their loop: so a client is closed in its own loop, also if nobody asked for it.
        """
        import aioboto3  # type: ignore[import-untyped]  # has no stubs
        from aiobotocore.config import AioConfig  # type: ignore[import-untyped]  # has no stubs
        from aiobotocore.session import get_session  # type: ignore[import-untyped]  # has no stubs

        if self._session is None:
            self._session = aioboto3.Session(botocore_session=with_descriptions(get_session()))
        config = AioConfig(**client_options(service, self._endpoint))
        async with self._session.client(
            service, region_name=self._region, endpoint_url=self._endpoint, config=config
        ) as client:
            yield client
