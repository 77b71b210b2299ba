"""Keeping the lease of the runs that this process drives.

One thread renews all of them, over a connection of its own, every third of the lease: a step that blocks the
event loop, or a store that is slow to answer it, doesn't cost the run. The thread goes by a clock that counts
suspend. What it learns - that the run was taken over, cancelled or woken - it tells the driver on the
driver's own loop.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from durable_core.errors import DurableError, Fenced, JournalUnavailable
from durable_core.forking import restart_in_children
from durable_core.log import get_logger
from durable_core.records import CANCELLED, Reply, RunHeader

if TYPE_CHECKING:
    from collections.abc import Callable

    from durable_core.clock import Clock
    from durable_core.journal.base import Journal, Lease, Renewer

# A wait doesn't notice suspend: look at the clock at least this often, so that a thawed process renews at
# once.
_LOOK_EVERY_S: Final = 1.0
_TRY_AGAIN_S: Final = 0.5


class HeldLease:
    """A lease as its holder knows it.

    Args:
        lease: What is held.
        lease_ms: How long it lasts from each renewal; asked each time, where its end is fixed.
        clock: By which its end is judged here.
        on_lost: Called from the renewing thread when a renewal was refused.
        is_abandoned: Whether nobody can be driving any more, because the event loop is closed.
    """

    __slots__ = (
        "_boot_ms",
        "_lease_ms",
        "is_abandoned",
        "lease",
        "lost",
        "on_lost",
        "renew_at_ms",
        "until_ms",
        "wake_count",
    )

    def __init__(
        self,
        lease: Lease,
        lease_ms: int | Callable[[], int],
        clock: Clock,
        on_lost: Callable[[DurableError], None],
        wake_count: int = 0,
        is_abandoned: Callable[[], bool] = lambda: False,
    ) -> None:
        self.lease = lease
        self._lease_ms = lease_ms
        self.on_lost = on_lost
        self.is_abandoned = is_abandoned
        self.lost: DurableError | None = None
        self.wake_count = wake_count
        self._boot_ms = clock.boot_ms
        self.lengthened(clock.boot_ms())

    @property
    def lease_ms(self) -> int:
        """How long it lasts if it is renewed now."""
        return self._lease_ms if isinstance(self._lease_ms, int) else self._lease_ms()

    def is_over(self) -> bool:
        """Whether it may have ended: nothing more is started before it was renewed."""
        return self._boot_ms() >= self.until_ms

    def lengthened(self, asked_at_ms: int) -> None:
        """It was renewed by a request made at that time."""
        lease_ms = self.lease_ms
        self.until_ms = asked_at_ms + lease_ms
        self.renew_at_ms = asked_at_ms + lease_ms // 3

    def renewed(self, renewer: Renewer) -> bool:
        """Asks for a longer one, and takes in what that came to."""
        reply = renewer.renew(self.lease, self.lease_ms)
        self.told(reply)
        return reply.ok

    def told(self, reply: Reply[RunHeader]) -> None:
        """Takes in what a renewal came to."""
        header = reply.row
        if reply.ok:
            if header is not None:
                self.wake_count = header.wake_count
        elif self.lost is None:
            self.lost = lost_to(header, self.lease)
            self.on_lost(self.lost)


def lost_to(header: RunHeader | None, lease: Lease) -> Fenced:
    """Why a lease can't be renewed, from the header that stands in the way."""
    if header is None:
        why = "the run is gone"
    elif header.status == CANCELLED:
        why = "the run was cancelled"
    else:
        why = f"another process drives the run now (fence {header.fence}, ours is {lease.fence})"
    return Fenced(
        why, run_id=lease.run_id, remedy="This process has given way and writes nothing more to the run"
    )


class Renewals:
    """The thread that renews the leases of one executor; it runs while there are any."""

    def __init__(self, journal: Journal, clock: Clock) -> None:
        self._journal = journal
        self._clock = clock
        self.restart()
        restart_in_children(self)

    def hold(self) -> None:
        """Nothing to wait for: what the thread was doing is the journal's business."""

    let_go = hold

    def restart(self) -> None:
        """In a forked child there is no such thread, nor are any of these leases its own."""
        self._held: list[HeldLease] = []
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def keep(self, held: HeldLease) -> None:
        """Renews a lease from now on."""
        with self._changed:
            self._held.append(held)
            if self._thread is None:
                self._thread = threading.Thread(target=self._renew_all, name="durable-leases", daemon=True)
                self._thread.start()
            self._changed.notify()

    def drop(self, held: HeldLease) -> None:
        """Renews it no more."""
        with self._changed:
            if held in self._held:
                self._held.remove(held)
            self._changed.notify()

    def renew_now(self, held: HeldLease) -> None:
        """Renews a lease that may be over before anything more is started under it; blocking.

        Raises:
            Fenced: Somebody else drives the run.
            JournalUnavailable: Nobody can tell.
        """
        renewer = self._journal.open_renewer()
        try:
            self._renew(renewer, held)
        finally:
            renewer.close()
        if held.lost is not None:
            raise held.lost

    def _renew_all(self) -> None:
        renewer: Renewer | None = None
        try:
            while True:
                with self._changed:
                    due = self._wait_for_due()
                if due is None:
                    return
                try:
                    renewer = renewer or self._journal.open_renewer()
                    self._renew(renewer, due)
                except (
                    Exception
                ) as error:  # also of a store that isn't ours: tried again until the run is let go
                    due.renew_at_ms = self._clock.boot_ms() + int(_TRY_AGAIN_S * 1000)
                    get_logger("durable_core").warning(
                        "lease_not_renewed",
                        run_id=due.lease.run_id,
                        fence=due.lease.fence,
                        reason=str(error),
                    )
                    if renewer is not None and not isinstance(error, JournalUnavailable):
                        renewer.close()
                        renewer = None
        finally:
            if renewer is not None:
                renewer.close()

    def _wait_for_due(self) -> HeldLease | None:
        """The lease that is due, waited for; None when none is held any more. Called under the lock."""
        while True:
            live = [held for held in self._held if held.lost is None and not held.is_abandoned()]
            if not live:
                self._thread = None
                return None
            first = min(live, key=lambda held: held.renew_at_ms)
            left_s = (first.renew_at_ms - self._clock.boot_ms()) / 1000
            if left_s <= 0:
                return first
            self._changed.wait(min(left_s, _LOOK_EVERY_S))

    def _renew(self, renewer: Renewer, held: HeldLease) -> None:
        asked_at_ms = self._clock.boot_ms()
        if held.renewed(renewer):
            held.lengthened(asked_at_ms)
