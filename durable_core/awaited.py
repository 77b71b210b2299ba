"""What a workflow waits for, and for how long."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from durable_core.arguments import check_number
from durable_core.codec import adapter_for, encode
from durable_core.errors import NotSerializable, UsageError
from durable_core.identity import check_id

if TYPE_CHECKING:
    from pydantic import TypeAdapter

UNSET: Final[Any] = object()
LONGEST_S: Final = 100 * 366 * 24 * 3600.0  # a hundred years


class Slept(NamedTuple):
    """A sleep: so long, or until then."""

    seconds: float | None
    until: datetime | None

    def hashed(self) -> tuple[object, ...]:
        """What makes it this sleep."""
        return tuple(self)


class Awaited(NamedTuple):
    """An event.

    Attributes:
        adapter: What restores its payload; None: it comes as it was sent.
        timeout_s: How long it is waited for; None: for ever.
        default: What comes instead of it in the end; UNSET: the wait fails.
    """

    name: str
    adapter: TypeAdapter[Any] | None
    timeout_s: float | None
    default: object

    def hashed(self) -> tuple[object, ...]:
        """What makes it this wait."""
        return self.name, self.timeout_s


def slept(given: object, until: object) -> Slept:
    """A sleep as `ctx.sleep` takes it; a negative one is over at once.

    Raises:
        UsageError: It is no time, both or none.
    """
    if (given is None) is (until is None):
        raise UsageError("sleep takes seconds, or until=", remedy="Give one of them")
    if until is not None:
        if not isinstance(until, datetime) or until.tzinfo is None:
            raise UsageError(f"until={until!r} is no time with a zone", remedy="Use ctx.now() + timedelta(…)")
        return Slept(None, until)
    return Slept(max(0.0, _seconds("seconds", given)), None)


def awaited(name: str, kind: Any, timeout: object, default: object = UNSET) -> Awaited:
    """A wait as `ctx.wait_for_event` takes it.

    Raises:
        InvalidId: The name can't be one.
        UsageError: The timeout is no time, or the default can't be stored.
        UnresolvedAnnotation: Values can't be restored as that type.
    """
    timeout_s = None if timeout is None else max(0.0, _seconds("timeout", timeout))
    if default is not UNSET:
        try:
            encode(default)
        except NotSerializable as error:
            raise UsageError(
                f"default= can't be stored: {error.message}", remedy="Use None, or a value that can be"
            ) from error
    return Awaited(check_id(name, "event name"), adapter_for(kind), timeout_s, default)


def _seconds(name: str, given: object) -> float:
    if isinstance(given, timedelta):
        given = given.total_seconds()
    check_number(name, given, least=-LONGEST_S, most=LONGEST_S)
    return float(given)  # type: ignore[arg-type]  # checked just now
