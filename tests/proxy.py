"""A proxy before a PostgreSQL server that loses what it is told to lose, as networks do."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

_SYNC = b"S\0\0\0\4"  # ends each request
_READY = b"Z\0\0\0\5"  # begins the end of each reply


class Proxy:
    """Listens on a port of its own, in a thread of its own.

    Attributes:
        loses: Called with each request: whether its reply is lost, and the connection with it.
        drops: The same, but the request doesn't reach the server either.
        silent: Whether nothing that the server says is passed on any more.
        requests: How many requests there were.
    """

    def __init__(self, port: int) -> None:
        self._to = port
        self.loses: Callable[[bytes], bool] = lambda _: False
        self.drops: Callable[[bytes], bool] = lambda _: False
        self.silent = False
        self.requests = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy")

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._server.sockets[0].getsockname()[1])

    def __enter__(self) -> Self:
        self._thread.start()
        starting = asyncio.start_server(self._connected, "127.0.0.1", 0)
        self._server = asyncio.run_coroutine_threadsafe(starting, self._loop).result()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _close(self) -> None:
        self._server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _connected(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        server, to_server = await asyncio.open_connection("127.0.0.1", self._to)
        lost = asyncio.Event()  # the reply that comes next

        async def ask() -> None:
            while data := await client.read(1 << 20):
                if data.endswith(_SYNC):
                    self.requests += 1
                    if self.drops(data):
                        return
                    if self.loses(data):
                        lost.set()
                to_server.write(data)
                await to_server.drain()

        async def answer() -> None:
            while data := await server.read(1 << 20):
                if lost.is_set():
                    if _READY in data[-6:]:
                        return
                elif not self.silent:
                    to_client.write(data)
                    await to_client.drain()

        pumps = [asyncio.create_task(ask()), asyncio.create_task(answer())]
        with suppress(asyncio.CancelledError):  # the proxy is closed
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
        for writer in (to_client, to_server):
            writer.transport.abort()
