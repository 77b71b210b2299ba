"""How requests get to AWS: built once, sent by aioboto3 where it is installed, else by boto3 in threads.

A request is what boto3's low-level client takes, and a reply what it gives; only a `Body` comes as bytes.
Errors are those of `aws.failures`. Credentials come from the usual chains of AWS only.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, Literal

from durable_core.blobs.base import MAX_BLOB_BYTES
from durable_core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

Service = Literal["dynamodb", "s3", "sqs", "events"]

MAX_BODY_BYTES: Final = MAX_BLOB_BYTES
"""A larger body isn't read."""

CONNECTIONS: Final = 50
"""Per service and event loop: more requests at once than this wait for one another."""

# Seconds. A lease is 30 s by default, and is renewed every 10: a call to DynamoDB with its retries ends
# within 3 x (2 + 3) s and the pauses between, which are 3 s at the most.
_CONNECT_S: Final = 2
_READ_S: Final[dict[str, int]] = {"dynamodb": 3, "s3": 15, "sqs": 25, "events": 5}  # SQS polls for 20 s
_ATTEMPTS: Final = 3

# Seconds. Transactions that were cancelled because another was at work on the same item; botocore doesn't
# send these again.
CONFLICT_PAUSES_S: Final = (0.03, 0.1, 0.3, 0.6)


class Transport(ABC):
    """Sends requests. It connects when it is first used, and again if it is used after it was closed.

    May be used from several event loops and threads, and in forked children.
    """

    @abstractmethod
    async def call(self, service: Service, operation: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """Sends one request.

        Args:
            service: Of AWS.
            operation: As boto3 names its method: put_item.
            request: Its parameters.

        Returns:
            The reply; a `Body` as bytes, or None if it is larger than `MAX_BODY_BYTES`.

        Raises:
            ConditionRefused: A condition didn't hold.
            NotThere: There is no such object.
            JournalUnavailable: No reply came, or AWS is busy; botocore has tried again by then.
            DurableError: Something has to be mended first.
        """

    @abstractmethod
    def call_now(self, service: Service, operation: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """The same, blocking, from any thread."""

    @abstractmethod
    async def close(self) -> None:
        """Closes the connections of this event loop and those that `close_now` closes; twice is fine.

        Those of another event loop are closed when that loop is.
        """

    @abstractmethod
    def close_now(self) -> None:
        """Closes the connections of blocking calls, from plain code."""


def open_transport(
    *, region: str | None = None, endpoint: str | None = None, use_async: bool | None = None
) -> Transport:
    """A transport; nothing is connected yet.

    Args:
        region: Of AWS. Default: as the environment or the profile says.
        endpoint: A URL instead of the service's own.
        use_async: Whether through aioboto3. Default: if it is installed.

    Raises:
        UsageError: boto3 or, if it is asked for, aioboto3 isn't installed.
    """
    if find_spec("boto3") is None:
        raise UsageError("boto3 isn't installed", remedy="pip install 'durable-core[aws]'")
    found = find_spec("aioboto3") is not None
    if use_async and not found:
        raise UsageError("aioboto3 isn't installed", remedy="pip install 'durable-core[aws-async]'")
    if found if use_async is None else use_async:
        from durable_core.aws.transport_async import AsyncTransport

        return AsyncTransport(region, endpoint)
    from durable_core.aws.transport_threads import ThreadTransport

    return ThreadTransport(region, endpoint)


def client_options(service: str, endpoint: str | None) -> dict[str, Any]:
    """The options of botocore's `Config` for a client."""
    options: dict[str, Any] = {
        "connect_timeout": _CONNECT_S,
        "read_timeout": _READ_S[service],
        # Not `adaptive`: it holds requests back for as long as it likes, and a lease may end meanwhile.
        "retries": {"mode": "standard", "total_max_attempts": _ATTEMPTS},
        "max_pool_connections": CONNECTIONS,
        "user_agent_extra": "durable-core",
    }
    if service == "s3" and named_endpoint("s3", endpoint):  # there is no name BUCKET.localhost
        options["s3"] = {"addressing_style": "path"}
    return options


def named_endpoint(service: Service, endpoint: str | None) -> str | None:
    """The URL that requests to a service go to, where the store URL or the environment name one."""
    return (
        endpoint
        or os.environ.get(f"AWS_ENDPOINT_URL_{service.upper()}")
        or os.environ.get("AWS_ENDPOINT_URL")
    )
