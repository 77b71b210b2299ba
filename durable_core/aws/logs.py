"""Log lines of functions: JSON, each with the run, the step and the invocation it belongs to."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from durable_core.log import configure_logging

if TYPE_CHECKING:
    from collections.abc import Iterator, MutableMapping

_ALWAYS: Final = ("run_id", "step_id", "attempt", "fence")
_of_invocation: ContextVar[dict[str, str]] = ContextVar("durable_core.aws.invocation")


def configure_function_logging(level: str) -> None:
    """JSON lines, of which each can be searched by the same fields.

    Raises:
        UsageError: There is no such level.
    """
    configure_logging(level, "json", processors=[add_invocation])


def add_invocation(_: object, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Adds what the invocation is called by; what a line isn't about is null."""
    for name, value in _of_invocation.get({}).items():
        event.setdefault(name, value)
    for name in _ALWAYS:
        event.setdefault(name, None)
    return event


@contextmanager
def invocation(**named: str | None) -> Iterator[None]:
    """Lines of this invocation carry these ids, also those of what it starts."""
    token = _of_invocation.set({name: value for name, value in named.items() if value})
    try:
        yield
    finally:
        _of_invocation.reset(token)
