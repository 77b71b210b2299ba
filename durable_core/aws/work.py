"""`work_chunk`: works on chunks of distributed maps, and hands back what isn't done by its deadline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from durable_core.aws.inbox import queue_handler
from durable_core.aws.queue import ChunkMessage
from durable_core.errors import Fenced
from durable_core.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from durable_core.aws.deadline import LambdaDeadline
    from durable_core.aws.sandbox import Handler, Sandbox


def work_handler(*, workflows: str | Sequence[str]) -> Handler[dict[str, Any]]:
    """The handler of a function that a queue triggers, and that works on the chunks its messages name.

    Args:
        workflows: The module or package that defines them, or several.

    Raises:
        UsageError: A variable of its environment is missing, or a module.

    Example:
        handler = work_handler(workflows="my_package.workflows")
    """
    return queue_handler(
        "work_chunk",
        ChunkMessage,
        lambda sandbox, _: _Worker(sandbox).act,
        workflows=workflows,
        needs=("drive_queue_url", "work_queue_url"),
        failure="chunk_not_worked_on",
    )


class _Worker:
    """Works on the chunks of one sandbox."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._log = get_logger("durable_core")

    async def act(self, message: ChunkMessage, deadline: LambdaDeadline) -> None:
        """Works on the chunk.

        Raises:
            DurableError: It can't be worked on here.
        """
        units = self._sandbox.transport.write_units
        try:
            result = await self._sandbox.executor.work_chunk(
                message.run_id, message.step_id, message.chunk, deadline=deadline
            )
        except Fenced:  # somebody else goes on with it
            self._log.warning("chunk_fenced", **message.ids())
            return
        self._log.info("chunk_left", **message.ids(), status=result.status, items=result.items)
        self._sandbox.metrics.put(
            {
                "ItemsDone": result.items,
                f"Chunks{result.status.title().replace('_', '')}": 1,
                "WriteUnits": self._sandbox.transport.write_units - units,
            },
            **message.ids(),
        )
