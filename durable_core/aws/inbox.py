"""Functions that a queue triggers: reading a batch, and which of its messages have to come again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from durable_core.aws.environment import read_environment
from durable_core.aws.queue import Message, answered, batch_of, message_of
from durable_core.aws.sandbox import Handler, Invoked, Sandbox, load_workflows
from durable_core.errors import DurableError, UsageError
from durable_core.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from durable_core.aws.deadline import LambdaDeadline
    from durable_core.aws.environment import Environment
    from durable_core.aws.queue import Received

M = TypeVar("M", bound=Message)


def queue_handler(
    function: str,
    kind: type[M],
    act_of: Callable[[Sandbox, Environment], Callable[[M, LambdaDeadline], Awaitable[None]]],
    *,
    workflows: str | Sequence[str],
    needs: Sequence[str],
    failure: str,
) -> Handler[dict[str, Any]]:
    """The handler of a function that a queue triggers.

    Args:
        function: Its name.
        kind: The model of its messages.
        act_of: Gives what is done for each message in that sandbox. What it raises fails the message, unless
            that would be the same the next time: then it is done with, and logged.
        workflows: The module or package that defines them, or several.
        needs: The fields of its environment that it can't do without.
        failure: The event that is logged for a message that failed.

    Raises:
        UsageError: A variable of its environment is missing, or a module.
    """
    environment = read_environment(*needs)
    load_workflows(workflows)
    sandbox = Sandbox(function, environment, in_loop=True)
    inbox = _Inbox(sandbox, kind, act_of(sandbox, environment), failure)

    async def answer(invoked: Invoked) -> dict[str, Any]:
        batch = batch_of(invoked.event)
        return await answered(batch, lambda received: inbox.deals_with(received, invoked.deadline))

    return Handler(sandbox, answer)


class _Inbox(Generic[M]):
    """Takes the messages of one sandbox."""

    def __init__(
        self,
        sandbox: Sandbox,
        kind: type[M],
        act: Callable[[M, LambdaDeadline], Awaitable[None]],
        failure: str,
    ) -> None:
        self._sandbox = sandbox
        self._kind = kind
        self._act = act
        self._failure = failure
        self._log = get_logger("durable_core")

    async def deals_with(self, received: Received, deadline: LambdaDeadline) -> bool:
        """Whether a message was dealt with; one that wasn't comes again, and in the end to the dead letters.

        A run or chunk that fails for a reason of its own stays due: the sweep has it tried again, and its
        message needn't.
        """
        try:
            message = message_of(received, self._kind)
        except UsageError as error:
            self._failed("message_unreadable", error)
            return False
        if deadline.left_s() <= 0:
            self._log.warning("no_time_left", **message.ids())
            return False
        try:
            await self._act(message, deadline)
        except DurableError as error:
            error.run_id = error.run_id or message.run_id
            self._failed(self._failure, error)
            return not error.retryable
        return True

    def _failed(self, event: str, error: DurableError) -> None:
        self._log.error(event, run_id=error.run_id, code=error.code, reason=error.message)
        self._sandbox.metrics.put({"MessagesFailed": 1}, run_id=error.run_id, code=error.code)
