"""A sandbox that is used again: after hundreds of invocations, after an exception, after it was frozen."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from typing_extensions import override

from durable_core.aws import inbox as inbox_module
from durable_core.clock import SystemClock
from durable_core.errors import InvalidEvent
from tests.functions import jobs
from tests.lambda_place import DONE, Context, Deployment, batch
from tests.proxy import Between
from tests.system import open_files
from tests.waiting import until


class Ahead(SystemClock):
    """The machine's clock three hours from now."""

    def now_ms(self) -> int:
        return super().now_ms() + 3 * 3_600_000


def held() -> dict[str, int]:
    """What this process holds that a leak would add to."""
    gc.collect()
    loops = [
        one for one in gc.get_objects() if isinstance(one, asyncio.BaseEventLoop) and not one.is_closed()
    ]
    return {
        "loops": len(loops),
        "threads": threading.active_count(),
        "files": open_files(),
    }


def test_two_hundred_warm_invocations_hold_no_more_than_the_first_ones(deployment: Deployment) -> None:
    deployment.started("warm", "doubled", numbers=[1])
    deployment.driven()
    drive = deployment.new_drive()
    for n in range(220):
        if n == 20:
            before = held()
        bodies = ["poison"] if n % 4 else ["poison", {"run_id": "warm"}]
        assert drive(batch(*bodies), Context()) == {"batchItemFailures": [{"itemIdentifier": "m0"}]}
    assert held() == before


def test_a_sandbox_is_used_after_an_exception(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object, **__: object) -> Any:
        raise RuntimeError("a defect")

    drive = deployment.new_drive()
    run_id = deployment.started("after-exception", "doubled", numbers=[1])
    (sent,) = deployment.sent()
    with pytest.raises(InvalidEvent):
        drive({}, Context())
    with monkeypatch.context() as patched:
        patched.setattr(drive.sandbox.executor, "drive", broken)
        with pytest.raises(RuntimeError, match="a defect"):
            drive(batch(sent), Context())
    assert drive(batch(sent), Context()) == DONE
    assert deployment.status(run_id) == "COMPLETED"


def test_a_sandbox_is_used_from_wherever_it_is_called(deployment: Deployment) -> None:
    drive = deployment.new_drive()
    runs = [deployment.started(f"wherever-{n}", "doubled", numbers=[n]) for n in range(6)]
    events = [batch({"run_id": run_id}) for run_id in runs]

    async def inside(event: Any) -> Any:
        return drive(event, Context())  # a loop is running here

    assert drive(events[0], Context()) == DONE
    assert asyncio.run(inside(events[1])) == DONE  # that loop is closed now
    assert drive(events[2], Context()) == DONE
    assert asyncio.run(inside(events[3])) == DONE
    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(lambda event: drive(event, Context()), events[4:])) == [DONE] * 2
    assert {deployment.status(run_id) for run_id in runs} == {"COMPLETED"}


def test_a_sandbox_that_was_closed_opens_again(deployment: Deployment) -> None:
    drive = deployment.new_drive()
    for n in range(2):
        deployment.started(f"reopened-{n}", "doubled", numbers=[n])
        assert drive(batch(*deployment.sent()), Context()) == DONE
        drive.close()
        drive.close()


@pytest.mark.parametrize("workflow", ["frozen_async", "frozen_def"])
def test_a_sandbox_that_is_thawed_after_its_lease_gives_way_and_is_of_use_afterwards(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, workflow: str
) -> None:
    """It slept in the middle of a step; hours later somebody else has done that step and gone on."""
    jobs.thaw.clear()
    jobs.bodies.clear()
    run_id = deployment.started(workflow, workflow)
    (sent,) = deployment.sent()
    frozen, sandbox = deployment.new_drive(), inbox_module.Sandbox
    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(frozen, batch(sent), Context())
        until(lambda: jobs.bodies == ["frozen"], "the step to begin")
        with monkeypatch.context() as patched:
            patched.setattr(inbox_module, "Sandbox", lambda *a, **k: sandbox(*a, **k, clock=Ahead()))
            later = deployment.new_drive()
        assert later(batch(sent), Context()) == DONE
        assert deployment.status(run_id) == "COMPLETED"
        before = deployment.inspect({"run_id": run_id}, Context())
        jobs.thaw.set()
        assert answer.result(20) == DONE
    assert deployment.inspect({"run_id": run_id}, Context()) == before
    assert jobs.bodies == ["frozen", "second", "last"]  # the thawed one has begun nothing more
    deployment.started(f"after-{workflow}", "doubled", numbers=[1])
    assert frozen(batch({"run_id": f"after-{workflow}"}), Context()) == DONE
    assert deployment.status(f"after-{workflow}") == "COMPLETED"
    assert [told["status"] for told in deployment.told()] == ["COMPLETED", "COMPLETED"]


def test_a_warm_sandbox_goes_by_what_is_recorded_not_by_what_it_has_seen(deployment: Deployment) -> None:
    """It left the step as STARTED, another has committed it since; and the workflow changes what it gets."""
    jobs.bodies.clear()
    first, second = deployment.new_drive(), deployment.new_drive()
    deployment.started("warms-up", "doubled", numbers=[1])
    assert first(batch(*deployment.sent()), Context()) == DONE
    run_id = deployment.started("seen", "changes_what_it_was_given")
    assert first(batch(*deployment.sent()), Context(2000)) == DONE
    assert deployment.inspect({"run_id": run_id}, Context())["steps"][0]["status"] == "STARTED"
    assert second(batch(*deployment.sent()), Context()) == DONE
    for name in ("one", "two"):
        assert deployment.status(run_id) == "SUSPENDED"
        deployment.signal({"run_id": run_id, "event": name}, Context())
        assert first(batch(*deployment.sent()), Context()) == DONE
    assert deployment.status(run_id) == "COMPLETED"
    assert jobs.bodies == ["frozen", "second", "[1, 2, 3, 4, 4]"]


class Wire(Between):
    """Passes everything on, until it is cut."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self._open: set[asyncio.StreamWriter] = set()

    @override
    async def connected(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        server, to_server = await asyncio.open_connection("127.0.0.1", self.to)
        self._open |= {to_client, to_server}
        await asyncio.gather(self._pass(client, to_server), self._pass(server, to_client))

    async def _pass(self, source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await source.read(65536):
                to.write(data)
                await to.drain()
        to.close()

    def cut(self) -> int:
        """Ends all connections, as servers do with idle ones; gives how many there were."""
        count = len(self._open)

        async def ended() -> None:
            for writer in self._open:
                writer.close()
            self._open.clear()

        asyncio.run_coroutine_threadsafe(ended(), self._loop).result()
        return count


@pytest.fixture
def wire(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> Iterator[Wire]:
    port = int(deployment.cloud.endpoint.rpartition(":")[2])
    with Wire(port) as made:
        store = deployment.environment["DURABLE_STORE"].replace(f":{port}", f":{made.port}")
        monkeypatch.setenv("DURABLE_STORE", store)
        yield made


def test_connections_that_were_ended_while_it_slept_are_made_anew(deployment: Deployment, wire: Wire) -> None:
    drive = deployment.new_drive()
    for n in range(3):
        run_id = deployment.started(f"cut-{n}", "doubled", numbers=[n])
        assert drive(batch(*deployment.sent()), Context()) == DONE
        assert deployment.status(run_id) == "COMPLETED"
        assert wire.cut() > 0
    drive.close()
