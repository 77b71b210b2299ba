"""The pytest plugin: `crash_points` and its fixture, `assert_resumable`, `fake_clock`, `memory_store`.

pytest loads it by itself where this package is installed; what it needs is imported when a test asks for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from durable_core.store import Store
    from durable_core.testing.crash_points import CrashPoint
    from durable_core.testing.fake_clock import FakeClock

_MARK = "crash_points"


def pytest_configure(config: pytest.Config) -> None:
    """Makes the mark known."""
    config.addinivalue_line(
        "markers", f"{_MARK}(subject): run at each crash point of a workflow; see its function"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Gives a marked test each crash point."""
    mark = metafunc.definition.get_closest_marker(_MARK)
    if mark is None:
        return
    if "crash_point" not in metafunc.fixturenames:
        raise pytest.UsageError(
            f"{metafunc.definition.nodeid} is marked by crash_points and has no parameter `crash_point`"
        )
    metafunc.parametrize("crash_point", mark.args[0].points(), ids=str, indirect=True)


@pytest.fixture
def crash_point(request: pytest.FixtureRequest) -> CrashPoint:
    """The crash point that a test marked by `crash_points` is run at.

    Raises:
        UsageError: The test isn't marked.
    """
    point: CrashPoint | None = getattr(request, "param", None)
    if point is None:
        raise pytest.UsageError("the fixture crash_point is for tests that are marked by crash_points")
    return point


@pytest.fixture
def assert_resumable() -> Callable[..., None]:
    """Tries all crash points of a workflow: `assert_resumable(month_end, {"customers": [...]})`."""
    from durable_core.testing.crash_points import assert_resumable

    return assert_resumable


@pytest.fixture
def fake_clock() -> FakeClock:
    """A clock that a test turns by hand."""
    from durable_core.testing.fake_clock import FakeClock

    return FakeClock()


@pytest.fixture
def memory_store(fake_clock: FakeClock) -> Store:
    """An empty store in memory that goes by `fake_clock`.

    Example:
        executor = DurableWorkflowExecutor(memory_store, clock=fake_clock)
    """
    from durable_core.stores import open_store

    return open_store("memory://", fake_clock)
