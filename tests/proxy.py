"""What may stand between us and a PostgreSQL server: a network that loses things, a pooler of connections."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

_SYNC = b"S\0\0\0\4"  # ends each request
_READY = b"Z\0\0\0\5"  # begins the end of each reply
_MADE_UP = re.compile(rb"(K\0\0\0\x0c)....", re.DOTALL)  # before it, the number of the server's process
_WANTS_TLS = (80877103).to_bytes(4)


class Between:
    """Listens on a port of its own, in a thread of its own."""

    def __init__(self, port: int) -> None:
        self.to = port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy")

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._server.sockets[0].getsockname()[1])

    async def connected(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        """The life of one connection."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        self._thread.start()
        starting = asyncio.start_server(self._live, "127.0.0.1", 0)
        self._server = asyncio.run_coroutine_threadsafe(starting, self._loop).result()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _live(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        with suppress(asyncio.CancelledError, ConnectionError, asyncio.IncompleteReadError):
            await self.connected(client, to_client)
        await _cut(to_client)

    async def _close(self) -> None:
        self._server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Proxy(Between):
    """Loses what it is told to lose.

    Attributes:
        loses: Called with each request: whether its reply is lost, and the connection with it.
        drops: The same, but the request doesn't reach the server either.
        silent: Whether nothing that the server says is passed on any more.
        requests: How many requests there were.
    """

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.loses: Callable[[bytes], bool] = lambda _: False
        self.drops: Callable[[bytes], bool] = lambda _: False
        self.silent = False
        self.requests = 0

    async def connected(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        server, to_server = await asyncio.open_connection("127.0.0.1", self.to)
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
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            await _cut(to_server)


class Pooler(Between):
    """Gives each transaction the server's connection that was idle for longest, as poolers do."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self._idle: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
        self.moves = 0
        """How many transactions went over another connection than the one before of the same client."""

    async def connected(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        used = None
        server, to_server = await asyncio.open_connection("127.0.0.1", self.to)
        while True:  # the start, which may ask for encryption first
            length = await client.readexactly(4)
            start = length + await client.readexactly(int.from_bytes(length) - 4)
            if start[4:8] != _WANTS_TLS:
                break
            to_client.write(b"N")
        to_server.write(start)
        to_client.write(_MADE_UP.sub(lambda found: found[1] + b"\0\0\0\7", await _reply(server)))
        self._idle.put_nowait((server, to_server))
        while True:
            request = b""
            while not request.endswith(_SYNC):
                data = await client.read(1 << 20)
                if not data or data[:1] == b"X":
                    return
                request += data
            found, inside = await self._idle.get(), True
            self.moves += found is not used and used is not None
            used = found
            while inside:
                found[1].write(request)
                reply = await _reply(found[0])
                inside = reply[-1:] != b"I"
                if not inside:
                    self._idle.put_nowait(found)
                to_client.write(reply)
                if inside:
                    request = await client.readuntil(_SYNC)

    async def _close(self) -> None:
        await super()._close()
        while not self._idle.empty():
            await _cut(self._idle.get_nowait()[1])


async def _cut(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()
    with suppress(ConnectionError):
        await writer.wait_closed()


async def _reply(server: asyncio.StreamReader) -> bytes:
    """All that the server says up to its next readiness."""
    reply = b""
    while reply[-6:-1] != _READY:
        data = await server.read(1 << 20)
        if not data:
            raise ConnectionError("the server has gone")
        reply += data
    return reply
