"""A journal whose every call waits until the test lets it through."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar

from typing_extensions import override

from durable_core.testing.forwarding_journal import ForwardingJournal

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from durable_core.journal.base import Journal

P = ParamSpec("P")
T = TypeVar("T")


class Gate(Protocol):
    """Lets journal calls through, in an order of its own: what a test decides interleavings with."""

    async def __call__(
        self, verb: str, what: tuple[object, ...], call: Callable[[], Coroutine[Any, Any, T]]
    ) -> T:
        """Makes the call at some moment, once, more often or never, and gives its reply, or loses it.

        Args:
            verb: The method's name.
            what: Its arguments, for a trace.
            call: Makes it, and can be called again: a request that arrives twice.

        Raises:
            JournalUnavailable: There is no reply.
        """
        ...


class ScheduledJournal(ForwardingJournal):
    """A journal behind a gate.

    Args:
        inner: The journal that the calls are made to; renewals without the gate, since they come from a
            thread, and the gate is the event loop's.
        gate: Decides when.
    """

    def __init__(self, inner: Journal, gate: Gate) -> None:
        super().__init__(inner)
        self.gate = gate

    @override
    async def ask(self, call: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **options: P.kwargs) -> T:
        return await self.gate(call.__name__, args, partial(super().ask, call, *args, **options))
