"""The operation of an executor that a message calls for: drive this run, if it is due."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from durable_core.engine import calls
from durable_core.engine.asking import ask
from durable_core.engine.taking import LEFT, take
from durable_core.engine.tally import Tally
from durable_core.errors import RunNotFound
from durable_core.identity import check_id
from durable_core.records import ACTIVE, SUSPENDED, TOMBSTONE

if TYPE_CHECKING:
    from durable_core.engine.drive import Tools
    from durable_core.engine.stopping import WayOut
    from durable_core.errors import DurableError
    from durable_core.records import RunHeader
    from durable_core.store import Store


class Driven(NamedTuple):
    """What came of a run that was to be driven.

    Attributes:
        seen: Its header, as it was found.
        status: COMPLETED, FAILED, CANCELLED or SUSPENDED; PENDING when the deadline came first; LEFT when it
            could not be driven.
        tally: What this drive came to; its `left` is the header as it left it, if it had it at all.
        error: Why the run was left.
    """

    seen: RunHeader
    status: str
    tally: Tally
    error: DurableError | None = None


class Driving:
    """What whoever was told of a run by its id does with it."""

    store: Store
    _tools: Tools

    async def drive(self, run_id: str, *, deadline: WayOut) -> Driven:
        """Drives a run until it ends, suspends or has to be left. To be told twice of one run is harmless.

        A run that is over is left as it is, also a FAILED one; so is one that sleeps and isn't due.

        Args:
            run_id: The run.
            deadline: When it has to be left.

        Raises:
            RunNotFound: There is no such run.
            WorkflowNotFound: This process has not defined its workflow.
            JournalUnavailable: Nobody can tell.
        """
        check_id(run_id, "run id")
        await self.store.journal.open()
        tools, tally = self._tools.within(deadline), Tally()
        header = await ask(tools.journal.header, run_id)
        if header is None or header.status == TOMBSTONE:
            raise RunNotFound("there is no such run", run_id=run_id, remedy="It may have been pruned")
        sleeps = header.status == SUSPENDED and header.due_at_ms > tools.clock.now_ms()
        if header.status not in ACTIVE or sleeps:
            return Driven(header, header.status, tally)
        taken = await take(tools, header, calls.known(header), deadline, tally)
        return Driven(header, taken.status, tally, taken.error if taken.status == LEFT else None)
