"""Finding the runs that a worker may take, past those that it must leave alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from durable_core.engine import calls
from durable_core.engine.asking import ask
from durable_core.engine.process import is_dead
from durable_core.errors import UsageError
from durable_core.identity import check_id
from durable_core.journal.base import RunFilter
from durable_core.records import CORRUPT, RUNNING, RunHeader

if TYPE_CHECKING:
    from collections.abc import Iterable

    from durable_core.engine.drive import Tools
    from durable_core.workflow import Workflow

_PAGE: Final = 200
_TOLD_FOR_S: Final = 600
_FIRST_REST_S: Final = 1.0
_LONGEST_REST_S: Final = 300.0


class DueRun(NamedTuple):
    """A run to be taken, and its workflow."""

    header: RunHeader
    workflow: Workflow[..., Any]


class _Aside(NamedTuple):
    """A run that is left alone: until when, and how often in a row it could not be driven."""

    until_ms: float
    times: int = 0


class DueRuns:
    """The runs that are due, and those among them that one worker leaves alone for a while.

    Args:
        tools: The executor's.
    """

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._asides: dict[str, _Aside] = {}

    @property
    def left_alone(self) -> int:
        """How many runs are left alone now."""
        return len(self._asides)

    async def page(self, room: int) -> tuple[list[RunHeader], bool]:
        """Runs that are due, earliest first, and whether there may be more.

        As many more are asked for as are left alone: these would hide the others.
        """
        limit = room + len(self._asides)
        found = await ask(self._tools.journal.due, limit=limit)
        return found, len(found) == limit

    async def all(self) -> list[RunHeader]:
        """All that are due now."""
        limit = _PAGE
        while True:
            found = await ask(self._tools.journal.due, limit=limit)
            if len(found) < limit:
                return found
            limit *= 4

    async def orphaned(self) -> list[RunHeader]:
        """Runs whose driver is dead for certain, whatever their lease says."""
        found: list[RunHeader] = []
        dead: dict[str | None, bool] = {}
        before: tuple[str, str] | None = None
        while True:
            wanted = RunFilter(status=RUNNING, before=before, limit=_PAGE)
            page = await ask(self._tools.journal.runs, wanted)
            for header in page:
                process = header.owner_process
                if process not in dead:
                    dead[process] = is_dead(process)
                if dead[process]:
                    found.append(header)
            if len(page) < _PAGE:
                return found
            before = (page[-1].created_at, page[-1].run_id)

    def known(self, headers: Iterable[RunHeader]) -> list[DueRun]:
        """Those that may be taken now; a workflow that isn't known here is told of, now and then."""
        return [due for header in headers if (due := self._known(header)) is not None]

    def rest(self, run_id: str) -> None:
        """Leaves a run alone that could not be driven, each time for longer."""
        times = self._asides[run_id].times if run_id in self._asides else 0
        rest_s = min(_FIRST_REST_S * 2 ** min(times, 10), _LONGEST_REST_S)
        self._asides[run_id] = _Aside(self._now_ms() + rest_s * 1000, times + 1)

    def went_on(self, run_id: str) -> None:
        """It could be driven again."""
        self._asides.pop(run_id, None)

    def forget_old(self) -> None:
        """Forgets those that have not been due for a while: somebody else has taken them."""
        old_ms = self._now_ms() - _TOLD_FOR_S * 1000
        self._asides = {run_id: one for run_id, one in self._asides.items() if one.until_ms > old_ms}

    def _known(self, header: RunHeader) -> DueRun | None:
        aside = self._asides.get(header.run_id)
        rests = aside is not None and aside.until_ms > self._now_ms()
        if header.status == CORRUPT:
            self._leave_alone(header, "run_corrupt", header.error or "", told=rests)
            return None
        try:
            check_id(header.run_id, "run id")  # a row that was put in by hand
            workflow = calls.known(header)
        except UsageError as error:  # unknown, or several of that name
            self._leave_alone(header, "run_left_alone", str(error), told=rests)
            return None
        return None if rests else DueRun(header, workflow)

    def _leave_alone(self, header: RunHeader, event: str, reason: str, *, told: bool) -> None:
        if not told:
            self._asides[header.run_id] = _Aside(self._now_ms() + _TOLD_FOR_S * 1000)
            self._tools.log.warning(event, run_id=header.run_id, workflow=header.workflow, reason=reason)

    def _now_ms(self) -> int:
        return self._tools.clock.boot_ms()
