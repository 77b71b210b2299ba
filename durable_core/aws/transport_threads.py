"""Requests by boto3: blocking, or from an event loop in threads."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from durable_core.aws.failures import explained, is_conflict
from durable_core.aws.transport import (
    CONFLICT_PAUSES_S,
    CONNECTIONS,
    MAX_BODY_BYTES,
    Service,
    Transport,
    client_options,
)
from durable_core.forking import restart_in_children

if TYPE_CHECKING:
    from collections.abc import Mapping

# What a forked child inherited and must neither use nor close: its sockets are the parent's.
_inherited: list[object] = []
_loaders: list[Any] = []


def with_descriptions(session: Any) -> Any:
    """A session of botocore with the descriptions of services that others have read: 50 ms a client."""
    if not _loaders:
        _loaders.append(session.get_component("data_loader"))
    session.register_component("data_loader", _loaders[0])
    return session


class ThreadTransport(Transport):
    """Sends every request by boto3.

    Args:
        region: Of AWS; None: as the environment says.
        endpoint: A URL instead of the service's own.
    """

    def __init__(self, region: str | None, endpoint: str | None) -> None:
        self.region = region
        self.endpoint = endpoint
        self._lock = threading.Lock()
        self._clients: dict[str, Any] = {}
        self._threads: ThreadPoolExecutor | None = None
        restart_in_children(self)

    async def call(self, service: Service, operation: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """Sends one request from a thread."""
        with self._lock:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="durable-aws")
            threads = self._threads
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(threads, self.call_now, service, operation, request)

    def call_now(self, service: Service, operation: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """Sends one request."""
        began = time.monotonic()
        for pause_s in (*CONFLICT_PAUSES_S, None):
            try:
                return self._send(service, operation, request)
            except Exception as error:  # what isn't an error of AWS is raised as it is
                if pause_s is None or not is_conflict(error):
                    told = explained(error, service, operation, request, waited_s=time.monotonic() - began)
                    if told is None:
                        raise
                    raise told from None
            time.sleep(pause_s)
        raise AssertionError("unreachable: the last try returns or raises")

    async def close(self) -> None:
        """Closes connections; threads end when they are done."""
        self.close_now()

    def hold(self) -> None:
        """Before a fork: waits until no thread is making a client."""
        self._lock.acquire()

    def let_go(self) -> None:
        """After a fork, in the parent."""
        self._lock.release()

    def restart(self) -> None:
        """In a forked child, which inherits the connections but no threads."""
        _inherited.extend((self._clients, self._threads))
        self._lock = threading.Lock()
        self._clients = {}
        self._threads = None

    def close_now(self) -> None:
        """Closes the connections of threads, from plain code."""
        with self._lock:
            clients, self._clients = self._clients, {}
            threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown(wait=False)
        for client in clients.values():
            client.close()

    def _send(self, service: Service, operation: str, request: Mapping[str, Any]) -> dict[str, Any]:
        reply: dict[str, Any] = getattr(self._client(service), operation)(**request)
        if "Body" in reply:
            with reply["Body"] as body:
                fits = reply["ContentLength"] <= MAX_BODY_BYTES
                reply["Body"] = body.read() if fits else None
        return reply

    def _client(self, service: Service) -> Any:
        client = self._clients.get(service)
        if client is None:
            import boto3
            from botocore.config import Config
            from botocore.session import Session

            with self._lock:
                client = self._clients.get(service)
                if client is None:
                    config = Config(**client_options(service, self.endpoint))
                    # A session of its own: the default one isn't safe among threads.
                    session = boto3.session.Session(botocore_session=with_descriptions(Session()))
                    client = session.client(
                        service, region_name=self.region, endpoint_url=self.endpoint, config=config
                    )
                    self._clients[service] = client
        return client
