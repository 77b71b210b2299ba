"""One sandbox of a function: one event loop and one set of clients, whatever its invocations come to.

The loop runs in a thread of its own. So an invocation may come from any thread, also one in which another
loop runs, after one that raised, and after the sandbox was frozen for hours.
"""

from __future__ import annotations

import asyncio
import importlib
import pkgutil
import threading
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from durable_core.aws.deadline import LambdaDeadline
from durable_core.aws.logs import configure_function_logging, invocation
from durable_core.aws.metrics import Metered, Metrics
from durable_core.aws.queue import SqsDispatch
from durable_core.aws.tracing import trace_id
from durable_core.aws.transport import open_transport
from durable_core.clock import Clock, SystemClock
from durable_core.engine.executor import DurableWorkflowExecutor
from durable_core.errors import UsageError
from durable_core.settings import load_config
from durable_core.store_urls import DynamoUrl, parse_store_url
from durable_core.stores import open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from durable_core.aws.environment import Environment

A = TypeVar("A")


class Invoked(NamedTuple):
    """One invocation.

    Attributes:
        event: What the function was called with.
        request_id: Lambda's; None without a context.
        deadline: When runs have to be left.
    """

    event: object
    request_id: str | None
    deadline: LambdaDeadline


class Sandbox:
    """What the invocations of one function share.

    Args:
        function: Its name.
        environment: Its settings.
        in_loop: Whether requests to AWS go by aioboto3, in the loop; else by boto3 in threads, which takes
            less time to import.
        clock: The source of time.
    """

    def __init__(
        self, function: str, environment: Environment, *, in_loop: bool = False, clock: Clock | None = None
    ) -> None:
        configure_function_logging(environment.log_level)
        self.clock = clock or SystemClock()
        named = parse_store_url(environment.store)
        place = (named.region, named.endpoint) if isinstance(named, DynamoUrl) else (None, None)
        self.transport = Metered(
            open_transport(region=place[0], endpoint=place[1], use_async=None if in_loop else False)
        )
        self.dispatch = SqsDispatch(self.transport, environment.drive_queue_url, environment.work_queue_url)
        self.executor = DurableWorkflowExecutor(
            open_store(environment.store, clock, transport=self.transport),
            checkpointing=load_config(),
            clock=clock,
            dispatch=self.dispatch if environment.drive_queue_url is not None else None,
        )
        self.metrics = Metrics(environment.stage, function, self.clock)
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._starting = threading.Lock()

    def run(self, call: Coroutine[Any, Any, A]) -> A:
        """Runs a coroutine in the loop, and waits for it."""
        return asyncio.run_coroutine_threadsafe(call, self._running_loop()).result()

    def close(self) -> None:
        """Gives connections and threads back; it can be used again."""
        with self._starting:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is None or thread is None:
            return
        asyncio.run_coroutine_threadsafe(self._close(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

    async def _close(self) -> None:
        await self.executor.close()
        await self.transport.close()

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._starting:
            if self._loop is None or self._thread is None or not self._thread.is_alive():
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._loop.run_forever, name="durable-sandbox", daemon=True
                )
                self._thread.start()
            return self._loop


class Handler(Generic[A]):
    """What Lambda calls: `handler(event, context)`.

    Args:
        sandbox: Where its invocations run.
        answer: Answers one invocation.

    Attributes:
        sandbox: The same.
    """

    def __init__(self, sandbox: Sandbox, answer: Callable[[Invoked], Coroutine[Any, Any, A]]) -> None:
        self.sandbox = sandbox
        self._answer = answer

    def __call__(self, event: object, context: object) -> A:
        """Answers one invocation."""
        return self.sandbox.run(self.answer(event, context))

    async def answer(self, event: object, context: object) -> A:
        """The same, in the caller's own event loop."""
        request_id = getattr(context, "aws_request_id", None)
        invoked = Invoked(
            event, str(request_id) if request_id else None, LambdaDeadline(context, self.sandbox.clock)
        )
        with invocation(request_id=invoked.request_id, trace_id=trace_id()):
            return await self._answer(invoked)

    def close(self) -> None:
        """Gives connections and threads back, for tests and local runs."""
        self.sandbox.close()


def load_workflows(named: str | Sequence[str]) -> None:
    """Imports the modules that define workflows; of a package, the modules directly in it, too.

    Args:
        named: A module or package, or several.

    Raises:
        UsageError: There is no such module.
    """
    for name in [named] if isinstance(named, str) else named:
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise  # something that the module itself needs
            raise UsageError(
                f"there is no module {error.name!r}, which workflows={name!r} names",
                remedy="Put it into the function's package",
            ) from error
        for found in pkgutil.iter_modules(getattr(module, "__path__", ())):
            importlib.import_module(f"{name}.{found.name}")
