"""`work_chunk`: works on chunks of distributed maps, and hands back what isn't done by its deadline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from durable_core.aws.environment import read_environment
from durable_core.aws.queue import ChunkMessage, Received, answered, batch_of, message_of
from durable_core.aws.sandbox import Handler, Invoked, Sandbox, load_workflows
from durable_core.errors import DurableError, Fenced, UsageError
from durable_core.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from durable_core.aws.deadline import LambdaDeadline


def work_handler(*, workflows: str | Sequence[str]) -> Handler[dict[str, Any]]:
    """The handler of a function that a queue triggers, and that works on the chunks its messages name.

    Args:
        workflows: The module or package that defines them, or several.

    Raises:
        UsageError: A variable of its environment is missing, or a module.

    Example:
        handler = work_handler(workflows="my_package.workflows")
    """
    environment = read_environment("drive_queue_url", "work_queue_url")
    load_workflows(workflows)
    sandbox = Sandbox("work_chunk", environment, in_loop=True)
    worker = _Worker(sandbox)

    async def answer(invoked: Invoked) -> dict[str, Any]:
        batch = batch_of(invoked.event)
        return await answered(batch, lambda received: worker.handle(received, invoked.deadline))

    return Handler(sandbox, answer)


class _Worker:
    """Handles the messages of one sandbox."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._log = get_logger("durable_core")

    async def handle(self, received: Received, deadline: LambdaDeadline) -> bool:
        """Whether a message was dealt with; else it comes again, and in the end to the dead letters."""
        try:
            message = message_of(received, ChunkMessage)
        except UsageError as error:
            self._failed("message_unreadable", error)
            return False
        where = {"run_id": message.run_id, "step_id": message.step_id, "chunk": message.chunk}
        if deadline.left_s() <= 0:
            self._log.warning("no_time_left", **where)
            return False
        units = self._sandbox.transport.write_units
        try:
            result = await self._sandbox.executor.work_chunk(
                message.run_id, message.step_id, message.chunk, deadline=deadline
            )
        except Fenced:  # somebody else goes on with it
            self._log.warning("chunk_fenced", **where)
            return True
        except DurableError as error:
            error.run_id = error.run_id or message.run_id
            self._failed("chunk_not_worked_on", error)
            return not error.retryable
        self._log.info("chunk_left", **where, status=result.status, items=result.items)
        self._sandbox.metrics.put(
            {
                "ItemsDone": result.items,
                f"Chunks{result.status.title().replace('_', '')}": 1,
                "WriteUnits": self._sandbox.transport.write_units - units,
            },
            **where,
        )
        return True

    def _failed(self, event: str, error: DurableError) -> None:
        self._log.error(event, run_id=error.run_id, code=error.code, reason=error.message)
        self._sandbox.metrics.put({"MessagesFailed": 1}, run_id=error.run_id, code=error.code)
