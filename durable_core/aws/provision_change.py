"""What a table or a bucket lacks, as the request that makes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from durable_core.aws.failures import NotThere
from durable_core.errors import StoreNotFound

if TYPE_CHECKING:
    from collections.abc import Callable

    from durable_core.aws.transport import Service, Transport


class Change(NamedTuple):
    """Something that is not yet as it should be.

    Attributes:
        text: What the request does, for people.
        is_there: Tells after a failure whether somebody else did it meanwhile.
    """

    text: str
    service: Service
    operation: str
    request: dict[str, Any]
    is_there: Callable[[], bool] = lambda: False


def settings(transport: Transport, service: Service, operation: str, **request: str) -> dict[str, Any]:
    """What is set; nothing also where, in a dry run, table or bucket isn't there yet."""
    try:
        found = transport.call_now(service, operation, request)
    except (NotThere, StoreNotFound):
        return {}
    return {name: value for name, value in found.items() if name != "ResponseMetadata"}
