"""Where a line of code runs: in which run, and in which step."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, NamedTuple

from durable_core.errors import UsageError

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger


class RunInfo(NamedTuple):
    """The run that is being driven, and its takeover number."""

    run_id: str
    fence: int


class StepInfo(NamedTuple):
    """What a step can know about itself.

    Attributes:
        run_id: The run.
        fence: The run's takeover number.
        step_id: The step.
        attempt: How often the step has been begun, this time included.
        idempotency_key: The same on every re-run of this step: hand it to the API you call.
        step_index: Ordinal of the call within its scope; of a map's item its position.
        item_index: The position of a map's item.
        item_key: The key of a map's item, where it has one.
    """

    run_id: str
    fence: int
    step_id: str
    attempt: int
    idempotency_key: str
    step_index: int
    item_index: int | None = None
    item_key: str | None = None

    @property
    def log(self) -> FilteringBoundLogger:
        """A logger whose lines name the run and this step, also in a thread that the step has started."""
        from durable_core.log import get_logger  # when asked for: that module reads this one

        return get_logger("durable_core.step").bind(
            run_id=self.run_id, fence=self.fence, step_id=self.step_id, attempt=self.attempt
        )


here: ContextVar[RunInfo | StepInfo | None] = ContextVar("durable_core.here", default=None)


def current_step() -> StepInfo:
    """The step that is running here.

    Raises:
        UsageError: No step is.
    """
    info = here.get()
    if not isinstance(info, StepInfo):
        raise UsageError("current_step() was called outside a step", remedy="Call it in the body of a step")
    return info
